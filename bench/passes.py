"""Passes of Python's garbage collector: how long the longest took, and how many went over all.

A pass runs in the midst of whatever allocates, on the loop's thread: it is part of a turn.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator

from lodeq.service.shared.garbage_collector import settle_collector

__all__ = ["OLDEST", "Passes", "frozen"]

OLDEST = 2  # the generation whose pass goes over every object there is


class Passes:
    """``with Passes() as passes:`` counts the passes of the process meanwhile."""

    def __init__(self) -> None:
        self.longest_ms = self.total_ms = 0.0
        self.of_all = 0
        self._began = 0.0

    def __enter__(self) -> Passes:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
            return
        took_ms = (time.perf_counter() - self._began) * 1e3
        self.longest_ms = max(self.longest_ms, took_ms)
        self.total_ms += took_ms
        self.of_all += info["generation"] == OLDEST


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Set the collector as ``lodeq serve`` does, and undo it."""
    before = gc.get_threshold()
    settle_collector()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
