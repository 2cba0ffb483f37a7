"""Verification finds every broken rule, and nothing in a store that is as it should be."""

import pytest
from support_rows import HOUR_MS, NOW_MS, Life, busy

from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.records.rows import Counters, Ghost, IndexRow, Moved
from lodeq.engine.recovery import verify as module
from lodeq.engine.recovery.verify import bucket_of, verify, verify_slices
from lodeq.engine.store.memory import MemoryStore
from lodeq.errors import CorruptionError


@pytest.fixture
def store():
    store = MemoryStore()
    yield store
    store.close()


@pytest.fixture
def life(store):
    return Life(store)


def kinds(store, **where):
    found = verify(store, where.get("shard", 0), where.get("shards", 1))
    return sorted({finding.kind for finding in found})


def put(store, key, value):
    store.write([(key, value)])


def counted(life):
    """Make the counter rows right again, so that only the damage under test is found."""
    life.commit([])


def test_an_empty_store_is_fine(store):
    assert verify(store, 0, 1) == []


def test_a_busy_store_is_fine(store, life):
    busy(life)
    assert verify(store, 0, 1) == []


def test_it_yields_between_slices_and_reads_a_snapshot(store, life):
    for _ in range(3):
        busy(life)
    view = store.snapshot()
    slices = verify_slices(view, 0, 1)
    next(slices)
    store.write([(key, None) for key, _ in store.scan(b"", b"\xff", 1 << 20)])
    steps = 1
    while (found := next(slices, "ended")) is None:
        steps += 1
    assert found == "ended"
    assert steps > 5
    assert verify(view, 0, 1) == []


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_parts_and_slices_of_any_size_agree(store, life, monkeypatch, rows):
    tasks = busy(life)
    put(store, ks.TASK + tasks[3].id, None)
    put(store, ks.LEASE + tasks[5].id, None)
    whole = sorted(verify(store, 0, 1), key=repr)
    monkeypatch.setattr("lodeq.engine.store.walk.PAGE_ROWS", rows)
    monkeypatch.setattr(module, "_PART_ROWS", rows)
    assert sorted(verify(store, 0, 1), key=repr) == whole
    assert whole


def test_a_task_of_another_shard(store):
    life = Life(store, shard=2, shards=4)
    life.enqueue()
    assert kinds(store, shard=2, shards=4) == []
    assert kinds(store, shard=1, shards=4) == ["wrong_shard"]


def test_a_damaged_row(store, life):
    task = life.enqueue()
    raw = bytearray(store.get(ks.TASK + task.id))
    raw[20] ^= 1
    put(store, ks.TASK + task.id, bytes(raw))
    assert "damaged" in kinds(store)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"t/short", b""),
        (b"q/what", b""),
        (b"m/c/x", small.encode_counters(1, 0, 0, 0, 0)),
        (b"m/k/\x00\x00", small.encode_ring(5, 1)),
        (b"m/p/q\0", b""),
        (ks.STAMP, b"M\x01rest"),
        (ks.OPEN, b""),
        (b"e/short", small.encode_expiry([])),
        (ks.MOVED + bytes(16), small.encode_moved(Moved(1, b"q/what"))),
    ],
)
def test_rows_that_do_not_decode(store, key, value):
    put(store, key, value)
    assert "damaged" in kinds(store)


def test_a_moved_row_of_another_task(store, life):
    one, other = life.enqueue(), life.enqueue()
    put(store, ks.MOVED + one.id, small.encode_moved(Moved(0, other.key)))
    assert "damaged" in kinds(store)


def test_unknown_families_are_left_alone(store):
    put(store, b"z/" + bytes(8), b"whatever")
    put(store, b"m/later", b"whatever")
    assert kinds(store) == []


def test_a_task_without_a_place(store, life):
    task = life.enqueue()
    put(store, task.key, None)
    life.count(task, ready=-1)
    counted(life)
    (finding,) = verify(store, 0, 1)
    assert (finding.kind, finding.task_id, finding.shard) == ("no_place", task.id, 0)


def test_an_index_row_without_a_task(store, life):
    task = life.enqueue()
    put(store, ks.TASK + task.id, None)
    assert kinds(store) == ["orphan_index"]


def test_a_lease_and_a_moved_row_without_a_task(store, life):
    task = life.enqueue()
    life.claim(task)
    life.nack(task)
    life.claim(task)
    put(store, ks.TASK + task.id, None)
    assert kinds(store) == ["orphan_lease", "orphan_moved"]


def test_leased_and_ready_at_once(store, life):
    task = life.enqueue()
    life.claim(task)
    put(store, task.key, life.row(task))
    life.count(task, ready=1)
    counted(life)
    assert kinds(store) == ["double_place"]


def test_two_index_rows(store, life):
    task = life.enqueue()
    life.claim(task)
    life.nack(task)
    put(store, task.first, life.row(task))
    life.count(task, ready=1)
    counted(life)
    assert kinds(store) == ["double_place"]


def test_an_index_row_in_another_queue(store, life):
    task = life.enqueue()
    other = ks.ready_key(ks.shard_queue_prefix(b"other", b""), 5, life.tick(), task.id)
    store.write([(task.key, None), (other, life.row(task))])
    assert "misplaced" in kinds(store)


def test_a_missing_a_wrong_and_a_needless_moved_row(store, life):
    task, calm = life.enqueue(), life.enqueue()
    life.claim(task)
    life.nack(task)
    moved = ks.MOVED + task.id
    kept = store.get(moved)
    put(store, moved, None)
    assert kinds(store) == ["moved"]
    put(store, moved, small.encode_moved(Moved(1, task.first)))
    assert kinds(store) == ["moved"]
    put(store, moved, kept)
    assert kinds(store) == []
    put(store, ks.MOVED + calm.id, small.encode_moved(Moved(0, calm.key)))
    assert kinds(store) == ["moved"]


def test_a_wrong_moved_flag(store, life):
    task, leased = life.enqueue(), life.enqueue()
    life.claim(leased)
    put(store, task.key, small.encode_index_row(IndexRow(1, 5, 0, task.size, 0, b"")))
    assert [f.task_id for f in verify(store, 0, 1) if f.kind == "moved"] == [task.id]
    put(store, task.key, life.row(task))
    put(store, ks.MOVED + leased.id, small.encode_moved(Moved(0, leased.key)))
    assert [f.task_id for f in verify(store, 0, 1) if f.kind == "moved"] == [leased.id]


def test_a_finished_task_that_is_still_there(store, life):
    task = life.enqueue()
    kept = store.get(ks.TASK + task.id)
    life.claim(task)
    life.complete(task)
    put(store, ks.TASK + task.id, kept)
    assert "finished" in kinds(store)


def test_a_ghost_that_is_missing_and_one_that_should_be(store, life):
    ghost = ks.ghost_hash(bytes(32), b"mail\0\0k")
    task = life.enqueue(ghost=ghost)
    put(store, ks.GHOST + ghost, None)
    assert kinds(store) == ["ghost"]
    put(store, ks.GHOST + ghost, small.encode_ghost(Ghost(task.id, 0)))
    assert kinds(store) == []
    gone = life.ids.new(NOW_MS, 0)
    put(store, ks.GHOST + bytes(15) + b"x", small.encode_ghost(Ghost(gone, 0)))
    assert kinds(store) == ["ghost"]


def test_a_dead_task_need_not_hold_its_ghost(store, life):
    ghost = ks.ghost_hash(bytes(32), b"mail\0\0k")
    task = life.enqueue(ghost=ghost)
    life.claim(task)
    life.bury(task)
    put(store, ks.GHOST + ghost, None)
    assert kinds(store) == []


def test_counters(store, life):
    life.enqueue()
    key = ks.counters_key(b"mail", b"")
    put(store, key, small.encode_counters(2, 0, 0, 0, 0))
    assert kinds(store) == ["counters"]
    put(store, key, None)
    assert kinds(store) == ["counters"]
    put(store, key, small.encode_counters(*Counters(ready=1)))
    put(store, ks.counters_key(b"other", b""), small.encode_counters(0, 0, 0, 0, 0))
    assert kinds(store) == ["counters"]


def test_every_kind_of_expiry_is_filed(store, life):
    ghost = ks.ghost_hash(bytes(32), b"mail\0\0k")
    done = life.enqueue(ghost=ghost, ghost_expires_ms=NOW_MS + HOUR_MS)
    dead = life.enqueue()
    life.enqueue(expires_ms=NOW_MS + HOUR_MS)
    for task in (done, dead):
        life.claim(task)
    life.complete(done)
    life.bury(dead)
    assert kinds(store) == []
    store.write([(key, None) for key, _ in store.scan(ks.EXPIRY, ks.EXPIRY_END, 99)])
    found = [finding for finding in verify(store, 0, 1) if finding.kind == "expiry"]
    assert sorted(finding.detail[3:6] for finding in found) == ["'g'", "'r'", "'t'", "'x'"]


@pytest.mark.parametrize("is_filed", [False, True])
def test_the_ghost_of_a_living_task_needs_no_entry_in_time(store, life, is_filed):
    ghost = ks.ghost_hash(bytes(32), b"mail\0\0k")
    task = life.enqueue(ghost=ghost, ghost_expires_ms=NOW_MS + 1000)
    store.write([(key, None) for key, _ in store.scan(ks.EXPIRY, ks.EXPIRY_END, 99)])
    if is_filed:
        late = ks.expiry_key(bucket_of(NOW_MS + HOUR_MS), 1)
        put(store, late, small.encode_expiry([b"g" + ghost]))
    assert kinds(store) == []
    life.claim(task)
    life.complete(task)
    assert kinds(store) == ["expiry"]


def test_buckets_are_whole_seconds_rounded_up_and_fit_a_key():
    assert [bucket_of(ms) for ms in (1, 1000, 1001)] == [1000, 1000, 2000]
    assert ks.decode_expiry_key(ks.expiry_key(bucket_of(1 << 64), 1))[0] % 1000 == 0


def fail(*_):
    raise CorruptionError("block checksum mismatch")


@pytest.mark.parametrize("record", [b"", b"TK"])
def test_a_record_without_a_head_is_damaged_and_has_no_payload(store, life, record):
    task = life.enqueue()
    row = small.BodyRow(1, 16, 100, bytes(16))
    put(store, ks.BODY + task.id, small.encode_body(row))
    put(store, ks.body_at_key(1, 16, task.id), small.encode_body_at(100))
    put(store, ks.TASK + task.id, record)
    assert {"damaged", "body"} <= set(kinds(store))


def test_single_reads_that_fail_are_told_and_accuse_nobody(store, life, monkeypatch):
    busy(life)
    monkeypatch.setattr(MemoryStore, "get", fail)
    found = verify(store, 0, 1)
    assert {finding.kind for finding in found} == {"unreadable", "unknown"}
    assert "block checksum mismatch" in found[-1].detail


def test_a_store_that_cannot_be_read_at_all(store, life, monkeypatch):
    busy(life)
    monkeypatch.setattr(MemoryStore, "scan_part", fail)
    assert kinds(store) == ["unreadable"]


def test_what_is_unknown_does_not_crowd_out_what_is_wrong(store, life, monkeypatch):
    monkeypatch.setattr(module, "_UNKNOWN_MAX", 3)
    tasks = [life.enqueue() for _ in range(9)]
    for task in tasks:
        put(store, ks.TASK + task.id, None)
    get = MemoryStore.get
    monkeypatch.setattr(
        MemoryStore, "get", lambda self, key: fail() if key[:2] == ks.TASK else get(self, key)
    )
    found = verify(store, 0, 1)
    assert [one.kind for one in found].count("unknown") == 4
    assert "6 more tasks" in found[-1].detail
    assert {one.kind for one in found} == {"unknown", "unreadable"}


def test_findings_are_bounded(store, life, monkeypatch):
    monkeypatch.setattr(module, "_FINDINGS_MAX", 3)
    for _ in range(6):
        put(store, life.enqueue().key, None)
    found = verify(store, 0, 1)
    assert len(found) == 4
    assert found[-1].kind == "truncated"


def test_counters_of_many_tenants_are_compared_between_turns(store, life, monkeypatch):
    for n in range(100):
        life.enqueue(b"mail", b"t%02d" % n)
    life.count(life.enqueue(b"mail", b"t07"), ready=1)
    life.enqueue(b"mail", b"t07")  # its counter row says one more than there are
    monkeypatch.setattr(module, "_COUNTERS", 8)
    taken, longest, counters = 0, 0, module.Census.counters

    def looked(census):
        nonlocal taken
        for one in counters(census):
            taken += 1
            yield one

    monkeypatch.setattr(module.Census, "counters", looked)
    slices, before = verify_slices(store, 0, 1), 0
    try:
        while True:
            next(slices)
            longest, before = max(longest, taken - before), taken
    except StopIteration as end:
        found = end.value
    assert taken == 100
    assert longest <= 8
    assert [(one.kind, "t07" in one.detail) for one in found] == [("counters", True)]
