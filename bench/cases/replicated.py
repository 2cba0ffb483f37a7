"""Cycles of a replicated store over a real etcd, and how long a killed leader is missed.

Three members of etcd on loopback, one follower. The same load goes to the leader's engine in this
process, and through a client of the cluster to nodes that are processes. Beside them, in the same
rounds: an unreplicated engine with fsync, and bare appends to the same etcd of records as large as
those that the leader wrote, one under way at a time, as a shard's are.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import load
from cases.served_processes import cpu_s
from results import Bench, Goal, Result

import lodeq
from lodeq.engine.records.compression import Compressor
from lodeq.replication.etcd import appends
from lodeq.replication.fragments import CutRecord, cut_record
from lodeq.replication.options import LogOptions
from lodeq.replication.port import Genesis, Member
from lodeq.replication.record import Batch, LogRecord
from lodeq.replication.replicator import LogReplicator

CASE = "cycles of a replicated store"
LONE = "a lone caller of a replicated store"
FAILOVER = "a killed leader is missed"
TESTS = Path(__file__).resolve().parents[2] / "tests"
LEADER, CLUSTER, PLAIN = "the leader's engine", "a client of the cluster", "unreplicated, fsync"
LEADER_FSYNC = f"{LEADER}, fsync"  # its own disk is waited for as well
CLUSTER_SHARDS = f"{CLUSTER}, 12 shards"  # as the guide has it
FAILOVERS = 15
QUOTA_BYTES = 8 << 30  # of etcd: the rounds write gigabytes
IN_LEADER = (LEADER, LEADER_FSYNC)
THROUGH = (*IN_LEADER, CLUSTER, CLUSTER_SHARDS)


class Shape(NamedTuple):
    """A load.

    Attributes:
        callers: how many.
        batch: tasks a call.
        payload: "alike": all the same; or "random".
        keys: "none", or "each": every task has a dedup key, which says its shard.
    """

    callers: int
    batch: int = 1
    payload: str = "alike"
    keys: str = "none"


SHAPES = (Shape(1), Shape(64), Shape(256), Shape(4, 64))
KEYED = (Shape(64, keys="each"), Shape(256, keys="each"))
PAYLOADS = {"alike": load.ALIKE, "random": load.UNLIKE}  # a record of the second packs little
GOALS = {
    Shape(64): Goal("ratio", least=0.25),
    Shape(256): Goal("ratio", least=0.5),
    Shape(4, 64): Goal("ratio", least=0.35),
}


class Written:
    """Counts the records of this process on their way to the log, where they are bytes already."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        appends.cut_record = self._cut

    def _cut(self, record: LogRecord, bytes_max: int, packer: Compressor) -> CutRecord:
        cut = cut_record(record, bytes_max, packer)
        self.records += 1
        self.bytes += len(cut.stored) + sum(map(len, cut.fragments))
        return cut


class Spent(NamedTuple):
    """CPU seconds so far of etcd, of the nodes that are processes, and of this process."""

    etcd: float
    nodes: float
    load: float


def etcd_servers(folder: str) -> Any:
    """Three members of etcd, with room for all that the rounds write. Blocks."""
    from support_etcd import EtcdServers

    return EtcdServers(Path(folder), quota_bytes=QUOTA_BYTES)


async def replicated(bench: Bench) -> None:
    """1, 64 and 256 callers, 4 with batches of 64; then leaders are killed."""
    sys.path.append(str(TESTS))
    import support_etcd

    why = await asyncio.to_thread(support_etcd.fetch)
    if why:
        print(f"  skipped: {why}", flush=True)
        bench.skipped.append(f"replicated: {why}")
        return
    with tempfile.TemporaryDirectory(prefix="lb-") as folder:
        servers = await asyncio.to_thread(etcd_servers, folder)
        try:
            await _cycles(bench, servers)
            await _failovers(bench, servers)
        finally:
            servers.stop()


def etcd_pids(servers: Any) -> list[int]:
    """The processes of the members."""
    return [process.pid for process in servers._processes if process is not None]


@asynccontextmanager
async def _leading(
    bench: Bench, servers: Any, durability: str
) -> AsyncIterator[tuple[lodeq.Engine, Any]]:
    """An engine in this process that leads, and a follower that is a process."""
    from support_etcd import log_of, until
    from support_nodes import nodes_of

    async with nodes_of(servers, (), shards=1) as nodes:
        log = log_of(nodes.url)
        layer = LogReplicator(
            log,
            node="here",
            cluster=nodes.cluster,
            shards=1,
            options=LogOptions(balance_s=None),
            url="tcp://127.0.0.1:1",
        )
        opening = lodeq.open(
            bench.folder / f"replicated-{durability}",
            shards=1,
            durability=durability,
            replicator=layer,
        )
        async with opening as engine:
            await until(lambda: layer.status().shards[0].role == "leading", 30)
            nodes.start("follower", "--durability", durability)
            await nodes.level()
            yield engine, nodes


@asynccontextmanager
async def _client(servers: Any, shards: int) -> AsyncIterator[tuple[Any, Any]]:
    """A client of two nodes that are processes, and lead about as many shards each."""
    from support_etcd import looked
    from support_nodes import nodes_of

    def is_even(leaders: list[str] | None) -> bool:
        return leaders is not None and abs(2 * leaders.count("a") - shards) <= 2

    async with nodes_of(servers, ("a", "b"), shards=shards) as nodes:
        await looked(nodes.leaders, is_even, 120)
        async with nodes.connect() as engine:
            yield engine, nodes


async def measured(engine: Any, shape: Shape, seconds: float) -> float:
    """Cycles a second of a load."""
    payloads = PAYLOADS[shape.payload]
    if shape.batch == 1:
        return await load.closed_loop(
            engine, seconds, shape.callers, payloads=payloads, has_keys=shape.keys == "each"
        )
    return await load.batch_loop(
        engine, seconds, shape.callers, size=shape.batch, payloads=payloads
    )


def _shapes(through: str, *, is_tiny: bool) -> Sequence[Shape]:
    """The loads of a way in. Payloads that do not pack cost the log, not the leader's own disk."""
    if is_tiny:
        return (Shape(2), Shape(1, 64), Shape(2, payload="random"), Shape(2, keys="each"))
    if through == LEADER_FSYNC:
        return SHAPES
    if through == CLUSTER_SHARDS:
        return (*SHAPES, *KEYED)
    return (*SHAPES, *(shape._replace(payload="random") for shape in GOALS))


async def _appends(servers: Any, size: int, seconds: float) -> float:
    """Bare appends a second of records of about so many bytes."""
    from support_etcd import fresh_name, log_of

    log = log_of(servers.url(fresh_name()))
    try:
        await log.connect(Genesis("bench", 1, bytes(16)))
        await log.join(Member("bench"))
        term = await log.campaign(0)
        assert term is not None
        await log.space()  # as nodes do: now it knows which member leads
        last, done, started = term.last, 0, time.perf_counter()
        while (took := time.perf_counter() - started) < seconds:
            last += 1
            batch = (Batch(1, ((b"key", os.urandom(max(1, size - 80))),)),)  # cannot be packed
            nonce = last.to_bytes(16, "big")
            await log.append(LogRecord(nonce, 0, term.term, last, batch))
            done += 1
        await log.truncate(0, last + 1)
        await log.compact()
        return done / took
    finally:
        await log.close()


@asynccontextmanager
async def _way_in(
    bench: Bench, servers: Any, through: str
) -> AsyncIterator[tuple[Any, Sequence[int]]]:
    """The engine of a way in, and its nodes that are processes of their own."""
    if through not in IN_LEADER:
        async with _client(servers, 12 if through == CLUSTER_SHARDS else 1) as (engine, nodes):
            yield engine, [nodes.pid(name) for name in nodes.names]
        return
    durability = "fsync" if through == LEADER_FSYNC else "nosync"
    async with _leading(bench, servers, durability) as (engine, nodes):
        yield engine, [nodes.pid("follower")]


class Runs:
    """The measures of one shape through one way in, and those beside it in the same rounds."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.plain: list[float] = []
        self.carried: list[float] = []  # cycles a second that bare appends carry
        self.cpu_us: list[Spent] = []
        self.record_bytes: list[float] = []
        self.cycle_bytes: list[float] = []


async def _cycles(bench: Bench, servers: Any) -> None:
    """One way in after the other: idle nodes of another one would take their share of the cores."""
    is_tiny = bench.scale < 0.1  # does it run at all?
    seconds = max(0.2, 3.0 * bench.scale)
    n_lone = 20 if is_tiny else int(600 * seconds)
    lone: dict[str, list[float]] = {PLAIN: []}
    written = Written()
    async with lodeq.open(bench.folder / "unreplicated", shards=1, durability="fsync") as plain:
        for through in THROUGH:
            found = {shape: Runs() for shape in _shapes(through, is_tiny=is_tiny)}
            lone[through] = []
            async with _way_in(bench, servers, through) as (engine, pids):
                for _ in range(bench.repeats):
                    for shape, runs in found.items():
                        runs.plain.append(await measured(plain, shape, seconds))
                        records, size = written.records, written.bytes
                        spent = _spender(servers, pids)
                        rate = await measured(engine, shape, seconds)
                        runs.rates.append(rate)
                        runs.cpu_us.append(spent(rate * seconds))
                        n_records, size = written.records - records, written.bytes - size
                        if through == LEADER:
                            each = size / max(1, n_records)
                            runs.record_bytes.append(each)
                            runs.cycle_bytes.append(size / max(1.0, rate * seconds))
                            appends = await _appends(servers, int(each), seconds)
                            runs.carried.append(appends * rate * seconds / max(1, n_records))
                    lone[through].append(await _lone_ms(engine, n_lone))
                    if through == LEADER:
                        lone[PLAIN].append(await _lone_ms(plain, n_lone))
            for shape, runs in found.items():
                _told(bench, through, shape, runs)
    for name, times in lone.items():
        goal = Goal("median", most=5.0) if name == LEADER and not is_tiny else None
        bench.add(Result(LONE, {"through": name}, "ms an enqueue, p50", times, goal=goal))


def _spender(servers: Any, pids: Sequence[int]) -> Callable[[float], Spent]:
    """Count CPU from now on: microseconds a cycle, once it is known how many there were."""

    def now() -> Spent:
        etcd = sum(map(cpu_s, etcd_pids(servers)))
        return Spent(etcd, sum(map(cpu_s, pids)), time.process_time())

    before = now()

    def spent(cycles: float) -> Spent:
        each = 1e6 / max(1.0, cycles)
        return Spent(*((b - a) * each for a, b in zip(before, now(), strict=True)))

    return spent


async def _lone_ms(engine: Any, n: int) -> float:
    """The median of an enqueue, awaited by itself."""
    queue, times = engine.queue("lone"), []
    for _ in range(n):
        began = time.perf_counter()
        await queue.enqueue(load.PAYLOAD)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def _told(bench: Bench, through: str, shape: Shape, runs: Runs) -> None:
    """A row for a way in, beside the engine alone; and one beside bare appends."""
    params = shape._asdict()
    more = {
        f"{part}_us_a_cycle": round(statistics.median(getattr(one, part) for one in runs.cpu_us), 1)
        for part in Spent._fields
    }
    if runs.carried:
        more["bytes_a_record"] = round(statistics.median(runs.record_bytes))
        more["bytes_a_cycle"] = round(statistics.median(runs.cycle_bytes))
    bench.add(
        Result(
            CASE,
            {"through": through, **params},
            "cycles/s",
            runs.rates,
            PLAIN,
            runs.plain,
            more=more,
            goal=GOALS.get(shape._replace(payload="alike")) if through in IN_LEADER else None,
        )
    )
    if runs.carried:
        bench.add(
            Result(
                CASE,
                {"through": f"{through}, beside bare appends", **params},
                "cycles/s",
                runs.rates,
                "what bare appends of that size carry",
                runs.carried,
            )
        )


async def _failovers(bench: Bench, servers: Any) -> None:
    """Time from a kill of the leader to the next acknowledged write, by a client of three nodes."""
    from support_etcd import TTL_S, looked
    from support_nodes import nodes_of

    gaps: list[float] = []
    async with nodes_of(servers, shards=1) as nodes, nodes.connect() as engine:
        queue = engine.queue("failover")
        for turn in range(1 if bench.scale < 0.1 else FAILOVERS):
            await queue.enqueue(load.PAYLOAD)
            (leader,) = await nodes.led()
            nodes.kill(leader)
            began = time.perf_counter()
            n = 0
            while True:
                n += 1
                try:
                    await queue.enqueue(load.PAYLOAD, dedup_key=f"{turn} {n}")
                    break
                except (lodeq.BusyError, lodeq.CommitUnknownError, lodeq.NotLeaderError):
                    continue
            gaps.append(time.perf_counter() - began)
            nodes.start(leader)
            await nodes.led()
            await nodes.level()
            # Two members have to suspect the next one.
            await looked(nodes.have_sessions, bool, 30)
    goal = Goal("median", most=1.0)  # by the probe: far less than the TTL
    bench.add(Result(FAILOVER, {"TTL, s": TTL_S}, "s to the next write", gaps, goal=goal))
