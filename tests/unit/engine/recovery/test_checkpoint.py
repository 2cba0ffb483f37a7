"""A checkpoint is complete or not there; a restored store is whole or not there."""

import errno
import json
import os
import shutil
import stat

import pytest
from support_rows import Life, dump

from lodeq.engine.files import paths
from lodeq.engine.recovery import checkpoint as module
from lodeq.engine.recovery.checkpoint import (
    MANIFEST,
    abandon_checkpoint,
    begin_checkpoint,
    checkpoint_shard,
    read_manifest,
    restore,
    write_manifest,
)
from lodeq.engine.recovery.open_shard import open_store
from lodeq.engine.recovery.verify import verify
from lodeq.engine.recovery.watermark import Watermark
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.values import ShardMark
from lodeq.errors import (
    CorruptionError,
    FormatTooNewError,
    StorageError,
    StorageFullError,
    StorePathError,
)

MIB = 1 << 20


def open_at(path, shards=None):
    return open_store(
        path,
        shards=shards,
        durability=None,
        block_cache_bytes=8 * MIB,
        recovery="strict",
        rng=SeededRng(3),
    )


@pytest.fixture
def store(tmp_path):
    store = open_at(str(tmp_path / "store"), shards=2)
    yield store
    store.close()


@pytest.fixture
def lives(store):
    return [
        Life(shard.store, incarnation=shard.incarnation, shard=shard.index, shards=2)
        for shard in store.shards
    ]


def take(store, lives, dest):
    for life in lives:
        for _ in range(5):
            life.enqueue()
    work = begin_checkpoint(dest)
    for shard in store.shards:
        checkpoint_shard(shard.store, work, shard.index)
    marks = [
        ShardMark(life.shard, life.incarnation, life.incarnation << 40 | life.n) for life in lives
    ]
    return write_manifest(work, store_id=store.store_id, shards=marks)


@pytest.fixture
def taken(store, lives, tmp_path):
    return take(store, lives, str(tmp_path / "copy"))


def files(folder):
    return sorted(
        os.path.relpath(os.path.join(where, name), folder)
        for where, _, names in os.walk(folder)
        for name in names
    )


def edit(taken, change):
    """Change the manifest and seal it again."""
    path = os.path.join(taken, MANIFEST)
    with open(path) as file:
        body = json.load(file)
    change(body)
    body.pop("xxh3_128", None)
    body["xxh3_128"] = module.xxhash.xxh3_128_hexdigest(module._canonical(body))
    with open(path, "wb") as file:
        file.write(module._canonical(body))


class TestTaking:
    def test_it_is_private_complete_and_without_watermarks(self, store, lives, taken, tmp_path):
        assert stat.S_IMODE(os.stat(taken).st_mode) == 0o700
        assert sorted(os.listdir(taken)) == [MANIFEST, "shard0", "shard1"]
        manifest = read_manifest(taken)
        assert manifest.store_id == store.store_id
        assert manifest.shards == tuple(ShardMark(n, 1, 1 << 40 | 5) for n in range(2))
        assert sorted([MANIFEST, *(mark.name for mark in manifest.files)]) == files(taken)
        assert not os.path.exists(f"{taken}.partial")

    def test_it_never_overwrites(self, taken, store, lives, tmp_path):
        with pytest.raises(StorePathError, match="never overwrites"):
            begin_checkpoint(taken)
        work = begin_checkpoint(str(tmp_path / "other"))
        with pytest.raises(StorePathError, match="interrupted"):
            begin_checkpoint(str(tmp_path / "other"))
        os.mkdir(tmp_path / "other")
        for shard in store.shards:
            checkpoint_shard(shard.store, work, shard.index)
        with pytest.raises(StorePathError, match="appeared meanwhile"):
            write_manifest(
                work, store_id=store.store_id, shards=[ShardMark(n, 1, 1) for n in range(2)]
            )

    def test_it_is_never_inside_what_it_copies(self, taken, tmp_path):
        root = tmp_path / "store"
        os.symlink(root, tmp_path / "link")
        for inside in (root / "copy", root / "shard0" / "copy", tmp_path / "link" / "copy", root):
            with pytest.raises(StorePathError, match="inside the store"):
                begin_checkpoint(str(inside), store=str(root))
        abandon_checkpoint(begin_checkpoint(str(tmp_path / "store-2"), store=str(root)))
        with pytest.raises(StorePathError, match="inside the checkpoint"):
            restore(taken, os.path.join(taken, "copy"))

    def test_a_file_of_the_right_size_fails_by_its_checksum(self, taken, tmp_path):
        name = max(read_manifest(taken).files, key=lambda mark: mark.size_bytes).name
        with open(os.path.join(taken, name), "r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(bytes([first[0] ^ 1]))
        with pytest.raises(CorruptionError, match="its checksum is not"):
            restore(taken, tmp_path / "back")

    def test_a_failed_one_leaves_nothing(self, tmp_path):
        work = begin_checkpoint(str(tmp_path / "failed"))
        abandon_checkpoint(work)
        abandon_checkpoint(work)
        assert not os.path.exists(work)

    def test_a_shard_that_was_not_copied(self, store, tmp_path):
        work = begin_checkpoint(str(tmp_path / "copy"))
        with pytest.raises(StorageError):
            write_manifest(work, store_id=store.store_id, shards=[ShardMark(0, 1, 1)])
        assert not os.path.exists(tmp_path / "copy")
        with pytest.raises(StorePathError):
            write_manifest(str(tmp_path), store_id=store.store_id, shards=[])

    def test_a_full_disk(self, store, tmp_path, monkeypatch):
        work = begin_checkpoint(str(tmp_path / "copy"))

        def fail(*_):
            raise OSError(errno.ENOSPC, "No space left on device", work)

        monkeypatch.setattr(module, "write_new", fail)
        with pytest.raises(StorageFullError):
            write_manifest(work, store_id=store.store_id, shards=[])


class TestRestoring:
    def test_the_same_rows_and_a_store_that_opens(self, store, lives, taken, tmp_path):
        rows = [[row for row in dump(shard.store) if row[0] != b"m/open"] for shard in store.shards]
        lives[0].enqueue()  # after the checkpoint
        root = str(tmp_path / "deep" / "restored")
        restore(taken, root)
        assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
        state = Watermark.read(paths.watermark_path(root, 1))
        assert (state.shard, state.store_id, state.incarnation) == (1, store.store_id, 1)
        assert state.durable == 0
        again = open_at(root)
        assert again.recoveries == []
        assert [shard.incarnation for shard in again.shards] == [2, 2]
        assert [shard.seq for shard in again.shards] == [lives[1].us] * 2
        for shard, expected in zip(again.shards, rows, strict=True):
            assert [row for row in dump(shard.store) if row[0] != b"m/open"] == expected
            assert verify(shard.store, shard.index, 2) == []
        again.close()
        assert os.listdir(tmp_path / "deep") == ["restored"]

    def test_the_checkpoint_is_not_touched_by_the_restored_store(self, taken, tmp_path):
        root = str(tmp_path / "restored")
        restore(taken, root)
        for name in files(taken):
            if os.path.exists(os.path.join(root, name)):
                assert not os.path.samefile(os.path.join(taken, name), os.path.join(root, name))
        restored = open_at(root)
        Life(restored.shards[0].store, incarnation=2, shards=2).enqueue()
        restored.close()
        restore(taken, str(tmp_path / "again"))

    def test_over_an_empty_folder_only(self, taken, tmp_path):
        target = tmp_path / "target"
        target.mkdir()
        (target / "file").write_bytes(b"")
        for bad in (target, target / "file", target / "file" / "x"):
            with pytest.raises(StorePathError, match="choose another path"):
                restore(taken, bad)
        (target / "file").unlink()
        restore(taken, target)
        open_at(str(target)).close()

    def test_what_an_interrupted_restore_left(self, taken, tmp_path):
        (tmp_path / "target.restoring").mkdir()
        with pytest.raises(StorePathError, match="interrupted"):
            restore(taken, tmp_path / "target")

    @pytest.mark.parametrize("kind", ["flip", "cut", "longer", "gone", "link"])
    def test_a_damaged_file(self, taken, tmp_path, kind):
        name = next(name for name in files(taken) if name.endswith(".sst"))
        path = os.path.join(taken, name)
        with open(path, "rb") as file:
            raw = bytearray(file.read())
        os.unlink(path)
        raw[len(raw) // 2] ^= kind == "flip"
        data = {"cut": raw[:-1], "longer": raw + b"x"}.get(kind, raw)
        if kind == "link":
            os.symlink("/dev/zero", path)
        elif kind != "gone":
            with open(path, "wb") as file:
                file.write(data)
        with pytest.raises(CorruptionError, match="use another checkpoint"):
            restore(taken, tmp_path / "target")
        assert not os.path.lexists(tmp_path / "target")
        assert not os.path.lexists(tmp_path / "target.restoring")

    def test_an_unfinished_checkpoint(self, taken, tmp_path):
        os.unlink(os.path.join(taken, MANIFEST))
        with pytest.raises(CorruptionError, match="no finished checkpoint"):
            restore(taken, tmp_path / "target")

    def test_every_flipped_byte_of_the_manifest_is_noticed(self, taken, monkeypatch):
        path = os.path.join(taken, MANIFEST)
        with open(path, "rb") as file:
            raw = file.read()
        for at in range(0, len(raw), 37):
            with open(path, "wb") as file:
                file.write(raw[:at] + bytes([raw[at] ^ 0x04]) + raw[at + 1 :])
            try:
                manifest = read_manifest(taken)
            except (CorruptionError, FormatTooNewError):
                continue
            assert raw[at : at + 1] in b"\n ", manifest  # white space means nothing in JSON

    @pytest.mark.parametrize(
        "change",
        [
            lambda body: body.update(format="other"),
            lambda body: body.update(shards=[]),
            lambda body: body.update(shards=[[1, 1, 1], [0, 1, 1]]),
            lambda body: body.update(shards=[[n, 1, 1] for n in range(3)]),
            lambda body: body.update(shards=[[0, 1], [1, 1]]),
            lambda body: body.update(shards=[[0, -1, 1], [1, 1, 1]]),
            lambda body: body.update(shards=7),
            lambda body: body.update(store_id="xyz"),
            lambda body: body.update(store_id=5),
            lambda body: body.update(version="1"),
            lambda body: body["files"].append(body["files"][0]),
            lambda body: body["files"].append(["shard0/../../escape", 0, "0" * 32]),
            lambda body: body["files"].append(["/etc/passwd", 0, "0" * 32]),
            lambda body: body["files"].append(["shard0/.hidden", 0, "0" * 32]),
            lambda body: body["files"].append([5, 0, "0" * 32]),
            lambda body: body["files"].append(["shard0/file", True, "0" * 32]),
            lambda body: body["files"].append(["shard0/file", 0, "short"]),
            lambda body: body.pop("files"),
            lambda body: body.update(total=1),
            lambda body: body.update(total=1 << 60),
            lambda body: body.update(total="4"),
            lambda body: body.update(total=4, shards=[[1, 1, 1], [0, 1, 1]]),
            lambda body: body.update(total=4, shards=[[1, 1, 1], [1, 1, 1]]),
        ],
    )
    def test_a_manifest_that_lies(self, taken, tmp_path, change):
        edit(taken, change)
        with pytest.raises(CorruptionError):
            restore(taken, tmp_path / "target")
        assert not os.path.lexists(tmp_path / "target")

    @pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"null", b"\xff\xfe", b"[" * 100_000])
    def test_a_manifest_that_is_none(self, taken, raw):
        with open(os.path.join(taken, MANIFEST), "wb") as file:
            file.write(raw)
        with pytest.raises(CorruptionError):
            read_manifest(taken)

    @pytest.mark.parametrize("name", [MANIFEST, "shard0/CURRENT"])
    def test_a_pipe_instead_of_a_file_is_no_reason_to_wait(self, taken, tmp_path, name):
        path = os.path.join(taken, name)
        os.unlink(path)
        os.mkfifo(path)
        with pytest.raises(CorruptionError, match="not a file"):
            restore(taken, str(tmp_path / "restored"))
        assert not os.path.exists(tmp_path / "restored")

    def test_a_manifest_of_absurd_size(self, taken, monkeypatch):
        monkeypatch.setattr(module, "_MANIFEST_BYTES_MAX", 100)
        with pytest.raises(CorruptionError, match="too large"):
            read_manifest(taken)

    def test_a_newer_checkpoint(self, taken):
        edit(taken, lambda body: body.update(version=2))
        with pytest.raises(FormatTooNewError, match="upgrade"):
            read_manifest(taken)

    def test_a_flipped_bit_of_its_version_is_damage(self, taken):
        path = os.path.join(taken, MANIFEST)
        with open(path, "rb") as file:
            raw = file.read()
        with open(path, "wb") as file:
            file.write(raw.replace(b'"version": 1', b'"version": 3'))
        with pytest.raises(CorruptionError, match="checksum mismatch"):
            read_manifest(taken)

    def test_failures_of_the_disk_leave_nothing(self, taken, tmp_path, monkeypatch):
        for number, kind in [(errno.ENOSPC, StorageFullError), (errno.EIO, StorageError)]:

            def fail(fd, number=number):
                raise OSError(number, os.strerror(number))

            with monkeypatch.context() as patch:
                patch.setattr(os, "rename", lambda *_, number=number: fail(0, number))
                with pytest.raises(kind):
                    restore(taken, tmp_path / "target")
            assert not os.path.lexists(tmp_path / "target")
            assert not os.path.lexists(tmp_path / "target.restoring")

    def test_a_name_that_is_not_durable_leaves_nothing(self, taken, tmp_path, monkeypatch):
        target = tmp_path / "target"
        fsync_dir = paths.fsync_dir

        def fail(path):
            if os.path.exists(target):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync_dir(path)

        monkeypatch.setattr(module, "fsync_dir", fail)
        with pytest.raises(StorageError, match="target"):
            restore(taken, target)
        assert sorted(os.listdir(tmp_path)) == ["copy", "store"]

    def test_it_may_be_moved(self, taken, tmp_path):
        shutil.move(taken, tmp_path / "elsewhere")
        restore(tmp_path / "elsewhere", tmp_path / "target")
        open_at(str(tmp_path / "target")).close()
