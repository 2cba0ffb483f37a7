"""A tailer without a writer and without an event loop: it blocks, and every wait ends."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lodeq
import lodeq.sync
from lodeq.segments.journal.threads.calls import JournalCall

HANG_S = 60.0  # nothing here waits for time: whoever is still waiting then, waits for ever


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[lodeq.sync.SyncJournal]:
    with lodeq.sync.open_journal(tmp_path / "j", flush="batch") as journal:
        yield journal


def until(holds: Callable[[], object]) -> None:
    while not holds():
        pass


def loops() -> int:
    return sum(thread.name == "lodeq-loop" for thread in threading.enumerate())


def test_it_reads_what_another_writes_and_goes_on_where_it_stopped(
    tmp_path: Path, journal: lodeq.sync.SyncJournal
) -> None:
    journal.append_many([b"a", b"b", b"c"])
    with lodeq.sync.open_tailer(tmp_path / "j", "mailer", wait=0.0) as tailer:
        assert tailer.name == "mailer"
        assert [record.payload for record in tailer.read(2)] == [b"a", b"b"]
        tailer.store()
    journal.append(b"d")
    with lodeq.sync.open_tailer(tmp_path / "j", "mailer", wait=0.0) as tailer:
        assert [record.payload for record in tailer] == [b"c", b"d"]
        assert tailer.read(wait=0.01) == []
        assert [record.payload for record in tailer.read_back(1)] == [b"d"]
        tailer.seek(2)
        assert tailer.following == 2
        assert not tailer.gaps
    assert loops() == 1  # that of the journal


def test_a_blocked_read_gets_what_comes(tmp_path: Path, journal: lodeq.sync.SyncJournal) -> None:
    with (
        lodeq.sync.open_tailer(tmp_path / "j", start="end") as tailer,
        ThreadPoolExecutor(1) as pool,
    ):
        found = pool.submit(tailer.read, wait=None)
        until(lambda: tailer._call is not None)
        journal.append(b"x")
        assert [record.payload for record in found.result(HANG_S)] == [b"x"]


def test_a_close_by_another_thread_ends_what_is_blocked(
    tmp_path: Path, journal: lodeq.sync.SyncJournal
) -> None:
    tailer = lodeq.sync.open_tailer(tmp_path / "j")
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(tailer.read, wait=None)
        until(lambda: tailer._call is not None)
        tailer.close()
        assert isinstance(found.exception(HANG_S), lodeq.ClosedError)
    tailer.close()
    with pytest.raises(lodeq.ClosedError, match="the tailer is closed"):
        tailer.read()
    assert loops() == 1


def test_a_close_by_another_thread_ends_a_loop(
    tmp_path: Path, journal: lodeq.sync.SyncJournal
) -> None:
    journal.append(b"a")
    tailer = lodeq.sync.open_tailer(tmp_path / "j")
    is_begun = threading.Event()

    def read() -> list[bytes]:
        payloads = []
        for record in tailer:
            payloads.append(record.payload)
            is_begun.set()
        return payloads

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(read)
        assert is_begun.wait(HANG_S)
        until(lambda: tailer._call is not None)  # it waits for more
        tailer.close()
        assert found.result(HANG_S) == [b"a"]
    assert loops() == 1


def test_an_interrupt_leaves_the_tailer_where_it_was(
    tmp_path: Path, journal: lodeq.sync.SyncJournal
) -> None:
    with lodeq.sync.open_tailer(tmp_path / "j") as tailer:

        def interrupt() -> None:
            until(lambda: tailer._call is not None)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            tailer.read(wait=HANG_S)
        thread.join(HANG_S)
        journal.append(b"x")
        assert [record.payload for record in tailer.read()] == [b"x"]


@pytest.mark.parametrize("looped", [False, True], ids=["read", "for"])
def test_what_comes_for_a_read_that_was_interrupted_comes_again(
    tmp_path: Path,
    journal: lodeq.sync.SyncJournal,
    monkeypatch: pytest.MonkeyPatch,
    looped: bool,
) -> None:
    """Its end takes a moment to reach the loop, which may find something meanwhile."""
    left: list[JournalCall[object]] = []
    with lodeq.sync.open_tailer(tmp_path / "j", wait=HANG_S) as tailer:

        def interrupt() -> None:
            until(lambda: tailer._call is not None)
            os.kill(os.getpid(), signal.SIGINT)

        records = iter(tailer)
        thread = threading.Thread(target=interrupt)
        with monkeypatch.context() as patch:
            patch.setattr(JournalCall, "end", lambda call: left.append(call))
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                next(records) if looped else tailer.read(wait=HANG_S)
            thread.join(HANG_S)
        journal.append_many([b"x", b"y"])
        until(left[0].over.done)
        assert tailer.following == 1
        if looped:
            assert [next(records).payload for _ in range(2)] == [b"x", b"y"]
        else:
            assert [record.payload for record in tailer.read()] == [b"x", b"y"]


def test_bad_arguments_leave_no_thread(tmp_path: Path, journal: lodeq.sync.SyncJournal) -> None:
    with pytest.raises(lodeq.StorePathError, match="no journal at"):
        lodeq.sync.open_tailer(tmp_path / "none")
    with pytest.raises(lodeq.InvalidNameError):
        lodeq.sync.open_tailer(tmp_path / "j", "Not a name")
    with pytest.raises(lodeq.UsageError, match="'start', 'end'"):
        lodeq.sync.open_tailer(tmp_path / "j", start="middle")  # type: ignore[arg-type]
    until(lambda: loops() == 1)


def test_a_forked_child_is_refused(tmp_path: Path, journal: lodeq.sync.SyncJournal) -> None:
    with lodeq.sync.open_tailer(tmp_path / "j") as tailer:
        gate = tailer._calls._gate
        gate._pid += 1  # type: ignore[attr-defined]
        with pytest.raises(lodeq.ClosedError, match="forked"):
            tailer.read()
        gate._pid -= 1  # type: ignore[attr-defined]
