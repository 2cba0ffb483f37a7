"""What is due, and when: every lease is found once, and nothing that has ended."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.engine.runtime.task_id import TaskId
from lodeq.repository.state import deadlines as module
from lodeq.repository.state.deadlines import Deadlines
from lodeq.repository.state.lease_state import LeaseState
from lodeq.repository.state.queue_state import NEVER_MS
from lodeq.repository.tasks.lease import Lease

pytestmark = pytest.mark.interpreted  # no engine around it


class Rig:
    """A ``Deadlines`` without an engine around it."""

    def __init__(self) -> None:
        self.wakes = self.epoch = 0
        self.shards = [SimpleNamespace(next_expiry_ms=NEVER_MS) for _ in range(2)]
        shards: Any = self.shards
        self.leases: dict[bytes, LeaseState] = {}
        self.deadlines = Deadlines(self.leases, shards)
        self.deadlines.wake_reaper = self.wake

    def wake(self) -> None:
        self.wakes += 1

    def grant(self, now: float, length: float) -> Lease:
        lease = Lease()
        lease.is_live, lease.lease_s = True, length
        lease.granted_mono, lease.deadline_mono = now, now + length
        # The same few tasks again and again, as far as they are free.
        ids = (TaskId(n.to_bytes(16, "big")) for n in range(len(self.leases) + 1))
        lease.task_id = next(task_id for task_id in ids if task_id not in self.leases)
        self.epoch += 1
        lease.epoch = self.epoch
        self.leases[lease.task_id] = lease
        self.deadlines.watch([lease])
        return lease

    def move(self, lease: Lease, deadline: float) -> None:
        """As a heartbeat does."""
        sooner = deadline < lease.deadline_mono
        lease.deadline_mono = deadline
        if sooner:
            self.deadlines.rewatch(lease)

    def end(self, lease: Lease) -> None:
        lease.is_live = False
        del self.leases[lease.task_id]
        self.deadlines.forget(lease)

    def reap(self, now: float, limit: int = 1000) -> list[Lease]:
        found = self.deadlines.expired(now, limit)
        for lease in found:
            self.end(lease)
        return found


@pytest.fixture
def rig() -> Rig:
    return Rig()


times = st.integers(0, 50)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), st.sampled_from([5, 10, 30])),
        st.tuples(st.just("move"), times),
        st.tuples(st.just("end"), times),
        st.tuples(st.just("reap"), st.integers(1, 3)),
        st.tuples(st.just("pass"), st.integers(1, 10)),
    ),
    max_size=60,
)


@given(moves)
def test_exactly_what_is_overdue_is_found_once(todo: list[tuple[str, int]]) -> None:
    rig, now, live = Rig(), 0.0, list[Lease]()
    for what, number in todo:
        if what == "pass":
            now += number
        elif what == "grant":
            live.append(rig.grant(now, float(number)))
        elif what == "reap":
            found = rig.reap(now, number)
            assert len(found) == len(set(found)) <= number
            assert all(lease in live and lease.deadline_mono <= now for lease in found)
            overdue = [lease for lease in live if lease.deadline_mono <= now]
            assert len(found) == min(number, len(overdue))
            live = [lease for lease in live if lease not in found]
        elif live:
            lease = live[number % len(live)]
            if what == "end":
                rig.end(lease)
                live.remove(lease)
            else:
                rig.move(lease, now + number)
        first = min((lease.deadline_mono for lease in live), default=float("inf"))
        assert rig.deadlines.first_lease() <= first
    now += 1000
    assert set(rig.reap(now)) == set(live)


def test_a_lease_whose_deadline_was_moved_about_is_found_once(rig: Rig) -> None:
    lease = rig.grant(0, 30)
    for deadline in (20, 10, 40, 5):
        rig.move(lease, deadline)
    assert rig.reap(100) == [lease]
    assert rig.reap(200) == []


def test_an_extended_lease_is_found_at_its_new_deadline(rig: Rig) -> None:
    lease = rig.grant(0, 10)
    rig.move(lease, 25)
    assert rig.reap(15) == []
    assert rig.reap(25) == [lease]


def test_leases_come_in_slices(rig: Rig) -> None:
    leases = [rig.grant(0, 10) for _ in range(10)]
    assert [len(rig.reap(10, 4)) for _ in range(4)] == [4, 4, 2, 0]
    assert all(not lease.is_live for lease in leases)


def test_the_reaper_is_woken_only_by_something_sooner(rig: Rig) -> None:
    rig.grant(0, 30)
    assert rig.wakes == 1
    rig.grant(1, 30)
    assert rig.wakes == 1
    rig.grant(2, 5)
    assert rig.wakes == 2


@pytest.mark.parametrize("length", [10.0, None], ids=["one length", "many lengths"])
def test_ended_leases_do_not_pile_up(
    rig: Rig, length: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALE_MAX", 64)
    rig.deadlines._heap_max = 64
    for n in range(1000):
        rig.end(rig.grant(n, length if length is not None else 10.0 + n))
    assert sum(map(len, rig.deadlines._lines.values())) == 0
    assert len(rig.deadlines._lines) <= module.LINES_MAX
    assert len(rig.deadlines._heap) <= 64


def test_extended_leases_that_have_ended_do_not_pile_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALE_MAX", 64)
    rig.deadlines._heap_max = 64
    kept = [rig.grant(0, 10.0) for _ in range(5)]
    for lease in kept:
        rig.move(lease, 4000.0)
    for n in range(1000):
        lease = rig.grant(n, 10.0)
        rig.move(lease, n + 5000.0)
        rig.deadlines.plan()  # it is at the front, and no longer falls due in its turn
        rig.end(lease)
    assert len(rig.deadlines._heap) <= 64
    assert set(rig.reap(10_000)) == set(kept)


def test_the_heap_is_compacted_and_loses_no_lease_that_lives(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALE_MAX", 8)
    rig.deadlines._heap_max = 8
    kept = [rig.grant(0, 1000.0 + n) for n in range(100)]
    for n in range(200):
        lease = kept[n % 100]
        rig.move(lease, 900.0 - n)
        if n % 3 == 0:  # the task comes again, and so do the entries of its last lease
            rig.end(lease)
            kept[n % 100] = rig.grant(n, 1000.0 + n)
    assert len(rig.deadlines._heap) <= 210
    assert set(rig.reap(5000)) == set(kept)


# -- stored times ----------------------------------------------------------------------


def shard_queue() -> Any:
    return SimpleNamespace(delayed=1, next_due_ms=NEVER_MS)


def test_due_buckets_come_in_order_and_only_for_their_latest_note(rig: Rig) -> None:
    one, other = shard_queue(), shard_queue()
    rig.deadlines.note_due(one, 300)
    rig.deadlines.note_due(other, 200)
    rig.deadlines.note_due(one, 100)
    assert rig.deadlines.plan()[1] == 100
    assert rig.deadlines.due_shard_queue(50) is None
    assert rig.deadlines.due_shard_queue(1000) is one
    one.next_due_ms = NEVER_MS
    assert rig.deadlines.due_shard_queue(1000) is other
    assert rig.deadlines.due_shard_queue(1000) is None


def test_a_shard_queue_that_lost_its_delayed_tasks_is_not_due(rig: Rig) -> None:
    one = shard_queue()
    rig.deadlines.note_due(one, 100)
    one.delayed = 0
    assert rig.deadlines.due_shard_queue(1000) is None
    assert rig.deadlines.plan() == (float("inf"), NEVER_MS)


def test_the_plan_is_the_earliest_of_all(rig: Rig) -> None:
    rig.grant(0, 30)
    rig.shards[1].next_expiry_ms = 50
    rig.deadlines.note_expiry()
    rig.deadlines.note_due(shard_queue(), 70)
    assert rig.deadlines.plan() == (30, 50)


def test_lag_is_that_of_the_latest(rig: Rig) -> None:
    assert rig.deadlines.lag_s(0, 0) == 0
    rig.grant(0, 10)
    rig.deadlines.note_due(shard_queue(), 5000)
    rig.deadlines.plan()
    assert rig.deadlines.lag_s(9, 4000) == 0
    assert rig.deadlines.lag_s(12, 4000) == 2
    assert rig.deadlines.lag_s(12, 9000) == 4
