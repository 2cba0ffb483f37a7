"""The checksum is the one of ECMA-182, in any number of pieces."""

from hypothesis import given
from hypothesis import strategies as st

from lodeq.segments.formats.crc64 import crc64


def by_the_book(data: bytes) -> int:
    """Division of polynomials, a bit at a time."""
    crc = 0
    for byte in data:
        crc ^= byte << 56
        for _ in range(8):
            crc = crc << 1 ^ (0x1_42F0E1EBA9EA3693 if crc >> 63 else 0)
    return crc


def test_the_published_check() -> None:
    assert crc64(b"123456789") == 0x6C40DF5F0B497347


def test_zeros_do_not_show() -> None:
    assert crc64(b"") == crc64(bytes(100)) == 0
    assert crc64(bytes(100) + b"a") == crc64(b"a")


@given(st.binary(max_size=80))
def test_it_is_that_of_the_definition(data: bytes) -> None:
    assert crc64(data) == by_the_book(data)


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_it_goes_on_from_piece_to_piece(pieces: list[bytes]) -> None:
    crc = 0
    for piece in pieces:
        crc = crc64(piece, crc)
    assert crc == crc64(b"".join(pieces))
