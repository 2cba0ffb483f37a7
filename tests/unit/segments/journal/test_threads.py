"""A journal and threads: numbers, shared writes, waits that end, whatever ends them."""

import asyncio
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

import lodeq
import lodeq.sync
from lodeq.journal import Ack, Roll
from lodeq.segments.journal.journal import Journal
from lodeq.segments.journal.threads import intake
from lodeq.segments.journal.threads.calls import JournalCall

THREADS = 8
INTERRUPTS = 40
HANG_S = 60.0  # nothing here waits for time: whoever is still waiting then, waits for ever


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Any]:
    with lodeq.sync.open_journal(tmp_path / "j") as journal:
        yield journal


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns in the middle of things."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def until(holds: Callable[[], object]) -> None:
    while not holds():
        pass


def started(*calls: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()


def loops() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lodeq-loop"]


def error_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - of whatever kind
        return error
    return None


# --- numbers ------------------------------------------------------------------------------------


def appended(journal: Any, each: int, *, is_mixed: bool) -> list[list[tuple[int, bytes]]]:
    """What each thread has appended, with its numbers, in its own order."""

    def work(thread: int) -> list[tuple[int, bytes]]:
        appender, out, at = journal.appender().clone(), [], 0
        while at < each:
            size = min(1 + (at + thread) % 5 * 3, each - at) if is_mixed else 1
            payloads = [b"%d %d" % (thread, n) for n in range(at, at + size)]
            ack = appender.append_many(payloads) if size > 1 else appender.append(payloads[0])
            assert ack.last == ack.first + size - 1
            out += zip(range(ack.first, ack.last + 1), payloads, strict=True)
            at += size
        return out

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


def check_numbers(path: Path, found: list[list[tuple[int, bytes]]]) -> None:
    """Without a gap or a repeat, each thread's in its order, and so they are read again."""
    for own in found:
        assert [number for number, _ in own] == sorted(number for number, _ in own)
    whole = sorted(pair for own in found for pair in own)
    assert [number for number, _ in whole] == list(range(1, len(whole) + 1))
    with lodeq.sync.open_journal(path) as journal:
        assert journal.findings == ()
        assert journal.following == len(whole) + 1
        with journal.tailer(wait=0.0) as tailer:
            assert [(record.sequence, record.payload) for record in tailer] == whole
            assert tailer.gaps == []


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("is_mixed", [False, True], ids=["alone", "batches"])
@pytest.mark.parametrize("roll", [None, Roll(records=7)], ids=["one file", "many files"])
def test_numbers_have_no_gap_and_no_repeat(
    tmp_path: Path, roll: Roll | None, *, is_mixed: bool
) -> None:
    with lodeq.sync.open_journal(tmp_path / "j", roll=roll) as journal:
        found = appended(journal, 60 if roll else 300, is_mixed=is_mixed)
    check_numbers(tmp_path / "j", found)


@pytest.mark.parametrize("flush", ["async", "batch", "sync"])
def test_whatever_they_wait_for(tmp_path: Path, flush: Any) -> None:
    with lodeq.sync.open_journal(tmp_path / "j", flush=flush) as journal:
        found = appended(journal, {"async": 2000, "batch": 100, "sync": 20}[flush], is_mixed=True)
    check_numbers(tmp_path / "j", found)


@pytest.mark.slow
@pytest.mark.parametrize("is_mixed", [False, True], ids=["alone", "batches"])
def test_eight_threads_of_100_000_records(tmp_path: Path, *, is_mixed: bool) -> None:
    with lodeq.sync.open_journal(tmp_path / "j") as journal:
        found = appended(journal, 100_000, is_mixed=is_mixed)
    check_numbers(tmp_path / "j", found)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_the_loop_appends_beside_its_threads(tmp_path: Path, loop: str) -> None:
    async def main() -> list[list[tuple[int, bytes]]]:
        async with lodeq.journal.open(tmp_path / "j") as journal:
            found: list[list[tuple[int, bytes]]] = []
            own: list[tuple[int, bytes]] = []

            async def others() -> None:
                work = partial(appended, journal.threads, 100, is_mixed=True)
                found.extend(await anyio.to_thread.run_sync(work))

            async with anyio.create_task_group() as group:
                group.start_soon(others)
                for n in range(200):
                    payloads = [b"loop %d" % n] * (1 + n % 3)
                    ack = await journal.append_many(payloads, until="flushed" if n % 9 else None)
                    assert ack.last < journal.following
                    own += zip(range(ack.first, ack.last + 1), payloads, strict=True)
                    await anyio.lowlevel.checkpoint()
            return [*found, own]

    check_numbers(tmp_path / "j", anyio.run(main, backend=loop))


def test_threads_share_frames_and_writes(journal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the loop is busy, all that threads append waits for it; then it is one write."""
    go_on, writes, write = threading.Event(), [], os.writev
    journal._twin._spawner.call_soon_threadsafe(go_on.wait, HANG_S)
    monkeypatch.setattr(os, "writev", lambda fd, parts: writes.append(1) or write(fd, parts))
    threads = started(*(partial(journal.append, b"%d" % n, until="flushed") for n in range(8)))
    until(lambda: journal.following == 9)
    assert writes == []
    go_on.set()
    joined(threads)
    assert writes == [1]
    (path,) = Path(journal.path).rglob("*.log")
    assert path.read_bytes().count(b"F\x01\x00\x00\x08\x00\x00\x00") == 1  # a frame of eight


def test_a_file_of_few_records_is_left_after_the_record_that_fills_it(tmp_path: Path) -> None:
    with lodeq.sync.open_journal(tmp_path / "j", roll=Roll(records=10)) as journal:
        for n in range(35):
            journal.append(b"%d" % n)
        journal.flush()
        assert [file.first for file in journal._twin._writer.files] == [1, 11, 21, 31]


def test_large_records_have_frames_of_their_own(journal: Any) -> None:
    sizes = [10, intake.SMALL_BYTES, intake.SMALL_BYTES + 1, 70_000, 300_000, 3]
    for size in sizes:
        journal.append(bytes(size))
    journal.append_many([bytes(40_000)] * 10)
    journal.flush()
    with journal.tailer() as tailer:
        assert [len(record.payload) for record in tailer.read()] == [*sizes, *[40_000] * 10]


def test_what_waits_is_bounded_also_where_records_are_empty(journal: Any) -> None:
    go_on = threading.Event()
    journal._twin._spawner.call_soon_threadsafe(go_on.wait, HANG_S)
    threads = started(*[partial(journal.append_many, [b""] * 4000)] * 8)
    until(lambda: len(journal._intake._no_room) == 8 - 5)
    assert len(journal._intake.entries) == 5
    go_on.set()
    joined(threads)
    assert journal.append_many([b""] * 65_535).first == 32_001
    journal.flush()
    with journal.tailer(start=32_001) as tailer:
        assert len(tailer.read(100_000)) == 65_535


# --- calls --------------------------------------------------------------------------------------


def test_a_foreign_thread_is_told_of_threads_and_may_use_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with lodeq.journal.open(tmp_path / "j") as journal:

            def elsewhere() -> None:
                with pytest.raises(lodeq.UsageError, match=r"journal\.threads"):
                    asyncio.run(journal.append(b"a"))
                assert journal.threads.append(b"a") == Ack(1, 1, "buffered")
                assert journal.threads is journal.threads

            await asyncio.to_thread(elsewhere)
            for call in (
                partial(journal.threads.append, b"b"),
                partial(journal.threads.append, b"b", headers={"a": "b"}),
                journal.threads.sync,
                journal.threads.tailer,
                journal.threads.close,
            ):
                with pytest.raises(lodeq.UsageError, match="thread of the journal's event loop"):
                    call()
            assert await journal.append(b"b") == Ack(2, 2, "buffered")

    asyncio.run(main())


def test_an_appender_has_its_own_wait(tmp_path: Path) -> None:
    with lodeq.sync.open_journal(tmp_path / "j", flush="batch") as journal:
        quick = journal.appender(until="buffered")
        sure = quick.clone(until="fsynced")
        assert quick.append(b"a") == Ack(1, 1, "buffered")
        assert sure.clone().append_many([b"b", b"c"]) == Ack(2, 3, "fsynced")
        assert sure.append(b"d", until="flushed") == Ack(4, 4, "flushed")
        assert journal.appender().append(b"e") == Ack(5, 5, "flushed")
        with pytest.raises(lodeq.UsageError):
            quick.clone(until="done")  # type: ignore[arg-type]


def test_who_appends_faster_than_is_written_waits_for_room(
    journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    journal._twin._spawner.call_soon_threadsafe(go_on.wait, HANG_S)
    threads = started(*(partial(append_until_full, journal) for _ in range(4)))
    until(lambda: len(journal._intake._no_room) == 4)
    assert journal._intake._bytes < intake.ROOM_BYTES + 5000
    go_on.set()
    joined(threads)
    journal.sync()
    assert journal._twin._writer.durable == journal.following - 1


def append_until_full(journal: Any) -> None:
    for _ in range(100):
        journal.append(bytes(4000))


def test_a_loop_that_ends_without_closing_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "LOOK_S", 0.001)
    kept: list[Journal] = []
    go_on = threading.Event()

    async def main() -> None:
        kept.append(await lodeq.journal.open(tmp_path / "j"))
        assert kept[0].threads is not None
        kept[0]._spawner.call_soon_threadsafe(go_on.wait, HANG_S)

    loop = threading.Thread(target=partial(asyncio.run, main()))
    loop.start()
    until(lambda: kept and kept[0]._threads)
    journal = kept[0].threads
    found: list[object] = []
    threads = started(
        lambda: found.append(error_of(partial(journal.append, b"a", until="fsynced"))),
        lambda: found.append(error_of(journal.sync)),
        lambda: found.append(error_of(partial(journal.append, b"a", headers={"a": "b"}))),
    )
    until(lambda: journal.following == 2)
    go_on.set()
    loop.join()
    joined(threads)
    assert {type(error) for error in found} <= {lodeq.ClosedError, type(None)}
    with pytest.raises(lodeq.ClosedError):
        journal.flush()
    journal.close()
    kept[0]._thread.close()
    kept[0]._writer.close()


# --- tailers ------------------------------------------------------------------------------------


def test_tailers_follow_while_it_is_written(journal: Any) -> None:
    each, found = 400, [[], []]

    def follow(n: int) -> None:
        with journal.tailer("mailer" if n else None) as tailer:
            for record in tailer:
                found[n].append(record.sequence)
                if record.sequence == each * 4:
                    return

    threads = started(partial(follow, 0), partial(follow, 1))
    joined(started(*[partial(append_each, journal, each)] * 4))
    joined(threads)
    assert found == [list(range(1, each * 4 + 1))] * 2
    with journal.tailer("mailer") as again:  # its last record was not finished
        assert 1 <= again.following <= each * 4


def append_each(journal: Any, each: int) -> None:
    for n in range(each):
        journal.append(b"%d" % n)


@pytest.mark.parametrize("what", ["tailer", "journal"])
def test_a_close_ends_a_blocked_read(journal: Any, what: str) -> None:
    tailer, other = journal.tailer(), journal.tailer()
    found: list[object] = []
    threads = started(
        lambda: found.append(list(tailer)),
        lambda: found.append(error_of(partial(other.read, wait=None))),
    )
    until(lambda: len(journal._twin._wakes._waiting) == 2)
    if what == "tailer":
        other.close()
        tailer.close()
        tailer.close()
    else:
        journal.close()
    joined(threads)
    assert [] in found
    found.remove([])
    assert type(found[0]) is (lodeq.ClosedError if what == "tailer" else type(None))
    with pytest.raises(lodeq.ClosedError):
        other.read()


def test_a_loop_ends_when_nothing_comes(journal: Any) -> None:
    journal.append_many([b"a", b"b"], until="flushed")
    with journal.tailer("mailer", wait=0.0) as tailer:
        assert [record.payload for record in tailer] == [b"a", b"b"]
    with journal.tailer("mailer", wait=0.001) as tailer:
        assert tailer.following == 3  # asked for the next one, both were finished
        assert list(tailer) == []
    with pytest.raises(lodeq.ClosedError):
        iter(tailer)


def test_threads_share_a_tailer(journal: Any) -> None:
    journal.append_many([b"%d" % n for n in range(1000)], until="flushed")
    found: list[int] = []
    with journal.tailer(wait=0.0) as tailer:
        loop = iter(tailer)
        joined(started(*[lambda: found.extend(record.sequence for record in loop)] * 4))
    assert sorted(found) == list(range(1, 1001))


# --- interrupts ---------------------------------------------------------------------------------


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Whatever the suite was started from: a shell ignores them for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_when(condition: Callable[[], object]) -> threading.Thread:
    """Ctrl-C, as soon as the main thread waits."""

    def run() -> None:
        until(condition)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    return started(run)[0]


@pytest.mark.usefixtures("heeds_interrupts")
def test_an_interrupted_append_is_appended_and_the_journal_goes_on(
    journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, sync, waiting = threading.Event(), os.fdatasync, journal._twin._waiters
    monkeypatch.setattr(os, "fdatasync", lambda fd: go_on.wait(HANG_S) and sync(fd))
    thread = interrupt_when(lambda: waiting.has_sync)
    with pytest.raises(KeyboardInterrupt):
        journal.append(b"a", until="fsynced")
    joined([thread])
    go_on.set()
    assert journal.append(b"b", until="fsynced") == Ack(2, 2, "fsynced")
    with journal.tailer() as tailer:
        assert [record.payload for record in tailer.read()] == [b"a", b"b"]


@pytest.mark.usefixtures("heeds_interrupts")
def test_an_interrupted_read_leaves_the_tailer_where_it_was(journal: Any) -> None:
    with journal.tailer("mailer") as tailer:
        thread = interrupt_when(lambda: journal._twin._wakes._waiting)
        with pytest.raises(KeyboardInterrupt):
            next(iter(tailer))
        joined([thread])
        journal.append(b"a")
        assert [record.payload for record in tailer.read(wait=None)] == [b"a"]


@pytest.fixture
def interrupted_there() -> Iterator[list[int]]:
    """Ctrl-C counts where the main thread is in the journal: at which lines it was."""
    lines: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if frame is None or len(lines) == INTERRUPTS or frame.f_code.co_filename == __file__:
            return
        if "segments/journal" in frame.f_code.co_filename:
            lines.append(frame.f_lineno)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    yield lines
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("often")
def test_interrupts_at_any_line_leave_no_gap_and_no_hang(
    tmp_path: Path, interrupted_there: list[int]
) -> None:
    """Whatever the main thread was at, each number has one record, and those told are right."""
    told: dict[int, bytes] = {}
    over = threading.Event()
    with lodeq.sync.open_journal(tmp_path / "j") as journal:
        names = count()

        def interrupt() -> None:
            main = threading.main_thread().ident or 0
            behind = 0
            while len(interrupted_there) < INTERRUPTS and not over.is_set():
                if journal.following > behind + 5:
                    behind = journal.following
                    signal.pthread_kill(main, signal.SIGINT)

        threads = started(interrupt)
        try:
            while len(interrupted_there) < INTERRUPTS:
                name = b"%d" % next(names)
                try:
                    ack = journal.append(name)
                except KeyboardInterrupt:
                    continue
                told[ack.first] = name
        finally:
            over.set()
        joined(threads)
        journal.flush()
        with journal.tailer(wait=0.0) as tailer:
            found = {record.sequence: record.payload for record in tailer}
        assert list(found) == list(range(1, journal.following))
        assert told.items() <= found.items()
        assert len(set(found.values())) == len(found)


# --- disks that fail ----------------------------------------------------------------------------


def full(fd: int, data: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def append_without_end(journal: Any) -> None:
    for _ in range(10_000):
        journal.append(bytes(1000))


def failing(fd: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_full_disk_keeps_what_has_a_number(journal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.append(b"a", until="flushed")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(os, "writev", full)
        for until_, number in (("flushed", 2), ("fsynced", 3)):
            with pytest.raises(lodeq.StorageFullError) as kept:
                journal.append(b"b", until=until_)
            assert list(kept.value.receipts) == [Ack(number, number, "buffered")]
        with pytest.raises(lodeq.StorageFullError) as refused:
            append_without_end(journal)
        assert list(refused.value.receipts) == []
        assert journal.following < 2000
        with pytest.raises(lodeq.StorageFullError):
            journal.flush()
    following = journal.following
    assert journal.append(b"z", until="fsynced") == Ack(following, following, "fsynced")
    with journal.tailer(wait=0.0) as tailer:
        found = list(tailer)
    assert [record.sequence for record in found] == list(range(1, following + 1))
    assert [record.payload for record in found[:3]] == [b"a", b"b", b"b"]


def test_what_a_full_disk_never_took_is_said_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = lodeq.sync.open_journal(tmp_path / "j")
    journal.append(b"a", until="fsynced")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(os, "writev", full)
        journal.append(b"lost")
        with pytest.raises(lodeq.StorageFullError):
            journal.close()
    journal.close()
    assert not loops()
    with lodeq.sync.open_journal(tmp_path / "j") as again:
        assert again.following == 2


@pytest.mark.parametrize("call", ["fdatasync", "writev"])
def test_a_failed_disk_ends_the_journal_for_every_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with lodeq.sync.open_journal(tmp_path / "j", flush="sync") as journal:
        journal.append(b"a")
        go_on = threading.Event()
        found: list[object] = []
        with monkeypatch.context() as patch:
            fails = failing if call == "fdatasync" else lambda fd, data: failing(fd)
            patch.setattr(os, call, fails)
            journal._twin._spawner.call_soon_threadsafe(go_on.wait, HANG_S)
            threads = started(*[lambda: found.append(error_of(partial(journal.append, b"b")))] * 8)
            until(lambda: journal.following == 10)
            go_on.set()
            joined(threads)
        assert [type(error) for error in found] == [lodeq.StorageError] * 8
        for until_ in ("buffered", "flushed"):
            with pytest.raises(lodeq.StoragePoisonedError):
                journal.append(b"c", until=until_)
        with pytest.raises(lodeq.StoragePoisonedError):
            journal.append(b"c", headers={"a": "b"})
        with journal.tailer() as tailer:  # reading goes on
            assert tailer.read(1)[0].payload == b"a"
    with lodeq.sync.open_journal(tmp_path / "j") as again:
        assert again.append(b"d", until="fsynced").first > 1


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("state", ["buffered", "flushed", "fsynced"])
def test_closing_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path, state: Any) -> None:
    journal = lodeq.sync.open_journal(tmp_path / "j")
    told: list[tuple[int, bytes]] = []
    errors: list[BaseException | None] = []

    def work(thread: int) -> None:
        def endless() -> None:
            for n in count():
                payload = b"%d %d" % (thread, n)
                told.append((journal.append(payload, until=state).first, payload))

        errors.append(error_of(endless))

    threads = started(*(partial(work, n) for n in range(THREADS)))
    until(lambda: len(told) > 100)
    both = started(journal.close, journal.close)
    joined(both)
    joined(threads)
    assert [type(error) for error in errors] == [lodeq.ClosedError] * THREADS
    assert not loops()
    with lodeq.sync.open_journal(tmp_path / "j") as again, again.tailer(wait=0.0) as tailer:
        found = {record.sequence: record.payload for record in tailer}
        assert list(found) == list(range(1, again.following))
        assert dict(told).items() <= found.items()
        assert len(dict(told)) == len(told)


def test_who_waits_at_the_end_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = lodeq.sync.open_journal(tmp_path / "j")
    go_on, found = threading.Event(), []
    journal._twin._spawner.call_soon_threadsafe(go_on.wait, HANG_S)
    closing = started(journal.close)
    until(lambda: len(journal._twin._spawner._loop._ready) > 0)  # behind it come the appends
    threads = started(
        *(lambda s=s: found.append(journal.append(b"a", until=s)) for s in ("flushed", "fsynced"))
    )
    until(lambda: journal.following == 3)
    go_on.set()
    joined([*threads, *closing])
    assert sorted(ack.state for ack in found) == ["flushed", "fsynced"]
    with lodeq.sync.open_journal(tmp_path / "j") as again:
        assert again.following == 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_is_refused_and_its_parent_goes_on(journal: Any) -> None:
    journal.append(b"a", until="flushed")
    with journal.tailer() as tailer:
        calls = (
            partial(journal.append, b"b"),
            partial(journal.append, b"b", until="fsynced"),
            partial(journal.append, b"b", headers={"a": "b"}),
            journal.sync,
            tailer.read,
        )
        assert in_child(journal, *calls) == 0
    assert journal.append(b"b", until="fsynced") == Ack(2, 2, "fsynced")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_gets_no_threads_of_a_journal(tmp_path: Path) -> None:
    async def main() -> None:
        async with lodeq.journal.open(tmp_path / "j") as journal:
            assert await asyncio.to_thread(in_child, None, lambda: journal.threads) == 0

    asyncio.run(main())


def in_child(journal: Any, *calls: Callable[[], object]) -> int:
    """0: all of them raise ``ClosedError`` there, and closing does nothing."""
    child = os.fork()
    if child == 0:
        kinds = {type(error_of(call)) for call in calls}
        if journal is not None:
            journal.close()
        os._exit(0 if kinds == {lodeq.ClosedError} else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_an_opening_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    with lodeq.sync.open_journal(tmp_path / "j"), pytest.raises(lodeq.LockedError):
        lodeq.sync.open_journal(tmp_path / "j")
    with pytest.raises(lodeq.UsageError):
        lodeq.sync.open_journal(tmp_path / "j", flush="never")  # type: ignore[arg-type]
    assert not loops()


def test_a_call_that_is_ended_before_it_began_never_runs(journal: Any) -> None:
    ran: list[int] = []

    async def main() -> None:
        ran.append(1)

    call: JournalCall[None] = journal._calls.new(main)
    call.end()
    assert type(error_of(lambda: journal._calls.run(call))) is lodeq.ClosedError
    assert ran == []
