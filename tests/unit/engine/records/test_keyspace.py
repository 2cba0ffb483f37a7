"""Keys: what is encoded comes back, and byte order is logical order."""

import re
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.engine.records import keyspace as ks
from lodeq.engine.runtime.ids import slot_of
from lodeq.errors import InvalidNameError, RecordCorruptError

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
ID = bytes(range(16))
FIRST = "abcdefghijklmnopqrstuvwxyz0123456789"
texts = st.builds("{}{}".format, st.sampled_from(FIRST), st.text(FIRST + "._-", max_size=63))
names = texts.map(str.encode)
tenants = st.one_of(st.just(b""), names)
ids = st.binary(min_size=16, max_size=16)
u64 = st.integers(0, (1 << 64) - 1)
priorities = st.integers(0, 9)
SECRET = bytes(range(32))
few = st.sampled_from([b"a", b"a-b", b"a.", b"a0", b"b"])  # neighbours, so that orders collide


@st.composite
def index_keys(draw: st.DrawFn) -> tuple[bytes, ks.IndexKey]:
    """A ready, delayed or dead key, and what it should decode to."""
    queue, tenant, task_id = draw(names), draw(tenants), draw(ids)
    prefix = ks.shard_queue_prefix(queue, tenant)
    at, seq, priority = draw(u64), draw(u64), draw(priorities)
    kind = draw(st.sampled_from([ks.READY, ks.DELAYED, ks.DEAD]))
    if kind == ks.READY:
        expected = ks.IndexKey(kind, queue, tenant, priority, 0, seq, task_id)
        return ks.ready_key(prefix, priority, seq, task_id), expected
    if kind == ks.DELAYED:
        expected = ks.IndexKey(kind, queue, tenant, 0, at, seq, task_id)
        return ks.delayed_key(prefix, at, seq, task_id), expected
    return ks.dead_key(prefix, at, task_id), ks.IndexKey(kind, queue, tenant, 0, at, 0, task_id)


@given(index_keys())
def test_index_keys_come_back(pair: tuple[bytes, ks.IndexKey]) -> None:
    key, expected = pair
    assert ks.decode_index_key(key) == expected
    assert ks.INDEX <= key < ks.INDEX_END


@given(st.lists(st.tuples(few, few, priorities, u64, ids), min_size=2, max_size=8))
def test_ready_keys_sort_by_queue_tenant_priority_seq(
    tasks: list[tuple[bytes, bytes, int, int, bytes]],
) -> None:
    keys = [
        (ks.ready_key(ks.shard_queue_prefix(q, t), p, seq, i), (q, t, 9 - p, seq, i))
        for q, t, p, seq, i in tasks
    ]
    assert sorted(keys) == sorted(keys, key=itemgetter(1))


@given(st.lists(st.tuples(u64, u64, ids), min_size=2, max_size=8))
def test_delayed_keys_sort_by_due_time(tasks: list[tuple[int, int, bytes]]) -> None:
    prefix = ks.shard_queue_prefix(b"mail", b"")
    assert sorted(ks.delayed_key(prefix, *task) for task in tasks) == [
        ks.delayed_key(prefix, *task) for task in sorted(tasks)
    ]


@given(st.lists(st.tuples(u64, ids), min_size=2, max_size=8))
def test_dead_keys_sort_by_time_of_death(tasks: list[tuple[int, bytes]]) -> None:
    prefix = ks.shard_queue_prefix(b"mail", b"")
    assert sorted(ks.dead_key(prefix, *task) for task in tasks) == [
        ks.dead_key(prefix, *task) for task in sorted(tasks)
    ]


@given(st.lists(st.tuples(u64, u64), min_size=1, max_size=8))
def test_expiry_keys_come_back_and_sort(rows: list[tuple[int, int]]) -> None:
    keys = [ks.expiry_key(*row) for row in rows]
    assert [ks.decode_expiry_key(key) for key in keys] == rows
    assert sorted(keys) == [ks.expiry_key(*row) for row in sorted(rows)]
    assert all(ks.EXPIRY <= key < ks.EXPIRY_END for key in keys)


@given(names, tenants)
def test_counter_and_pause_keys_come_back(queue: bytes, tenant: bytes) -> None:
    assert ks.decode_counters_key(ks.counters_key(queue, tenant)) == (queue, tenant)
    assert ks.decode_pause_key(ks.pause_key(queue, tenant)) == (queue, tenant)


def test_the_mark_of_all_tenants_is_no_name() -> None:
    key = ks.pause_key(b"mail", ks.ALL_TENANTS_MARK)
    assert ks.decode_pause_key(key) == (b"mail", ks.ALL_TENANTS_MARK)
    with pytest.raises(InvalidNameError):
        ks.check_name(ks.ALL_TENANTS_MARK.decode(), "tenant")


@given(st.integers(0, (1 << 63) - 1))
def test_ring_keys_wrap_after_65536(number: int) -> None:
    key = ks.ring_key(number)
    assert ks.RING <= key < ks.RING_END
    assert key == ks.ring_key(number + ks.RING_SLOTS)
    assert key != ks.ring_key(number + 1)


@given(names, tenants, names, tenants)
def test_no_shard_queue_lies_inside_another(q1: bytes, t1: bytes, q2: bytes, t2: bytes) -> None:
    one, other = ks.shard_queue_prefix(q1, t1), ks.shard_queue_prefix(q2, t2)
    assert one == other or not (one.startswith(other) or other.startswith(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((b"a", b"b-c"), (b"a-b", b"c")),
        ((b"a", b"b"), (b"a", b"bc")),
        ((b"a", b""), (b"aa", b"")),
        ((b"a", b""), (b"a", b"a")),
    ],
)
def test_names_that_look_alike_share_nothing(
    one: tuple[bytes, bytes], other: tuple[bytes, bytes]
) -> None:
    assert not ks.shard_queue_prefix(*one).startswith(ks.shard_queue_prefix(*other))
    assert not ks.shard_queue_prefix(*other).startswith(ks.shard_queue_prefix(*one))
    assert ks.shard_queue_hash(SECRET, *one) != ks.shard_queue_hash(SECRET, *other)
    assert ks.counters_key(*one) != ks.counters_key(*other)


@given(st.sampled_from([b"q/", b"q/mail\0\0r", b"t/", b"m/k/"]), st.binary(max_size=40))
def test_prefix_end_is_above_all_that_starts_so(prefix: bytes, rest: bytes) -> None:
    assert prefix <= prefix + rest < ks.prefix_end(prefix)
    assert not ks.prefix_end(prefix).startswith(prefix)


@given(names, tenants, priorities, u64, ids)
def test_ready_prefixes_bound_one_priority(
    queue: bytes, tenant: bytes, priority: int, seq: int, task_id: bytes
) -> None:
    prefix = ks.shard_queue_prefix(queue, tenant)
    start = ks.ready_prefix(prefix, priority)
    assert start < ks.ready_key(prefix, priority, seq, task_id) < ks.prefix_end(start)
    if priority:
        assert ks.prefix_end(start) <= ks.ready_prefix(prefix, priority - 1)


def test_every_family_has_its_own_range() -> None:
    ranges = sorted(
        [
            (ks.TASK, ks.TASK_END),
            (ks.INDEX, ks.INDEX_END),
            (ks.MOVED, ks.MOVED_END),
            (ks.LEASE, ks.LEASE_END),
            (ks.RESULT, ks.RESULT_END),
            (ks.GHOST, ks.GHOST_END),
            (ks.EXPIRY, ks.EXPIRY_END),
            (ks.COUNTERS, ks.COUNTERS_END),
            (ks.PAUSE, ks.PAUSE_END),
            (ks.RING, ks.RING_END),
            (ks.STAMP, ks.STAMP + b"\0"),
            (ks.OPEN, ks.OPEN + b"\0"),
            (ks.HEALTH, ks.HEALTH + b"\0"),
        ]
    )
    ends = [end for _, end in ranges[:-1]]
    assert all(end <= start for end, (start, _) in zip(ends, ranges[1:], strict=True))


# -- names -----------------------------------------------------------------------------


@given(texts)
def test_valid_names_are_taken(name: str) -> None:
    assert ks.check_name(name, "queue") == name.encode()


@given(st.text(max_size=70).filter(lambda text: NAME.fullmatch(text) is None))
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError):
        ks.check_name(name, "queue")


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "a\0b", "..", "Mail", "a" * 65, "a" * 300, "mail\n", "-a", "é", b"a", None, 7],
)
def test_bad_names_are_refused_in_few_words(name: object) -> None:
    with pytest.raises(InvalidNameError) as caught:
        ks.check_name(name, "tenant")
    assert "tenant name" in str(caught.value)
    assert len(str(caught.value)) < 250


# -- damage ----------------------------------------------------------------------------


@given(st.binary(max_size=80))
def test_bytes_that_are_no_key_are_refused(raw: bytes) -> None:
    for decode in (
        ks.decode_index_key,
        ks.decode_expiry_key,
        ks.decode_counters_key,
        ks.decode_pause_key,
    ):
        with pytest.raises(RecordCorruptError):
            decode(raw)


@given(index_keys())
def test_an_index_key_cut_short_is_refused(pair: tuple[bytes, ks.IndexKey]) -> None:
    with pytest.raises(RecordCorruptError):
        ks.decode_index_key(pair[0][:-1])


@pytest.mark.parametrize(
    "key",
    [
        b"q/mail\0\0r" + bytes((10,)) + bytes(24),  # priority -1
        b"q/mail\0\0z" + bytes(25),
        b"p/mail\0\0r" + bytes(25),
        b"q/mail\0r" + bytes((1,)) * 25,
        b"e/" + bytes(15),
        b"m/c/mail\0",
        b"m/p/mail\0\0\0",
    ],
)
def test_near_misses_are_refused(key: bytes) -> None:
    for decode in (
        ks.decode_index_key,
        ks.decode_expiry_key,
        ks.decode_counters_key,
        ks.decode_pause_key,
    ):
        with pytest.raises(RecordCorruptError):
            decode(key)


# -- golden ----------------------------------------------------------------------------


def test_keys_have_not_changed() -> None:
    prefix = ks.shard_queue_prefix(b"mail", b"acme")
    assert {
        "ready": ks.ready_key(prefix, 7, 0x0102030405060708, ID).hex(),
        "delayed": ks.delayed_key(prefix, 0x11, 0x22, ID).hex(),
        "dead": ks.dead_key(prefix, 0x11, ID).hex(),
        "expiry": ks.expiry_key(1000, 1 << 40 | 1).hex(),
        "counters": ks.counters_key(b"mail", b"").hex(),
        "ring": ks.ring_key(1 << 40 | 0x1234).hex(),
        "ghost": ks.ghost_hash(SECRET, b"mail\0\0welcome:42").hex(),
        "old ghost": ks.old_ghost_hash(b"mail\0\0welcome:42").hex(),
        "bucket": ks.shard_queue_hash(SECRET, b"mail", b"acme").hex(),
        "fingerprint": ks.secret_fingerprint(SECRET).hex(),
    } == {
        "ready": "712f6d61696c0061636d650072020102030405060708000102030405060708090a0b0c0d0e0f",
        "delayed": "712f6d61696c0061636d650064000000000000001100000000000000"
        "22000102030405060708090a0b0c0d0e0f",
        "dead": "712f6d61696c0061636d6500780000000000000011000102030405060708090a0b0c0d0e0f",
        "expiry": "652f00000000000003e80000010000000001",
        "counters": "6d2f632f6d61696c0000",
        "ring": "6d2f6b2f1234",
        "ghost": "4b4f8921b0513d0d258fe8d1ffe18a85",
        "old ghost": "5d1e05d50b2e7aca9099a5f4d9f7e457",
        "bucket": "796b893c1852f8ffe8ed9225b0a809cc",
        "fingerprint": "1df84b6dc88d3fe6323bd39f6b966510",
    }


def test_a_ghost_routes_by_the_same_bytes_it_is_hashed_from() -> None:
    """Slot and ghost depend on queue, tenant and key, and on nothing else."""
    assert slot_of(b"mail\0acme\0k") == slot_of(b"%b\0%b\0%b" % (b"mail", b"acme", b"k"))
    assert len(ks.ghost_hash(SECRET, b"mail\0acme\0k")) == 16
