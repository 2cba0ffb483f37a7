"""What a cluster does with the log's records: large ones, damaged ones, those that are gone."""

import asyncio
import os
import shutil
from dataclasses import replace

import pytest
from support_behaviour import drain, settle
from support_log_cluster import LogCluster

import lodeq
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.store.memory import MemoryStore
from lodeq.errors import (
    CommitUnknownError,
    LogRolledBackError,
    NotLeaderError,
    OpenError,
    ShardCountError,
    StorageError,
    StorageFullError,
    StorePathError,
    StoreStalledError,
)
from lodeq.replication.bootstrap import LocalCheckpoints, manifest_digest
from lodeq.replication.memory.network import Route
from lodeq.replication.options import LogOptions
from lodeq.replication.port import Checkpoint, Genesis, Member
from lodeq.replication.replica_note import read_note
from lodeq.replication.shard_replica import FOLLOW_S

pytestmark = pytest.mark.anyio
NAMES = ("a", "b", "c")


@pytest.fixture
async def three(clock):
    """(cluster, leader, [followers]): three nodes, one of which leads the one shard."""
    async with LogCluster(clock) as cluster:
        nodes = await cluster.open_all(*NAMES)
        leader = cluster.leader()
        yield cluster, leader, [node for node in nodes if node is not leader]


@pytest.fixture
async def large(clock):
    """The same, for payloads of some MiB."""
    async with LogCluster(clock) as cluster:
        limits = lodeq.Limits(payload_bytes_max=3 << 20)
        nodes = await cluster.open_all(*NAMES, limits=limits)
        leader = cluster.leader()
        yield cluster, leader, [node for node in nodes if node is not leader]


async def test_a_large_entry_travels_in_fragments(large):
    cluster, leader, _ = large
    payload = os.urandom(900_000) * 3
    receipt = await cluster.outcome(leader.engine.queue("mail").enqueue(payload))
    assert isinstance(receipt, lodeq.Receipt)
    assert cluster.log.requests["fragment"] >= 3
    await cluster.until_equal()
    assert await cluster.outcome(drain(leader.engine.queue("mail"))) == [payload]


async def test_fragments_of_a_leader_that_was_cut_off_are_removed_by_the_next(large):
    cluster, old, others = large
    cluster.network.plan(Route(()), node=old.name, kind="append", times=100)
    call = asyncio.ensure_future(old.engine.queue("mail").enqueue(os.urandom(2_500_000)))
    await cluster.until(lambda: cluster.log.service.fragments(0) > 0)
    cluster.network.splits.add(old.name)
    await cluster.until(lambda: any(node.leads() for node in others))
    assert cluster.log.service.fragments(0) == 0
    cluster.heal()
    assert isinstance(await cluster.outcome(call), lodeq.LodeqError)
    await cluster.until_equal()


async def test_many_proposals_share_a_record(three):
    cluster, leader, _ = three
    mail = leader.engine.queue("mail")
    before = cluster.log.requests["append"], cluster.tails()[0]
    await cluster.outcome(asyncio.gather(*(mail.enqueue(b"%d" % n) for n in range(64))))
    appends = cluster.log.requests["append"] - before[0]
    assert appends < 64
    await cluster.until_equal()


async def test_a_damaged_record_stops_the_follower_that_meets_it(three):
    cluster, leader, (b, c) = three
    for node in (b, c):
        cluster.network.splits.add(node.name)
    await cluster.outcome(leader.engine.queue("mail").enqueue(b"x"))
    cluster.log.service.damage(0, cluster.tails()[0])
    cluster.heal()
    await cluster.until(lambda: b.role() == c.role() == "stopped")
    assert "damaged" in b.replicator.problems()[0]
    await cluster.outcome(leader.engine.queue("mail").enqueue(b"y"))
    assert cluster.leader() is leader


def refuse_writes(patch, node, error) -> None:
    """The store of a node raises ``error`` at each write, until the patch is undone."""
    store, write = node.engine._state.shards[0].store, MemoryStore.write

    def refusing(self, ops):
        if self is store:
            raise error
        write(self, ops)

    patch.setattr(MemoryStore, "write", refusing)


@pytest.mark.interpreted
async def test_a_leader_whose_disk_fails_gives_the_shard_up(three, monkeypatch):
    cluster, leader, others = three
    refuse_writes(monkeypatch, leader, StorageError("broken"))
    error = await cluster.outcome(leader.engine.queue("mail").enqueue(b"x", dedup_key="k"))
    assert isinstance(error, CommitUnknownError)
    await cluster.until(lambda: any(node.leads() for node in others))
    assert "poisoned" in leader.replicator.problems()[0]
    refused = await cluster.outcome(leader.engine.queue("mail").enqueue(b"x", dedup_key="k"))
    assert isinstance(refused, NotLeaderError)
    assert refused.leader == f"http://{cluster.leader().name}"
    mail = cluster.leader().engine.queue("mail")
    assert (await cluster.outcome(mail.enqueue(b"x", dedup_key="k"))).duplicate  # it was in the log
    await cluster.until_equal(*others)


@pytest.mark.interpreted
async def test_a_leader_whose_disk_is_full_gives_the_shard_up_until_there_is_room(
    three, monkeypatch
):
    cluster, leader, others = three
    refuse_writes(monkeypatch, leader, StorageFullError("no space left"))
    call = asyncio.ensure_future(leader.engine.queue("mail").enqueue(b"x", dedup_key="k"))
    await cluster.until(lambda: any(node.leads() for node in others))
    assert "is the disk full?" in leader.replicator.problems()[0]
    mail = cluster.leader().engine.queue("mail")
    assert (await cluster.outcome(mail.enqueue(b"x", dedup_key="k"))).duplicate
    cluster.log.expire(cluster.leader().name)
    await cluster.pass_time(5)
    assert not leader.leads()
    monkeypatch.undo()
    leader.engine._state.shards[
        0
    ].coalescer._retry_now()  # else a moment of the loop's own time later
    await cluster.until_equal()
    assert isinstance(await cluster.outcome(call), lodeq.Receipt)  # it was in the log
    await cluster.pass_time(2)
    assert leader.replicator.problems() == ()
    for node in others:
        await cluster.outcome(node.replicator.drain(is_on=True))
    await cluster.until(leader.leads)


async def test_who_is_drained_has_told_the_others_when_it_says_so(three):
    cluster, leader, _ = three
    for is_on in (True, False):
        await cluster.outcome(leader.replicator.drain(is_on=is_on))
        members = await cluster.outcome(leader.replicator.log.members())
        assert [one.node for one in members if one.is_drained] == [leader.name] * is_on


@pytest.mark.interpreted
async def test_a_store_that_stalls_gets_its_entries_later(three, monkeypatch):
    cluster, leader, (b, _) = three
    with monkeypatch.context() as patch:
        refuse_writes(patch, b, StoreStalledError("stalled"))
        for n in range(5):
            await cluster.outcome(leader.engine.queue("mail").enqueue(b"%d" % n))
        await cluster.pass_time(1)
        assert b.role() == "following"
        assert b.replicator.status().shards[0].lag > 1
    b.engine._state.shards[0].coalescer._retry_now()  # else a moment of the loop's own time later
    await cluster.until_equal()


@pytest.mark.interpreted
async def test_a_store_that_takes_nothing_has_the_log_read_once_a_second(three, clock, monkeypatch):
    cluster, leader, (b, c) = three
    cluster.network.splits.add(c.name)  # its reads are not to be counted
    await cluster.pass_time(1)

    async def entries(n: int) -> int:
        """So many, each with its hint; returns how many reads there were."""
        before = cluster.log.requests["read"]
        for _ in range(n):
            call = asyncio.ensure_future(leader.engine.queue("mail").enqueue(b"x"))
            await settle(25)
            assert call.done()
            await clock.advance(1.5 * FOLLOW_S, turns=25)  # the longest pause between two reads
        return cluster.log.requests["read"] - before

    assert await entries(50) >= 50
    with monkeypatch.context() as patch:
        refuse_writes(patch, b, StorageFullError("no space left"))
        await entries(5)
        assert await entries(66) <= 2
    b.engine._state.shards[0].coalescer._retry_now()  # else a moment of the loop's own time later
    await clock.advance(0.1, turns=25)
    assert b.replicator.status().shards[0].applied == cluster.tails()[0]
    cluster.heal()
    await cluster.until_equal()


async def test_a_log_that_went_back_is_not_followed(three):
    cluster, leader, _ = three
    snapshot = cluster.log.snapshot()
    await cluster.outcome(leader.engine.queue("mail").enqueue(b"x"))
    cluster.log.roll_back(snapshot)
    nodes = cluster.nodes.values()
    await cluster.until(lambda: all(node.role() == "stopped" for node in nodes))
    for node in nodes:
        assert isinstance(node.replicator._at.stopped, LogRolledBackError)
        assert "older copy" in node.replicator.problems()[0]
        error = await cluster.outcome(node.engine.queue("mail").enqueue(b"y"))
        assert isinstance(error, NotLeaderError)
        assert "LogRolledBackError: " in str(error)
        assert "older copy" in str(error)
        assert "older copy" in (await node.engine.health()).reasons[0]


async def test_a_follower_behind_the_floor_says_so(three):
    cluster, leader, (b, _) = three
    cluster.network.splits.add(b.name)
    for n in range(3):
        await cluster.outcome(leader.engine.queue("mail").enqueue(b"%d" % n))
    cluster.log.service.truncate(0, cluster.tails()[0])
    cluster.heal()
    await cluster.until(lambda: b.replicator.status().shards[0].behind_floor)
    assert "behind the floor" in b.replicator.problems()[0]
    assert "behind the floor" in (await b.engine.health()).reasons[0]
    assert cluster.leader() is leader


async def test_the_log_is_truncated_behind_what_two_nodes_have(clock):
    async with LogCluster(clock) as cluster:
        nodes = await cluster.open_all(*NAMES, durability="fsync")
        leader = cluster.leader()
        await truncated(cluster, leader, *(node for node in nodes if node is not leader))


async def truncated(cluster, leader, b, c) -> None:
    for n in range(20):
        await cluster.outcome(leader.engine.queue("mail").enqueue(b"%d" % n))
    await cluster.until_equal()
    await cluster.pass_time(2)
    tail = cluster.tails()[0]

    async def publish(node, index: int) -> None:
        await cluster.outcome(
            node.replicator.publish(Checkpoint(node.name, "file:///x", "", (index,), 1))
        )

    await publish(leader, tail)
    await cluster.pass_time(12)
    assert cluster.log.service.state(0).floor == 1
    await publish(b, tail - 5)
    await cluster.pass_time(12)
    assert cluster.log.service.state(0).floor == tail - 4
    cluster.log.expire(c.name)
    cluster.network.splits.update((b.name, c.name))
    await publish(leader, tail)
    await cluster.pass_time(12)
    assert cluster.log.service.state(0).floor == tail - 4  # one live copy is not enough


async def test_who_has_the_log_truncated_is_told_where_it_begins_now(clock):
    async with LogCluster(clock) as cluster:
        (node,) = await cluster.open_all("a", options=LogOptions(copies_min=1), durability="fsync")
        for n in range(5):
            await cluster.outcome(node.engine.queue("mail").enqueue(b"%d" % n))
        await cluster.pass_time(2)
        (tail,) = cluster.tails()
        mark = Checkpoint("a", "file:///x", "", (tail,), 1)
        await cluster.outcome(node.replicator.publish(mark))
        truncating = asyncio.ensure_future(node.replicator.truncate())
        await settle(200)  # and no time for a look at the log
        truncating.result()
        assert cluster.log.service.state(0).floor == tail + 1
        assert node.replicator.status().shards[0].floor == tail + 1


# -- stores on disk ----------------------------------------------------------------------


async def opened(cluster: LogCluster, path, name: str, **given) -> lodeq.Engine:
    """A store on disk as a node; the caller closes it."""
    replicator = cluster.replicator(name, **given)
    handle = lodeq.open(path, clock=cluster.clock, rng=SeededRng(5), replicator=replicator)
    return await handle, replicator  # threads take real time: no other may pass


@pytest.fixture
async def with_checkpoint(clock, tmp_path):
    """(cluster, path): a log of which the beginning is gone, and a checkpoint of node a."""
    async with LogCluster(clock) as cluster:
        cluster_checkpoint = str(tmp_path / "checkpoint")
        engine, replicator = await opened(cluster, tmp_path / "a", "a")
        replicator.engine = engine
        await cluster.until(lambda: replicator.holds_session(0) and replicator.is_leader(0))
        await cluster.pass_time(1)
        for n in range(10):
            await cluster.outcome(engine.queue("mail").enqueue(b"%d" % n))
        await engine.checkpoint(cluster_checkpoint)
        index = replicator.status().shards[0].applied
        await cluster.outcome(engine.queue("mail").enqueue(b"after"))
        mark = Checkpoint(
            "a", f"file://{cluster_checkpoint}", manifest_digest(cluster_checkpoint), (index,), 10
        )
        await cluster.outcome(replicator.publish(mark))
        cluster.log.service.truncate(0, index + 1)
        try:
            yield cluster, tmp_path, mark, replicator
        finally:
            cluster.heal()
            await engine.close()


ALL = sorted([*(b"%d" % n for n in range(10)), b"after"])


async def caught_up(cluster: LogCluster, engine, replicator, expected=ALL) -> None:
    await cluster.until(lambda: replicator.status().shards[0].applied == cluster.tails()[0])
    listed = await engine.queue("mail").list("ready")
    assert sorted(task.payload for task in listed) == expected


@pytest.mark.slow
async def test_a_new_node_starts_from_a_checkpoint_and_tails(with_checkpoint):
    cluster, tmp_path, _, _ = with_checkpoint
    engine, replicator = await opened(cluster, tmp_path / "b", "b")
    await caught_up(cluster, engine, replicator)
    await engine.close()
    note = read_note(str(tmp_path / "b"))
    assert (note.node, note.shards, note.revision > 0) == ("b", 1, True)
    engine, replicator = await opened(cluster, tmp_path / "b", "b")
    await caught_up(cluster, engine, replicator)
    await engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["manifest", "file", "missing"])
async def test_a_damaged_checkpoint_gives_way_to_the_next(with_checkpoint, damage):
    cluster, tmp_path, mark, _ = with_checkpoint
    bad = tmp_path / "bad"
    shutil.copytree(tmp_path / "checkpoint", bad)
    victim = bad / "checkpoint.json" if damage == "manifest" else next(bad.glob("shard0/*.sst"))
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 2] ^= 1
    victim.write_bytes(raw)
    if damage == "missing":
        victim.unlink()
    client = await joined(cluster, Checkpoint("b", f"file://{bad}", mark.digest, mark.applied, 20))
    engine, replicator = await opened(cluster, tmp_path / "c", "c")
    await caught_up(cluster, engine, replicator)
    await engine.close()
    await cluster.outcome(client.close())


async def joined(cluster, checkpoint):
    """Join as a node that has a checkpoint and nothing else; its client of the log."""
    client = cluster.log.client(checkpoint.node)
    await cluster.outcome(client.join(Member(checkpoint.node)))
    await cluster.outcome(client.publish(checkpoint))
    return client


class Refusing(LocalCheckpoints):
    """A source that has no checkpoints of some nodes."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = errors
        self.asked: list[str] = []

    async def fetch(self, checkpoint, work, spawner):
        self.asked.append(checkpoint.node)
        if checkpoint.node in self.errors:
            raise self.errors[checkpoint.node]
        return await super().fetch(checkpoint, work, spawner)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        lodeq.UnreachableError("nobody answers"),
        lodeq.AccessDeniedError("another token"),
        lodeq.FormatTooNewError("of a newer release"),
        lodeq.StorageError("its disk"),
        ConnectionError("gone"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_checkpoint_that_cannot_be_had_gives_way_to_the_next(with_checkpoint, error):
    cluster, tmp_path, mark, _ = with_checkpoint
    client = await joined(cluster, replace(mark, node="b", created_ms=20))
    source = Refusing(b=error)
    engine, replicator = await opened(cluster, tmp_path / "c", "c", source=source)
    await caught_up(cluster, engine, replicator)
    await engine.close()
    await cluster.outcome(client.close())
    assert source.asked == ["b", "a"]


@pytest.mark.slow
async def test_the_checkpoint_of_a_node_that_is_gone_is_the_last_to_be_tried(with_checkpoint):
    cluster, tmp_path, mark, _ = with_checkpoint
    for node in ("gone", "b"):
        client = await joined(cluster, replace(mark, node=node, created_ms=20))
        if node == "gone":
            await cluster.outcome(client.close())
    source = Refusing(b=lodeq.StorageError("no"), a=lodeq.StorageError("no"))
    engine, replicator = await opened(cluster, tmp_path / "c", "c", source=source)
    await caught_up(cluster, engine, replicator)
    await engine.close()
    await cluster.outcome(client.close())
    assert source.asked == ["b", "a", "gone"]


@pytest.mark.slow
async def test_a_store_that_fell_behind_is_replaced_at_the_next_open(with_checkpoint):
    cluster, tmp_path, mark, leader = with_checkpoint
    engine, replicator = await opened(cluster, tmp_path / "b", "b")
    await caught_up(cluster, engine, replicator)
    await engine.close()
    left = tmp_path / "b.restored"
    left.mkdir()
    (left / "half").write_bytes(b"of an interrupted run")
    await cluster.outcome(leader.engine.queue("mail").enqueue(b"more"))
    tail = cluster.tails()[0]
    cluster.log.service.truncate(0, tail + 1)
    lying = Checkpoint("a", mark.url, mark.digest, (tail,), 30)
    await cluster.outcome(leader.publish(lying))
    with pytest.raises(OpenError, match=rf"\({tail},\) was published"):
        await opened(cluster, tmp_path / "b", "b")
    assert (tmp_path / "b" / "shard0").is_dir()
    assert not left.exists()
    folder = str(tmp_path / "second")
    await leader.engine.checkpoint(folder)
    good = Checkpoint("a", f"file://{folder}", manifest_digest(folder), (tail,), 40)
    await cluster.outcome(leader.publish(good))
    engine, replicator = await opened(cluster, tmp_path / "b", "b")
    await caught_up(cluster, engine, replicator, sorted([*ALL, b"more"]))
    await engine.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "checkpoint", "second"]


@pytest.mark.slow
async def test_without_a_usable_checkpoint_nothing_is_opened(with_checkpoint):
    cluster, tmp_path, mark, _ = with_checkpoint
    cluster.log.service.truncate(0, mark.applied[0] + 2)
    with pytest.raises(OpenError, match="does not reach the log"):
        await opened(cluster, tmp_path / "b", "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
async def test_a_store_of_its_own_is_no_replica(with_checkpoint):
    cluster, tmp_path, _, _ = with_checkpoint
    async with lodeq.open(tmp_path / "plain", clock=cluster.clock) as engine:
        await engine.queue("mail").enqueue(b"mine")
    with pytest.raises(StorePathError, match="store of its own"):
        await opened(cluster, tmp_path / "plain", "b")
    async with lodeq.open(tmp_path / "plain", clock=cluster.clock) as engine:
        assert await drain(engine.queue("mail")) == [b"mine"]


@pytest.mark.slow
async def test_a_log_that_was_set_up_anew_is_refused_at_open(with_checkpoint):
    cluster, tmp_path, _, _ = with_checkpoint
    engine, _ = await opened(cluster, tmp_path / "b", "b")
    await engine.close()
    genesis = cluster.log.service.genesis
    cluster.log.service.genesis = Genesis("lodeq", 1, b"other" + bytes(11))
    with pytest.raises(LogRolledBackError, match="set up anew"):
        await opened(cluster, tmp_path / "b", "b")
    cluster.log.service.genesis = genesis
    note = read_note(str(tmp_path / "b"))
    revision, cluster.log.service.revision = cluster.log.service.revision, note.revision - 1
    with pytest.raises(LogRolledBackError, match="older copy"):
        await opened(cluster, tmp_path / "b", "b")
    cluster.log.service.revision = revision
    cluster.log.service.id += 1
    with pytest.raises(LogRolledBackError, match="followed 1: it was set up anew"):
        await opened(cluster, tmp_path / "b", "b")
    cluster.log.service.id -= 1


async def test_another_number_of_shards_is_refused(clock):
    async with LogCluster(clock) as cluster:
        await cluster.open("a")
        cluster.shards = 2
        with pytest.raises(ShardCountError, match="has 1 shards"):
            await cluster.open("b")
