"""How long the event loop is away: from one poll of the selector to the next.

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
    """``with LoopLag() as lag:`` on a running asyncio loop."""

    def __init__(self) -> None:
        self.wall_ms: list[float] = []
        self.cpu_ms: list[float] = []

    def __enter__(self) -> LoopLag:
        selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        self._selector, self._select = selector, selector.select
        wall, cpu = time.perf_counter(), time.thread_time()

        def select(timeout: float | None = None) -> Any:
            nonlocal wall, cpu
            self.wall_ms.append((time.perf_counter() - wall) * 1e3)
            self.cpu_ms.append((time.thread_time() - cpu) * 1e3)
            events = self._select(timeout)
            wall, cpu = time.perf_counter(), time.thread_time()
            return events

        selector.select = select
        return self

    def __exit__(self, *exc: object) -> None:
        self._selector.select = self._select

    def summary(self) -> dict[str, float]:
        """Milliseconds: the longest iteration and the 99.9th percentile, wall and CPU."""
        out = {}
        for name, values in (("wall", sorted(self.wall_ms)), ("cpu", sorted(self.cpu_ms))):
            out[f"{name}_max_ms"] = round(values[-1], 2)
            out[f"{name}_p999_ms"] = round(values[int(len(values) * 0.999)], 2)
        return out
