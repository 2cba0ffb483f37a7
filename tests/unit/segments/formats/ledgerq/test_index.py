"""LedgerQ's index, and the way on behind damage."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.errors import SegmentCorruptError
from lodeq.segments.checksums import crc32c
from lodeq.segments.formats.ledgerq import index
from lodeq.segments.formats.ledgerq.codec import LedgerQ, SegmentHeader, encode, encode_header
from lodeq.segments.formats.ledgerq.index import (
    Hunt,
    Index,
    IndexEntry,
    decode_index,
    encode_index,
    index_damage,
    is_indexed,
)
from lodeq.segments.item import Damage, Record
from lodeq.segments.source import BytesSource

VECTORS = json.loads(
    (Path(__file__).resolve().parents[4] / "vectors" / "ledgerq.json").read_text("utf-8")
)
NOW = VECTORS["timestamp_ns"]
GOLDEN = bytes.fromhex(VECTORS["records"]["IDX base=1 1 entry (1,64,ts)"])
INDEX = Index(1, (IndexEntry(1, 64, NOW),))
THREE = Index(7, (IndexEntry(10, 64, NOW), IndexEntry(20, 5000, NOW), IndexEntry(30, 9100, NOW)))


class TestIndex:
    def test_golden(self) -> None:
        assert decode_index(GOLDEN) == INDEX
        assert encode_index(INDEX) == GOLDEN

    @given(
        st.integers(0, 2**64 - 1),
        st.lists(st.integers(1, 2**64 - 1), unique=True, max_size=5).map(sorted),
        st.lists(st.integers(64, 2**63), unique=True, min_size=5, max_size=5).map(sorted),
    )
    def test_what_is_encoded_comes_back(self, base, ids, offsets) -> None:
        entries = [IndexEntry(*pair, NOW) for pair in zip(ids, offsets, strict=False)]
        index = Index(base, tuple(entries))
        assert decode_index(encode_index(index)) == index

    def test_an_empty_segment_has_an_empty_index(self) -> None:
        assert len(encode_index(Index(1, ()))) == 32
        assert decode_index(encode_index(Index(1, ()))) == Index(1, ())

    def test_every_cut_and_every_flip_of_the_header_show(self) -> None:
        for size in range(len(GOLDEN)):
            with pytest.raises(SegmentCorruptError):
                decode_index(GOLDEN[:size])
        for at in range(32):
            bad = bytearray(GOLDEN)
            bad[at] ^= 1 << at % 8
            with pytest.raises(SegmentCorruptError):
                decode_index(bytes(bad))
        with pytest.raises(SegmentCorruptError):
            decode_index(GOLDEN + b"\0")

    @pytest.mark.parametrize("at", [4, 6, 24])
    def test_another_version(self, at: int) -> None:
        raw = bytearray(GOLDEN[:28])
        raw[at] ^= 4
        with pytest.raises(SegmentCorruptError, match="version"):
            decode_index(bytes(raw) + crc32c(bytes(raw)).to_bytes(4, "little") + GOLDEN[32:])

    @pytest.mark.parametrize("entry", [(10, 6000), (11, 64), (9, 70), (0, 100)])
    def test_entries_ascend(self, entry) -> None:
        raw = encode_index(Index(1, (IndexEntry(10, 64, NOW), IndexEntry(*entry, NOW))))
        with pytest.raises(SegmentCorruptError) as caught:
            decode_index(raw)
        assert caught.value.offset == 56

    def test_where_to_start(self) -> None:
        found = [THREE.offset_before(number) for number in (9, 10, 19, 20, 25, 30, 99)]
        assert found == [None, 64, 64, 5000, 5000, 9100, 9100]

    def test_which_records_have_an_entry(self) -> None:
        assert [is_indexed(*pair) for pair in [(64, None), (4159, 64), (4160, 64)]] == [
            True,
            False,
            True,
        ]


class TestDamage:
    def test_none(self) -> None:
        records = [IndexEntry(n, 64 + n, NOW) for n in range(10)]
        assert index_damage(Index(1, (records[0], records[5])), 1, records) == []
        assert index_damage(Index(1, ()), 1, records) == []

    def test_entries_without_their_record(self) -> None:
        records = [IndexEntry(10, 64, NOW), IndexEntry(20, 5001, NOW), IndexEntry(30, 9100, 5)]
        assert index_damage(THREE, 7, records) == [
            Damage(56, 24, "no record 20 at 5000"),
            Damage(80, 24, "no record 30 at 9100"),
        ]
        assert len(index_damage(THREE, 7, [])) == 3

    def test_of_another_segment(self) -> None:
        assert index_damage(Index(7, ()), 1, []) == [Damage(8, 8, "index of segment 7, not 1")]


def record(number: int, payload: bytes = b"hello") -> bytes:
    return encode(Record(0, 0, payload, sequence=number, timestamp_ns=NOW))


def hunt(raw: bytes) -> Hunt:
    return Hunt(BytesSource(raw), lambda at: LedgerQ().decode(raw[at:], at))


class TestHunt:
    @pytest.mark.parametrize("size", [0, 1, 100, 300_000])
    def test_the_next_record_whatever_lies_before_it(self, size: int) -> None:
        head = encode_header(SegmentHeader(1, NOW))
        junk = random.Random(size).randbytes(size)
        raw = head + b"\xff" + junk + record(1)
        assert hunt(raw).next_good(64) == 65 + size

    def test_at_the_seams_of_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(index, "_BLOCK", 64)
        for size in range(1, 200):
            raw = b"\xff" * size + record(1) + b"\xff" * 5
            assert hunt(raw).next_good(0) == size

    def test_nothing(self) -> None:
        raw = b"\xff" * 500
        assert hunt(raw).next_good(0) == 500

    def test_what_a_checksum_may_cost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It grows with the bytes passed, so a large record far behind is still found."""
        monkeypatch.setattr(index, "_BLOCK", 64)
        monkeypatch.setattr(index, "_HUNT_BYTES", 100)
        large = record(1, bytes(2000))
        assert hunt(b"\xff" * 64 + large).next_good(0) == 64 + len(large)
        assert hunt(b"\xff" * 256 + large).next_good(0) == 256

    def test_torn_ends(self) -> None:
        whole = record(1)
        for size in range(1, len(whole) - 4):
            assert hunt(whole[:size]).is_torn(0), size
            assert hunt(whole[:size] + bytes(50)).is_torn(0) is not (size in (28, 29, 30)), size
        assert not hunt(b"\xff" * 20).is_torn(0)
        assert not hunt(b"\xff\x00\x00\x00\x09").is_torn(0)
        assert not hunt(b"\xff\x00\x00\x00\x01\x02").is_torn(0)

    def test_a_record_with_a_wrong_length_is_not_torn(self) -> None:
        raw = bytearray(record(1))
        raw[1] = 1
        assert not hunt(bytes(raw)).is_torn(0)
        raw[9] ^= 1
        assert hunt(bytes(raw)).is_torn(0)
