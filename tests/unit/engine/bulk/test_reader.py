"""Reading a shard writes nothing into it, and never ends before its end without a word."""

import os
import shutil

import pytest
from support_bulk import STORE_ID, all_rows, flip, tree, write_shard
from support_live import copy_live

from lodeq.engine.bulk import reader as module
from lodeq.engine.bulk.reader import open_shard
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records.rows import Stamp, encode_stamp
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import ClosedError, CorruptionError, OpenError, StorePathError

ROWS = {b"t/%016d" % n: bytes([n % 251]) * 300 for n in range(5000)}
STAMP = {ks.STAMP: encode_stamp(Stamp(0, 1, 0, STORE_ID))}


@pytest.fixture
def root(tmp_path):
    write_shard(tmp_path / "s", ROWS)
    return tmp_path / "s"


def only_table(root):
    (found,) = (root / "shard0").glob("*.sst")
    return found


def test_everything_is_read_and_nothing_written(root):
    before = tree(root)
    assert all_rows(root) == ROWS | STAMP
    assert tree(root) == before


def test_what_only_the_log_has_is_read(tmp_path):
    """As a process that died has left it."""
    store = RocksStore.open(tmp_path / "live", shared=SharedMemory(8 << 20), create=True)
    few = dict(sorted(ROWS.items())[:50])
    store.write([*STAMP.items(), *few.items()])
    copy_live(tmp_path / "live", tmp_path / "s" / "shard0")
    store.close()
    assert not list((tmp_path / "s").glob("shard0/*.sst"))
    before = tree(tmp_path / "s")
    assert all_rows(tmp_path / "s") == few | STAMP
    assert tree(tmp_path / "s") == before


def test_a_folder_that_cannot_be_written_is_read(root):
    shutil.move(root / "shard0", root / "real")
    (root / "shard0").symlink_to(root / "real")  # as a cluster's storage may show it
    for path in [*(root / "real").iterdir(), root / "real", root]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert len(all_rows(root)) == len(ROWS) + 1
    finally:
        for path in (root, root / "real"):
            path.chmod(0o755)


def test_files_that_are_links_are_read(root):
    """As a tool shows them that keeps the content of files elsewhere."""
    shutil.move(root / "shard0", root / "real")
    (root / "shard0").mkdir()
    for path in (root / "real").iterdir():
        (root / "shard0" / path.name).symlink_to(path)
    before = tree(root)
    assert len(all_rows(root)) == len(ROWS) + 1
    assert tree(root) == before


def test_a_live_store_is_read_as_of_its_opening(root):
    store = RocksStore.open(root / "shard0", shared=SharedMemory(8 << 20), create=False)
    try:
        store.write([(b"t/new", b"1")])
        with open_shard(str(root), 0) as reader:
            assert reader.get(b"t/new") == b"1"
            store.write([(b"t/newer", b"1"), *((key, None) for key in ROWS)])
            store.flush()
            found = [k for batch in reader.batches(b"t/", b"t0") for k, _ in batch]
        assert found == [*sorted(ROWS), b"t/new"]
    finally:
        store.close()


def test_no_overlay_is_left(root, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with open_shard(str(root), 0):
        assert len(os.listdir(tmp_path / "tmp")) == 1
    assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 1000, 5000, 5001])
def test_batches_are_no_larger_than_asked_and_miss_nothing(root, rows):
    with open_shard(str(root), 0) as reader:
        batches = list(reader.batches(b"t/", b"t0", rows=rows))
    assert {len(batch) for batch in batches[:-1]} <= {rows}
    assert [row for batch in batches for row in batch] == sorted(ROWS.items())


def test_batches_end_where_their_bytes_do(root):
    with open_shard(str(root), 0) as reader:
        batches = list(reader.batches(b"t/", b"t0", bytes_max=300_000))
    assert [row for batch in batches for row in batch] == sorted(ROWS.items())
    assert max(len(batch) for batch in batches) <= 1000


def test_large_values_come_few_at_a_time(tmp_path):
    write_shard(tmp_path / "s", {b"t/%03d" % n: bytes(100_000) for n in range(200)})
    with open_shard(str(tmp_path / "s"), 0) as reader:
        sizes = [len(batch) for batch in reader.batches(b"t/", b"t0", bytes_max=1 << 20)]
    assert sum(sizes) == 200
    assert max(sizes) <= 64


def test_a_range_is_half_open(root):
    keys = sorted(ROWS)
    with open_shard(str(root), 0) as reader:
        assert [k for b in reader.batches(keys[3], keys[7]) for k, _ in b] == keys[3:7]
        assert list(reader.batches(keys[7], keys[7])) == []
        assert list(reader.batches(b"u", b"v")) == []
        assert reader.scan(keys[3], keys[7], 2) == [(k, ROWS[k]) for k in keys[3:5]]
        assert reader.scan_last(keys[3], keys[7]) == (keys[6], ROWS[keys[6]])
        assert reader.scan_last(b"a", b"b") is None
        assert reader.multi_get([keys[1], b"none"]) == [ROWS[keys[1]], None]


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6])
def test_a_damaged_block_is_an_error_and_never_an_end(root, part):
    """Anywhere in the data: what was handed out before is right, and then it says so."""
    table = only_table(root)
    flip(table, int(table.stat().st_size * part) + 100)
    got = {}

    def read():
        with open_shard(str(root), 0) as reader:
            for batch in reader.batches(b"t/", b"t0", rows=50):
                got.update(batch)

    with pytest.raises(CorruptionError, match="shard 0"):
        read()
    assert got.items() <= ROWS.items()
    assert len(got) < len(ROWS)


def test_a_table_that_is_missing_or_cut_short(root):
    table = only_table(root)
    table.write_bytes(table.read_bytes()[:-50])
    with pytest.raises(CorruptionError, match="shard0"):
        all_rows(root)
    table.unlink()
    with pytest.raises((CorruptionError, StorePathError)):
        all_rows(root)


def test_what_is_no_shard(tmp_path, root):
    with pytest.raises(StorePathError, match="no shard"):
        all_rows(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(StorePathError, match="no shard"):
        all_rows(root, 1)
    os.rename(root / "shard0", root / "shard1")
    with pytest.raises(StorePathError, match="is shard 0"):
        all_rows(root, 1)


def test_a_database_of_somebody_else(tmp_path):
    (tmp_path / "s").mkdir()
    store = RocksStore.open(tmp_path / "s" / "shard0", shared=SharedMemory(8 << 20), create=True)
    store.write([(b"a", b"b")])
    store.close()
    with pytest.raises(StorePathError, match="no rows of lodeq"):
        all_rows(tmp_path / "s")


def test_a_closed_reader_says_so(root):
    with open_shard(str(root), 0) as reader:
        assert (reader.shards, reader.store_id) == (1, STORE_ID)
    for call in (reader.files, lambda: reader.get(b"a"), lambda: reader.scan(b"a", b"b", 1)):
        with pytest.raises(ClosedError):
            call()
    reader.close()


def test_files_cover_all_keys(root):
    with open_shard(str(root), 0) as reader:
        (file,) = reader.files()
    assert file.first_key <= min(ROWS)
    assert file.last_key >= max(ROWS)
    assert file.bytes > 10_000


def test_a_live_folder_that_changes_while_it_is_opened(root, monkeypatch):
    """A file that goes between the listing and the open: tried again, and not for ever."""
    real, calls = module._open_over, []

    def vanish(overlay, memory):
        calls.append(overlay)
        if len(calls) < 3:
            raise Exception("IO error: No such file or directory: While open a file: 000009.sst")
        return real(overlay, memory)

    monkeypatch.setattr(module, "_open_over", vanish)
    assert len(all_rows(root)) == len(ROWS) + 1
    assert len(set(calls)) == 3

    def always(overlay, memory):
        raise Exception("IO error: No such file or directory: While open a file: 000009.sst")

    monkeypatch.setattr(module, "_open_over", always)
    with pytest.raises(OpenError, match="shard0"):
        all_rows(root)


def test_a_live_folder_whose_tables_go_before_they_are_opened(tmp_path, monkeypatch):
    """However fast its owner flushes and compacts: what was laid out can be read."""
    write_shard(tmp_path / "s", ROWS)
    real = module._open_over
    held = len(os.listdir("/proc/self/fd"))
    store = RocksStore.open(tmp_path / "s" / "shard0", shared=SharedMemory(8 << 20), create=False)

    def churn(overlay, memory):
        store.write([(b"t/later", b"x")])
        store.flush()
        store.compact()
        return real(overlay, memory)

    monkeypatch.setattr(module, "_open_over", churn)
    try:
        found = all_rows(tmp_path / "s")
    finally:
        store.close()
    found.pop(b"t/later", None)  # its log is followed up to the open
    assert found == ROWS | STAMP
    assert len(os.listdir("/proc/self/fd")) == held


def test_without_links_to_descriptors(root, monkeypatch):
    monkeypatch.setattr(module, "_DESCRIPTORS", str(root / "nothing"))
    assert all_rows(root) == ROWS | STAMP
