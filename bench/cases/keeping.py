"""The cost to hold leases and to keep things: heartbeats, bytes written, bytes left."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import random
import resource
import time
from functools import partial
from pathlib import Path

import load
from about import sync_us
from cases.backlogs import disk_bytes, written_bytes
from results import Bench, Goal, Result, percentiles
from watch import Watch, add_turns

import lodeq
from lodeq import NewTask

CALLERS = 64


async def heartbeats(bench: Bench) -> None:
    """10,000 live leases, each renewed every second: share of a core, and commits."""
    seconds, leases = max(3.0, 10.0 * bench.scale), []
    async with lodeq.open(bench.folder / "heartbeats") as engine:
        queue = engine.queue("beats")
        for _ in range(10):
            await queue.enqueue_many([NewTask(load.PAYLOAD)] * 1000)
            leases += await queue.claim(limit=1000, lease=60.0)
        for api in ("single", "batches of 1,000"):
            shares, commits = [], 0
            for _ in range(bench.repeats):
                before = (await engine.stats()).shards[0].commits
                cpu, began = time.process_time(), time.perf_counter()
                for beat in range(int(seconds)):
                    for at in range(0, len(leases), 1000):
                        part = leases[at : at + 1000]
                        if api == "single":
                            for lease in part:
                                await lease.heartbeat()
                        else:
                            await engine.heartbeat_many(part)
                        await asyncio.sleep(0)
                    await asyncio.sleep(max(0.0, began + beat + 1 - time.perf_counter()))
                took = time.perf_counter() - began
                shares.append(100 * (time.process_time() - cpu) / took)
                commits += (await engine.stats()).shards[0].commits - before
            bench.add(
                Result(
                    "10,000 heartbeats/s",
                    {"api": api, "leases": len(leases)},
                    "% of a core",
                    shares,
                    goal=Goal("median", most=5.0),
                    more={"commits": commits},
                )
            )


async def latencies(bench: Bench) -> None:
    """64 callers, each enqueue acknowledged by an fsync, beside the disk's own sync.

    The disk is measured twice: syncs one behind the other, and as many a second as the engine makes
    for 64 callers who all wait for it.
    """
    seconds = 3.0 * bench.scale
    disk: list[float] = []
    for mode in ("fsync", "nosync"):
        took: list[float] = []
        rates, ours, theirs, spaced = [], [], [], []
        watch = Watch()
        async with lodeq.open(bench.folder / f"latency-{mode}", durability=mode) as engine:
            queue = engine.queue("latency")
            for _ in range(bench.repeats):
                probe = await asyncio.to_thread(sync_us, bench.folder, 300, write_bytes=20_000)
                with watch.span() as span:
                    run = await load.timed_enqueues(queue, seconds, CALLERS)
                    span.tasks = len(run.took_us)
                await load.drain(engine, queue)
                disk += probe
                took += run.took_us
                rates.append(run.rate)
                ours.append(percentiles(run.took_us)["p99"])
                theirs.append(percentiles(probe)["p99"])
                gap_s = max(0.0, CALLERS / run.rate - percentiles(probe)["p50"] / 1e6)
                n = max(300, int(seconds * run.rate / CALLERS))
                probe = await asyncio.to_thread(
                    sync_us, bench.folder, n, write_bytes=20_000, busy_s=gap_s
                )
                spaced.append(percentiles(probe)["p99"])
        goal = Goal("ratio", most=4.0) if mode == "fsync" else None
        params = {"durability": mode, "callers": CALLERS}
        bench.add(Result("enqueue", params, "tasks/s", rates, latency_us=percentiles(took)))
        bench.add(
            Result(
                "p99 of an enqueue",
                params,
                "us",
                ours,
                "fdatasync p99",
                theirs,
                goal=goal,
                latency_us={f"disk {k}": v for k, v in percentiles(disk).items()},
            )
        )
        if mode == "fsync":
            bench.add(
                Result("p99 of an enqueue", params, "us", ours, "fdatasync p99, as often", spaced)
            )
        add_turns(bench, {f"enqueues of {CALLERS} callers, {mode}": watch})


async def disk(bench: Bench) -> None:
    """Bytes written and left for each task of 100 bytes, and where they settle as work goes on."""
    n = int(300_000 * bench.scale)
    for mode in ("nosync", "fsync"):
        folder = bench.folder / f"disk-{mode}"
        async with lodeq.open(folder, durability=mode) as engine:
            before = written_bytes()
            await load.batches(engine, n)
            written = written_bytes() - before
            left = disk_bytes(folder)
        bench.add(
            Result(
                "bytes written per cycle",
                {"durability": mode, "payload_bytes": 100},
                "bytes",
                [written / n],
                more={
                    "amplification": round(written / n / 100, 1),
                    "left_per_task": round(left / n, 1),
                },
            )
        )
    minutes = 60.0 if bench.scale >= 1 else 0.5
    folder = bench.folder / "disk-hour"
    sizes: list[float] = []
    async with lodeq.open(folder) as engine:
        queue = engine.queue("hour", retention=min(60.0, minutes * 10))
        ends = time.perf_counter() + minutes * 60
        done = 0
        while time.perf_counter() < ends:  # 2,000 cycles a second
            began = time.perf_counter()
            done += await load.paced(engine, queue, 200)
            sizes.append(disk_bytes(folder) / 2**20)
            await asyncio.sleep(max(0.0, began + 0.1 - time.perf_counter()))
    last = sizes[len(sizes) // 2 :]
    bench.add(
        Result(
            "disk in use as work goes on",
            {"minutes": minutes, "retention_s": min(60.0, minutes * 10)},
            "MiB",
            [sorted(last)[len(last) // 2]],
            more={"most_mib": round(max(sizes), 1), "cycles": done},
        )
    )


async def payloads_left(bench: Bench) -> None:
    """4,000 tasks of 200 KB behind one lease and one poll that last: what is left of them."""
    size, many = 200_000, round(4000 * min(bench.scale, 1.0))

    def in_use_mib() -> float:
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
        if trim is not None:
            trim(0)
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return pages * resource.getpagesize() / 2**20

    async with lodeq.open(bench.folder / "left", block_cache_bytes=8 << 20) as engine:
        queue = engine.queue("left")
        idle = asyncio.ensure_future(engine.queue("idle").claim(wait=3600))
        await queue.enqueue(b"held")
        (held,) = await queue.claim(lease=3600)

        async def work(n: int) -> None:
            for i in range(n):
                served = (
                    asyncio.ensure_future(queue.claim(wait=3600, lease=3600)) if i % 2 else None
                )
                await asyncio.sleep(0)
                await queue.enqueue(random.randbytes(size))
                (lease,) = await (served or queue.claim(lease=3600))
                await lease.complete(keep=False)

        await work(many // 8)  # buffers and caches are as large as they get
        before = in_use_mib()
        await work(many)
        grown = in_use_mib() - before
        idle.cancel()
        await held.complete()
    bench.add(
        Result(
            "memory that tasks leave behind",
            {"tasks": many, "bytes": size},
            "MiB",
            [max(grown, 0.0)],
            goal=Goal("median", most=64.0),
        )
    )


async def collector(bench: Bench) -> None:
    """Single calls with Python's garbage collector on, frozen after opening, and off."""
    async with lodeq.open(bench.folder / "gc") as engine:
        measure = partial(load.single_calls, engine, 3.0 * bench.scale)

        async def frozen() -> float:
            gc.collect()
            gc.freeze()
            try:
                return await measure()
            finally:
                gc.unfreeze()

        async def off() -> float:
            gc.disable()
            try:
                return await measure()
            finally:
                gc.enable()

        await measure()
        runs = await bench.rounds({"as it is": measure, "frozen": frozen, "off": off})
    for name in ("frozen", "off"):
        bench.add(
            Result(
                "free wins",
                {"what": f"gc {name}", "callers": 160},
                "cycles/s",
                runs[name],
                "as it is",
                runs["as it is"],
            )
        )
