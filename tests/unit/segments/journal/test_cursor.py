"""A cursor tells what a list would, from anywhere, in both directions, whatever is damaged."""

import os
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodeq.segments.journal.cursor import Gap, LogCursor
from lodeq.segments.journal.log_format import FRAME_BYTES_MIN, HEAD_BYTES, HEADER_BYTES
from lodeq.segments.journal.roll import Roll
from lodeq.segments.journal.view import FolderView, WriterView
from lodeq.segments.journal.writer import LogWriter
from lodeq.segments.source import FileSource
from lodeq.testing import ManualClock

NOON_US = 1_700_000_000_000_000


def writer_at(root: str, records: int) -> LogWriter:
    clock = ManualClock(datetime.fromtimestamp(NOON_US // 1_000_000, UTC))
    return LogWriter.open(root, clock=clock, roll=Roll(records=records))


def fail(gap: Gap) -> None:
    raise AssertionError(gap)


batches = st.lists(st.integers(1, 700), min_size=1, max_size=12)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(batches, st.integers(1, 900), st.data())
def test_from_anywhere_in_both_directions(
    sizes: list[int], per_file: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        writer = writer_at(folder, per_file)
        for size in sizes:
            writer.append([b"%d" % (writer.following + i) for i in range(size)])
            writer.clock.advance(1.0)  # type: ignore[attr-defined]
        writer.flush()
        total = sum(sizes)
        for view in (FolderView(folder), WriterView(writer)):
            cursor = LogCursor(view, fail)
            at = data.draw(st.integers(1, total + 1))
            most = data.draw(st.integers(1, 1000))
            cursor.seek(at)
            found = cursor.read(most)
            assert [r.sequence for r in found] == list(range(at, min(at + most, total + 1)))
            assert [r.payload for r in found] == [b"%d" % r.sequence for r in found]
            assert cursor.following == at + len(found)
            cursor.seek(at)
            back = cursor.read_back(most)
            assert [r.sequence for r in back] == list(range(at - 1, max(0, at - 1 - most), -1))
            assert cursor.following == at - len(back)
            cursor.seek_end()
            assert (cursor.following, cursor.read()) == (total + 1, [])
            cursor.seek_start()
            assert [r.sequence for r in cursor.read(1)] == [1]
            turn = data.draw(st.integers(-1, len(sizes)))
            cursor.seek_time(NOON_US + turn * 1_000_000)
            first = 1 + sum(sizes[: max(0, turn)])
            assert cursor.following == first
            assert [r.sequence for r in cursor.read(2)] == [
                n for n in (first, first + 1) if n <= total
            ]
            cursor.close()
        writer.close()


@settings(max_examples=40, deadline=None)
@given(batches, st.integers(1, 900), st.data())
def test_what_is_damaged_is_told_and_nothing_else_is_lost(
    sizes: list[int], per_file: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        writer = writer_at(folder, per_file)
        for size in sizes:
            writer.append([b"%d" % (writer.following + i) for i in range(size)])
        writer.roll()
        writer.close()
        files = FolderView(folder).files()
        path = files[data.draw(st.integers(0, len(files) - 1))].path
        at = data.draw(st.integers(HEADER_BYTES, os.path.getsize(path) - 41))  # not the end
        raw = bytearray(Path(path).read_bytes())
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
        Path(path).write_bytes(raw)
        gaps: list[Gap] = []
        cursor = LogCursor(FolderView(folder), gaps.append)
        found = []
        while batch := cursor.read(500):
            found += [r.sequence for r in batch]
        cursor.close()
        lost = [n for gap in gaps for n in range(gap.first, gap.last + 1)]
        # What lies at the very end is missed by nobody: no later record says that it was there.
        assert sorted(found + lost) == list(range(1, max(found + lost, default=0) + 1))
        last = sum(sizes) - sizes[-1]
        assert max(found, default=last) >= last
        assert len(gaps) <= 1
        for gap in gaps:
            assert any(f.path == path and f.offset <= at < f.offset + f.size for f in gap.findings)


def test_a_part_of_a_frame_is_waited_for(tmp_path: Path) -> None:
    """A write becomes visible bit by bit: at no moment is that damage."""
    writer = writer_at(str(tmp_path), 1000)
    for payload in (b"one", b"two"):
        writer.append([payload])
        writer.flush()
    path = FolderView(str(tmp_path)).files()[0].path
    whole = Path(path).read_bytes()
    half = HEADER_BYTES + (len(whole) - HEADER_BYTES) // 2
    os.truncate(path, half)
    for rest in (b"", bytes(len(whole) - half)):  # the length before the bytes
        cursor = LogCursor(FolderView(str(tmp_path)), fail)
        assert [r.payload for r in cursor.read()] == [b"one"]
        with open(path, "r+b", buffering=0) as file:
            for upto in range(half, len(whole)):
                file.seek(half)
                file.write(whole[half:upto] + rest[upto - half :])
                assert cursor.read() == []
            file.seek(half)
            file.write(whole[half:])
            assert [r.payload for r in cursor.read()] == [b"two"]
            file.truncate(half)
        cursor.close()


def test_a_file_that_is_left_unread_is_read_to_its_end(tmp_path: Path) -> None:
    """The last records of a file are written, and the next begun, between two reads."""
    writer = writer_at(str(tmp_path), 3)
    cursor = LogCursor(FolderView(str(tmp_path)), fail)
    assert cursor.read() == []
    writer.append([b"1"])
    writer.flush()
    assert len(cursor.read()) == 1
    for n in range(2, 9):
        writer.append([b"%d" % n])
    writer.flush()
    assert [r.sequence for r in cursor.read()] == list(range(2, 9))
    cursor.close()


def test_a_killed_writer_leaves_no_end_and_nothing_is_missed(tmp_path: Path) -> None:
    writer = writer_at(str(tmp_path), 1000)
    writer.append([b"1"])
    writer.flush()
    cursor = LogCursor(FolderView(str(tmp_path)), fail)
    assert len(cursor.read()) == 1
    writer._let_go()
    with open(FolderView(str(tmp_path)).files()[0].path, "ab") as file:
        file.write(b"F\x01torn")
    assert cursor.read() == []
    again = writer_at(str(tmp_path), 1)
    again.append([b"2"])
    again.flush()
    assert [r.sequence for r in cursor.read()] == [2]
    cursor.close()
    again.close()


def test_a_file_without_an_index_is_walked_once_while_it_grows(tmp_path: Path) -> None:
    writer = writer_at(str(tmp_path), 1_000_000)
    view = FolderView(str(tmp_path))
    for batches in (3, 5, 0, 4):
        for _ in range(batches):
            writer.append([b"x"] * 100)
        writer.flush()
        (file,) = view.files()
        with FileSource(file.path) as source:
            fresh = list(FolderView(str(tmp_path)).entries(file, source))
            assert list(view.entries(file, source)) == fresh
    assert [entry.sequence for entry in fresh] == [1, 301, 601, 901]
    with open(file.path, "r+b") as raw, FileSource(file.path) as source:
        raw.seek(HEADER_BYTES)
        raw.write(bytes(100))
        raw.flush()
        assert list(view.entries(file, source)) == fresh  # it does not look there again
    os.truncate(file.path, HEADER_BYTES)  # by nobody of ours
    with FileSource(file.path) as source:
        assert list(view.entries(file, source)) == []
    writer.close()


def test_frames_before_the_first_one_asked_for_are_passed_over_by_their_heads(
    tmp_path: Path,
) -> None:
    writer = writer_at(str(tmp_path), 1_000_000)
    for i in range(1, 11):
        writer.append([b"%d" % i])
    writer.close()
    (file,) = FolderView(str(tmp_path)).files()
    with open(file.path, "r+b") as raw:  # the payload of the second
        raw.seek(HEADER_BYTES + FRAME_BYTES_MIN + 1 + HEAD_BYTES + 4)
        raw.write(b"?")
    gaps: list[Gap] = []
    cursor = LogCursor(FolderView(str(tmp_path)), gaps.append)
    cursor.seek(5)
    assert [record.payload for record in cursor.read(2)] == [b"5", b"6"]
    assert gaps == []  # nobody asked
    cursor.seek(2)
    assert [record.payload for record in cursor.read(2)] == [b"3", b"4"]
    assert [(gap.first, gap.last) for gap in gaps] == [(2, 2)]
    cursor.close()
