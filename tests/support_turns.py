"""How much CPU the longest callback of a loop takes: what everybody else waits for.

Limits are in milliseconds of a core that needs one for the *yardstick*, a piece of the work that
turns are made of. A slower core, or one that others slow down at the moment, gets as much longer.
"""

import asyncio
import gc
import time
from contextlib import contextmanager

import msgpack

YARDS = 3  # the shortest of so many is taken
SLOW_MAX = 4.0  # a core slower than that is not one to measure on


class LoopHeldError(AssertionError):
    """One callback took too long. A test marked ``turns`` is run again for it: see tiers.py."""


def yardstick_ms():
    """How long the yardstick takes just now: rows packed, unpacked and kept under their keys.

    Without a collection of garbage: it would walk through what the test has in memory.
    """
    took = []
    gc.disable()
    for _ in range(YARDS):
        begun = time.thread_time()
        rows = {}
        for n in range(1000):
            row = msgpack.unpackb(msgpack.packb((n, f"k{n}", b"x" * 32, {"n": n}, None)))
            rows[b"%012d" % n] = [*row, n % 7]
        sorted(rows.items())
        took.append((time.thread_time() - begun) * 1e3)
    gc.enable()
    return min(took)


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
    """Fail if any callback of a loop of this thread takes longer, while it lasts: see above.

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
    before_ms = yardstick_ms()
    asyncio.Handle._run = measured
    longest = Longest()
    try:
        yield
        longest.end("what was there behind the last wait")
    finally:
        asyncio.Handle._run = run
        gc.unfreeze()
    slow = min(max(1.0, before_ms, yardstick_ms()), SLOW_MAX)
    if longest.ms >= limit_ms * slow:
        raise LoopHeldError(
            f"{longest.ms:.1f} ms of a core that is slower by {slow:.2f}, at most {limit_ms}: "
            f"{longest.what}"
        )
