"""One direction at a time, sizes, mixes, keys: what a task costs by what it is."""

from __future__ import annotations

import random
import time
from functools import partial

import load
import raw
from results import Bench, Result
from settling import settled

import lodeq
from lodeq import NewTask

SIZES = (100, 1 << 10, 10 << 10, 100 << 10, 1 << 20)
PAYLOAD_BYTES_MAX = 1 << 20


async def flow(bench: Bench) -> None:
    """Enqueue only, then drain only; single calls of 64 callers, and batches of 64."""
    n = int(60_000 * bench.scale)
    for mode in ("nosync", "fsync"):
        async with lodeq.open(bench.folder / f"flow-{mode}", durability=mode) as engine:
            for api, callers, size in (("single", 64, 1), ("batches of 64", 1, 64)):
                ins, outs = [], []
                queue = engine.queue(f"flow-{size}")
                for _ in range(bench.repeats):
                    ins.append(await load.enqueue_only(queue, n, callers=callers, size=size))
                    outs.append(await load.drain_only(engine, queue, n, callers=callers, size=size))
                params = {"api": api, "durability": mode, "callers": callers}
                bench.add(Result("enqueue only", params, "tasks/s", ins))
                bench.add(Result("claim and complete only", params, "tasks/s", outs))


async def payloads(bench: Bench) -> None:
    """From 100 bytes to 1 MiB, in batches that hold about 256 KiB."""
    limits = lodeq.Limits(payload_bytes_max=PAYLOAD_BYTES_MAX)
    for payload_bytes in SIZES:
        size = max(1, min(64, (256 << 10) // payload_bytes))
        n = max(8, int(min(60_000, (128 << 20) // payload_bytes) * bench.scale)) // size * size
        folder = bench.folder / f"payload-{payload_bytes}"
        db = raw.open_raw(str(bench.folder / f"raw-{payload_bytes}"))
        ceilings = raw.cycles(db, n, size, payload_bytes)

        async def ceiling(runs=ceilings) -> float:
            return next(runs)

        async with lodeq.open(folder, limits=limits) as engine:
            data = random.Random(payload_bytes).randbytes(payload_bytes)
            measure = partial(load.batches, engine, n, size=size, payload=data)
            before = partial(settled, [engine], [db])
            runs = await bench.rounds({"own": measure, "raw": ceiling}, before=before)
        db.close()
        bench.add(
            Result(
                "payload",
                {"payload_bytes": payload_bytes, "batch": size, "durability": "nosync"},
                "cycles/s",
                runs["own"],
                "raw, same bytes and batches",
                runs["raw"],
                more={
                    "mib_per_s": round(
                        sorted(runs["own"])[len(runs["own"]) // 2] * payload_bytes / 2**20, 1
                    )
                },
            )
        )


async def mixes(bench: Bench) -> None:
    """Priorities and delays beside the plain case, in batches of 64 and in the same rounds."""
    n = int(60_000 * bench.scale)
    draw = random.Random(4)
    kinds = {
        "plain": [NewTask(load.PAYLOAD)] * 64,
        "ten priorities": [NewTask(load.PAYLOAD, priority=i % 10) for i in range(64)],
        "a fifth delayed by up to 50 ms": [
            NewTask(load.PAYLOAD, delay=draw.uniform(0.001, 0.05) if i % 5 == 0 else None)
            for i in range(64)
        ],
    }
    async with lodeq.open(bench.folder / "mixes") as engine:
        runs = await bench.rounds(
            {
                name: partial(load.mixed, engine, n, tasks, f"mix-{i}")
                for i, (name, tasks) in enumerate(kinds.items())
            }
        )
    for name in kinds:
        bench.add(
            Result(
                "mix",
                {"mix": name, "durability": "nosync"},
                "cycles/s",
                runs[name],
                "plain" if name != "plain" else "",
                runs["plain"] if name != "plain" else [],
            )
        )


async def dedup(bench: Bench) -> None:
    """Enqueues with a key: all new, all duplicates, beside enqueues without one."""
    n = int(30_000 * bench.scale)
    async with lodeq.open(bench.folder / "dedup") as engine:
        rounds = 0

        async def keyed(*, again: bool) -> float:
            nonlocal rounds
            rounds += not again
            queue = engine.queue("keyed")
            keys = iter(range(n))
            started = time.perf_counter()

            async def call() -> None:
                for key in keys:
                    receipt = await queue.enqueue(
                        load.PAYLOAD, dedup_key=b"%d-%d" % (rounds, key), dedup_window=600.0
                    )
                    if receipt.duplicate != again:
                        raise AssertionError(f"{receipt} was to be a duplicate: {again}")

            await load.together(call, 64)
            return n / (time.perf_counter() - started)

        runs = await bench.rounds(
            {
                "no key": partial(load.enqueue_only, engine.queue("free"), n, callers=64, size=1),
                "misses": partial(keyed, again=False),
                "hits": partial(keyed, again=True),
            }
        )
    for name in ("misses", "hits"):
        bench.add(
            Result(
                "dedup",
                {"keys": name, "callers": 64, "durability": "nosync"},
                "enqueues/s",
                runs[name],
                "without a key",
                runs["no key"],
            )
        )
