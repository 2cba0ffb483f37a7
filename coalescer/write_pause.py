"""No write for a moment: what is queued waits in line, and the event loop goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .commit_loop import Coalescer

__all__ = ["held"]


class _Hold:
    """Stands where the timer of a retry does, so everything that looks for one waits."""

    def cancel(self) -> None:
        """The shard fails or closes meanwhile: there is nothing to be tried again."""


@contextmanager
def held(co: Coalescer) -> Iterator[None]:
    """Nothing is written to the store inside. Callers wait as they would for a stalled one.

    No hold where a refused write is waiting to be tried again, nor inside another hold: then it
    may be written.
    """
    if co._retry is not None:
        yield
        return
    hold = co._retry = _Hold()
    try:
        yield
    finally:
        if co._retry is hold:
            co._retry = None
            co.go_on()
