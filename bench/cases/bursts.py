"""Burst, then drain: nothing is claimed before everything is in.

A burst of many callers keeps enough objects alive that a full pass of Python's collector falls into
each round, on the loop's thread. It goes over every object of the process, the modules of the
harness and its libraries too, and is the longest turn there is; so this burst is run a second time
with the collector as ``lodeq serve`` sets it, which shows the engine's own longest turn.

The balanced load stands in the same rounds: 128 workers wait for 32 producers, and every task is
claimed the moment it comes. It is the kindest shape there is, so it is never shown without these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import bursts
import load
from hand import Hand
from passes import frozen
from results import Bench, Goal
from settling import settled
from watch import Ceiling, Watch, add_turns, beside

import lodeq

TASKS = 51_200
FROZEN = "256, frozen"
GOALS = {"16": Goal("ratio", least=0.25), "256": Goal("ratio", least=0.27)}
BALANCED = Goal("ratio", least=0.45 if lodeq.COMPILED else 0.35)


async def burst(bench: Bench) -> None:
    """16 + 16, 64 + 64 and 256 + 256 callers, single calls, beside 32 + 128 that wait.

    A burst is run whole, or only to see that it runs: a smaller one is another load.
    """
    n, seconds = TASKS if bench.scale >= 0.1 else 256, 3.0 * bench.scale
    sizes = {"16": 16, "64": 64, "256": 256, FROZEN: 256}
    halves: dict[str, list[bursts.Burst]] = {name: [] for name in sizes}
    watches = {name: Watch() for name in (*sizes, "balanced")}
    with (
        Hand(bench.folder / "hand-bursts") as hand,
        Ceiling(bench.folder / "raw-bursts", seconds) as ceiling,
    ):
        async with lodeq.open(bench.folder / "bursts") as engine:

            async def one(name: str) -> float:
                with frozen() if name == FROZEN else contextlib.nullcontext():
                    queue, callers = engine.queue("bursts"), sizes[name]
                    found = await bursts.burst(queue, n, callers, watches[name])
                halves[name].append(found)
                return found.rate

            measures: dict[str, Callable[[], Awaitable[float]]] = {
                "raw": ceiling,
                "hand": partial(hand.burst, max(1, n // 10)),
            }
            measures |= {name: partial(one, name) for name in sizes}
            measures["balanced"] = partial(
                load.single_calls, engine, seconds, watch=watches["balanced"]
            )
            before = partial(settled, [engine], [ceiling.db])
            runs = await bench.rounds(measures, before=before)
    for name, found in halves.items():
        callers = f"{sizes[name]} + {sizes[name]}"
        if name == FROZEN:
            callers += ", collector frozen"
        bench.add(
            beside(
                "burst, then drain",
                {"callers": callers, "tasks": n, "durability": "nosync"},
                "cycles/s",
                runs[name],
                watches[name],
                runs["raw"],
                ceiling,
                goal=GOALS.get(name),
                enqueues=_median([one.put for one in found]),
                drained=_median([one.drain for one in found]),
                **hand.columns(runs[name], runs["hand"]),
            )
        )
    bench.add(
        beside(
            "workers wait for producers",
            {"callers": "32 + 128", "durability": "nosync"},
            "cycles/s",
            runs["balanced"],
            watches["balanced"],
            runs["raw"],
            ceiling,
            goal=BALANCED,
        )
    )
    turns = {f"a burst of {name} + {name}": watches[name] for name in sizes if name != FROZEN}
    turns["a burst of 256 + 256, collector frozen"] = watches[FROZEN]
    add_turns(bench, turns | {"workers that wait for producers": watches["balanced"]})


def _median(values: list[float]) -> int:
    return round(sorted(values)[len(values) // 2])
