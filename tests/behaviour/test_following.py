"""Followers ask the log for little, whatever they hear; a leader's records take everybody in."""

import asyncio

import pytest
from support_behaviour import settle
from support_log_cluster import LogCluster, LogNode

from lodeq import TaskFilter
from lodeq.errors import TaskNotFoundError
from lodeq.replication.memory.network import Route
from lodeq.replication.port import Change, add_change
from lodeq.replication.shard_replica import FOLLOW_S

LOOK_S = 1.5 * FOLLOW_S  # the longest pause between two reads
pytestmark = pytest.mark.anyio


class Pair:
    """A leader, its follower, and how often the follower has asked."""

    def __init__(self, cluster: LogCluster, leader: LogNode, follower: LogNode) -> None:
        self.cluster = cluster
        self.leader = leader
        self.follower = follower
        self.queue = leader.engine.queue("mail")

    @classmethod
    async def open(cls, cluster: LogCluster) -> "Pair":
        await cluster.open_all("a", "b")
        await cluster.pass_time(2)
        leader = cluster.leader()
        assert leader is not None
        (follower,) = [node for node in cluster.nodes.values() if node is not leader]
        return cls(cluster, leader, follower)

    @property
    def shard(self):
        return self.follower.replicator._shards[0]

    def asked(self) -> tuple[int, int]:
        """Reads of the log, and looks at its state, so far."""
        requests = self.cluster.log.requests
        return requests.get("read", 0), requests.get("state", 0)

    async def enqueue(self, n: int) -> None:
        """So many entries, one behind the other, in no time."""
        for _ in range(n):
            task = asyncio.ensure_future(self.queue.enqueue(b"x"))
            await settle(25)
            assert task.done()

    @property
    def is_level(self) -> bool:
        return self.shard.delivered == self.cluster.tails()[0]


async def test_entries_that_come_between_two_reads_take_one(clock) -> None:
    async with LogCluster(clock) as cluster:
        pair = await Pair.open(cluster)
        reads, states = pair.asked()
        await pair.enqueue(1)
        assert pair.is_level
        await pair.enqueue(9)
        assert pair.asked() == (reads + 1, states)
        assert not pair.is_level
        await clock.advance(LOOK_S, turns=25)
        assert pair.is_level
        assert pair.asked() == (reads + 2, states)
        await clock.advance(LOOK_S, turns=25)
        assert pair.asked() == (reads + 2, states)  # it has heard of all of them


async def test_hints_of_entries_that_are_there_ask_nothing(clock) -> None:
    async with LogCluster(clock) as cluster:
        pair = await Pair.open(cluster)
        await pair.enqueue(1)
        await clock.advance(LOOK_S, turns=25)
        asked = pair.asked()
        for last in range(1, pair.shard.delivered + 1):
            pair.shard.hear(last)
        await settle(25)
        assert pair.asked() == asked
        pair.shard.hear(0)  # anything may be different
        await settle(25)
        assert pair.asked() > asked


async def test_a_hint_of_entries_that_are_not_there_is_looked_at_once(clock) -> None:
    async with LogCluster(clock) as cluster:
        pair = await Pair.open(cluster)
        reads, _ = pair.asked()
        pair.shard.hear(1 << 40)
        for _ in range(10):
            await clock.advance(LOOK_S, turns=25)
        assert pair.asked()[0] == reads + 1


async def test_a_read_may_leave_out_the_newest(clock) -> None:
    async with LogCluster(clock) as cluster:
        pair = await Pair.open(cluster)
        cluster.network.behind.add(pair.follower.name)
        await pair.enqueue(10)
        await clock.advance(LOOK_S, turns=25)
        assert pair.shard.delivered == cluster.tails()[0] - 1
        await clock.advance(LOOK_S, turns=25)
        assert pair.is_level
        await cluster.until_equal()


async def test_a_leader_that_goes_is_noticed_between_two_reads(clock) -> None:
    async with LogCluster(clock) as cluster:
        pair = await Pair.open(cluster)
        await pair.enqueue(2)
        _, states = pair.asked()
        hand_over = asyncio.ensure_future(pair.leader.replicator.hand_over(0))
        await settle(25)
        assert hand_over.done()
        assert pair.asked()[1] > states
        await cluster.until_led()


async def test_those_an_answer_wakes_are_in_the_next_record(clock) -> None:
    """Or each of two records would carry half of the callers for ever."""
    async with LogCluster(clock) as cluster:
        (node,) = await cluster.open_all("a")
        queue, n_calls = node.engine.queue("mail"), 10
        cluster.network.plan(Route((0.0,), 0.05), kind="append", times=1000)

        async def call() -> None:
            for _ in range(n_calls):
                await queue.enqueue(b"x")

        before = cluster.log.requests["append"]
        first = asyncio.gather(*(call() for _ in range(128)))
        await settle(25)
        assert cluster.log.requests["append"] == before + 1
        second = asyncio.gather(*(call() for _ in range(128)))  # while that one is under way
        await cluster.until(lambda: first.done() and second.done())
        assert cluster.log.requests["append"] - before <= n_calls + 2


async def test_a_replica_that_is_closed_leaves_no_task_behind(clock) -> None:
    before = asyncio.all_tasks()
    async with LogCluster(clock) as cluster:
        pair = await Pair.open(cluster)
        await pair.enqueue(1)
    await settle(25)
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()


def test_hints_are_merged_into_one_that_says_no_more_than_each() -> None:
    heard: dict[int, int] = {}
    for change in (Change(1, 3), Change(1, 5), Change(1, 4), Change(2, 7), Change(2), Change(2, 9)):
        add_change(heard, change)
    assert heard == {1: 5, 2: 0}


async def test_a_result_that_comes_and_goes_between_two_reads_wakes_who_waits_for_it(clock) -> None:
    async with LogCluster(clock) as cluster:
        pair = await Pair.open(cluster)
        task = asyncio.ensure_future(pair.queue.enqueue(b"x", retention=60))
        await settle(25)
        await clock.advance(LOOK_S, turns=25)
        assert pair.is_level
        task_id = task.result().id
        waiting = asyncio.ensure_future(pair.follower.engine.result(task_id, wait=600))
        await pair.enqueue(1)  # read at once; the next read is a while away

        async def end_and_delete() -> None:
            lease = await pair.queue.claim_one()
            assert lease is not None
            await lease.complete(b"done")
            await pair.leader.engine.act("delete", TaskFilter(ids=[task_id], state="completed"))

        ended = asyncio.ensure_future(end_and_delete())
        await settle(200)
        ended.result()
        assert not pair.is_level
        assert not waiting.done()
        await clock.advance(LOOK_S, turns=50)
        assert pair.is_level
        assert waiting.done()
        with pytest.raises(TaskNotFoundError):
            waiting.result()


@pytest.mark.parametrize("how", ["complete", "bury"])
async def test_an_end_that_leaves_no_result_wakes_who_waits_for_one(clock, how) -> None:
    async with LogCluster(clock) as cluster:
        pair = await Pair.open(cluster)
        await cluster.outcome(pair.leader.engine.configure("mail", history=0))
        receipts = [await cluster.outcome(pair.queue.enqueue(b"x", retention=0)) for _ in range(2)]
        await cluster.until_equal()
        engine = pair.follower.engine
        waits = [asyncio.ensure_future(engine.result(one.id, wait=600)) for one in receipts]
        ended, returned = await cluster.outcome(pair.queue.claim(limit=2))
        assert [ended.task_id, returned.task_id] == [one.id for one in receipts]
        await cluster.outcome(returned.release())
        await cluster.outcome(ended.complete() if how == "complete" else ended.bury("no"))
        await cluster.until_equal()
        assert [one.done() for one in waits] == [True, False]  # the other is still to run
        with pytest.raises(TaskNotFoundError):
            waits[0].result()
        waits[1].cancel()


async def test_all_groups_of_a_record_are_synced_at_once(clock) -> None:
    async with LogCluster(clock) as cluster:
        (leader,) = await cluster.open_all("a", durability="fsync")
        queue = leader.engine.queue("mail")
        stats = leader.engine._state.shards[0].coalescer.stats
        for _ in range(3):
            before = stats.syncs, stats.commits
            calls = [asyncio.ensure_future(queue.enqueue(b"x")) for _ in range(256)]
            await settle(50)
            assert all(call.done() for call in calls)
            assert (stats.syncs - before[0], stats.commits - before[1]) == (1, 4)


async def test_a_follower_that_reads_all_the_time_knows_who_leads(clock) -> None:
    async with LogCluster(clock) as cluster:
        pair = await Pair.open(cluster)
        for _ in range(500):  # longer than a leader that was seen is believed
            await pair.enqueue(1)
            await clock.advance(2 * LOOK_S, turns=25)
            assert pair.follower.replicator.status().shards[0].leader == pair.leader.name


async def test_all_shards_of_a_node_look_at_the_same_times(clock) -> None:
    async with LogCluster(clock) as cluster:
        pair = await Pair.open(cluster)
        looks = set()
        for _ in range(7):
            await clock.advance(0.3 * FOLLOW_S, turns=5)
            wait_s = pair.shard._look_s()
            assert FOLLOW_S / 2 <= wait_s <= LOOK_S
            at = (pair.shard.node.mono() + wait_s) / FOLLOW_S
            assert at == pytest.approx(round(at))
            looks.add(round(at))
        assert len(looks) < 7, "who asks a little later looks with those before"
