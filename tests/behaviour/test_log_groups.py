"""A cluster over two log services: each has the logs of half of the shards, and fails by itself."""

import asyncio
from dataclasses import replace

import pytest
from support_behaviour import StillClock
from support_log_cluster import LogCluster

import lodeq
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.engine.runtime.ids import SeededRng, slot_of
from lodeq.errors import LogRolledBackError, NotLeaderError, UsageError
from lodeq.replication.groups import LogGroups
from lodeq.replication.memory.log import MemoryLog
from lodeq.replication.memory.network import Network
from lodeq.replication.options import LogOptions
from lodeq.replication.port import Checkpoint, LogSpace, LogUnavailableError
from lodeq.replication.replica_note import read_note, write_note
from lodeq.replication.replicator import LogReplicator

pytestmark = pytest.mark.anyio
SHARDS = 4


class GroupCluster(LogCluster):
    """Shards 0 and 2 have their logs in ``log``, 1 and 3 in ``second``."""

    def __init__(self, clock: StillClock) -> None:
        super().__init__(clock)
        self.shards = SHARDS
        self.copies: int | None = None
        self.network_2 = Network()
        self.second = MemoryLog(current_spawner(), clock, network=self.network_2)

    def replicator(self, name: str, **given) -> LogReplicator:
        return LogReplicator(
            LogGroups([self.log.client(name), self.second.client(name)]),
            node=name,
            url=f"http://{name}",
            shards=SHARDS,
            copies=self.copies,
            clock=self.clock,
            rng=SeededRng(sum(name.encode()) + len(self.nodes)),
            **given,
        )

    def tails(self) -> list[int]:
        states = self.log.service.states(), self.second.service.states()
        return [states[shard % 2][shard].last for shard in range(SHARDS)]

    def heal(self) -> None:
        super().heal()
        self.network_2.has_quorum = True
        self.network_2.splits.clear()

    async def enqueue(self, shard: int) -> object:
        """Give a task to the leader of a shard; its answer, or its error."""
        leader = self.leader(shard)
        if leader is None:
            return None
        keys = (f"k{n}" for n in range(10_000))
        slots = ((key, slot_of(b"mail\0\0" + key.encode())) for key in keys)
        key = next(key for key, slot in slots if slot * SHARDS >> 12 == shard)
        mail = leader.engine.queue("mail")
        return await self.outcome(mail.enqueue(b"x", dedup_key=key))


async def test_each_group_has_the_logs_of_its_shards(clock):
    async with GroupCluster(clock) as cluster:
        await cluster.open_all("a", "b")
        for shard in range(SHARDS):
            assert isinstance(await cluster.enqueue(shard), lodeq.Receipt)
        await cluster.until_equal()
        for number, log in enumerate((cluster.log, cluster.second)):
            lasts = [state.last > 0 for state in log.service.states()]
            assert lasts == [shard % 2 == number for shard in range(SHARDS)]
            assert log.service.genesis.group == number


async def test_without_one_group_the_shards_of_the_others_go_on(clock):
    async with GroupCluster(clock) as cluster:
        await cluster.open_all("a", "b")
        await cluster.enqueue(0)
        for network, away in ((cluster.network_2, {1, 3}), (cluster.network, {0, 2})):
            network.has_quorum = False
            await cluster.pass_time(5)  # longer than a session
            for shard in range(SHARDS):
                said = await cluster.enqueue(shard)
                if shard in away:
                    assert said is None or isinstance(said, NotLeaderError)
                else:
                    assert isinstance(said, lodeq.Receipt)
            network.has_quorum = True
            await cluster.until_led()
        await cluster.until_equal()


async def test_a_node_that_is_cut_off_from_one_group_loses_the_shards_of_that_one(clock):
    async with GroupCluster(clock) as cluster:
        a, b = await cluster.open_all("a", "b")
        cluster.network_2.splits.add("a")
        await cluster.until(lambda: b.leads(1) and b.leads(3))
        assert not any(a.replicator.holds_session(shard) for shard in (1, 3))
        assert isinstance(await cluster.enqueue(1), lodeq.Receipt)
        held = [shard for shard in (0, 2) if a.leads(shard)]
        assert all(a.replicator.holds_session(shard) for shard in held)
        cluster.network_2.splits.clear()
        await cluster.until_equal()


async def test_health_names_the_group_that_a_node_has_no_session_with(clock):
    async with GroupCluster(clock) as cluster:
        a, _ = await cluster.open_all("a", "b")
        cluster.network_2.splits.add("a")
        await cluster.pass_time(9)
        (reason,) = (await a.engine.health()).reasons
        assert reason.startswith("no session with group 1 of the log, so it leads nothing there")
        cluster.network_2.splits.clear()


async def test_room_is_looked_after_without_one_group(clock, monkeypatch):
    async with GroupCluster(clock) as cluster:
        a, _ = await cluster.open_all("a", "b")
        log = a.replicator.log
        used = LogSpace(900, 900, 1000)
        monkeypatch.setattr(type(cluster.log.service), "space", lambda service: used)
        for network in (cluster.network_2, cluster.network):
            network.has_quorum = False
            assert await cluster.outcome(log.space()) == used
            assert await cluster.outcome(log.compact()) is None
            network.has_quorum = True
        cluster.network.has_quorum = cluster.network_2.has_quorum = False
        for call in (log.space(), log.compact()):
            assert isinstance(await cluster.outcome(call), LogUnavailableError)


async def test_without_one_group_the_logs_of_placed_shards_in_the_others_are_truncated(clock):
    async with GroupCluster(clock) as cluster:
        options = LogOptions(copies_min=1, entries_max=1, truncate_s=None)
        cluster.copies = 1
        a = await cluster.open("a", options=options)
        await cluster.until_led(60)
        for shard in range(SHARDS):
            assert isinstance(await cluster.enqueue(shard), lodeq.Receipt)
        tails = tuple(cluster.tails())
        await cluster.outcome(a.replicator.publish(Checkpoint("a", "", "", tails, 1)))
        cluster.network_2.has_quorum = False
        said = await cluster.outcome(a.replicator.truncate())
        assert isinstance(said, LogUnavailableError)  # of those that are away
        floors = [state.floor for state in cluster.log.service.states()]
        assert [floor > 1 for floor in floors] == [True, False, True, False]


async def test_no_shard_is_handed_to_a_node_that_lacks_a_session_of_some_group(clock):
    async with GroupCluster(clock) as cluster:
        await cluster.open_all("a", "b")

        def willing():
            return {one.node: one.may_lead for one in cluster.log.service.members()}

        await cluster.until(lambda: willing() == {"a": True, "b": True})
        cluster.network_2.splits.add("a")
        await cluster.until(lambda: willing() == {"a": False, "b": True})
        for shard in range(SHARDS):
            await cluster.until(lambda shard=shard: cluster.leader(shard))
        terms = [state.term for state in cluster.second.service.states()]
        await cluster.pass_time(45)
        assert [state.term for state in cluster.second.service.states()] == terms
        cluster.network_2.splits.clear()
        await cluster.until(lambda: willing() == {"a": True, "b": True})


async def test_without_one_group_copies_of_the_shards_of_the_others_are_made(clock):
    async with GroupCluster(clock) as cluster:
        cluster.copies = 1
        a, b = await cluster.open_all("a", "b")
        await cluster.outcome(a.replicator.wishes.remove("b"))
        state = b.engine._state
        await cluster.until(lambda: [shard.index for shard in state.hosted] == [0], 60)
        cluster.network_2.has_quorum = False
        await cluster.pass_time(1)
        for one in cluster.log.service.placements():
            both = replace(one, copies=("a", "b"))
            assert await cluster.outcome(a.replicator.log.place(both, is_wish=True))
        await cluster.until(lambda: [shard.index for shard in state.hosted] == [0, 2], 30)


@pytest.mark.parametrize("away", [0, 1])
async def test_a_close_ends_the_sessions_of_the_groups_that_answer(clock, away):
    async with GroupCluster(clock) as cluster:
        node = await cluster.open("a")
        await cluster.until_led()
        logs, networks = (cluster.log, cluster.second), (cluster.network, cluster.network_2)
        networks[away].has_quorum = False
        close = asyncio.ensure_future(node.engine.close())
        assert await cluster.until(close.done) <= 1.0
        del cluster.nodes["a"]
        assert not logs[1 - away].service.sessions_of("a")
        networks[away].has_quorum = True
        await cluster.pass_time(logs[away].service.ttl_s + 1)
        assert not logs[away].service.sessions_of("a")  # nobody renews it


async def test_groups_in_another_order_or_not_all_of_them_are_refused(clock):
    first, second = (MemoryLog(current_spawner(), clock) for _ in range(2))

    def layer(*logs: MemoryLog) -> LogReplicator:
        clients = [log.client("a") for log in logs]
        log = LogGroups(clients) if len(clients) > 1 else clients[0]
        return LogReplicator(log, node="a", shards=2, clock=clock, options=LogOptions())

    good = layer(first, second)
    await good.prepare(None)
    await good.closed()
    for logs, said in (
        ((second, first), "in the order"),
        ((first,), "give all of them"),
        ((second,), "give all of them"),
        ((first, MemoryLog(current_spawner(), clock), second), "give all of them|in the order"),
        ((first, first), "in the order"),
    ):
        wrong = layer(*logs)
        with pytest.raises(UsageError, match=said):
            await wrong.prepare(None)
        await wrong.closed()
    again = layer(first, second)
    await again.prepare(None)
    await again.closed()


async def test_a_later_group_that_is_empty_or_older_than_was_noted_is_refused(clock, tmp_path):
    first, second = (MemoryLog(current_spawner(), clock) for _ in range(2))

    async def prepared(*logs: MemoryLog) -> None:
        log = LogGroups([log.client("a") for log in logs])
        layer = LogReplicator(log, node="a", shards=2, copies=1, clock=clock)
        try:
            await layer.prepare(str(tmp_path / "a"))
        finally:
            await layer.closed()

    await prepared(first, second)
    root, now = str(tmp_path / "a"), second.service
    noted = read_note(root)
    assert noted.later == ((now.id, now.revision),)
    write_note(root, replace(noted, later=((now.id, now.revision + 1),)))
    with pytest.raises(LogRolledBackError, match="older copy"):
        await prepared(first, second)
    write_note(root, replace(noted, later=()))  # as an older release leaves it
    await prepared(first, second)
    empty = MemoryLog(current_spawner(), clock)
    with pytest.raises(LogRolledBackError, match="log group 1"):
        await prepared(first, empty)
    assert empty.service.genesis is None
