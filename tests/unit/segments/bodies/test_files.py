"""Body files: what was appended is read, or told to be damaged or gone; never something else."""

import errno
import os
from pathlib import Path

import pytest

import lodeq
from lodeq.segments.bodies.files import FILE_BYTES, BodyFiles
from lodeq.segments.bodies.layout import Location
from lodeq.segments.bodies.sqs import HEADER_BYTES, Sqs
from lodeq.segments.item import Damage, Hole, Record
from lodeq.segments.source import FileSource

IDS = [bytes([i]) * 16 for i in range(1, 20)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bodies"


def opened(folder: Path, **how: int) -> BodyFiles:
    return BodyFiles.open(str(folder), **how)


def test_what_is_appended_is_read(folder: Path) -> None:
    files = opened(folder)
    bodies = [b"", b"x", bytes(100_000), os.urandom(70_000)]
    where = [files.append(id, body) for id, body in zip(IDS, bodies, strict=False)]
    for id, body, location in zip(IDS, bodies, where, strict=False):
        assert files.read(location, id) == body
    files.sync()
    files.close()
    again = opened(folder)
    assert [again.read(at, id) for at, id in zip(where, IDS, strict=False)] == bodies
    assert again.append(IDS[5], b"later").file == 2  # what another run began is never gone on with
    with FileSource(again.path(1)) as source:
        assert Sqs().verify(source) == []
    again.close()
    again.close()


def test_files_are_left_when_they_are_full(folder: Path) -> None:
    files = opened(folder, file_bytes=10_000)
    where = [files.append(id, bytes(4000)) for id in IDS[:5]]
    large = files.append(IDS[5], bytes(50_000))
    after = files.append(IDS[6], b"small")
    assert [at.file for at in where] == [1, 1, 2, 2, 3]
    assert (large.file, large.offset, after.file) == (4, HEADER_BYTES, 5)
    assert [file.number for file in files.files()] == [1, 2, 3, 4, 5]
    assert all(file.bytes <= 10_000 for file in files.files() if file.number != 4)
    files.close()


def test_records_of_one_file_go_with_one_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one = opened(folder.with_name("apart"), file_bytes=10_000)
    files = opened(folder, file_bytes=10_000)
    records = [(id, bytes([i]) * 3000) for i, id in enumerate(IDS[:7])]
    calls: list[int] = []
    writev = os.writev

    def counted(fd: int, parts: list[bytes]) -> int:
        calls.append(len(parts))
        return writev(fd, parts)

    expected = [one_by_one.append(*record) for record in records]
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", counted)
        assert files.append_all(records) == expected
    assert calls == [6, 6, 2]
    assert [files.read(at, id) for at, (id, _) in zip(expected, records, strict=True)] == [
        body for _, body in records
    ]
    for at in {at.file for at in expected}:
        assert Path(files.path(at)).read_bytes() == Path(one_by_one.path(at)).read_bytes()
    assert files.append_all(()) == []
    files.sync()
    files.close()
    one_by_one.close()


def test_more_records_than_one_call_takes(folder: Path) -> None:
    files = opened(folder)
    records = [(i.to_bytes(16, "big"), b"%d" % i) for i in range(1500)]
    where = files.append_all(records)
    assert [files.read(at, id) for at, (id, _) in zip(where, records, strict=True)] == [
        body for _, body in records
    ]
    files.close()


def test_a_disk_that_fills_up_among_several_keeps_none_of_their_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(folder)
    first = files.append(IDS[0], b"first")
    writev, write = os.writev, os.write
    left = iter([500])

    def part(fd: int, parts: list[bytes]) -> int:
        return writev(fd, [b"".join(parts)[:2000]])

    def full(fd: int, data: bytes) -> int:
        for most in left:
            return write(fd, data[:most])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", part)
        patch.setattr(os, "write", full)
        with pytest.raises(lodeq.StorageFullError):
            files.append_all([(id, bytes(1000)) for id in IDS[1:5]])
    again = files.append(IDS[6], b"again")
    assert again.offset == first.offset + first.size
    with FileSource(files.path(1)) as source:
        assert Sqs().verify(source) == []
    files.close()


def test_what_one_call_leaves_over_is_written_behind_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(folder)
    writev, write = os.writev, os.write
    records = [(id, os.urandom(1000)) for id in IDS[:4]]
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", lambda fd, parts: writev(fd, [b"".join(parts)[:1500]]))
        files._begin()
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:700]))
        where = files.append_all(records)
    assert [files.read(at, id) for at, (id, _) in zip(where, records, strict=True)] == [
        body for _, body in records
    ]
    files.close()


def test_no_number_is_used_twice(folder: Path) -> None:
    files = opened(folder, file_bytes=1000)
    for id in IDS[:3]:
        files.append(id, bytes(900))
    files.seal()
    for number in (1, 2, 3):
        files.forget(number)
        files.unlink(number)
    assert files.append(IDS[3], b"").file == 4
    files.close()
    assert opened(folder, least=9).append(IDS[4], b"").file == 9


def test_what_lies_elsewhere_or_is_another_is_never_told(folder: Path) -> None:
    files = opened(folder)
    one, other = files.append(IDS[0], b"one"), files.append(IDS[1], b"two")
    for location, id in (
        (one, IDS[1]),
        (one._replace(size=other.offset), IDS[0]),
        (one._replace(offset=0), IDS[0]),
        (one._replace(offset=one.offset + 1), IDS[0]),
        (one._replace(size=3), IDS[0]),
        (one._replace(offset=1 << 40), IDS[0]),
    ):
        with pytest.raises(lodeq.SegmentCorruptError, match=id.hex()):
            files.read(location, id)
    assert files.read(one._replace(file=7), IDS[0]) is None
    files.close()


def test_a_file_that_is_removed_is_gone_also_for_open_readers(folder: Path) -> None:
    files = opened(folder)
    location = files.append(IDS[0], b"one")
    assert files.read(location, IDS[0]) == b"one"
    files.seal()
    files.forget(location.file)
    files.unlink(location.file)
    files.forget(location.file)
    files.unlink(location.file)
    assert files.read(location, IDS[0]) is None
    assert files.files() == []
    files.close()


def test_a_forgotten_file_is_not_told_of_unless_it_cannot_be_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(folder)
    number = files.append(IDS[0], b"one").file
    files.seal()
    files.forget(number)
    assert files.files() == []
    assert files.seal_all() == []  # a checkpoint begun now has nothing to link
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(lodeq.StorageError, match=r"cannot remove .*Input/output error"):
            files.unlink(number)
    assert [file.number for file in files.files()] == [number]
    files.forget(number)
    files.unlink(number)
    assert files.files() == []
    files.close()


def refuse(path: str) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def test_torn_or_cut_anywhere_a_record_is_whole_or_refused(folder: Path) -> None:
    files = opened(folder)
    bodies = [b"first", b"", b"third body"]
    where = [files.append(id, body) for id, body in zip(IDS, bodies, strict=False)]
    path = Path(files.path(1))
    whole = path.read_bytes()
    for cut in range(len(whole)):
        for rest in (b"", bytes(len(whole) - cut), b"\xa5" * (len(whole) - cut)):
            path.write_bytes(whole[:cut] + rest)
            for id, body, location in zip(IDS, bodies, where, strict=False):
                try:
                    assert files.read(location, id) == body
                except lodeq.SegmentCorruptError:
                    assert location.offset + location.size > cut
    files.close()


def test_a_full_disk_leaves_no_part_of_a_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(folder)
    first = files.append(IDS[0], b"first")
    writev = os.writev

    def part(fd: int, parts: tuple[bytes, bytes]) -> int:
        return writev(fd, [b"".join(parts)[:10]])

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", part)
        patch.setattr(os, "write", full)
        with pytest.raises(lodeq.StorageFullError):
            files.append(IDS[1], bytes(1000))
    second = files.append(IDS[2], b"second")
    assert second == Location(1, first.offset + first.size, second.size)
    with FileSource(files.path(1)) as source:
        assert [item.id for item in Sqs().scan(source) if isinstance(item, Record)] == [
            IDS[0],
            IDS[2],
        ]
        assert Sqs().verify(source) == []
    files.close()


def test_a_disk_that_is_full_at_a_new_file_uses_no_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(folder)

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(lodeq.StorageFullError):
            files.append(IDS[0], b"x")
    assert list(folder.iterdir()) == []
    assert files.append(IDS[0], b"x").file == 1
    files.close()


def test_a_sync_covers_all_before_it_and_new_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(folder, file_bytes=1020)
    for id in IDS[:3]:
        files.append(id, bytes(900))
    synced: list[str] = []
    for name in ("fdatasync", "fsync"):
        call = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda fd, call=call: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or call(fd),
        )
    files.sync()
    assert sorted(synced[:3]) == [files.path(n) for n in (1, 2, 3)]
    assert synced[3:] == [str(folder)]
    synced.clear()
    files.sync()
    assert synced == []
    files.append(IDS[4], b"")
    files.sync()
    assert synced == [files.path(3)]
    files.close()


def test_a_sync_needs_no_descriptor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that fails poisons its shard, and one that found no descriptor has lost nothing."""

    def none_left(path: object, *_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    files = opened(folder, file_bytes=10_000)
    files.append(IDS[0], b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", none_left)
        files.sync()
        with pytest.raises(lodeq.StorageError, match="more open files"):
            files.append(IDS[1], bytes(20_000))
    at = files.append(IDS[1], bytes(20_000))
    files.sync()
    assert files.read(at, IDS[1]) == bytes(20_000)
    files.close()


def test_a_dead_range_gives_its_pages_back(folder: Path) -> None:
    files = opened(folder)
    where = [files.append(id, os.urandom(100_000)) for id in IDS[:3]]
    dead = where[1]
    with pytest.raises(lodeq.StorageError, match="current"):
        files.punch(1, dead.offset, dead.size)
    files.seal()
    files.sync()
    before = os.stat(files.path(1))
    gone = files.punch(1, dead.offset, dead.size)
    after = os.stat(files.path(1))
    assert gone > 90_000
    assert after.st_size == before.st_size
    assert (before.st_blocks - after.st_blocks) * 512 >= gone
    assert files.read(where[0], IDS[0]) is not None
    assert files.read(where[2], IDS[2]) is not None
    with FileSource(files.path(1)) as source:
        items = list(Sqs().scan(source))
        assert [type(item) for item in items] == [Record, Hole, Record]
        assert not any(isinstance(item, Damage) for item in Sqs().salvage(source))
    assert files.punch(1, dead.offset, 60) == 0  # too small for a page
    os.link(files.path(1), folder / "backup")
    assert files.punch(1, where[0].offset, where[0].size) == 0
    assert files.read(where[0], IDS[0]) is not None
    files.close()


def test_everything_is_private_and_the_default_is_documented(folder: Path) -> None:
    old = os.umask(0o022)
    try:
        files = opened(folder)
        files.append(IDS[0], b"")
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.stat(files.path(1)).st_mode & 0o777 == 0o600
    assert FILE_BYTES == 16 << 20
    files.close()
