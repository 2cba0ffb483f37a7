"""The same cycles through a server in another process, over a unix socket."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import load
from results import Bench, Goal, Result, percentiles
from settling import settled

import lodeq

RATE = Goal("median", least=5_000)  # on two cores, batches
WAY = Goal("ratio", least=0.9)  # what finding the way may cost where there is one node
THRICE = Goal("ratio", most=3.0)
RESULT_BYTES = 64 << 10
READERS = 16  # calls of the neighbour at a time
# Reads the results of these ids, again and again, until its standard input ends.
NEIGHBOUR = """
import asyncio, sys
import lodeq

async def main(url, count, ids):
    async with lodeq.connect(url) as engine:
        async def read(own):
            while True:
                for one in own:
                    await engine.result(one)
        calls = [asyncio.ensure_future(read(ids[n::count])) for n in range(count)]
        print("reading", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for call in calls:
            call.cancel()

ids = [lodeq.TaskId(word) for word in sys.stdin.readline().split()]
asyncio.run(main(sys.argv[1], int(sys.argv[2]), ids))
"""
RUN = "from lodeq.service.cli.entry import main; raise SystemExit(main())"


async def served(bench: Bench) -> None:
    """Batches of 64 by one client and by four, and single calls of 1, 16 and 32 callers.

    Of 32 callers also with a dedup key for each task.
    """
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
            (
                "single, with a dedup key",
                32,
                partial(load.closed_loop, seconds=seconds, callers=32, has_keys=True),
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
                    goal=RATE if api == "batches of 64" else None,
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


async def neighbour(bench: Bench) -> None:
    """A claim's answer while another process reads 100 MB of results, and without."""
    seconds, total = max(0.5, 5.0 * bench.scale), int((100 << 20) * min(1.0, bench.scale * 2))
    count = max(READERS, total // RESULT_BYTES)
    alone: list[float] = []
    beside: list[float] = []
    async with serving(bench.folder / "streaming") as url, lodeq.connect(url) as client:
        ids: list[lodeq.TaskId] = []
        queue, value = client.queue("read"), bytes(range(256)) * (RESULT_BYTES // 256)
        while len(ids) < count:
            await queue.enqueue_many([lodeq.NewTask(b"x") for _ in range(32)])
            leases = await queue.claim(limit=32)
            await client.complete_many([(lease, value) for lease in leases])
            ids += [lease.task_id for lease in leases]
        for _ in range(bench.repeats):
            alone.append(await _claims_p99(client, seconds))
            async with _reading(url, ids):
                beside.append(await _claims_p99(client, seconds))
    params = {"mb_read": count * RESULT_BYTES >> 20, "readers": READERS}
    bench.add(
        Result(
            "p99 of a claim's answer beside a neighbour",
            params,
            "us",
            beside,
            "without",
            alone,
            goal=THRICE,
        )
    )


async def _claims_p99(client: lodeq.RemoteEngine, seconds: float) -> float:
    """P99 of one caller's claims, in microseconds: each finds a task."""
    queue, took, stop = client.queue("claimed"), [], time.perf_counter() + seconds
    while time.perf_counter() < stop:
        await queue.enqueue(b"x")
        began = time.perf_counter()
        (lease,) = await queue.claim()
        took.append((time.perf_counter() - began) * 1e6)
        await lease.complete(b"ok")
    return percentiles(took)["p99"]


@asynccontextmanager
async def _reading(url: str, ids: Sequence[lodeq.TaskId]) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", NEIGHBOUR, url, str(READERS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("no pipes to the neighbour")
    process.stdin.write(" ".join(map(str, ids)).encode() + b"\n")
    await process.stdout.readline()
    try:
        yield
    finally:
        process.stdin.close()
        await process.wait()


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
