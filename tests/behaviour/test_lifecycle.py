"""The lifecycle journal: whatever happens, every durable transition arrives."""

from __future__ import annotations

import asyncio
import errno
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from support_live import copy_live
from support_loop import on_loop

import lodeq
from lodeq.coalescer.commit_loop import CLOSE_STALLED_S_MAX
from lodeq.engine.records.keyspace import EVENTS, EVENTS_END, events_key
from lodeq.engine.store.rocks import RocksStore
from lodeq.errors import InvalidNameError, StorePathError, UsageError
from lodeq.repository.background import event_publisher as pumping
from lodeq.repository.background.event_publisher import EventPublisher
from lodeq.segments.journal.fsync_thread import SyncJob
from lodeq.segments.journal.writer import LogWriter
from lodeq.segments.lifecycle import Event, Reader, RolledBack, events, open_tailer

NEVER_S = 3600.0  # between syncs: nothing becomes durable but by ``fsync`` and ``close``


def opened(path: Path, **how: Any) -> Any:
    how.setdefault("journal", "tasks")
    return lodeq.open(path / "s", sync_interval=NEVER_S, **how)


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is moved but by ``step``, and when the engine is closed."""
    monkeypatch.setattr(EventPublisher, "start", lambda _: None)


def pump_of(engine: lodeq.Engine) -> EventPublisher:
    pump = engine._runtime.event_publisher
    assert pump is not None
    return pump


def rows(engine: lodeq.Engine) -> int:
    return sum(len(shard.store.scan(EVENTS, EVENTS_END, 100_000)) for shard in engine._state.shards)


async def told(
    path: Path, reader: Reader | None = None, journal: str = "tasks"
) -> list[Event | RolledBack]:
    """All that the journal tells a reader."""
    tailer = open_tailer(path / "s", journal)
    read = Reader() if reader is None else reader
    try:
        return [said for record in await tailer.read(100_000) for said in read.read(record)]
    finally:
        tailer.close()


def kinds(said: list[Event | RolledBack]) -> list[str]:
    return [one.kind.name if isinstance(one, Event) else "ROLLED_BACK" for one in said]


async def lives(engine: lodeq.Engine, count: int) -> list[Any]:
    """So many tasks that are enqueued, claimed, completed, each in a commit of its own."""
    queue = engine.queue("mail")
    ids = [(await queue.enqueue(b"x")).id for _ in range(count)]
    for _ in ids:
        (lease,) = await queue.claim()
        await lease.complete()
    return ids


def complete(said: list[Event | RolledBack], ids: list[Any]) -> bool:
    """Each of the tasks told its three events, once and in order."""
    for task_id in ids:
        mine = [one.kind for one in said if isinstance(one, Event) and one.task_id == task_id]
        if [kind.name for kind in mine] != ["ENQUEUED", "CLAIMED", "COMPLETED"]:
            return False
    return True


@on_loop
@pytest.mark.parametrize("durability", ["nosync", "fsync"])
async def test_everything_has_arrived_when_it_is_closed(tmp_path: Path, durability: Any) -> None:
    ids = []
    for _ in range(3):
        async with opened(tmp_path, shards=2, durability=durability) as engine:
            ids += await lives(engine, 10)
        said = await told(tmp_path)
        assert complete(said, ids)
        assert len(said) == 3 * len(ids)
    async with opened(tmp_path, journal=None) as engine:
        assert rows(engine) == 0
        assert (await engine.verify()).ok


@on_loop
async def test_it_is_told_while_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    async with opened(tmp_path, durability="fsync") as engine:
        await engine.queue("mail").enqueue(b"x")
        tailer = open_tailer(tmp_path / "s", "tasks")
        reader, said = Reader(), []
        while not said:
            said = [one for r in await tailer.read(wait=5) for one in reader.read(r)]
        assert kinds(said) == ["ENQUEUED"]
        tailer.close()
        assert (await engine.health()).ok


@on_loop
async def test_nothing_is_told_before_it_is_durable(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        ids = await lives(engine, 2)
        pump = pump_of(engine)
        while await pump.step():  # the start of the incarnation is durable
            pass
        assert await told(tmp_path) == []
        assert pump.is_behind
        await engine.fsync()
        while await pump.step():
            pass
        assert complete(await told(tmp_path), ids)


@on_loop
async def test_a_journal_that_is_opened_again_is_kept_by_whoever_is_cancelled(
    tmp_path: Path,
) -> None:
    """After a failure of the disk, and by somebody who cancels all there is."""
    is_open, may_end = threading.Event(), threading.Event()
    async with opened(tmp_path) as engine:
        ids = await lives(engine, 2)
        await engine.fsync()
        pump = pump_of(engine)
        await pump.close_journal()
        make = pump._make

        def slow() -> Any:
            journal = make()
            is_open.set()
            assert may_end.wait(30)
            return journal

        pump._make = slow
        step = asyncio.create_task(pump.step())
        await asyncio.sleep(0)
        assert is_open.wait(30)
        step.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await step
    assert complete(await told(tmp_path), ids)  # else: locked, and nobody has it


@on_loop
async def test_a_crash_before_rows_go_tells_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(EventPublisher, "_drop_moved", lambda self: setattr(self, "_moving", []))
        patch.setattr(EventPublisher, "finish", EventPublisher.close_journal)
        async with opened(tmp_path) as engine:
            ids = await lives(engine, 3)
            await engine.fsync()
            assert await pump_of(engine).step()
            assert rows(engine) == 1 + 9
    reader = Reader()
    assert complete(await told(tmp_path, reader), ids)
    async with opened(tmp_path):
        pass
    tailer = open_tailer(tmp_path / "s", "tasks")
    repeats = [one for record in await tailer.read() for one in events(record)]
    tailer.close()
    assert kinds(repeats).count("COMPLETED") == 6
    assert await told(tmp_path, reader) == []
    assert complete(await told(tmp_path), ids)


@on_loop
async def test_a_kill_at_any_time_loses_nothing(tmp_path: Path) -> None:
    """A copy of the folder is what a killed process leaves; the journal is not there yet."""
    async with opened(tmp_path, shards=2) as engine:
        ids: list[Any] = []
        for i in range(4):
            ids += await lives(engine, 3)
            if i == 1:
                await engine.fsync()
                await pump_of(engine).step()
            copy = tmp_path / str(i) / "s"
            copy_live(tmp_path / "s", copy, symlinks=True)
            async with opened(tmp_path / str(i)) as again:
                assert (await again.verify()).ok
            said = await told(tmp_path / str(i))
            assert complete(said, ids)
            assert kinds(said).count("ROLLED_BACK") == 0


@on_loop
async def test_leases_that_go_back_at_open_are_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.queue("mail").enqueue(b"x")
        await engine.queue("mail").claim()
    async with opened(tmp_path):
        pass
    said = await told(tmp_path)
    assert kinds(said) == ["ENQUEUED", "CLAIMED", "NACKED"]
    last = said[-1]
    assert isinstance(last, Event)
    assert (last.reason, last.incarnation) == ("process died", 2)


@on_loop
async def test_a_power_cut_leaves_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with a hole: what survived is told, and the mark says what did not."""
    async with opened(tmp_path) as engine:
        queue = engine.queue("mail")
        for _ in range(3):
            await queue.enqueue(b"x")
        await engine.fsync()
        await pump_of(engine).step()
        await queue.enqueue(b"y")
        lost: list[object] = []
        with monkeypatch.context() as patch:
            patch.setattr(RocksStore, "write", lambda _, ops: lost.append(ops))
            await queue.enqueue(b"y")
        await queue.enqueue(b"y")
        copy_live(tmp_path / "s", tmp_path / "cut" / "s", symlinks=True)
    assert len(lost) == 1
    reader = Reader()
    before = await told(tmp_path / "cut", reader)
    assert kinds(before) == ["ENQUEUED"] * 3
    async with opened(tmp_path / "cut") as engine:
        assert (await engine.stats()).ready == 5
    after = await told(tmp_path / "cut", reader)
    assert kinds(after) == ["ENQUEUED", "ENQUEUED", "ROLLED_BACK"]
    mark, first, last = after[-1], after[0], after[1]
    assert isinstance(mark, RolledBack)
    assert isinstance(first, Event)
    assert isinstance(last, Event)
    assert mark == RolledBack(0, 1, last.number, ((first.number + 1, first.number + 1),))
    assert kinds(await told(tmp_path / "cut")) == [*kinds(before), *kinds(after)]


@on_loop
async def test_a_full_disk_stops_the_journal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with opened(tmp_path) as engine:
        ids = await lives(engine, 2)
        await engine.fsync()
        pump = pump_of(engine)
        with monkeypatch.context() as patch:
            patch.setattr(LogWriter, "_write", refuse)
            for _ in range(3):
                with pytest.raises(lodeq.StorageFullError):
                    await pump.step()
            assert any("journal is not written" in why for why in (await engine.health()).reasons)
            ids += await lives(engine, 2)
            assert rows(engine) == 1 + 12
            await engine.fsync()
        while await pump.step():
            pass
        assert (await engine.health()).ok
    said = await told(tmp_path)
    assert complete(said, ids)
    assert len(said) == 12


@on_loop
async def test_a_close_out_of_time_leaves_no_future_that_nobody_awaits(tmp_path: Path) -> None:
    """Its error would be printed with a traceback, as never retrieved."""
    async with opened(tmp_path) as engine:
        await lives(engine, 2)
        (shard,) = engine._state.shards
        pump = pump_of(engine)
        pump._give_up()
        await pump._await_durable(shard)
        assert shard.coalescer._syncer._waiters == []
        pump._is_out_of_time = False


@on_loop
async def test_a_close_gives_a_full_disk_up_before_it_waits_for_the_journal(tmp_path: Path) -> None:
    """Both waits are ten seconds: one after the other they would be twenty."""
    async with opened(tmp_path) as engine:
        (shard,) = engine._state.shards
        pump, left = pump_of(engine), []
        finish = pump.finish

        async def noted() -> None:
            left.append(shard.coalescer._retry_left_s)
            await finish()

        pump.finish = noted  # type: ignore[method-assign]
    assert left == [CLOSE_STALLED_S_MAX]


@on_loop
async def test_a_disk_that_fails_stops_the_journal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: SyncJob) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with opened(tmp_path) as engine:
        ids = await lives(engine, 2)
        await engine.fsync()
        pump = pump_of(engine)
        with monkeypatch.context() as patch:
            patch.setattr(SyncJob, "run", fail)
            with pytest.raises(lodeq.StorageError):
                await pump.step()
            assert not (await engine.health()).ok
            with pytest.raises(lodeq.StorageError):
                await pump.step()
        assert rows(engine) == 1 + 6
        ids += await lives(engine, 1)
        await engine.fsync()
        while await pump.step():
            pass
        assert (await engine.health()).ok
    assert complete(await told(tmp_path), ids)


@on_loop
async def test_a_close_that_cannot_write_it_leaves_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        async with opened(tmp_path) as engine:
            ids = await lives(engine, 2)
            patch.setattr(LogWriter, "_write", refuse)
    async with opened(tmp_path, journal=None) as engine:  # they wait for whoever has a journal
        assert rows(engine) == 1 + 6
        assert (await engine.verify()).ok
        silent = await lives(engine, 1)
        assert rows(engine) == 1 + 6
    async with opened(tmp_path):
        pass
    said = await told(tmp_path)
    assert complete(said, ids)
    assert not complete(said, silent)
    assert len(said) == 6


@on_loop
async def test_what_memory_does_not_hold_is_read_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pumping, "SCAN_ROWS", 3)
    monkeypatch.setattr(pumping, "MOVE_ROWS", 5)
    async with opened(tmp_path) as engine:
        pump = pump_of(engine)
        while await pump.step():
            pass
        tail = engine._state.shards[0].coalescer.events
        assert tail is not None
        tail.held_bytes_max = 200
        ids = []
        for _ in range(3):
            ids += await lives(engine, 7)
            assert tail.held_bytes < 400
            assert not tail.is_complete
            await engine.fsync()
            while await pump.step():
                pass
            assert (tail.held_bytes, len(tail.rows)) == (0, 0)
            assert tail.is_complete
    said = await told(tmp_path)
    assert complete(said, ids)
    assert len(said) == 3 * len(ids)


@on_loop
async def test_a_damaged_row_is_reported_and_holds_nothing_up(tmp_path: Path) -> None:
    async with opened(tmp_path, journal=None) as engine:
        (shard,) = engine._state.shards
        shard.store.write([(events_key(1), b"damaged")])
        assert [one.kind for one in (await engine.verify()).findings] == ["damaged"]
    async with opened(tmp_path) as engine:
        ids = await lives(engine, 1)
        await engine.fsync()
        while await pump_of(engine).step():
            pass
        assert any("are damaged" in why for why in (await engine.health()).reasons)
    assert complete(await told(tmp_path), ids)


@on_loop
async def test_a_checkpoint_has_the_rows_and_not_the_journal(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        ids = await lives(engine, 2)
        await engine.checkpoint(tmp_path / "copy")
    lodeq.restore(tmp_path / "copy", tmp_path / "restored" / "s")
    assert not (tmp_path / "restored" / "s" / "journals").exists()
    async with opened(tmp_path / "restored"):
        pass
    assert complete(await told(tmp_path / "restored"), ids)


@on_loop
async def test_a_poisoned_shard_tells_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as engine:
        await engine.queue("mail").enqueue(b"x")
        await engine.fsync()
        engine._state.shards[0].coalescer.fail(OSError("disk"))
        assert not await pump_of(engine).step()
        assert not pump_of(engine).is_behind
    async with opened(tmp_path):
        pass
    assert kinds(await told(tmp_path)) == ["ENQUEUED"]


@on_loop
async def test_it_lies_within_the_store_and_is_nobody_elses(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await lives(engine, 1)
    for folder in ("journals", "journals/tasks"):
        assert stat.S_IMODE((tmp_path / "s" / folder).stat().st_mode) == 0o700
    (tmp_path / "s" / "journals" / "other").symlink_to(tmp_path)
    with pytest.raises(StorePathError):
        await opened(tmp_path)


@on_loop
async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    for journal in ("", "Tasks", "../x", "a/b", 7):
        with pytest.raises(InvalidNameError):
            opened(tmp_path, journal=journal)
        with pytest.raises(InvalidNameError):
            open_tailer(tmp_path / "s", journal)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        opened(tmp_path, journal=None, journal_retention=lodeq.journal.Retention())
    with pytest.raises(UsageError):
        opened(tmp_path, journal_retention=7)
    with pytest.raises(UsageError):
        opened(tmp_path, journal=None, journal_roll=lodeq.journal.Roll())
    with pytest.raises(UsageError):
        opened(tmp_path, journal_roll=7)
    with pytest.raises(StorePathError):
        open_tailer(tmp_path / "s", "tasks")
    assert not (tmp_path / "s").exists()
    async with opened(tmp_path):  # somebody else writes that journal: the store cannot be opened
        pass
    async with lodeq.journal.open(tmp_path / "s" / "journals" / "tasks"):
        with pytest.raises(lodeq.LockedError):
            await opened(tmp_path)
    async with opened(tmp_path):
        pass


def test_scripts_have_it_too(tmp_path: Path) -> None:
    with lodeq.sync.open(tmp_path / "s", journal="tasks") as engine:
        engine.queue("mail").enqueue(b"x")
    assert kinds(asyncio.run(told(tmp_path))) == ["ENQUEUED"]
