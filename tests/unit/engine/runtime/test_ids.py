"""Ids: UUID version 7 with a slot, routing that equals Spark's, tokens that never repeat."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.engine.runtime.ids import (
    SLOTS,
    IdSource,
    SeededRng,
    SystemRng,
    first_slot_of,
    shard_of,
    shard_of_slot,
    slot_of,
)
from lodeq.engine.runtime.task_id import TaskId
from lodeq.errors import UsageError

MS = 1_700_000_000_123


@pytest.fixture
def ids() -> IdSource:
    return IdSource(SeededRng(1))


@given(st.integers(0, (1 << 48) - 1), st.integers(0, SLOTS - 1), st.integers(0, 1 << 32))
def test_an_id_is_a_uuid_7_that_tells_time_and_slot(ms: int, slot: int, seed: int) -> None:
    task_id = TaskId(IdSource(SeededRng(seed)).new(ms, slot))
    assert task_id.uuid.version == 7
    assert task_id.uuid.variant == uuid.RFC_4122
    assert task_id.created_ms == ms
    assert task_id.slot == slot


def test_unkeyed_ids_spread_over_the_slots(ids: IdSource) -> None:
    found = [TaskId(ids.new(MS, ids.slot())) for _ in range(4 * SLOTS)]
    assert len(set(found)) == len(found)
    assert {task_id.uuid.version for task_id in found} == {7}
    assert len({task_id.slot for task_id in found}) > SLOTS // 2
    counts = [sum(shard_of(x, 4) == shard for x in found) for shard in range(4)]
    assert min(counts) > SLOTS * 0.9


def test_a_random_slot_is_in_range(ids: IdSource) -> None:
    slots = {ids.slot() for _ in range(2000)}
    assert min(slots) >= 0
    assert max(slots) < SLOTS


# XXH64 with seed 42, as the reference implementation computes it; the low twelve bits of the
# signed value are what Spark SQL's pmod(xxhash64(k), 4096) gives.
@pytest.mark.parametrize(
    ("key", "digest"),
    [
        (b"", 0x98B1582B0977E704),
        (b"a", 0x88E4FE59ADF7B0CC),
        (b"abc", 0x13C1D910702770E6),
        (b"customer-42", 0x9A463703204B133B),
        (b"mail\0\0welcome:42", 0x9C3AC622F69E0F3A),
    ],
)
def test_slots_are_golden(key: bytes, digest: int) -> None:
    signed = digest - (1 << 64) if digest >> 63 else digest
    assert slot_of(key) == signed % SLOTS == digest & 0xFFF


@given(st.integers(0, SLOTS - 1), st.integers(1, SLOTS))
def test_a_shard_is_a_range_of_slots(slot: int, shards: int) -> None:
    task_id = IdSource(SeededRng(0)).new(MS, slot)
    shard = shard_of(task_id, shards)
    assert 0 <= shard < shards
    assert shard == slot * shards // SLOTS
    if slot:
        before = shard_of(IdSource(SeededRng(0)).new(MS, slot - 1), shards)
        assert shard - before in (0, 1)


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 8, 1000, 4096])
def test_every_shard_has_slots(shards: int) -> None:
    ids = IdSource(SeededRng(0))
    assert {shard_of(ids.new(MS, slot), shards) for slot in range(SLOTS)} == set(range(shards))


# -- TaskId ----------------------------------------------------------------------------


def test_every_form_gives_the_same_id(ids: IdSource) -> None:
    raw = ids.new(MS, 7)
    task_id = TaskId(raw)
    forms = [task_id, raw, uuid.UUID(bytes=raw), str(task_id), str(task_id).upper(), raw.hex()]
    assert {TaskId(form) for form in forms} == {task_id}
    assert task_id == raw
    assert hash(task_id) == hash(raw)
    assert str(task_id) == str(uuid.UUID(bytes=raw))
    assert repr(task_id) == f"TaskId('{task_id}')"


@pytest.mark.parametrize(
    "value", [b"", b"x" * 15, b"x" * 17, "", "not-an-id", "0" * 31, 7, None, bytearray(16), 1.5]
)
def test_anything_else_is_a_usage_error(value: object) -> None:
    with pytest.raises(UsageError, match="not a task id"):
        TaskId(value)


# -- randomness ------------------------------------------------------------------------


def test_tokens_are_16_bytes_and_never_repeat(ids: IdSource) -> None:
    tokens = [ids.token() for _ in range(2000)]
    assert {len(token) for token in tokens} == {16}
    assert len(set(tokens)) == len(tokens)


def test_a_seed_repeats_and_the_system_does_not() -> None:
    one, same, other = (IdSource(SeededRng(seed)) for seed in (3, 3, 4))
    first = [one.new(MS, one.slot()), one.token(), one.uniform()]
    assert [same.new(MS, same.slot()), same.token(), same.uniform()] == first
    assert [other.new(MS, other.slot()), other.token(), other.uniform()] != first
    assert IdSource(SystemRng()).token() != IdSource(SystemRng()).token()


def test_jitter_is_in_the_unit_interval() -> None:
    for rng in (SystemRng(), SeededRng(1)):
        ids = IdSource(rng)
        drawn = [ids.uniform() for _ in range(100)]
        assert 0 <= min(drawn) < max(drawn) < 1


@pytest.mark.interpreted
def test_randomness_is_read_in_blocks() -> None:
    class Counting(SeededRng):
        reads = 0

        def bytes(self, n: int) -> bytes:
            self.reads += 1
            return super().bytes(n)

    rng = Counting(1)
    ids = IdSource(rng)
    for _ in range(512):
        ids.token()
        ids.new(MS, 0)
    assert rng.reads == 2


def test_a_run_of_ids_follows_one_another_in_one_slot() -> None:
    ids = IdSource(SeededRng(3))
    run = ids.run(MS, 77, 100)
    assert run == sorted(set(run))
    assert {(i.slot, i.created_ms, i.uuid.version) for i in run} == {(77, MS, 7)}
    assert ids.run(MS, 77, 1)[0] not in run
    assert ids.run(MS, 77, 0) == []


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 64, 4095, 4096])
def test_first_slots_are_where_shards_begin(shards: int) -> None:
    firsts = [first_slot_of(shard, shards) for shard in range(shards)]
    assert firsts[0] == 0
    assert first_slot_of(shards, shards) == SLOTS
    for shard, first in enumerate(firsts):
        assert shard_of_slot(first, shards) == shard
        assert first == 0 or shard_of_slot(first - 1, shards) == shard - 1
