"""How much CPU the longest callback of a loop takes: what everybody else waits for."""

import asyncio
import gc
import time
from contextlib import contextmanager


class Longest:
    """Thread time, so that a busy machine does not count."""

    ms = 0.0
    what = ""


@contextmanager
def longest_callback():
    """Every callback of every loop of this thread, while it lasts."""
    longest, run = Longest(), asyncio.Handle._run

    def measured(handle):
        begun = time.thread_time()
        run(handle)
        took_ms = (time.thread_time() - begun) * 1e3
        if took_ms > longest.ms:
            longest.ms, longest.what = took_ms, repr(handle)[:300]

    gc.collect()
    gc.freeze()  # what was there before is not theirs to walk
    asyncio.Handle._run = measured
    try:
        yield longest
    finally:
        asyncio.Handle._run = run
        gc.unfreeze()
