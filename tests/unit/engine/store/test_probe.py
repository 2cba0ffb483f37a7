"""Positions between keys."""

import pytest

from lodeq.engine.records import keyspace as ks
from lodeq.engine.store.probe import PROBES_MAX, halfway, key_behind, readable_from, span_bits

LONG = ks.ready_key(ks.shard_queue_prefix(b"q" * 64, b"t" * 64), 5, 1 << 50, bytes(range(16)))


@pytest.mark.parametrize("key", [b"", b"\0", b"t/", b"t/" + bytes(16), LONG, b"x" * 300])
@pytest.mark.parametrize("bits", [-1, 0, 7, 100, 2000])
def test_a_position_behind_a_key_is_greater(key, bits):
    assert key_behind(key, bits) > key


def test_positions_end_above_every_key():
    assert key_behind(b"\xff" * 9, 1407) > b"\xff" * 100


def test_a_span_is_the_farthest_step_within_a_range():
    for lower, upper in [(b"t/", b"t0"), (b"", b"\xff"), (LONG, LONG + b"\0\1")]:
        bits = span_bits(lower, upper)
        assert key_behind(lower, bits)[:-1] <= upper < key_behind(lower, bits + 1)
    assert span_bits(b"b", b"a") == 0


def test_halfway_is_between_or_nowhere():
    assert b"a" < halfway(b"a", b"b") < b"b"
    assert halfway(b"a", b"a\0") is None
    assert halfway(b"a", b"a") is None


@pytest.mark.parametrize("lower", [b"t/", b"t/" + bytes(16) + b"\0", b"q/mail\0\0r\4" + bytes(24)])
@pytest.mark.parametrize("distance", [0, 12, 40, 80, 120, 180])
def test_the_end_of_what_cannot_be_read_is_found(lower, distance):
    end, upper = key_behind(lower, 8 * 150 + distance), lower[:1] + b"0"
    asked = []

    def can_read(key):
        asked.append(key)
        return key >= end

    found = readable_from(can_read, lower, upper)
    assert len(asked) <= PROBES_MAX
    assert end <= found <= key_behind(end, 8 * 150 + distance - 16)


def test_where_nothing_can_be_read_the_range_is_lost():
    assert readable_from(lambda _: False, b"t/", b"t0") == b"t0"
