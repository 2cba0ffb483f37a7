"""The time for which the event loop is away: from one poll of the selector to the next.

An iteration runs everything that was ready, so the longest iteration is an upper bound for the
longest step. Wall time on a busy machine includes being preempted; CPU time of the thread does
not, so both are kept.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

__all__ = ["LoopLag"]


class LoopLag:
    """``with LoopLag() as lag:`` on a running asyncio loop.

    With ``is_whole=False`` it keeps the longest iterations only: for hours of them.
    """

    def __init__(self, *, is_whole: bool = True) -> None:
        self.wall_ms: list[float] = []
        self.cpu_ms: list[float] = []
        self.wall_max_ms = self.cpu_max_ms = 0.0
        self.is_whole = is_whole

    def __enter__(self) -> LoopLag:
        selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        self._selector, self._select = selector, selector.select

        def select(timeout: float | None = None) -> Any:
            self._note()
            events = self._select(timeout)
            self._wall, self._cpu = time.perf_counter(), time.thread_time()
            return events

        selector.select = select
        self._wall, self._cpu = time.perf_counter(), time.thread_time()
        return self

    def __exit__(self, *exc: object) -> None:
        self._note()  # who never lets go of the loop is seen too
        self._selector.select = self._select

    def _note(self) -> None:
        """Count the iteration that ends here."""
        wall_ms = (time.perf_counter() - self._wall) * 1e3
        cpu_ms = (time.thread_time() - self._cpu) * 1e3
        if self.is_whole:
            self.wall_ms.append(wall_ms)
            self.cpu_ms.append(cpu_ms)
        if wall_ms > self.wall_max_ms:
            self.wall_max_ms = wall_ms
        if cpu_ms > self.cpu_max_ms:
            self.cpu_max_ms = cpu_ms

    def summary(self) -> dict[str, float]:
        """Milliseconds: the longest iteration and the 99.9th percentile, wall and CPU."""
        out = {}
        for name, values in (("wall", sorted(self.wall_ms)), ("cpu", sorted(self.cpu_ms))):
            out[f"{name}_max_ms"] = round(values[-1], 2)
            out[f"{name}_p999_ms"] = round(values[int(len(values) * 0.999)], 2)
        return out
