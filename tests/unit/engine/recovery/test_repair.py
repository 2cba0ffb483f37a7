"""Whatever a hole leaves, repair settles; a second one in the middle of it changes nothing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_rows import HOUR_MS, NOW_MS, NOW_US, Life, busy, dump

from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.records.attempts import AttemptRecord, Outcome, add_attempt
from lodeq.engine.records.events import encode_start_row
from lodeq.engine.records.lease import decode_lease, encode_lease
from lodeq.engine.records.result import Status
from lodeq.engine.records.rows import Ghost, Moved
from lodeq.engine.records.task import NO_GHOST, decode_task
from lodeq.engine.recovery import verify as rules
from lodeq.engine.recovery.repair import repair
from lodeq.engine.recovery.verify import verify
from lodeq.engine.store.memory import MemoryStore
from lodeq.errors import RecordCorruptError, StoreStalledError

FREE = (1 << 40) + 5000


@pytest.fixture
def store():
    store = MemoryStore()
    yield store
    store.close()


@pytest.fixture
def life(store):
    return Life(store)


def mend(store, **options):
    options.setdefault("now_ms", NOW_MS)
    report = repair(store, next_commit_seq=FREE, **options)
    assert verify(store, 0, 1) == []
    return report


def test_a_store_that_is_as_it_should_be_keeps_every_row(store, life):
    busy(life)
    before = [row for row in dump(store) if not row[0].startswith(b"e/")]
    entries = expiries(store)
    assert mend(store).is_clean
    assert [row for row in dump(store) if not row[0].startswith(b"e/")] == before
    assert expiries(store) == entries


def expiries(store):
    return sorted(
        (key[2:10], entry)
        for key, raw in store.scan(ks.EXPIRY, ks.EXPIRY_END, 999)
        for entry in small.decode_expiry(raw)
    )


def test_a_lost_nack_leaves_the_newer_lease(store, life):
    task = life.enqueue()
    life.claim(task, lost=True)
    life.nack(task, lost=True)
    life.claim(task)  # deletes a key that is not there; the first ready row stays
    report = mend(store)
    assert report.doubles == 1
    assert store.get(task.first) is None
    assert decode_lease(store.get(ks.LEASE + task.id)).attempts == 2


def test_a_newer_ready_row_beats_the_lease(store, life):
    task = life.enqueue()
    life.claim(task)
    lease = store.get(ks.LEASE + task.id)
    life.nack(task)
    store.write([(ks.LEASE + task.id, lease)])
    assert mend(store).doubles == 1
    assert store.get(ks.LEASE + task.id) is None
    assert store.get(task.key) is not None


def test_of_two_index_rows_the_newer_stays(store, life):
    task = life.enqueue()
    life.claim(task, lost=True)
    life.nack(task)
    assert mend(store).doubles == 1
    assert store.get(task.first) is None
    assert small.decode_moved(store.get(ks.MOVED + task.id)).key == task.key


def test_a_dead_row_is_as_old_as_its_death(store, life):
    task = life.enqueue()
    life.claim(task, lost=True)
    life.bury(task)
    assert mend(store).doubles == 1
    assert store.get(task.first) is None
    assert store.get(task.key) is not None


def test_a_lost_enqueue_takes_what_followed_it(store, life):
    claimed, moved = life.enqueue(lost=True), life.enqueue(lost=True)
    life.claim(claimed)
    life.claim(moved)
    life.nack(moved)
    report = mend(store)
    assert report.orphans == 3  # a lease, an index row, a moved row
    assert [key for key, _ in dump(store) if key[:2] in (b"l/", b"q/", b"s/")] == []


def test_a_task_without_a_place_is_ready_under_its_first_key(store, life):
    task = life.enqueue()
    store.write([(task.key, None)])
    assert mend(store).requeued == 1
    row = small.decode_index_row(store.get(task.first))
    assert (row.priority, row.attempts, row.record_bytes) == (5, 0, task.size)


def test_a_moved_task_without_a_place_keeps_its_attempts(store, life):
    task = life.enqueue()
    life.claim(task)
    life.nack(task)
    store.write([(task.key, None)])
    assert mend(store).requeued == 1
    assert small.decode_index_row(store.get(task.first)).attempts == 1
    assert store.get(ks.MOVED + task.id) is None


@pytest.mark.parametrize("hours", [1, -1])
def test_a_delayed_task_without_a_place_waits_or_is_ready(store, life, hours):
    task = life.enqueue(due_ms=NOW_MS + HOUR_MS)
    store.write([(task.key, None)])
    now_ms = NOW_MS + HOUR_MS - hours * HOUR_MS
    assert mend(store, now_ms=now_ms).requeued == 1
    (row,) = store.scan(ks.INDEX, ks.INDEX_END, 9)
    at = ks.decode_index_key(row[0])
    assert at.kind == (ks.DELAYED if hours > 0 else ks.READY)
    assert at.seq == task.record.seq
    assert (store.get(ks.MOVED + task.id) is not None) == (hours < 0)


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.EXPIRED, Status.CANCELLED])
def test_a_final_result_means_the_task_is_over(store, life, status):
    placed, bare, leased = life.enqueue(), life.enqueue(), life.enqueue()
    life.claim(leased)
    store.write([(bare.key, None)])
    for task in (placed, bare, leased):
        store.write([(ks.RESULT + task.id, life.result(task, status, HOUR_MS))])
    assert mend(store).finished == 3
    assert {key[:2] for key, _ in dump(store)} == {b"r/", b"e/", b"m/"}


def test_a_dead_result_does_not_end_a_task(store, life):
    task = life.enqueue()
    store.write([(task.key, None), (ks.RESULT + task.id, life.result(task, Status.DEAD, 0))])
    assert "revived" in [finding.kind for finding in verify(store, 0, 1)]
    report = mend(store)
    assert (report.requeued, report.finished) == (1, 0)
    assert store.get(ks.RESULT + task.id) is None  # or its next death would count a second one


def test_an_index_row_in_another_queue_goes(store, life):
    task = life.enqueue()
    other = ks.ready_key(ks.shard_queue_prefix(b"other", b""), 5, life.tick(), task.id)
    store.write([(task.key, None), (other, life.row(task))])
    report = mend(store)
    assert (report.doubles, report.requeued) == (1, 1)


def test_moved_rows_and_flags_are_made_to_agree(store, life):
    task, leased, calm = life.enqueue(), life.enqueue(), life.enqueue()
    for moved in (task, leased):
        life.claim(moved)
        life.nack(moved)
    life.claim(leased)
    store.write([(ks.MOVED + task.id, None), (ks.MOVED + leased.id, None)])
    store.write([(ks.MOVED + calm.id, small.encode_moved(Moved(0, calm.key)))])
    mend(store)
    assert small.decode_moved(store.get(ks.MOVED + task.id)).key == task.key
    assert small.decode_moved(store.get(ks.MOVED + leased.id)).key == leased.key
    assert store.get(ks.MOVED + calm.id) is None


def test_a_lease_flag_that_lies_is_corrected(store, life):
    task = life.enqueue()
    life.claim(task)
    lease = life.lease(task)
    store.write([(ks.LEASE + task.id, encode_lease(lease._replace(flags=2)))])
    mend(store)
    assert decode_lease(store.get(ks.LEASE + task.id)).flags == 0


class TestGhosts:
    HASH = ks.ghost_hash(bytes(32), b"mail\0\0k")

    def holder(self, store):
        raw = store.get(ks.GHOST + self.HASH)
        return None if raw is None else small.decode_ghost(raw)

    def test_a_missing_one_is_made_again(self, store, life):
        expires_ms = NOW_MS + HOUR_MS
        task = life.enqueue(ghost=self.HASH, ghost_expires_ms=expires_ms)
        store.write([(ks.GHOST + self.HASH, None)])
        assert mend(store).ghosts == 1
        assert self.holder(store) == Ghost(task.id, expires_ms)

    @pytest.mark.parametrize("expires_ms", [0, NOW_MS - 1])
    def test_one_of_a_task_that_is_gone_goes(self, store, life, expires_ms):
        gone = life.ids.new(NOW_MS, 0)
        store.write([(ks.GHOST + self.HASH, small.encode_ghost(Ghost(gone, expires_ms)))])
        assert mend(store).ghosts == 1
        assert self.holder(store) is None

    def test_one_whose_window_is_open_stays(self, store, life):
        ghost = Ghost(life.ids.new(NOW_MS, 0), NOW_MS + 1)
        store.write([(ks.GHOST + self.HASH, small.encode_ghost(ghost))])
        assert mend(store).is_clean
        assert self.holder(store) == ghost

    def test_a_live_task_takes_it_over_from_one_that_is_gone(self, store, life):
        task = life.enqueue(ghost=self.HASH)
        gone = Ghost(life.ids.new(NOW_MS, 0), 0)
        store.write([(ks.GHOST + self.HASH, small.encode_ghost(gone))])
        mend(store)
        assert self.holder(store).task_id == task.id

    def test_of_two_that_may_take_it_over_one_does(self, store, life):
        tasks = [life.enqueue(ghost=self.HASH) for _ in range(2)]
        store.write([(ks.GHOST + self.HASH, None)])
        mend(store)
        (other,) = {task.id for task in tasks} - {self.holder(store).task_id}
        assert decode_task(store.get(ks.TASK + other)).ghost == NO_GHOST

    def test_a_live_task_takes_it_over_from_one_that_is_finished(self, store, life):
        task = life.enqueue(ghost=self.HASH)
        finished = life.enqueue(ghost=self.HASH)
        store.write([(ks.RESULT + finished.id, life.result(finished, Status.COMPLETED, 0))])
        mend(store)
        assert self.holder(store).task_id == task.id

    def test_another_live_holder_keeps_it(self, store, life):
        first = life.enqueue(ghost=self.HASH)
        second = life.enqueue(ghost=self.HASH)
        assert mend(store).ghosts == 1
        assert self.holder(store).task_id == second.id
        # Its end would take the key of the other along.
        assert decode_task(store.get(ks.TASK + first.id)).ghost == NO_GHOST
        assert decode_task(store.get(ks.TASK + second.id)).ghost == self.HASH
        assert mend(store).is_clean

    @pytest.mark.parametrize("is_moved", [False, True])
    def test_a_leased_task_that_is_not_the_holder_forgets_the_key(self, store, life, is_moved):
        task = life.enqueue(ghost=self.HASH)
        life.claim(task)
        lease = decode_lease(store.get(ks.LEASE + task.id))
        if is_moved:  # a flag that the repair corrects in the same batch
            store.write([(ks.LEASE + task.id, encode_lease(lease._replace(flags=lease.flags ^ 2)))])
        gone = Ghost(life.ids.new(NOW_MS, 0), NOW_MS + HOUR_MS)
        store.write([(ks.GHOST + self.HASH, small.encode_ghost(gone))])
        assert mend(store).ghosts == 1
        assert self.holder(store) == gone
        assert decode_lease(store.get(ks.LEASE + task.id)) == lease._replace(
            ghost=NO_GHOST, ghost_expires_ms=0
        )
        assert decode_task(store.get(ks.TASK + task.id)).ghost == NO_GHOST

    def test_a_dead_task_does_not_get_it_back(self, store, life):
        task = life.enqueue(ghost=self.HASH)
        life.claim(task)
        life.bury(task)
        store.write([(ks.GHOST + self.HASH, None)])
        assert mend(store).is_clean
        assert self.holder(store) is None


def test_expiry_rows_are_rebuilt_with_numbers_no_commit_has_had(store, life):
    tasks = busy(life)
    wanted = expiries(store)
    store.write([(key, None) for key, _ in store.scan(ks.EXPIRY, ks.EXPIRY_END, 99)])
    stray = ks.expiry_key(NOW_MS, 1)
    store.write([(stray, small.encode_expiry([b"t" + tasks[0].id]))])
    mend(store)
    assert expiries(store) == wanted
    keys = [ks.decode_expiry_key(key) for key, _ in store.scan(ks.EXPIRY, ks.EXPIRY_END, 99)]
    assert all(FREE <= number < 2 << 40 for _, number in keys)


def test_a_leased_task_keeps_its_ttl_entry(store, life):
    task = life.enqueue(expires_ms=NOW_MS + HOUR_MS)
    life.claim(task)
    mend(store)
    assert [entry for _, entry in expiries(store)] == [(ord("t"), task.id)]


def test_results_of_one_bucket_keep_the_order_of_finishing(store, life):
    tasks = [life.enqueue() for _ in range(5)]
    for task in reversed(tasks):
        life.claim(task)
        life.complete(task)
    mend(store)
    found = [
        entry[1]
        for _, raw in store.scan(ks.EXPIRY, ks.EXPIRY_END, 9)
        for entry in small.decode_expiry(raw)
    ]
    assert found == [task.id for task in reversed(tasks)]


def test_counters_are_recounted(store, life):
    busy(life)
    wanted = store.scan(ks.COUNTERS, ks.COUNTERS_END, 99)
    store.write([(key, small.encode_counters(9, 9, 9, 9, 9)) for key, _ in wanted])
    store.write([(ks.counters_key(b"none", b""), small.encode_counters(1, 0, 0, 0, 0))])
    mend(store)
    assert store.scan(ks.COUNTERS, ks.COUNTERS_END, 99) == wanted


def test_no_batch_is_large_however_many_queues_there_are(store, life, monkeypatch):
    monkeypatch.setattr("lodeq.engine.recovery.repair._OPS_MAX", 8)
    monkeypatch.setattr("lodeq.engine.store.port.SLICE_ROWS", 4)
    for number in range(50):
        life.enqueue(b"queue%d" % number)
    sizes = []
    write = MemoryStore.write

    def measured(self, ops):
        ops = list(ops)
        sizes.append(len(ops))
        write(self, ops)

    monkeypatch.setattr(MemoryStore, "write", measured)
    mend(store)
    assert 8 <= max(sizes) <= 16


def test_a_damaged_row_is_raised_or_dropped(store, life):
    task = life.enqueue()
    store.write([(task.key, b"rubbish")])
    with pytest.raises(RecordCorruptError, match="mail"):
        repair(store, now_ms=NOW_MS, next_commit_seq=FREE)
    report = mend(store, drop_damaged=True)
    assert (report.damaged, report.requeued) == (1, 1)
    assert "1 damaged rows" in report.describe()


def test_a_stalled_store_is_flushed_and_tried_again(store, life):
    task = life.enqueue()
    store.write([(task.key, None)])
    refused, flushed = [], []

    class Stalling:
        def __getattr__(self, name):
            return getattr(store, name)

        def write(self, ops):
            if len(refused) < 3:
                refused.append(1)
                raise StoreStalledError("memtable limit")
            store.write(ops)

        def flush(self, wait=True):
            flushed.append(1)

    assert repair(Stalling(), now_ms=NOW_MS, next_commit_seq=FREE).requeued == 1
    assert len(flushed) == 3
    assert verify(store, 0, 1) == []


def history(store, seed, steps=60):
    """A random history with holes."""
    life, rng, tasks = Life(store), random.Random(seed), []
    for _ in range(steps):
        lost = rng.random() < 0.25
        waiting = [t for t in tasks if not t.is_leased and not t.is_dead]
        leased = [t for t in tasks if t.is_leased]
        choice = rng.random()
        if choice < 0.35 or not tasks:
            keyed = rng.random() < 0.3
            tasks.append(
                life.enqueue(
                    rng.choice([b"mail", b"audit"]),
                    ghost=ks.ghost_hash(bytes(32), rng.randbytes(4)) if keyed else bytes(16),
                    ghost_expires_ms=rng.choice([0, NOW_MS + HOUR_MS]) if keyed else 0,
                    due_ms=rng.choice([0, 0, NOW_MS + rng.choice([-1, 1]) * HOUR_MS]),
                    expires_ms=rng.choice([0, NOW_MS + HOUR_MS]),
                    lost=lost,
                )
            )
        elif choice < 0.65 and waiting:
            life.claim(rng.choice(waiting), lost=lost)
        elif leased:
            task = rng.choice(leased)
            if choice < 0.75:
                life.nack(task, delay_ms=rng.choice([0, 5000]), lost=lost)
            elif choice < 0.85:
                life.bury(task, lost=lost)
            else:
                tasks.remove(task)
                life.complete(task, lost=lost)


@settings(max_examples=50)
@given(seed=st.integers(0, 1 << 32))
def test_any_history_with_holes_is_repaired_and_stays_so(seed):
    store = MemoryStore()
    history(store, seed)
    mend(store)
    after = dump(store)
    assert mend(store).is_clean
    assert dump(store) == after
    store.close()


@settings(max_examples=50)
@given(seed=st.integers(0, 1 << 32))
def test_a_power_cut_in_the_middle_leads_to_the_same_rows(seed):
    """Any subset of the repair's batches may survive; the next repair ends in the same state."""
    rng = random.Random(seed)
    whole, cut = MemoryStore(), MemoryStore()
    history(whole, seed, steps=40)
    cut.write(dump(whole))

    class Cutting:
        """Applies a random subset of the batches; reads go to what the first run would see."""

        def __init__(self):
            self.batches = []

        def __getattr__(self, name):
            return getattr(whole, name)

        def write(self, ops):
            batch = list(ops)
            self.batches.append(batch)
            whole.write(batch)

    cutting = Cutting()
    repair(cutting, now_ms=NOW_MS, next_commit_seq=FREE)
    for batch in cutting.batches:
        if rng.random() < 0.5:
            cut.write(batch)
    mend(cut)
    assert live_rows(cut) == live_rows(whole)
    whole.close()
    cut.close()


def live_rows(store):
    """Everything but expiry rows (compared as entries) and attempts of requeued tasks."""
    rows = [row for row in dump(store) if row[0][:2] != b"e/"]
    return rows, sorted(expiries(store))


@pytest.mark.parametrize("rows", [1, 4])
def test_parts_and_slices_of_any_size_agree(monkeypatch, rows):
    one, other = MemoryStore(), MemoryStore()
    history(one, 5)
    other.write(dump(one))
    mend(one)
    monkeypatch.setattr("lodeq.engine.store.port.SLICE_ROWS", rows)
    monkeypatch.setattr(rules, "_PART_ROWS", rows)
    monkeypatch.setattr("lodeq.engine.recovery.repair._OPS_MAX", rows)
    mend(other)
    assert live_rows(one) == live_rows(other)
    one.close()
    other.close()


def test_events_are_left_alone_and_damaged_ones_dropped(store, life):
    life.enqueue()
    row = encode_start_row(0, 2 << 40, 1 << 40, [])
    store.write([(ks.events_key(2 << 40), row), (ks.events_key(3 << 40), row[:-1])])
    with pytest.raises(RecordCorruptError):
        mend(store)
    assert mend(store, drop_damaged=True).damaged == 1
    assert store.scan(ks.EVENTS, ks.EVENTS_END, 9) == [(ks.events_key(2 << 40), row)]


def test_a_dead_letter_without_a_place_is_dead_again(store, life):
    task = life.enqueue()
    life.claim(task)
    life.bury(task)
    store.write([(task.key, None)])
    assert mend(store).requeued == 1
    row = small.decode_index_row(store.get(task.key))
    forget_ms = ks.decode_index_key(task.key).at + 24 * HOUR_MS
    assert (row.attempts, row.expires_ms) == (1, forget_ms)
    assert verify(store, 0, 1) == []
    assert mend(store).is_clean


def attempts_of(task):
    one = AttemptRecord(1, Outcome.NACKED, NOW_US, NOW_US, b"worker", b"boom")
    return ks.ATTEMPTS + task.id, add_attempt(None, one)


def test_attempts_go_with_the_move_that_led_to_them(store, life):
    """The death was lost but for its attempts; what ends the task now knows of none."""
    task, dead, over = life.enqueue(), life.enqueue(), life.enqueue()
    for one in (dead, over):
        life.claim(one)
    life.bury(dead)
    life.complete(over)
    store.write([attempts_of(task), attempts_of(dead), attempts_of(over)])
    found = [one for one in verify(store, 0, 1) if one.kind == "orphan_attempts"]
    assert {one.task_id for one in found} == {task.id, over.id}
    assert mend(store).orphans == 2
    assert [key[2:] for key, _ in store.scan(ks.ATTEMPTS, ks.ATTEMPTS_END, 9)] == [dead.id]


def test_a_task_that_waits_for_its_next_attempt_waits_on_without_its_row(store, life):
    task = life.enqueue()
    life.claim(task)
    life.nack(task, delay_ms=HOUR_MS)
    store.write([(task.key, None)])
    assert mend(store).requeued == 1
    assert small.decode_index_row(store.get(task.key)).attempts == 1


def test_tasks_whose_record_is_gone_are_named_and_those_that_are_over_are_not(store, life):
    ready, leased, over = life.enqueue(), life.enqueue(), life.enqueue()
    life.claim(leased)
    for task in (ready, leased, over):
        store.write([(ks.TASK + task.id, None)])
    store.write([(ks.RESULT + over.id, life.result(over, Status.COMPLETED, HOUR_MS))])
    report = mend(store)
    assert (report.lost, set(report.lost_ids)) == (2, {ready.id, leased.id})
    assert ready.id.hex() in report.describe()


def test_a_leased_dead_letter_stays_one_whatever_a_hole_took(store, life):
    """The newer of its row and its lease counts; its death, and when it is forgotten, are known."""
    both = [life.enqueue() for _ in range(4)]
    for task in both:
        life.claim(task)
        life.bury(task)
    whole, lost, left, unfiled = both
    row = store.get(left.key)
    life.claim_dead(whole)
    life.claim_dead(lost, lost=True)
    life.claim_dead(left)
    store.write([(left.key, row)])  # the delete of its row was lost, and the lease was not
    life.claim_dead(unfiled)
    entries = list(store.scan(ks.EXPIRY, ks.EXPIRY_END, 999))
    store.write([(key, None) for key, _ in entries])
    mend(store)
    for task in (whole, left, unfiled):
        assert decode_lease(store.get(ks.LEASE + task.id)).dead_row
        assert store.get(task.key) is None
        assert store.get(ks.MOVED + task.id) is not None
        assert store.get(ks.RESULT + task.id) is not None
    assert store.get(lost.key) is not None
    assert sum(entry[0] == ord("x") for _, entry in expiries(store)) == len(both)


def test_a_dead_letter_without_its_lease_is_where_it_died(store, life):
    task = life.enqueue()
    life.claim(task)
    life.bury(task)
    life.claim_dead(task)
    store.write([(ks.LEASE + task.id, None)])
    assert mend(store).requeued == 1
    assert store.get(task.key) is not None
