"""Keys in etcd: their bytes, their order, and values that are damaged."""

import msgpack
import pytest
from support_shared_log import record_of

from lodeq.errors import RecordCorruptError, UsageError
from lodeq.replication.etcd.keys import (
    Keys,
    LogKey,
    decode_checkpoint,
    decode_departure,
    decode_genesis,
    decode_member,
    decode_number,
    decode_placement,
    encode,
)
from lodeq.replication.port import (
    PLACEMENTS,
    Checkpoint,
    Departure,
    Genesis,
    Member,
    Placement,
    check_node,
)

KEYS = Keys(b"/lodeq/c/")
RECORD = record_of(3, 7, 12, ((b"k", b"v"),), nonce=bytes(range(16)))
FRAGMENT = b"/lodeq/c/log/0003/00000000000000000012/7/000102030405060708090a0b0c0d0e0f/0001"


def test_the_bytes_of_each_key():
    assert KEYS.genesis == b"/lodeq/c/genesis"
    assert KEYS.of_node("member", "n1") == b"/lodeq/c/member/n1"
    assert KEYS.of_shard("leader", 3) == b"/lodeq/c/leader/0003"
    assert KEYS.record(3, 12) == b"/lodeq/c/log/0003/00000000000000000012"
    assert KEYS.fragment(RECORD, 1) == FRAGMENT


def test_what_a_key_of_the_log_says():
    assert KEYS.parse_log(KEYS.record(3, 12), 3) == LogKey(12)
    assert KEYS.parse_log(FRAGMENT, 3) == LogKey(12, 7, bytes(range(16)), 1)
    for key in (b"/lodeq/c/log/0003/x", FRAGMENT + b"/5", FRAGMENT[:-5] + b"/z"):
        with pytest.raises(RecordCorruptError, match="no key of its log"):
            KEYS.parse_log(key, 3)


def test_order_is_that_of_the_log():
    in_order = [KEYS.record(3, 9), KEYS.record(3, 12), FRAGMENT, KEYS.record(3, 13)]
    assert sorted(in_order) == in_order
    assert in_order[-1] < KEYS.records_end(3) < KEYS.record(4, 0)


def test_the_watch_sees_every_key_but_those_of_the_log_and_the_tails():
    def is_watched(key: bytes) -> bool:
        return any(first <= key < end for first, end in KEYS.watched())

    for family in ("leader", "hint", "floor", "fence", "tail"):
        assert is_watched(KEYS.of_shard(family, 4095)) == (family != "tail")
        assert KEYS.shard_in(KEYS.of_shard(family, 4095)) == 4095
    for family in ("member", "checkpoint"):
        assert is_watched(KEYS.of_node(family, "7"))
        assert KEYS.shard_in(KEYS.of_node(family, "7")) == -1
    for key in (KEYS.of_shard("placement", 3), KEYS.of_node("departure", "7")):
        assert is_watched(key)
        assert KEYS.shard_in(key) == PLACEMENTS
    assert is_watched(KEYS.balancer)
    assert KEYS.shard_in(KEYS.balancer) == -1
    assert is_watched(KEYS.genesis)
    assert not is_watched(KEYS.record(0, 1))
    assert not is_watched(FRAGMENT)


def test_a_family_is_all_its_keys_and_no_other():
    first, end = KEYS.family("leader")
    assert first <= KEYS.of_shard("leader", 0) < KEYS.of_shard("leader", 4095) < end
    assert not first <= KEYS.record(0, 1) < end


def test_values_come_back_and_unknown_fields_are_ignored():
    genesis = Genesis("c", 16, bytes(16), level=3, copies=2)
    member = Member("n", "http://n", "1", "z", 5, (1, 2), (0, 1), suspects=("m",))
    checkpoint = Checkpoint("n", "http://n", "d", (4, 5), 6)
    assert decode_genesis(encode(genesis)) == genesis
    assert decode_member(encode(member)) == member
    assert decode_checkpoint(encode(checkpoint)) == checkpoint
    placement = Placement(3, ("a", "b"), ("a",), 17)
    assert decode_placement(encode(placement), 17) == placement
    assert decode_placement(encode(placement), 18).version == 18
    assert decode_departure(encode(Departure("a", is_dead=True))) == Departure("a", is_dead=True)
    later = msgpack.packb({**msgpack.unpackb(encode(member)), "later": 1})
    assert decode_member(later) == member
    assert decode_member(msgpack.packb({"node": "n"})) == Member("n")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        msgpack.packb(5),
        msgpack.packb({"url": "no node"}),
        msgpack.packb({"node": 5}),
        msgpack.packb({"node": "n", "clock_ms": "5"}),
        msgpack.packb({"node": "n", "applied": ["x"]}),
        msgpack.packb({"node": "n", "applied": 5}),
    ],
)
def test_a_damaged_value_is_said(raw):
    with pytest.raises(RecordCorruptError, match="a member in etcd cannot be read"):
        decode_member(raw)


@pytest.mark.parametrize("raw", [b"", b"-1", b"1.5", b"x", b"9" * 21])
def test_a_number_that_is_none(raw):
    with pytest.raises(RecordCorruptError, match="not a number"):
        decode_number(raw, "a tail")


def test_names_of_nodes():
    assert check_node("n1.Example-2") == "n1.Example-2"
    for name in ("", "a/b", "a b", "x" * 65, "-a", None):
        with pytest.raises(UsageError, match="node name"):
            check_node(name)
