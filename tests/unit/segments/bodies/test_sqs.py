"""Version 2: typed records, holes, and what is told of a file that is not what was written."""

import json
import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from lodeq import PayloadTooLargeError, SegmentCorruptError, UsageError
from lodeq.errors import LimitError
from lodeq.segments.bodies.sqs import HEADER, SIZE_MAX, Sqs
from lodeq.segments.item import Damage, Format, Hole, Item, Record, Torn
from lodeq.segments.source import BytesSource, FileSource

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "rabbitmq.json").read_text("utf-8"))
ACCEPT = {name: bytes.fromhex(text) for name, text in VECTORS["accept"].items()}
REJECT = {name: (bytes.fromhex(v["hex"]), v["reason"]) for name, v in VECTORS["reject"].items()}
ID = bytes(range(16))
SQS, THEIRS, CURRENT = Sqs(), Sqs(foreign=True), Sqs(is_current=True)
THEIR_HEADER = ACCEPT["v2_header"]


class Counting(FileSource):
    """A file that knows how much of it was read."""

    calls = total = 0

    def read(self, offset: int, count: int) -> bytes:
        data = super().read(offset, count)
        self.calls += 1
        self.total += len(data)
        return data


class Sparse:
    """Zeros, and a few bytes here and there."""

    def __init__(self, size: int, parts: dict[int, bytes]) -> None:
        self.size = size
        self.parts = parts

    def read(self, offset: int, count: int) -> bytes:
        data = bytearray(max(0, min(count, self.size - offset)))
        for at, part in self.parts.items():
            for index in range(max(at, offset), min(at + len(part), offset + len(data))):
                data[index - offset] = part[index - at]
        return bytes(data)


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def file(*records: bytes, header: bytes = HEADER) -> BytesSource:
    return BytesSource(header + b"".join(records))


def brief(items: Iterable[Item]) -> list[tuple[str, int, int]]:
    return [(type(item).__name__.lower(), item.offset, item.size) for item in items]


def kept(items: Iterable[Item]) -> dict[bytes, bytes]:
    return {item.id: item.payload for item in items if isinstance(item, Record)}


def scanned(source: BytesSource, codec: Sqs = SQS) -> tuple[list[Item], str]:
    """What a scan tells, and the reason why it stops, if it does."""
    items: list[Item] = []
    try:
        items.extend(codec.scan(source))
    except SegmentCorruptError as exc:
        return items, exc.reason
    return items, ""


def assert_tiled(items: list[Item], size: int) -> None:
    """The items cover all of it, in order; a bad header is one of them."""
    assert size in {0, 64} or items
    assert not items or items[0].offset in {0, 64}
    assert not items or items[-1].offset + items[-1].size == size
    assert all(item.size > 0 for item in items)
    assert all(a.offset + a.size == b.offset for a, b in pairwise(items))


def test_it_is_a_format() -> None:
    codec: Format = SQS
    assert (codec.name, codec.suffix, codec.data_offset) == ("sqs", ".sqs", 64)


class TestVectors:
    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_small_holes(self, count: int) -> None:
        assert SQS.holes(count) == ACCEPT[f"v2_small_hole_x{count}"]
        assert SQS.verify(file(SQS.holes(count))) == []

    @pytest.mark.parametrize("name", ["5", "6_inner_ff", "70_zero", "70_opaque"])
    def test_holes(self, name: str) -> None:
        hole = ACCEPT[f"v2_hole_{name}"]
        assert hole.startswith(SQS.holes(len(hole)))
        assert list(SQS.scan(file(hole))) == [Hole(64, len(hole))]
        assert SQS.verify(file(hole)) == []

    @pytest.mark.parametrize(
        ("name", "body"), [("empty", b""), ("abc", b"abc"), ("etf_abc", b"\x83m\0\0\0\x03abc")]
    )
    def test_messages(self, name: str, body: bytes) -> None:
        raw = ACCEPT[f"v2_message_{name}"]
        assert SQS.encode(ID, body, checksum=False) == raw
        assert SQS.decode(raw, 7) == Record(7, len(raw), body, id=ID, kind=3)

    @pytest.mark.parametrize(("name", "body"), [("empty", b""), ("abc", b"abc")])
    def test_checksums_are_those_of_variant_a(self, name: str, body: bytes) -> None:
        raw = ACCEPT[f"v2_msg_crc_{name}_A"]
        assert SQS.encode(ID, body) == SQS.encode_head(ID, body) + body == raw
        assert SQS.decode(raw, 7) == Record(7, len(raw), body, id=ID, kind=4)
        for other in "BC":
            with pytest.raises(SegmentCorruptError, match="bad_checksum"):
                SQS.decode(ACCEPT[f"v2_msg_crc_{name}_{other}"])

    def test_a_foreign_file(self) -> None:
        source = BytesSource(ACCEPT["v2_file_small"])
        items = list(THEIRS.scan(source))
        messages = [(item.size, item.offset) for item in items if isinstance(item, Record)]
        assert messages == [(24, 64), (21, 91), (22, 117)]
        assert brief(items)[1::2] == [("hole", 88, 3), ("hole", 112, 5)]
        assert list(THEIRS.salvage(source)) == items
        assert THEIRS.verify(source) == []

    @pytest.mark.parametrize("name", list(REJECT))
    def test_what_is_rejected(self, name: str) -> None:
        raw, reason = REJECT[name]
        reason = "torn_tail" if reason.startswith("torn") else reason
        before = THEIRS.encode(ID, b"abc", checksum=False)
        source = file(before, raw, header=THEIR_HEADER)
        found = THEIRS.verify(source)
        assert [item.reason for item in found] == [reason]
        assert 64 + len(before) <= found[0].offset < source.size
        assert kept(scanned(source, THEIRS)[0]) == {ID: b"abc"}

    def test_there_are_fourteen(self) -> None:
        assert len(REJECT) == 14


class TestHeader:
    def test_ours_differs_from_theirs(self) -> None:
        assert HEADER[:4] not in {b"RSQS", b"RCQS", b"RCQI"}
        assert len(HEADER) == len(THEIR_HEADER) == 64
        SQS.check_header(HEADER)
        THEIRS.check_header(THEIR_HEADER)

    @pytest.mark.parametrize("magic", [b"RSQS", b"RCQV", b"RCQS", b"RCQI", b"LDQI", bytes(4)])
    def test_another_magic_is_refused(self, magic: bytes) -> None:
        source = file(header=magic + HEADER[4:])
        assert scanned(source) == ([], "bad_header")
        assert SQS.verify(source) == list(SQS.salvage(source)) == [Damage(0, 64, "bad_header")]

    @pytest.mark.parametrize(
        ("magic", "is_read"),
        [
            (b"RSQS", True),
            (b"RCQV", True),
            (b"RCQS", False),
            (b"RCQI", False),
            (b"LDQS", False),
        ],
    )
    def test_foreign_magics(self, magic: bytes, is_read: bool) -> None:
        assert scanned(file(header=magic + HEADER[4:]), THEIRS) == (
            [],
            "" if is_read else "bad_header",
        )

    @pytest.mark.parametrize("at", [4, 5, 63])
    def test_another_version_and_reserved_bytes_are_refused(self, at: int) -> None:
        header = bytearray(HEADER)
        header[at] ^= 1
        record = SQS.encode(ID, b"abc")
        source = file(record, header=bytes(header))
        assert scanned(source) == ([], "bad_header")
        assert brief(SQS.salvage(source)) == [("damage", 0, 64), ("record", 64, 28)]

    @pytest.mark.parametrize("size", [0, 1, 63])
    def test_a_file_without_one_holds_nothing(self, size: int) -> None:
        source = BytesSource(HEADER[:size])
        torn = [Torn(0, size)] if size else []
        assert list(SQS.scan(source)) == list(SQS.salvage(source)) == torn

    def test_a_scan_from_a_record_on_needs_none(self) -> None:
        source = file(SQS.encode(ID, b"abc"), SQS.encode(id_of(1), b""), header=bytes(64))
        assert brief(SQS.scan(source, 64 + 28)) == [("record", 92, 25)]
        assert list(SQS.scan(source, source.size)) == []


class TestEncode:
    @hypothesis.given(st.binary(min_size=16, max_size=16), st.binary(max_size=100), st.booleans())
    def test_decode_is_the_inverse(self, id: bytes, body: bytes, checksum: bool) -> None:
        raw = SQS.encode(id, body, checksum=checksum)
        record = SQS.decode(raw + b"behind", 99)
        assert record == Record(99, len(raw), body, id=id, kind=4 if checksum else 3)

    def test_a_body_too_large_for_its_size(self) -> None:
        class Huge(bytes):
            def __len__(self) -> int:
                return SIZE_MAX - 24

        with pytest.raises(PayloadTooLargeError) as caught:
            SQS.encode(ID, Huge())
        assert caught.value.limit_bytes == SIZE_MAX - 25
        assert caught.value.size_bytes == SIZE_MAX - 24
        assert SQS.encode_head(ID, Huge(), checksum=False)[1:5] == b"\xff\xff\xff\xfc"

    def test_an_id_has_sixteen_bytes(self) -> None:
        with pytest.raises(UsageError, match="not 15"):
            SQS.encode(ID[1:], b"")

    def test_every_gap_can_be_written(self) -> None:
        assert SQS.holes(0) == b""
        end = SQS.encode(ID, b"")
        for gap in range(1, 300):
            source = file(SQS.holes(gap).ljust(gap, b"\xaa"), end)
            assert brief(SQS.scan(source)) == [("hole", 64, gap), ("record", 64 + gap, 25)]
            assert SQS.verify(source) == []

    @pytest.mark.parametrize("more", [0, 1, 7, SIZE_MAX])
    def test_a_gap_too_large_for_one_hole(self, more: int) -> None:
        with pytest.raises(LimitError):
            SQS.holes(SIZE_MAX + 1)
        gaps = SQS.split(SIZE_MAX + more)
        assert sum(gaps) == SIZE_MAX + more
        parts, at = {0: HEADER}, 64
        for gap in gaps:
            parts[at] = SQS.holes(gap)
            at += gap
        source = Sparse(at, parts)
        assert [item.size for item in SQS.scan(source)] == gaps
        assert SQS.verify(source) == []

    @pytest.mark.parametrize(
        ("raw", "reason"),
        [
            (b"", "unrecognised_record_type"),
            (b"\1", "no_record"),
            (SQS.holes(5), "no_record"),
            (SQS.encode(ID, b"abc")[:-1], "torn_tail"),
            (b"\4\0", "torn_tail"),
            (b"\4\0\0\0\x18", "invalid_message_size"),
            (b"\2\0\0\0\4", "invalid_hole_size"),
        ],
    )
    def test_what_is_no_record_is_refused(self, raw: bytes, reason: str) -> None:
        with pytest.raises(SegmentCorruptError) as caught:
            SQS.decode(raw, 77)
        assert (caught.value.offset, caught.value.reason) == (77, reason)

    def test_foreign_checksums_are_refused(self) -> None:
        with pytest.raises(SegmentCorruptError, match="unrecognised_record_type"):
            THEIRS.decode(SQS.encode(ID, b"abc"))


class TestHoles:
    @pytest.mark.parametrize("size", [5, 1 << 10, 1 << 20, 8 << 20])
    def test_of_any_size_between_records(self, size: int) -> None:
        one, two = SQS.encode(id_of(1), b"one"), SQS.encode(id_of(2), b"two")
        source = file(one, SQS.holes(size).ljust(size, b"\4"), two)
        expected = [("record", 64, 28), ("hole", 92, size), ("record", 92 + size, 28)]
        assert brief(SQS.scan(source)) == brief(SQS.salvage(source)) == expected

    def test_a_large_hole_costs_one_read(self, tmp_path: Path) -> None:
        path, size = tmp_path / "0.sqs", 1 << 30
        path.write_bytes(HEADER + SQS.encode(id_of(1), b"one") + SQS.holes(size))
        os.truncate(path, 92 + size)
        with path.open("ab") as more:
            more.write(SQS.encode(id_of(2), b"two"))
        with Counting(path) as source:
            assert kept(SQS.scan(source)) == {id_of(1): b"one", id_of(2): b"two"}
            assert source.calls <= 3
            assert source.total < 20_000
            assert SQS.verify(source) == []
            assert source.total < 60_000

    @pytest.mark.parametrize("size", [5, 63, 64, 65, 4097, 300_000])
    def test_a_row_of_small_ones(self, size: int) -> None:
        """Whatever block of the window it ends in."""
        source = file(b"\1" * size, SQS.encode(ID, b""))
        assert brief(SQS.scan(source)) == [("hole", 64, size), ("record", 64 + size, 25)]
        assert SQS.verify(source) == [Damage(64, size, "small_hole_run_too_long")]

    @pytest.mark.parametrize("pair", [(5, 5), (5, 1), (1, 5), (4096, 4), (300_000, 300_000)])
    def test_two_are_read_but_not_right(self, pair: tuple[int, int]) -> None:
        first, second = pair
        source = file(*(SQS.holes(size).ljust(size, b"\0") for size in pair))
        assert brief(SQS.scan(source)) == [("hole", 64, first), ("hole", 64 + first, second)]
        assert SQS.verify(source) == [Damage(64 + first, second, "hole_after_hole")]


class TestScan:
    def test_bodies_are_not_read_without_need(self, tmp_path: Path) -> None:
        path = tmp_path / "0.sqs"
        records = [SQS.encode(id_of(n), bytes([n]) * 500_000) for n in range(8)]
        path.write_bytes(HEADER + b"".join(records))
        with Counting(path) as source:
            items = list(SQS.scan(source, bodies=False))
            assert source.total <= 8192 + 8 * 4096
        with_bodies = list(SQS.scan(BytesSource(path.read_bytes())))
        assert brief(items) == brief(with_bodies)
        assert [item.id for item in items if isinstance(item, Record)] == [*map(id_of, range(8))]
        assert set(kept(items).values()) == {b""}

    def test_small_records_are_read_in_blocks(self, tmp_path: Path) -> None:
        path = tmp_path / "0.sqs"
        path.write_bytes(HEADER + b"".join(SQS.encode(id_of(n), bytes(900)) for n in range(1000)))
        for bodies in (True, False):
            with Counting(path) as source:
                assert len(list(SQS.scan(source, bodies=bodies))) == 1000
                assert source.calls < 20

    @pytest.mark.parametrize("kind", [0, 5, 200, 255])
    def test_other_types_are_refused_with_their_offset(self, kind: int) -> None:
        source = file(SQS.encode(ID, b"abc"), bytes([kind]) * 30)
        with pytest.raises(SegmentCorruptError) as caught:
            list(SQS.scan(source))
        assert (caught.value.offset, caught.value.reason) == (92, "unrecognised_record_type")

    def test_a_checksum_is_looked_at_with_the_body(self) -> None:
        record = bytearray(SQS.encode(ID, b"abc"))
        record[-1] ^= 1
        assert scanned(file(bytes(record))) == ([], "bad_checksum")
        assert brief(SQS.scan(file(bytes(record)), bodies=False)) == [("record", 64, 28)]

    @pytest.mark.parametrize("raw", [SQS.encode(ID, b"abc"), SQS.holes(9).ljust(9, b"\0")])
    def test_a_torn_record_at_the_end_is_dropped(self, raw: bytes) -> None:
        one = SQS.encode(id_of(1), b"one")
        for cut in range(1, len(raw)):
            source = file(one, raw[:cut])
            expected = [("record", 64, 28), ("torn", 92, cut)]
            assert brief(SQS.scan(source)) == brief(SQS.salvage(source)) == expected
            assert SQS.verify(source) == [Damage(92, cut, "torn_tail")]

    def test_an_id_may_come_twice(self) -> None:
        source = file(SQS.encode(ID, b"one"), SQS.encode(ID, b"two"))
        assert [item.size for item in SQS.scan(source)] == [28, 28]
        assert SQS.verify(source) == [Damage(92, 28, "duplicate_id")]
        assert kept(SQS.salvage(source)) == {ID: b"one"}


class TestCurrent:
    @pytest.mark.parametrize("size", [1, 4, 5, 24, 25, 5000])
    def test_zeros_at_its_end_are_torn(self, size: int) -> None:
        source = file(SQS.encode(ID, b"abc"), bytes(size))
        expected = [("record", 64, 28), ("torn", 92, size)]
        assert brief(CURRENT.scan(source)) == brief(CURRENT.salvage(source)) == expected
        assert CURRENT.verify(source) == []
        assert scanned(source)[1] == "unrecognised_record_type"

    def test_zeros_before_other_bytes_are_damage(self) -> None:
        source = file(SQS.encode(id_of(1), b""), bytes(99), SQS.encode(id_of(2), b""))
        assert scanned(source, CURRENT)[1] == "unrecognised_record_type"
        expected = [("record", 64, 25), ("damage", 89, 99), ("record", 188, 25)]
        assert brief(CURRENT.salvage(source)) == expected

    @pytest.mark.parametrize("size", [10, 64, 5000])
    def test_it_may_be_all_zeros(self, size: int) -> None:
        source = BytesSource(bytes(size))
        assert list(CURRENT.scan(source)) == list(CURRENT.salvage(source)) == [Torn(0, size)]
        assert CURRENT.verify(source) == []

    def test_zeros_are_no_sign_of_a_records_end(self) -> None:
        """A size that changes to one that leads into them takes no other record along."""
        first = bytearray(SQS.encode(id_of(1), b"one"))
        first[3] ^= 0x10
        source = file(bytes(first), SQS.encode(id_of(2), b"two"), bytes(8000))
        assert brief(CURRENT.salvage(source)) == [
            ("damage", 64, 28),
            ("record", 92, 28),
            ("torn", 120, 8000),
        ]


class TestSalvage:
    def test_a_bad_body_costs_its_record_only(self) -> None:
        records = [bytearray(SQS.encode(id_of(n), b"body")) for n in range(3)]
        records[1][-1] ^= 1
        source = file(*map(bytes, records))
        assert list(SQS.salvage(source))[1] == Damage(93, 29, "bad_checksum")
        assert kept(SQS.salvage(source)) == {id_of(0): b"body", id_of(2): b"body"}

    @pytest.mark.parametrize("at", [0, 1, 2, 3, 4])
    @pytest.mark.parametrize("bit", [1, 2, 4, 8, 128])
    def test_behind_a_bad_head_the_next_record_is_found(self, at: int, bit: int) -> None:
        records = [SQS.encode(id_of(n), bytes([n]) * 300) for n in range(3)]
        bad = bytearray(records[1])
        bad[at] ^= bit
        source = file(records[0], bytes(bad), records[2])
        items = list(SQS.salvage(source))
        assert_tiled(items, source.size)
        assert kept(items) == {id_of(n): bytes([n]) * 300 for n in (0, 2)}

    def test_a_size_beyond_the_file_hides_nothing(self) -> None:
        first = bytearray(SQS.encode(id_of(1), b"one"))
        first[1] ^= 1
        source = file(bytes(first), SQS.encode(id_of(2), b"two"))
        assert SQS.verify(source) == [Damage(64, 28, "torn_record")]
        assert kept(SQS.salvage(source)) == {id_of(2): b"two"}

    def test_of_two_with_one_id_the_whole_one_is_kept(self) -> None:
        first = bytearray(SQS.encode(ID, b"one"))
        first[-1] ^= 1
        source = file(bytes(first), SQS.encode(ID, b"two"), SQS.encode(ID, b"three"))
        assert kept(SQS.salvage(source)) == {ID: b"two"}
        assert [item.reason for item in SQS.verify(source)] == ["bad_checksum", "duplicate_id"]

    def test_in_a_foreign_file_all_behind_damage_is_lost(self) -> None:
        records = [THEIRS.encode(id_of(n), b"body", checksum=False) for n in range(3)]
        source = file(records[0], b"\7", *records[1:], header=THEIR_HEADER)
        assert brief(THEIRS.salvage(source)) == [("record", 64, 25), ("damage", 89, 51)]

    def test_the_search_reads_a_file_made_for_it_only_a_few_times(self, tmp_path: Path) -> None:
        """Every fifth byte begins a candidate that reaches almost to the end of the file."""
        path, size = tmp_path / "0.sqs", 1 << 19
        path.write_bytes(HEADER + b"\7" + b"\4\0\x07\0\0" * (size // 5))
        with Counting(path) as source:
            items = list(SQS.salvage(source))
            assert_tiled(items, source.size)
            assert [type(item) for item in items] == [Damage]
            assert source.total < 40 * size  # not the 50,000 halves of the file it would be


def three(checksum: bool) -> list[bytes]:
    return [SQS.encode(id_of(n), bytes([n + 65]) * (20 * n), checksum=checksum) for n in range(3)]


@pytest.mark.parametrize("checksum", [True, False])
def test_a_file_cut_anywhere_loses_nothing_that_is_whole(checksum: bool) -> None:
    records = three(checksum)
    whole = HEADER + b"".join(records)
    ends = [64 + sum(map(len, records[:n])) for n in range(4)]
    bodies = kept(SQS.scan(BytesSource(whole)))
    for cut in range(len(whole) + 1):
        source = BytesSource(whole[:cut])
        expected = {id_of(n): bodies[id_of(n)] for n in range(3) if ends[n + 1] <= cut}
        items = list(SQS.scan(source))
        assert kept(items) == expected
        assert_tiled(items, cut)
        assert list(SQS.salvage(source)) == items


@pytest.mark.parametrize("junk", [0, 1, 2, 4, 255, None])
def test_a_file_torn_anywhere_delivers_nothing_wrong(junk: int | None) -> None:
    """Its beginning was written, the rest holds what was there before."""
    records = three(True)
    whole = HEADER + b"".join(records)
    ends = [64 + sum(map(len, records[:n])) for n in range(4)]
    bodies = kept(SQS.scan(BytesSource(whole)))
    old = bytes(n * 37 & 255 for n in range(200)) if junk is None else bytes([junk]) * 200
    for cut in range(64, len(whole) + 1):
        source = BytesSource(whole[:cut] + old[: len(whole) - cut])
        expected = {id_of(n): bodies[id_of(n)] for n in range(3) if ends[n + 1] <= cut}
        for codec in (SQS, CURRENT):
            for items in (scanned(source, codec)[0], list(codec.salvage(source))):
                assert kept(items).items() >= expected.items()
                assert bodies.items() >= kept(items).items()


def test_what_is_written_without_a_checksum_may_be_delivered_wrong() -> None:
    """As the page says: that is why it is not what we write."""
    record = SQS.encode(ID, b"abc", checksum=False)
    assert kept(SQS.scan(file(record[:-1] + b"\0"))) == {ID: b"ab\0"}


PIECES = st.one_of(
    st.builds(lambda n, body: SQS.encode(id_of(n), body), st.integers(0, 9), st.binary(max_size=9)),
    st.builds(lambda n: SQS.holes(n).ljust(n, b"\4"), st.integers(1, 40)),
    st.binary(max_size=40),
)


@hypothesis.given(st.lists(PIECES, max_size=8), st.booleans(), st.booleans())
def test_any_bytes_are_told_or_refused(pieces: list[bytes], ours: bool, current: bool) -> None:
    data = b"".join([HEADER] * ours + pieces)
    source, codec = BytesSource(data), Sqs(is_current=current)
    items = list(codec.salvage(source))
    assert_tiled(items, len(data))
    told, reason = scanned(source, codec)
    assert reason or told == [] or told[-1].offset + told[-1].size == len(data)
    damages = codec.verify(source)
    assert {item for item in items if isinstance(item, Damage)} <= set(damages)
    if reason:
        assert damages
    for record in items:
        if isinstance(record, Record):
            raw = data[record.offset : record.offset + record.size]
            assert SQS.encode(record.id, record.payload, checksum=record.kind == 4) == raw


@hypothesis.given(st.integers(64, 266), st.integers(0, 255))
def test_one_wrong_byte_is_never_delivered(at: int, byte: int) -> None:
    whole = bytearray(HEADER + b"".join(three(True)) + b"\4")
    bodies = kept(SQS.scan(BytesSource(bytes(whole))))
    whole[at % len(whole)] = byte
    found = kept(SQS.salvage(BytesSource(bytes(whole))))
    wrong = {id for id, body in found.items() if bodies.get(id) != body}
    # A type that turns into the one without a checksum is the one thing that cannot be seen.
    assert not wrong or byte == 3
