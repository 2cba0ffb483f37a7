"""lodeq beside what a careful author would write by hand on SQLite, in the same rounds.

One caller on both sides. ``synchronous=NORMAL`` in WAL mode promises what ``nosync`` does: what
was acknowledged survives the process, and a power cut can lose the newest.
"""

from __future__ import annotations

import statistics
from functools import partial

import load
from bursts import turnover
from hand import Hand
from peers import by_hand
from results import Bench, Goal, Result
from settling import settled
from watch import Ceiling, Watch, add_turns

import lodeq

SIZE = 100
SHAPES = BATCHES, SINGLES = "batches of 100", "single calls"
ABOVE = Goal("ratio", least=1.0)


async def sqlite(bench: Bench) -> None:
    """Batches of 100 and single calls of one caller, beside a hand-written SQLite lease queue."""
    n, seconds = max(SIZE, int(30_000 * bench.scale)) // SIZE * SIZE, 2.0 * bench.scale
    own = {shape: Watch() for shape in SHAPES}
    with (
        Hand(bench.folder / "sqlite") as hand,
        Ceiling(bench.folder / "raw-sqlite", seconds) as ceiling,
    ):
        async with lodeq.open(bench.folder / "beside-sqlite") as engine:
            queue = engine.queue("sqlite")

            async def batches() -> float:
                with own[BATCHES].span() as span:
                    await load.batches(engine, n, size=SIZE)
                    span.tasks = n
                return span.rate

            measures = {
                "raw": ceiling,
                BATCHES: batches,
                f"{BATCHES} by hand": partial(hand.batches, n, SIZE),
                SINGLES: partial(turnover, queue, seconds, 1, own[SINGLES]),
                f"{SINGLES} by hand": partial(hand.turnover, seconds),
            }
            runs = await bench.rounds(measures, before=partial(settled, [engine], [ceiling.db]))
    for shape in SHAPES:
        of_raw = [a / b for a, b in zip(runs[shape], runs["raw"], strict=True)]
        bench.add(
            Result(
                "beside a hand-written SQLite queue",
                {"shape": shape, "callers": 1, "durability": "nosync"},
                "cycles/s",
                runs[shape],
                by_hand.SqliteNormal.name,
                runs[f"{shape} by hand"],
                goal=ABOVE,
                more={**own[shape].more(), "of_raw": round(statistics.median(of_raw), 3)},
            )
        )
    add_turns(bench, {f"{shape} by one caller": watch for shape, watch in own.items()})
