"""The cost of measured work beside its time: CPU of the process, the loop's longest turns.

A turn is long for what the engine does in it, or for a pass of Python's collector that falls into
it: the longest pass of each round is kept too.

Wall time on a machine that others use says little; CPU time of the same rounds says more. Both are
kept, and neither has a warm-up: the first round counts as the others do.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import raw
from looplag import LoopLag
from passes import Passes
from results import Bench, Goal, Result

__all__ = ["Ceiling", "Span", "Watch", "add_turns", "beside", "of_raw", "watched"]

TURN = Goal("median", most=20.0)


class Span:
    """One measured piece of work: its caller sets how many tasks it was."""

    def __init__(self) -> None:
        self.tasks = 0
        self.seconds = 0.0
        self.cpu_s = 0.0

    @property
    def rate(self) -> float:
        """Tasks per second."""
        return self.tasks / self.seconds


class Watch:
    """CPU microseconds a task (all threads), the longest turn and collector pass, of each round."""

    def __init__(self) -> None:
        self.cpu_us: list[float] = []
        self.turns_ms: list[float] = []
        self.turns_cpu_ms: list[float] = []
        self.passes_ms: list[float] = []

    @contextlib.contextmanager
    def span(self) -> Iterator[Span]:
        """Measure a round; on uvloop, which has no selector to watch, without turns."""
        span = Span()
        has_selector = hasattr(asyncio.get_running_loop(), "_selector")
        lag, passes = LoopLag(is_whole=False), Passes()
        with passes, lag if has_selector else contextlib.nullcontext():
            wall, cpu = time.perf_counter(), time.process_time()
            yield span
            span.cpu_s, span.seconds = time.process_time() - cpu, time.perf_counter() - wall
        self.cpu_us.append(span.cpu_s / max(1, span.tasks) * 1e6)
        self.passes_ms.append(passes.longest_ms)
        if has_selector:
            self.turns_ms.append(lag.wall_max_ms)
            self.turns_cpu_ms.append(lag.cpu_max_ms)

    def more(self, ceiling: Sequence[float] = ()) -> dict[str, float]:
        """Columns of a result; ``ceiling``: CPU microseconds a task of raw in the same rounds."""
        out = {"cpu_us": round(statistics.median(self.cpu_us), 1)}
        if ceiling:
            shares = [theirs / own for own, theirs in zip(self.cpu_us, ceiling, strict=True)]
            out["of_raw_by_cpu"] = round(statistics.median(shares), 3)
        if self.turns_ms:
            out["turn_ms"] = round(statistics.median(self.turns_ms), 1)
            out["turn_cpu_ms"] = round(statistics.median(self.turns_cpu_ms), 1)
        out["gc_pass_ms"] = round(statistics.median(self.passes_ms), 1)
        return out


class Ceiling:
    """Raw rocksdict, one figure a round: ``await ceiling()``; ``cpu_us`` has its CPU time."""

    def __init__(
        self, path: Path, seconds: float, *, payload_bytes: int = 100, is_synced: bool = False
    ) -> None:
        """Open it.

        Args:
            path: of its store.
            seconds: how long a figure takes, about.
            payload_bytes: of a task.
            is_synced: with a sync of the log behind each batch, as in fsync mode.
        """
        self.db = raw.open_raw(str(path))
        self.cpu_us: list[float] = []
        self._runs = raw.cycles(
            self.db,
            640 if is_synced else 6400,
            64,
            payload_bytes,
            seconds=seconds,
            cpu_us=self.cpu_us,
            is_synced=is_synced,
        )

    async def __call__(self) -> float:
        return next(self._runs)

    def __enter__(self) -> Ceiling:
        return self

    def __exit__(self, *exc: object) -> None:
        self.db.close()


def watched(
    watch: Watch, measure: Callable[[], Awaitable[float]]
) -> Callable[[], Awaitable[float]]:
    """The same measure, a figure a second, under a watch."""

    async def run() -> float:
        with watch.span() as span:
            began = time.perf_counter()
            rate = await measure()
            span.tasks = round(rate * (time.perf_counter() - began))
        return rate

    return run


def of_raw(runs: Sequence[float], raws: Sequence[float]) -> dict[str, float]:
    """A column for a result that stands beside something else: its share of raw, by rounds."""
    return {"of_raw": round(statistics.median(a / b for a, b in zip(runs, raws, strict=True)), 3)}


def beside(
    case: str,
    params: dict[str, Any],
    unit: str,
    runs: list[float],
    watch: Watch,
    raws: list[float],
    ceiling: Ceiling,
    *,
    goal: Goal | None = None,
    **more: Any,
) -> Result:
    """A result beside raw by 64, with its columns of CPU and turns.

    Args:
        case: the table it stands in.
        params: its columns that tell it from its neighbours.
        unit: of ``runs``.
        runs: a figure a round.
        watch: watched these rounds.
        raws: raw's figures of these rounds.
        ceiling: raw, for its CPU time; may have run in earlier rounds too.
        goal: of the ratio or the median.
        more: further columns.
    """
    return Result(
        case,
        params,
        unit,
        runs,
        "raw by 64",
        raws,
        more={**watch.more(ceiling.cpu_us[-len(raws) :]), **more},
        goal=goal,
    )


def add_turns(bench: Bench, watches: dict[str, Watch]) -> None:
    """The longest turns of the loop under each of these loads: a figure a round."""
    for under, watch in watches.items():
        if watch.turns_ms:
            bench.add(
                Result(
                    "longest turn of the loop",
                    {"under": under},
                    "ms",
                    watch.turns_ms,
                    goal=TURN,
                    more={
                        "wall_max_ms": round(max(watch.turns_ms), 2),
                        "cpu_max_ms": round(max(watch.turns_cpu_ms), 2),
                        "gc_pass_max_ms": round(max(watch.passes_ms), 2),
                    },
                )
            )
