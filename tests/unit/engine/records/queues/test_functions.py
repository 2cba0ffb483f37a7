"""Rows of published functions: bytes, keys, and what is refused."""

import pytest

from lodeq.engine.records import keyspace as ks
from lodeq.engine.records.queues import functions as fn
from lodeq.errors import RecordCorruptError


def test_a_row_comes_back_from_bytes_that_stay() -> None:
    row = fn.FunctionRow(1_700_000_000_173_312, b"\x81q\xa1s")
    raw = fn.encode_function(row)
    assert fn.decode_function(raw) == row
    assert raw[:4] == bytes((0x66, 1, 0, 0))
    assert raw[4:12] == row.published_us.to_bytes(8, "little")
    assert raw[12:-8] == row.facts


@pytest.mark.parametrize("at", [0, 1, 5, 12, -1])
def test_a_damaged_row_is_refused(at: int) -> None:
    raw = bytearray(fn.encode_function(fn.FunctionRow(1, b"\x80")))
    raw[at] ^= 1
    with pytest.raises(RecordCorruptError):
        fn.decode_function(bytes(raw))


@pytest.mark.parametrize("name", [b"send", b"a/b", b"a\0b", "größe".encode()])
def test_a_key_comes_back(name: bytes) -> None:
    key = fn.function_key(b"mail", name)
    assert fn.decode_function_key(key) == (b"mail", name)
    assert ks.FUNCTIONS <= key < ks.FUNCTIONS_END


@pytest.mark.parametrize("key", [b"m/f/", b"m/f/mail", b"m/f/mail\0", b"m/f/\0x", b"m/p/a\0b"])
def test_what_is_no_key_is_refused(key: bytes) -> None:
    with pytest.raises(RecordCorruptError):
        fn.decode_function_key(key)
