"""RocksDB's own figures, and a compaction on demand."""

import os

import pytest

from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.engine.store.upkeep import compact, figures_of
from lodeq.errors import ClosedError, StoreStalledError

ROWS = 200


@pytest.fixture
def store(tmp_path):
    store = RocksStore.open(tmp_path / "db", shared=SharedMemory(8 << 20), create=True)
    yield store
    store.close()


def rows():
    return [(b"t/%016d" % n, os.urandom(1000)) for n in range(ROWS)]


def test_the_log_grows_and_becomes_a_table(store):
    store.write(rows())
    found = figures_of(store)
    assert found.wal_bytes > ROWS * 1000
    assert (found.table_bytes, found.tables_level0) == (0, 0)
    assert found.memtable_bytes > ROWS * 1000
    store.flush()
    found = figures_of(store)
    assert found.wal_bytes < ROWS * 1000
    assert found.table_bytes > ROWS * 1000
    assert found.tables_level0 == 1


def test_totals_come_in_steps(store):
    """20 MB written: RocksDB tells them in units of 10 MB."""
    for _ in range(20):
        ops = [(key, os.urandom(5000)) for key, _ in rows()]
        try:
            store.write(ops)
        except StoreStalledError:  # the disk is slow: RocksDB takes more once it has flushed
            store.flush()
            store.write(ops)
    store.flush()
    compact(store)
    found = figures_of(store)
    assert found.wal_bytes_total >= 10_000_000
    assert found.flush_bytes_total >= 500_000
    assert found.compaction_pending_bytes == 0


def test_compaction_drops_what_is_deleted(store):
    store.write(rows())
    compact(store)
    before = figures_of(store).table_bytes
    store.write([(key, None) for key, _ in rows()])
    compact(store)
    assert figures_of(store).table_bytes < before / 10


def test_in_memory_there_is_nothing_to_tell():
    store = MemoryStore()
    assert figures_of(store) is None
    compact(store)


def test_closed(store):
    store.close()
    for call in (figures_of, compact):
        with pytest.raises(ClosedError):
            call(store)
