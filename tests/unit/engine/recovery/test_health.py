"""Room, reads and rows."""

import pytest
from support_rows import Life, busy, dump

from lodeq.engine.records import events
from lodeq.engine.records import keyspace as ks
from lodeq.engine.recovery.health import Census, disk_free_bytes, read_probe
from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.values import Health
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


def test_a_census_looks_into_events():
    census, ids = Census(), [bytes(16), bytes(15) + b"1"]
    run = events.pack_run(events.CLAIMED, 5, 1, 99, events.tenant_queue_tag(b"q", b""), b"", ids)
    row, start = events.encode_event_row(0, 7, [run]), events.encode_start_row(0, 1 << 40, 3, [])
    assert census.add(ks.events_key(7), row) == ids
    assert census.add(ks.events_key(1 << 40), start) == []
    wrong = [(8, row), (2 << 40, start), (7, b"J"), (7, b"rubbish"), (7, row[:-1])]
    for number, value in wrong:
        with pytest.raises(RecordCorruptError):
            census.add(ks.events_key(number), value)
    assert list(census.counters()) == []
