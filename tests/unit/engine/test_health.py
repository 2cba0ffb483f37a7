"""Room, reads and rows."""

import pytest
from support_rows import Life, busy, dump

from lodeq.engine.health import Census, Health, disk_free_bytes, read_probe
from lodeq.engine.memory import MemoryStore
from lodeq.errors import RecordCorruptError, StorageError


def test_reasons_add_up():
    assert Health.of() == Health(True)
    both = Health.of("disk full") & Health.of() & Health.of("reads fail")
    assert both == Health(False, ("disk full", "reads fail"))


def test_free_bytes(tmp_path):
    assert disk_free_bytes(str(tmp_path)) > 0
    with pytest.raises(StorageError):
        disk_free_bytes(str(tmp_path / "none"))


def test_a_probe_reads():
    store = MemoryStore()
    assert read_probe(store).ok
    store.close()
    probed = read_probe(store)
    assert not probed.ok
    assert probed.reasons[0].startswith("read failed")


def test_a_census_counts_what_the_counter_rows_say():
    store = MemoryStore()
    life, census = Life(store), Census()
    tasks = busy(life)
    named = [task_id for key, value in dump(store) for task_id in census.add(key, value)]
    assert set(named) == {task.id for task in tasks}
    counted = {(queue, tenant): list(n) for queue, tenant, n in census.counters()}
    assert counted == life.counts
    assert census.index_rows == 5
    with pytest.raises(RecordCorruptError):
        census.add(b"t/" + bytes(16), b"rubbish")
    store.close()
