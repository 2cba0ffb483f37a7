"""Worlds drawn from a seed: clients of a ``LogCluster``, their history, and the judge of it."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from support_log_cluster import LogCluster, LogNode

import lodeq
from lodeq.engine.runtime.ids import shard_of
from lodeq.errors import CommitUnknownError, LeaseLostError, LodeqError, NotLeaderError
from lodeq.replication.memory.network import SeededNetwork
from lodeq.testing.simulation.loop import SimLoop, SimTime

__all__ = ["LogWorld", "run_world", "spawn"]


class LogWorld(ABC):
    """One seed.

    Args:
        draw: draws everything but the network's behaviour.
        network: of the cluster.
    """

    cluster: LogCluster

    def __init__(self, draw: random.Random, network: SeededNetwork) -> None:
        self.draw = draw
        self.network = network
        self.acked: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.completed: list[bytes] = []
        self.maybe_completed: set[bytes] = set()
        self.claimed: set[bytes] = set()
        self.is_over = False
        self.n = 0

    @abstractmethod
    async def run(self) -> None:
        """Run all of it. Raises what is wrong."""

    def engine(self) -> lodeq.Engine:
        """The engine of any node."""
        return self.draw.choice(list(self.cluster.nodes.values())).engine

    def payload(self) -> bytes:
        """A payload that no other task has."""
        self.n += 1
        return b"%d " % self.n

    async def pause(self) -> None:
        future = asyncio.get_running_loop().create_future()
        clock = self.cluster.clock
        clock.call_at(None, clock.mono() + self.draw.random() * 0.4 + 0.01, partial(_set, future))
        await future

    async def write(self) -> None:
        while not self.is_over:
            await self.pause()
            payload = self.payload()
            try:
                await self.engine().queue("mail").enqueue(payload)
            except NotLeaderError:
                self.refused.add(payload)
            except CommitUnknownError:
                pass
            else:
                self.acked.add(payload)

    async def work(self) -> None:
        while not self.is_over:
            await self.pause()
            try:
                leases = await self.engine().queue("mail").claim(limit=2, lease=5)
            except LodeqError:
                continue
            for lease in leases:
                self.claimed.add(lease.payload)
                self.maybe_completed.add(lease.payload)
                with suppress(LodeqError):
                    await lease.complete()
                    self.completed.append(lease.payload)

    async def judge(self) -> None:
        """Complete what is left, and hold all of it against what clients were told."""
        assert len(self.completed) == len(set(self.completed)), "completed twice"
        left: list[bytes] = []
        cluster = self.cluster
        for _ in range(200):
            found: list[tuple[LogNode, lodeq.Lease]] = []
            for node in cluster.nodes.values():
                taken = await cluster.outcome(node.engine.queue("mail").claim(limit=64))
                if isinstance(taken, list):
                    found += [(node, lease) for lease in taken]
            for node, lease in found:
                outcome = await cluster.outcome(lease.complete())
                shard = shard_of(lease.task_id, cluster.shards)
                if isinstance(outcome, LeaseLostError) and not node.leads(shard):
                    continue  # a lease of the leader's own process ends as another one leads
                assert not isinstance(outcome, Exception)
                left.append(lease.payload)
            if not found:  # leases may be out, or a shard without a leader for a moment
                stats = [await node.engine.stats() for node in cluster.nodes.values()]
                if not any(one.ready or one.leased for one in stats):
                    break
                await cluster.pass_time(1)
        assert len(left) == len(set(left)), "handed out twice"
        drained = set(left)
        lost = self.acked - drained - self.maybe_completed
        assert not lost, f"lost: {lost}"
        assert not set(self.completed) & drained, "completed, and there again"
        assert not self.refused & (drained | self.claimed), "refused, and there"
        assert self.acked


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_spawned: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, Any]) -> None:
    """Start what nobody waits for."""
    task = asyncio.ensure_future(work)
    _spawned.add(task)
    task.add_done_callback(_spawned.discard)


def run_world(world: LogWorld, seed: int) -> None:
    """Run a world on a loop that the seed orders; nothing may fail beside it."""
    loop = SimLoop(SimTime(), random.Random(f"loop {seed}"))
    try:
        loop.run(world.run())
        complaints = [text for text in loop.complaints if "was destroyed" not in text]
        loop.close()
        assert not complaints, complaints
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
