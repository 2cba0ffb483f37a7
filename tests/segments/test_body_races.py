"""Body files under everything that can come in between: one test for each race, by its number.

The numbers are those of the races known from stores of this kind (RabbitMQ, Badger, Titan).
"""

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from support_bodies import SIZE, Opened, crash_image, during_the_sync, payloads, recorded
from support_loop import on_loop

import lodeq
from lodeq import CorruptionError
from lodeq.engine.records.keyspace import BODY, BODY_AT, BODY_AT_END, body_at_key
from lodeq.engine.records.rows import decode_body
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.background.body_gc import BodyGC
from lodeq.segments.bodies.files import BodyFiles
from lodeq.segments.bodies.layout import Location
from lodeq.segments.bodies.sqs import HEADER_BYTES


@on_loop
async def test_space_comes_back(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(10)
        await rig.end(10)
        await rig.look()
        assert rig.files() == []
        await rig.fill(10)
        await rig.end(3)
        await rig.look()
        assert rig.files() == [2]  # most of it is live
        await rig.end(4)
        await rig.look()
        assert rig.files() == [3]
        assert await payloads(rig) == [b"007", b"008", b"009"]
        assert (await rig.engine.verify()).ok
        assert rig.bodies.files.files()[0].bytes < 4 * SIZE
    async with Opened(tmp_path) as rig:
        assert await payloads(rig) == [b"007", b"008", b"009"]


@on_loop
async def test_files_of_which_half_is_dead_are_copied(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(10)
        await rig.end(5)
        await rig.look()
        assert rig.files() == [2]
        assert await payloads(rig) == [b"005", b"006", b"007", b"008", b"009"]


@on_loop
async def test_r1_a_reader_finds_a_body_that_moves(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        *_, last = await rig.fill(10)
        before = rig.location(last)
        row = decode_body(rig.shard.overlay.get(BODY + last) or b"")
        body = rig.bodies.files.read(before, row.record_id)
        await rig.end(9)
        await rig.look()
        assert rig.location(last) != before
        assert rig.bodies.files.read(before, row.record_id) is None  # so it looks again
        assert rig.bodies.files.read(rig.location(last), row.record_id) == body


@on_loop
async def test_r2_what_ends_while_it_is_copied_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(10)
        await rig.end(8)

        async def act() -> None:
            await rig.end(1)

        await during_the_sync(rig, monkeypatch, act)
        assert rig.rows() == 1
        assert await payloads(rig) == [b"009"]
        assert (await rig.engine.verify()).ok
        await rig.end(1)
        rig.bodies.files.seal()
        await rig.look()
        assert rig.files() == []


@on_loop
async def test_r3_a_task_that_takes_the_place_of_another_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as rig:
        await rig.queue.enqueue(b"old" + bytes(SIZE), dedup_key="k")
        await rig.fill(5)
        await rig.end(0)
        for task in (await rig.queue.list("ready"))[1:]:
            await rig.engine.cancel(task.id)

        async def act() -> None:
            await rig.queue.enqueue(b"new" + bytes(SIZE), dedup_key="k", on_conflict="replace")

        await during_the_sync(rig, monkeypatch, act)
        assert await payloads(rig) == [b"new"]
        assert rig.rows() == 1
        assert (await rig.engine.verify()).ok


@pytest.mark.parametrize("is_many", [False, True])
@on_loop
async def test_r3_a_replacement_that_finds_no_room_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_many: bool
) -> None:
    def full(files: BodyFiles, records: object) -> list[Location]:
        raise lodeq.StorageFullError("No space left on device")

    async with Opened(tmp_path) as rig:
        await rig.queue.enqueue(b"old" + bytes(SIZE), dedup_key="k")
        new: dict[str, Any] = {"dedup_key": "k", "on_conflict": "replace"}
        payload = b"new" + bytes(SIZE)
        call = (
            rig.queue.enqueue_many([lodeq.NewTask(payload, **new)])
            if is_many
            else rig.queue.enqueue(payload, **new)
        )
        with monkeypatch.context() as patch:
            patch.setattr(BodyFiles, "append_all", full)
            with pytest.raises(lodeq.StorageFullError):
                await call
        assert await payloads(rig) == [b"old"]
        assert (await rig.engine.verify()).ok


@pytest.mark.parametrize("where", ["_move", "_remove"])
@on_loop
async def test_r4_r5_a_crash_between_two_steps_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(10)
        await rig.end(7)

        async def crash(*_: Any) -> None:
            raise lodeq.StorageError("crash")

        with monkeypatch.context() as patch:
            patch.setattr(BodyGC, where, crash)
            with pytest.raises(lodeq.StorageError, match="crash"):
                await rig.look()
        assert rig.files() == [1, 2]
        crash_image(tmp_path, tmp_path / "crashed")
    async with Opened(tmp_path / "crashed") as rig:
        assert await payloads(rig) == [b"007", b"008", b"009"]
        for _ in range(3):
            await rig.look()
        assert len(rig.files()) == 1
        assert await payloads(rig) == [b"007", b"008", b"009"]
        assert (await rig.engine.verify()).ok


@on_loop
async def test_r6_a_file_goes_only_after_a_sync_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    recorded(monkeypatch, did)
    async with Opened(tmp_path, sync_interval=3600.0) as rig:  # nosync mode
        await rig.fill(10)
        await rig.end(8)
        did.clear()
        await rig.look()
        at = did.index("remove")
        assert "rows" in did[:at]
        last_rows = max(i for i, what in enumerate(did[:at]) if what == "rows")
        assert "log" in did[last_rows:at]
        assert "bodies" in did[: did.index("rows")]  # and copies before rows lead to them


@on_loop
async def test_r7_r8_a_body_and_its_file_are_durable_before_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        call = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda fd, call=call: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or call(fd),
        )
    flush = RocksStore._sync

    def store_sync(store: RocksStore) -> None:
        flush(store)
        synced.append("log")

    monkeypatch.setattr(RocksStore, "_sync", store_sync)
    async with Opened(tmp_path, durability="fsync") as rig:
        synced.clear()
        await rig.queue.enqueue(os.urandom(SIZE))
        assert synced.index(rig.bodies.files.path(1)) < synced.index("log")
        assert synced.index(rig.bodies.files.folder) < synced.index("log")


@on_loop
async def test_r9_a_file_that_comes_back_goes_again_and_its_number_is_not_used(
    tmp_path: Path,
) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(3)
        path = rig.bodies.files.path(1)
        shutil.copy(path, tmp_path / "kept")
        await rig.end(3)
        await rig.look()
        assert rig.files() == []
    shutil.copy(tmp_path / "kept", path)
    async with Opened(tmp_path) as rig:
        await rig.fill(1)
        assert rig.files() == [1, 2]
        await rig.look()
        assert rig.files() == [2]


@on_loop
async def test_r10_a_batch_that_is_replayed_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RocksStore.write

    def twice(store: RocksStore, ops: Any) -> None:
        same = list(ops)
        write(store, same)
        write(store, same)

    monkeypatch.setattr(RocksStore, "write", twice)
    async with Opened(tmp_path) as rig:
        payload = b"all" + bytes(SIZE)
        await rig.queue.enqueue_many([lodeq.NewTask(payload)] * 5)
        await rig.end(4)
        assert rig.rows() == 1
        assert len(rig.shard.store.scan(BODY_AT, BODY_AT_END, 10)) == 1
        rig.bodies.files.seal()
        await rig.look()
        assert await payloads(rig) == [b"all"]
        await rig.end(1)
        await rig.look()
        assert rig.files() == []


@on_loop
async def test_r11_the_current_file_is_left_alone(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        await rig.queue.enqueue_many([lodeq.NewTask(os.urandom(SIZE)) for _ in range(5)])
        await rig.end(5)
        await rig.look()
        assert rig.files() == [1]
        await rig.queue.enqueue(b"new" + bytes(SIZE))
        assert rig.files() == [1]
        assert await payloads(rig) == [b"new"]


@on_loop
async def test_r12_a_payload_that_was_there_once_is_written_again(tmp_path: Path) -> None:
    payload = b"one" + bytes(SIZE)
    async with Opened(tmp_path) as rig:
        await rig.queue.enqueue(payload)
        rig.bodies.files.seal()
        await rig.end(1)
        await rig.queue.enqueue(payload)
        await rig.look()
        assert rig.files() == [2]
        assert await payloads(rig) == [b"one"]


def test_r13_a_large_body_leaves_no_empty_file_behind(tmp_path: Path) -> None:
    files = BodyFiles.open(str(tmp_path / "bodies"), file_bytes=1000)
    for _ in range(3):
        files.append(bytes(16), bytes(5000))
        files.append(bytes(16), b"small")
    assert [file.number for file in files.files()] == [1, 2, 3, 4, 5, 6]
    assert all(file.bytes > HEADER_BYTES for file in files.files())
    files.close()


@on_loop
async def test_r14_a_checkpoint_has_the_bodies_and_no_link_to_what_changes(
    tmp_path: Path,
) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(5)
        await rig.queue.enqueue(b"cur" + bytes(SIZE))
        await rig.engine.checkpoint(tmp_path / "copy")
        await rig.queue.enqueue(b"new" + bytes(SIZE))
        await rig.end(7)
        rig.bodies.files.seal()
        await rig.look()
        assert rig.files() == []
    (tmp_path / "again").mkdir()
    lodeq.restore(tmp_path / "copy", tmp_path / "again" / "s")
    async with Opened(tmp_path / "again") as rig:
        assert await payloads(rig) == [b"000", b"001", b"002", b"003", b"004", b"cur"]
        assert (await rig.engine.verify()).ok


@on_loop
async def test_r14_no_file_goes_while_a_checkpoint_is_taken(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(5)
        await rig.end(5)
        rig.keeper.pauses += 1
        await rig.look()
        assert rig.files() == [1]
        rig.keeper.pauses -= 1
        await rig.look()
        assert rig.files() == []


@on_loop
async def test_r15_a_sync_that_fails_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fdatasync

    def fails(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".sqs"):
            raise OSError(errno.EIO, "Input/output error")
        sync(fd)

    async with Opened(tmp_path, durability="fsync") as rig:
        await rig.queue.enqueue(b"small")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fails)
            with pytest.raises(lodeq.CommitUnknownError):
                await rig.queue.enqueue(os.urandom(SIZE))
        with pytest.raises(lodeq.StoragePoisonedError):
            await rig.queue.enqueue(os.urandom(SIZE))
        assert (await rig.engine.health()).reasons


@on_loop
async def test_r15_a_sync_that_fails_when_nobody_waits_for_it_any_more_stops_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells once; the files are clean now, and the next sync would find nothing."""
    begun, goes_on = threading.Event(), threading.Event()

    def fails(files: BodyFiles) -> None:
        begun.set()
        goes_on.wait(30)
        raise OSError(errno.EIO, "Input/output error")

    async with Opened(tmp_path) as rig:
        await rig.fill(10)
        await rig.end(8)
        with monkeypatch.context() as patch:
            patch.setattr(BodyFiles, "sync", fails)
            copying = asyncio.ensure_future(rig.keeper.copy_out(rig.shard, rig.bodies, 1))
            await asyncio.to_thread(begun.wait, 30)
            copying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await copying
            goes_on.set()
            async with asyncio.timeout(30):
                while not (await rig.engine.health()).reasons:  # noqa: ASYNC110 - a thread fails it
                    await asyncio.sleep(0)
            with pytest.raises(lodeq.StoragePoisonedError):
                await rig.queue.enqueue(b"small")


@on_loop
async def test_r16_without_room_for_copies_nothing_is_lost_and_pages_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(10)
        await rig.end(8)

        def full(files: BodyFiles, records: object) -> list[Location]:
            raise lodeq.StorageFullError("No space left on device")

        monkeypatch.setattr(BodyFiles, "append_all", full)
        await rig.look()
        assert rig.files() == [1]
        assert await payloads(rig) == [b"008", b"009"]
        before = os.stat(rig.bodies.files.path(1)).st_blocks * 512
        rig.engine._state.is_disk_low = True
        await rig.keeper.step(rig.shard)
        after = os.stat(rig.bodies.files.path(1)).st_blocks * 512
        assert before - after > 7 * SIZE
        assert await payloads(rig) == [b"008", b"009"]
        with pytest.raises(lodeq.StorageFullError):
            await rig.queue.enqueue(os.urandom(SIZE))


@on_loop
async def test_what_dies_during_a_look_is_looked_at_again(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        *_, last = await rig.fill(10)
        await rig.end(3)  # two thirds are live
        looking = asyncio.ensure_future(rig.keeper.step(rig.shard))
        await asyncio.sleep(0)  # it has counted, and lets others have their turn
        await rig.engine.cancel(lodeq.TaskId(last))
        await looking
        await rig.look()
        assert rig.files() == [2]
        assert len(await payloads(rig)) == 6


@on_loop
async def test_r17_closing_waits_for_no_copy(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(10)
        await rig.end(8)
        await rig.keeper.step(rig.shard)
        rig.clock.advance(20.0)
        copying = asyncio.ensure_future(rig.keeper.step(rig.shard))
        while not rig.keeper._wakers and not copying.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not copying.done()  # it pauses, by a clock that nobody moves
        await rig.engine.close()
        copying.cancel()
    async with Opened(tmp_path) as rig:
        assert await payloads(rig) == [b"008", b"009"]
        assert (await rig.engine.verify()).ok


@on_loop
@pytest.mark.parametrize("family", [BODY_AT, BODY])
async def test_a_file_whose_rows_cannot_be_read_stays_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: bytes
) -> None:
    async with Opened(tmp_path) as rig:
        ids = await rig.fill(4)
        await rig.fill(4)
        await rig.end(3)
        for task in (await rig.queue.list("ready"))[1:]:
            await rig.engine.cancel(task.id)
        scan_part, get, failed = RocksStore.scan_part, RocksStore.get, []

        def scanning(self: RocksStore, lower: bytes, upper: bytes, limit: int) -> Any:
            if family == BODY_AT and lower.startswith(body_at_key(1, 0, b"")[:-8]):
                failed.append(lower)
                raise CorruptionError("block checksum mismatch")
            return scan_part(self, lower, upper, limit)

        def getting(self: RocksStore, key: bytes) -> bytes | None:
            if family == BODY and key == BODY + ids[3]:
                failed.append(key)
                raise CorruptionError("block checksum mismatch")
            return get(self, key)

        monkeypatch.setattr(RocksStore, "scan_part", scanning)
        monkeypatch.setattr(RocksStore, "get", getting)
        await rig.look()
        assert failed
        assert rig.files() == [1]
        before = len(failed)
        await rig.look()
        assert len(failed) == before  # nor is it looked at again, until something dies in it
        (text,) = (await rig.engine.stats()).anomalies
        assert "file is kept" in text
        monkeypatch.undo()
        assert await payloads(rig) == [b"003"]


@on_loop
async def test_a_close_in_the_middle_of_a_first_look_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked = asyncio.Event()

    async def sample(gc: BodyGC, *_: Any) -> None:
        looked.set()
        while not gc._state.is_closed:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        raise lodeq.ClosedError("the engine is closed")

    monkeypatch.setattr(BodyGC, "_check_sample", sample)
    engine = await lodeq.open(tmp_path / "s", block_cache_bytes=8 << 20)
    await looked.wait()
    await engine.close()
    assert caplog.records == []


@on_loop
async def test_a_pass_looks_at_the_files_in_which_something_died_and_at_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as rig:
        for _ in range(20):
            await rig.fill(1)
        await rig.look()
        assert not rig.bodies.to_look
        receipt = await rig.queue.enqueue(os.urandom(SIZE))
        await rig.engine.cancel(receipt.id)  # the current file is left alone, pass after pass
        current = rig.bodies.files.current
        assert rig.bodies.to_look == {current}
        looked: list[str] = []
        stat = os.stat

        def counted(path: Any, **how: Any) -> os.stat_result:
            looked.append(os.path.basename(path))
            return stat(path, **how)

        with monkeypatch.context() as patch:
            patch.setattr("lodeq.segments.bodies.files.os.stat", counted)
            for _ in range(3):
                await rig.look()
        assert [name for name in looked if name.endswith(".sqs")] == []
        rig.bodies.files.seal()
        await rig.look()
        assert not rig.bodies.to_look


@on_loop
async def test_nothing_is_kept_of_uploads_that_were_broken_off(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:

        async def broken() -> Any:
            yield bytes(4 << 20)
            raise ZeroDivisionError

        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await rig.queue.enqueue_stream(broken())
        await rig.look()
        assert not rig.bodies.to_look
        assert rig.files() == []
