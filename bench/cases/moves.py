"""The time for which a shard is missed while it moves to another node, with much in it.

Three members of etcd on loopback, two nodes that are processes, one shard. A client enqueues one
task after the other; meanwhile the leader is drained, so that the other node takes the shard
over. What counts is the longest time between two acknowledgements. A new leader builds memory
from rows: what waits stays on disk, live leases do not, so those have a row of their own.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import load
from cases.replicated import etcd_servers
from results import Bench, Goal, Result

import lodeq
from lodeq import NewTask

CASE = "a shard that moves is missed"
TESTS = Path(__file__).resolve().parents[2] / "tests"
TASKS, LEASES = 1_000_000, 100_000
BATCH = 500
LEASE_S = 3600.0
AFTER_S = 1.0  # writes go on for so long after the move


async def moves(bench: Bench) -> None:
    """A planned move of a shard with a million tasks, then with 100,000 live leases as well."""
    sys.path.append(str(TESTS))
    import support_etcd
    from support_nodes import nodes_of

    why = await asyncio.to_thread(support_etcd.fetch)
    if why:
        print(f"  skipped: {why}", flush=True)
        bench.skipped.append(f"moves: {why}")
        return
    tasks, leases = (max(BATCH, int(n * bench.scale)) for n in (TASKS, LEASES))
    with tempfile.TemporaryDirectory(prefix="lb-") as folder:
        servers = await asyncio.to_thread(etcd_servers, folder)
        try:
            async with (
                nodes_of(servers, ("a", "b"), shards=1) as nodes,
                nodes.connect() as engine,
            ):
                await _fill(engine, tasks)
                await _told(bench, nodes, engine, {"tasks": tasks, "live leases": 0})
                await _lease(engine, leases)
                await _told(bench, nodes, engine, {"tasks": tasks, "live leases": leases})
        finally:
            servers.stop()


async def _fill(engine: Any, n: int) -> None:
    queue = engine.queue("moved")
    for start in range(0, n, BATCH):
        await queue.enqueue_many([NewTask(load.PAYLOAD)] * min(BATCH, n - start))


async def _lease(engine: Any, n: int) -> None:
    queue, held = engine.queue("moved"), 0
    while held < n:
        held += len(await queue.claim(limit=min(BATCH, n - held), lease=LEASE_S))


async def _told(bench: Bench, nodes: Any, engine: Any, params: dict[str, int]) -> None:
    gaps = []
    for _ in range(bench.repeats):
        await nodes.level()
        gaps.append(await _gap_s(nodes, engine))
    goal = Goal("median", most=1.0) if bench.scale >= 1 else None
    bench.add(Result(CASE, params, "s between two acknowledged writes", gaps, goal=goal))


async def _gap_s(nodes: Any, engine: Any) -> float:
    """Move the shard while a caller enqueues: the longest time without an answer."""
    queue, longest, stop = engine.queue("beside"), 0.0, asyncio.Event()

    async def write() -> None:
        nonlocal longest
        turn, answered = 0, time.perf_counter()
        while not stop.is_set():
            turn += 1
            try:
                await queue.enqueue(load.PAYLOAD, dedup_key=f"{answered} {turn}")
            except (lodeq.BusyError, lodeq.CommitUnknownError, lodeq.NotLeaderError):
                continue
            now = time.perf_counter()
            longest, answered = max(longest, now - answered), now

    (leader,) = await nodes.led()
    writing = asyncio.create_task(write())
    try:
        await nodes.drain(leader)
        (new,) = await nodes.led()
        if new == leader:
            raise RuntimeError(f"{leader} was drained and leads still")
        await asyncio.sleep(AFTER_S)
    finally:
        stop.set()
        await writing
        await nodes.drain(leader, undo=True)
    return longest
