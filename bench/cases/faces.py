"""The cost of a face: CPU time and bytes a cycle, without one and with one, in the same rounds.

A cycle is an enqueue, a claim and a complete with a result, each awaited by itself, by 64 callers.
The face is one as a worker packs it: a function, a preview of two arguments, one label.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from results import Bench, Goal, Result

import lodeq
from lodeq import Engine

PAYLOAD: Final = bytes(range(100))
CALLERS: Final = 64
FACE: Final = {
    "function": "send_mail",
    "preview": "to='a@example.org', n=3",
    "labels": {"customer": "4711"},
}
HEADERS: Final = {"headers": {"lodeq.task": "send_mail"}}  # that a worker's task has in any case
COST: Final = Goal("ratio", most=1.03)


async def cycles(engine: Engine, n: int, options: Mapping[str, Any]) -> float:
    """CPU microseconds a cycle."""
    queue = engine.queue("faces")

    async def one(count: int) -> None:
        for _ in range(count):
            await queue.enqueue(PAYLOAD, **options)
            (lease,) = await queue.claim()
            await lease.complete(b"ok")

    begun = time.process_time()
    await asyncio.gather(*(one(n // CALLERS) for _ in range(CALLERS)))
    return (time.process_time() - begun) / (n // CALLERS * CALLERS) * 1e6


def _written() -> int:
    """Bytes that this process has written to files so far: of a store mostly its log."""
    with open("/proc/self/io", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


async def log_bytes(engine: Engine, n: int, options: Mapping[str, Any]) -> float:
    """Bytes that a cycle writes."""
    before = _written()
    await cycles(engine, n, options)
    return (_written() - before) / n


async def faces(bench: Bench) -> None:
    """CPU and bytes a cycle, no face beside face; plain, and with the header of a worker's task."""
    n = max(CALLERS, int(12_800 * bench.scale) // CALLERS * CALLERS)
    async with lodeq.open(bench.folder / "faces") as engine:
        for way, base in (("plain", {}), ("worker's header", HEADERS)):
            options = {"none": base, "face": {**base, **FACE}}
            for unit, measure in (("CPU µs/cycle", cycles), ("bytes/cycle", log_bytes)):
                runs = await bench.rounds(
                    {name: partial(measure, engine, n, given) for name, given in options.items()}
                )
                bench.add(
                    Result(
                        "face",
                        {"enqueue": way, "callers": CALLERS},
                        unit,
                        runs["face"],
                        "no face",
                        runs["none"],
                        goal=COST if measure is cycles and base else None,
                    )
                )
