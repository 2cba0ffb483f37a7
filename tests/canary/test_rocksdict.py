"""Facts of rocksdict that the design rests on, one test each.

They test no code of ours. One that fails after an upgrade says: a fact has changed, look at what
``engine/store/rocks.py`` and ``engine/store/rocks_options.py`` make of it. Where each fact is
pinned:

1   a synced write holds the GIL, flush_wal does not    test_rocksdict_disk.py, with a hook
2   iteration ends silently at damage                   here
3   a flipped bit in a log, by recovery mode            here
4   EIO stays until reopened, ENOSPC heals              test_rocksdict_disk.py
5   no property tells of either                         test_rocksdict_disk.py
6   errors are bare exceptions with a status            here
7   a batch whose sync failed is there                  test_rocksdict_disk.py
8   a batch is consumed even when the write fails       here
9   nothing written is lost by a kill                   here; batches stay whole: .._power.py
10  what a power cut leaves is no beginning             test_rocksdict_power.py
11  the default mode unpickles                          here
12  decoders and their limits                           test_decoders.py

Not depended on, so not pinned: column families beside the default one (in 9 and 10), the database
options that are left alone, and msgspec (in 12), which is not used. That SST files and manifests
fail as logs do (in 4) is looked at through the engine, in ``tests/fault``.
"""

import os
import signal
import subprocess
import sys

import pytest
from rocksdict import (
    DbClosedError,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

KEYS = [n.to_bytes(4, "big") for n in range(2000)]
STALL = {"level0_slowdown_writes_trigger": "1", "level0_stop_writes_trigger": "1"}


def raw():
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    return options


def open_raw(path, options=None):
    options = options or raw()
    return Rdict(path, options, {"default": options})


def batch_of(*rows):
    batch = WriteBatch(raw_mode=True)
    for key, value in rows:
        batch.put(key, value)
    return batch


def flip_a_byte(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def only(path, suffix):
    (name,) = (name for name in os.listdir(path) if name.endswith(suffix))
    return os.path.join(path, name)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "db")


@pytest.fixture
def stalled(path):
    """A database that refuses every write made with no_slowdown."""
    db = open_raw(path)
    db.set_options({"level0_file_num_compaction_trigger": "1000"})
    db[b"k"] = b"v"
    db.flush()
    db.set_options(STALL)
    yield db
    db.close()


@pytest.fixture
def damaged(path):
    """A database with one flipped byte in its only table."""
    options = raw()
    options.set_write_buffer_size(64 * 1024 * 1024)
    db = open_raw(path, options)
    db.write(batch_of(*((key, os.urandom(200)) for key in KEYS)))
    db.flush()
    db.close()
    table = only(path, ".sst")
    flip_a_byte(table, os.path.getsize(table) // 2)
    db = open_raw(path)
    yield db
    db.close()


# --- fact 2 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["keys", "values", "items"])
def test_plain_iteration_ends_silently_at_damage(damaged, name):
    assert 0 < len(list(getattr(damaged, name)())) < len(KEYS)


def test_only_the_status_of_an_iterator_tells_of_damage(damaged):
    it = damaged.iter(ReadOptions())
    it.seek(b"")
    while it.valid():
        it.next()
    assert it.key() is None
    with pytest.raises(Exception, match=r"^Corruption"):
        it.status()


def test_gets_of_damaged_blocks_raise(damaged):
    with pytest.raises(Exception, match=r"^Corruption"):
        damaged.get(KEYS)
    with pytest.raises(Exception, match=r"^Corruption"):
        [damaged.get(key) for key in KEYS]


# --- fact 3 -------------------------------------------------------------------------------------


@pytest.fixture
def damaged_wal(path):
    """A database whose WAL, left by a killed process, has one flipped byte in the middle."""
    script = """
import os, signal, sys
from rocksdict import Options, Rdict, WriteBatch
options = Options(raw_mode=True)
db = Rdict(sys.argv[1], options, {"default": options})
for n in range(200):
    batch = WriteBatch(raw_mode=True)
    batch.put(n.to_bytes(4, "big"), b"v" * 500)
    db.write(batch)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script, path], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    return path


@pytest.mark.parametrize(
    ("mode", "opens"),
    [
        (DBRecoveryMode.point_in_time(), True),
        (DBRecoveryMode.skip_any_corrupted_record(), True),
        (DBRecoveryMode.tolerate_corrupted_tail_records(), False),
        (DBRecoveryMode.absolute_consistency(), False),
    ],
    ids=["point_in_time", "skip_any", "tail", "absolute"],
)
def test_which_recovery_modes_refuse_a_damaged_wal(damaged_wal, mode, opens):
    flip_a_byte(only(damaged_wal, ".log"), 50_000)
    options = raw()
    options.set_wal_recovery_mode(mode)
    if not opens:
        with pytest.raises(Exception, match=r"^Corruption"):
            open_raw(damaged_wal, options)
        return
    db = open_raw(damaged_wal, options)
    assert 0 < len(list(db.keys())) < 200
    db.close()


def test_the_default_recovery_mode_drops_rows_silently(damaged_wal):
    flip_a_byte(only(damaged_wal, ".log"), 50_000)
    db = open_raw(damaged_wal)
    assert 0 < len(list(db.keys())) < 200
    db.close()


# --- fact 9 -------------------------------------------------------------------------------------


def test_unsynced_writes_survive_a_kill(damaged_wal):
    db = open_raw(damaged_wal)  # the byte is not flipped yet
    assert len(list(db.keys())) == 200
    db.close()


# --- fact 6 -------------------------------------------------------------------------------------


def test_errors_are_bare_exceptions_with_a_status(path):
    db = open_raw(path)
    with pytest.raises(Exception, match=r"^IO error: lock hold by current process") as caught:
        open_raw(path)
    assert type(caught.value) is Exception
    db.close()


def test_a_closed_database_has_an_error_of_its_own(path):
    db = open_raw(path)
    db.close()
    for call in (lambda: db.get(b"k"), db.iter, db.snapshot, db.flush, db.close):
        with pytest.raises(DbClosedError):
            call()


def test_keys_and_values_other_than_bytes_are_typed_errors(path):
    db = open_raw(path)
    batch = WriteBatch(raw_mode=True)
    for call in (lambda: db.get("k"), lambda: batch.put("k", b"v"), lambda: batch.delete("k")):
        with pytest.raises(KeyError, match="bytes"):
            call()
    with pytest.raises(ValueError, match="bytes"):
        batch.put(b"k", "v")
    db.close()


# --- fact 8, and no_slowdown --------------------------------------------------------------------


def test_a_refused_write_is_incomplete_and_applies_nothing(stalled):
    options = WriteOptions()
    options.no_slowdown = True
    with pytest.raises(Exception, match=r"^Result incomplete"):
        stalled.write(batch_of((b"refused", b"v")), options)
    assert stalled.get(b"refused") is None


def test_a_batch_is_consumed_even_when_the_write_fails(stalled):
    options = WriteOptions()
    options.no_slowdown = True
    batch = batch_of((b"refused", b"v"))
    with pytest.raises(Exception, match=r"^Result incomplete"):
        stalled.write(batch, options)
    with pytest.raises(Exception, match="already consumed"):
        stalled.write(batch, options)


def test_disable_wal_is_a_property():
    assert WriteOptions().disable_wal is False


# --- fact 11 ------------------------------------------------------------------------------------


class Planted:
    """Stored by the default mode as "call this"."""

    def __reduce__(self):
        return (os.getpid, ())


def test_the_default_mode_runs_what_was_stored(path):
    db = Rdict(path)
    db["k"] = Planted()
    assert db["k"] == os.getpid()
    db.close()


@pytest.mark.parametrize("raw_first", [True, False])
def test_the_two_modes_do_not_open_each_other(path, raw_first):
    for raw_mode in (raw_first, not raw_first):
        options = Options(raw_mode=raw_mode)
        if raw_mode is raw_first:
            Rdict(path, options, {"default": options}).close()
        else:
            with pytest.raises(Exception, match="comparator"):
                Rdict(path, options, {"default": options})


# --- what is not in the list of facts but in the code --------------------------------------------


@pytest.mark.parametrize("make", [lambda db: db.iter(), lambda db: db.snapshot()])
def test_what_is_alive_keeps_the_lock_after_close(path, make):
    db = open_raw(path)
    alive = make(db)
    db.close()
    with pytest.raises(Exception, match="lock hold"):
        open_raw(path)
    del alive
    open_raw(path).close()


def test_the_iterators_of_a_snapshot_see_the_present(path):
    db = open_raw(path)
    db[b"k"] = b"1"
    view = db.snapshot()
    db[b"k"] = b"2"
    assert view[b"k"] == b"1"
    assert list(view.items()) == [(b"k", b"2")]
    del view
    db.close()


def test_an_iterator_is_a_moment(path):
    db = open_raw(path)
    db[b"a"] = b"1"
    it = db.iter()
    db[b"a"] = b"2"
    db[b"b"] = b"2"
    db.flush()
    db.compact_range(None, None)
    for _ in range(2):
        it.seek(b"")
        assert it.value() == b"1"
        it.next()
        assert it.key() is None
    del it
    db.close()


def test_an_open_that_fails_has_made_the_folder(path):
    options = raw()
    options.create_if_missing(False)
    with pytest.raises(Exception, match="does not exist"):
        open_raw(path, options)
    assert "rocksdict-config.json" in os.listdir(path)


def test_one_column_family_ignores_the_wal_limit(path):
    options = raw()
    options.set_max_total_wal_size(64 * 1024)
    db = open_raw(path, options)
    for key in KEYS:
        db.write(batch_of((key, b"v" * 200)))
    assert os.path.getsize(only(path, ".log")) > 4 * 64 * 1024
    db.close()


def test_only_the_upper_bound_of_an_iterator_counts(path):
    db = open_raw(path)
    db.write(batch_of(*((key, b"") for key in KEYS)))
    options = ReadOptions()
    options.set_iterate_lower_bound(KEYS[5])
    options.set_iterate_upper_bound(KEYS[9])
    it = db.iter(options)
    del options  # the iterator has a copy
    it.seek(b"")
    seen = []
    while (key := it.key()) is not None:
        seen.append(key)
        it.next()
    assert seen == KEYS[:9]
    it.seek_to_last()
    assert it.key() == KEYS[8]
    del it
    db.close()
