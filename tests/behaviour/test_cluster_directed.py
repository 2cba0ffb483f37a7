"""Faults that random worlds hardly ever line up, one by one, each with the bug that it finds."""

import pytest
from support_behaviour import StillClock, drain
from support_log_cluster import LogCluster
from support_shared_log import record_of

import lodeq
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.replication.memory.log import MemoryLog
from lodeq.replication.memory.network import Route
from lodeq.replication.memory.service import LogService
from lodeq.replication.port import FencedError, Genesis, Member
from lodeq.replication.shard_replica import ShardReplica

pytestmark = pytest.mark.anyio
PUT = (b"k", b"v")


async def a_term_that_is_over_fences_though_nothing_was_appended_since() -> None:
    """The tail is where the old leader left it, so only the term tells."""
    log = MemoryLog(current_spawner(), StillClock())
    a, b = log.client("a"), log.client("b")
    for node, name in ((a, "a"), (b, "b")):
        await node.connect(Genesis("c", 1, bytes(16)))
        await node.join(Member(name))
    first = await a.campaign(0)
    await a.append(record_of(0, first.term, 1, PUT))
    assert await b.depose(0, first.term, fenced_s=3)
    await b.campaign(0)
    with pytest.raises(FencedError):
        await a.append(record_of(0, first.term, 2, PUT))
    for node in (a, b):
        await node.close()


async def a_leader_reads_what_came_between_its_look_and_its_campaign(clock) -> None:
    """It saw a vacant shard and was up to date; until its campaign arrived another one led."""
    async with LogCluster(clock) as cluster:
        first, *others = await cluster.open_all(*"abc")
        old = cluster.leader()
        late, between = [node for node in (first, *others) if node is not old]
        await cluster.until_equal()
        late.replicator.log._request_s = 5.0  # it waits for its answer
        cluster.network.plan(Route((2.0,), 0.0), node=late.name, kind="campaign")
        cluster.network.dropped_watch.add(late.name)
        campaigns = cluster.log.requests["campaign"]
        between.replicator._shards[0].not_before = clock.mono() + 4.0
        old.replicator._shards[0].can_lead = False
        await old.replicator.hand_over(0)
        await cluster.until(lambda: not cluster.network._planned)  # late's campaign is on its way
        between.replicator._shards[0].not_before = 0.0
        between.replicator._shards[0].wake.set()
        await cluster.until(between.leads, 1.5)
        queue = between.engine.queue("mail")
        assert isinstance(await cluster.outcome(queue.enqueue(b"x")), lodeq.Receipt)
        between.replicator._shards[0].can_lead = False
        await between.replicator.hand_over(0)
        assert cluster.log.requests["campaign"] == campaigns + 1
        assert late.replicator._shards[0].delivered < cluster.tails()[0]
        await cluster.until(late.leads, 6)
        await cluster.until_equal()
        assert await cluster.outcome(drain(late.engine.queue("mail"))) == [b"x"]


async def test_a_term_that_is_over_fences() -> None:
    await a_term_that_is_over_fences_though_nothing_was_appended_since()


async def test_an_append_that_is_not_fenced_by_its_term_is_found(monkeypatch) -> None:
    monkeypatch.setattr(
        LogService,
        "_may_append",
        lambda self, tries: self._shards[tries.shard].tail == tries.first - 1,
    )
    with pytest.raises(pytest.fail.Exception):
        await a_term_that_is_over_fences_though_nothing_was_appended_since()


async def test_a_leader_reads_to_the_end(clock) -> None:
    await a_leader_reads_what_came_between_its_look_and_its_campaign(clock)


async def test_a_leader_that_serves_before_it_has_read_to_the_end_is_found(
    clock, monkeypatch
) -> None:
    async def campaign(self: ShardReplica) -> float | None:
        won = await self.node.log.campaign(self.shard)
        return None if won is None else await self._lead(won)

    monkeypatch.setattr(ShardReplica, "_campaign", campaign)
    with pytest.raises(AssertionError):
        await a_leader_reads_what_came_between_its_look_and_its_campaign(clock)
