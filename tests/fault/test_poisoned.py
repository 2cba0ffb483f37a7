"""What a poisoned shard still answers is true, and what it cannot do it says in the right class.

Found by the sites of ``test_sites.py``, each reduced to a few lines.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support_behaviour import settle
from support_faults import faulty

import lodeq
from lodeq.coalescer.commit_loop import RETRY_FULL_S
from lodeq.engine.store import full_disk_watchdog, rocks
from lodeq.errors import CommitUnknownError, StorageFullError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_task_whose_complete_failed_is_still_told_of() -> None:
    async with faulty() as rig:
        receipt = await rig.queue.enqueue(b"x")
        (lease,) = await rig.queue.claim()
        rig.store.refusals.append(CommitUnknownError("disk"))
        with pytest.raises(CommitUnknownError):
            await lease.complete(b"")
        task = await rig.engine.get(receipt.id)
        assert task is not None
        assert task.state == "leased"
        assert await rig.engine.result(receipt.id) is None  # and not: it never existed
        with pytest.raises(lodeq.StoragePoisonedError):  # and not: there is no such task
            await rig.engine.cancel(receipt.id)
        assert rig.state.anomalies == []


async def test_a_shard_that_stalled_before_it_failed_is_poisoned_alone() -> None:
    """That a write is tried again is not so any more, and nothing passes."""
    async with faulty() as rig:
        rig.store.refusals.extend([StorageFullError("full"), CommitUnknownError("disk")])
        task = asyncio.ensure_future(rig.queue.enqueue(b"x"))
        await settle()
        rig.timers.fire(RETRY_FULL_S)
        with pytest.raises(CommitUnknownError):
            await task
        (reason,) = (await rig.engine.health()).reasons
        assert "is poisoned" in reason


async def test_a_lease_whose_complete_failed_is_not_called_lost_to_a_worker_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would drop its finished work, which then is done again once the store is reopened."""

    def fail(*_: object) -> None:
        raise CommitUnknownError("IO error: disk")

    path = tmp_path / "s"
    async with lodeq.open(path, serve=True), lodeq.connect(f"unix:{path}.sock") as client:
        receipts = [await client.queue("q").enqueue(b"%d" % n) for n in range(2)]
        one, two = await client.queue("q").claim(limit=2)
        with monkeypatch.context() as patch:
            patch.setattr(rocks.RocksStore, "write", fail)
            with pytest.raises(CommitUnknownError):
                await one.complete(b"done")
        for lease in (one, two):
            with pytest.raises(lodeq.StoragePoisonedError):
                await lease.complete(b"done")
        with pytest.raises(lodeq.StoragePoisonedError):
            await client.complete_many([(one, b"done"), (two, b"done")])
        assert await client.heartbeat_many([one, two]) == [None, None]
    async with lodeq.open(path, serve=True), lodeq.connect(f"unix:{path}.sock") as client:
        assert await client.complete_many([(one, b"done"), (two, b"done")]) == [None, None]
        assert [(await client.result(x.id)).value for x in receipts] == [b"done"] * 2


async def test_a_checkpoint_of_a_poisoned_store_is_refused(tmp_path: Path) -> None:
    async with lodeq.open(tmp_path / "store") as engine:
        await engine.queue("q").enqueue(b"x")
        engine._state.shards[0].coalescer.fail(CommitUnknownError("disk"))
        with pytest.raises(lodeq.StoragePoisonedError):
            await engine.checkpoint(tmp_path / "copy")
        assert not (tmp_path / "copy").exists()


async def test_a_flush_that_fails_poisons_at_once_and_is_no_failed_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: rocks.RocksStore, wait: bool = True) -> None:
        raise CommitUnknownError("IO error: While appending to file: 000009.sst")

    async with lodeq.open(tmp_path / "store") as engine:
        receipt = await engine.queue("q").enqueue(b"x")
        monkeypatch.setattr(rocks.RocksStore, "flush", fail)
        with pytest.raises(lodeq.StoragePoisonedError):
            await engine.checkpoint(tmp_path / "copy")
        assert "is poisoned" in (await engine.health()).reasons[0]
        assert await engine.get(receipt.id) is not None
        with pytest.raises(lodeq.StoragePoisonedError):
            await engine.queue("q").enqueue(b"y")
        assert not (tmp_path / "copy").exists()


def test_no_room_for_a_new_log_is_not_told_as_if_it_would_heal() -> None:
    """RocksDB refuses every write afterwards, until it is reopened, however much room there is."""
    full = "IO error: No space left on device: While {}: /s/shard0/{}: No space left on device"
    heals = rocks.translate(Exception(full.format("appending to file", "000008.log")), "write")
    assert isinstance(heals, StorageFullError)
    table = full.format("open a file for appending", "000011.sst")
    assert isinstance(rocks.translate(Exception(table), "write"), StorageFullError)
    log = full.format("open a file for appending", "000010.log")
    assert isinstance(rocks.translate(Exception(log), "write"), CommitUnknownError)
    assert isinstance(rocks.translate(Exception(log), "open"), StorageFullError)


def test_a_log_that_met_a_full_disk_refuses_and_has_not_failed(tmp_path: Path) -> None:
    """To a sync it says *previous error* until a write succeeds. A write that hears it never will:
    RocksDB then went on with the log that failed, and refuses until it is reopened.
    """
    again = Exception("IO error: Writer has previous error.")
    store = rocks.RocksStore.open(tmp_path / "s", shared=rocks.SharedMemory(16 << 20), create=True)
    assert isinstance(store._refusal(again, "sync"), CommitUnknownError)
    full = Exception("IO error: No space left on device: While appending to file: 8.log: full")
    assert isinstance(store._refusal(full, "write"), StorageFullError)
    assert isinstance(store._refusal(again, "sync"), StorageFullError)
    assert isinstance(store._refusal(again, "write"), CommitUnknownError)
    other = Exception("IO error: While fdatasync: 8.log: Input/output error")
    assert isinstance(store._refusal(other, "sync"), CommitUnknownError)
    store._sync()
    assert isinstance(store._refusal(again, "sync"), CommitUnknownError)
    store.close()


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``(watch, at)``: tell it when it is, in seconds, and how much room there is, in bytes."""
    now, room = [0.0], [1 << 40]
    monkeypatch.setattr(full_disk_watchdog, "perf_s", lambda: now[0])
    monkeypatch.setattr(
        full_disk_watchdog, "has_free_space", lambda _: room[0] >= full_disk_watchdog.ROOM_BYTES_MIN
    )

    def at(seconds: float, free_bytes: int = 1 << 40) -> None:
        now[0], room[0] = seconds, free_bytes

    return full_disk_watchdog.FullWatch(str(tmp_path)), at


FULL = StorageFullError("full")


def test_a_store_that_stays_full_on_a_disk_with_room_is_stuck(watch: Any) -> None:
    full, at = watch
    assert full.judge(FULL, 7) is FULL
    at(full_disk_watchdog.STUCK_S - 1)
    assert full.judge(FULL, 7) is FULL
    at(full_disk_watchdog.STUCK_S)
    assert isinstance(full.judge(FULL, 7), CommitUnknownError)


def test_a_full_disk_is_waited_for_and_a_write_in_between_begins_anew(watch: Any) -> None:
    full, at = watch
    for minute in range(5):
        at(30.0 * minute, free_bytes=4096)
        assert full.judge(FULL, 7) is FULL
    at(150.0)
    assert full.judge(FULL, 7) is not FULL
    assert full.judge(FULL, 8) is FULL
    at(150.0 + full_disk_watchdog.STUCK_S)
    assert full.judge(FULL, 8) is not FULL


def test_room_is_bytes_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not full_disk_watchdog.has_free_space(str(tmp_path / "nowhere"))

    def told(**fields: int) -> bool:
        info = {"f_bavail": 1 << 20, "f_frsize": 4096, "f_files": 100, "f_favail": 9, **fields}
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**info))
        return full_disk_watchdog.has_free_space(str(tmp_path))

    assert told()
    assert told(f_files=0, f_favail=0)  # a file system that does not count them
    assert not told(f_favail=0)
    assert not told(f_bavail=100)


def test_a_write_that_a_stuck_store_refuses_is_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rocks.RocksStore.open(tmp_path / "s", shared=rocks.SharedMemory(16 << 20), create=True)
    full = Exception("IO error: No space left on device: While appending to file: 8.log: full")
    monkeypatch.setattr(full_disk_watchdog, "STUCK_S", 0.0)
    monkeypatch.setattr(full_disk_watchdog, "has_free_space", lambda _: True)
    error = store._refusal(full, "write")
    assert isinstance(error, CommitUnknownError)
    assert "reopen the store" in str(error)
    assert not isinstance(store._refusal(full, "sync"), StorageFullError)
    store.close()


def test_a_sync_that_meets_a_full_log_before_its_refusal_is_told_knows_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rocks.RocksStore.open(tmp_path / "s", shared=rocks.SharedMemory(16 << 20), create=True)
    again = Exception("IO error: Writer has previous error.")
    real, translate = store._db, rocks.translate
    met = []

    class Full:
        latest_sequence_number = staticmethod(real.latest_sequence_number)

        def write(self, _: object) -> None:
            raise Exception("IO error: No space left on device: While appending to file: 8.log")

    def meanwhile(exc: Exception, doing: rocks._Doing) -> lodeq.LodeqError:
        if doing == "write":
            met.append(store._refusal(again, "sync"))
        return translate(exc, doing)

    monkeypatch.setattr(rocks, "translate", meanwhile)
    store._db = Full()  # type: ignore[assignment]
    with pytest.raises(StorageFullError):
        store.write([(b"k", b"v")])
    store._db = real
    assert [type(error) for error in met] == [StorageFullError]
    store.close()


def test_a_sync_under_way_does_not_make_a_write_that_was_refused_meanwhile_forgotten(
    tmp_path: Path,
) -> None:
    store = rocks.RocksStore.open(tmp_path / "s", shared=rocks.SharedMemory(16 << 20), create=True)
    full = Exception("IO error: No space left on device: While appending to file: 8.log: full")
    again = Exception("IO error: Writer has previous error.")
    real = store._db

    class Slow:
        latest_sequence_number = staticmethod(real.latest_sequence_number)

        def flush_wal(self, is_synced: bool) -> None:
            real.flush_wal(is_synced)
            assert isinstance(store._refusal(full, "write"), StorageFullError)

    store._db = Slow()  # type: ignore[assignment]
    store._sync()
    store._db = real
    assert isinstance(store._refusal(again, "sync"), StorageFullError)
    store._sync()
    assert isinstance(store._refusal(again, "sync"), CommitUnknownError)
    store.close()
