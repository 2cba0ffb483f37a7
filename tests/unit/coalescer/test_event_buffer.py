"""Rows of events: queued with their group, and held in memory up to a bound."""

from lodeq.coalescer.event_buffer import EventBuffer
from lodeq.coalescer.group import Group
from lodeq.engine.records.events import ENQUEUED, decode_event_row, pack_run, tenant_queue_tag
from lodeq.engine.records.keyspace import events_key

RUN = pack_run(ENQUEUED, 5, 0, 99, tenant_queue_tag(b"q", b""), b"", [bytes(16)])


def group(number: int, *runs: bytes) -> Group:
    out = Group(number)
    out.events = list(runs)
    return out


def test_the_events_of_a_group_are_one_row_of_it() -> None:
    tail, told = EventBuffer(3), group(7, RUN, RUN)
    tail.is_complete = True
    tail.take(told)
    ((key, value),) = told.ops
    assert key == events_key(7)
    assert value is not None
    row = decode_event_row(value)
    assert (row.shard, row.commit_seq, len(row.runs)) == (3, 7, 2)
    assert list(tail.rows) == [(key, value)]
    assert tail.held_bytes == len(value)


def test_a_group_without_events_leaves_no_row() -> None:
    tail = EventBuffer(0)
    for silent in (Group(1), group(2)):
        tail.take(silent)
        assert silent.ops == []
    assert not tail.rows


def test_memory_is_bounded_and_the_order_kept() -> None:
    tail = EventBuffer(0)
    tail.is_complete = True
    tail.held_bytes_max = 100
    groups = [group(number, RUN) for number in range(1, 6)]
    for one in groups:
        tail.take(one)
        assert len(one.ops) == 1
    assert [key for key, _ in tail.rows] == [events_key(1), events_key(2)]
    assert not tail.is_complete
    assert tail.edge == events_key(3)
    tail.rows.clear()
    tail.held_bytes = 0
    tail.take(group(6, RUN))  # there is room again, but what is before it is in the store
    assert not tail.rows
    assert tail.edge == events_key(3)


def test_who_waits_is_woken() -> None:
    woken: list[int] = []
    tail = EventBuffer(0)
    tail.wake = lambda: woken.append(1)
    tail.take(Group(1))
    assert woken == []
    tail.take(group(2, RUN))
    assert woken == [1]
