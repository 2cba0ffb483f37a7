"""Whatever the umask: no other user of the machine reaches a file of a store.

RocksDB creates its files under the umask of the process, 644 as a rule. So what keeps others out is
the folder they lie in; files that lie in the root itself are 0600.
"""

import contextlib
import os
import stat

import pytest

import lodeq
from lodeq.engine.recovery.decide import copy_shard
from lodeq.testing import HistoryFile

pytestmark = pytest.mark.anyio

umasks = pytest.mark.parametrize("umask", [0o022, 0o002, 0o000, 0o077], ids="{:03o}".format)


@pytest.fixture
def under(request):
    """Sets the umask of the process; puts it back."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def within_reach(top, is_entered=True):
    """Files below that somebody else could read or write, seen from outside ``top``.

    RocksDB removes files in the background: one that goes meanwhile is left out.
    """
    mode = mode_of(top)
    if not stat.S_ISDIR(os.lstat(top).st_mode):
        return [str(top)] if mode & 0o066 and is_entered else []
    is_entered = is_entered and bool(mode & 0o011)
    found = []
    for name in sorted(os.listdir(top)):
        with contextlib.suppress(FileNotFoundError):
            found += within_reach(os.path.join(top, name), is_entered)
    return found


async def lived_in(path):
    """A store with something in every kind of file, closed."""
    async with lodeq.open(path, shards=2, durability="fsync") as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([lodeq.NewTask(b"x" * 100) for _ in range(20)])
        await queue.enqueue(b"x", shard_key="a")
        await (await queue.claim(limit=1))[0].complete(b"done")
        for shard in engine._state.shards:
            shard.store.flush()
    async with lodeq.open(path):  # a second open rolls RocksDB's LOG and writes OPTIONS anew
        pass


def names_below(top):
    return {name for _, folders, files in os.walk(top) for name in [*folders, *files]}


def kinds(names):
    return {
        name.partition("-")[0].partition(".")[0] if "." not in name else name.rpartition(".")[2]
        for name in names
    }


@umasks
async def test_a_store(tmp_path, under, umask):
    under(umask)
    root = tmp_path / "store"
    await lived_in(root)
    assert mode_of(root) == 0o700
    assert {
        "LOG",
        "OPTIONS",
        "MANIFEST",
        "CURRENT",
        "LOCK",
        "lock",
        "watermark0",
        "sst",
        "log",
    } <= (kinds(names_below(root)))
    assert {name: mode_of(root / name) for name in os.listdir(root)} == {
        "lock": 0o600,
        "secrets": 0o600,
        "shard0": 0o700,
        "shard1": 0o700,
        "watermark0": 0o600,
        "watermark1": 0o600,
    }
    assert within_reach(root) == []


@umasks
async def test_a_store_in_a_folder_that_others_may_enter(tmp_path, under, umask):
    """A folder of the user's, or a mount point: what we put into it is closed all the same."""
    under(umask)
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o755)
    await lived_in(root)
    assert within_reach(root) == []
    assert not any(mode_of(root / name) & 0o077 for name in os.listdir(root))


def test_the_measure_sees_a_file_that_is_open(tmp_path):
    for name in ("open", "closed"):
        (tmp_path / name).mkdir(mode=0o755 if name == "open" else 0o700)
        (tmp_path / name / "LOG").write_bytes(b"")
        (tmp_path / name / "LOG").chmod(0o644)
    tmp_path.chmod(0o755)
    assert within_reach(tmp_path) == [str(tmp_path / "open" / "LOG")]


@umasks
async def test_checkpoints_and_what_is_restored(tmp_path, under, umask):
    under(umask)
    await lived_in(tmp_path / "store")
    async with lodeq.open(tmp_path / "store") as engine:
        await engine.checkpoint(tmp_path / "copy")
    lodeq.restore(tmp_path / "copy", tmp_path / "again")
    for top in ("copy", "again"):
        assert mode_of(tmp_path / top) == 0o700
        assert within_reach(tmp_path / top) == []
    assert mode_of(tmp_path / "copy" / "checkpoint.json") == 0o600
    assert mode_of(tmp_path / "again" / "watermark0") == 0o600
    async with lodeq.open(tmp_path / "again"):
        assert within_reach(tmp_path / "again") == []


@umasks
async def test_a_copy_made_by_a_recovery(tmp_path, under, umask):
    under(umask)
    root = tmp_path / "store"
    await lived_in(root)
    root.chmod(0o755)
    copy_shard(str(root), 0, links=(".sst", ".log"))
    assert mode_of(root / "shard0.copy") == 0o700
    assert within_reach(root) == []


@umasks
def test_a_recorded_history(tmp_path, under, umask):
    under(umask)
    HistoryFile(tmp_path / "history").close()
    assert mode_of(tmp_path / "history") == 0o600


async def test_what_is_open_is_not_inherited(tmp_path):
    """Programs that a worker starts must not hold files of the store, its lock least of all."""
    async with lodeq.open(tmp_path / "store", shards=2) as engine:
        await engine.queue("mail").enqueue(b"x", durable=True)
        ours = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except FileNotFoundError:
                continue
            if target.startswith(str(tmp_path)):
                ours[int(name)] = target
        assert any(target.endswith("/lock") for target in ours.values())
        assert any(target.endswith(".log") for target in ours.values())
        assert [target for fd, target in ours.items() if os.get_inheritable(fd)] == []
