"""A journal on a loop: what an acknowledgement says, who shares a fsync_thread, who is woken."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from support_loop import on_loop, settle

import lodeq
from lodeq.segments.journal import fsync_thread
from lodeq.segments.journal.journal import Journal
from lodeq.segments.journal.layout import list_files
from lodeq.segments.journal.open import open_journal, open_tailer
from lodeq.segments.journal.retention import Retention
from lodeq.segments.journal.roll import Roll
from lodeq.segments.journal.waits import Ack
from lodeq.segments.journal.writer import LogWriter
from lodeq.testing import ManualClock


@asynccontextmanager
async def opened(path: Path, **how: Any) -> AsyncIterator[Journal]:
    async with open_journal(path, **{"clock": ManualClock(), **how}) as journal:
        yield journal


def texts(records: list[Any]) -> list[bytes]:
    return [record.payload for record in records]


@on_loop
async def test_an_ack_says_how_far_it_is(tmp_path: Path) -> None:
    for flush, state in (("async", "buffered"), ("batch", "flushed"), ("sync", "fsynced")):
        async with opened(tmp_path / flush, flush=flush) as journal:
            assert await journal.append(b"a") == Ack(1, 1, state)
            assert await journal.append_many([b"b", b"c"]) == Ack(2, 3, state)
            for until in ("buffered", "flushed", "fsynced"):
                assert (await journal.append(b"", until=until)).state == until
        async with opened(tmp_path / flush) as journal:
            assert journal.following == 7
            assert journal.findings == ()


@on_loop
async def test_an_unknown_state_is_refused_before_anything_is_appended(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        with pytest.raises(lodeq.UsageError, match="until 'written' is not"):
            await journal.append(b"a", until="written")  # type: ignore[arg-type]
        assert journal.following == 1


@on_loop
async def test_what_is_buffered_is_written_within_a_turn(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        other = open_tailer(tmp_path / "j", clock=ManualClock())
        await journal.append(b"a")
        assert await other.read() == []
        await settle(2)
        assert texts(await other.read()) == [b"a"]
        other.close()


@on_loop
async def test_appends_of_a_turn_are_one_write_and_one_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "j", flush="sync") as journal:
        await journal.append(b"first")
        writes, syncs = [], []
        sync = os.fdatasync
        for name in ("write", "writev"):
            call = getattr(os, name)
            monkeypatch.setattr(
                os, name, lambda fd, data, call=call: writes.append(1) or call(fd, data)
            )
        monkeypatch.setattr(os, "fdatasync", lambda fd: syncs.append(fd) or sync(fd))
        acks = await asyncio.gather(*(journal.append(b"%d" % i) for i in range(100)))
        assert [ack.first for ack in acks] == list(range(2, 102))
        assert len(writes) == 1
        assert len(syncs) <= 2  # the log's, and the position's


@on_loop
async def test_a_batch_is_synced_by_size_or_by_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(
        tmp_path / "j", flush="batch", batch_bytes=1000, batch_interval=5.0, clock=clock
    ) as journal:
        writer = journal._writer
        await journal.append(b"small")
        assert writer.durable == 0
        clock.advance(5.0)
        await until(lambda: writer.durable == 1)
        await journal.append(bytes(2000))
        await until(lambda: writer.durable == 2)


async def until(holds: Any) -> None:
    """Turn by turn: a sync runs in a thread."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


@on_loop
async def test_a_tailer_is_woken_by_an_append(tmp_path: Path) -> None:
    async with opened(tmp_path / "j", roll=Roll(records=2)) as journal:
        tailer = journal.tailer()  # before the first append, and before the first file
        waiting = asyncio.create_task(tailer.read(wait=None))
        await settle()
        assert not waiting.done()
        await journal.append(b"a")
        assert texts(await waiting) == [b"a"]
        for i in range(10):
            waiting = asyncio.create_task(tailer.read(wait=None))
            await settle()
            await journal.append(b"%d" % i)
            assert texts(await waiting) == [b"%d" % i]
        assert not tailer.gaps


@on_loop
async def test_a_wait_ends_with_its_time_or_the_journal(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path / "j", clock=clock) as journal:
        tailer, other = journal.tailer(), journal.tailer()
        waiting = asyncio.create_task(tailer.read(wait=3.0))
        ended = asyncio.create_task(other.read(wait=None))
        await settle()
        clock.advance(2.9)
        await settle()
        assert not waiting.done()
        clock.advance(0.2)
        assert await waiting == []
    assert await ended == []
    tailer.close()
    with pytest.raises(lodeq.ClosedError):
        await tailer.read()


@on_loop
async def test_a_named_tailer_goes_on_where_it_was_stored(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        await journal.append_many([b"%d" % i for i in range(10)], until="flushed")
        tailer = journal.tailer("mailer")
        assert texts(await tailer.read(4)) == [b"0", b"1", b"2", b"3"]
        tailer.store()
        assert texts(await tailer.read(2)) == [b"4", b"5"]
        assert texts(await journal.tailer("mailer").read(1)) == [b"4"]
        assert texts(await journal.tailer("another", start=9).read()) == [b"8", b"9"]
        assert await journal.tailer(start="end").read() == []
        # Another process would do the same.
        assert texts(await open_tailer(tmp_path / "j", "mailer").read(1)) == [b"4"]
        for name in ("../x", "", "a/b", "A"):
            with pytest.raises(lodeq.InvalidNameError):
                journal.tailer(name)


@on_loop
async def test_a_loop_stores_what_its_body_has_finished(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        await journal.append_many([b"%d" % i for i in range(5)], until="flushed")
        tailer = journal.tailer("mailer")
        async for record in tailer:
            if record.payload == b"2":
                tailer.store()  # the third is not finished
                break
        assert texts(await journal.tailer("mailer").read(1)) == [b"2"]


@on_loop
async def test_an_expired_record_is_told_nobody(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path / "j", clock=clock) as journal:
        await journal.append(b"short", ttl=timedelta(seconds=5))
        await journal.append(b"long", ttl=50, until="flushed")
        assert texts(await journal.tailer().read()) == [b"short", b"long"]
        clock.advance(6)
        assert texts(await journal.tailer().read()) == [b"long"]
        clock.advance(60)
        assert await journal.tailer().read() == []
        with pytest.raises(lodeq.UsageError):
            await journal.append(b"", ttl=0)


async def fill(journal: Journal, clock: ManualClock, n: int) -> None:
    for i in range(n):
        await journal.append(b"%d" % i, until="fsynced")
        clock.advance(1.0)


def firsts(journal: Journal) -> list[int]:
    return [file.first for file in list_files(journal._writer.root)]


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (Retention(records=3), [8, 9, 10]),
        (Retention(seconds=4.0), [7, 8, 9, 10]),
        (Retention(bytes=410), [8, 9, 10]),
        (Retention(records=0, files_min=5), [6, 7, 8, 9, 10]),
        (Retention(records=0), [10]),
        (Retention(files=4), [7, 8, 9, 10]),
        (Retention(files=1), [10]),
        (Retention(files=10), list(range(1, 11))),
        (Retention(files=4, records=3), [8, 9, 10]),
        (Retention(), list(range(1, 11))),
    ],
)
@on_loop
async def test_retention(tmp_path: Path, rule: Retention, kept: list[int]) -> None:
    clock = ManualClock()
    async with opened(tmp_path / "j", clock=clock, roll=Roll(records=1)) as journal:
        await fill(journal, clock, 10)
        due = journal.trim(rule, dry_run=True)
        assert firsts(journal) == list(range(1, 11))
        assert journal.trim(rule) == due
        assert firsts(journal) == kept
        assert journal.trim(rule) == []
        tailer = journal.tailer()
        assert [record.sequence for record in await tailer.read()] == kept
        assert not tailer.gaps
        tailer.seek(1)
        assert [record.sequence for record in await tailer.read()] == kept
        assert [(gap.first, gap.last) for gap in tailer.gaps] == [(1, kept[0] - 1)] * (kept[0] > 1)


@on_loop
async def test_retention_honours_the_slowest_named_tailer(tmp_path: Path) -> None:
    clock, rule = ManualClock(), Retention(records=0)
    async with opened(tmp_path / "j", clock=clock, roll=Roll(records=1)) as journal:
        await fill(journal, clock, 6)
        slow, quick = journal.tailer("slow"), journal.tailer("quick")
        await slow.read(2)
        await quick.read(5)
        slow.store()
        quick.store()
        assert [file.first for file in journal.trim(rule)] == [1, 2]
        assert firsts(journal) == [3, 4, 5, 6]
        assert [file.first for file in journal.trim(Retention(records=0, tailers=False))] == [
            3,
            4,
            5,
        ]


@pytest.mark.parametrize("is_alone", [False, True], ids=["with the writer", "beside it"])
@on_loop
async def test_the_place_of_a_named_tailer_counts_from_its_opening(
    tmp_path: Path, *, is_alone: bool
) -> None:
    clock, rule = ManualClock(), Retention(records=0)
    async with opened(tmp_path / "j", clock=clock, roll=Roll(records=1)) as journal:
        await fill(journal, clock, 6)

        def tailer(name: str | None, start: Any) -> Any:
            if is_alone:
                return open_tailer(tmp_path / "j", name, start=start, clock=clock)
            return journal.tailer(name, start=start)

        late, at = tailer("late", "end"), tailer("at", 4)
        nameless = tailer(None, "start")
        assert [file.first for file in journal.trim(rule)] == [1, 2, 3]
        assert texts(await at.read(1)) == [b"3"]
        at.close()
        assert journal.trim(rule) == []  # it has not said that it is done with that
        again = tailer("at", "end")  # its place is where it was
        assert texts(await again.read()) == [b"3", b"4", b"5"]
        journal.forget("at")
        assert [file.first for file in journal.trim(rule)] == [4, 5]
        assert await late.read() == []
        for one in (again, late, nameless):
            one.close()


@on_loop
async def test_retention_by_age_needs_no_appends(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path / "j", clock=clock, retention=Retention(seconds=80)) as journal:
        tailer = journal.tailer()
        await fill(journal, clock, 30)  # files of ten seconds
        assert len(firsts(journal)) == 3
        for _ in range(100):
            clock.advance(1.0)
            await settle()
        await until(lambda: journal._writer.durable == 30 and len(firsts(journal)) == 1)
        assert [record.sequence for record in await tailer.read()] == []
        assert journal.following == 31
        await journal.append(b"next", until="fsynced")
        assert texts(await tailer.read()) == [b"next"]
        assert texts(await journal.tailer().read()) == [b"next"]
        before = firsts(journal)
        for _ in range(15):  # nothing is left but once
            clock.advance(1.0)
            await settle()
        after = firsts(journal)
        for _ in range(60):
            clock.advance(1.0)
            await settle()
        assert firsts(journal) == after
        assert len(after) == len(before) + 1
    async with opened(tmp_path / "j", clock=clock) as journal:
        assert journal.findings == ()
        assert journal.following == 32


@on_loop
async def test_what_is_too_old_goes_when_the_journal_is_opened(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path / "j", clock=clock, roll=Roll(records=1)) as journal:
        await fill(journal, clock, 5)
    clock.advance(1000.0)
    async with opened(tmp_path / "j", clock=clock, retention=Retention(seconds=10)) as journal:
        await until(lambda: len(firsts(journal)) == 1)


@on_loop
async def test_what_a_tailer_kept_goes_once_it_is_done_with_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(
        tmp_path / "j", clock=clock, roll=Roll(records=1), retention=Retention(records=1)
    ) as journal:
        slow = journal.tailer("slow")
        await fill(journal, clock, 5)
        assert len(firsts(journal)) == 5
        await slow.read()
        slow.store()
        clock.advance(3600.0)
        await until(lambda: len(firsts(journal)) == 1)


@pytest.mark.parametrize(
    "what",
    [
        "append",
        "append_many",
        "flush",
        "sync",
        "roll",
        "tailer",
        "trim",
        "forget",
        "close",
        "read",
    ],
)
@on_loop
async def test_another_thread_is_refused_before_anything_is_touched(
    tmp_path: Path, what: str
) -> None:
    async with opened(tmp_path / "j", flush="batch", retention=Retention(records=0)) as journal:
        await journal.append(b"a")
        tailer = journal.tailer()
        calls: dict[str, Callable[[], Any]] = {
            "append": lambda: journal.append(b"b"),
            "append_many": lambda: journal.append_many([b"b"]),
            "flush": journal.flush,
            "sync": journal.sync,
            "roll": journal.roll,
            "tailer": lambda: journal.tailer("t"),
            "trim": journal.trim,
            "forget": lambda: journal.forget("t"),
            "close": journal.close,
            "read": tailer.read,
        }

        def elsewhere() -> None:
            found = calls[what]()
            if asyncio.iscoroutine(found):
                asyncio.run(found)

        with pytest.raises(lodeq.UsageError, match="another event loop or thread"):
            await asyncio.to_thread(elsewhere)
        assert await journal.append(b"c", until="fsynced") == Ack(2, 2, "fsynced")
        assert texts(await tailer.read()) == [b"a", b"c"]


@on_loop
async def test_retention_works_by_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(
        tmp_path / "j", clock=clock, roll=Roll(records=1), retention=Retention(records=2)
    ) as journal:
        await fill(journal, clock, 10)
        await until(lambda: len(firsts(journal)) <= 3)


@on_loop
async def test_a_count_of_files_holds_by_itself_and_waits_for_named_tailers(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(
        tmp_path / "j", clock=clock, roll=Roll(records=1), retention=Retention(files=2)
    ) as journal:
        await fill(journal, clock, 10)
        await until(lambda: firsts(journal) == [9, 10])
        mailer = journal.tailer("mailer")
        await fill(journal, clock, 3)
        assert journal.trim() == []
        assert firsts(journal) == [9, 10, 11, 12, 13]
        await mailer.read()
        mailer.store()
        journal.trim()
        assert firsts(journal) == [12, 13]


@on_loop
async def test_a_full_disk_says_what_became_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "j") as journal:
        await journal.append(b"a", until="flushed")

        def full(fd: int, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            patch.setattr(os, "writev", full)
            with pytest.raises(lodeq.StorageFullError) as kept:
                await journal.append(b"b", until="flushed")
            assert list(kept.value.receipts) == [Ack(2, 2, "buffered")]
            with pytest.raises(lodeq.StorageFullError) as large:
                await journal.append(bytes(100_000))
            assert list(large.value.receipts) == [Ack(3, 3, "buffered")]
            with pytest.raises(lodeq.StorageFullError) as refused:
                await journal.append(b"c")
            assert list(refused.value.receipts) == []
        assert await journal.append(b"d", until="flushed") == Ack(4, 4, "flushed")
        assert texts(await journal.tailer().read()) == [b"a", b"b", bytes(100_000), b"d"]


@on_loop
async def test_a_failed_sync_ends_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await open_journal(tmp_path / "j", flush="sync", clock=ManualClock())
    await journal.append(b"a")

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        both = await asyncio.gather(
            journal.append(b"b"), journal.append(b"c"), return_exceptions=True
        )
        assert [type(error) for error in both] == [lodeq.StorageError] * 2
    with pytest.raises(lodeq.StoragePoisonedError):
        await journal.append(b"d")
    await journal.close()
    assert await journal.tailer().read(wait=None) != []  # reading goes on


@on_loop
async def test_who_waits_at_the_end_is_told(tmp_path: Path) -> None:
    journal = await open_journal(tmp_path / "j", flush="sync", clock=ManualClock())
    waiting = [asyncio.create_task(journal.append(b"%d" % i)) for i in range(3)]
    await asyncio.sleep(0)
    await journal.close()
    await journal.close()
    assert [(await task).state for task in waiting] == ["fsynced"] * 3
    with pytest.raises(lodeq.ClosedError):
        await journal.append(b"late")
    async with opened(tmp_path / "j") as again:
        assert again.following == 4


@pytest.mark.parametrize("flush", ["batch", "sync"])
@on_loop
async def test_an_append_that_close_overtakes_is_acknowledged(tmp_path: Path, flush: str) -> None:
    journal = await open_journal(tmp_path / "j", flush=flush, clock=ManualClock())
    waiting = [asyncio.create_task(journal.append(b"%d" % i)) for i in range(3)]
    closing = asyncio.create_task(journal.close())  # in the same turn, before anything is written
    acks = await asyncio.gather(*waiting)
    await closing
    assert [ack.first for ack in acks] == [1, 2, 3]
    async with opened(tmp_path / "j") as again:
        assert texts(await again.tailer().read()) == [b"0", b"1", b"2"]


@on_loop
async def test_what_comes_while_it_is_closed_is_refused(tmp_path: Path) -> None:
    journal = await open_journal(tmp_path / "j", clock=ManualClock())
    await journal.append(b"a")
    closing = asyncio.create_task(journal.close())
    await asyncio.sleep(0)
    for call in (lambda: journal.append(b"b"), journal.flush, journal.sync, journal.roll):
        with pytest.raises(lodeq.ClosedError):
            await call()
    with pytest.raises(lodeq.ClosedError):
        journal.trim(Retention(records=0))
    await closing
    async with opened(tmp_path / "j") as again:
        assert texts(await again.tailer().read()) == [b"a"]


@on_loop
async def test_a_cancelled_append_is_appended_all_the_same(tmp_path: Path) -> None:
    async with opened(tmp_path / "j", flush="sync") as journal:
        task = asyncio.create_task(journal.append(b"a"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await journal.append(b"b") == Ack(2, 2, "fsynced")
        assert texts(await journal.tailer().read()) == [b"a", b"b"]


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    for how in ({"flush": "never"}, {"batch_bytes": 0}, {"batch_interval": 0}):
        with pytest.raises(lodeq.UsageError):
            open_journal(tmp_path / "j", **how)
    for make in (
        lambda: Roll(bytes=1),
        lambda: Roll(seconds=0),
        lambda: Roll(records=0),
        lambda: Retention(records=-1),
        lambda: Retention(files_min=0),
        lambda: Retention(files_min=None),
        lambda: Retention(files=0),
        lambda: Retention(files=2, files_min=3),
    ):
        with pytest.raises(lodeq.UsageError):
            make()
    with pytest.raises(lodeq.StorePathError):
        open_tailer(tmp_path / "nowhere")
    assert not (tmp_path / "j").exists()


@on_loop
async def test_a_cancelled_opening_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread comes to its end all the same: what it has opened is let go."""
    is_open, may_end, take = threading.Event(), threading.Event(), LogWriter.open

    def slow(*args: Any, **how: Any) -> LogWriter:
        writer = take(*args, **how)
        is_open.set()
        assert may_end.wait(30)
        return writer

    monkeypatch.setattr(LogWriter, "open", slow)

    async def start() -> Journal:
        return await open_journal(tmp_path / "j")

    opening = asyncio.create_task(start())
    await settle(1)
    assert is_open.wait(30)
    opening.cancel()
    await settle(1)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    monkeypatch.undo()
    async with opened(tmp_path / "j") as journal:  # else: LockedError
        assert journal.following == 1


@on_loop
async def test_a_sync_may_end_in_the_turn_in_which_a_close_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await open_journal(tmp_path / "j", clock=ManualClock())
    ends: SimpleQueue[Any] = SimpleQueue()
    monkeypatch.setattr(journal, "_call", lambda *end: ends.put(end))
    await journal.append(b"a")
    waiting = asyncio.create_task(journal.sync())
    await settle()
    closing = asyncio.create_task(journal.close())
    await settle()
    end = ends.get(timeout=30)
    (inner,) = (one for one in asyncio.all_tasks() if one.get_name() == "lodeq-journal-close")
    inner.cancel()
    journal._synced(*end)
    await closing
    await waiting
    async with opened(tmp_path / "j") as again:
        assert again.following == 2


@on_loop
async def test_a_folder_is_synced_although_no_thread_could_be_started_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the name of a file could be lost in a power cut that its records outlive."""
    async with opened(tmp_path / "j") as journal:
        folders: list[str] = []
        monkeypatch.setattr(fsync_thread, "fsync_dir", folders.append)
        with monkeypatch.context() as patch:
            patch.setattr(fsync_thread, "start_thread", lambda *_: fail())
            with pytest.raises(lodeq.StorageError, match="no thread"):
                await journal.append(b"a", until="fsynced")
        assert folders == []
        await journal.append(b"b", until="fsynced")
        (file,) = list_files(str(tmp_path / "j"))
        assert os.path.dirname(file.path) in folders


def fail() -> None:
    raise RuntimeError("can't start new thread")
