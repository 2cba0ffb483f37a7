"""Engines that have some of the shards: nothing of the others is taken for data, none is missed."""

import asyncio
import os
import shutil
from collections import Counter
from contextlib import AsyncExitStack
from itertools import islice

import pytest
from support_behaviour import drain, payloads, settle, sound, until
from support_hosting import Half, HostingCluster

import lodeq
from lodeq.engine.files.lockfile import LockFile
from lodeq.engine.files.paths import lock_path
from lodeq.engine.files.shard_files import remove_shard
from lodeq.engine.offline.settings_rows import copy_settings
from lodeq.engine.records.keyspace import queue_settings_key
from lodeq.engine.records.queues.queue_settings import (
    STARTS,
    decode_queue_settings,
    encode_queue_settings,
)
from lodeq.engine.recovery.checkpoint import read_manifest
from lodeq.engine.recovery.watermark import Watermark
from lodeq.engine.runtime.ids import shard_of, slot_of
from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.values import Setting
from lodeq.errors import (
    ClosedError,
    CommitUnknownError,
    LeaseLostError,
    LockedError,
    NotLeaderError,
    RecoveryRefusedError,
    ReplicaStoreError,
    StorePathError,
    StoreStalledError,
    UsageError,
)
from lodeq.lifecycle import Event, Reader, open_tailer
from lodeq.repository.api.read_only import open_read_only
from lodeq.repository.api.view import view_of
from lodeq.repository.bulk.purge import purge_parts
from lodeq.repository.model.reports import PurgeReport
from lodeq.repository.tasks.operators import lease_search

pytestmark = pytest.mark.anyio
SHARDS = 4


@pytest.fixture
async def halves(clock):
    """(cluster, a, b): a has and leads the shards 0 and 1, b 2 and 3."""
    cluster = HostingCluster()
    options = {"clock": clock, "shards": SHARDS}
    async with (
        cluster.open_some("a", {0, 1}, **options) as a,
        cluster.open_some("b", {2, 3}, **options) as b,
    ):
        for shard in range(SHARDS):
            await cluster.elect("ab"[shard // 2], shard)
        yield cluster, a, b


def keys_of(shard, count=3):
    """Dedup keys of the queue ``mail`` whose tasks go to a shard."""
    keys = (f"k{n}" for n in range(10_000))
    mine = (key for key in keys if slot_of(b"mail\0\0" + key.encode()) * SHARDS >> 12 == shard)
    return list(islice(mine, count))


# -- halves ----------------------------------------------------------------------------


async def test_each_engine_works_with_the_shards_that_it_has(halves, clock):
    _, a, b = halves
    for engine, own in ((a, {0, 1}), (b, {2, 3})):
        mail = engine.queue("mail")
        receipts = []
        for n in range(40):  # turns: every shard that is here becomes the home
            receipts.append(await mail.enqueue(b"%d" % n))
            await settle(2)
        receipts += await mail.enqueue_many([lodeq.NewTask(b"x") for _ in range(10)])
        assert {shard_of(one.id, SHARDS) for one in receipts} == own
        await mail.enqueue(b"later", delay=30)
        leases = await mail.claim(limit=64, lease=5)
        assert len(leases) == 50
        await leases[0].complete(keep=True)
        stats = await engine.stats()
        assert (stats.leased, stats.delayed, stats.results) == (49, 1, 1)
        assert [one.shard for one in stats.shards] == sorted(own)
        found = view_of(engine).cluster()
        assert (found.shards, set(found.led), set(found.hosted)) == (SHARDS, own, own)
    await clock.advance(6)  # leases expire: the reaper passes stubs over
    for engine in (a, b):
        stats = await engine.stats()
        assert (stats.ready, stats.leased) == (49, 0)
        await engine.fsync()
        await sound(engine)
        assert (await engine.health()).ok
    await clock.advance(30)
    for engine in (a, b):
        assert len(await engine.queue("mail").list("ready", limit=100)) == 50
        assert len(await drain(engine.queue("mail"))) == 50


async def test_calls_about_everything_are_about_the_shards_that_are_here(halves):
    _, a, b = halves
    for engine in (a, b):
        for tenant in ("x", "y"):
            queue = engine.queue("mail", tenant=tenant, max_attempts=1)
            await queue.enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(6)])
            done, dead = await queue.claim(limit=2)
            await done.complete({"n": 1})
            await dead.bury("no")
    for engine in (a, b):
        everything = lodeq.TaskFilter(queue="mail")
        assert (await engine.count(everything)).count == 12
        assert len([one async for one in engine.find_all(everything)]) == 12
        assert len((await engine.history("mail")).results) == 4
        assert len(await engine.queue("mail", tenant="x").dead_letters()) == 1
        stats = (await engine.queues())["mail", "x"]
        assert (stats.ready, stats.dead, stats.results) == (4, 1, 2)
        assert sum(1 for _ in view_of(engine).exported(b"mail", b"x", dead=True)) == 5
        report = await engine.act("redrive", lodeq.TaskFilter(queue="mail", tenant="x"))
        assert (report.done, report.cursor) == (1, None)
        assert await engine.queue("mail", tenant="y").redrive() == 1
        assert await engine.queue("mail", tenant="x").purge() == 5
        assert len(await drain(engine.queue("mail", tenant="y"))) == 5
        assert (await engine.workflows()).workflows == ()
        await sound(engine)


async def test_whoever_needs_a_shard_elsewhere_is_led_there(halves):
    _, a, b = halves
    there = await b.queue("mail").enqueue(b"1")
    (lease,) = await b.queue("mail").claim()
    here = a.queue("mail")
    calls = [
        a.get(there.id),
        a.result(there.id),
        a.result(there.id, wait=1),
        a.cancel(there.id),
        here.enqueue(b"2", dedup_key=keys_of(3)[0]),
        here.enqueue_many([lodeq.NewTask(b"3", dedup_key=key) for key in keys_of(2)]),
    ]
    for call in calls:
        with pytest.raises(NotLeaderError) as caught:
            await call
        assert caught.value.leader == "b"
    await lease.complete()
    assert (await a.stats()).enqueued_total == 0


async def test_one_engine_without_any_shard_says_so(clock):
    cluster = HostingCluster()
    async with (
        cluster.open_some("a", {0, 1}, clock=clock, shards=2) as a,
        cluster.open_some("b", (), clock=clock, shards=2) as b,
    ):
        await cluster.elect("a", 0)
        await cluster.elect("a", 1)
        assert b.shards == 2
        for call in (b.queue("mail").enqueue(b"1"), b.queue("mail").claim(wait=5)):
            with pytest.raises(NotLeaderError) as caught:
                await call
            assert caught.value.leader == "a"
        assert (await b.stats()).shards == ()
        assert (await b.verify()).ok
        assert await b.queue("mail").list("ready") == []
        await sound(a)


async def test_pauses_reach_whoever_has_shard_0(clock):
    cluster = HostingCluster()
    options = {"clock": clock, "shards": SHARDS}
    async with (
        cluster.open_some("a", {0, 1}, **options) as a,
        cluster.open_some("b", {0, 2, 3}, **options) as b,
    ):
        for shard in range(SHARDS):
            await cluster.elect("ab"[shard // 2], shard)
        await b.queue("mail").enqueue(b"1")
        await a.queue("mail").pause()
        assert await b.queue("mail").claim() == []
        await a.queue("mail").resume()
        assert payloads(await b.queue("mail").claim()) == [b"1"]


async def test_a_replicator_is_asked_and_nobody_beside_it(tmp_path):
    node = HostingCluster().hosting("a", {0})
    with pytest.raises(UsageError, match="either hosting or replicator"):
        lodeq.open(tmp_path / "s", replicator=node, hosting=node)
    with pytest.raises(UsageError, match=r"lodeq\.Hosting"):
        lodeq.open(tmp_path / "s", hosting=object())


# -- moving ----------------------------------------------------------------------------


async def test_a_shard_moves_while_tasks_come_and_go(halves, clock):
    cluster, a, b = halves
    wanted, done = [], Counter()
    is_over = False

    async def produce(engine, name):
        for n in range(150):
            payload = f"{name}{n}".encode()
            wanted.append(payload)
            while True:
                try:
                    await engine.queue("mail").enqueue(payload)
                    break
                except NotLeaderError:
                    await settle(3)

    async def consume(engine):
        while not is_over:
            try:
                leases = await engine.queue("mail").claim(limit=3)
            except NotLeaderError:
                leases = []
            for lease in leases:
                try:
                    await lease.complete(keep=False)
                    done[lease.payload] += 1
                except (NotLeaderError, LeaseLostError):
                    pass
            await settle(2)

    async def move(shard, source, target):
        await cluster.nodes[target].host(shard)
        await cluster.elect(target, shard)
        await cluster.nodes[source].unhost(shard)

    consumers = [asyncio.create_task(consume(engine)) for engine in (a, b)]
    producers = [asyncio.create_task(produce(*one)) for one in ((a, "a"), (b, "b"))]
    await settle(60)
    await move(1, "a", "b")
    await settle(60)
    await move(1, "b", "a")
    await move(3, "b", "a")
    await asyncio.gather(*producers)
    await until(lambda: sum(done.values()) >= len(wanted))
    is_over = True
    await asyncio.gather(*consumers)
    assert done == Counter(wanted)
    assert set(view_of(a).cluster().led) == {0, 1, 3}
    for engine, own in ((a, {0, 1, 3}), (b, {2})):
        await sound(engine)
        assert {one.shard for one in (await engine.stats()).shards} == own


async def test_a_hosted_shard_has_what_its_log_has(halves, clock):
    cluster, a, b = halves
    mail = a.queue("mail", max_attempts=1)
    for n, key in enumerate(keys_of(1, 6)):
        await mail.enqueue(b"%d" % n, dedup_key=key)
    first, second, _ = await mail.claim(limit=3)
    await first.complete({"ok": True})
    await second.bury("never")
    await cluster.nodes["b"].host(1)
    await settle()
    stats = await b.stats()
    assert (stats.ready, stats.leased, stats.dead) == (3, 1, 1)
    assert stats.results == (await a.stats()).results
    assert (await b.result(first.task_id)).value == {"ok": True}
    stores = [dict(engine._state.shards[1].store.scan(b"", b"\xff", 1 << 20)) for engine in (a, b)]
    for rows in stores:
        del rows[b"m/stamp"]
    assert stores[0] == stores[1]
    await cluster.nodes["b"].host(1)  # a second time changes nothing
    await cluster.nodes["b"].unhost(1)
    await cluster.nodes["b"].unhost(1)
    stats = await b.stats()
    assert (stats.ready, stats.leased, stats.dead, stats.results) == (0, 0, 0, 0)
    with pytest.raises(NotLeaderError):
        await b.result(first.task_id)
    for shard in (-1, SHARDS, True, "0"):
        with pytest.raises(UsageError):
            await cluster.nodes["b"].replica.host(shard)


async def test_a_replicator_that_is_no_hosting_hosts_nothing_more(clock):
    cluster = HostingCluster()
    async with cluster.open("a", clock=clock):
        for call in (cluster.nodes["a"].replica.host, cluster.nodes["a"].replica.unhost):
            with pytest.raises(UsageError, match="no Hosting"):
                await call(0)


async def test_everybody_who_waits_for_a_shard_that_goes_is_answered(clock):
    cluster = HostingCluster()
    async with (
        cluster.open_some("a", {0}, clock=clock, submit_queue_max=2) as a,
        cluster.open_some("b", {0}, clock=clock),
    ):
        await cluster.elect("a")
        mail = a.queue("mail")
        waited = (await mail.enqueue(b"1")).id
        (lease,) = await mail.claim()
        cluster.is_held = True
        waiting = [
            asyncio.create_task(call)
            for call in (
                mail.enqueue(b"2"),
                mail.enqueue(b"3"),
                mail.enqueue(b"4"),  # in line
                a.queue("audit").claim(wait=60),
                a.result(waited, wait=60),
                a.fsync(),
            )
        ]
        await settle()
        leaving = asyncio.create_task(cluster.nodes["a"].unhost(0))
        await settle()
        cluster.release()
        await leaving
        *outcomes, synced = await asyncio.gather(*waiting, return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, NotLeaderError | CommitUnknownError), outcome
        assert synced is None or isinstance(synced, NotLeaderError | CommitUnknownError)
        for call in (lease.complete(), mail.enqueue(b"5")):
            with pytest.raises(NotLeaderError):
                await call
        assert not a._state.leases


async def test_a_shard_that_fails_or_stalls_can_be_let_go_and_come_back(halves):
    cluster, a, _ = halves
    node, mail = cluster.nodes["a"], a.queue("mail")
    key, stalled = keys_of(1, 2)
    await mail.enqueue(b"1", dedup_key=key)
    a._state.shards[1].coalescer.fail(OSError("the disk failed"))
    assert not (await a.health()).ok
    await node.unhost(1)
    assert (await a.health()).ok
    await node.host(1)
    await cluster.elect("a", 1)
    assert (await mail.enqueue(b"1", dedup_key=key)).duplicate
    store = a._state.shards[1].store

    class Stalled(type(store)):
        __slots__ = ()

        def write(self, ops):
            raise StoreStalledError("for now")

    store.__class__ = Stalled
    waiting = asyncio.create_task(mail.enqueue(b"2", dedup_key=stalled))
    await settle()
    await node.unhost(1)
    with pytest.raises(CommitUnknownError):
        await waiting
    await node.host(1)  # the log has it
    await cluster.elect("a", 1)
    assert (await mail.enqueue(b"2", dedup_key=stalled)).duplicate
    await sound(a)


def drain_fails_once(shard, monkeypatch):
    drain = shard.coalescer.drain

    async def fail():
        monkeypatch.setattr(shard.coalescer, "drain", drain)
        raise OSError("the disk failed")

    monkeypatch.setattr(shard.coalescer, "drain", fail)


async def test_a_shard_that_could_not_be_let_go_is_closed_by_the_next_call(halves, monkeypatch):
    """That one met the stub and returned, and the folder of an open store was removed."""
    cluster, a, _ = halves
    shard = a._state.shards[1]
    drain_fails_once(shard, monkeypatch)
    with pytest.raises(OSError, match="the disk failed"):
        await cluster.nodes["a"].unhost(1)
    await cluster.nodes["a"].unhost(1)
    with pytest.raises(NotLeaderError, match="shard 1"):
        shard.store.get(b"k")


async def test_a_shard_that_could_not_be_let_go_is_closed_before_it_comes_again(
    halves, monkeypatch
):
    cluster, a, _ = halves
    shard = a._state.shards[1]
    drain_fails_once(shard, monkeypatch)
    with pytest.raises(OSError, match="the disk failed"):
        await cluster.nodes["a"].unhost(1)
    await cluster.nodes["a"].host(1)
    assert [one.index for one in a._runtime.opened.shards] == [0, 1]


async def test_a_walk_that_began_before_ends_with_an_answer(halves, clock):
    cluster, a, _ = halves
    mail = a.queue("mail")
    await mail.enqueue_many([lodeq.NewTask(b"x" * 100, dedup_key=key) for key in keys_of(1, 300)])
    shard = a._state.shards[1]
    view = shard.store.snapshot()
    await cluster.nodes["a"].unhost(1)
    for read in (
        lambda: view.get(b"k"),
        lambda: shard.store.get(b"k"),
        lambda: shard.coalescer.begin(),
    ):
        with pytest.raises(NotLeaderError, match="shard 1"):
            read()
    assert (await a.verify()).ok


async def test_a_search_goes_on_when_a_shard_has_gone(halves, clock, monkeypatch):
    cluster, a, b = halves
    monkeypatch.setattr(lease_search, "_PAGE", 2)
    await cluster.nodes["a"].host(2)
    for engine, shards in ((a, (0, 1)), (b, (2, 3))):
        keys = [key for shard in shards for key in keys_of(shard)]
        await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x", dedup_key=k) for k in keys])
        await engine.queue("mail").claim(limit=9, lease=60)
        await clock.advance(1)
    leased = lodeq.TaskFilter(state="leased")
    page = await a.find(leased, limit=2)
    assert len(page.tasks) == 2
    assert a._state.leased_runs
    await cluster.nodes["a"].unhost(2)
    rest = await a.find(leased, limit=100, cursor=page.cursor)
    assert len(rest.tasks) == 4
    assert rest.cursor is None


async def test_what_was_noted_of_a_shard_goes_with_it(halves):
    cluster, a, _ = halves
    reaper = a._runtime.reaper
    trim = reaper._history
    for index in (0, 1):
        trim._counted[index] = trim._again_ms[index] = reaper._pinned_until[index] = 1
        trim._positions[index, b"mail"] = b"w/"
    await cluster.nodes["a"].unhost(1)
    for noted in (trim._counted, trim._again_ms, reaper._pinned_until):
        assert list(noted) == [0]
    assert list(trim._positions) == [(0, b"mail")]


# -- folders ---------------------------------------------------------------------------


async def opened(stack, cluster, root, name, hosted, **options):
    return await stack.enter_async_context(
        lodeq.open(root / name, replicator=cluster.hosting(name, hosted), **options)
    )


def names(path):
    return {name for name in os.listdir(path) if name.startswith(("shard", "watermark"))}


async def test_a_copy_of_another_replicas_shard_becomes_one_of_this_store(tmp_path, clock):
    cluster = HostingCluster()
    async with AsyncExitStack() as stack:
        options = {"clock": clock, "shards": 2}
        a = await opened(stack, cluster, tmp_path, "a", {0, 1}, **options)
        b = await opened(stack, cluster, tmp_path, "b", {0}, **options)
        assert names(tmp_path / "b") == {"shard0", "watermark0"}
        await cluster.elect("a", 0)
        await cluster.elect("a", 1)
        await a.queue("mail").enqueue_many([lodeq.NewTask(b"x") for _ in range(10)])
        await a.checkpoint(tmp_path / "copy")
        lodeq.restore(tmp_path / "copy", tmp_path / "fresh")
        for name in ("shard1", "watermark1"):
            os.rename(tmp_path / "fresh" / name, tmp_path / "b" / name)
        replica = cluster.nodes["b"].replica
        await replica.host(1)
        assert replica.applied(1) == cluster.nodes["a"].replica.applied(1)
        await b.checkpoint(tmp_path / "whole")
        assert read_manifest(tmp_path / "whole").total == 0
        cluster.nodes["b"].hosted.add(1)
        await a.queue("mail").enqueue_many([lodeq.NewTask(b"y") for _ in range(10)])
        await sound(b)
    # What a kill in the middle leaves: the stamp is that of one store, the watermark of another.
    mark = Watermark.peek(str(tmp_path / "a" / "watermark1"))
    Watermark.create(
        str(tmp_path / "b" / "watermark1"),
        shard=1,
        store_id=mark.store_id,
        incarnation=1,
        commit_seq=0,
    ).close()
    async with AsyncExitStack() as stack:
        await opened(stack, cluster, tmp_path, "b", {0, 1}, clock=clock)
        assert cluster.nodes["b"].replica.applied(1).index == len(cluster.logs[1])


async def test_a_shard_that_comes_has_its_payloads_and_its_events(tmp_path, clock):
    cluster, large = HostingCluster(), bytes(64 << 10)
    async with AsyncExitStack() as stack:
        options = {"clock": clock, "shards": 2, "journal": "tasks"}
        a = await opened(stack, cluster, tmp_path, "a", {0, 1}, **options)
        b = await opened(stack, cluster, tmp_path, "b", {0}, **options)
        for shard in (0, 1):
            await cluster.elect("a", shard)
        for key in keys_of(2, 2):  # of two shards that is the second one
            await a.queue("mail").enqueue(large, dedup_key=key)
        node = cluster.nodes["b"]
        await node.host(1)
        assert (tmp_path / "b" / "bodies1").is_dir()
        await cluster.elect("b", 1)
        leases = await b.queue("mail").claim(limit=2)
        assert [lease.payload for lease in leases] == [large, large]
        await b.complete_many([(lease, None) for lease in leases])
        await b.fsync()
        while await b._runtime.event_publisher.step():  # what is let go is moved no more
            pass
        await cluster.elect("a", 1)
        await node.unhost(1)
        remove_shard(str(tmp_path / "b"), 1)
        assert not (tmp_path / "b" / "bodies1").exists()
        await node.host(1)
        await sound(b)
    tailer, reader = open_tailer(tmp_path / "b", "tasks"), Reader()
    try:
        found = [one for record in await tailer.read(99) for one in reader.read(record)]
    finally:
        tailer.close()
    kinds = Counter(one.kind.name for one in found if isinstance(one, Event))
    assert min(kinds["ENQUEUED"], kinds["COMPLETED"]) >= 2, kinds


async def test_a_replica_that_begins_without_a_shard_keeps_payloads_as_any(tmp_path, clock):
    cluster, large = HostingCluster(), bytes(64 << 10)
    async with AsyncExitStack() as stack:
        options = {"clock": clock, "shards": 1}
        b = await opened(stack, cluster, tmp_path, "b", (), **options)
        a = await opened(stack, cluster, tmp_path, "a", {0}, **options)
        await cluster.nodes["b"].host(0)
        await cluster.elect("b", 0)
        await b.queue("mail").enqueue(large)
        await cluster.elect("a", 0)
        [lease] = await a.queue("mail").claim()
        assert lease.payload == large
        await lease.complete()
        files = view_of(b)._state.shards[0].bodies.files
        assert len(files.files()) == 1
        files.seal()
        for _ in range(5000):  # body GC looks once a second, and syncs before it removes
            await clock.advance(1.0)
            if not files.files():
                break
        assert files.files() == []


async def test_a_partial_checkpoint_names_its_shards(tmp_path, clock):
    cluster = HostingCluster()
    async with AsyncExitStack() as stack:
        a = await opened(stack, cluster, tmp_path, "a", {1, 3}, clock=clock, shards=SHARDS)
        await cluster.elect("a", 1)
        await a.queue("mail").enqueue(b"1")
        await a.checkpoint(tmp_path / "copy")
        manifest = read_manifest(tmp_path / "copy")
        assert ([mark.shard for mark in manifest.shards], manifest.total) == ([1, 3], SHARDS)
        with pytest.raises(UsageError, match=r"\[1, 3\] of 4"):
            await a.snapshot()
        with pytest.raises(UsageError):
            await a.ingest()
    lodeq.restore(tmp_path / "copy", tmp_path / "fresh")
    assert names(tmp_path / "fresh") == {"shard1", "shard3", "watermark1", "watermark3"}
    for path in (tmp_path / "fresh", tmp_path / "a"):  # a replica, and not all of it
        with pytest.raises(lodeq.OpenError):
            await lodeq.open(path)
    async with AsyncExitStack() as stack:
        await opened(stack, cluster, tmp_path, "a", {1, 3}, clock=clock, shards=SHARDS)
    with pytest.raises(lodeq.ShardCountError):
        await lodeq.open(tmp_path / "a", replicator=cluster.hosting("a", {1}), shards=2)


async def test_a_part_of_a_store_is_not_taken_for_the_whole(tmp_path, clock):
    cluster = HostingCluster()
    async with AsyncExitStack() as stack:
        a = await opened(stack, cluster, tmp_path, "a", {0, 2}, clock=clock, shards=SHARDS)
        await cluster.elect("a", 0)
        await a.queue("mail").enqueue(b"1")
    path = tmp_path / "a"
    before = sorted(os.listdir(path))
    with pytest.raises(ReplicaStoreError):
        await lodeq.open(path)
    with pytest.raises(RecoveryRefusedError, match="shard"):
        await open_read_only(path)
    with pytest.raises(RecoveryRefusedError, match="shard 1 of 4 is missing"):
        lodeq.detach(path)
    assert sorted(os.listdir(path)) == before


async def test_a_damaged_folder_leaves_the_stub_and_stays_as_it_is(tmp_path, clock):
    cluster = HostingCluster()
    async with AsyncExitStack() as stack:
        a = await opened(stack, cluster, tmp_path, "a", {0, 1}, clock=clock, shards=2)
        await cluster.elect("a", 0)
        await cluster.elect("a", 1)
        await a.queue("mail").enqueue_many([lodeq.NewTask(b"x") for _ in range(10)])
        await cluster.nodes["a"].unhost(1)
        folder = tmp_path / "a" / "shard1"
        current = (folder / "CURRENT").read_bytes()
        (folder / "CURRENT").write_bytes(b"MANIFEST-999999\n")
        replica = cluster.nodes["a"].replica
        with pytest.raises(RecoveryRefusedError):
            await replica.host(1)
        with pytest.raises(NotLeaderError):
            replica.applied(1)
        await a.queue("mail").enqueue(b"y")
        assert (folder / "CURRENT").read_bytes() == b"MANIFEST-999999\n"
        (folder / "CURRENT").write_bytes(current)
        await cluster.nodes["a"].host(1)  # mended: it goes on where it was
        assert replica.applied(1).index == len(cluster.logs[1])
        await cluster.nodes["a"].unhost(1)
        shutil.rmtree(folder)
        with pytest.raises(RecoveryRefusedError, match="missing"):  # it was lost, not removed
            await replica.host(1)
        remove_shard(str(tmp_path / "a"), 1)
        remove_shard(str(tmp_path / "a"), 1)
        assert names(tmp_path / "a") == {"shard0", "watermark0"}
        await cluster.nodes["a"].host(1)  # an empty one, which its log fills
        assert replica.applied(1).index == len(cluster.logs[1])
        await sound(a)


async def test_a_close_waits_for_a_shard_that_comes(tmp_path, clock):
    cluster = HostingCluster()
    for _ in range(3):
        async with AsyncExitStack() as stack:
            a = await opened(stack, cluster, tmp_path, "a", {0}, clock=clock, shards=2)
            replica = cluster.nodes["a"].replica
            coming = asyncio.create_task(replica.host(1))
            await asyncio.sleep(0)
            await a.close()
            try:
                await coming
            except ClosedError:
                pass
            with pytest.raises(ClosedError):
                await replica.host(1)
    async with AsyncExitStack() as stack:  # everything was closed: no lock is held
        await opened(stack, cluster, tmp_path, "a", {0, 1}, clock=clock, shards=2)


async def test_a_caller_who_gives_up_leaves_the_stub_or_the_shard(tmp_path, clock):
    cluster = HostingCluster()
    async with AsyncExitStack() as stack:
        await opened(stack, cluster, tmp_path, "a", {0, 1}, clock=clock, shards=2)
        replica = cluster.nodes["a"].replica
        for turns in (0, 1, 3):
            leaving = asyncio.create_task(replica.unhost(1))
            for _ in range(turns):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
            coming = asyncio.create_task(replica.host(1))
            for _ in range(turns):
                await asyncio.sleep(0)
            coming.cancel()
            await asyncio.wait([coming])
            await replica.host(1)
            assert replica.applied(1).index == 0
        await cluster.elect("a", 1)


# -- several processes -----------------------------------------------------------------


@pytest.fixture
async def shared(tmp_path, clock):
    """A store of four shards with a task in each, whose lock this process holds."""
    root = tmp_path / "s"
    async with lodeq.open(root, shards=SHARDS, clock=clock) as engine:
        for shard in range(SHARDS):
            await engine.queue("mail").enqueue(b"%d" % shard, dedup_key=keys_of(shard)[0])
    lock = LockFile.acquire(lock_path(str(root)))
    yield root
    lock.release()


async def test_engines_share_a_folder_each_with_its_shards(shared, clock):
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(lodeq.open(shared, hosting=Half(own), clock=clock))
            for own in ({0, 1}, {2, 3})
        ]
        for engine, own in zip(engines, ([b"0", b"1"], [b"2", b"3"]), strict=True):
            assert sorted(payloads(await engine.queue("mail").claim(limit=9))) == own
            await engine.queue("mail").enqueue(b"new")
            foreign = keys_of(3 if own[0] == b"0" else 0)[0]
            with pytest.raises(NotLeaderError) as caught:
                await engine.queue("mail").enqueue(b"x", dedup_key=foreign)
            assert caught.value.leader == "http://other"
            assert view_of(engine).cluster().members == ["http://other"]
            await sound(engine)
        with pytest.raises(LockedError):
            await lodeq.open(shared, hosting=Half({1}))
        with pytest.raises(LockedError):
            await lodeq.open(shared)


async def test_each_process_has_its_share_of_a_limit(shared, clock):
    async with AsyncExitStack() as stack:
        granted = []
        for own in ({0, 1, 2}, {3}):
            open_now = lodeq.open(shared, hosting=Half(own), clock=clock)
            engine = await stack.enter_async_context(open_now)
            await engine.configure("mail", concurrency=8)
            await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x")] * 20)
            granted.append(len(await engine.queue("mail").claim(limit=20)))
        assert granted == [6, 2]


async def test_a_task_waits_for_tasks_of_its_own_process_alone(shared, clock):
    async with AsyncExitStack() as stack:
        ids, engines = [], []
        for own in ({0, 1}, {2, 3}):
            open_now = lodeq.open(shared, hosting=Half(own), clock=clock)
            engines.append(await stack.enter_async_context(open_now))
            ids.append((await engines[-1].queue("mail").enqueue(b"p")).id)
        before = await engines[0].stats()
        with pytest.raises(NotLeaderError, match="waits for is on shard"):
            await engines[0].enqueue_after(lodeq.NewTask(b"late", "joins"), ids)
        assert (await engines[0].stats()).enqueued_total == before.enqueued_total
        assert await engines[0].enqueue_after(lodeq.NewTask(b"late", "joins"), ids[:1])


async def test_a_process_that_has_some_shards_forgets_no_loads(shared, clock):
    async with lodeq.open(shared, hosting=Half({0, 1}), clock=clock) as engine:
        with pytest.raises(UsageError, match=r"has the shards \[0, 1\] of 4"):
            await engine.forget_loads(7200)


async def test_starts_of_one_process_are_not_taken_for_those_of_all(shared, clock):
    async with AsyncExitStack() as stack:
        for own in ({0, 1}, {2, 3}):
            open_now = lodeq.open(shared, hosting=Half(own), clock=clock)
            engine = await stack.enter_async_context(open_now)
            await engine.configure("mail", rate="4/10s")
            await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x")] * 20)
            await clock.advance(10)
            assert len(await engine.queue("mail").claim(limit=20)) == 2
    os.unlink(shared / "lock")
    async with lodeq.open(shared, clock=clock) as whole:
        assert await whole.queue("mail").claim(limit=20) == []
        await clock.advance(10)
        assert len(await whole.queue("mail").claim(limit=20)) == 4


def test_copies_of_settings_leave_out_what_has_started():
    opened, key = [MemoryStore(), MemoryStore()], queue_settings_key(b"mail")
    stored = {"concurrency": Setting(3, "me", 1), STARTS: Setting((1, 1), "engine", 1)}
    opened[0].write([(key, encode_queue_settings(stored))])
    for _ in range(2):
        copy_settings(opened, [1])
        assert set(decode_queue_settings(opened[1].get(key))) == {"concurrency"}


async def test_bodies_and_journals_are_those_of_each_process(shared, clock):
    large = b"x" * 100_000
    async with AsyncExitStack() as stack:
        for name, own in (("left", {0, 1}), ("right", {2, 3})):
            engine = await stack.enter_async_context(
                lodeq.open(shared, hosting=Half(own), clock=clock, journal=name)
            )
            receipts = await engine.queue("large").enqueue_many([lodeq.NewTask(large)] * 3)
            assert (await engine.get(receipts[0].id)).payload == large
            assert {shard_of(one.id, SHARDS) for one in receipts} <= own
            await engine.checkpoint(f"{shared}.{name}")
            assert read_manifest(f"{shared}.{name}").total == SHARDS
            await sound(engine)
    os.unlink(shared / "lock")
    async with lodeq.open(shared, clock=clock) as whole:
        assert await drain(whole.queue("large")) == [large] * 6
        await sound(whole)
    for name in ("left", "right"):
        assert os.listdir(shared / "journals" / name)


async def test_shards_are_only_opened_below_a_process_that_has_the_store(tmp_path, clock):
    with pytest.raises(StorePathError, match="without hosting"):
        await lodeq.open(tmp_path / "new", hosting=Half({0}))
    assert not (tmp_path / "new").exists()
    async with lodeq.open(tmp_path / "s", shards=SHARDS, clock=clock):
        pass
    with pytest.raises(LockedError, match="hold"):
        await lodeq.open(tmp_path / "s", hosting=Half({0}))


async def test_a_process_that_is_left_keeps_its_shards_from_others(shared, clock):
    engine = await lodeq.open(shared, hosting=Half({1}), clock=clock)
    lock = LockFile.acquire(str(shared / "shard2.lock"))
    lock.release(is_sound=False)  # as if it had been killed
    os.unlink(shared / "lock")  # and the process above it has died
    with pytest.raises(LockedError):
        await lodeq.open(shared)
    await engine.close()
    async with lodeq.open(shared, clock=clock) as whole:
        assert len(await drain(whole.queue("mail"))) == SHARDS
    assert (shared / "shard2.lock").read_bytes() == b""
    async with lodeq.open(shared, clock=clock):
        pass


async def test_a_purge_of_shards_that_are_led_elsewhere_is_refused_as_a_whole(halves, clock):
    _, a, _ = halves
    store_id = a._runtime.opened.store_id
    mail = a.queue("mail")
    receipt = await mail.enqueue(b"x")
    (lease,) = await mail.claim()
    await lease.complete(keep=True)
    row = bytes(receipt.id) + (clock.wall_us() // 1000).to_bytes(8, "big")
    plan = {(shard_of(receipt.id, SHARDS), "results"): [row], (2, "results"): [row]}
    with pytest.raises(NotLeaderError, match="shard 2"):
        await purge_parts(a._state, store_id, (store_id, SHARDS), plan)
    assert (await mail.stats()).results == 1
    del plan[2, "results"]
    assert await purge_parts(a._state, store_id, (store_id, SHARDS), plan) == PurgeReport(1)
