"""Values to bytes and back."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.errors import PayloadTooLargeError, RecordCorruptError, UsageError
from lodeq.repository.model import codec as module
from lodeq.repository.model.codec import decode_headers, decode_value, encode_headers, encode_value

LIMIT = 1 << 20
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
)
plain = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=10,
)


class Json:
    """A codec of the user's own."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


def back_and_forth(value: Any, codec: Any = None) -> Any:
    kind, data = encode_value(value, codec, LIMIT, "payload")
    return decode_value(kind, 0, data, len(data), codec)


@given(plain)
def test_plain_data_comes_back(value: Any) -> None:
    assert back_and_forth(value) == value


@pytest.mark.parametrize("value", [b"", b"raw", bytearray(b"raw"), memoryview(b"raw")])
def test_bytes_are_stored_as_they_are(value: Any) -> None:
    assert encode_value(value, Json(), LIMIT, "payload") == (module.RAW, bytes(value))
    assert back_and_forth(value) == bytes(value)


def test_aware_times_come_back() -> None:
    when = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert back_and_forth({"at": when}) == {"at": when}


def test_tuples_come_back_as_lists_or_where_they_are_keys_as_tuples() -> None:
    assert back_and_forth((1, 2)) == [1, 2]
    assert back_and_forth({(1, 2): "x"}) == {(1, 2): "x"}
    assert back_and_forth({1: "x"}) == {1: "x"}


def test_a_codec_is_asked_for_what_is_not_bytes() -> None:
    assert encode_value({"a": 1}, Json(), LIMIT, "payload") == (module.CODEC, b'{"a": 1}')
    assert back_and_forth({"a": 1}, Json()) == {"a": 1}
    assert decode_value(module.CODEC, 0, b'{"a": 1}', 8, None) == b'{"a": 1}'


def test_a_codec_that_returns_no_bytes_is_a_usage_error() -> None:
    class Wrong(Json):
        def encode(self, value: Any) -> Any:
            return "text"

    with pytest.raises(UsageError, match="not bytes"):
        encode_value({}, Wrong(), LIMIT, "payload")


def test_a_codecs_own_errors_pass_through() -> None:
    with pytest.raises(TypeError):
        encode_value({"a": object()}, Json(), LIMIT, "payload")
    with pytest.raises(json.JSONDecodeError):
        decode_value(module.CODEC, 0, b"{", 1, Json())


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        msgpack.Timestamp(1 << 60, 0),
        msgpack.Timestamp(-(1 << 60), 0),
    ],
    ids=["past 9999", "before 1", "timestamp past 9999", "timestamp before 1"],
)
def test_a_time_that_could_not_be_read_is_a_usage_error(value: Any) -> None:
    with pytest.raises(UsageError, match="payload"):
        encode_value({"at": [value]}, None, LIMIT, "payload")
    with pytest.raises(UsageError, match="headers"):
        encode_headers({"at": value}, LIMIT)


def test_the_first_and_the_last_moment_come_back() -> None:
    for when in (datetime.min, datetime.max, datetime(1969, 12, 31), datetime(2600, 1, 1)):  # noqa: DTZ001, DTZ901
        assert back_and_forth([when.replace(tzinfo=UTC)]) == [when.replace(tzinfo=UTC)]
    assert back_and_forth([b"\xc7\x0c\xff"]) == [b"\xc7\x0c\xff"]  # bytes that look like one


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, 1 << 64, datetime(2030, 1, 1), nested(2000), "\ud800"],  # noqa: DTZ001
    ids=["object", "set", "huge int", "naive time", "deep", "surrogate"],
)
def test_what_cannot_be_packed_is_a_usage_error(value: Any) -> None:
    with pytest.raises(UsageError, match="payload"):
        encode_value(value, None, LIMIT, "payload")


def test_the_limit_is_exact_and_told() -> None:
    assert encode_value(b"x" * 10, None, 10, "result")[1] == b"x" * 10
    with pytest.raises(PayloadTooLargeError, match="result is 11 bytes, the limit is 10") as caught:
        encode_value(b"x" * 11, None, 10, "result")
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (11, 10)


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"\x92\x01",
        b"\x01\x01",
        b"\xa5ab",
        b"\x81\x80\x01",
        b"\xa1\xff",
        msgpack.packb(msgpack.Timestamp(1 << 60, 0)),
        b"\x91" * 5000,
    ],
)
def test_damage_is_told_as_damage(data: bytes) -> None:
    with pytest.raises(RecordCorruptError):
        decode_value(module.MSGPACK, 0, data, len(data), None)


@given(st.binary(max_size=60))
def test_random_bytes_decode_or_are_damage(data: bytes) -> None:
    try:
        decode_value(module.MSGPACK, 0, data, len(data), None)
    except RecordCorruptError:
        pass


@given(st.dictionaries(st.text(max_size=5), scalars, max_size=5))
def test_headers_come_back(headers: dict[str, Any]) -> None:
    assert decode_headers(encode_headers(headers, LIMIT)) == headers


def test_no_headers_take_no_bytes() -> None:
    assert encode_headers(None, 0) == encode_headers({}, 0) == b""
    assert decode_headers(b"") == {}


@pytest.mark.parametrize("headers", [{1: "a"}, [("a", 1)], "text", 5])
def test_headers_are_a_mapping_of_str(headers: Any) -> None:
    with pytest.raises(UsageError, match="headers"):
        encode_headers(headers, LIMIT)


def test_headers_have_a_limit_and_are_a_map() -> None:
    with pytest.raises(PayloadTooLargeError, match="headers"):
        encode_headers({"a": "x" * 100}, 50)
    with pytest.raises(RecordCorruptError):
        decode_headers(msgpack.packb([1]))


def test_what_cannot_be_packed_is_named_by_its_place() -> None:
    with pytest.raises(UsageError, match=r"^payload\.values\(\)\[1\]\[1\] cannot be packed"):
        encode_value({"b": 1, "a": [1, object()]}, None, 1000, "payload")
    with pytest.raises(UsageError, match=r"^payload\[0\] .*give it a time zone: datetime.now"):
        encode_value([datetime.fromisoformat("2026-01-02T05:00:00")], None, 1000, "payload")
