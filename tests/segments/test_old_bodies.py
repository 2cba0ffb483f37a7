"""Body files of the older format: read where they are, left by attrition or by a migration."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from support_bodies import (
    SIZE,
    Opened,
    Rig,
    as_v1,
    crash_image,
    during_the_sync,
    names,
    payloads,
    recorded,
    rewrite,
)
from support_loop import on_loop, settle

import lodeq
import lodeq.testing
from lodeq.coalescer.write_pause import writes_paused
from lodeq.engine.records.keyspace import BODY, BODY_END, body_at_key
from lodeq.engine.records.rows import encode_body_at
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.background.body_gc import BodyGC
from lodeq.segments.bodies.files import BodyFiles
from lodeq.segments.bodies.layout import Location
from lodeq.segments.formats.rdq import Rdq
from lodeq.segments.item import Record
from lodeq.segments.source import FileSource
from lodeq.testing import ManualClock

TEN = [b"%03d" % i for i in range(10)]


async def old_store(root: Path, n: int = 10, *, down: int = 0) -> None:
    """``n`` tasks whose payloads lie in one file of the older format."""
    async with Opened(root) as rig:
        await rig.fill(n)
    as_v1(root, down=down)


async def migrate(rig: Rig) -> lodeq.MigrationReport:
    """To its end: it pauses by a clock that somebody has to move."""
    going = asyncio.ensure_future(rig.engine.migrate_bodies())
    while not going.done():
        await asyncio.sleep(0)
        rig.clock.advance(1.0)
    return await going


async def left(rig: Rig) -> tuple[int, int]:
    """Files and bytes of the older format, by the statistics."""
    stats = await rig.engine.stats()
    return stats.old_body_files, stats.old_body_bytes


@pytest.mark.parametrize("down", [0, 1])
@on_loop
async def test_both_formats_are_read_and_one_is_written(tmp_path: Path, down: int) -> None:
    await old_store(tmp_path, down=down)
    old = f"{1 - down}.rdq"
    size = (tmp_path / "s" / "bodies0" / old).stat().st_size
    for _ in range(2):
        async with Opened(tmp_path) as rig:
            assert [task[:3] for task in await payloads(rig)][:10] == TEN
            assert await left(rig) == (1, size)
            await rig.queue.enqueue(b"new" + bytes(SIZE))
            assert (await rig.engine.verify()).ok
    assert names(tmp_path) == sorted([old, f"{2 - down}.sqs", f"{3 - down}.sqs"])
    async with Opened(tmp_path) as rig:
        assert await payloads(rig) == [*TEN, b"new", b"new"]
        await rig.end(12)
        await rig.look()
        assert rig.files() == []
        assert await left(rig) == (0, 0)


@on_loop
async def test_files_that_are_a_third_dead_are_converted_and_others_stay(tmp_path: Path) -> None:
    await old_store(tmp_path)
    async with Opened(tmp_path) as rig:
        await rig.look()
        await rig.end(3)
        await rig.look()
        assert names(tmp_path) == ["1.rdq"]
        await rig.end(1)
        await rig.look()
        assert names(tmp_path) == ["2.sqs"]
        assert await left(rig) == (0, 0)
        assert await payloads(rig) == TEN[4:]
        assert (await rig.engine.verify()).ok
    async with Opened(tmp_path) as rig:
        assert await payloads(rig) == TEN[4:]


@pytest.mark.parametrize("down", [0, 1])
@on_loop
async def test_a_migration_leaves_the_older_format(tmp_path: Path, down: int) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(10)
        await rig.queue.enqueue_many([lodeq.NewTask(b"all" + bytes(SIZE))] * 5)
    as_v1(tmp_path, down=down)
    async with Opened(tmp_path) as rig:
        assert (await left(rig))[0] == 2
        report = await migrate(rig)
        assert (report.files, report.records, report.files_left) == (2, 11, 0)
        assert 11 * SIZE < report.bytes < 12 * SIZE
        assert await left(rig) == (0, 0)
        assert await payloads(rig) == [*TEN, *[b"all"] * 5]
        assert (await rig.engine.verify()).ok
        assert await migrate(rig) == lodeq.MigrationReport(0, 0, 0, 0)
    assert names(tmp_path) == [f"{3 - down}.sqs"]
    async with Opened(tmp_path) as rig:
        assert await payloads(rig) == [*TEN, *[b"all"] * 5]
        await rig.end(15)
        rig.bodies.files.seal()
        await rig.look()
        assert rig.files() == []


@on_loop
async def test_a_migration_that_is_cancelled_loses_nothing_and_goes_on(tmp_path: Path) -> None:
    await old_store(tmp_path, 80)  # four slices
    async with Opened(tmp_path) as rig:
        first = asyncio.ensure_future(rig.engine.migrate_bodies())
        while not rig.keeper._wakers:  # noqa: ASYNC110 - it pauses, by a clock that nobody moves
            await asyncio.sleep(0)
        first.cancel()
        await settle()
        assert first.cancelled()
        moved = sum(
            rig.location(task.id).file == 2 for task in await rig.queue.list("ready", limit=100)
        )
        assert 20 < moved < 40
        assert names(tmp_path) == ["1.rdq", "2.sqs"]
        report = await migrate(rig)
        assert (report.files, report.records) == (1, 80 - moved)
        assert await payloads(rig) == [b"%03d" % i for i in range(80)]
        assert (await rig.engine.verify()).ok
    assert names(tmp_path) == ["2.sqs"]


@pytest.mark.parametrize("where", ["_move", "_remove"])
@on_loop
async def test_a_crash_between_two_steps_of_a_migration_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    await old_store(tmp_path)
    async with Opened(tmp_path) as rig:

        async def crash(*_: Any) -> None:
            raise lodeq.StorageError("crash")

        with monkeypatch.context() as patch:
            patch.setattr(BodyGC, where, crash)
            with pytest.raises(lodeq.StorageError, match="crash"):
                await migrate(rig)
        assert names(tmp_path) == ["1.rdq", "2.sqs"]
        crash_image(tmp_path, tmp_path / "crashed")
    async with Opened(tmp_path / "crashed") as rig:
        assert await payloads(rig) == TEN
        report = await migrate(rig)
        assert (report.files, report.records) == (1, 10 if where == "_move" else 0)
        await rig.look()
        assert await payloads(rig) == TEN
        assert (await rig.engine.verify()).ok
        assert len(rig.files()) == 1
    assert names(tmp_path / "crashed")[0].endswith(".sqs")


@pytest.mark.slow
@on_loop
async def test_a_crash_at_any_step_of_a_migration_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_store(tmp_path, 40)  # two slices
    crashed: list[Path] = []

    def crashes(where: type, name: str) -> None:
        call = getattr(where, name)

        def step(*args: Any) -> Any:
            done = call(*args)
            crashed.append(tmp_path / f"{len(crashed)}-{name}")
            crash_image(tmp_path, crashed[-1])
            return done

        patch.setattr(where, name, step)

    async with Opened(tmp_path, sync_interval=3600.0) as rig:
        with monkeypatch.context() as patch:
            for where, name in (
                (BodyFiles, "_begin"),
                (BodyFiles, "sync"),
                (RocksStore, "write"),
                (RocksStore, "_sync"),
                (BodyFiles, "unlink"),
            ):
                crashes(where, name)
            assert (await migrate(rig)).records == 40
    steps = [path.name.partition("-")[2] for path in crashed]
    assert [step for step in steps if step != "sync"] == [
        "_begin",
        "write",
        "write",
        "_sync",
        "unlink",
    ]
    for root in crashed:
        async with Opened(root) as rig:
            assert await payloads(rig) == [b"%03d" % i for i in range(40)]
            await migrate(rig)
            assert await payloads(rig) == [b"%03d" % i for i in range(40)]
            assert (await rig.engine.verify()).ok
            assert await left(rig) == (0, 0)


@on_loop
async def test_an_old_file_goes_only_when_its_copies_and_their_rows_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_store(tmp_path)
    did: list[str] = []
    recorded(monkeypatch, did)
    async with Opened(tmp_path, sync_interval=3600.0) as rig:  # nosync mode
        did.clear()
        await migrate(rig)
        at = did.index("remove")
        assert [what for what in did[: at + 1] if what != "bodies"] == ["rows", "log", "remove"]
        assert did[0] == "bodies"


@on_loop
async def test_what_ends_while_it_is_migrated_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_store(tmp_path)
    async with Opened(tmp_path) as rig:
        await rig.end(8)

        async def act() -> None:
            await rig.end(1)

        await during_the_sync(rig, monkeypatch, act)
        assert rig.rows() == 1
        assert await payloads(rig) == TEN[9:]
        assert names(tmp_path) == ["2.sqs"]
        assert (await rig.engine.verify()).ok


@on_loop
async def test_a_migration_and_the_keeper_never_copy_the_same_file(tmp_path: Path) -> None:
    await old_store(tmp_path)
    async with Opened(tmp_path) as rig:
        await rig.end(6)
        before = await rig.engine.stats()
        steps = [rig.engine.migrate_bodies(), rig.engine.migrate_bodies(), rig.look()]
        going = [asyncio.ensure_future(step) for step in steps]
        while not all(step.done() for step in going):
            await asyncio.sleep(0)
            rig.clock.advance(1.0)
        await asyncio.gather(*going)
        assert sum(report.records for report in (going[0].result(), going[1].result())) <= 4
        assert names(tmp_path) == ["2.sqs"]
        (file,) = rig.bodies.files.files()
        assert file.bytes < 5 * SIZE
        assert await payloads(rig) == TEN[6:]
        assert before.old_body_files == 1


@on_loop
async def test_a_migration_waits_for_a_checkpoint_and_a_checkpoint_has_both_formats(
    tmp_path: Path,
) -> None:
    await old_store(tmp_path)
    async with Opened(tmp_path) as rig:
        await rig.queue.enqueue(b"new" + bytes(SIZE))
        await rig.engine.checkpoint(tmp_path / "copy")
        rig.keeper.pauses += 1
        going = asyncio.ensure_future(rig.engine.migrate_bodies())
        for _ in range(50):
            await asyncio.sleep(0)
            rig.clock.advance(1.0)
        assert not going.done()
        assert "1.rdq" in names(tmp_path)
        rig.keeper.pauses -= 1
        while not going.done():
            await asyncio.sleep(0)
            rig.clock.advance(1.0)
        assert (await going).records == 10
        await rig.end(11)
        rig.bodies.files.seal()
        await rig.look()
    copied = sorted(path.name for path in (tmp_path / "copy" / "bodies0").iterdir())
    assert copied == ["1.rdq", "2.sqs"]
    (tmp_path / "again").mkdir()
    lodeq.restore(tmp_path / "copy", tmp_path / "again" / "s")
    async with Opened(tmp_path / "again") as rig:
        assert await payloads(rig) == [*TEN, b"new"]
        assert (await rig.engine.verify()).ok


@on_loop
async def test_a_migration_without_room_says_so_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_store(tmp_path)
    async with Opened(tmp_path) as rig:

        def full(files: BodyFiles, records: object) -> list[Location]:
            raise lodeq.StorageFullError("No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(BodyFiles, "append_all", full)
            with pytest.raises(lodeq.StorageFullError):
                await migrate(rig)
        assert await payloads(rig) == TEN
        assert (await migrate(rig)).files == 1
        assert await payloads(rig) == TEN


@on_loop
async def test_a_dead_range_gives_its_pages_back_and_reads_as_a_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_store(tmp_path)
    async with Opened(tmp_path) as rig:
        await rig.end(8)
        path = rig.bodies.files.path(1)
        before = os.stat(path).st_blocks * 512
        rig.engine._state.is_disk_low = True
        await rig.keeper.step(rig.shard)
        assert before - os.stat(path).st_blocks * 512 > 7 * SIZE
        with FileSource(path) as source:
            assert Rdq().verify(source) == []
            records = [item for item in Rdq().scan(source) if isinstance(item, Record)]
        assert [record.payload[:3] for record in records] == TEN[8:]
        assert await payloads(rig) == TEN[8:]


@on_loop
async def test_what_cannot_be_read_keeps_its_file_and_is_told(tmp_path: Path) -> None:
    await old_store(tmp_path)
    path = tmp_path / "s" / "bodies0" / "1.rdq"
    async with Opened(tmp_path) as rig:
        path.write_bytes(path.read_bytes()[:-SIZE])  # the last one is cut
        report = await migrate(rig)
        assert (report.files, report.records, report.files_left) == (0, 9, 1)
        assert "1.rdq' at" in (await rig.engine.health()).reasons[-1]
        assert [task.payload and task.payload[:3] for task in await rig.queue.list("ready")] == [
            *TEN[:9],
            None,
        ]
        await rig.engine.cancel((await rig.queue.list("ready"))[-1].id)
        assert (await migrate(rig)).files == 1
    assert names(tmp_path) == ["2.sqs"]


@on_loop
async def test_a_row_that_fits_no_task_keeps_its_file_and_copies_nothing_twice(
    tmp_path: Path,
) -> None:
    await old_store(tmp_path)
    stray = body_at_key(1, 10 * (SIZE + 3 + 25), bytes(16))
    rewrite(tmp_path, lambda store: store.write([(stray, encode_body_at(SIZE + 28))]))
    async with Opened(tmp_path) as rig:
        report = await migrate(rig)
        assert (report.records, report.files_left) == (10, 1)
        size = sum(file.bytes for file in rig.bodies.files.files())
        for _ in range(3):
            await rig.look()
        assert sum(file.bytes for file in rig.bodies.files.files()) == size
        assert not (await rig.engine.verify()).ok


@on_loop
async def test_closing_waits_for_no_migration(tmp_path: Path) -> None:
    await old_store(tmp_path, 80)
    async with Opened(tmp_path) as rig:
        going = asyncio.ensure_future(rig.engine.migrate_bodies())
        while not rig.keeper._wakers:  # noqa: ASYNC110 - it pauses, by a clock that nobody moves
            await asyncio.sleep(0)
        await rig.engine.close()
        with pytest.raises(lodeq.ClosedError):
            await going
    async with Opened(tmp_path) as rig:
        assert len(await payloads(rig)) == 80
        assert (await rig.engine.verify()).ok


@on_loop
async def test_cut_anywhere_an_old_file_loses_what_was_cut_and_nothing_else(
    tmp_path: Path,
) -> None:
    bodies = [b"first" * 20, b"second" * 20, b"third" * 20]
    async with Opened(tmp_path, body_bytes_min=64) as rig:
        ids = [(await rig.queue.enqueue(body)).id for body in bodies]
    as_v1(tmp_path)
    path = tmp_path / "s" / "bodies0" / "1.rdq"
    whole = path.read_bytes()
    async with Opened(tmp_path) as rig:
        ends = [sum(rig.location(task_id)[1:]) for task_id in ids]
        for cut in range(len(whole)):
            fill = (b"", b"\0", b"\xa5")[cut % 3]
            path.write_bytes(whole[:cut] + fill * (len(whole) - cut))
            for task_id, body, end in zip(ids, bodies, ends, strict=True):
                task = await rig.engine.get(task_id)
                assert task is not None
                assert task.payload == (body if end <= cut else None)
                if end > cut:
                    with pytest.raises(lodeq.RecordCorruptError, match=r"1\.rdq"):
                        rig.body(task_id)


@pytest.mark.parametrize("files", [3, 40])
@on_loop
async def test_a_dirty_open_syncs_what_may_not_be_durable_and_reads_one_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    async with Opened(tmp_path) as rig:
        for _ in range(files // 2):
            await rig.fill(1)
    as_v1(tmp_path)
    async with Opened(tmp_path) as rig:
        for _ in range(files // 2):
            await rig.fill(1)
        crash_image(tmp_path, tmp_path / "crashed")  # never closed
    synced: list[str] = []
    read: list[int] = []
    real_sync, real_pread, real_store = os.fdatasync, os.pread, RocksStore.open

    def counted_sync(fd: int) -> None:
        if (path := os.readlink(f"/proc/self/fd/{fd}")).endswith((".rdq", ".sqs")):
            synced.append(os.path.basename(path))
        real_sync(fd)

    def counted_store(*args: Any, **how: Any) -> RocksStore:
        synced.append("rows")  # whatever it replays, it makes durable
        return real_store(*args, **how)

    def counted_pread(fd: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith((".rdq", ".sqs")):
            read.append(size)
        return real_pread(fd, size, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", counted_sync)
        patch.setattr(RocksStore, "open", counted_store)
        patch.setattr(os, "pread", counted_pread)
        async with Opened(tmp_path / "crashed") as rig:
            half = files // 2
            assert synced == [*(f"{half + 1 + i}.sqs" for i in range(half)), "rows"]
            # Before anything is changed, and twice more; and of each file whose it is.
            assert sorted(read) == [32] * (2 * half) + [64] * 3
            patch.undo()
            assert len(await payloads(rig)) == files // 2 * 2
            assert rig.rows() == len(rig.shard.store.scan(BODY, BODY_END, 100))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", counted_sync)
        synced.clear()
        async with Opened(tmp_path / "crashed"):  # closed as it should be
            assert synced == []


def test_it_runs_on_trio_too(tmp_path: Path) -> None:
    asyncio.run(_fill(tmp_path))
    as_v1(tmp_path)

    async def main() -> None:
        async with lodeq.open(tmp_path / "s") as engine:
            with trio.move_on_after(0):
                await engine.migrate_bodies()
            assert (await engine.migrate_bodies()).files_left == 0
            found = await engine.queue("q").list("ready")
            assert [task.payload[:3] for task in found] == TEN[:3]

    trio.run(main)
    assert all(name.endswith(".sqs") for name in names(tmp_path))


async def _fill(root: Path) -> None:
    async with Opened(root) as rig:
        await rig.fill(3)


@on_loop
async def test_in_memory_there_is_nothing_to_do() -> None:
    async with lodeq.testing.open(clock=ManualClock()) as engine:
        assert await engine.migrate_bodies() == lodeq.MigrationReport(0, 0, 0, 0)


def test_a_thread_may_ask_for_it(tmp_path: Path) -> None:
    with lodeq.sync.open(tmp_path / "s") as engine:
        assert engine.migrate_bodies() == lodeq.MigrationReport(0, 0, 0, 0)


@pytest.mark.parametrize("how", ["removed", "punched", "copied out"])
@on_loop
async def test_copies_that_wait_for_their_turn_keep_the_file_they_are_in(
    tmp_path: Path, how: str
) -> None:
    """No row leads to them yet, so the file they are in, sealed meanwhile, looks dead."""
    await old_store(tmp_path)
    async with Opened(tmp_path, durability="fsync", submit_queue_max=1) as rig:
        receipts = [await rig.queue.enqueue(b"new" + bytes(SIZE)) for _ in range(2)]
        for receipt in receipts if how == "removed" else receipts[:1]:
            await rig.engine.cancel(receipt.id)
        with writes_paused(rig.shard.coalescer):
            callers = [asyncio.ensure_future(rig.queue.enqueue(b"small")) for _ in range(5)]
            going = asyncio.ensure_future(rig.engine.migrate_bodies())
            while len(rig.shard.coalescer.submit_line) < len(callers):  # noqa: ASYNC110 - a thread syncs
                await asyncio.sleep(0)
            rig.bodies.files.seal()  # it is full, in a life in which more is written
            rig.engine._state.is_disk_low = how == "punched"
            before = (tmp_path / "s/bodies0/2.sqs").read_bytes()
            rig.bodies.died.clear()  # and quiet for long
            looking = asyncio.ensure_future(rig.keeper.step(rig.shard))
            await settle()
        while not (going.done() and looking.done()):
            await asyncio.sleep(0)
            if rig.keeper._wakers:
                rig.clock.advance(1.0)
        await looking
        assert (await going).records == 10
        await asyncio.gather(*callers)
        assert (tmp_path / "s/bodies0/2.sqs").read_bytes() == before
        assert [found for found in await payloads(rig) if found.isdigit()] == TEN
        assert (await rig.engine.verify()).ok
