"""The same cycles through a server in another process, over a unix socket."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import load
from results import Bench, Goal, Result
from settling import settled

import lodeq

RATE = Goal("median", least=5_000)  # on two cores, batches
WAY = Goal("ratio", least=0.9)  # what finding the way may cost where there is one node
RUN = "from lodeq.service.cli.entry import main; raise SystemExit(main())"


async def served(bench: Bench) -> None:
    """Batches of 64 by one client and by four, and single calls of 1, 16 and 32 callers."""
    n, seconds = max(256, int(20_000 * bench.scale)), max(0.3, 3.0 * bench.scale)
    async with (
        lodeq.open(bench.folder / "embedded") as embedded,
        serving(bench.folder / "served") as url,
        lodeq.connect(url) as client,
    ):
        for api, callers, measure in (
            ("batches of 64", 1, partial(load.batches, n=n)),
            ("batches of 64", 4, partial(_four, n=n)),
            *(
                ("single", callers, partial(load.closed_loop, seconds=seconds, callers=callers))
                for callers in (1, 16, 32)
            ),
        ):
            measures = {"own": partial(measure, client), "embedded": partial(measure, embedded)}
            runs = await bench.rounds(measures, before=partial(settled, [embedded]))
            bench.add(
                Result(
                    "cycle over a unix socket",
                    {"api": api, "callers": callers, "durability": "nosync"},
                    "cycles/s",
                    runs["own"],
                    "embedded",
                    runs["embedded"],
                    goal=RATE if api != "single" else None,
                )
            )


async def cluster_client(bench: Bench) -> None:
    """The same by a client of a cluster of one node, beside a plain client of that server."""
    n, seconds = max(256, int(20_000 * bench.scale)), max(0.3, 3.0 * bench.scale)
    async with (
        serving(bench.folder / "node") as url,
        lodeq.connect(url) as plain,
        lodeq.connect(url.replace("unix://", "lodeq://unix:")) as finding,
    ):
        for api, callers, measure in (
            ("batches of 64", 1, partial(load.batches, n=n)),
            *(
                ("single", callers, partial(load.closed_loop, seconds=seconds, callers=callers))
                for callers in (1, 16, 64)
            ),
        ):
            measures = {"own": partial(measure, finding), "plain": partial(measure, plain)}
            runs = await bench.rounds(measures)
            bench.add(
                Result(
                    "cycle of a client of a cluster of one node",
                    {"api": api, "callers": callers, "durability": "nosync"},
                    "cycles/s",
                    runs["own"],
                    "a plain client",
                    runs["plain"],
                    goal=WAY,
                )
            )


async def _four(engine: lodeq.Engine, n: int) -> float:
    names = [f"four-{i}" for i in range(4)]
    rates = await asyncio.gather(*(load.batches(engine, n // 4, name=name) for name in names))
    return sum(rates)


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[str]:
    """``lodeq serve`` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUN,
        "serve",
        str(path),
        "--uds",
        f"{path}.sock",
        stdout=asyncio.subprocess.PIPE,
    )
    if process.stdout is None:
        raise RuntimeError("no pipe to the server")
    line = await process.stdout.readline()
    try:
        yield line.split()[1].decode()
    finally:
        process.terminate()
        await process.wait()
