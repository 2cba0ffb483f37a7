"""A pause without writes: what is queued waits in line, and the event loop goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .commit_loop import Coalescer

__all__ = ["writes_paused"]


@contextmanager
def writes_paused(coalescer: Coalescer) -> Iterator[None]:
    """Write nothing to the store inside. Callers wait as they would for a stalled one.

    There is no pause where a refused write is waiting to be tried again, nor inside another
    pause: then the store may be written to.
    """
    pause = coalescer.pause_writes()
    try:
        yield
    finally:
        if pause is not None:
            coalescer.resume_writes(pause)
