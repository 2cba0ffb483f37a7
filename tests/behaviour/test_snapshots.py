"""Snapshots of an engine at work: what is in them, what they cost it, and how they end."""

import asyncio
import os
import shutil
import threading
from functools import partial

import pytest
from support_behaviour import StillClock, settle, until
from support_bulk import all_rows, tree

import lodeq
from lodeq.engine.bulk.ranges import key_ranges
from lodeq.engine.bulk.reader import open_shard
from lodeq.engine.bulk.snapshot_lease import pin_snapshot
from lodeq.engine.bulk.snapshots import finish_snapshot, list_snapshots
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records.rows import decode_body, decode_ring
from lodeq.engine.recovery.verify import verify
from lodeq.segments.bodies.reader import BodyReader
from lodeq.testing import open as open_testing

pytestmark = pytest.mark.anyio
CACHE_BYTES = 8 << 20


def open_(path, **options):
    return lodeq.open(path, block_cache_bytes=CACHE_BYTES, **options)


def ids_in(snapshot):
    """Of all tasks, over all shards."""
    found = set()
    for mark in snapshot.shards:
        with open_shard(snapshot.path, mark.shard) as reader:
            for one in key_ranges(reader, "tasks"):
                found |= {key[2:] for batch in reader.batches(*one[1:]) for key, _ in batch}
    return found


@pytest.mark.slow
async def test_holds_what_was_acknowledged_before_it_and_agrees_with_itself(tmp_path):
    """Taken while many callers enqueue, claim and complete."""
    async with open_(tmp_path / "s", shards=3) as engine:
        mail = engine.queue("mail")
        stop = False
        await mail.enqueue_many([lodeq.NewTask(n, shard_key=str(n)) for n in range(30)])

        async def work():
            while not stop:
                await mail.enqueue_many([lodeq.NewTask(b"x" * 200) for _ in range(20)])
                for lease in await mail.claim(limit=15):
                    await lease.complete(b"done")

        workers = [asyncio.create_task(work()) for _ in range(8)]
        await settle(50)
        kept = {r.id for r in await engine.queue("kept").enqueue_many([lodeq.NewTask(1)] * 50)}
        snapshots = [await engine.snapshot() for _ in range(3)]
        stop = True
        await asyncio.gather(*workers)
        assert await engine.snapshots() == snapshots
    for snapshot in snapshots:
        assert kept <= ids_in(snapshot)
        for mark in snapshot.shards:
            with open_shard(snapshot.path, mark.shard) as reader:
                assert verify(reader, mark.shard, 3) == []
                last = max(
                    decode_ring(value)[0] for _, value in reader.scan(ks.RING, ks.RING_END, 1 << 17)
                )
            assert (last, last >> 40) == (mark.commit_seq, mark.incarnation)


async def test_what_comes_later_is_not_in_it(tmp_path):
    async with open_(tmp_path / "s", shards=2) as engine:
        mail = engine.queue("mail")
        first = {r.id for r in await mail.enqueue_many([lodeq.NewTask(n) for n in range(100)])}
        snapshot = await engine.snapshot()
        before = tree(snapshot.path)
        for lease in await mail.claim(limit=100):
            await lease.complete()
        await mail.enqueue_many([lodeq.NewTask(n) for n in range(100)])
        assert ids_in(snapshot) == first
        assert tree(snapshot.path) == before
    assert ids_in(snapshot) == first


async def test_outlives_the_store_it_is_of(tmp_path):
    async with open_(tmp_path / "s") as engine:
        receipt = await engine.queue("mail").enqueue(1)
        snapshot = await engine.snapshot()
        copy = shutil.copytree(snapshot.path, tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "s")
    assert b"t/" + receipt.id in all_rows(copy)


async def test_large_payloads_come_along(tmp_path):
    async with open_(tmp_path / "s") as engine:
        mail = engine.queue("mail")
        sent = {(await mail.enqueue(bytes([n]) * 50_000)).id: n for n in range(5)}
        snapshot = await engine.snapshot()
        for lease in await mail.claim(limit=5):
            await lease.complete()
    assert snapshot.bodies == (1,)
    reader = BodyReader.of(os.path.join(snapshot.path, "bodies0"))
    rows = all_rows(snapshot.path)
    for id, n in sent.items():
        assert reader.read_row(decode_body(rows[ks.BODY + id])) == bytes([n]) * 50_000
    reader.close()


async def test_says_where_the_journal_goes_on(tmp_path):
    """Whatever the journal holds from there on may be new; nothing before it is."""
    clock = StillClock()
    async with open_(tmp_path / "s", journal="tasks", clock=clock) as engine:
        mail = engine.queue("mail")
        await mail.enqueue(1)
        await engine.fsync()
        pump = engine._runtime.event_publisher

        def is_moved():
            clock.jump(0.2)
            return not pump.is_behind and not pump._moving

        await until(is_moved, 10**6)
        snapshot = await engine.snapshot()
        assert snapshot.journals == pump.next_numbers
        assert snapshot.journals["tasks"] > 1
        assert not any(key.startswith(b"j/") for key in all_rows(snapshot.path))
    async with open_(tmp_path / "s") as engine:
        assert (await engine.snapshot()).journals == {}


async def test_lapsed_ones_go_and_a_pin_keeps_one(tmp_path):
    clock = StillClock()
    async with open_(tmp_path / "s", clock=clock, reaper=False) as engine:
        first, second = await engine.snapshot(keep=90), await engine.snapshot(keep=90)
        pin_snapshot(engine.path, second.id, clock.wall_us() // 1000 + 500_000)
        clock.jump(89)
        await engine._runtime.snapshots._task.join()  # it has looked: the next look is set
        assert [s.id for s in await engine.snapshots()] == [first.id, second.id]
        clock.jump(120)
        await until(lambda: len(list_snapshots(engine.path)) == 1, 10**6)
        assert [s.id for s in await engine.snapshots()] == [second.id]


async def test_an_open_removes_what_a_crash_has_left(tmp_path):
    async with open_(tmp_path / "s") as engine:
        kept = await engine.snapshot()
    home = tmp_path / "s" / "snapshots"
    for name in ("20231114T221320123Z.partial", "20231114T221320124Z.removing"):
        (home / name / "shard0").mkdir(parents=True)
    (home / "notes").mkdir()
    async with open_(tmp_path / "s"):
        await until(lambda: len(os.listdir(home)) == 2, 10**6)
    assert sorted(os.listdir(home)) == [kept.id, "notes"]


async def test_released(tmp_path):
    async with open_(tmp_path / "s") as engine:
        snapshot = await engine.snapshot()
        await engine.release_snapshot(snapshot.id)
        assert await engine.snapshots() == []
        with pytest.raises(lodeq.SnapshotNotFoundError, match="may have lapsed"):
            await engine.release_snapshot(snapshot.id)
        assert os.listdir(tmp_path / "s" / "snapshots") == []


async def test_a_cancelled_one_leaves_nothing(tmp_path, monkeypatch):
    reached, go_on = threading.Event(), threading.Event()

    def finish(*args, **kwargs):
        made = finish_snapshot(*args, **kwargs)
        reached.set()
        assert go_on.wait(10)
        return made

    monkeypatch.setattr("lodeq.repository.maintenance.snapshots.finish_snapshot", finish)
    async with open_(tmp_path / "s") as engine:
        task = asyncio.create_task(engine.snapshot())
        await until(reached.is_set, 10**6)
        task.cancel()
        await settle(5)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert os.listdir(tmp_path / "s" / "snapshots") == []
        assert await engine.snapshots() == []
        await engine.queue("mail").enqueue(1)


async def test_a_shard_that_cannot_be_copied_leaves_nothing(tmp_path, monkeypatch):
    def full(store, work, shard):
        raise lodeq.StorageFullError("no space")

    async with open_(tmp_path / "s", shards=2) as engine:
        with monkeypatch.context() as patch:
            patch.setattr("lodeq.repository.api.runtime.checkpoint_shard", full)
            with pytest.raises(lodeq.StorageFullError):
                await engine.snapshot()
        assert os.listdir(tmp_path / "s" / "snapshots") == []
        await engine.queue("mail").enqueue(1)  # nothing is held back
        assert len(ids_in(await engine.snapshot())) == 1


async def test_what_is_asked_wrongly(tmp_path):
    async with open_testing() as engine:
        for call in (engine.snapshot, engine.snapshots, partial(engine.release_snapshot, "x")):
            with pytest.raises(lodeq.UsageError, match="in memory"):
                await call()
    async with open_(tmp_path / "s") as engine:
        for keep in (0, -1, float("nan"), "1h", True):
            with pytest.raises(lodeq.UsageError, match="keep"):
                await engine.snapshot(keep=keep)
        assert not (tmp_path / "s" / "snapshots").exists()
    with pytest.raises(lodeq.ClosedError):
        await engine.snapshot()


async def test_a_link_in_its_place_is_refused_at_open(tmp_path):
    async with open_(tmp_path / "s"):
        pass
    (tmp_path / "s" / "snapshots").symlink_to(tmp_path)
    with pytest.raises(lodeq.StorePathError, match="snapshots"):
        async with open_(tmp_path / "s"):
            pass


async def test_threads_have_them_too(tmp_path):
    async with open_(tmp_path / "s") as engine:

        def work():
            snapshot = engine.sync.snapshot(keep=60)
            assert engine.sync.snapshots() == [snapshot]
            engine.sync.release_snapshot(snapshot.id)
            assert engine.sync.snapshots() == []

        await asyncio.to_thread(work)
