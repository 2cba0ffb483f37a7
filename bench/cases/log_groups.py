"""Cycles over two log groups beside one: each an etcd of three members, by CPU a cycle.

Everything shares this machine's cores, so the rate says little. What travels is what a cycle costs
the busier of the two etcds: where each has machines of its own, that is what bounds writes.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cases.replicated import TESTS, Shape, etcd_pids, etcd_servers, measured
from cases.served_processes import cpu_s
from results import Bench, Result

import lodeq
from lodeq.replication.etcd.address import parse_address
from lodeq.replication.options import LogOptions
from lodeq.replication.replicator import LogReplicator
from lodeq.service.cluster.node import etcd_log

CASE = "two log groups beside one"
SHARDS = 4
ONE, TWO = "one etcd", "two etcds"
SHAPES = (Shape(256, payload="random"), Shape(4, 64, payload="random"))  # the log's worst


class Spent(NamedTuple):
    """CPU of each etcd, of the node that follows, and of the leader with its load."""

    first: float
    second: float
    follower: float
    leader: float


async def log_groups(bench: Bench) -> None:
    """256 callers, and 4 with batches of 64, over four shards of one log group and of two."""
    sys.path.append(str(TESTS))
    import support_etcd

    why = await asyncio.to_thread(support_etcd.fetch)
    if why:
        print(f"  skipped: {why}", flush=True)
        bench.skipped.append(f"log-groups: {why}")
        return
    with (
        tempfile.TemporaryDirectory(prefix="lb-") as first_folder,
        tempfile.TemporaryDirectory(prefix="lb-") as second_folder,
    ):
        first = await asyncio.to_thread(etcd_servers, first_folder)
        try:
            second = await asyncio.to_thread(etcd_servers, second_folder)
            try:
                await _rounds(bench, first, second)
            finally:
                second.stop()
        finally:
            first.stop()


@asynccontextmanager
async def _leading(
    bench: Bench, name: str, servers: Any, more: str
) -> AsyncIterator[tuple[lodeq.Engine, int]]:
    """An engine in this process that leads all shards, and the pid of a node that follows."""
    from support_etcd import until
    from support_nodes import nodes_of

    async with nodes_of(servers, (), shards=SHARDS, more=more) as nodes:
        layer = LogReplicator(
            etcd_log(parse_address(nodes.url)),
            node="here",
            cluster=nodes.cluster,
            shards=SHARDS,
            options=LogOptions(balance_s=None),
            url="tcp://127.0.0.1:1",
        )
        path = Path(bench.folder) / name.replace(" ", "-")
        async with lodeq.open(path, shards=SHARDS, durability="fsync", replicator=layer) as engine:
            await until(lambda: all(one.role == "leading" for one in layer.status().shards), 30)
            nodes.start("follower", "--durability", "fsync")
            await nodes.level()
            yield engine, nodes.pid("follower")


async def _rounds(bench: Bench, first: Any, second: Any) -> None:
    is_tiny = bench.scale < 0.1  # does it run at all?
    seconds = max(0.2, 3.0 * bench.scale)
    shapes = (Shape(2),) if is_tiny else SHAPES
    rates: dict[tuple[str, Shape], list[float]] = {}
    cpu: dict[tuple[str, Shape], list[Spent]] = {}
    groups = f"&group={','.join(second.endpoints)}"
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(_leading(bench, name, first, more))
            for name, more in ((ONE, ""), (TWO, groups))
        }
        for _ in range(bench.repeats):
            for shape in shapes:
                for name, (engine, follower) in engines.items():
                    before = _spent(first, second, follower)
                    rate = await measured(engine, shape, seconds)
                    each = 1e6 / max(1.0, rate * seconds)
                    now = _spent(first, second, follower)
                    spent = Spent(*((b - a) * each for a, b in zip(before, now, strict=True)))
                    rates.setdefault((name, shape), []).append(rate)
                    cpu.setdefault((name, shape), []).append(spent)
    for (name, shape), found in rates.items():
        rows = cpu[name, shape]
        more = {
            f"{part}_us_a_cycle": round(statistics.median(getattr(one, part) for one in rows), 1)
            for part in Spent._fields
        }
        more["busier_etcd_us_a_cycle"] = round(
            statistics.median(max(one.first, one.second) for one in rows), 1
        )
        bench.add(
            Result(
                CASE,
                {"logs": name, **shape._asdict()},
                "cycles/s",
                found,
                ONE,
                rates[ONE, shape],
                more=more,
            )
        )


def _spent(first: Any, second: Any, follower: int) -> Spent:
    """CPU seconds so far."""
    etcds = (sum(map(cpu_s, etcd_pids(one))) for one in (first, second))
    return Spent(*etcds, cpu_s(follower), time.process_time())
