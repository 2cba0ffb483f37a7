"""Indexes and manifests of the Rust queue: read as written, or refused."""

import contextlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.errors import SegmentCorruptError, UsageError
from lodeq.segments.formats.rust_queue.index import (
    ActiveFile,
    Index,
    IndexEntry,
    Manifest,
    SealedFile,
    build_index,
    decode_current,
    decode_index,
    decode_manifest,
    encode_current,
    encode_index,
    encode_manifest,
)
from lodeq.segments.item import Hole, Record

U64 = st.integers(0, (1 << 64) - 1)
PATHS = st.text(st.characters(codec="utf-8"), max_size=30)
MANIFESTS = st.builds(
    Manifest,
    U64,
    st.builds(ActiveFile, st.integers(0, (1 << 32) - 1), U64, U64, PATHS),
    st.lists(st.builds(SealedFile, U64, U64, U64, PATHS), max_size=4).map(tuple),
)
INDEX = Index(10, (IndexEntry(0, 0), IndexEntry(10, 300), IndexEntry(25, 900)))
MANIFEST = Manifest(3, ActiveFile(1, 12, 1, "/q/b"), (SealedFile(0, 1, 31, "/q/a"),))


@given(U64, st.lists(st.tuples(U64, U64), max_size=5, unique_by=(lambda t: t[0], lambda t: t[1])))
def test_an_index_is_read_as_written(interval: int, pairs: list[tuple[int, int]]) -> None:
    both = zip(sorted(one for one, _ in pairs), sorted(two for _, two in pairs), strict=True)
    index = Index(interval, tuple(IndexEntry(*pair) for pair in both))
    assert decode_index(encode_index(index)) == index


@given(MANIFESTS)
def test_a_manifest_is_read_as_written(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest


@given(st.binary(max_size=400))
def test_anything_else_is_refused(raw: bytes) -> None:
    for decode in (decode_index, decode_manifest, decode_current):
        with contextlib.suppress(SegmentCorruptError):
            decode(raw)


def test_every_cut_is_noticed() -> None:
    for whole, decode in (
        (encode_index(INDEX), decode_index),
        (encode_manifest(MANIFEST), decode_manifest),
        (encode_current(2), decode_current),
    ):
        for cut in range(len(whole)):
            with pytest.raises(SegmentCorruptError):
                decode(whole[:cut])  # type: ignore[operator]


def test_every_wrong_bit_of_a_manifest_is_noticed_where_it_is_covered() -> None:
    whole = encode_manifest(MANIFEST)
    for position in [*range(8), *range(16, 24), *range(32, len(whole))]:
        for bit in range(8):
            rotten = bytearray(whole)
            rotten[position] ^= 1 << bit
            with pytest.raises(SegmentCorruptError):
                decode_manifest(bytes(rotten))


def test_a_count_of_entries_is_not_believed_blindly() -> None:
    raw = bytearray(encode_index(INDEX))
    raw[8:16] = b"\xff" * 8
    with pytest.raises(SegmentCorruptError, match="ends before"):
        decode_index(bytes(raw))
    body = encode_manifest(Manifest())[32:]
    head = bytearray(encode_manifest(Manifest())[:32])
    head[16:20] = b"\xff" * 4
    with pytest.raises(SegmentCorruptError, match="ends before"):
        decode_manifest(bytes(head) + body)


def test_entries_that_were_not_counted_are_left_alone() -> None:
    raw = bytearray(encode_index(INDEX))
    raw[8] = 2
    assert decode_index(bytes(raw)) == Index(10, INDEX.entries[:2])


def test_entries_in_the_header_are_noticed() -> None:
    """What the original does after a flush by size or time; its own reader then fails."""
    raw = bytearray(encode_index(INDEX))
    raw[16:32] = raw[272:288]
    with pytest.raises(SegmentCorruptError, match="header"):
        decode_index(bytes(raw[:-16]))


@pytest.mark.parametrize("pair", [(10, 400), (20, 300), (5, 400), (20, 100)])
def test_entries_ascend(pair: tuple[int, int]) -> None:
    index = Index(10, (*INDEX.entries[:2], IndexEntry(*pair)))
    with pytest.raises(SegmentCorruptError, match="ascend"):
        decode_index(encode_index(index))


def test_what_does_not_fit_is_refused() -> None:
    for index in (Index(-1), Index(1 << 64), Index(1, (IndexEntry(0, -1),))):
        with pytest.raises(UsageError):
            encode_index(index)
    for manifest in (
        Manifest(-1),
        Manifest(0, ActiveFile(1 << 32)),
        Manifest(0, ActiveFile(path="p" * 65_536)),
        Manifest(0, ActiveFile(path="\ud800")),
        Manifest(sealed=(SealedFile(0, 0, 1 << 64, ""),)),
    ):
        with pytest.raises(UsageError):
            encode_manifest(manifest)
    for slot in (0, 3):
        with pytest.raises(UsageError):
            encode_current(slot)
    with pytest.raises(UsageError):
        build_index([], 0)


def test_what_a_manifest_may_not_be() -> None:
    whole = encode_manifest(MANIFEST)
    body = whole[32:] + b"more"
    longer = whole[:20] + zlib.crc32(body).to_bytes(4, "little") + whole[24:32] + body
    for raw, reason in (
        (b"QMFX" + whole[4:], "no manifest"),
        (whole[:4] + b"\2" + whole[5:], "version 2"),
        (longer, "bytes follow"),
    ):
        with pytest.raises(SegmentCorruptError, match=reason):
            decode_manifest(raw)


def test_a_path_that_is_longer_than_the_rest_is_noticed() -> None:
    body = encode_manifest(Manifest(0, ActiveFile(path="ab")))[32:-1]
    whole = encode_manifest(Manifest())
    raw = whole[:20] + zlib.crc32(body).to_bytes(4, "little") + whole[24:32] + body
    with pytest.raises(SegmentCorruptError, match="ends before"):
        decode_manifest(raw)


def test_a_path_that_is_not_utf8_is_read_as_far_as_it_is() -> None:
    whole = encode_manifest(Manifest(0, ActiveFile(path="ab")))
    body = whole[32:].replace(b"ab", b"a\xff")
    raw = whole[:20] + zlib.crc32(body).to_bytes(4, "little") + whole[24:32] + body
    assert decode_manifest(raw).active.path == "a\N{REPLACEMENT CHARACTER}"


def test_an_index_is_made_from_records() -> None:
    """Also of a file that is not the first, which the original leaves without entries."""
    items = [Record(offset=20 * i, size=20, payload=b"", sequence=100 + i) for i in range(25)]
    assert build_index([*items, Hole(500, 10)], 10) == Index(
        10, (IndexEntry(100, 0), IndexEntry(110, 200), IndexEntry(120, 400))
    )
    assert build_index([Record(offset=0, size=20, payload=b"", sequence=-1)], 10) == Index(10)
