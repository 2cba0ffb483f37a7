"""The journal's log file: what is written comes back, whatever is torn or flipped beside it."""

import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq import PayloadTooLargeError, SegmentCorruptError
from lodeq.segments.item import Damage, Item, Record, Torn
from lodeq.segments.journal import log_format as codec
from lodeq.segments.journal.log_walk import BLOCK_BYTES, JournalLog, find_frame
from lodeq.segments.source import BytesSource

LOG = JournalLog()
NOW_US = 1_700_000_000_000_000
HEADER = codec.encode_header(1, NOW_US)
FRAMES = [
    codec.encode_frame(1, NOW_US, [b"hi"]),
    codec.encode_frame(2, NOW_US + 1, [b"", b"x" * 50]),
    codec.encode_frame(4, NOW_US + 2, [b"last"]),
]
PAYLOADS = [[b"hi"], [b"", b"x" * 50], [b"last"]]
WHOLE = HEADER + b"".join(FRAMES)
BEGINS = [64, 64 + len(FRAMES[0]), 64 + len(FRAMES[0]) + len(FRAMES[1])]
payloads = st.lists(st.binary(max_size=100), min_size=1, max_size=20)
texts = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


def salvage(data: bytes) -> list[Item]:
    return list(LOG.salvage(BytesSource(data)))


def told(items: Sequence[Item]) -> list[bytes]:
    return [item.payload for item in items if isinstance(item, Record)]


def decode(frame: bytes) -> list[codec.LogRecord]:
    return codec.decode_frame(codec.decode_head(frame), frame)


@given(st.integers(1, 1 << 60), st.integers(0, 1 << 60), payloads)
def test_a_batch_comes_back(first: int, time_us: int, batch: list[bytes]) -> None:
    frame = codec.encode_frame(first, time_us, batch)
    assert decode(frame) == [
        codec.LogRecord(first + i, payload, time_us) for i, payload in enumerate(batch)
    ]


@given(
    st.lists(
        st.tuples(st.binary(max_size=300), texts, st.integers(0, 9), st.integers(0, 9)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([0, codec.ZLIB]),
)
def test_headers_times_and_expiry_come_back(
    rows: list[tuple[bytes, dict[str, str], int, int]], compression: int
) -> None:
    stored = [zlib.compress(row[0]) if compression else row[0] for row in rows]
    stored = [s if len(s) < len(row[0]) else row[0] for s, row in zip(stored, rows, strict=True)]
    frame = codec.encode_frame(
        7,
        5,
        stored,
        metas=[codec.encode_meta(h, t, x) for _, h, t, x in rows],
        compression=compression,
        raws=[len(row[0]) for row in rows] if compression else (),
    )
    assert decode(frame) == [
        codec.LogRecord(7 + i, p, t or 5, h, x) for i, (p, h, t, x) in enumerate(rows)
    ]


def test_a_bomb_stops_at_the_size_it_declares() -> None:
    packed = zlib.compress(bytes(1 << 20))
    frame = codec.encode_frame(1, 1, [packed], compression=codec.ZLIB, raws=[5000])
    with pytest.raises(SegmentCorruptError, match="not the declared one"):
        decode(frame)


def test_what_no_frame_holds_is_refused() -> None:
    for batch in ([], [b""] * 65_536, [bytes(9 << 20)] * 2):
        with pytest.raises(PayloadTooLargeError):
            codec.encode_frame(1, 1, batch)
    large = codec.encode_frame(1, 1, [bytes(17 << 20)])
    assert len(decode(large)[0].payload) == 17 << 20


def test_a_scan_tells_all() -> None:
    items = list(LOG.scan(BytesSource(WHOLE + codec.encode_end(5, NOW_US))))
    assert told(items) == [p for batch in PAYLOADS for p in batch]
    assert [item.offset for item in items] == [BEGINS[0], BEGINS[1], BEGINS[1], BEGINS[2]]
    heads = list(LOG.scan(BytesSource(WHOLE), bodies=False))
    assert [(h.offset, h.size) for h in heads] == [
        (at, len(f)) for at, f in zip(BEGINS, FRAMES, strict=True)
    ]
    assert told(list(LOG.scan(BytesSource(WHOLE), BEGINS[2]))) == [b"last"]


def test_cut_anywhere_it_keeps_what_is_whole(subtests: pytest.Subtests) -> None:
    for cut in range(len(WHOLE) + 1):
        with subtests.test(cut=cut):
            whole = [
                p for at, f, p in zip(BEGINS, FRAMES, PAYLOADS, strict=True) if at + len(f) <= cut
            ]
            want = [p for batch in whole for p in batch]
            for rest in (b"", bytes(len(WHOLE) - cut)):
                items = salvage(WHOLE[:cut] + rest)
                assert told(items) == want
                if (
                    not 0 < len(rest) < codec.CHECK_BYTES
                ):  # so few zeros may be flipped bits as well
                    assert not any(isinstance(i, Damage) for i in items)
            assert told(salvage(WHOLE[:cut] + b"\xa5" * (len(WHOLE) - cut))) == want


def test_a_flipped_bit_costs_its_frame_and_no_other(subtests: pytest.Subtests) -> None:
    for at in range(64, len(WHOLE)):
        with subtests.test(at=at):
            data = bytearray(WHOLE)
            data[at] ^= 1 << at % 8
            bad = max(i for i, begin in enumerate(BEGINS) if begin <= at)
            items = salvage(bytes(data))
            assert told(items) == [p for i, batch in enumerate(PAYLOADS) if i != bad for p in batch]
            lost = [i for i in items if isinstance(i, Damage | Torn)]
            assert [(i.offset, i.size) for i in lost] == [(BEGINS[bad], len(FRAMES[bad]))]
            assert LOG.verify(BytesSource(bytes(data)))
            with pytest.raises(SegmentCorruptError) as told_at:
                list(LOG.scan(BytesSource(bytes(data))))
            assert told_at.value.offset == BEGINS[bad]


def test_a_damaged_header_costs_nothing(subtests: pytest.Subtests) -> None:
    for at in range(64):
        with subtests.test(at=at):
            data = bytearray(WHOLE)
            data[at] ^= 0x10
            assert len(told(salvage(bytes(data)))) == 4
            assert [d.offset for d in LOG.verify(BytesSource(bytes(data)))] == [0]
            with pytest.raises(SegmentCorruptError):
                list(LOG.scan(BytesSource(bytes(data))))


def test_verify_tells_of_records_that_are_missing() -> None:
    assert LOG.verify(BytesSource(WHOLE)) == []
    (gap,) = LOG.verify(BytesSource(HEADER + FRAMES[0] + FRAMES[2]))
    assert gap == Damage(BEGINS[1], 0, "record 4 where 2 should be")
    (torn,) = LOG.verify(BytesSource(WHOLE[:-1]))
    assert torn == Damage(BEGINS[2], len(FRAMES[2]) - 1, "torn tail")


@pytest.mark.slow
def test_a_frame_across_blocks_is_found() -> None:
    for before in range(BLOCK_BYTES - 70, BLOCK_BYTES + 10, 7):
        data = HEADER + b"F\x01" * (before // 2) + b"?" * (before % 2) + FRAMES[0]
        assert find_frame(BytesSource(data), 64) == 64 + before
    assert find_frame(BytesSource(HEADER + b"F\x01" * BLOCK_BYTES), 64) is None


@given(st.binary(max_size=300), st.booleans())
def test_nothing_but_our_error_escapes(noise: bytes, is_whole: bool) -> None:
    data = HEADER + (FRAMES[0] if is_whole else b"") + noise
    items = salvage(data)
    assert sum(item.size for item in items) == len(data) - 64
    try:
        list(LOG.scan(BytesSource(data)))
        LOG.decode(noise)
    except SegmentCorruptError:
        pass


def test_a_whole_frame_behind_one_whose_size_leads_nowhere_is_found() -> None:
    data = HEADER + FRAMES[0][:-1] + FRAMES[1] + codec.encode_end(4, NOW_US)
    items = salvage(data)
    assert told(items) == PAYLOADS[1]
    assert items[0] == Damage(64, len(FRAMES[0]) - 1, "checksum of a frame")


def test_frames_within_a_damaged_record_are_not_brought_up() -> None:
    inner = codec.encode_frame(7, NOW_US, [b"inner"])
    outer = bytearray(codec.encode_frame(1, NOW_US, [inner]))
    outer[-1] ^= 1
    for rest, want in ((b"", []), (FRAMES[1], PAYLOADS[1])):
        assert told(salvage(HEADER + bytes(outer) + rest)) == want


def test_records_that_would_not_fit_memory_are_refused() -> None:
    zeros = zlib.compress(bytes(4 << 20))
    frame = codec.encode_frame(1, 1, [zeros] * 64, raws=[4 << 20] * 64, compression=codec.ZLIB)
    with pytest.raises(SegmentCorruptError, match="too large"):
        decode(frame)
