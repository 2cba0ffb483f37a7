"""Ballast: kept while there is room, given up by an open that has none."""

import errno
import logging
import os
import stat
from types import SimpleNamespace

import pytest
from support_rows import FixedClock

from lodeq.engine.files.ballast import (
    LEAST_BYTES,
    TIGHT_BYTES,
    due_bytes,
    give_up,
    make,
    needed_bytes,
)
from lodeq.engine.files.lockfile import LockFile
from lodeq.engine.files.paths import ballast_path, list_layout, lock_path
from lodeq.engine.recovery import decide
from lodeq.engine.recovery.open_shard import open_memory, open_store
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.store.rocks import RocksStore
from lodeq.errors import LockedError, StorageFullError, StorePathError

MIB = 1 << 20
SIZE = 6 * MIB
KEY, VALUE = b"x/one", b"what was there"


class Volume:
    """The answer of ``statvfs`` for every path; what ballast there is has been taken from it."""

    def __init__(self, root, free, total=100 << 30):
        self.root, self.free, self.total = root, free, total

    def statvfs(self, path):
        held = 0 if os.path.lexists(ballast_path(self.root)) else SIZE
        return SimpleNamespace(
            f_bavail=(self.free + held) // 4096,
            f_blocks=self.total // 4096,
            f_frsize=4096,
            f_files=0,
            f_favail=0,
        )


@pytest.fixture
def root(tmp_path):
    """A store that was closed, with ballast."""
    root = str(tmp_path / "store")
    store = open_one(root)
    store.shards[0].store.write([(KEY, VALUE)])
    store.close()
    assert make(root, SIZE)
    return root


def open_one(root, recovery="strict", is_replica=False):
    return open_store(
        root,
        shards=None,
        durability=None,
        block_cache_bytes=8 * MIB,
        recovery=recovery,
        rng=SeededRng(1),
        clock=FixedClock(),
        is_replica=is_replica,
    )


def has_it(root):
    return os.path.lexists(ballast_path(root))


def no_room(*args, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestFile:
    @pytest.mark.parametrize("is_able", [True, False], ids=["fallocate", "zeros"])
    def test_it_has_blocks_and_is_ours_alone(self, tmp_path, monkeypatch, is_able):
        if not is_able:

            def unable(fd, at, size):
                raise OSError(errno.EOPNOTSUPP, "not here")

            monkeypatch.setattr(os, "posix_fallocate", unable)
        for size in (SIZE, 2 * SIZE + 5):  # made, and enlarged
            assert make(str(tmp_path), size)
            info = os.lstat(ballast_path(str(tmp_path)))
            assert info.st_size == size
            assert info.st_blocks * 512 >= size
            assert stat.S_IMODE(info.st_mode) == 0o600
        assert give_up(str(tmp_path)) >= 2 * SIZE
        assert os.listdir(tmp_path) == []
        assert give_up(str(tmp_path)) == 0

    def test_no_room_for_it_leaves_none(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "posix_fallocate", no_room)
        with pytest.raises(OSError, match="No space"):
            make(str(tmp_path), SIZE)
        assert os.listdir(tmp_path) == []

    def test_it_is_not_written_on_once_stopped(self, tmp_path, monkeypatch):
        monkeypatch.delattr(os, "posix_fallocate")
        assert not make(str(tmp_path), SIZE, is_stopped=lambda: True)
        assert give_up(str(tmp_path))  # what was begun is ours

    @pytest.mark.parametrize("content", [b"a list of sand bags\n", b"lodeq ballad\n", bytes(9999)])
    def test_a_file_of_somebody_else_stays(self, tmp_path, content):
        path = tmp_path / "ballast"
        path.write_bytes(content)
        assert give_up(str(tmp_path)) == 0
        with pytest.raises(OSError, match="not ours"):
            make(str(tmp_path), SIZE)
        assert path.read_bytes() == content

    def test_one_that_a_power_cut_left_begun_is_taken_up(self, tmp_path):
        (tmp_path / "ballast").write_bytes(b"lodeq bal")
        assert make(str(tmp_path), SIZE)
        assert give_up(str(tmp_path)) >= SIZE


@pytest.mark.parametrize(
    ("most", "free", "total", "have", "due"),
    [
        (128 * MIB, 2 << 30, 100 << 30, 0, 128 * MIB),
        (128 * MIB, 2 << 30, 100 << 30, 128 * MIB, 0),  # it is there
        (128 * MIB, 2 << 30, 100 << 30, 100 * MIB, 0),  # nearly: let it be
        (128 * MIB, 2 << 30, 100 << 30, 8 * MIB, 128 * MIB),  # there was less room
        (128 * MIB, TIGHT_BYTES, 100 << 30, 0, 0),  # not yet
        (0, 2 << 30, 100 << 30, 0, 0),  # none is kept
        (128 * MIB, 900 * MIB, 1 << 30, 0, 64 * MIB),  # a sixteenth of a small volume
        (128 * MIB, 328 * MIB, 100 << 30, 0, 50 * MIB),  # a quarter of what may be spared
        (128 * MIB, 128 * MIB + 4 * LEAST_BYTES - 8192, 100 << 30, 0, 0),  # too little to be of use
        (128 * MIB, 0, 100 << 30, 0, 0),
    ],
)
def test_how_much_is_kept(tmp_path, monkeypatch, most, free, total, have, due):
    if have:
        make(str(tmp_path), have)
    info = SimpleNamespace(f_bavail=free // 4096, f_blocks=total // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: info)
    assert due_bytes(str(tmp_path), most, floor=128 * MIB) == due


class TestOpen:
    def test_it_is_given_up_before_anything_is_opened_where_room_is_short(
        self, root, monkeypatch, caplog
    ):
        monkeypatch.setattr(os, "statvfs", Volume(root, free=0).statvfs)
        opened = open_one(root)
        (report,) = opened.recoveries
        assert "the disk was full (0 bytes free): gave up" in report
        assert opened.shards[0].store.get(KEY) == VALUE
        opened.close()
        assert not has_it(root)
        events = [r for r in caplog.records if getattr(r, "event", "") == "ballast_given_up"]
        assert [r.levelno for r in events] == [logging.WARNING]
        again = open_one(root)
        assert again.recoveries == []  # told once
        again.close()

    def test_it_stays_where_there_is_room(self, root, monkeypatch):
        monkeypatch.setattr(os, "statvfs", Volume(root, free=64 * MIB).statvfs)
        for recovery_mode in ("strict", "salvage"):
            opened = open_one(root, recovery_mode)
            assert not any("ballast" in text for text in opened.recoveries)
            opened.close()
        assert has_it(root)

    @pytest.mark.parametrize("is_replica", [False, True])
    def test_it_is_given_up_where_the_open_finds_no_room_after_all(
        self, root, monkeypatch, is_replica
    ):
        """A quota, for one, is nothing that the file system tells."""
        real = RocksStore.open.__func__

        def full_while_it_is_there(cls, path, **options):
            if has_it(root):
                raise StorageFullError("No space left on device")
            with pytest.raises(LockedError):  # nobody can come in between
                LockFile.acquire(lock_path(root))
            return real(cls, path, **options)

        monkeypatch.setattr(RocksStore, "open", classmethod(full_while_it_is_there))
        opened = open_one(root, is_replica=is_replica)
        assert len(opened.recoveries) == 1
        assert opened.shards[0].store.get(KEY) == VALUE
        opened.close()
        assert not has_it(root)

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_so_it_is_where_a_file_of_ours_finds_none(self, root, monkeypatch, code):
        real = decide.clone_folder

        def full_while_it_is_there(source, target, **options):
            if has_it(root):
                raise OSError(code, os.strerror(code))
            real(source, target, **options)

        monkeypatch.setattr(decide, "clone_folder", full_while_it_is_there)
        opened = open_one(root)
        assert len(opened.recoveries) == 1
        opened.close()

    def test_so_it_is_where_the_lock_finds_none(self, root, monkeypatch):
        real = os.pwrite

        def full_while_it_is_there(fd, data, at):
            if has_it(root):
                no_room()
            return real(fd, data, at)

        monkeypatch.setattr(os, "pwrite", full_while_it_is_there)
        opened = open_one(root)
        assert len(opened.recoveries) == 1
        opened.close()

    @pytest.mark.parametrize("what", ["lock", "rocks"])
    def test_who_has_not_room_enough_is_told_where_and_how_much(self, root, monkeypatch, what):
        volume = Volume(root, free=4096)
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", volume.statvfs)
            if what == "lock":
                patch.setattr(os, "pwrite", no_room)
            else:
                patch.setattr(decide, "clone_folder", no_room)
            with pytest.raises(StorageFullError) as caught:
                open_one(root)
        text = str(caught.value)
        assert text.startswith(f"{root} cannot be opened, its disk is full: about ")
        assert f"{needed_bytes(root, (0,)):,} bytes are needed, {SIZE + 4096:,} are free" in text
        assert text.endswith("free some disk space")
        assert not has_it(root)
        opened = open_one(root)  # unlocked, and sound
        assert opened.shards[0].store.get(KEY) == VALUE
        opened.close()

    def test_what_is_needed_is_what_the_logs_hold(self, root):
        empty = needed_bytes(root, (0,))
        with open(os.path.join(root, "shard0", "000999.log"), "wb") as file:
            file.truncate(8 * MIB)
        assert needed_bytes(root, (0,)) == empty + 10 * MIB

    def test_a_store_in_memory_keeps_none(self):
        assert open_memory(shards=1, durability=None, rng=SeededRng(1)).ballast_bytes == 0


class TestName:
    @pytest.mark.parametrize("kind", ["link", "folder", "hard link", "pipe"])
    def test_what_is_no_plain_file_is_refused(self, root, tmp_path, kind):
        path, other = ballast_path(root), tmp_path / "other"
        os.unlink(path)
        other.write_bytes(b"theirs")
        if kind == "folder":
            os.mkdir(path)
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            (os.symlink if kind == "link" else os.link)(other, path)
        with pytest.raises(StorePathError, match="ballast"):
            open_one(root)
        assert other.read_bytes() == b"theirs"
        assert has_it(root)

    def test_it_makes_no_folder_somebody_elses(self, tmp_path):
        make(str(tmp_path), SIZE)
        assert list_layout(str(tmp_path)).shards == ()
