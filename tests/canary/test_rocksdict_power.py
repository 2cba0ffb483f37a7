"""Facts 3 and 10, and what is bundled: what RocksDB makes of logs that a power cut has left.

Each log file keeps what of it had reached the disk, whatever the others kept: so what survives is
no beginning of what was written, and RocksDB, which does not know how far a log was synced, opens
it without a word. The ring of commit numbers exists for this (``engine/recovery/decide.py``).
"""

import os
import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from rocksdict import DBRecoveryMode, Options, Rdict, WriteBatch
from support_live import copy_live

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = 400


def open_raw(path, mode=None):
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # Logs change with memtables, and stay as long as nothing is flushed.
    options.set_write_buffer_size(64 * 1024)
    options.set_max_write_buffer_number(20)
    options.set_min_write_buffer_number_to_merge(15)
    options.set_wal_recovery_mode(mode or DBRecoveryMode.tolerate_corrupted_tail_records())
    return Rdict(str(path), options, {"default": options})


def key(n):
    return n.to_bytes(4, "big")


def logs(path):
    return sorted(
        entry for entry in path.iterdir() if entry.suffix == ".log" and entry.stat().st_size
    )


@pytest.fixture
def image(tmp_path):
    """What a process that was killed leaves: several logs, nothing flushed."""
    db = open_raw(tmp_path / "db")
    for n in range(ROWS):
        batch = WriteBatch(raw_mode=True)
        batch.put(key(n), b"v" * 1000)
        batch.put(b"twin" + key(n), b"v")
        db.write(batch)
    copy_live(tmp_path / "db", tmp_path / "image")
    db.close()
    assert len(logs(tmp_path / "image")) >= 3
    return tmp_path / "image"


def survivors(path, mode=None):
    """The rows that are there; twins must be, or the batch was torn."""
    db = open_raw(path, mode)
    there = [n for n in range(ROWS) if db.get(key(n)) is not None]
    assert [n for n in range(ROWS) if db.get(b"twin" + key(n)) is not None] == there
    db.close()
    return there


def has_a_hole(there):
    return there != list(range(len(there)))


def test_all_of_them_survive_a_kill(image):
    assert survivors(image) == list(range(ROWS))


def test_a_log_that_lost_its_end_leaves_a_hole(image):
    """An older log was not synced, a newer one was."""
    older = logs(image)[1]
    os.truncate(older, older.stat().st_size // 2)
    there = survivors(image)
    assert has_a_hole(there)
    assert there[-1] == ROWS - 1


def test_a_log_that_is_missing_leaves_a_hole(image):
    logs(image)[1].unlink()
    there = survivors(image)
    assert has_a_hole(there)
    assert there[-1] == ROWS - 1


def test_the_last_log_may_end_anywhere(image):
    """Batches are whole or gone: what is left is a beginning."""
    last = logs(image)[-1]
    size = last.stat().st_size
    for cut in range(7):
        twin = image.parent / f"cut{cut}"
        shutil.copytree(image, twin)
        os.truncate(logs(twin)[-1], size * cut // 7 + cut)
        there = survivors(twin)
        assert not has_a_hole(there)
        assert len(there) < ROWS


def test_zeros_behind_a_log_are_its_end(image):
    """Blocks that were allocated and never written: the ordinary picture of a power cut."""
    last = logs(image)[-1]
    size = last.stat().st_size
    os.truncate(last, size // 2)
    os.truncate(last, size)
    there = survivors(image, DBRecoveryMode.point_in_time())
    assert not has_a_hole(there)
    assert len(there) < ROWS


def test_the_bundled_rocksdb_is_the_one_that_was_measured(tmp_path):
    """``SECURITY.md`` names both versions; the lock pins the file they came in."""
    open_raw(tmp_path / "db").close()
    said = re.search(r"RocksDB version: (\S+)", (tmp_path / "db" / "LOG").read_text("utf-8"))
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    assert f"RocksDB {said[1]}, inside rocksdict {version('rocksdict')}" in page
    lock = (ROOT / "requirements" / "runtime.txt").read_text("utf-8")
    assert f"\nrocksdict=={version('rocksdict')} " in lock
