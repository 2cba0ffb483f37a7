"""What a reader makes of the records of a lifecycle journal."""

import pytest

from lodeq.engine.records.events import (
    CLAIMED,
    ENQUEUED,
    NACKED,
    encode_event_row,
    encode_start_row,
    pack_run,
    tenant_queue_tag,
)
from lodeq.engine.runtime.task_id import TaskId
from lodeq.errors import RecordCorruptError
from lodeq.segments.journal.log_format import LogRecord
from lodeq.segments.lifecycle import Event, EventKind, Reader, RolledBack, events

A, B = bytes(range(16)), bytes(range(16, 32))
TAG = tenant_queue_tag(b"mail", b"acme")


def commit(number: int, incarnation: int = 1, shard: int = 0) -> bytes:
    run = pack_run(ENQUEUED, 5, 0, 99, TAG, b"", [A])
    return encode_event_row(shard, incarnation << 40 | number, [run])


def start(incarnation: int, last: int, *missing: tuple[int, int], shard: int = 0) -> bytes:
    base = incarnation - 1 << 40
    ranges = [(base | first, base | end) for first, end in missing]
    return encode_start_row(shard, incarnation << 40, base | last, ranges)


def test_a_run_is_an_event_of_each_id() -> None:
    runs = [
        pack_run(CLAIMED, 7, 2, 99, TAG, b"w1", [A, B]),
        pack_run(NACKED, 5, 3, 100, tenant_queue_tag(b"q", b""), "spät".encode(), [B]),
    ]
    raw = encode_event_row(3, 2 << 40 | 17, runs)
    first, second = TaskId(A), TaskId(B)
    expected = [
        Event(EventKind.CLAIMED, first, "mail", "acme", 2, 7, 99, "w1", "", 3, 2, 17),
        Event(EventKind.CLAIMED, second, "mail", "acme", 2, 7, 99, "w1", "", 3, 2, 17),
        Event(EventKind.NACKED, second, "q", "", 3, 5, 100, "", "spät", 3, 2, 17),
    ]
    assert events(raw) == expected
    assert events(LogRecord(1, raw, 99)) == expected


def test_repeats_are_dropped_shard_by_shard() -> None:
    reader = Reader()
    assert len(reader.read(commit(1))) == 1
    assert len(reader.read(commit(3))) == 1
    assert len(reader.read(commit(1, shard=1))) == 1
    for raw in (commit(1), commit(3), commit(1, shard=1)):
        assert reader.read(raw) == []
    assert len(reader.read(commit(4))) == 1
    assert len(reader.read(commit(1, incarnation=2))) == 1
    assert reader.read(commit(4)) == []
    assert reader.seen == {0: (2, 1), 1: (1, 1)}


def test_a_reader_goes_on_where_it_was() -> None:
    reader = Reader()
    reader.read(commit(5))
    again = Reader(reader.seen)
    assert again.read(commit(5)) == []
    assert len(again.read(commit(6))) == 1


def test_a_mark_is_told_where_it_takes_something_back() -> None:
    reader = Reader()
    assert reader.read(start(1, 0)) == []
    reader.read(commit(5))
    assert Reader(reader.seen).read(start(2, 5)) == []
    assert Reader(reader.seen).read(start(2, 4)) == [RolledBack(0, 1, 4, ())]
    told = [RolledBack(0, 1, 9, ((6, 6), (8, 8)))]
    assert reader.read(start(2, 9, (6, 6), (8, 8))) == told
    assert reader.read(start(2, 9, (6, 6), (8, 8))) == []
    assert events(start(2, 4)) == [RolledBack(0, 1, 4, ())]
    assert reader.seen == {0: (2, 0)}


def test_a_reader_that_begins_late_is_told_of_what_is_missing_only() -> None:
    assert Reader().read(start(3, 7)) == []
    assert Reader().read(start(3, 7, (2, 3))) == [RolledBack(0, 2, 7, ((2, 3),))]


@pytest.mark.parametrize("raw", [b"", b"N", b"J", b"something else", commit(1)[:-1]])
def test_what_is_no_record_is_refused(raw: bytes) -> None:
    reader = Reader({0: (1, 1)})
    for read in (events, reader.read):
        with pytest.raises(RecordCorruptError):
            read(raw)
    assert reader.seen == {0: (1, 1)}


@pytest.mark.parametrize(("queue", "text"), [(b"\xff", b""), (b"q", b"\xff")])
def test_a_name_or_text_that_is_none_is_refused(queue: bytes, text: bytes) -> None:
    run = pack_run(NACKED, 5, 0, 99, tenant_queue_tag(queue, b""), text, [A])
    with pytest.raises(RecordCorruptError):
        events(encode_event_row(0, 1, [run]))
