"""Checksums of ranges from those of prefixes, and where records of type 4 can begin."""

from zlib import crc32

import hypothesis
import pytest
from hypothesis import strategies as st

from lodeq.segments.bodies.sqs import Sqs
from lodeq.segments.bodies.sqs_search import Sums, candidates, is_intact
from lodeq.segments.source import BytesSource
from lodeq.segments.window import ReadAhead

ID = bytes(range(16))
NOISE = b"".join(crc32(bytes([n & 0xFF, n >> 8])).to_bytes(4, "big") for n in range(50_000))


@pytest.mark.parametrize("before", [0, 1, 64, 4096, 4097, 60_000])
@pytest.mark.parametrize("size", [0, 1, 4071, 4072, 40_000, 131_072])
def test_a_record_holds_wherever_it_lies(before: int, size: int) -> None:
    record = Sqs().encode(ID, NOISE[:size])
    data = bytearray(NOISE[-before:] if before else b"") + record + b"behind"
    assert is_intact(record)
    assert Sums(BytesSource(bytes(data))).hold(before, len(record))
    for at in {0, 3, 20, 21, 24, len(record) // 2, len(record) - 1}:
        data[before + at] ^= 1
        assert not Sums(BytesSource(bytes(data))).hold(before, len(record)), at
        data[before + at] ^= 1


def test_it_gives_up_after_too_many_that_do_not() -> None:
    data = bytes.fromhex("0400000019") + bytes(20)
    sums = Sums(BytesSource(data))
    for _ in range(1024):
        assert not sums.is_spent()
        assert not sums.hold(0, len(data))
    assert sums.is_spent()


def reference(data: bytes, start: int) -> list[tuple[int, int]]:
    found = []
    for at in range(start, len(data) - 4):
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        if data[at] == 4 and 25 <= size <= len(data) - at:
            found.append((at, size))
    return found


@hypothesis.given(
    st.lists(st.sampled_from([b"\4", b"\0", b"\0\0\1\x20", b"\4\0\0\0\x19", b"\x7f" * 50])),
    st.integers(0, 100),
)
def test_candidates_are_all_that_fit(parts: list[bytes], start: int) -> None:
    data = b"".join(parts)
    assert list(candidates(ReadAhead(BytesSource(data)), start)) == reference(data, start)


def test_candidates_may_overlap_in_large_files() -> None:
    class Large(BytesSource):
        """It says it goes on for 128 MiB."""

        def __init__(self, data: bytes) -> None:
            super().__init__(data)
            self.data, self.size = data, 1 << 27

        def read(self, offset: int, count: int) -> bytes:
            return self.data[offset : offset + count].ljust(min(count, self.size - offset), b"\xff")

    found = candidates(ReadAhead(Large(b"\4\4\4\4\4\4")), 0)
    assert [next(found), next(found)] == [(0, 0x04040404), (1, 0x04040404)]
