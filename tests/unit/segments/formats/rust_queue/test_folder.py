"""Directories of the Rust queue: read in their true order, changed by nothing, written whole."""

import datetime
import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from lodeq.errors import SegmentCorruptError, StorageError, StorageFullError, UsageError
from lodeq.segments.formats.rust_queue import writer
from lodeq.segments.formats.rust_queue.codec import RustQueue
from lodeq.segments.formats.rust_queue.folder import DataFile, QueueDirectory
from lodeq.segments.formats.rust_queue.index import (
    ActiveFile,
    Index,
    IndexEntry,
    Manifest,
    SealedFile,
    decode_index,
    decode_manifest,
    encode_current,
    encode_index,
    encode_manifest,
)
from lodeq.segments.formats.rust_queue.reader import Variant
from lodeq.segments.formats.rust_queue.writer import write_directory
from lodeq.segments.item import Damage, Item, Record, Torn

DAY = datetime.date(2026, 1, 15)
MESSAGES = [b"message %d" % i for i in range(20)]


def put(
    root: Path, name: str, payloads: Iterable[bytes], *, variant: Variant = Variant.CRC32
) -> Path:
    """A data file as the original leaves it."""
    path = root / name[:4] / name[4:6] / name[6:8] / f"{name}.data"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(RustQueue(variant).encode, payloads)) + bytes(100))
    return path


def told(items: Iterable[tuple[DataFile, Item]]) -> list[tuple[int, bytes]]:
    return [(item.sequence, item.payload) for _, item in items if isinstance(item, Record)]


def reasons(queue: QueueDirectory) -> str:
    return "\n".join(f"{finding.path}: {finding.reason}" for finding in queue.findings)


def state(root: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes())
        if path.is_file()
        else (path.stat().st_mtime_ns, path.stat().st_mode, b"")
        for path in [root, *sorted(root.rglob("*"))]
    }


class TestReading:
    def test_files_follow_one_another(self, tmp_path: Path) -> None:
        put(tmp_path, "20260115-0000", [b"a", b"b"])
        put(tmp_path, "20260115-0001", [b"c"], variant=Variant.CRC64_RECORD)
        put(tmp_path, "20260116-0002", [])
        put(tmp_path, "20260116-0003", [b"d"])
        queue = QueueDirectory(tmp_path)
        expected = [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
        assert told(queue.scan()) == told(queue.salvage()) == expected
        assert queue.findings == ()
        assert queue.manifest is None
        assert queue.verify() == []
        assert told(QueueDirectory(tmp_path, start_sequence=5).scan())[-1] == (8, b"d")

    def test_the_order_is_that_of_the_numbers(self, tmp_path: Path) -> None:
        put(tmp_path, "20260116-9999", [b"a"])
        put(tmp_path, "20260116-10000", [b"b"])
        put(tmp_path, "20260115-10001", [b"c"])  # the clock has stepped back
        queue = QueueDirectory(tmp_path)
        assert [file.number for file in queue.files] == [9999, 10000, 10001]
        assert told(queue.scan()) == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert "clock" in reasons(queue)
        assert "before this one are gone" in reasons(queue)

    def test_numbers_that_begin_anew(self, tmp_path: Path) -> None:
        put(tmp_path, "20260115-0000", [b"a"])
        put(tmp_path, "20260116-0000", [b"b"])
        put(tmp_path, "20260116-0001", [b"c"])
        queue = QueueDirectory(tmp_path)
        assert told(queue.scan()) == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert "begin anew" in reasons(queue)

    def test_without_a_manifest_all_is_read(self, tmp_path: Path) -> None:
        """The original erases this file when it starts."""
        put(tmp_path, "20260115-0000", MESSAGES)
        before = state(tmp_path)
        assert [payload for _, payload in told(QueueDirectory(tmp_path).scan())] == MESSAGES
        assert state(tmp_path) == before

    def test_a_gap_ends_the_numbers(self, tmp_path: Path) -> None:
        put(tmp_path, "20260115-0000", [b"a"])
        put(tmp_path, "20260115-0002", [b"c"])
        queue = QueueDirectory(tmp_path)
        assert told(queue.scan()) == told(queue.salvage()) == [(0, b"a"), (-1, b"c")]
        assert "1 files before this one are gone" in reasons(queue)

    def test_damage_in_one_file_leaves_the_others(self, tmp_path: Path) -> None:
        path = put(tmp_path, "20260115-0000", [b"first", b"second", b"third"])
        put(tmp_path, "20260115-0001", [b"fourth"])
        raw = bytearray(path.read_bytes())
        raw[14 + 4] ^= 1
        path.write_bytes(raw)
        queue = QueueDirectory(tmp_path)
        assert told(queue.salvage()) == [(0, b"first"), (2, b"third"), (3, b"fourth")]
        with pytest.raises(SegmentCorruptError, match=r"0000\.data") as caught:
            list(queue.scan())
        assert caught.value.offset == 13
        assert [finding.path for finding in queue.verify()] == [str(path)]
        raw[13] ^= 1
        path.write_bytes(raw)
        assert told(queue.salvage())[1:] == [(-1, b"third"), (-1, b"fourth")]

    def test_a_torn_end_is_followed_by_the_next_file(self, tmp_path: Path) -> None:
        path = put(tmp_path, "20260115-0000", [b"a", b"b"])
        path.write_bytes(path.read_bytes()[:15])
        put(tmp_path, "20260116-0001", [b"c"])
        queue = QueueDirectory(tmp_path)
        assert told(queue.scan()) == told(queue.salvage()) == [(0, b"a"), (1, b"c")]
        assert Torn in [type(item) for _, item in queue.scan()]
        assert "not whole" in queue.verify()[0].reason

    def test_what_is_not_of_the_queue_is_reported(self, tmp_path: Path) -> None:
        path = put(tmp_path, "20260115-0000", [b"a"])
        shutil.copy(path, tmp_path / "other.data")
        (path.parent / "20260115-0001.data").symlink_to(path)
        os.mkfifo(path.parent / "20260115-0002.data")
        moved = tmp_path / "2026" / "02" / "01"
        moved.mkdir(parents=True)
        shutil.copy(path, moved / "20260115-0001.data")
        (path.parent / "20260115-0003.data.tmp").write_bytes(b"unfinished")
        queue = QueueDirectory(tmp_path)
        assert told(queue.scan()) == [(0, b"a"), (1, b"a")]
        assert reasons(queue).count("it is not read") == 3
        assert "another day" in reasons(queue)

    def test_a_directory_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError):
            QueueDirectory(tmp_path / "nowhere")
        assert QueueDirectory(tmp_path).files == ()


class TestHints:
    """Indexes and manifests are looked at, and never believed over the records."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        put(tmp_path, "20260115-0000", [b"a", b"b"])
        put(tmp_path, "20260116-0001", [b"c"])
        return tmp_path

    MANIFEST = Manifest(
        3,
        ActiveFile(1, 9, 1, "/elsewhere/2026/01/16/20260116-0001.data"),
        (SealedFile(0, 1, 18, "/elsewhere/2026/01/15/20260115-0000.data"),),
    )
    RECORDS = ((0, b"a"), (1, b"b"), (2, b"c"))

    def test_a_directory_may_have_been_moved(self, root: Path) -> None:
        (root / "manifest.1").write_bytes(encode_manifest(self.MANIFEST))
        (root / "manifest.current").write_bytes(encode_current(1))
        before = state(root)
        queue = QueueDirectory(root)
        assert queue.manifest == self.MANIFEST
        assert queue.verify() == []
        assert tuple(told(queue.scan())) == tuple(told(queue.salvage())) == self.RECORDS
        queue.index(queue.files[0])
        assert state(root) == before

    def test_a_damaged_slot_gives_way_to_the_other(self, root: Path) -> None:
        older = Manifest(2, self.MANIFEST.active)
        raw = bytearray(encode_manifest(self.MANIFEST))
        (root / "manifest.1").write_bytes(encode_manifest(older))
        (root / "manifest.2").write_bytes(raw)
        assert QueueDirectory(root).manifest == self.MANIFEST  # none is named: the newer
        (root / "manifest.current").write_bytes(encode_current(1))
        assert QueueDirectory(root).manifest == older
        (root / "manifest.current").write_bytes(b"\7")
        assert QueueDirectory(root).manifest == self.MANIFEST
        (root / "manifest.current").write_bytes(encode_current(2))
        assert QueueDirectory(root).manifest == self.MANIFEST
        raw[-1] ^= 1
        (root / "manifest.2").write_bytes(raw)
        queue = QueueDirectory(root)
        assert queue.manifest == older
        assert "checksum" in reasons(queue)
        assert "cannot be read" in reasons(queue)
        (root / "manifest.1").write_bytes(b"")
        queue = QueueDirectory(root)
        assert queue.manifest is None
        assert tuple(told(queue.scan())) == self.RECORDS

    def test_a_manifest_that_is_wrong_is_reported(self, root: Path) -> None:
        wrong = Manifest(
            9,
            ActiveFile(),
            (
                SealedFile(0, 5, 9, "/q/2026/01/15/20260115-0000.data"),
                SealedFile(6, 8, 9, "C:\\q\\2026\\01\\15\\20260115-0007.data"),
            ),
        )
        (root / "manifest.1").write_bytes(encode_manifest(wrong))
        queue = QueueDirectory(root)
        assert tuple(told(queue.scan())) == self.RECORDS
        assert "2026/01/15/20260115-0007.data: the manifest has this file" in reasons(queue)
        assert "2 records, where the manifest has 6" in [
            finding.reason for finding in queue.verify()
        ]

    def test_indexes_are_made_anew(self, root: Path) -> None:
        second = QueueDirectory(root).files[1]
        Path(second.index_path).write_bytes(encode_index(Index(1024)))  # as the original leaves it
        queue = QueueDirectory(root)
        assert queue.findings == ()
        assert queue.index(queue.files[0], 1).entries == (IndexEntry(0, 0), IndexEntry(1, 9))
        assert queue.index(second).entries == (IndexEntry(0, 0),)

    def test_indexes_that_are_wrong_are_reported(self, root: Path) -> None:
        first, second = QueueDirectory(root).files
        Path(first.index_path).write_bytes(encode_index(Index(1, (IndexEntry(0, 3),))))
        Path(second.index_path).write_bytes(b"short")
        queue = QueueDirectory(root)
        assert tuple(told(queue.scan())) == self.RECORDS
        found = [finding.reason for finding in queue.verify()]
        assert found == ["an index begins with 256 bytes", "no record begins at 3"]

    def test_hints_that_are_no_files(self, root: Path) -> None:
        (root / "manifest.current").mkdir()
        (root / "manifest.1").symlink_to(root / "nowhere")
        queue = QueueDirectory(root)
        assert tuple(told(queue.scan())) == self.RECORDS
        assert len(queue.findings) == 2


class TestWriting:
    @pytest.mark.parametrize("variant", list(Variant))
    @pytest.mark.parametrize("is_preallocated", [False, True])
    def test_what_is_written_is_read(
        self, tmp_path: Path, variant: Variant, is_preallocated: bool
    ) -> None:
        root = tmp_path / "queue"
        manifest = write_directory(
            root,
            MESSAGES,
            day=DAY,
            variant=variant,
            file_bytes=128,
            interval=3,
            is_preallocated=is_preallocated,
        )
        shutil.move(root, tmp_path / "moved")
        queue = QueueDirectory(tmp_path / "moved")
        assert told(queue.scan()) == list(enumerate(MESSAGES))
        assert queue.manifest == manifest
        assert queue.verify() == []
        assert len(queue.files) > 2
        assert manifest.next_sequence == len(MESSAGES)
        assert manifest.active == ActiveFile(number=len(queue.files))
        sizes = {os.path.getsize(file.path) for file in queue.files}
        assert (sizes == {128}) is is_preallocated
        for file, sealed in zip(queue.files, manifest.sealed, strict=True):
            index = decode_index(Path(file.index_path).read_bytes())
            own = queue.index(file, 3)
            assert [
                (entry.sequence - sealed.first_sequence, entry.offset) for entry in index.entries
            ] == [(entry.sequence, entry.offset) for entry in own.entries]

    def test_names_are_those_of_the_original(self, tmp_path: Path) -> None:
        write_directory(tmp_path / "q", MESSAGES[:1], day=datetime.date(987, 1, 2))
        assert sorted(
            path.relative_to(tmp_path / "q").as_posix()
            for path in (tmp_path / "q").rglob("*")
            if path.is_file()
        ) == [
            "0987/01/02/09870102-0000.data",
            "0987/01/02/09870102-0000.index",
            "manifest.1",
            "manifest.current",
        ]

    def test_nothing_to_write(self, tmp_path: Path) -> None:
        assert write_directory(tmp_path, [], day=DAY) == Manifest()
        assert decode_manifest((tmp_path / "manifest.1").read_bytes()) == Manifest()
        assert told(QueueDirectory(tmp_path).scan()) == []

    def test_a_record_larger_than_a_file_gets_its_own(self, tmp_path: Path) -> None:
        messages = [b"a", b"b" * 100, b"c"]
        write_directory(tmp_path, messages, day=DAY, file_bytes=50, is_preallocated=True)
        queue = QueueDirectory(tmp_path)
        assert told(queue.scan()) == list(enumerate(messages))
        assert [os.path.getsize(file.path) for file in queue.files] == [50, 108, 50]

    def test_what_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="positive"):
            write_directory(tmp_path / "q", [], day=DAY, file_bytes=0)
        (tmp_path / "file").touch()
        with pytest.raises(UsageError, match="not empty"):
            write_directory(tmp_path, [], day=DAY)
        with pytest.raises(UsageError, match="empty payload"):
            write_directory(tmp_path / "q", [b"a", b""], day=DAY)
        assert not (tmp_path / "q" / "manifest.current").exists()
        assert QueueDirectory(tmp_path / "q").files == ()

    def test_a_name_comes_after_its_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each rename follows a sync of the file and is followed by one of the directory."""
        done: list[str] = []
        fsync, rename = os.fsync, os.rename

        def named(fd: int) -> None:
            done.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
            fsync(fd)

        def renamed(one: str, two: str) -> None:
            done.append(f"name {os.path.basename(two)}")
            rename(one, two)

        monkeypatch.setattr(os, "fsync", named)
        monkeypatch.setattr(os, "rename", renamed)
        monkeypatch.setattr(os, "replace", renamed)
        write_directory(tmp_path / "q", MESSAGES[:1], day=DAY)
        files = {"20260115-0000.index": "15", "20260115-0000.data": "15"}
        files |= {"manifest.1": "q", "manifest.current": "q"}
        assert [step for step in done if step.startswith("name")] == [
            f"name {name}" for name in files
        ]
        for name, folder in files.items():
            at = done.index(f"name {name}")
            assert f"sync {name}.tmp" in done[:at]
            assert done[at + 1] == f"sync {folder}"
        made = [f"sync {folder}" for folder in (tmp_path.name, "q", "2026", "01")]
        assert done[: len(made)] == made  # each holds the name of the next

    @pytest.mark.parametrize(
        ("number", "error"), [(errno.ENOSPC, StorageFullError), (errno.EIO, StorageError)]
    )
    def test_errors_of_the_disk(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        error: type[StorageError],
    ) -> None:
        def fail(path: str) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(writer, "fsync_dir", fail)
        with pytest.raises(error) as caught:
            write_directory(tmp_path / "q", MESSAGES, day=DAY)
        assert type(caught.value) is error


def test_a_file_without_a_good_record_is_told_as_damage(tmp_path: Path) -> None:
    put(tmp_path, "20260115-0000", []).write_bytes(b"\1\0\0\0" * 100)
    items = [item for _, item in QueueDirectory(tmp_path).salvage()]
    assert isinstance(items[0], Damage)
    assert "unknown" in items[0].reason
