"""A snapshot is whole or not there; a lease keeps it, and nothing else does."""

import errno
import json
import os
import shutil

import pytest
from support_bulk import STORE_ID, all_rows, write_shard

from lodeq.engine.bulk import snapshot_lease, snapshots
from lodeq.engine.bulk.documents import write_document
from lodeq.engine.bulk.snapshot_lease import (
    abandoned_snapshots,
    pin_snapshot,
    prune_snapshots,
    release_snapshot,
)
from lodeq.engine.bulk.snapshots import (
    abandon_snapshot,
    begin_snapshot,
    find_snapshot,
    finish_snapshot,
    list_snapshots,
    read_snapshot,
)
from lodeq.engine.recovery.checkpoint import checkpoint_shard
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.engine.values import ShardMark
from lodeq.errors import (
    CorruptionError,
    FormatTooNewError,
    SnapshotNotFoundError,
    StorageError,
    StorageFullError,
    StorePathError,
    UsageError,
)

NOW_MS = 1_700_000_000_123
MARKS = (ShardMark(0, 3, 77),)


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    write_shard(root, {b"t/%04d" % n: b"x" for n in range(100)})
    return root / "shard0"


@pytest.fixture
def root(tmp_path, shard):
    shutil.copytree(shard, tmp_path / "s" / "shard0")
    return str(tmp_path / "s")


def put_shard(root, work):
    shutil.copytree(os.path.join(root, "shard0"), os.path.join(work, "shard0"))


def finish(work, keep_ms=1000, now_ms=NOW_MS):
    return finish_snapshot(
        work,
        store_id=STORE_ID,
        store_format=1,
        expires_ms=now_ms + keep_ms,
        shards=MARKS,
        journals={"tasks": 9},
    )


def take(root, now_ms=NOW_MS, keep_ms=1000):
    work = begin_snapshot(root, now_ms)
    put_shard(root, work)
    return finish(work, keep_ms, now_ms)


def test_what_was_taken_is_found_again(root):
    made = take(root)
    assert made.id == "20231114T221320123Z"
    assert (made.created_ms, made.expires_ms) == (NOW_MS, NOW_MS + 1000)
    assert (made.shards, made.journals, made.bodies) == (MARKS, {"tasks": 9}, (0,))
    assert (made.store_id, made.store_format) == (STORE_ID, 1)
    assert read_snapshot(made.path) == made
    assert list_snapshots(root) == [made]
    assert find_snapshot(root, made.id) == find_snapshot(root) == made
    assert len(all_rows(made.path)) == 101


def test_the_latest_is_the_newest_that_is_whole(root):
    first = take(root, NOW_MS)
    second = take(root, NOW_MS + 86_400_000)
    work = begin_snapshot(root, NOW_MS + 2 * 86_400_000)
    assert find_snapshot(root, "latest") == second
    put_shard(root, work)
    third = finish(work)
    assert find_snapshot(root, "latest") == third
    assert list_snapshots(root) == [first, second, third]


def test_two_of_one_moment_have_two_names(root):
    ids = [take(root).id for _ in range(3)]
    assert len(set(ids)) == 3
    assert ids == sorted(ids)
    work = begin_snapshot(root, NOW_MS)
    assert os.path.basename(work).removesuffix(".partial") not in ids


@pytest.mark.parametrize("id", ["", "..", "20231114T221320123Z", "x/y", "latest.partial", None, 5])
def test_an_id_that_is_not_there(root, id):
    with pytest.raises(SnapshotNotFoundError):
        find_snapshot(root, id)
    with pytest.raises(SnapshotNotFoundError):
        release_snapshot(root, id)
    assert not os.path.lexists(os.path.join(root, "snapshots"))


def test_none_at_all(root):
    assert list_snapshots(root) == prune_snapshots(root, NOW_MS) == abandoned_snapshots(root) == []
    with pytest.raises(SnapshotNotFoundError, match=r"engine\.snapshot"):
        find_snapshot(root)


# -- a crash at every step --------------------------------------------------------------------


class CrashError(Exception):
    """The process is gone."""


@pytest.mark.parametrize("step", ["open", "os.replace", "os.rename", "fsync_dir"])
def test_a_crash_while_it_is_finished(root, monkeypatch, step):
    """Whatever was done: a whole one is read, a half one is not, and the next open cleans up."""
    whole = take(root)
    work = begin_snapshot(root, NOW_MS + 1000)
    put_shard(root, work)

    def crash(*args, **kwargs):
        raise CrashError

    with monkeypatch.context() as patch:
        where = {
            "open": "lodeq.engine.files.durable_files.open",
            "fsync_dir": "lodeq.engine.files.durable_files.fsync_dir",
        }.get(step)
        if where is None:
            patch.setattr(step, crash)
        else:
            patch.setattr(where, crash, raising=False)
        with pytest.raises(CrashError):
            finish(work)
    assert list_snapshots(root) == [whole]
    assert abandoned_snapshots(root) == [os.path.basename(work)]
    assert prune_snapshots(root, NOW_MS, abandoned=abandoned_snapshots(root)) == []
    assert os.listdir(os.path.join(root, "snapshots")) == [whole.id]
    assert take(root, NOW_MS + 1000).id == os.path.basename(work).removesuffix(".partial")


def test_what_another_is_taking_is_left_alone(root):
    work = begin_snapshot(root, NOW_MS)
    assert prune_snapshots(root, NOW_MS + 10**9) == []
    put_shard(root, work)
    assert finish(work).path == work.removesuffix(".partial")


def test_a_crash_while_it_is_removed(root, monkeypatch):
    made = take(root)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
        release_snapshot(root, made.id)
    assert list_snapshots(root) == []
    with pytest.raises(SnapshotNotFoundError):
        find_snapshot(root, made.id)
    assert os.listdir(os.path.join(root, "snapshots")) == [f"{made.id}.removing"]
    prune_snapshots(root, 0)
    assert os.listdir(os.path.join(root, "snapshots")) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", ["os.mkdir", "os.rename", "fsync"])
def test_a_disk_that_fails(root, monkeypatch, code, step):
    def fail(*args, **kwargs):
        raise OSError(code, "no")

    expected = StorageFullError if code == errno.ENOSPC else StorageError
    with monkeypatch.context() as patch:
        if step == "os.mkdir":
            patch.setattr(step, fail)
            with pytest.raises(expected):
                begin_snapshot(root, NOW_MS)
        else:
            work = begin_snapshot(root, NOW_MS)
            put_shard(root, work)
            fails_at = {"fsync": "lodeq.engine.bulk.snapshots.fsync_dir"}.get(step, step)
            real = snapshots.fsync_dir

            def last(folder):  # once it has its name
                (real if os.path.exists(work) else fail)(folder)

            patch.setattr(fails_at, last if step == "fsync" else fail)
            with pytest.raises(expected):
                finish(work)
            abandon_snapshot(work)
    assert list_snapshots(root) == abandoned_snapshots(root) == []


def test_something_else_at_its_place(root):
    with open(os.path.join(root, "snapshots"), "w", encoding="ascii"):
        pass
    with pytest.raises(StorePathError):
        begin_snapshot(root, NOW_MS)


# -- manifests that are not to be believed ----------------------------------------------------


def change(made, **fields):
    """The manifest with other fields, sealed again."""
    path = os.path.join(made.path, "snapshot.json")
    with open(path, encoding="ascii") as file:
        body = json.load(file)
    body.pop("xxh3_128")
    write_document(path, {**body, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"shards": []},
        {"shards": [[1, 1, 1]]},
        {"shards": [[0, 1]]},
        {"shards": "0"},
        {"shards": [[0, 1, 1], [1, 1, 1]], "bodies": [0, 0]},
        {"bodies": []},
        {"created_ms": -1},
        {"store_id": "x"},
        {"journals": []},
        {"journals": {"a": "b"}},
        {"format": "other"},
        {"expires_ms": None},
        {"shards": [[0, True, 1]]},
    ],
)
def test_a_manifest_that_makes_no_sense(root, fields):
    made = take(root)
    change(made, **fields)
    with pytest.raises(CorruptionError):
        find_snapshot(root, made.id)
    assert list_snapshots(root) == []
    assert prune_snapshots(root, NOW_MS + 10**9) == []  # an operator looks at it
    release_snapshot(root, made.id)


def test_a_manifest_with_a_flipped_byte_or_cut_short(root):
    made = take(root)
    path = os.path.join(made.path, "snapshot.json")
    with open(path, "rb") as file:
        good = file.read()
    for at in range(0, len(good), 7):
        bad = bytearray(good)
        bad[at] ^= 0x10
        for data in (bytes(bad), good[:at]):
            with open(path, "wb") as file:
                file.write(data)
            with pytest.raises(CorruptionError):
                read_snapshot(made.path)
    with open(path, "wb") as file:
        file.write(good.replace(b'"version": 1', b'"version": 3'))
    with pytest.raises(CorruptionError, match="checksum mismatch"):
        read_snapshot(made.path)


def test_one_of_a_newer_release(root):
    made = take(root)
    change(made, version=2)
    with pytest.raises(FormatTooNewError, match="upgrade"):
        find_snapshot(root, made.id)
    assert prune_snapshots(root, NOW_MS + 10**9) == []


def test_one_of_a_newer_release_hides_no_other(root):
    first = take(root)
    newer = take(root, NOW_MS + 1000)
    change(newer, version=2)
    assert list_snapshots(root) == [first]
    assert find_snapshot(root, "latest") == first


def test_if_a_newer_release_has_taken_all_it_is_said(root):
    change(take(root), version=2)
    assert list_snapshots(root) == []
    with pytest.raises(FormatTooNewError, match="upgrade"):
        find_snapshot(root, "latest")


def test_a_shard_that_is_missing(root):
    made = take(root)
    shutil.rmtree(os.path.join(made.path, "shard0"))
    with pytest.raises(CorruptionError, match="shard 0 is missing"):
        find_snapshot(root, made.id)


# -- leases -----------------------------------------------------------------------------------


def test_a_lapsed_one_goes_and_others_stay(root):
    first, second = take(root, NOW_MS, 1000), take(root, NOW_MS + 1, 5000)
    assert prune_snapshots(root, NOW_MS + 999) == []
    assert prune_snapshots(root, NOW_MS + 1000) == [first.id]
    assert list_snapshots(root) == [second]
    assert os.listdir(os.path.join(root, "snapshots")) == [second.id]


def test_a_pin_lengthens_and_never_shortens(root):
    made = take(root)
    assert pin_snapshot(root, "latest", NOW_MS + 9000).expires_ms == NOW_MS + 9000
    assert pin_snapshot(root, made.id, NOW_MS + 10).expires_ms == NOW_MS + 9000
    assert prune_snapshots(root, NOW_MS + 8999) == []
    assert prune_snapshots(root, NOW_MS + 9000) == [made.id]
    with pytest.raises(SnapshotNotFoundError):
        pin_snapshot(root, made.id, NOW_MS + 99_000)


def test_of_two_who_pin_at_once_none_shortens(root, monkeypatch):
    made = take(root)
    inner = snapshot_lease.find_snapshot

    def find_snapshot(*args):
        found = inner(*args)
        monkeypatch.setattr(snapshot_lease, "find_snapshot", inner)
        pin_snapshot(root, made.id, made.expires_ms + 200)  # another, in between
        return found

    monkeypatch.setattr(snapshot_lease, "find_snapshot", find_snapshot)
    pin_snapshot(root, made.id, made.expires_ms + 100)
    assert read_snapshot(made.path).expires_ms == made.expires_ms + 200


@pytest.mark.parametrize("until", [-1, 1.5, None, True, 1 << 64])
def test_pinned_until_no_time(root, until):
    made = take(root)
    with pytest.raises(UsageError, match="until_ms"):
        pin_snapshot(root, made.id, until)
    assert find_snapshot(root) == made


def test_pinned_in_the_moment_of_its_removal(root, monkeypatch):
    """The reader comes between the look at the lease and the rename: it keeps its snapshot."""
    made = take(root)
    rename = os.rename

    def pin_first(source, target):
        monkeypatch.setattr("os.rename", rename)
        pin_snapshot(root, made.id, NOW_MS + 9000)
        rename(source, target)

    monkeypatch.setattr("os.rename", pin_first)
    assert prune_snapshots(root, NOW_MS + 1000) == []
    assert find_snapshot(root, made.id).expires_ms == NOW_MS + 9000


def test_removed_in_the_moment_of_a_pin(root, monkeypatch):
    made = take(root)

    def remove_first(path, body):
        release_snapshot(root, made.id)
        write_document(path, body)

    monkeypatch.setattr(snapshot_lease, "write_document", remove_first)
    with pytest.raises(SnapshotNotFoundError, match="removed"):
        pin_snapshot(root, made.id, NOW_MS + 9000)
    assert os.listdir(os.path.join(root, "snapshots")) == []


def test_of_two_who_remove_one_the_second_hears_that_it_is_gone(root, monkeypatch):
    made = take(root)
    real = snapshot_lease.place_of

    def place_of(*args):
        path = real(*args)
        shutil.rmtree(path)
        return path

    monkeypatch.setattr(snapshot_lease, "place_of", place_of)
    with pytest.raises(SnapshotNotFoundError, match="just been removed"):
        release_snapshot(root, made.id)


def test_a_damaged_lease_counts_as_none(root):
    made = take(root)
    pin_snapshot(root, made.id, NOW_MS + 9000)
    with open(os.path.join(made.path, "lease.json"), "w", encoding="ascii") as file:
        file.write("{}")
    assert find_snapshot(root, made.id).expires_ms == NOW_MS + 1000


def test_it_links_what_the_store_has(tmp_path, shard):
    shutil.copytree(shard, tmp_path / "shard0")
    store = RocksStore.open(tmp_path / "shard0", shared=SharedMemory(8 << 20), create=False)
    try:
        work = begin_snapshot(str(tmp_path), NOW_MS)
        checkpoint_shard(store, work, 0)
        made = finish(work)
    finally:
        store.close()
    (table,) = [name for name in os.listdir(made.path + "/shard0") if name.endswith(".sst")]
    assert os.path.samefile(f"{made.path}/shard0/{table}", tmp_path / "shard0" / table)
