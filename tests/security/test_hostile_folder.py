"""A store's folder that somebody has prepared: refused, and not a byte of anything has changed."""

import errno
import os
import stat

import pytest

import lodeq
from lodeq import StorePathError
from lodeq.engine.files import paths
from lodeq.engine.recovery.checkpoint import restore
from lodeq.engine.recovery.open_shard import open_store
from lodeq.engine.runtime.ids import SeededRng

MIB = 1 << 20
NOBODY = 65_534


def opened(root, **options):
    options = {"shards": None, "durability": None, "recovery": "strict"} | options
    return open_store(root, block_cache_bytes=8 * MIB, rng=SeededRng(1), **options)


def looked_at(top):
    """Every name below, with all that a write, a link or a chmod would change."""
    found = {}
    for folder, folders, files in os.walk(top):
        for name in [".", *folders, *files]:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            data = b""
            if stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    data = file.read()
            found[path] = (info.st_mode, info.st_uid, info.st_nlink, info.st_mtime_ns, data)
    return found


@pytest.fixture
def root(tmp_path):
    """A store that was used and closed, and beside it a file and a folder of somebody's."""
    path = tmp_path / "store"
    opened(str(path), shards=2).close()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_bytes(b"precious")
    return str(path)


@pytest.fixture
def refused(root, tmp_path):
    """Asserts that the store is refused, in every way of opening it, and nothing changes."""

    def check(why, path=root):
        before = looked_at(tmp_path)
        for recovery in ("strict", "salvage"):
            with pytest.raises(StorePathError, match=why) as caught:
                opened(path, recovery=recovery)
            assert len(str(caught.value)) < 500
        assert looked_at(tmp_path) == before

    return check


def replace(path, make):
    """What was there is put aside, so that only its place has changed."""
    if os.path.lexists(path):
        os.rename(path, f"{os.path.dirname(os.path.dirname(path))}/aside")
    make(path)


def link_to(target):
    return lambda path: os.symlink(target, path)


# -- the folder itself ---------------------------------------------------------------------------


def test_a_link_to_a_store(root, refused, tmp_path):
    os.symlink(root, tmp_path / "link")
    refused("symbolic link", tmp_path / "link")
    refused("symbolic link", f"{tmp_path / 'link'}/")


def test_a_link_to_nowhere(refused, tmp_path):
    os.symlink(tmp_path / "none", tmp_path / "link")
    refused("symbolic link", tmp_path / "link")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: open(path, "wb").close()])
def test_no_folder(refused, tmp_path, make):
    make(tmp_path / "thing")
    refused("not a folder", tmp_path / "thing")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777, 0o720])
def test_a_folder_that_others_can_write(root, refused, mode):
    os.chmod(root, mode)
    refused("can be written by others")


def test_a_folder_of_another_user(root, refused, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(root).st_uid + 1)
    refused("belongs to user")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_was_given_away(root, refused):
    os.chown(root, NOBODY, NOBODY)
    refused(f"belongs to user {NOBODY}")


# -- what is in it -------------------------------------------------------------------------------

OURS = ["lock", "shard0", "shard1", "watermark0", "watermark0.tmp", "shard0.copy"]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("target", ["victim", "victim/file", "none"])
def test_a_link_under_a_name_of_ours(root, refused, tmp_path, name, target):
    replace(os.path.join(root, name), link_to(tmp_path / target))
    refused("not a (folder|plain file)")


@pytest.mark.parametrize("name", OURS)
def test_a_pipe_under_a_name_of_ours(root, refused, name):
    """To open one for reading would wait for ever."""
    replace(os.path.join(root, name), os.mkfifo)
    refused("not a (folder|plain file)")


@pytest.mark.parametrize("name", ["lock", "watermark0", "watermark1.tmp"])
def test_a_file_with_another_name_elsewhere(root, refused, tmp_path, name):
    """Both are written in place: a hard link would be written through."""
    replace(os.path.join(root, name), lambda path: os.link(tmp_path / "victim" / "file", path))
    refused("hard link")


@pytest.mark.parametrize("name", ["CURRENT", "LOCK", "LOG", "rocksdict-config.json", "000099.log"])
@pytest.mark.parametrize("target", ["victim/file", "none"])
def test_a_link_inside_a_shard(root, refused, tmp_path, name, target):
    """RocksDB and rocksdict follow links, and write to some of these names."""
    replace(os.path.join(root, "shard0", name), link_to(tmp_path / target))
    refused("neither a plain file nor a folder")


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-000099", "000099.log"])
def test_a_pipe_inside_a_shard(root, refused, name):
    replace(os.path.join(root, "shard1", name), os.mkfifo)
    refused("neither a plain file nor a folder")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["lock", "shard1", "watermark0"])
def test_a_part_of_another_user(root, refused, name):
    os.chown(os.path.join(root, name), NOBODY, NOBODY)
    refused(f"belongs to user {NOBODY}")


@pytest.mark.parametrize("name", ["lock", "shard1", "watermark0"])
def test_a_part_that_others_can_write(root, refused, name):
    os.chmod(root, 0o711)
    os.chmod(os.path.join(root, name), 0o777)
    refused("can be written by others")


def test_modes_behind_a_closed_door_do_not_matter(root):
    """So ``chmod 700`` of the folder is all that a copy made under another umask needs."""
    for name in ("lock", "shard1", "watermark0"):
        os.chmod(os.path.join(root, name), 0o777)
    opened(root).close()


def test_a_closed_store_and_its_hard_linked_tables_open(root, tmp_path):
    """A checkpoint shares tables with its store; they are never written again."""
    store = opened(root)
    store.shards[0].store.write([(b"x", b"1")])
    store.shards[0].store.flush()
    store.shards[0].store.checkpoint(str(tmp_path / "copy"))
    store.close()
    shard = os.path.join(root, "shard0")
    assert any(os.stat(os.path.join(shard, name)).st_nlink > 1 for name in os.listdir(shard))
    opened(root).close()


def test_what_an_open_engine_moves_meanwhile_is_no_reason_to_refuse(root, monkeypatch):
    """The look comes before the lock, and whoever holds that goes on working."""
    gone = [os.path.join(root, "shard0.copy"), os.path.join(root, "watermark0.tmp")]
    os.mkdir(gone[0])
    with open(gone[1], "wb"):
        pass
    listed = paths._entries

    def racing(path):
        found = listed(path)
        os.rmdir(gone[0])
        os.unlink(gone[1])
        return found

    monkeypatch.setattr(paths, "_entries", racing)
    assert paths.list_layout(root).shards == (0, 1)


def test_a_shard_that_cannot_be_listed(root, refused, monkeypatch):
    def fail(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(paths, "_strange_in", fail)
    refused("cannot be looked at: Permission denied")


# -- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture
async def checkpoint(tmp_path):
    async with lodeq.open(tmp_path / "origin") as engine:
        await engine.queue("mail").enqueue(b"x")
        await engine.checkpoint(tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.anyio
async def test_a_file_that_has_grown_is_not_copied_to_its_end(checkpoint, tmp_path):
    """A sparse file of a terabyte costs its maker nothing, and whoever copies it his disk."""
    table = next((checkpoint / "shard0").glob("MANIFEST-*"))
    os.truncate(table, 1 << 40)
    with pytest.raises(lodeq.CorruptionError, match="not what the manifest says"):
        restore(checkpoint, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.anyio
@pytest.mark.parametrize("make", [os.mkfifo, link_to("/dev/zero"), link_to("file")])
async def test_what_is_no_file_is_not_copied(checkpoint, tmp_path, make):
    replace(str(checkpoint / "shard0" / "CURRENT"), make)
    with pytest.raises(lodeq.CorruptionError, match="use another checkpoint"):
        restore(checkpoint, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.anyio
async def test_nothing_is_restored_through_a_link(checkpoint, tmp_path):
    (tmp_path / "victim").mkdir()
    os.symlink(tmp_path / "victim", tmp_path / "again")
    with pytest.raises(StorePathError, match="not an empty folder"):
        restore(checkpoint, tmp_path / "again")
    assert os.listdir(tmp_path / "victim") == []
