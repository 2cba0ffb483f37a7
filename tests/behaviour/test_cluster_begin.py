"""A cluster that is begun with a store: nothing is lost, and a kill on the way is harmless."""

import os
from pathlib import Path

import pytest
from support_disk_nodes import DiskNode, patiently
from support_log_cluster import LogCluster
from support_placement import PlacedCluster

import lodeq
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.engine.runtime.ids import SeededRng
from lodeq.errors import (
    LockedError,
    LogRolledBackError,
    OpenError,
    ReplicaStoreError,
    StorePathError,
    UsageError,
)
from lodeq.replication import begin
from lodeq.replication.assemble import assemble
from lodeq.replication.begin import begin_cluster
from lodeq.replication.groups import LogGroups
from lodeq.replication.memory.log import MemoryLog
from lodeq.replication.options import LogOptions
from lodeq.replication.port import Genesis
from lodeq.replication.replica_note import read_note
from lodeq.replication.replicator import LogReplicator
from lodeq.repository.maintenance import attach as attach_module
from lodeq.repository.maintenance.detach import detach

pytestmark = pytest.mark.anyio
SHARDS = 4
SPREAD = range(1, SHARDS)
LARGE = 40_000  # payloads that lie outside


class KilledError(Exception):
    """The process is gone."""


def killed(*_: object, **__: object) -> None:
    raise KilledError


async def begun(cluster, root, node="a", log=None, **given):
    given.setdefault("copies", getattr(cluster, "copies", None))
    given.setdefault("rng", SeededRng(7))
    return await begin_cluster(
        cluster.log.client(f"{node} begins") if log is None else log,
        root,
        node=node,
        cluster="lodeq",
        spawner=current_spawner(),
        **given,
    )


async def filled(cluster, root, **given):
    """Make a store with what a store may have; the payloads that are to come."""
    async with lodeq.open(
        root, shards=SHARDS, clock=cluster.clock, rng=SeededRng(3), reaper=False, **given
    ) as engine:
        mail = engine.queue("mail")
        await mail.enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(40)])
        for lease in await mail.claim(limit=10):
            await lease.complete(b"done")
        held = await mail.claim(limit=3, lease=30)
        assert len(held) == 3
        for n in range(4):
            await mail.enqueue(b"%d" % n * LARGE)
        await mail.enqueue(b"later", delay=3600)
        await mail.enqueue(b"once", dedup_key="k")
        (first, *_) = await mail.list("ready", limit=1)
        assert first.payload == b"13"
        await engine.queue("held").pause()
    ready = [b"%d" % n for n in range(10, 40)] + [b"%d" % n * LARGE for n in range(4)]
    return sorted([*ready, b"once"])


def four_shards(clock) -> LogCluster:
    cluster = LogCluster(clock)
    cluster.shards, cluster.options = SHARDS, LogOptions()
    return cluster


async def led(cluster) -> None:
    await patiently(cluster, lambda: all(map(cluster.leader, range(SHARDS))))


async def served(cluster, tmp_path, name, expected) -> None:
    """The store serves as a node, and all that is to come is there."""
    node = DiskNode(cluster, tmp_path, name)
    await node.open()
    try:
        await led(cluster)
        assert await drained(cluster) == expected
    finally:
        await closed(cluster, {name: node})


async def drained(cluster) -> list[bytes]:
    """All that can be had, from whoever has it, once leases of before are over."""
    found = []
    await cluster.pass_time(40)
    for _ in range(100):
        taken = []
        for node in cluster.nodes.values():
            leases = await cluster.outcome(node.engine.queue("mail").claim(limit=64))
            taken += leases if isinstance(leases, list) else []
        if not taken:
            return sorted(found)
        for lease in taken:
            found.append(lease.payload)
            assert await cluster.outcome(lease.complete(b"done")) is None
    raise AssertionError("it does not end")


async def closed(cluster, nodes) -> None:
    cluster.heal()
    for node in nodes.values():
        if node.name in cluster.nodes:
            await node.close()


async def test_every_node_starts_from_the_store_that_the_cluster_began_with(clock, tmp_path):
    async with four_shards(clock) as cluster:
        expected = await filled(cluster, tmp_path / "a")
        genesis = await begun(cluster, tmp_path / "a")
        assert (genesis.base, genesis.shards) == (1, SHARDS)
        assert [(one.last, one.floor) for one in cluster.log.service.states()] == [(1, 2)] * SHARDS
        nodes = {name: DiskNode(cluster, tmp_path, name) for name in "abc"}
        with pytest.raises(OpenError, match="no checkpoint can be used"):
            await nodes["b"].open()
        await nodes["a"].open()
        try:
            await led(cluster)
            assert cluster.nodes["a"].replicator.lacks_checkpoint(None)
            await nodes["a"].publish(str(tmp_path / "checkpoint"))
            for name in "bc":
                await nodes[name].open()
            mail = cluster.nodes["a"].engine.queue("mail")
            again = await cluster.outcome(mail.enqueue(b"twice", dedup_key="k"))
            assert again.duplicate
            await cluster.until_equal()
            cluster.network.splits.add("a")
            await cluster.until(
                lambda: all(
                    cluster.leader(one) not in (None, cluster.nodes["a"]) for one in range(SHARDS)
                )
            )
            cluster.heal()
            assert await drained(cluster) == expected
            await cluster.until_equal()
            for node in cluster.nodes.values():
                stats = await node.engine.queue("held").stats()
                assert stats.is_paused
        finally:
            await closed(cluster, nodes)
    for name in "abc":  # payloads that lay outside left with their tasks
        detach(tmp_path / name)
        async with lodeq.open(tmp_path / name, clock=clock) as engine:
            assert (await engine.verify()).findings == ()
            assert (await engine.stats()).delayed == 1


async def test_with_copies_shards_leave_the_first_node_once_others_have_them(clock, tmp_path):
    async with PlacedCluster(clock, shards=SHARDS) as cluster:
        expected = await filled(cluster, tmp_path / "a")
        await begun(cluster, tmp_path / "a")
        assert sorted(read_note(str(tmp_path / "a")).hosted) == [*range(SHARDS)]
        nodes = {name: DiskNode(cluster, tmp_path, name) for name in "abc"}
        await nodes["a"].open()
        try:
            await led(cluster)
            await patiently(cluster, lambda: len(cluster.placements()) == SHARDS)
            assert all("a" in one.copies for one in cluster.placements().values())
            await nodes["a"].publish(str(tmp_path / "checkpoint"))
            for name in "bc":
                await nodes[name].open()
            await patiently(cluster, lambda: all(len(cluster.copies_of(one)) > 1 for one in SPREAD))
            for name in "bc":  # until then others can start from the first alone
                await nodes[name].publish(str(tmp_path / f"checkpoint-{name}"))
            await patiently(cluster, cluster.is_at_rest)
            assert all(len(cluster.hosted(name)) < SHARDS for name in "abc")
            assert await drained(cluster) == expected
            await cluster.check_rows()
        finally:
            await closed(cluster, nodes)


@pytest.mark.parametrize("step", ["attach", "connect"])
async def test_a_run_that_was_killed_goes_on(clock, tmp_path, monkeypatch, step):
    async with four_shards(clock) as cluster:
        root = tmp_path / "a"
        expected = await filled(cluster, root)
        with monkeypatch.context() as patch:
            if step == "attach":
                patch.setattr(begin, "attach", killed)
            else:
                patch.setattr(type(cluster.log.client("a")), "connect", killed)
            with pytest.raises(KilledError):
                await begun(cluster, root)
        assert cluster.log.service.genesis is None
        first = await begun(cluster, root)
        assert await begun(cluster, root) == first
        await filled(cluster, tmp_path / "other")
        with pytest.raises(UsageError, match="there is a cluster 'lodeq' in this log already"):
            await begun(cluster, tmp_path / "other", "o")
        await served(cluster, tmp_path, "a", expected)


async def test_what_cannot_begin_a_cluster_stays_as_it_is(clock, tmp_path):
    async with four_shards(clock) as cluster:
        with pytest.raises(StorePathError, match="does not exist"):
            await begun(cluster, tmp_path / "none")
        assert not (tmp_path / "none").exists()
        root = tmp_path / "a"
        await filled(cluster, root)
        before = sorted(os.listdir(root))
        async with lodeq.open(root, clock=clock):
            with pytest.raises(OpenError):
                await begun(cluster, root)
        assert sorted(os.listdir(root)) == before
        assert cluster.log.service.genesis is None
        await begun(cluster, root)
        (root / "replica.json").unlink()
        with pytest.raises(UsageError, match="there is a cluster"):
            await begun(cluster, root)
        cluster.log.service.genesis = None
        with pytest.raises(ReplicaStoreError, match="is a replica"):
            await begun(cluster, root)
        with pytest.raises(ReplicaStoreError):
            await lodeq.open(root, clock=clock)
        detach(root)
        async with lodeq.open(root, clock=clock) as engine:
            assert (await engine.verify()).findings == ()


async def test_two_runs_at_once_begin_one_cluster(clock, tmp_path):
    """The second one comes between the first one's rows and its genesis."""
    async with four_shards(clock) as cluster:
        root = tmp_path / "a"
        expected = await filled(cluster, root)
        log = cluster.log.client("first")
        connect = log.connect

        async def meanwhile(genesis):
            await begun(cluster, root, rng=SeededRng(8))
            return await connect(genesis)

        log.connect = meanwhile
        found = await begun(cluster, root, log=log)
        assert read_note(str(root)).nonce == found.nonce
        await served(cluster, tmp_path, "a", expected)


async def test_a_run_that_was_killed_in_one_of_two_groups_goes_on(clock, tmp_path, monkeypatch):
    async with LogCluster(clock) as cluster:
        later = MemoryLog(current_spawner(), clock)

        def groups():
            return LogGroups([cluster.log.client("a"), later.client("a")])

        await filled(cluster, tmp_path / "a")
        log = groups()
        monkeypatch.setattr(log.groups[1], "connect", killed)
        with pytest.raises(KilledError):
            await begun(cluster, tmp_path / "a", log=log)
        node = LogReplicator(groups(), node="a", shards=SHARDS, clock=clock)
        with pytest.raises(LogRolledBackError, match="repeat it"):
            await node.prepare(str(tmp_path / "a"))
        genesis = await begun(cluster, tmp_path / "a", log=groups())
        assert (genesis.groups, genesis.base) == (2, 1)
        assert [one.service.genesis.group for one in (cluster.log, later)] == [0, 1]


async def test_a_node_that_is_started_too_early_begins_nothing(clock, tmp_path, monkeypatch):
    async with four_shards(clock) as cluster:
        root = tmp_path / "a"
        await filled(cluster, root)
        with monkeypatch.context() as patch:
            patch.setattr(type(cluster.log.client("a")), "connect", killed)
            with pytest.raises(KilledError):
                await begun(cluster, root)
        with pytest.raises(LogRolledBackError, match="repeat it"):
            await DiskNode(cluster, tmp_path, "a").open()
        assert cluster.log.service.genesis is None
        assert (await begun(cluster, root)).base == 1


@pytest.mark.parametrize("is_there", [True, False])
async def test_the_name_of_another_cluster_is_not_said_to_be_a_log_that_was_set_up_anew(
    clock, tmp_path, is_there
):
    """Its log is well: whoever believed that would make the copy a store of its own."""
    async with four_shards(clock) as cluster:
        await filled(cluster, tmp_path / "a")
        await begun(cluster, tmp_path / "a")
        note = read_note(str(tmp_path / "a"))
        log = MemoryLog(current_spawner(), clock).client("a")
        if is_there:
            await log.connect(Genesis("typo", SHARDS, b"n" * 16))
        layer = LogReplicator(log, node="a", cluster="typo", shards=SHARDS, clock=clock)
        with pytest.raises(UsageError, match="is a replica of the cluster 'lodeq', not of 'typo'"):
            await layer.prepare(str(tmp_path / "a"))
        assert (await log.look() is not None) is is_there
        assert read_note(str(tmp_path / "a")) == note


async def test_a_replica_that_has_had_its_log_begins_no_cluster_of_the_same_name(clock, tmp_path):
    """The name leads to another log by mistake, or its log was set up anew."""
    async with four_shards(clock) as cluster:
        await filled(cluster, tmp_path / "a")
        await begun(cluster, tmp_path / "a")
        node = DiskNode(cluster, tmp_path, "a")
        await node.open()
        await led(cluster)
        await closed(cluster, {"a": node})
    async with LogCluster(clock) as other:
        other.shards = SHARDS
        before = read_note(str(tmp_path / "a"))
        with pytest.raises(UsageError, match="another service was named, or it was set up anew"):
            await begun(other, tmp_path / "a")
        for name in ("", "n" * 65, "a b"):
            with pytest.raises(UsageError, match="is not valid"):
                await begun(other, tmp_path / "a", name)
        assert read_note(str(tmp_path / "a")) == before
        assert other.log.service.genesis is None


@pytest.mark.parametrize("step", range(2 * SHARDS + 2))
async def test_a_kill_between_two_writes_leaves_what_goes_on(clock, tmp_path, step, monkeypatch):
    left = step

    def counted(name):
        real = getattr(attach_module, name)

        def call(*given, **more):
            nonlocal left
            if left == 0:
                raise KilledError
            left -= 1
            return real(*given, **more)

        return call

    async with four_shards(clock) as cluster:
        root = tmp_path / "a"
        expected = await filled(cluster, root)
        with monkeypatch.context() as patch:
            for name in ("write_patiently", "flag_bodies", "sync_all"):
                patch.setattr(attach_module, name, counted(name))
            with pytest.raises(KilledError):
                await begun(cluster, root)
        if step:  # else it is a plain store still
            with pytest.raises(ReplicaStoreError):
                await lodeq.open(root, clock=clock)
        with pytest.raises(LogRolledBackError, match="repeat it"):
            await DiskNode(cluster, tmp_path, "a").open()
        await begun(cluster, root)
        await served(cluster, tmp_path, "a", expected)


# -- what is left of a cluster -------------------------------------------------------------


async def enqueued(cluster, name):
    payloads = [f"{name} {n} ".encode() * (LARGE // 4 if n == 3 else 1) for n in range(24)]
    for one in payloads:
        answer = await cluster.call(lambda engine, it=one: engine.queue("mail").enqueue(it))
        assert isinstance(answer, lodeq.Receipt), answer
    return payloads


async def scattered(cluster, tmp_path):
    """Three nodes, closed, of which one alone has missed what came last; the payloads."""
    nodes = {name: DiskNode(cluster, tmp_path, name) for name in "abc"}
    for node in nodes.values():
        await node.open()
    await patiently(cluster, cluster.is_at_rest)
    payloads = await enqueued(cluster, "first")
    await patiently(cluster, cluster.is_at_rest)
    cluster.network.splits.add("a")
    others = [cluster.nodes[name] for name in "bc"]
    await patiently(cluster, lambda: all(cluster.leader(one) in others for one in range(SHARDS)))
    payloads += await enqueued(cluster, "last")
    await patiently(cluster, lambda: cluster.is_read("bc"))
    await closed(cluster, nodes)
    return payloads


async def test_the_most_advanced_copy_of_each_shard_is_taken(clock, tmp_path):
    async with PlacedCluster(clock, shards=SHARDS) as cluster:
        cluster.options = LogOptions(away_s=1e9)
        payloads = await scattered(cluster, tmp_path)
        found = assemble(tmp_path / "new", [tmp_path / name for name in "abc"])
        assert [one.shard for one in found] == [*range(SHARDS)]
        assert [one.entry for one in found] == cluster.tails()
        assert any(index < one.entry for one in found for _, index in one.behind)
        assert len({one.folder for one in found}) > 1
    async with lodeq.open(tmp_path / "new", clock=clock) as engine:
        assert (await engine.verify()).findings == ()
        mail = engine.queue("mail")
        assert sorted(one.payload for one in await mail.claim(limit=100)) == sorted(payloads)
    async with PlacedCluster(clock, shards=SHARDS) as cluster:
        await begun(cluster, tmp_path / "new", "new")
        await served(cluster, tmp_path, "new", sorted(payloads))


async def test_checkpoints_of_nodes_make_a_whole(clock, tmp_path):
    async with PlacedCluster(clock, shards=SHARDS) as cluster:
        cluster.options = LogOptions(away_s=1e9)
        nodes = {name: DiskNode(cluster, tmp_path, name) for name in "abc"}
        for node in nodes.values():
            await node.open()
        await patiently(cluster, cluster.is_at_rest)
        payloads = await enqueued(cluster, "all")
        await patiently(cluster, cluster.is_at_rest)
        folders = [str(tmp_path / f"checkpoint-{name}") for name in nodes]
        for node, folder in zip(nodes.values(), folders, strict=True):
            await node.publish(folder)
        await enqueued(cluster, "late")  # in none of them
        assert sorted(os.listdir(tmp_path))[:3] == ["a", "b", "c"]
        assemble(tmp_path / "new", folders)  # while the cluster goes on
        await closed(cluster, nodes)
    async with lodeq.open(tmp_path / "new", clock=clock) as engine:
        assert (await engine.verify()).findings == ()
        found = await engine.queue("mail").claim(limit=100)
        assert sorted(one.payload for one in found) == sorted(payloads)


async def test_what_may_be_of_another_cluster_is_not_put_together(clock, tmp_path):
    """Entries of a cluster that was begun with what was left of another have the same numbers."""
    async with PlacedCluster(clock, shards=SHARDS) as cluster:
        cluster.options = LogOptions(away_s=1e9)
        await scattered(cluster, tmp_path)
        assemble(tmp_path / "next", [tmp_path / name for name in "abc"])
    async with PlacedCluster(clock, shards=SHARDS) as cluster:
        await begun(cluster, tmp_path / "next", "next")
        with pytest.raises(UsageError, match="of different clusters"):
            assemble(tmp_path / "new", [tmp_path / "a", tmp_path / "next"])
        (tmp_path / "a" / "replica.json").unlink()
        with pytest.raises(UsageError, match="nothing says of which cluster it is"):
            assemble(tmp_path / "new", [tmp_path / "a", tmp_path / "next"])
        with pytest.raises(UsageError, match=r"has a copy of shard \d"):
            assemble(tmp_path / "new", [tmp_path / "a"])
        assert not (tmp_path / "new").exists()
        (tmp_path / "new.assembling").symlink_to(tmp_path / "a")  # nothing is written behind it
        with pytest.raises(lodeq.StorePathError, match="remove it first"):
            assemble(tmp_path / "new", [tmp_path / "a"])


async def test_a_damaged_copy_gives_way_to_the_next(clock, tmp_path):
    async with PlacedCluster(clock, shards=SHARDS) as cluster:
        cluster.options = LogOptions(away_s=1e9)
        payloads = await scattered(cluster, tmp_path)
        found = assemble(tmp_path / "whole", [tmp_path / name for name in "abc"])
        shard = next(one for one in found if len(one.behind) and one.behind[0][1] == one.entry)
        for file in (Path(shard.folder) / f"shard{shard.shard}").glob("MANIFEST-*"):
            file.write_bytes(b"damage")
        again = assemble(tmp_path / "new", [tmp_path / name for name in "abc"])[shard.shard]
        assert (again.folder, again.entry) == shard.behind[0]
        assert [folder for folder, _ in again.damaged] == [shard.folder]
    async with lodeq.open(tmp_path / "new", clock=clock) as engine:
        found = await engine.queue("mail").claim(limit=100)
        assert sorted(one.payload for one in found) == sorted(payloads)


async def test_copies_that_do_not_make_a_whole_are_refused(clock, tmp_path):
    async with PlacedCluster(clock, shards=SHARDS) as cluster:
        cluster.options = LogOptions(away_s=1e9)
        await scattered(cluster, tmp_path)
        hosted = {one: read_note(str(tmp_path / one)).hosted for one in "abc"}
        with pytest.raises(UsageError, match="name the folders"):
            assemble(tmp_path / "new", [])
        with pytest.raises(UsageError, match=r"a copy of shard \d that can be read: name those"):
            assemble(tmp_path / "new", [tmp_path / "a"])
        assert len(hosted["a"]) < SHARDS
        with pytest.raises(StorePathError, match="does not exist"):
            assemble(tmp_path / "new", [tmp_path / "a", tmp_path / "d"])
        async with lodeq.open(tmp_path / "plain", clock=clock):
            pass
        with pytest.raises(StorePathError, match="it is no replica"):
            assemble(tmp_path / "new", [tmp_path / "a", tmp_path / "plain"])
        with pytest.raises(StorePathError, match="not an empty folder"):
            assemble(tmp_path / "plain", [tmp_path / "a"])
        node = DiskNode(cluster, tmp_path, "a")
        await node.open()
        try:
            with pytest.raises(LockedError):
                assemble(tmp_path / "new", [tmp_path / name for name in "abc"])
        finally:
            await closed(cluster, {"a": node})
        assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "plain"]
    async with PlacedCluster(clock, shards=SHARDS) as other:
        strange = DiskNode(other, tmp_path, "strange")
        await strange.open()
        await closed(other, {"strange": strange})
        with pytest.raises(UsageError, match="of different clusters"):
            assemble(tmp_path / "new", [tmp_path / "a", tmp_path / "strange"])
        assert not (tmp_path / "new").exists()
