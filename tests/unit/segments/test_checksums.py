"""The checksums are those of their definitions, in any number of pieces."""

import random
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lodeq
from lodeq.segments import checksums
from lodeq.segments.checksums import crc32, crc32c, crc64

# RFC 3720, B.4
KNOWN = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


def crc32c_bit_by_bit(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def crc64_bit_by_bit(data: bytes) -> int:
    """Division of polynomials, a bit at a time."""
    crc = 0
    for byte in data:
        crc ^= byte << 56
        for _ in range(8):
            crc = crc << 1 ^ (0x1_42F0E1EBA9EA3693 if crc >> 63 else 0)
    return crc


BOTH = pytest.mark.parametrize(
    ("compute", "definition"), [(crc32c, crc32c_bit_by_bit), (crc64, crc64_bit_by_bit)]
)


@pytest.mark.parametrize(("data", "expected"), KNOWN)
def test_known_values(data, expected) -> None:
    assert crc32c(data) == expected


def test_the_published_check() -> None:
    assert crc64(b"123456789") == 0x6C40DF5F0B497347


def test_zeros_do_not_show() -> None:
    assert crc64(b"") == crc64(bytes(100)) == 0
    assert crc64(bytes(100) + b"a") == crc64(b"a")


@BOTH
@settings(max_examples=50)
@given(data=st.binary(max_size=100), cuts=st.lists(st.integers(0, 100), max_size=4))
def test_pieces_add_up(compute, definition, data, cuts) -> None:
    crc, last = 0, 0
    for cut in [*sorted(cuts), len(data)]:
        crc = compute(data[last:cut], crc)
        last = max(last, min(cut, len(data)))
    assert crc == compute(data) == definition(data)


@BOTH
def test_a_large_piece(compute, definition) -> None:
    data = random.Random(17).randbytes(100_000)
    assert compute(data) == compute(memoryview(data)) == definition(data)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "fastcrc", None)
    checksums._library.cache_clear()
    with pytest.raises(lodeq.UsageError, match=r"lodeq\[formats\]"):
        crc32c(b"x")
    monkeypatch.undo()
    checksums._library.cache_clear()
    assert crc32c(b"") == 0


@given(data=st.binary(max_size=300), before=st.integers(0, 2**32 - 1))
def test_crc32_is_that_of_zlib(data: bytes, before: int) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(memoryview(data), before) == zlib.crc32(data, before)


def test_crc32_needs_no_extra(monkeypatch) -> None:
    assert checksums._fastest_crc32() is not zlib.crc32
    monkeypatch.setitem(sys.modules, "fastcrc.crc32", None)
    assert checksums._fastest_crc32() is zlib.crc32
