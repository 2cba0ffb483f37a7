"""What only the RocksDB store has: errors to translate, a lock, a thread, forks, damage."""

import gc
import os
import re
import resource
import subprocess
import sys
import threading
from functools import partial

import pytest
from rocksdict import DbClosedError

from lodeq.engine.store import wal_inspection
from lodeq.engine.store.rocks import SKIPS, RocksStore
from lodeq.engine.store.rocks_errors import translate
from lodeq.engine.store.rocks_options import (
    SharedMemory,
    open_files_max,
    rocks_options,
    write_options,
)
from lodeq.errors import (
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    LockedError,
    OpenError,
    StorageError,
    StorageFullError,
    StorePathError,
    StoreStalledError,
    UsageError,
)

MIB = 1024 * 1024
TOP = b"\xff" * 9
ROWS = [(n.to_bytes(4, "big"), bytes([n % 251]) * 200) for n in range(2000)]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "db")


@pytest.fixture
def opened():
    stores = []

    def open_store(path, **kwargs):
        kwargs.setdefault("create", True)
        stores.append(RocksStore.open(path, shared=SharedMemory(8 * MIB), **kwargs))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def python(script, *args):
    """Run a script in a process of its own; its output, once it ended well."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# --- errors -------------------------------------------------------------------------------------


NO_FILES = "IO error: While open a file for random read: /s/CURRENT: Too many open files"


@pytest.mark.parametrize(
    ("error", "doing", "expected"),
    [
        (Exception("Result incomplete: Write stall"), "write", StoreStalledError),
        (
            Exception("IO error: No space left on device: While appending"),
            "write",
            StorageFullError,
        ),
        (
            Exception("IO error: No space left on device: While fdatasync"),
            "sync",
            CommitUnknownError,
        ),
        (Exception("IO error: Input/output error: While appending"), "write", CommitUnknownError),
        (Exception("IO error: Input/output error: While fdatasync"), "sync", CommitUnknownError),
        (Exception("Corruption: block checksum mismatch"), "write", CommitUnknownError),
        (Exception("Corruption: block checksum mismatch"), "read", CorruptionError),
        (Exception("IO error: Input/output error: While pread"), "read", StorageError),
        (Exception("Corruption: checksum mismatch"), "open", CorruptionError),
        (Exception("IO error: lock hold by current process, acquire"), "open", LockedError),
        (Exception("IO error: While lock file: db/LOCK: Resource"), "open", LockedError),
        (Exception("Invalid argument: does not match existing comparator"), "open", StorePathError),
        (Exception("Permission denied (os error 13)"), "open", StorePathError),
        (Exception("IO error: No space left on device: While mkdir"), "open", StorageFullError),
        (Exception("IO error: Input/output error: While open"), "open", StorageError),
        (Exception("IO error: While open: /s/1.sst: Disk quota exceeded"), "open", StorageError),
        (Exception("IO error: No such file or directory: While open"), "open", OpenError),
        (Exception(NO_FILES), "open", StorageError),
        (Exception(f"Invalid argument: Found options: {NO_FILES}"), "open", StorageError),
        (Exception(f"Corruption: Can't access 1.sst: {NO_FILES}"), "open", StorageError),
        (Exception(NO_FILES), "write", CommitUnknownError),
        (DbClosedError("DB instance already closed"), "write", ClosedError),
        (KeyError("raw mode only support bytes"), "read", UsageError),
    ],
)
def test_translate(error, doing, expected):
    assert type(translate(error, doing)) is expected


def test_an_error_without_a_text_is_named():
    assert str(translate(MemoryError(), "write")) == "MemoryError()"


@pytest.mark.parametrize("doing", ["open", "read", "write", "sync"])
def test_without_files_left_the_error_says_what_helps(doing):
    said = str(translate(Exception(NO_FILES), doing))
    assert "ulimit -n" in said
    assert "not a store" not in said


def test_writes_are_refused_rather_than_delayed():
    assert write_options().no_slowdown
    assert not write_options().sync


def test_a_refused_write_applies_nothing_and_can_be_repeated(opened, path):
    store = opened(path)
    db = store._db
    # A compaction that never starts, and a limit that two files reach.
    db.set_options({"level0_file_num_compaction_trigger": "1000"})
    for n in range(2):
        store.write([(b"k%d" % n, b"v")])
        store.flush()
    db.set_options({"level0_slowdown_writes_trigger": "2", "level0_stop_writes_trigger": "2"})
    ops = [(b"stalled", b"v")]
    with pytest.raises(StoreStalledError) as caught:
        store.write(ops)
    assert caught.value.retry_after_ms > 0
    assert store.get(b"stalled") is None
    db.set_options({"level0_slowdown_writes_trigger": "32", "level0_stop_writes_trigger": "40"})
    store.write(ops)
    assert store.get(b"stalled") == b"v"


# --- opening ------------------------------------------------------------------------------------


def test_a_missing_path_is_refused_and_not_made(opened, tmp_path):
    with pytest.raises(StorePathError, match="missing"):
        opened(str(tmp_path / "missing" / "db"), create=False)
    assert os.listdir(tmp_path) == []


def test_a_folder_without_a_store_is_refused_and_left_alone(opened, tmp_path):
    with pytest.raises(StorePathError):
        opened(str(tmp_path), create=False)
    assert os.listdir(tmp_path) == []


def test_a_file_is_no_store(opened, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorePathError):
        opened(str(tmp_path / "file"))


def test_a_new_store_is_for_its_owner_only(opened, path):
    opened(path)
    assert os.stat(path).st_mode & 0o777 == 0o700


def test_what_was_written_is_there_again(opened, path):
    store = opened(path)
    store.write(ROWS)
    store.close()
    assert opened(path, create=False).scan(b"", TOP, 5000) == ROWS


@pytest.mark.parametrize("recovery_mode", ["tail", "point_in_time"])
def test_both_recovery_modes_open_a_sound_store(opened, path, recovery_mode):
    opened(path).close()
    opened(path, create=False, recovery_mode=recovery_mode)


def test_a_second_open_in_the_process_is_refused(opened, path):
    store = opened(path)
    with pytest.raises(LockedError):
        opened(path)
    store.close()
    opened(path)


@pytest.mark.parametrize("name", ["MANIFEST-000000", "000000.log"])
def test_files_that_the_holder_removes_meanwhile_do_not_hide_that_it_is_locked(
    opened, path, monkeypatch, name
):
    opened(path)
    gone = os.path.join(path, name)
    with open(gone, "wb"):
        pass
    find_endless, seen = wal_inspection.find_endless, []

    def after_the_holder(file):
        seen.append(os.path.basename(file))
        if file == gone and os.path.exists(file):
            os.unlink(file)  # listed, and not read yet
        return find_endless(file)

    monkeypatch.setattr(wal_inspection, "find_endless", after_the_holder)
    with pytest.raises(LockedError):
        opened(path)
    assert name in seen


def test_a_folder_that_never_stands_still_is_in_use(opened, path, monkeypatch):
    opened(path)

    def always_gone(file):
        raise FileNotFoundError(2, "No such file or directory", file + ".gone")

    monkeypatch.setattr(wal_inspection, "find_endless", always_gone)
    monkeypatch.setattr(wal_inspection.os.path, "lexists", lambda _: False)
    with pytest.raises(LockedError, match="keep changing"):
        opened(path)


def test_a_link_to_nothing_is_no_change_of_a_holder(path, opened):
    opened(path).close()
    os.symlink("nowhere", os.path.join(path, "MANIFEST-000000"))
    with pytest.raises(StorageError, match="MANIFEST-000000"):
        opened(path)


def test_a_second_open_from_another_process_is_refused(opened, path):
    opened(path)
    script = """
import sys
from lodeq.engine.store.rocks import SKIPS, RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import LockedError
try:
    RocksStore.open(sys.argv[1], shared=SharedMemory(), create=True)
except LockedError:
    print("locked")
"""
    assert python(script, path) == "locked\n"


def test_shards_share_one_cache(tmp_path):
    shared = SharedMemory(64 * MIB)
    stores = [
        RocksStore.open(str(tmp_path / f"shard{n}"), shared=shared, shards=2, create=True)
        for n in range(2)
    ]
    before = shared.used_bytes()
    stores[1].write(ROWS)
    assert shared.write_buffers.get_usage() > 0
    assert shared.used_bytes() >= before
    assert shared.memtable_bytes(1) == 2 * shared.memtable_bytes(2)
    for store in stores:
        store.close()


def test_options_can_be_made_for_many_shards():
    shared = SharedMemory(8 * MIB)
    rocks_options(shared, 4096, recovery_mode="point_in_time", create=True)
    assert shared.memtable_bytes(4096) == 4 * MIB


@pytest.mark.parametrize(
    ("soft", "shards", "most"),
    [
        (resource.RLIM_INFINITY, 1, 1024),
        (8192, 1, 1024),
        (8192, 64, 64),
        (1024, 1, 512),
        (1024, 4, 128),
        (256, 1, 128),
        (256, 64, 20),
    ],
)
def test_tables_leave_the_process_half_of_its_files(monkeypatch, soft, shards, most):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert open_files_max(shards) == most


# --- damage -------------------------------------------------------------------------------------


@pytest.fixture
def damaged(opened, path):
    """A store with one flipped byte in the middle of its only table."""
    store = opened(path)
    store.write(ROWS)
    store.flush()
    store.close()
    (table,) = (name for name in os.listdir(path) if name.endswith(".sst"))
    with open(os.path.join(path, table), "r+b") as file:
        file.seek(os.path.getsize(file.name) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    return opened(path, create=False)


def test_a_scan_over_damage_raises(damaged):
    with pytest.raises(CorruptionError):
        damaged.scan(b"", TOP, 10_000)


def test_pages_are_right_until_the_damage_and_then_raise(damaged):
    seen, lower = [], b""
    try:
        while len(page := damaged.scan(lower, TOP, 10)) == 10:
            seen += page
            lower = page[-1][0] + b"\x00"
        pytest.fail("a short page claims that this is the end")
    except CorruptionError:
        pass
    assert seen == ROWS[: len(seen)]
    assert 0 < len(seen) < len(ROWS)


def test_a_part_ends_before_damage_and_fails_at_it(damaged):
    for view in (damaged, damaged.snapshot()):
        seen, lower = [], b""
        while not raises_corruption(partial(view.scan_part, upper=TOP, limit=10_000), lower):
            part, lower = view.scan_part(lower, TOP, 10_000)
            assert part
            seen += part
        assert seen == ROWS[: len(seen)]
        assert 0 < len(seen) < len(ROWS)


def test_a_snapshot_reads_on_after_it_has_met_damage(damaged):
    """RocksDB's iterator does not, by itself: the block it had before then counts as damaged."""
    view = damaged.snapshot()
    lost = [key for key, _ in ROWS if raises_corruption(damaged.get, key)]
    behind = ROWS[[key for key, _ in ROWS].index(lost[-1]) + 1]
    for read in (view.scan, view.scan_part):
        for _ in range(2):
            assert view.scan(behind[0], TOP, 1) == [behind]
            assert raises_corruption(partial(read, upper=TOP, limit=1), lost[0])
    assert view.scan(behind[0], TOP, 1) == [behind]


@pytest.mark.slow
def test_a_part_passes_over_a_bounded_number_of_deleted_rows(opened, path):
    store = opened(path)
    keys = [b"q/mail\0\0r\4" + n.to_bytes(24, "big") for n in range(0, 1 << 40, 1 << 23)]
    store.write([(key, b"") for key in keys])
    store.write([(key, None) for key in keys[:-1]])
    assert len(keys) > 10 * SKIPS
    tries = []
    scan_piece = store._scan_piece

    class Counting(RocksStore):
        __slots__ = ()

        def _scan_piece(self, *args):
            tries.append(args)
            return scan_piece(*args)

    store.__class__ = Counting
    found, lower, parts = [], b"q/", 0
    while lower is not None:
        part, lower = store.scan_part(lower, b"q0", 100)
        found, parts = found + part, parts + 1
    assert found == [(keys[-1], b"")]
    assert parts > 1
    assert len(tries) < 1000  # most of them find an empty piece where nothing ever was
    view = store.snapshot([keys[len(keys) // 2]])
    assert view.scan_part(b"q/", b"q0", 100) == ([], keys[len(keys) // 2])


def test_a_way_back_ends_among_deleted_rows(opened, path):
    store = opened(path)
    keys = [b"q/" + n.to_bytes(4, "big") for n in range(3 * SKIPS)]
    store.write([(key, b"") for key in keys])
    store.write([(key, None) for key in keys[1:-3]])
    last = [(key, b"") for key in keys[:-4:-1]]
    assert store.scan_back(b"q/", b"q0", 2) == last[:2]
    assert store.scan_back(b"q/", b"q0", 4) == last  # there is one more, far off
    assert store.scan_back(b"q/", keys[-3], 1) == []


def test_what_is_not_there_is_no_seek_in_a_snapshot(opened, path):
    """A seek for a missing key would walk all that was deleted behind it."""
    store = opened(path)
    view = store.snapshot()
    view._its = None
    assert view.get(b"k") is None


def test_every_other_read_of_damage_raises(damaged):
    keys = [key for key, _ in ROWS]
    with pytest.raises(CorruptionError):
        damaged.multi_get(keys)
    lost = [key for key in keys if raises_corruption(damaged.get, key)]
    assert lost
    view = damaged.snapshot()
    assert [key for key in keys if raises_corruption(view.get, key)] == lost
    with pytest.raises(CorruptionError):
        view.scan(b"", TOP, 10_000)
    with pytest.raises(CorruptionError):
        damaged.scan_last(b"", lost[-1] + b"\x00")


def raises_corruption(read, key):
    try:
        read(key)
    except CorruptionError:
        return True
    return False


def test_an_error_that_is_kept_does_not_keep_the_lock(damaged, opened, path):
    kept = []
    view = damaged.snapshot()
    for read in (damaged.scan, damaged.snapshot().scan, view.scan):
        with pytest.raises(CorruptionError) as caught:
            read(b"", TOP, 10_000)
        kept.append(caught)
    damaged.close()
    opened(path, create=False)


# --- checkpoints --------------------------------------------------------------------------------


def test_a_checkpoint_is_a_store_of_that_moment(opened, path, tmp_path):
    store = opened(path)
    store.write([(b"a", b"1")])
    copy = str(tmp_path / "copy")
    store.checkpoint(copy)
    store.write([(b"a", b"2")])
    assert opened(copy, create=False).get(b"a") == b"1"
    store.close()
    assert opened(path, create=False).get(b"a") == b"2"


def test_a_checkpoint_overwrites_nothing(opened, path, tmp_path):
    with pytest.raises(StorePathError):
        opened(path).checkpoint(str(tmp_path))


# --- the thread, and close ----------------------------------------------------------------------


def test_close_waits_for_the_running_work(opened, path):
    store = opened(path)
    order = []

    def work():
        while not store._closing:
            os.sched_yield()
        store.write([(b"late", b"v")])
        order.append("work")

    store.run(work, lambda error: order.append(("done", error)))
    store.start_sync(lambda error: order.append(("sync", error)))
    store.close()
    assert order == ["work", ("done", None), ("sync", None)]
    assert opened(path).get(b"late") == b"v"


def test_callbacks_come_from_the_stores_own_thread(opened, path):
    store = opened(path)
    threads = []
    store.start_sync(lambda error: threads.append(threading.current_thread()))
    store.run(lambda: None, lambda error: threads.append(threading.current_thread()))
    store.close()
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()
    assert not threads[0].is_alive()


@pytest.mark.slow
def test_a_forgotten_store_ends_its_thread(path):
    store = RocksStore.open(path, shared=SharedMemory(8 * MIB), create=True)
    threads = []
    ran = threading.Event()
    store.run(lambda: threads.append(threading.current_thread()), lambda error: ran.set())
    assert ran.wait(10)
    del store
    gc.collect()
    threads[0].join(10)
    assert not threads[0].is_alive()


def test_a_callback_that_raises_does_not_end_the_thread(opened, path, caplog):
    store = opened(path)
    calls = []

    def fail(error):
        raise RuntimeError("the loop is closed")

    store.start_sync(fail)
    store.start_sync(calls.append)
    store.close()
    assert calls == [None]
    assert re.search("callback", caplog.text)


def test_a_failed_sync_is_unknown(opened, path):
    store = opened(path)
    calls = []
    db = store._db

    class Failing:
        def flush_wal(self, sync):
            raise Exception("IO error: No space left on device: While fdatasync")

    store._db = Failing()
    store.start_sync(calls.append)
    store.run(lambda: setattr(store, "_db", db), calls.append)
    store.close()
    assert [type(call) for call in calls] == [CommitUnknownError, type(None)]


def test_snapshots_do_not_keep_a_closed_store_locked(opened, path):
    store = opened(path)
    view = store.snapshot()
    store.close()
    opened(path)
    with pytest.raises(ClosedError):
        view.get(b"k")


# --- fork ---------------------------------------------------------------------------------------

FORK = """
import os, sys
from lodeq.engine.store.rocks import SKIPS, RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import ClosedError, OpenError

store = RocksStore.open(sys.argv[1], shared=SharedMemory(), create=True)
store.write([(b"k", b"v")])
store.start_sync(lambda error: None)  # so that there is a thread to be missed
view = store.snapshot()
child = os.fork()
if child == 0:
    refused = 0
    for call in (
        lambda: store.get(b"k"),
        lambda: store.multi_get([b"k"]),
        lambda: store.scan(b"", b"x", 1),
        lambda: store.scan_last(b"", b"x"),
        lambda: store.write([(b"k", b"child")]),
        lambda: store.start_sync(print),
        lambda: store.run(print, print),
        store.flush,
        store.snapshot,
        lambda: store.checkpoint("never-made"),
        lambda: store.property_int("rocksdb.estimate-num-keys"),
        lambda: view.get(b"k"),
    ):
        try:
            call()
        except ClosedError:
            refused += 1
    view.close()
    store.close()
    try:
        RocksStore.open(sys.argv[1] + "-child", shared=SharedMemory(), create=True)
    except OpenError:
        refused += 1
    sys.exit(refused)  # the ordinary way out: destructors run
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
store.write([(b"after", b"v")])
synced = []
store.start_sync(synced.append)
store.close()
store = RocksStore.open(sys.argv[1], shared=SharedMemory(), create=False)
print(synced, store.get(b"k"), store.get(b"after"))
store.close()
"""


def test_a_forked_child_is_closed_and_the_parent_unharmed(path):
    assert python(FORK, path) == "13\n[None] b'v' b'v'\n"
