"""The window: what is read of a source, and how much."""

from itertools import pairwise

import hypothesis
from hypothesis import strategies as st

from lodeq.segments.source import BytesSource
from lodeq.segments.window import ReadAhead

DATA = bytes(range(251)) * 4000  # a megabyte in which no two places look alike


class Counting(BytesSource):
    """Bytes that know what was read of them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, count: int) -> bytes:
        data = super().read(offset, count)
        self.reads.append((offset, len(data)))
        return data


@hypothesis.given(st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 300_000))))
def test_it_reads_what_its_source_reads(reads: list[tuple[int, int]]) -> None:
    window, source = ReadAhead(BytesSource(DATA)), BytesSource(DATA)
    assert window.size == source.size
    for offset, count in reads:
        assert window.read(offset, count) == source.read(offset, count)
        assert window.peek(offset) == source.read(offset, 1)


def test_what_the_source_has_got_since_is_not_part_of_it() -> None:
    source = BytesSource(DATA)
    source.size = 1000
    window = ReadAhead(source)
    source.size = 2000
    assert window.read(990, 20) == DATA[990:1000]
    assert window.read(1000, 20) == window.read(1500, 20) == b""
    assert sum(len(block) for _, block in window.blocks(0)) == 1000


def test_small_reads_one_behind_the_other_become_few() -> None:
    source = Counting(DATA)
    window = ReadAhead(source)
    for offset in range(0, len(DATA), 100):
        window.read(offset, 5)
    assert len(source.reads) < 12
    assert sum(count for _, count in source.reads) < 1.1 * len(DATA)


def test_a_hop_reads_a_page() -> None:
    source = Counting(DATA)
    window = ReadAhead(source)
    for offset in range(0, len(DATA), 100_000):
        window.read(offset, 5)
    assert max(count for _, count in source.reads[1:]) == 4096


def test_large_reads_are_handed_through() -> None:
    source = Counting(DATA)
    window = ReadAhead(source)
    window.read(0, 5)
    window.read(0, 500_000)
    window.read(8, 5)
    assert [count for _, count in source.reads] == [8192, 500_000]


def test_a_peek_does_not_move_the_window() -> None:
    source = Counting(DATA)
    window = ReadAhead(source)
    window.read(0, 5)
    assert window.peek(900_000) == DATA[900_000:900_001]
    window.read(8, 5)
    assert source.reads[1:] == [(900_000, 1)]


@hypothesis.given(st.integers(0, 2000), st.integers(0, 10), st.integers(0, 2001))
def test_blocks_cover_all_and_overlap(size: int, overlap: int, start: int) -> None:
    blocks = list(ReadAhead(BytesSource(DATA[:size])).blocks(start, overlap))
    for at, block in blocks:
        assert block == DATA[at : at + len(block)]
    for (before_at, before), (at, _) in pairwise(blocks):
        assert at == before_at + len(before) - overlap
    if start < size:
        assert blocks[0][0] == start
        assert blocks[-1][0] + len(blocks[-1][1]) == size
    else:
        assert not blocks


def test_runs_are_counted_over_the_borders_of_blocks() -> None:
    for count in (0, 1, 63, 64, 65, 4095, 4096, 300_000):
        window = ReadAhead(BytesSource(b"x" + bytes(count) + b"y"))
        assert window.run(1, b"\0") == count
        assert window.run(1 + count, b"y") == 1
