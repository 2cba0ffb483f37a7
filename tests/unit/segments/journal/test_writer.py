"""Writing a journal, and what is found of it after it was cut, torn, or left in a bad state."""

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

import lodeq
from lodeq.segments.journal.cursor import Gap, LogCursor
from lodeq.segments.journal.log_format import HEADER_BYTES, LogRecord
from lodeq.segments.journal.log_walk import JournalLog
from lodeq.segments.journal.roll import Roll
from lodeq.segments.journal.view import FolderView
from lodeq.segments.journal.writer import LogWriter
from lodeq.segments.source import FileSource
from lodeq.testing import ManualClock

NOON_US = 1_700_000_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.fromtimestamp(NOON_US // 1_000_000, UTC))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def open_writer(root: Path, clock: ManualClock, **roll: float) -> LogWriter:
    return LogWriter.open(str(root), clock=clock, roll=Roll(**roll))  # type: ignore[arg-type]


def read_all(root: Path, gaps: list[Gap] | None = None, most: int = 1000) -> list[LogRecord]:
    told: list[Gap] = []
    cursor = LogCursor(FolderView(str(root)), told.append)
    found: list[LogRecord] = []
    while batch := cursor.read(most):
        found += batch
    cursor.close()
    if gaps is None:
        assert told == []
    else:
        gaps += told
    return found


def payloads(records: list[LogRecord]) -> list[bytes]:
    return [record.payload for record in records]


def logs(root: Path) -> list[Path]:
    return sorted(root.rglob("*.log"))


def test_the_number_that_is_returned_is_the_one_that_is_read(
    root: Path, clock: ManualClock
) -> None:
    writer = open_writer(root, clock)
    firsts = [writer.append([b"a"]), writer.append([b"", b"b"]), writer.append([b"c"])]
    writer.close()
    assert firsts == [1, 2, 4]
    assert [(r.sequence, r.payload) for r in read_all(root)] == [
        (1, b"a"),
        (2, b""),
        (3, b"b"),
        (4, b"c"),
    ]
    again = open_writer(root, clock)
    assert again.append([b"d"]) == 5
    again.close()
    assert payloads(read_all(root)) == [b"a", b"", b"b", b"c", b"d"]


def test_headers_times_and_expiry_are_kept(root: Path, clock: ManualClock) -> None:
    writer = open_writer(root, clock)
    writer.append(
        [b"a", b"b"], headers=[{"k": "v"}, None], times_us=[5, 0], expire_us=[0, NOON_US + 1]
    )
    writer.close()
    assert read_all(root) == [
        LogRecord(1, b"a", 5, {"k": "v"}, 0),
        LogRecord(2, b"b", NOON_US, {}, NOON_US + 1),
    ]


def test_nothing_is_read_before_it_is_flushed(root: Path, clock: ManualClock) -> None:
    writer = open_writer(root, clock)
    writer.append([b"a"])
    assert read_all(root) == []
    assert (writer.flushed, writer.durable) == (0, 0)
    writer.flush()
    assert payloads(read_all(root)) == [b"a"]
    assert (writer.flushed, writer.durable) == (1, 0)
    writer.sync()
    assert (writer.flushed, writer.durable) == (1, 1)
    writer.close()


@pytest.mark.parametrize(
    ("roll", "files"), [({"bytes": 4096}, 4), ({"records": 7}, 15), ({"seconds": 10}, 10)]
)
def test_files_are_left_when_they_are_full(
    root: Path, clock: ManualClock, roll: dict[str, float], files: int
) -> None:
    writer = open_writer(root, clock, **roll)
    for i in range(100):
        writer.append([b"%03d" % i + bytes(80)])
        clock.advance(1.0)
    writer.close()
    assert len(logs(root)) == files
    assert payloads(read_all(root)) == [b"%03d" % i + bytes(80) for i in range(100)]
    for path in logs(root):
        with FileSource(path) as source:
            assert JournalLog().verify(source) == []
            assert source.size <= roll.get("bytes", 1 << 30) + 40  # and its end
    assert len(list(root.rglob("*.idx"))) == files - 1


def test_a_record_larger_than_a_file_gets_one_of_its_own(root: Path, clock: ManualClock) -> None:
    writer = open_writer(root, clock, bytes=4096)
    for payload in (b"a", bytes(10_000), b"b"):
        writer.append([payload])
    writer.close()
    assert len(logs(root)) == 3
    assert payloads(read_all(root)) == [b"a", bytes(10_000), b"b"]


def test_a_batch_that_is_no_frame_uses_no_number(root: Path, clock: ManualClock) -> None:
    writer = open_writer(root, clock)
    with pytest.raises(lodeq.PayloadTooLargeError):
        writer.append([bytes(9 << 20)] * 2)
    with pytest.raises(lodeq.UsageError, match="no records"):
        writer.append([])
    assert writer.append([b"a"]) == 1
    writer.close()


def test_days_never_go_back(root: Path, clock: ManualClock) -> None:
    writer = open_writer(root, clock, records=1)
    for step_days in (0, 1, -3, 1):
        clock.step_wall(step_days * 86_400.0)
        writer.append([b"x"])
    writer.close()
    days = [path.parent.relative_to(root).as_posix() for path in logs(root)]
    assert days == ["2023/11/14", *["2023/11/15"] * 3]
    times = [record.time_us for record in read_all(root)]
    assert times == sorted(times)
    assert [file.first for file in FolderView(str(root)).files()] == [1, 2, 3, 4]


def test_one_writer_at_a_time(root: Path, clock: ManualClock) -> None:
    writer = open_writer(root, clock)
    with pytest.raises(lodeq.LockedError, match="open already"):
        open_writer(root, clock)
    writer.close()
    writer.close()
    with pytest.raises(lodeq.ClosedError):
        writer.append([b"a"])
    open_writer(root, clock).close()


def three(root: Path, clock: ManualClock) -> tuple[Path, list[int]]:
    """A journal of three frames, and where they begin; no note of what is durable."""
    writer = open_writer(root, clock)
    begins = []
    for payload in (b"one", b"two", b"three"):
        writer.append([payload])
        writer.flush()
        begins.append(os.path.getsize(logs(root)[0]))
    writer._let_go()
    return logs(root)[0], [HEADER_BYTES, *begins]


def test_a_torn_tail_is_cut_off_and_nothing_else(root: Path, clock: ManualClock) -> None:
    path, begins = three(root, clock)
    whole = path.read_bytes()
    for cut in range(begins[0], len(whole)):
        for rest in (b"", bytes(100), b"\xa5" * 100):
            data = whole[:cut] + rest  # whose zeros may be the very bytes that were cut
            path.write_bytes(data)
            kept = [b"one", b"two", b"three"][: sum(data.startswith(whole[:e]) for e in begins[1:])]
            writer = open_writer(root, clock)
            assert writer.findings == []
            assert writer.append([b"next"]) == len(kept) + 1
            writer._note = None  # as if nothing had been noted: the next round begins anew
            writer.flush()
            writer._let_go()
            assert payloads(read_all(root)) == [*kept, b"next"]


def test_a_file_that_was_being_made_is_made_again(root: Path, clock: ManualClock) -> None:
    path, _ = three(root, clock)
    for size in (0, 1, 63):
        path.write_bytes(path.read_bytes()[:size])
        writer = open_writer(root, clock)
        assert (writer.append([b"a"]), writer.findings) == (1, [])
        writer.flush()
        writer._let_go()
        assert payloads(read_all(root)) == [b"a"]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_bad_record_in_the_middle_is_passed_over_and_told(root: Path, clock: ManualClock) -> None:
    path, begins = three(root, clock)
    whole = path.read_bytes()
    for at in range(begins[1], begins[2]):
        path.write_bytes(whole)
        flip(path, at)
        writer = open_writer(root, clock)
        (found,) = writer.findings
        assert (found.path, found.offset, found.size) == (
            str(path),
            begins[1],
            begins[2] - begins[1],
        )
        assert writer.following == 4
        writer._let_go()
        gaps: list[Gap] = []
        assert payloads(read_all(root, gaps)) == [b"one", b"three"]
        assert [(g.first, g.last, g.findings[0].offset) for g in gaps] == [(2, 2, begins[1])]


def test_what_is_durable_is_never_cut_off(root: Path, clock: ManualClock) -> None:
    writer = open_writer(root, clock)
    writer.append([b"one"])
    writer.flush()
    second = os.path.getsize(logs(root)[0])
    writer.append([b"two"])
    writer.close()
    flip(logs(root)[0], second + 5)
    again = open_writer(root, clock)
    assert [f.reason for f in again.findings] == [
        "checksum of a head",
        "records 2 to 2 were durable and are gone",
    ]
    assert again.append([b"three"]) == 3
    again.close()
    gaps: list[Gap] = []
    assert [(r.sequence, r.payload) for r in read_all(root, gaps)] == [(1, b"one"), (3, b"three")]
    assert [(g.first, g.last) for g in gaps] == [(2, 2)]
    assert len(logs(root)) == 2


def test_no_number_is_given_out_twice_when_files_are_gone(root: Path, clock: ManualClock) -> None:
    writer = open_writer(root, clock)
    writer.append([b"a", b"b"])
    writer.close()
    logs(root)[0].unlink()
    again = open_writer(root, clock)
    assert [f.reason for f in again.findings] == ["records 1 to 2 were durable and are gone"]
    assert again.append([b"c"]) == 3
    again.close()


@pytest.fixture
def no_space(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that still fit: so many are written, then the disk is full."""
    left = [1 << 30]
    write = os.write

    def bounded(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(fd, bytes(data)[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(os, "write", bounded)
    monkeypatch.setattr(os, "writev", lambda fd, parts: bounded(fd, b"".join(parts)))
    return left


def test_a_full_disk_leaves_no_half_frame_and_heals(
    root: Path, clock: ManualClock, no_space: list[int]
) -> None:
    writer = open_writer(root, clock)
    writer.append([b"a"])
    writer.flush()
    writer.append([b"b" * 50])
    no_space[0] = 20
    with pytest.raises(lodeq.StorageFullError):
        writer.flush()
    assert payloads(read_all(root)) == [b"a"]
    with FileSource(logs(root)[0]) as source:
        assert JournalLog().verify(source) == []
    no_space[0] = 1 << 30
    assert writer.append([b"c"]) == 3
    writer.close()
    assert payloads(read_all(root)) == [b"a", b"b" * 50, b"c"]


def test_a_full_disk_leaves_none_of_several_frames(
    root: Path, clock: ManualClock, no_space: list[int]
) -> None:
    writer = open_writer(root, clock)
    writer.append([b"a"])
    writer.flush()
    for payload in (b"b", b"c" * 50, b"d"):
        writer.append([payload])
    no_space[0] = 120  # one frame, and a part of the next
    with pytest.raises(lodeq.StorageFullError):
        writer.flush()
    assert payloads(read_all(root)) == [b"a"]
    no_space[0] = 1 << 30
    writer.flush()
    assert payloads(read_all(root)) == [b"a", b"b", b"c" * 50, b"d"]
    writer.close()


def test_many_frames_and_few_are_the_same_bytes(root: Path, clock: ManualClock) -> None:
    """Few go as a list, many as one copy."""
    writer = open_writer(root, clock)
    batches = [[b"%d" % i] * (1 + i % 3) for i in range(300)]
    for at, size in ((0, 1), (1, 60), (61, 200), (261, 39)):
        for batch in batches[at : at + size]:
            writer.append(batch)
        writer.flush()
    writer.close()
    assert payloads(read_all(root)) == [payload for batch in batches for payload in batch]


def test_a_failed_sync_is_never_repeated(
    root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(root, clock)
    writer.append([b"a"])

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(lodeq.StorageError):
            writer.sync()
    assert writer.durable == 0
    for call in (writer.sync, writer.flush, lambda: writer.append([b"b"])):
        with pytest.raises(lodeq.StoragePoisonedError):
            call()
    writer.close()


def test_a_file_and_the_folders_above_it_are_private(root: Path, clock: ManualClock) -> None:
    old = os.umask(0o022)
    try:
        open_writer(root, clock).close()
        writer = open_writer(root, clock, records=1)
        writer.append([b"a"])
        writer.append([b"b"])
        writer.close()
    finally:
        os.umask(old)
    for path in (root, *root.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
