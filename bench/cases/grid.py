"""Callers by backlog: every cell beside raw in its own round, and the worst cell is quoted.

Stores with a backlog are made before, in a process of their own; with ``--dir`` they are kept for
the next run. They are opened here with the default cache. Who waits longest is claimed first, so
all cells but those with nothing waiting claim what lies in tables. Resident memory is that of this
process at the end of the rounds, the caches of raw and of SQLite included.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from backlog import resident_mib
from bursts import drain, refill, turnover
from hand import Hand
from results import Bench, Goal, Result
from settling import settled
from waiting_store import QUEUE
from watch import Ceiling, Watch, add_turns, beside

import lodeq

CASE = "callers by backlog"
CALLERS = (16, 64, 256, 1024)
WAITING = (0, 1_000, 100_000, 10_000_000)
DRAIN_CALLERS = 64
FILL = Path(__file__).parents[1] / "waiting_store.py"
DRAINED = Goal("median", least=60_000)
AS_FAST = Goal("ratio", least=0.9, most=1.1)


def sizes(bench: Bench, of: tuple[int, ...]) -> list[int]:
    """The backlogs for this scale: ten million are built in the full run only, but used if kept."""
    if bench.scale >= 1:
        return list(of)
    if bench.scale < 0.1:
        return sorted({int(n * bench.scale / 10) for n in of})
    return [n if n <= 1_000_000 or _path(bench, n).exists() else 1_000_000 for n in of]


def _path(bench: Bench, n: int) -> Path:
    return bench.kept / f"waiting-{n}"


async def _store(bench: Bench, n: int) -> Path:
    path = _path(bench, n)
    path.parent.mkdir(parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec(sys.executable, str(FILL), str(path), str(n))
    if await process.wait():
        raise RuntimeError(f"{path} could not be filled")
    return path


async def grid(bench: Bench) -> None:
    """Cycles of 16, 64, 256 and 1,024 callers beside 0, 1 k, 100 k and 10 M tasks that wait."""
    watches: dict[str, Watch] = {}
    for n in sizes(bench, WAITING):
        path = await _store(bench, n)
        async with lodeq.open(path) as engine:
            await _row(bench, engine, n, watches)
    add_turns(bench, watches)


async def _row(bench: Bench, engine: lodeq.Engine, n: int, watches: dict[str, Watch]) -> None:
    seconds = 2.0 * bench.scale
    queue = engine.queue(QUEUE)
    own = {callers: Watch() for callers in CALLERS}
    with (
        Hand(bench.kept / f"hand-{n}", n) as hand,
        Ceiling(bench.folder / f"raw-grid-{n}", seconds) as ceiling,
    ):
        measures: dict[str, Callable[[], Awaitable[float]]] = {
            "raw": ceiling,
            "hand": partial(hand.turnover, seconds / 2),
        }
        for callers in CALLERS:
            measures[str(callers)] = partial(turnover, queue, seconds, callers, own[callers])
        runs = await bench.rounds(measures, before=partial(settled, [engine], [ceiling.db]))
    for callers in CALLERS:
        bench.add(
            beside(
                CASE,
                {"waiting": n, "callers": callers, "durability": "nosync"},
                "cycles/s",
                runs[str(callers)],
                own[callers],
                runs["raw"],
                ceiling,
                resident_mib=round(resident_mib()),
                **hand.columns(runs[str(callers)], runs["hand"]),
            )
        )
    watches[f"{max(CALLERS):,} callers, {n:,} waiting"] = own[max(CALLERS)]


async def drains(bench: Bench) -> None:
    """Drain by single claims of 64 callers at 1 M and at 10 M waiting, in the same rounds."""
    few, many = sizes(bench, (1_000_000, 10_000_000))[0], sizes(bench, WAITING)[-1]
    if few == many:
        few = max(1, many // 10)
    n = max(64, min(few // 2, int(200_000 * bench.scale)))
    paths = {size: await _store(bench, size) for size in (few, many)}
    watches = {size: Watch() for size in paths}
    with (
        Hand(bench.kept / f"hand-{many}", many) as hand,
        Ceiling(bench.folder / "raw-drains", 2.0 * bench.scale) as ceiling,
    ):
        async with lodeq.open(paths[few]) as one, lodeq.open(paths[many]) as other:
            engines = {few: one, many: other}

            async def ready() -> None:
                for size, engine in engines.items():
                    await refill(engine.queue(QUEUE), size)
                hand.refill()
                await settled([one, other], [ceiling.db])

            measures: dict[str, Callable[[], Awaitable[float]]] = {
                "raw": ceiling,
                "hand": partial(hand.drain, max(1, n // 5)),
            }
            for size, engine in engines.items():
                queue = engine.queue(QUEUE)
                measures[str(size)] = partial(drain, queue, n, DRAIN_CALLERS, watches[size])
            runs = await bench.rounds(measures, before=ready)
            mib = round(resident_mib())
    for size in (few, many):
        bench.add(
            beside(
                "drain by single claims",
                {"waiting": size, "callers": DRAIN_CALLERS, "drained": n},
                "tasks/s",
                runs[str(size)],
                watches[size],
                runs["raw"],
                ceiling,
                goal=DRAINED,
                resident_mib=mib,
                **hand.columns(runs[str(size)], runs["hand"]),
            )
        )
    bench.add(
        Result(
            "drain beside a smaller backlog",
            {"waiting": many, "callers": DRAIN_CALLERS},
            "tasks/s",
            runs[str(many)],
            f"{few:,} waiting",
            runs[str(few)],
            goal=AS_FAST,
        )
    )
    add_turns(bench, {f"a drain of {size:,}": watch for size, watch in watches.items()})
