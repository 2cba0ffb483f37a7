"""SST files: strictly ascending, rolled, and what a store reads of them is what was written."""

import os

import pytest
from support_rows import dump

from lodeq.engine.bulk import sst
from lodeq.engine.bulk.sst import SstWriter, checksum_of
from lodeq.engine.store.port import IngestingStore
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import StorageError, StorageFullError, UsageError


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "db"
    path.mkdir()
    store = RocksStore.open(path, shared=SharedMemory(8 << 20), create=True)
    yield store
    store.close()


def writer(tmp_path, family="t", **how):
    return SstWriter(str(tmp_path), "x", shard=3, family=family, **how)


def test_a_store_takes_what_was_written(tmp_path, store):
    rows = [(b"t/%04d" % n, os.urandom(200)) for n in range(1000)]
    out = writer(tmp_path, roll_bytes=50_000)
    out.put_all(rows)
    marks = out.finish()
    assert len(marks) > 3
    assert [(mark.shard, mark.family) for mark in marks] == [(3, "t")] * len(marks)
    assert sum(mark.rows for mark in marks) == out.rows == 1000
    assert (marks[0].first, marks[-1].last) == (rows[0][0], rows[-1][0])
    for mark in marks:
        assert checksum_of(str(tmp_path / mark.name)) == (mark.size_bytes, mark.xxh3_128)
    assert isinstance(store, IngestingStore)
    assert store.ingest([str(tmp_path / mark.name) for mark in marks])
    assert dump(store) == rows
    assert not list(tmp_path.glob("*.sst"))  # moved


def test_later_files_win_and_tombstones_hide(tmp_path, store):
    store.write([(b"t/a", b"live"), (b"t/b", b"live")])
    first, second = writer(tmp_path), SstWriter(str(tmp_path), "y", shard=3, family="t")
    first.put_all([(b"t/b", b"1"), (b"t/c", b"1"), (b"t/d", b"1")])
    second.delete(b"t/a")
    second.put(b"t/c", b"2")
    second.delete(b"t/d")
    paths = [str(tmp_path / mark.name) for mark in (*first.finish(), *second.finish())]
    assert not store.ingest(paths)  # the memtable has rows in between
    assert dump(store) == [(b"t/a", b"live"), (b"t/b", b"live")]
    store.flush()
    assert store.ingest(paths)
    assert dump(store) == [(b"t/b", b"1"), (b"t/c", b"2")]


def test_the_flush_may_happen_inside(tmp_path, store):
    store.write([(b"t/b", b"live")])
    out = writer(tmp_path)
    out.put_all([(b"t/a", b"1"), (b"t/c", b"1")])
    (mark,) = out.finish()
    assert store.ingest([str(tmp_path / mark.name)], may_flush=True)
    assert len(dump(store)) == 3


def test_nothing_makes_no_file(tmp_path):
    out = writer(tmp_path)
    assert out.finish() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", [b"t/b", b"t/a"])
def test_keys_that_do_not_ascend_are_named(tmp_path, key):
    out = writer(tmp_path)
    out.put(b"t/b", b"")
    with pytest.raises(UsageError, match=r"b't/.' does not come after b't/b'"):
        out.put(key, b"")
    out.abort()
    assert list(tmp_path.iterdir()) == []


def test_keys_of_other_families_are_refused(tmp_path):
    with pytest.raises(UsageError, match="family 't'"):
        writer(tmp_path).put(b"q/a", b"")
    out = writer(tmp_path)
    out.put(b"t/a", b"")
    out.put(b"z/a", b"")
    with pytest.raises(UsageError, match="family 't'"):
        out.finish()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("IO error: No space left on device: While appending to file", StorageFullError),
        ("IO error: Input/output error: While appending to file", StorageError),
    ],
)
def test_a_disk_that_fails_is_told(tmp_path, monkeypatch, text, error):
    class Broken:
        def __init__(self, options):
            pass

        def open(self, path):
            raise Exception(text)

    monkeypatch.setattr(sst, "SstFileWriter", Broken)
    with pytest.raises(error) as caught:
        writer(tmp_path).put(b"t/a", b"")
    assert type(caught.value) is error


def test_a_folder_that_is_missing_is_told(tmp_path):
    with pytest.raises(StorageError, match="could not be written"):
        writer(tmp_path / "no").put(b"t/a", b"")
