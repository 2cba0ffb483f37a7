"""A cluster under faults drawn from a seed: nothing acknowledged is lost, nothing happens twice.

Each world has three nodes, writers and workers that go to any of them, a network that loses,
repeats and delays, and once in a while a split, a frozen node, an ended session, a log without
quorum, a planned move, a new node. In the end everything heals, and the history is judged.
"""

import asyncio
import os
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from support_behaviour import StillClock
from support_log_cluster import STEP_S, LogCluster
from support_log_world import LogWorld, run_world, spawn
from support_seeds import FIRST

import lodeq
from lodeq.errors import LodeqError
from lodeq.replication import shard_replica
from lodeq.replication.fragments import CutRecord, cut_record
from lodeq.replication.memory import log as memory_log
from lodeq.replication.memory.log import MemoryLogClient
from lodeq.replication.memory.network import SeededNetwork
from lodeq.replication.memory.service import LogService
from lodeq.replication.port import FencedError
from lodeq.replication.proposals import Proposals
from lodeq.replication.shard_replica import ShardReplica
from lodeq.testing.simulation.loop import DeadlockError

SEEDS = int(os.environ.get("LODEQ_CLUSTER_SEEDS", "60"))
FAULTS = (
    "split",
    "mute",
    "freeze",
    "expire",
    "quorum",
    "heal",
    "heal",
    "move",
    "client",
    "deaf",
    "new",
)
PLANTED_SEEDS = 40
WORLD_S = 15.0
REGRESSIONS: tuple[int, ...] = ()


class World(LogWorld):
    """One seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(
            random.Random(f"cluster {seed}"), SeededNetwork(random.Random(f"network {seed}"))
        )
        self.ended_at = 0.0  # when a session was ended that its node still counts on

    async def run(self) -> None:
        draw = self.draw
        async with LogCluster(StillClock(), self.network, record_bytes_max=4096) as cluster:
            self.cluster = cluster
            cluster.shards = draw.choice((1, 1, 2))
            for name in "abc":
                await cluster.open(name)
            actors = [asyncio.ensure_future(self.write()) for _ in range(4)]
            actors += [asyncio.ensure_future(self.work()) for _ in range(2)]
            for _ in range(round(WORLD_S / STEP_S)):
                if draw.random() < STEP_S:
                    await self.fault()
                await cluster.clock.advance(STEP_S, turns=draw.randint(5, 30))
                if cluster.clock.mono() > self.ended_at + cluster.log.service.ttl_s:
                    for shard in range(cluster.shards):
                        cluster.leader(shard)  # fails if there are two
            self.is_over = self.network.is_calm = True
            cluster.heal()
            await cluster.until(lambda: all(actor.done() for actor in actors), 60)
            for actor in actors:
                actor.result()
            await cluster.until_led(60)
            await cluster.until_equal(within_s=60)
            await self.judge()
            await cluster.until_equal()

    # -- actors ------------------------------------------------------------------------

    def engine(self) -> lodeq.Engine:
        """The engine of any node, mostly of one that leads something."""
        nodes = list(self.cluster.nodes.values())
        leaders = [node for node in nodes if any(node.leads(s) for s in range(self.cluster.shards))]
        return self.draw.choice(leaders if leaders and self.draw.random() < 0.8 else nodes).engine

    def payload(self) -> bytes:
        return super().payload() + bytes(self.draw.choice((0, 0, 0, 0, 9000)))

    # -- faults ------------------------------------------------------------------------

    async def fault(self) -> None:
        network, draw = self.network, self.draw
        name = draw.choice(list(self.cluster.nodes))
        kind = draw.choice(FAULTS)
        if kind == "split":
            network.splits.add(name)
        elif kind == "mute":
            network.muted.add(name)
        elif kind == "freeze":
            network.freeze(name)
        elif kind == "expire":
            # Against the port's promise, as an operator can: until the node hears of it, it and
            # the next leader may both answer from memory.
            self.cluster.log.expire(name)
            self.ended_at = self.cluster.clock.mono()
        elif kind == "quorum":
            network.has_quorum = False
        elif kind == "heal":
            self.cluster.heal()
        elif kind == "move":
            shard = draw.randrange(self.cluster.shards)
            spawn(self.cluster.nodes[name].replicator.hand_over(shard))
        elif kind == "client":
            self.cluster.nodes[name].replicator.log.lose_session()
        elif kind == "deaf":
            network.dropped_watch.add(name)
        elif kind == "new" and len(self.cluster.nodes) < 5 and network.has_quorum:
            with suppress(LodeqError):
                await self.cluster.open(f"n{len(self.cluster.nodes)}")


def run_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run_world(World(seed), seed)


@pytest.mark.sample
@pytest.mark.slow
def test_worlds_of_random_faults() -> None:
    run_all((*REGRESSIONS, *range(FIRST, FIRST + SEEDS)))


# -- bugs that are planted, and have to be found -----------------------------------------


def forgotten_retry(patch: pytest.MonkeyPatch) -> None:
    """A repeated append does not recognise its own record."""

    def refuse(self: LogService, tries: Any, raw: bytes | None) -> None:
        raise FencedError("no")

    patch.setattr(LogService, "_refuse", refuse)


def doubled_retry(patch: pytest.MonkeyPatch) -> None:
    """A repeated append becomes a record of its own, as a client that retries makes it."""
    insist = MemoryLogClient._insist

    async def twice(self: MemoryLogClient, kind: str, work: Any) -> None:
        await insist(self, kind, work)
        if kind == "append" and self.log.requests["append"] % 9 == 0:
            tries = work.args[0]
            moved = tries._replace(first=tries.last + 1, last=tries.last * 2 - tries.first + 1)
            await insist(self, kind, partial(work.func, moved, *work.args[1:]))

    patch.setattr(MemoryLogClient, "_insist", twice)


def shuffled_fragments(patch: pytest.MonkeyPatch) -> None:
    """The fragments of a record are stored in the wrong order."""

    def cut(record: Any, bytes_max: int) -> CutRecord:
        stored, fragments = cut_record(record, bytes_max)
        return CutRecord(stored, fragments[::-1])

    patch.setattr(memory_log, "cut_record", cut)


def skipping_follower(patch: pytest.MonkeyPatch) -> None:
    """A follower loses an entry of a record with several."""

    def pieces(entries: Any) -> Any:
        yield from ([entries[:-1], entries[-1:]] if len(entries) < 3 else [entries[1:]])

    patch.setattr(shard_replica, "_pieces", pieces)


def early_leader(patch: pytest.MonkeyPatch) -> None:
    """A leader serves before it has read to the end."""
    after, read = ShardReplica._after, ShardReplica._read_on

    async def campaign(self: ShardReplica) -> float | None:
        won = await self.node.log.campaign(self.shard)
        return None if won is None else await self._lead(won)

    async def read_on(self: ShardReplica) -> bool:
        return False if self.seen.leader is None else await read(self)

    async def go_on(self: ShardReplica, state: Any) -> float | None:
        return await after(self, replace(state, last=self.delivered))

    patch.setattr(ShardReplica, "_campaign", campaign)
    patch.setattr(ShardReplica, "_read_on", read_on)
    patch.setattr(ShardReplica, "_after", go_on)


def hasty_refusal(patch: pytest.MonkeyPatch) -> None:
    """An append without an answer is taken for one that never was."""
    patch.setattr(Proposals, "_outcome", lambda self, failure: self._refusal())


def generous_session(patch: pytest.MonkeyPatch) -> None:
    """A session is counted from when it is looked at, not from the renewal's sending."""

    def until(self: MemoryLogClient) -> float:
        return self._until + 1.0 if self._until else 0.0

    patch.setattr(MemoryLogClient, "session_until", until)


def silent_loss(patch: pytest.MonkeyPatch) -> None:
    """Who loses its session goes on leading."""
    patch.setattr(ShardReplica, "session_lost", lambda self: None)
    patch.setattr(ShardReplica, "lose", lambda self: None)


def restored_half(patch: pytest.MonkeyPatch) -> None:
    """A follower takes what it has not applied for delivered."""

    def entered(self: ShardReplica, record: Any) -> None:
        self.delivered = record.last + 1

    patch.setattr(ShardReplica, "_entered", entered)


PLANTED = [
    forgotten_retry,
    doubled_retry,
    shuffled_fragments,
    skipping_follower,
    early_leader,
    hasty_refusal,
    generous_session,
    silent_loss,
    restored_half,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, DeadlockError, LodeqError)):
        run_all(range(PLANTED_SEEDS))
