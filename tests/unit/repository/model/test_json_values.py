"""One rendering of whatever a payload may be: total, strict, and marked."""

import json
import math
from datetime import UTC, datetime

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.repository.model.codec import MSGPACK, decode_value, encode_value
from lodeq.repository.model.json_values import DEPTH_MAX, dumps, loads, marked, rendered


def strict(text):
    """Parse what any reader of JSON takes: no constants, no member twice."""

    def once(pairs):
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, object_pairs_hook=once, parse_constant=refuse)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.datetimes(timezones=st.just(UTC))
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4))
)
keys = scalars | st.tuples(scalars, scalars)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_every_payload_has_a_form(value):
    kind, data = encode_value(value, None, 1 << 20, "payload")
    decoded = decode_value(kind, 0, data, len(data), None)
    found = rendered(decoded)
    shown = strict(dumps(decoded))
    assert shown == found.value
    if found.is_exact and kind == MSGPACK:
        assert msgpack.packb(shown) == msgpack.packb(decoded)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.text()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda i: st.lists(i) | st.dictionaries(st.text(), i),
    )
)
def test_what_json_holds_is_itself(value):
    assert rendered(value) == (value, True)
    assert strict(dumps(value)) == value


class Broken:
    def __str__(self):
        raise RuntimeError("no")


deep = []
for _ in range(900):
    deep = [deep]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (math.nan, "NaN"),
        ({1: 2, "1": 3}, [[1, 2], ["1", 3]]),
        ({(1, 2): 3}, [[[1, 2], 3]]),
        ({b"k": 1}, [[{"base64": "aw=="}, 1]]),
        ([b"x"], [{"base64": "eA=="}]),
        (msgpack.ExtType(5, b"x"), {"ext": 5, "base64": "eA=="}),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        ({3}, [3]),
        pytest.param(1 << 20_000, hex(1 << 20_000), id="a long number"),
        (Broken(), "<Broken>"),
    ],
)
def test_what_json_lacks_is_marked(value, shown):
    assert rendered(value) == (shown, False)
    assert marked("payload", value) == {"payload": shown, "payload_kind": "rendered"}


def test_what_is_too_deep_is_cut():
    found = rendered(deep)
    assert not found.is_exact
    assert dumps(deep) == "[" * DEPTH_MAX + '"\\u2026"' + "]" * DEPTH_MAX


def test_values_have_their_names():
    assert marked("payload", b"x") == {"payload_base64": "eA=="}
    assert marked("payload", {"base64": "eA=="}) == {"payload": {"base64": "eA=="}}


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "1e400", '{"a": -1e999}'])
def test_reading_is_strict(text):
    with pytest.raises(ValueError, match=r"not a JSON number|more than a float can hold"):
        loads(text)
    assert loads(b"[1e308, 1.5, 2]") == [1e308, 1.5, 2]
