"""Measure what annotations, and limits of a queue, cost a cycle: ``python bench/typed_calls.py``.

One process, one store for each group of variants; a round makes the cycles of every variant, one
after the other, in an order that turns from round to round. A figure is the CPU time of the process
a cycle; a ratio is the median of the rounds' ratios, and its interval holds the true median in 95
of 100 cases. The load of the machine before and after is printed beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import lodeq
from lodeq.worker import App

CALLERS: Final = 64
Cycles = Callable[[int], Awaitable[None]]


@dataclass
class Order:
    """An argument with fields."""

    customer: str
    number: int
    note: str = ""


async def rounds(
    variants: Mapping[str, Cycles], n: int, count: int
) -> dict[str, dict[str, float | list[float]]]:
    """Return CPU microseconds a cycle of each variant, and its ratio to the first."""
    spent: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for cycles in variants.values():
        await cycles(n)  # warm
    for number in range(count):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            before = time.process_time()
            await variants[name](n)
            spent[name].append((time.process_time() - before) / n * 1e6)
    first = spent[names[0]]
    found: dict[str, dict[str, float | list[float]]] = {}
    for name, values in spent.items():
        ratios = sorted(one / base for one, base in zip(values, first, strict=True))
        edge = max(0, int(count / 2 - 0.98 * math.sqrt(count)))
        found[name] = {
            "us": round(statistics.median(values), 2),
            "ratio": round(statistics.median(ratios), 3),
            "interval": [round(ratios[edge], 3), round(ratios[-1 - edge], 3)],
        }
    return found


async def calls(folder: str, n: int, count: int) -> dict[str, Any]:
    """Calls of task functions: enqueued, run by a worker, each result awaited."""
    app = App(folder, concurrency=CALLERS)

    @app.task("bare")
    async def bare(to, number, note=""):  # type: ignore[no-untyped-def]
        return number

    @app.task("plain")
    async def plain(to: str, number: int, note: str = "") -> int:
        return number

    @app.task("order")
    async def order(one: Order) -> Order:
        return one

    @app.task("unique", unique=True)
    async def unique(to: str, number: int, note: str = "") -> int:
        return number

    async def of(function: Any, arguments: Callable[[int], tuple[Any, ...]], n: int) -> None:
        async def caller(number: int) -> None:
            for i in range(n // CALLERS):
                receipt = await function.enqueue(*arguments(number * n + i))
                await receipt.result(wait=60)

        await asyncio.gather(*map(caller, range(CALLERS)))

    def plain_arguments(i: int) -> tuple[Any, ...]:
        return "a@example.org", i, "note"

    async with app, app.work():
        return await rounds(
            {
                "no annotations": lambda n: of(bare, plain_arguments, n),
                "str, int, str -> int": lambda n: of(plain, plain_arguments, n),
                "a dataclass -> itself": lambda n: of(
                    order, lambda i: (Order("a@example.org", i, "note"),), n
                ),
                "str, int, str -> int, unique": lambda n: of(unique, plain_arguments, n),
            },
            n,
            count,
        )


async def limits(folder: str, n: int, count: int) -> dict[str, Any]:
    """Enqueue, claim and complete of queues with and without limits, in one store."""
    async with lodeq.open(folder) as engine:

        async def cycles(name: str, n: int) -> None:
            queue = engine.queue(name)

            async def caller() -> None:
                for _ in range(n // CALLERS):
                    await queue.enqueue(b"x" * 100)
                    (lease,) = await queue.claim(wait=60)
                    await lease.complete(b"ok")

            await asyncio.gather(*(caller() for _ in range(CALLERS)))

        alone = await rounds(
            {
                "none in the store": lambda n: cycles("free", n),
                "again": lambda n: cycles("also", n),
            },
            n,
            count,
        )
        await engine.configure("busy", concurrency=CALLERS * 2)
        await engine.configure("paced", rate="100000/s")
        await engine.configure("both", rate="100000/s", concurrency=CALLERS * 2)
        beside = await rounds(
            {
                "of other queues": lambda n: cycles("free", n),
                "concurrency": lambda n: cycles("busy", n),
                "rate": lambda n: cycles("paced", n),
                "rate and concurrency": lambda n: cycles("both", n),
            },
            n,
            count,
        )
    return {"no limit": alone, "with limits": beside}


async def keys(folder: str, n: int, count: int) -> dict[str, Any]:
    """The same with a label; with a limit of its values, where all have room and where few do."""
    async with lodeq.open(folder) as engine:
        await engine.configure("roomy", key_concurrency=f"{2 * CALLERS}/customer")
        await engine.configure("full", key_concurrency="4/customer")

        async def cycles(name: str, n: int) -> None:
            queue = engine.queue(name)

            async def caller(number: int) -> None:
                labels = {"customer": f"c{number % 4}"}
                for _ in range(n // CALLERS):
                    await queue.enqueue(b"x" * 100, labels=labels)
                    (lease,) = await queue.claim(wait=60)
                    await lease.complete(b"ok")

            await asyncio.gather(*map(caller, range(CALLERS)))

        return await rounds(
            {
                "a label, no limit": lambda n: cycles("free", n),
                "a limit of its values, all with room": lambda n: cycles("roomy", n),
                "four values with four leases each for 64 callers": lambda n: cycles("full", n),
            },
            n,
            count,
        )


def main() -> None:
    """Measure all, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=61)
    given = parser.parse_args()
    found: dict[str, Any] = {"load before": os.getloadavg()}
    with tempfile.TemporaryDirectory() as folder:
        found["calls"] = asyncio.run(calls(f"{folder}/calls", given.cycles, given.rounds))
        found["limits"] = asyncio.run(limits(f"{folder}/limits", given.cycles, given.rounds))
        found["keys"] = asyncio.run(keys(f"{folder}/keys", given.cycles, given.rounds))
    found["load after"] = os.getloadavg()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
