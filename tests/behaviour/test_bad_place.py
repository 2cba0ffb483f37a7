"""The wrong place to work: a full disk, a closed engine, another thread, a path of others."""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from support_behaviour import drain, in_memory, sound, unchanged
from support_faults import faulty

import lodeq
from lodeq import (
    ClosedError,
    LockedError,
    NewTask,
    StorageError,
    StorageFullError,
    StorePathError,
    UsageError,
)
from lodeq.repository.api.engine import runtime_of

pytestmark = pytest.mark.anyio


async def test_a_disk_without_inodes_is_a_full_one_and_the_log_has_it_once(
    tmp_path, monkeypatch, caplog
):
    """Bytes are free, so nobody who looks at them finds why nothing can be written."""
    caplog.set_level("INFO", "lodeq.engine")
    real, names = os.statvfs, [0]

    def statvfs(path):
        info = real(path)
        kept = ("f_bavail", "f_bfree", "f_blocks", "f_frsize", "f_bsize")
        kept = {name: getattr(info, name) for name in kept}
        return SimpleNamespace(f_files=1000, f_favail=names[0], f_ffree=names[0], **kept)

    def said():
        return [record.event for record in caplog.records if record.event.startswith("disk_")]

    async with lodeq.open(tmp_path / "s") as engine:
        monkeypatch.setattr(os, "statvfs", statvfs)
        for _ in range(2):
            runtime_of(engine)._watch_disk()
        with pytest.raises(StorageFullError, match="no inodes left"):
            await engine.queue("mail").enqueue(b"x")
        (reason,) = (await engine.health()).reasons
        assert reason == "the disk has no inodes left for new files: enqueues are refused"
        assert said() == ["disk_low"]
        names[0] = 10
        for _ in range(2):
            runtime_of(engine)._watch_disk()
        await engine.queue("mail").enqueue(b"x")
        assert (await engine.health()).ok
        assert said() == ["disk_low", "disk_has_room"]


async def test_a_low_disk_refuses_enqueues_and_lets_work_end():
    async with faulty() as rig:
        await rig.queue.enqueue_many([NewTask(i) for i in range(3)])
        rig.state.is_disk_low = True
        for call in (
            lambda: rig.queue.enqueue(b"x"),
            lambda: rig.queue.enqueue(b"x", priority=1),
            lambda: rig.queue.enqueue_many([NewTask(b"x")]),
            lambda: rig.engine.enqueue_many([NewTask(b"x", queue="a")]),
        ):
            with pytest.raises(StorageFullError):
                await call()
        assert (await rig.queue.stats()).ready == 3
        a, b, c = await rig.queue.claim(limit=3)
        await a.complete(b"r")
        await b.nack()
        await c.release()
        assert not (await rig.engine.health()).ok
        rig.state.is_disk_low = False
        await rig.queue.enqueue(b"x")
        await sound(rig.engine)


def files_in(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


async def test_a_store_whose_folder_another_has_taken_writes_nothing_there(tmp_path):
    """RocksDB makes files by path: they would replace those of the other store."""
    path, moved = tmp_path / "s", tmp_path / "moved"
    async with lodeq.open(path, shards=2, reaper=False) as engine:
        await engine.queue("mail").enqueue_many([NewTask(bytes(1000))] * 50)
        path.rename(moved)
        path.mkdir()
        runtime_of(engine)._watch_disk()
        for durable in (False, True):
            with pytest.raises(StorageError, match="another folder is in its place"):
                await engine.queue("mail").enqueue(b"x", durable=durable)
        health = await engine.health()
        assert any("shard 1 is poisoned" in one for one in health.reasons)
        assert any("another folder is in its place" in one for one in health.reasons)
    assert files_in(path) == []
    shutil.copytree(moved, tmp_path / "copy")  # this process has its files until it ends
    async with lodeq.open(tmp_path / "copy", reaper=False) as engine:
        assert (await engine.queue("mail").stats()).ready == 50
        assert (await engine.verify()).ok


async def test_a_store_whose_folder_is_gone_says_so_and_not_that_the_disk_is_full(tmp_path):
    path, moved = tmp_path / "s", tmp_path / "moved"
    async with lodeq.open(path, reaper=False) as engine:
        mail = engine.queue("mail")
        await mail.enqueue(b"x")
        path.rename(moved)
        runtime_of(engine)._watch_disk()
        with pytest.raises(StorageError, match="moved away while it is open") as refused:
            await mail.enqueue(b"x")
        assert not isinstance(refused.value, StorageFullError)
        assert "moved away while it is open" in (await engine.health()).reasons[0]
        moved.rename(path)
        runtime_of(engine)._watch_disk()
        await mail.enqueue(b"x")
        assert (await engine.health()).ok


async def test_a_store_that_is_reached_by_a_link_since_goes_on(tmp_path):
    path, moved = tmp_path / "s", tmp_path / "moved"
    async with lodeq.open(path, reaper=False) as engine:
        path.rename(moved)
        path.symlink_to(moved)
        runtime_of(engine)._watch_disk()
        await engine.queue("mail").enqueue(b"x")
        assert (await engine.health()).ok


async def test_a_closed_engine_says_so(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
    calls = [
        lambda: queue.enqueue(b"x"),
        lambda: queue.enqueue(b"x", priority=1),
        lambda: queue.enqueue_many([NewTask(b"x")]),
        queue.claim,
        lambda: queue.claim(wait=5),
        lambda: engine.claim(["a"]),
        lease.complete,
        lease.nack,
        lease.release,
        lease.bury,
        lease.heartbeat,
        lambda: engine.complete_many([(lease, None)]),
        lambda: engine.heartbeat_many([lease]),
        lambda: engine.get(lease.task_id),
        lambda: engine.result(lease.task_id),
        lambda: engine.cancel(lease.task_id),
        engine.stats,
        engine.health,
        engine.verify,
        engine.fsync,
        lambda: engine.checkpoint("x"),
        queue.stats,
        lambda: queue.list("ready"),
        queue.peek,
        queue.redrive,
        queue.pause,
        queue.resume,
        queue.purge,
        queue.dead_letters,
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            await call()
    await engine.close()


async def test_another_thread_is_refused(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        caught = []

        def elsewhere():
            for call in (lambda: queue.enqueue(b"y"), queue.claim, engine.stats, engine.close):
                try:
                    asyncio.run(call())
                except UsageError as error:
                    caught.append(error)

        async with unchanged(engine):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        assert len(caught) == 4


def test_another_loop_is_refused(clock):
    """In the same thread, whether or not the engine was just in use there."""
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        engine = first.run_until_complete(in_memory(clock).__aenter__())
        queue = engine.queue("mail")
        first.run_until_complete(queue.enqueue(b"x"))
        for call in (engine.stats, lambda: queue.enqueue(b"y"), queue.claim, engine.close):
            first.run_until_complete(engine.stats())
            with pytest.raises(UsageError):
                second.run_until_complete(call())
        assert first.run_until_complete(engine.stats()).ready == 1
        first.run_until_complete(engine.close())
    finally:
        first.close()
        second.close()


def test_opening_without_a_loop_is_refused(tmp_path):
    with pytest.raises(UsageError):
        lodeq.open(tmp_path / "s").__aenter__().send(None)
    assert not (tmp_path / "s").exists()


async def refused(path, error=StorePathError, **options):
    with pytest.raises(error) as caught:
        async with lodeq.open(path, **options):
            pass
    return caught.value


async def test_a_path_that_cannot_be_a_store_is_refused_and_left_alone(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    await refused(file)
    await refused(file / "below")
    assert file.read_bytes() == b"mine"
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    await refused(link)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o770)
    await refused(open_to_all)
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "letter.txt").write_text("mine")
    await refused(other)
    assert [p.name for p in other.iterdir()] == ["letter.txt"]
    assert not list(real.iterdir())
    assert not list(open_to_all.iterdir())
    for path in ("", "a\0b"):
        await refused(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_path_that_is_not_writable_is_refused(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o500)
    await refused(closed)
    await refused(closed / "below")


@pytest.mark.parametrize(
    "options",
    [
        {"shards": 0},
        {"shards": 4097},
        {"shards": 1.0},
        {"shards": True},
        {"durability": "maybe"},
        {"recovery": "hope"},
        {"commit_batch_max": 0},
        {"submit_queue_max": 0},
        {"submit_queue_max": True},
        {"sync_interval": 0},
        {"sync_interval": float("nan")},
        {"lock_wait": -1},
        {"compression": "rot13"},
    ],
)
async def test_wrong_options_of_open_create_nothing(tmp_path, options):
    with pytest.raises(UsageError):
        async with lodeq.open(tmp_path / "s", **options):
            pass
    assert not (tmp_path / "s").exists()


async def test_a_store_is_open_once(tmp_path):
    async with lodeq.open(tmp_path / "s") as engine:
        error = await refused(tmp_path / "s", LockedError)
        assert error.pid == os.getpid()
        await refused(tmp_path / "s", LockedError, lock_wait=0.001)
        await engine.queue("mail").enqueue(b"x")
    async with lodeq.open(tmp_path / "s") as engine:
        assert await drain(engine.queue("mail")) == [b"x"]


CHILD = """
import asyncio, sys, lodeq
async def main():
    try:
        async with lodeq.open(sys.argv[1]) as engine:
            print("opened")
    except lodeq.LockedError as error:
        print("locked by", error.pid)
asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_store_of_another_process_is_locked(tmp_path):
    def child():
        run = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path / "s")], capture_output=True, text=True
        )
        assert not run.stderr
        return run.stdout.strip()

    async with lodeq.open(tmp_path / "s"):
        assert await asyncio.to_thread(child) == f"locked by {os.getpid()}"
    assert await asyncio.to_thread(child) == "opened"
