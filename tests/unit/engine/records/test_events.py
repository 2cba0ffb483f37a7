"""The rows of ``j/``: what is packed comes back, and nothing damaged does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.engine.records import events
from lodeq.engine.records.events import (
    EventKind,
    EventRow,
    Run,
    StartRow,
    decode_begin_row,
    decode_event_row,
    decode_start_row,
    encode_begin_row,
    encode_event_row,
    encode_run,
    encode_start_row,
    pack_one,
    pack_run,
    tenant_queue_tag,
)
from lodeq.engine.records.frame import seal
from lodeq.errors import RecordCorruptError

ID = bytes(range(16))
RUNS = st.builds(
    Run,
    kind=st.sampled_from(list(EventKind)).map(int),
    priority=st.integers(0, 9),
    attempts=st.integers(0, 0xFFFF),
    time_us=st.integers(0, 1 << 62),
    queue=st.binary(min_size=1, max_size=64),
    tenant=st.binary(max_size=64),
    text=st.binary(max_size=300),
    ids=st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=5).map(tuple),
)


@given(st.integers(0, 4095), st.integers(0, (1 << 64) - 1), st.lists(RUNS, max_size=4))
def test_events_come_back(shard: int, commit_seq: int, runs: list[Run]) -> None:
    raw = encode_event_row(shard, commit_seq, [encode_run(run) for run in runs])
    assert decode_event_row(raw) == EventRow(shard, commit_seq, tuple(runs))


@given(st.lists(st.tuples(st.integers(0, 1 << 50), st.integers(0, 1 << 50)), max_size=5))
def test_starts_come_back(missing: list[tuple[int, int]]) -> None:
    raw = encode_start_row(3, 5 << 40, 4 << 40 | 17, missing)
    assert decode_start_row(raw) == StartRow(3, 5 << 40, 4 << 40 | 17, tuple(missing))


@given(st.integers(0, 4095), st.integers(0, (1 << 64) - 1))
def test_begins_come_back(shard: int, commit_seq: int) -> None:
    assert decode_begin_row(encode_begin_row(shard, commit_seq)) == (shard, commit_seq)
    with pytest.raises(RecordCorruptError):
        decode_begin_row(seal(encode_begin_row(shard, commit_seq)[:-8] + b"x"))


def test_one_event_is_a_run_of_one() -> None:
    tag = tenant_queue_tag(b"mail", b"acme")
    one = pack_one(events.CLAIMED, 7, 2, 1, 2, 99, ID) + tag + b"w1"
    assert one == pack_run(events.CLAIMED, 7, 2, 99, tag, b"w1", [ID])


def test_the_plain_numbers_are_those_of_the_kinds() -> None:
    assert {kind.name: int(kind) for kind in EventKind} == {
        kind.name: getattr(events, kind.name) for kind in EventKind
    }


@pytest.mark.parametrize(
    "runs",
    [
        [pack_run(0, 5, 0, 1, tenant_queue_tag(b"q", b""), b"", [ID])],
        [pack_run(12, 5, 0, 1, tenant_queue_tag(b"q", b""), b"", [ID])],
        [pack_run(1, 10, 0, 1, tenant_queue_tag(b"q", b""), b"", [ID])],
        [pack_run(1, 5, 0, 1, tenant_queue_tag(b"q", b""), b"", [])],
        [pack_run(1, 5, 0, 1, tenant_queue_tag(b"q" * 65, b""), b"", [ID])],
        [pack_run(1, 5, 0, 1, tenant_queue_tag(b"q", b""), b"abc", [ID])[:-1]],
        [pack_run(1, 5, 0, 1, tenant_queue_tag(b"q", b""), b"", [ID])[:30]],
        [b"\1"],
    ],
)
def test_a_run_that_cannot_be_is_refused(runs: list[bytes]) -> None:
    with pytest.raises(RecordCorruptError):
        decode_event_row(encode_event_row(0, 1, runs))


def test_another_number_of_runs_is_refused() -> None:
    raw = bytearray(encode_event_row(0, 1, []))
    raw[4] = 1
    with pytest.raises(RecordCorruptError):
        decode_event_row(seal(bytes(raw[:-8])))
    start = bytearray(encode_start_row(0, 1, 0, []))
    start[4] = 1
    with pytest.raises(RecordCorruptError):
        decode_start_row(seal(bytes(start[:-8])))
