"""A group: what is added at sealing, and what reads of it see."""

import pytest

from lodeq.coalescer.group import Group
from lodeq.engine.records.keyspace import counters_key, expiry_key, ring_key
from lodeq.engine.records.rows import (
    CounterOwner,
    decode_expiry,
    decode_ring,
    encode_counters,
    encode_ring,
)

NUMBER = 1 << 40 | 3
ID = bytes(range(16))
KEY = counters_key(b"mail", b"")
HASH = bytes(range(16, 32))


def counters(ready: int, results: int = 0) -> CounterOwner:
    owner = CounterOwner(KEY, HASH)
    owner.ready, owner.results = ready, results
    return owner


def test_a_sealed_group_ends_with_its_number() -> None:
    group = Group(NUMBER)
    group.ops.append((b"a", b"1"))
    group.seal(77)
    assert group.sealed
    assert group.ops[0] == (b"a", b"1")
    key, value = group.ops[-1]
    assert key == ring_key(NUMBER)
    assert value is not None
    assert decode_ring(value) == (NUMBER, 77)


def test_counters_are_those_of_the_moment_of_sealing() -> None:
    owner, group = counters(1, 2), Group(NUMBER)
    group.dirty[owner] = None
    owner.ready = 5
    group.seal(0)
    owner.ready = 9  # a later group's business
    value = dict(group.ops)[KEY]
    assert value == encode_counters(5, 0, 0, 0, 2)


def test_counters_that_reach_zero_are_deleted() -> None:
    group = Group(NUMBER)
    group.dirty[counters(0)] = None
    group.seal(0)
    assert dict(group.ops)[KEY] is None


def test_one_expiry_row_a_bucket() -> None:
    group = Group(NUMBER)
    group.expiry = {1000: [b"r" + ID, b"g" + ID], 2000: [b"t" + ID]}
    group.seal(0)
    rows = dict(group.ops)
    first, second = rows[expiry_key(1000, NUMBER)], rows[expiry_key(2000, NUMBER)]
    assert first is not None
    assert second is not None
    assert decode_expiry(first) == [(ord("r"), ID), (ord("g"), ID)]
    assert decode_expiry(second) == [(ord("t"), ID)]


def test_results_of_completed_tasks_lie_behind_the_counter_that_has_them() -> None:
    group, owner = Group(NUMBER), counters(1)
    group.expiry = {1000: [b"g" + ID]}
    group.final = {(1000, owner, b"c"): [ID, ID[::-1]], (2000, owner, b"c"): []}
    group.seal(0)
    row = dict(group.ops)[expiry_key(1000, NUMBER)]
    assert row is not None
    kinds = [(ord("g"), ID), (ord("B"), HASH), (ord("c"), ID), (ord("c"), ID[::-1])]
    assert decode_expiry(row) == kinds
    assert expiry_key(2000, NUMBER) not in dict(group.ops)


@pytest.mark.parametrize("number", [1, 0xFFFF, 0x10000, 1 << 40 | 0x1234])
def test_the_ring_row_lies_where_the_ring_is_read(number: int) -> None:
    group = Group(number)
    group.seal(7)
    assert group.ops == [(ring_key(number), encode_ring(number, 7))]


def test_a_row_made_and_taken_by_one_group_is_never_written() -> None:
    group = Group(NUMBER)
    group.fresh[b"q"] = len(group.ops)
    group.ops.append((b"q", b"1"))
    assert group.replace_fresh(b"q", (b"l", b"2"))
    assert group.ops == [(b"l", b"2")]
    assert not group.replace_fresh(b"q", (b"l", b"3"))


def test_a_row_somebody_has_read_stays_and_is_deleted() -> None:
    group = Group(NUMBER)
    group.fresh[b"q"] = len(group.ops)
    group.ops.append((b"q", b"1"))
    group.indexed = len(group.ops)
    assert not group.replace_fresh(b"q", (b"l", b"2"))
    assert group.ops == [(b"q", b"1")]
