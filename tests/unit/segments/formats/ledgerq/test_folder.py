"""A folder of LedgerQ: read without a change, whatever state it was left in; written whole."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lodeq.errors import StorageError, StorageFullError, UsageError
from lodeq.segments.formats.ledgerq import folder
from lodeq.segments.formats.ledgerq.codec import SegmentHeader, encode, encode_header
from lodeq.segments.formats.ledgerq.folder import (
    DeadLetter,
    Directory,
    dead_letter,
    read_directory,
    write_directory,
)
from lodeq.segments.formats.ledgerq.index import decode_index
from lodeq.segments.formats.ledgerq.state import (
    DedupEntry,
    DedupState,
    GoTime,
    Metadata,
    RetryEntry,
    RetryState,
    encode_metadata,
)
from lodeq.segments.item import Damage, Record, Torn

NOW = 1_700_000_000_000_000_000
RETRIES = RetryState(3, (RetryEntry(2, 1, GoTime(NOW, 60), "no"),))
DEDUP = DedupState((DedupEntry("ab" * 32, 2, NOW, NOW + 1, 64),))


def record(number: int, payload: bytes = b"hello", **fields) -> Record:
    return Record(0, 0, payload, sequence=number, timestamp_ns=NOW + number, kind=1, **fields)


def log(folder: Path, base: int, *numbers: int, closed: bool = False) -> Path:
    ids = (numbers[0], numbers[-1]) if closed else (0, 0)
    raw = b"".join(encode(record(number)) for number in numbers)
    path = folder / f"{base:020}.log"
    path.write_bytes(encode_header(SegmentHeader(base, NOW, *ids)) + raw)
    return path


def metadata(folder: Path, next_id: int, read_id: int = 1) -> None:
    (folder / "metadata.dat").write_bytes(encode_metadata(Metadata(next_id, read_id)))


def records(queue: Directory) -> Iterator[Record]:
    return (item for _, item in queue.items() if isinstance(item, Record))


def ids(queue: Directory) -> list[int]:
    return [found.sequence for found in records(queue)]


def told(problems) -> list[tuple[str, str]]:
    return [(problem.file, problem.damage.reason) for problem in problems]


def state_of(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    return {
        path.name: (
            path.stat().st_size,
            path.stat().st_mtime_ns,
            path.stat().st_ctime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *folder.iterdir()]
    }


class TestRead:
    def test_segments_in_numeric_order_and_nothing_else(self, tmp_path: Path) -> None:
        log(tmp_path, 2_000_001, 21)
        log(tmp_path, 1, 1, 2)
        log(tmp_path, 1_000_001, 11, 12)
        for name in ("1.log", "9" * 20 + ".log", "0" * 19 + "x.log", f"{3:020}.log.tmp", "x.idx"):
            (tmp_path / name).write_bytes(b"not of the queue")
        metadata(tmp_path, 22, read_id=12)
        queue = read_directory(tmp_path)
        assert queue.segments == tuple(f"{base:020}.log" for base in (1, 1_000_001, 2_000_001))
        assert [(file, item.offset) for file, item in queue.items()] == [
            (f"{1:020}.log", 64),
            (f"{1:020}.log", 99),
            (f"{1_000_001:020}.log", 64),
            (f"{1_000_001:020}.log", 99),
            (f"{2_000_001:020}.log", 64),
        ]
        assert ids(queue) == [1, 2, 11, 12, 21]
        assert [found.sequence for found in records(queue) if queue.is_unread(found)] == [12, 21]
        assert queue.verify() == []

    def test_the_small_files(self, tmp_path: Path) -> None:
        write_directory(tmp_path, [record(1), record(2)], retries=RETRIES, dedup=DEDUP, read_id=2)
        queue = read_directory(str(tmp_path))
        assert queue.metadata == Metadata(next_id=3, read_id=2)
        assert (queue.retries, queue.dedup) == (RETRIES, DEDUP)
        assert queue.failures == {2: RETRIES.entries[0]}

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        queue = read_directory(tmp_path)
        assert (queue.segments, queue.metadata, queue.read_id) == ((), None, 1)
        assert (queue.failures, ids(queue), queue.verify()) == ({}, [], [])

    def test_without_metadata_all_is_unread(self, tmp_path: Path) -> None:
        log(tmp_path, 1, 1, 2)
        queue = read_directory(tmp_path)
        assert all(queue.is_unread(found) for found in records(queue))

    def test_nothing_is_changed(self, tmp_path: Path) -> None:
        write_directory(tmp_path, [record(n) for n in range(1, 9)], segment_records_max=3)
        path = log(tmp_path, 9, 8, 9)
        path.write_bytes(path.read_bytes() + b"torn")
        (tmp_path / ".retry_state.json").write_bytes(b"{")
        for path in tmp_path.iterdir():
            path.chmod(0o400)
        tmp_path.chmod(0o500)
        before = state_of(tmp_path)
        queue = read_directory(tmp_path)
        assert list(queue.items())
        assert queue.verify()
        assert state_of(tmp_path) == before
        tmp_path.chmod(0o700)

    def test_nothing_is_opened_for_writing(self, tmp_path: Path, monkeypatch) -> None:
        write_directory(tmp_path, [record(1)], retries=RETRIES)
        modes = []
        plain_open = os.open

        def watched(path, flags, *args, **kwargs):
            modes.append(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            return plain_open(path, flags, *args, **kwargs)

        monkeypatch.setattr(os, "open", watched)
        queue = read_directory(tmp_path)
        assert ids(queue) == [1]
        assert queue.verify() == []
        assert modes
        assert set(modes) == {0}

    def test_what_cannot_be_listed(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for name in ("file", "nowhere"):
            with pytest.raises(StorageError):
                read_directory(tmp_path / name)

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        elsewhere = log(tmp_path, 1, 1)
        folder = tmp_path / "queue"
        folder.mkdir()
        for name in (f"{1:020}.log", f"{1:020}.idx", "metadata.dat"):
            (folder / name).symlink_to(elsewhere)
        (folder / ".dedup_state.json").mkdir()
        log(folder, 2, 2)
        (folder / f"{2:020}.idx").symlink_to(elsewhere)
        queue = read_directory(folder)
        assert ids(queue) == [2]
        assert {reason for _, reason in told(queue.verify())} == {"not a regular file"}
        assert len(queue.problems) == 5


class TestLeftBehind:
    """Folders as LedgerQ's own defects leave them."""

    def test_metadata_ahead_of_the_data(self, tmp_path: Path) -> None:
        """L1: killed while records were in its buffer."""
        log(tmp_path, 1, 1, 2, 3)
        metadata(tmp_path, 5, read_id=4)
        queue = read_directory(tmp_path)
        assert ids(queue) == [1, 2, 3]
        assert told(queue.verify()) == [
            ("metadata.dat", "the next id is 5, but the last there is is 3")
        ]

    def test_an_empty_last_segment(self, tmp_path: Path) -> None:
        """L2: killed while the header was in its buffer."""
        log(tmp_path, 1, 1, 2)
        (tmp_path / f"{1_000_001:020}.log").touch()
        metadata(tmp_path, 3)
        queue = read_directory(tmp_path)
        assert ids(queue) == [1, 2]
        assert list(queue.items())[-1] == (f"{1_000_001:020}.log", Torn(0, 0))
        assert told(queue.verify()) == [
            (f"{1_000_001:020}.log", "ends within a record, or its header")
        ]

    def test_a_torn_tail(self, tmp_path: Path) -> None:
        """L3, and what is behind it after the next start."""
        path = log(tmp_path, 1, 1, 2)
        os.truncate(path, path.stat().st_size - 10)
        log(tmp_path, 1_000_001, 3)
        queue = read_directory(tmp_path)
        assert ids(queue) == [1, 3]
        assert [item for _, item in queue.items() if isinstance(item, Torn)] == [Torn(99, 25)]

    def test_a_damaged_record_in_an_older_segment(self, tmp_path: Path) -> None:
        """L4: everything else is still there."""
        path = log(tmp_path, 1, 1, 2, 3, closed=True)
        log(tmp_path, 1_000_001, 4, 5)
        raw = bytearray(path.read_bytes())
        raw[99 + 25] ^= 1
        path.write_bytes(raw)
        queue = read_directory(tmp_path)
        assert ids(queue) == [1, 3, 4, 5]
        assert [
            (file, item.offset, item.size)
            for file, item in queue.items()
            if isinstance(item, Damage)
        ] == [(path.name, 99, 35)]
        assert told(queue.verify()) == [(path.name, "wrong checksum")]

    def test_two_openers_at_once(self, tmp_path: Path) -> None:
        """L10: both gave the same ids, and the metadata of one is lost."""
        log(tmp_path, 1, 1, 2, 3)
        log(tmp_path, 1_000_001, 3, 4)
        metadata(tmp_path, 4)
        queue = read_directory(tmp_path)
        assert ids(queue) == [1, 2, 3, 3, 4]
        assert told(queue.verify()) == [
            (f"{1_000_001:020}.log", "ids from 3 on, but earlier segments have ids up to 3"),
            ("metadata.dat", "the next id is 4, but the last there is is 4"),
        ]

    def test_read_further_than_written(self, tmp_path: Path) -> None:
        metadata(tmp_path, 1, read_id=2)
        assert told(read_directory(tmp_path).verify()) == [
            ("metadata.dat", "read up to 2, but the next id is 1")
        ]

    def test_damaged_small_files(self, tmp_path: Path, monkeypatch) -> None:
        write_directory(tmp_path, [record(1)], retries=RETRIES, dedup=DEDUP)
        monkeypatch.setattr(folder, "STATE_BYTES_MAX", 100)
        (tmp_path / "metadata.dat").write_bytes(bytes(24))
        (tmp_path / ".retry_state.json").write_bytes(b"[]")
        queue = read_directory(tmp_path)
        assert (queue.metadata, queue.retries, queue.dedup) == (None, None, None)
        assert [problem.file for problem in queue.problems] == [
            "metadata.dat",
            ".retry_state.json",
            ".dedup_state.json",
        ]
        assert ids(queue) == [1]
        assert queue.verify() == list(queue.problems)

    def test_an_index_that_does_not_fit(self, tmp_path: Path) -> None:
        write_directory(tmp_path, [record(n) for n in range(1, 5)], segment_records_max=2)
        one, two = (tmp_path / f"{base:020}.idx" for base in (1, 3))
        two.write_bytes(one.read_bytes())
        one.write_bytes(one.read_bytes()[:-1])
        (tmp_path / f"{7:020}.idx").touch()
        assert told(read_directory(tmp_path).verify()) == [
            (f"{7:020}.idx", "an index without a segment"),
            (one.name, "index at 32: 55 bytes are not 1 entries"),
            (two.name, "index of segment 1, not 3"),
            (two.name, "no record 1 at 64"),
        ]

    def test_a_segment_under_another_name(self, tmp_path: Path) -> None:
        log(tmp_path, 1, 1).rename(tmp_path / f"{5:020}.log")
        assert told(read_directory(tmp_path).verify()) == [
            (f"{5:020}.log", "header: the number is 1")
        ]


DEAD = {
    "dlq.original_msg_id": "2",
    "dlq.retry_count": "3",
    "dlq.failure_reason": "no",
    "dlq.last_failure": "2025-10-21T17:17:43.217+05:45",
    "trace": "7",
}


class TestDeadLetters:
    def test_what_it_was(self) -> None:
        assert dead_letter(record(1, headers=DEAD)) == DeadLetter(
            2, 3, "no", GoTime(1_761_046_363_217_000_000, 345)
        )
        assert dead_letter(record(1, headers={"dlq.original_msg_id": "2"})) == DeadLetter(
            2, 0, "", None
        )

    @pytest.mark.parametrize(
        "change", [{"original_msg_id": ""}, {"retry_count": "x"}, {"last_failure": "now"}]
    )
    def test_another_message(self, change) -> None:
        assert dead_letter(record(1)) is None
        headers = DEAD | {f"dlq.{name}": value for name, value in change.items()}
        assert dead_letter(record(1, headers=headers)) is None


class TestWrite:
    def test_what_is_written_is_read_and_nothing_is_wrong_with_it(self, tmp_path: Path) -> None:
        given = [
            record(3),
            record(4, headers={"k": "v"}, priority=2),
            replace(record(9, b"x" * 5000), expires_ns=NOW * 2),
            record(10),
            record(11, b""),
        ]
        folder = tmp_path / "queue"
        assert write_directory(folder, given, segment_records_max=2, next_id=20) == Metadata(20, 1)
        queue = read_directory(folder)
        assert [replace(r, offset=0, size=0) for r in records(queue)] == given
        assert queue.segments == tuple(f"{base:020}.log" for base in (1, 3, 5))
        assert told(queue.verify()) == [
            ("metadata.dat", "the next id is 20, but the last there is is 11")
        ]
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            ["metadata.dat", *queue.segments, *(name[:-4] + ".idx" for name in queue.segments)]
        )
        assert folder.stat().st_mode & 0o777 == 0o700

    def test_the_bytes_of_a_segment(self, tmp_path: Path) -> None:
        write_directory(tmp_path, [record(1), record(7)], read_id=8)
        assert (tmp_path / f"{1:020}.log").read_bytes() == (
            encode_header(SegmentHeader(1, NOW + 1, 1, 7)) + encode(record(1)) + encode(record(7))
        )
        assert (tmp_path / "metadata.dat").read_bytes() == encode_metadata(Metadata(8, 8))

    def test_the_index_has_an_entry_every_4096_bytes(self, tmp_path: Path) -> None:
        given = [record(n, bytes(970)) for n in range(1, 12)]  # 1000 bytes each
        write_directory(tmp_path, given)
        index = decode_index((tmp_path / f"{1:020}.idx").read_bytes())
        assert [(entry.id, entry.offset) for entry in index.entries] == [
            (1, 64),
            (6, 5064),
            (11, 10064),
        ]
        assert read_directory(tmp_path).verify() == []

    def test_segments_end_by_size(self, tmp_path: Path) -> None:
        write_directory(tmp_path, [record(n) for n in range(1, 6)], segment_bytes_max=36)
        assert [path.stat().st_size for path in sorted(tmp_path.glob("*.log"))] == [134, 134, 99]
        assert f"{1_000_001:020}.log" in os.listdir(tmp_path)

    def test_no_records(self, tmp_path: Path) -> None:
        assert write_directory(tmp_path, [], retries=RetryState(3)) == Metadata(1, 1)
        assert sorted(os.listdir(tmp_path)) == [".retry_state.json", "metadata.dat"]
        assert (tmp_path / ".retry_state.json").stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(
        ("numbers", "more"),
        [
            ([2, 1], {}),
            ([1, 1], {}),
            ([0], {}),
            ([1], {"read_id": 3}),
            ([1], {"read_id": 0}),
            ([1], {"next_id": 1}),
            ([1], {"segment_bytes_max": 0}),
            ([1], {"segment_records_max": 0}),
        ],
    )
    def test_what_is_refused_leaves_nothing(self, tmp_path: Path, numbers, more) -> None:
        with pytest.raises(UsageError):
            write_directory(tmp_path, [record(number) for number in numbers], **more)
        assert os.listdir(tmp_path) == []

    def test_a_folder_in_use(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UsageError):
            write_directory(tmp_path, [])
        with pytest.raises(StorageError):
            write_directory(tmp_path / "file", [])
        with pytest.raises(StorageError):
            write_directory(tmp_path / "no" / "where", [])

    @pytest.mark.parametrize(("number", "error"), [("ENOSPC", StorageFullError), ("EIO", None)])
    def test_a_failing_disk(self, tmp_path: Path, monkeypatch, number, error) -> None:
        """At whatever sync it fails: nothing stays, and no promise is made."""
        plain_sync, syncs = os.fsync, [0]

        def failing(fd: int) -> None:
            syncs[0] += 1
            if syncs[0] == fails_at:
                raise OSError(getattr(errno, number), "as it happens")
            plain_sync(fd)

        monkeypatch.setattr(os, "fsync", failing)
        for fails_at in range(1, 9):
            folder = tmp_path / str(fails_at)
            syncs[0] = 0
            given = [record(1), record(2)]
            if fails_at == 8:  # of a folder, 2 segments, 2 indexes, a folder, metadata, a folder
                fails_at = 9
                write_directory(folder, given, segment_records_max=1)
                assert syncs[0] == 8
                continue
            with pytest.raises(error or StorageError):
                write_directory(folder, given, segment_records_max=1)
            assert not folder.exists() or os.listdir(folder) == []

    def test_metadata_comes_last(self, tmp_path: Path, monkeypatch) -> None:
        """So a folder that a crash has left half written is not taken for a whole one."""
        done: list[tuple[str, str]] = []
        plain_rename, plain_sync = os.rename, os.fsync

        def rename(old, new):
            plain_rename(old, new)
            done.append(("rename", os.path.basename(new)))

        def fsync(fd: int) -> None:
            plain_sync(fd)
            done.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))

        monkeypatch.setattr(os, "rename", rename)
        monkeypatch.setattr(os, "fsync", fsync)
        write_directory(tmp_path, [record(1)], dedup=DEDUP)
        expected = []
        for name in (
            f"{1:020}.log",
            f"{1:020}.idx",
            ".dedup_state.json",
            None,
            "metadata.dat",
            None,
        ):
            expected += (
                [("sync", f"{name}.tmp"), ("rename", name)] if name else [("sync", tmp_path.name)]
            )
        assert done == expected
