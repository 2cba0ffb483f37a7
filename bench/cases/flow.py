"""The cost of a task by what it is: one direction at a time, sizes, mixes and keys."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

import load
import raw
from hand import Hand
from peers.by_hand_options import OptionsByHand
from results import Bench, Result
from settling import settled
from watch import Ceiling, Watch, add_turns, of_raw, watched

import lodeq
from lodeq import NewTask

SIZES = (100, 1 << 10, 10 << 10, 100 << 10, 1 << 20)
PAYLOAD_BYTES_MAX = 1 << 20
PLAIN = "plain"
DELAYED = "a fifth delayed by up to 50 ms"
FULL = "results at their bound"


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
    """Payloads of 100 bytes to 1 MiB, in batches that hold about 256 KiB."""
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
    """Priorities, delays, TTLs and headers beside the plain case, in batches of 64, same rounds.

    A SQLite queue by hand with a column for each option makes the same batches in the same rounds.
    As many tasks at any scale: whoever waits for delayed ones ends with up to 50 ms of nothing,
    which has to be little beside the rest. By CPU time it does not count. No result is removed
    there: what one load leaves would go in the time of the next that wakes the reaper. A store at
    its bound of results makes the plain batches and the delayed ones as well, each with the time
    in which the results that it leaves are removed.
    """
    n = 60_000 if bench.scale >= 0.1 else max(64, int(60_000 * bench.scale))
    draw = random.Random(4)
    kinds = {
        PLAIN: [NewTask(load.PAYLOAD)] * 64,
        "ten priorities": [NewTask(load.PAYLOAD, priority=i % 10) for i in range(64)],
        DELAYED: [
            NewTask(load.PAYLOAD, delay=draw.uniform(0.001, 0.05) if i % 5 == 0 else None)
            for i in range(64)
        ],
        "all with a TTL": [NewTask(load.PAYLOAD, ttl=600.0)] * 64,
        "all with headers": [NewTask(load.PAYLOAD, headers={"trace": "0af7651916cd43dd"})] * 64,
    }
    full = {f"{name}, {FULL}": kinds[name] for name in (PLAIN, DELAYED)}
    watches = {name: Watch() for name in (*kinds, *full)}
    with (
        Ceiling(bench.folder / "raw-mixes", 2.0 * bench.scale) as ceiling,
        OptionsByHand(bench.folder / "hand-mixes") as by_hand,
    ):
        async with (
            lodeq.open(bench.folder / "mixes", limits=load.UNTRIMMED) as engine,
            lodeq.open(
                bench.folder / "mixes-full", limits=replace(load.UNTRIMMED, results_max=n)
            ) as bounded,
        ):
            measures: dict[str, Callable[[], Awaitable[float]]] = {"raw": ceiling}
            for i, (name, tasks) in enumerate(kinds.items()):
                one = partial(load.mixed, engine, n, tasks, f"mix-{i}")
                measures[name] = watched(watches[name], one)
                measures[f"hand {name}"] = partial(by_hand.mixed, n, tasks)
            for name, tasks in full.items():
                one = partial(_mixed_and_removed, bounded, n, tasks, name)
                measures[name] = watched(watches[name], one)
            runs = await bench.rounds(
                measures, before=partial(settled, [engine, bounded], [ceiling.db])
            )
    spent = {name: [1e6 / us for us in watch.cpu_us] for name, watch in watches.items()}
    for name in kinds:
        more = {
            **watches[name].more(ceiling.cpu_us),
            **of_raw(runs[name], runs["raw"]),
            **Hand.columns(runs[name], runs[f"hand {name}"]),
        }
        _add_mix(bench, n, name, "wall time", runs, PLAIN, more)
        _add_mix(bench, n, name, "CPU time", spent, PLAIN, more)
    for name in full:  # by CPU alone: to wait for the reaper is no work
        _add_mix(
            bench,
            n,
            name,
            "CPU time",
            spent,
            f"{PLAIN}, {FULL}",
            watches[name].more(ceiling.cpu_us),
        )
    add_turns(bench, {f"batches of 64, {name}": watch for name, watch in watches.items()})


def _add_mix(
    bench: Bench,
    n: int,
    name: str,
    by: str,
    runs: Mapping[str, list[float]],
    plain: str,
    more: dict[str, float],
) -> None:
    """Add the result of one mix, beside the plain one of the same store."""
    bench.add(
        Result(
            "mix",
            {"mix": name, "by": by, "tasks": n // 64 * 64, "durability": "nosync"},
            "cycles/s",
            runs[name],
            plain if name != plain else "",
            runs[plain] if name != plain else [],
            more=more,
        )
    )


async def _mixed_and_removed(
    engine: lodeq.Engine, n: int, tasks: list[NewTask], name: str
) -> float:
    """The batches, and the removal of as many results as they leave. Cycles per second."""
    queue = name.replace(" ", "-").replace(",", "")
    started = time.perf_counter()
    await load.mixed(engine, n, tasks, queue)
    await load.results_removed(engine, n)
    return n // 64 * 64 / (time.perf_counter() - started)


async def dedup(bench: Bench) -> None:
    """Enqueues with a key: all new, all duplicates, beside enqueues without one.

    Raw stands beside them as well: puts of a record and a row for enqueues, cycles for cycles; and
    a SQLite queue by hand, one caller, with an index that makes its keys unique.
    """
    n = max(64, int(30_000 * bench.scale))
    async with lodeq.open(bench.folder / "dedup") as engine:
        measures = _dedup_loads(engine, n)
        watches = {name: Watch() for name in measures}
        with (
            Ceiling(bench.folder / "raw-dedup", 2.0 * bench.scale) as ceiling,
            OptionsByHand(bench.folder / "hand-dedup") as by_hand,
        ):

            async def raw_puts() -> float:
                return raw.puts(ceiling.db, [load.PAYLOAD], n, 64, is_synced=False)

            runs = await bench.rounds(
                {"raw": ceiling, "raw puts": raw_puts}
                | {name: watched(watches[name], one) for name, one in measures.items()}
                | _dedup_by_hand(by_hand, n),
                before=partial(settled, [engine], [ceiling.db]),
            )
    for name, beside, callers in (
        ("misses", "no key", 64),
        ("hits", "no key", 64),
        ("misses, cycles in batches of 64", "no key, cycles", 1),
    ):
        is_put = beside == "no key"
        bench.add(
            Result(
                "dedup",
                {"keys": name, "callers": callers, "tasks": n, "durability": "nosync"},
                "enqueues/s" if is_put else "cycles/s",
                runs[name],
                "without a key",
                runs[beside],
                more={
                    **watches[name].more(),
                    **of_raw(runs[name], runs["raw puts" if is_put else "raw"]),
                    **Hand.columns(runs[name], runs[f"hand {name}"]),
                },
            )
        )
    add_turns(bench, {f"dedup: {name}": watch for name, watch in watches.items()})


def _dedup_loads(engine: lodeq.Engine, n: int) -> dict[str, Callable[[], Awaitable[float]]]:
    """Enqueues of ``n`` tasks and cycles in batches of 64, without a key and with one."""
    rounds = lives = 0

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

    async def cycles(*, has_key: bool) -> float:
        nonlocal lives
        lives += 1
        queue = engine.queue("cycles-keyed" if has_key else "cycles")
        started = time.perf_counter()
        for at in range(0, n // 64 * 64, 64):
            keys = [b"c%d-%d" % (lives, key) if has_key else None for key in range(at, at + 64)]
            window = 600.0 if has_key else None
            await queue.enqueue_many(
                [NewTask(load.PAYLOAD, dedup_key=key, dedup_window=window) for key in keys]
            )
            leases = await queue.claim(limit=64)
            await engine.complete_many([(lease, b"ok") for lease in leases])
        return n // 64 * 64 / (time.perf_counter() - started)

    return {
        "no key": partial(load.enqueue_only, engine.queue("free"), n, callers=64, size=1),
        "misses": partial(keyed, again=False),
        "hits": partial(keyed, again=True),
        "no key, cycles": partial(cycles, has_key=False),
        "misses, cycles in batches of 64": partial(cycles, has_key=True),
    }


def _dedup_by_hand(by_hand: OptionsByHand, n: int) -> dict[str, Callable[[], Awaitable[float]]]:
    """The same three by the SQLite queue."""
    task, rounds = NewTask(load.PAYLOAD), itertools.count()
    last: list[bytes] = []

    async def misses() -> float:
        lot = next(rounds)
        last[:] = [b"%d-%d" % (lot, key) for key in range(n)]
        return await by_hand.keyed(task, last, again=False)

    async def hits() -> float:
        return await by_hand.keyed(task, last, again=True)

    async def cycles() -> float:
        lot = next(rounds)
        keys = [b"c%d-%d" % (lot, key) for key in range(n // 64 * 64)]
        return await by_hand.keyed_cycles(task, keys, 64)

    return {
        "hand misses": misses,
        "hand hits": hits,
        "hand misses, cycles in batches of 64": cycles,
    }
