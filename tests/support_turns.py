"""How much CPU the longest callback of a loop takes: what everybody else waits for."""

import asyncio
import gc
import time
from contextlib import contextmanager


class LoopHeldError(AssertionError):
    """One callback took too long. A test marked ``turns`` is run again for it: see tiers.py."""


class Longest:
    """Thread time, so that a busy machine does not count."""

    ms = 0.0
    what = ""

    def __init__(self):
        self.begun = time.thread_time()

    def end(self, what):
        """Measure what has run since ``begun``; how it is shown does not count."""
        took_ms = (time.thread_time() - self.begun) * 1e3
        if took_ms > self.ms:
            self.ms, self.what = took_ms, repr(what)[:300]


@contextmanager
def held_at_most(limit_ms):
    """Fail if any callback of a loop of this thread takes longer, while it lasts.

    Also of those two that it begins and ends in the middle of, the part inside: a call that does
    not wait is all there.
    """
    run = asyncio.Handle._run
    is_first = True

    def measured(handle):
        nonlocal is_first
        if is_first:
            is_first = False
            longest.end("what was there before the first wait")
        longest.begun = time.thread_time()
        run(handle)
        longest.end(handle)

    gc.collect()
    gc.freeze()  # what was there before is not theirs to walk
    asyncio.Handle._run = measured
    longest = Longest()
    try:
        yield
        longest.end("what was there behind the last wait")
    finally:
        asyncio.Handle._run = run
        gc.unfreeze()
    if longest.ms >= limit_ms:
        raise LoopHeldError(f"{longest.ms:.1f} ms, at most {limit_ms}: {longest.what}")
