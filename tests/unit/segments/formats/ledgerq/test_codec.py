"""LedgerQ's segments: golden vectors, every byte torn or flipped, and no record lost by it."""

import contextlib
import gzip
import itertools
import json
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodeq.errors import CorruptionError, PayloadTooLargeError, SegmentCorruptError, UsageError
from lodeq.segments.checksums import crc32c
from lodeq.segments.formats.ledgerq import codec
from lodeq.segments.formats.ledgerq.codec import (
    HEADER_BYTES,
    LedgerQ,
    SegmentHeader,
    content,
    decode_header,
    encode,
    encode_header,
)
from lodeq.segments.item import Damage, Format, Item, Record, Torn
from lodeq.segments.source import BytesSource

VECTORS = json.loads(
    (Path(__file__).resolve().parents[4] / "vectors" / "ledgerq.json").read_text("utf-8")
)
NOW = VECTORS["timestamp_ns"]
RAW = {name.split()[0]: bytes.fromhex(raw) for name, raw in VECTORS["records"].items()}
HEADERS = [bytes.fromhex(raw) for name, raw in VECTORS["records"].items() if "SEGHDR" in name]
RECORDS = {
    "V1": Record(0, 35, b"hello", sequence=1, timestamp_ns=NOW, kind=1),
    "V2": Record(0, 30, b"", sequence=2, timestamp_ns=NOW, kind=1),
    "V3": Record(
        0, 43, b"hello", sequence=3, timestamp_ns=NOW, expires_ns=NOW + 5_000_000_000, kind=1
    ),
    "V4": Record(0, 43, b"hello", sequence=4, timestamp_ns=NOW, headers={"k": "v"}, kind=1),
    "V5": Record(0, 36, b"hello", sequence=5, timestamp_ns=NOW, priority=2, kind=1),
    "V8": Record(0, 30, b"", sequence=8, timestamp_ns=NOW, kind=2),
}
FORMAT = LedgerQ()
GZIP = RAW["V6"][23:-8]


def sequences(items: Iterator[Item]) -> list[int]:
    return [item.sequence for item in items if isinstance(item, Record)]


def segment(*records: bytes, header: SegmentHeader | None = None) -> bytes:
    return encode_header(header or SegmentHeader(1, NOW)) + b"".join(records)


def with_crc(body: bytes) -> bytes:
    """A record of any fields: its length and checksum are right."""
    body = (len(body) + 8).to_bytes(4, "little") + body
    return body + crc32c(body).to_bytes(4, "little") + bytes(4)


def head(kind: int = 1, flags: int = 0, number: int = 1, time_ns: int = NOW) -> bytes:
    return bytes((kind, flags)) + number.to_bytes(8, "little") + time_ns.to_bytes(8, "little")


def salvaged(raw: bytes) -> list[Item]:
    """All of it, after a look if the items lie side by side."""
    items = list(FORMAT.salvage(BytesSource(raw)))
    at = 0 if items and items[0].offset == 0 else HEADER_BYTES
    for item in items:
        assert item.offset == at
        at += item.size
    assert at == max(len(raw), HEADER_BYTES) or (at == len(raw) < HEADER_BYTES)
    return items


def test_it_is_a_format() -> None:
    codec: Format = FORMAT
    assert (codec.name, codec.suffix, codec.data_offset) == ("ledgerq", ".log", 64)


class TestRecord:
    @pytest.mark.parametrize("name", RECORDS)
    def test_golden(self, name: str) -> None:
        assert FORMAT.decode(RAW[name]) == RECORDS[name]
        assert FORMAT.encode(RECORDS[name]) == RAW[name]

    @pytest.mark.parametrize("name", ["V6", "V7"])
    def test_golden_compressed(self, name: str) -> None:
        record = FORMAT.decode(RAW[name])
        assert (record.encoding, record.payload) == ("gzip", GZIP)
        assert content(record) == b"a" * 32
        assert encode(record) == RAW[name]
        if name == "V7":
            assert (record.priority, record.headers) == (1, {"k": "v"})
            assert record.expires_ns == NOW + 5_000_000_000

    def test_without_its_zeros_it_still_reads(self) -> None:
        for cut in range(1, 5):
            assert FORMAT.decode(RAW["V1"][:-cut]).size == 35 - cut

    def test_what_follows_is_not_part_of_it(self) -> None:
        assert FORMAT.decode(RAW["V1"] + b"more", 99) == replace(RECORDS["V1"], offset=99)

    @settings(max_examples=100)
    @given(
        st.builds(
            Record,
            offset=st.just(0),
            size=st.just(0),
            payload=st.binary(max_size=40),
            sequence=st.integers(1, 2**64 - 1),
            timestamp_ns=st.integers(1, 2**62),
            expires_ns=st.just(0) | st.integers(2**62 + 1, 2**63 - 1),
            priority=st.none() | st.integers(0, 2),
            headers=st.dictionaries(st.text(max_size=4), st.text(max_size=9), max_size=4),
            encoding=st.sampled_from(["", "none", "gzip"]),
            kind=st.integers(1, 3),
        )
    )
    def test_what_is_encoded_comes_back(self, record: Record) -> None:
        raw = encode(record)
        assert FORMAT.decode(raw) == replace(record, size=len(raw))
        assert encode(FORMAT.decode(raw)) == raw
        bare = next(iter(FORMAT.scan(BytesSource(segment(raw)), bodies=False)))
        assert bare == replace(record, offset=64, size=len(raw), payload=b"")

    def test_headers_of_any_bytes_come_back(self) -> None:
        raw = with_crc(head(flags=8) + b"\x01\x00\x01\x00\xff\x02\x00\xc3\x28")
        assert encode(FORMAT.decode(raw)) == raw

    @pytest.mark.parametrize(
        "change",
        [
            {"sequence": 0},
            {"sequence": 1 << 64},
            {"timestamp_ns": 0},
            {"timestamp_ns": 1 << 63},
            {"expires_ns": NOW},
            {"expires_ns": 1 << 63},
            {"expires_ns": -1},
            {"priority": 3},
            {"priority": -1},
            {"kind": 4},
            {"encoding": "zstd"},
            {"headers": {"k": "\ud800"}},
        ],
    )
    def test_what_ledgerq_would_not_read_is_refused(self, change) -> None:
        with pytest.raises(UsageError):
            encode(replace(RECORDS["V1"], **change))

    @pytest.mark.parametrize(
        "headers",
        [
            {"k": "v" * 65536},
            {"k" * 65536: "v"},
            {"k": "é" * 32768},
            {str(number): "" for number in range(65536)},
        ],
        ids=["value", "key", "bytes not characters", "count"],
    )
    def test_headers_do_not_wrap(self, headers) -> None:
        with pytest.raises(PayloadTooLargeError) as caught:
            encode(replace(RECORDS["V1"], headers=headers))
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (65536, 65535)

    def test_the_largest_headers_fit(self) -> None:
        record = replace(RECORDS["V1"], headers={"k": "v" * 65535})
        assert FORMAT.decode(encode(record)).headers == record.headers

    def test_a_record_has_a_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(codec, "RECORD_BYTES_MAX", 40)
        assert FORMAT.decode(encode(replace(RECORDS["V1"], payload=bytes(14)))).payload == bytes(14)
        with pytest.raises(PayloadTooLargeError):
            encode(replace(RECORDS["V1"], payload=bytes(15)))

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (head(kind=0), "type"),
            (head(kind=4), "type"),
            (head(flags=2), "flags"),
            (head(flags=32), "flags"),
            (head(number=0), "id"),
            (head(time_ns=0), "time"),
            (head(time_ns=1 << 63), "time"),
            (head(flags=4) + NOW.to_bytes(8, "little"), "expires before"),
            (head(flags=4) + bytes(7), "longer than it"),
            (head(flags=16), "longer than it"),
            (head(flags=8) + b"\x01\x00\x02\x00k", "longer than it"),
            (head(flags=8) + b"\x02\x00\x00\x00\x00\x00", "longer than it"),
            (head(flags=1) + b"\x02", "compression 2"),
            (b"", "no length"),
        ],
    )
    def test_fields_are_looked_at_even_if_the_checksum_is_right(self, body, reason) -> None:
        with pytest.raises(SegmentCorruptError, match=reason) as caught:
            FORMAT.decode(with_crc(body), 7)
        assert caught.value.offset == 7
        [damage] = salvaged(segment(with_crc(body)))
        assert isinstance(damage, Damage)

    @pytest.mark.parametrize("raw", [b"", b"\x1f\0", bytes(30), b"\xff" * 30, RAW["V1"][:30]])
    def test_what_is_no_record(self, raw) -> None:
        with pytest.raises(SegmentCorruptError):
            FORMAT.decode(raw)

    def test_many_headers_without_bodies(self) -> None:
        record = replace(RECORDS["V1"], headers={str(number): "v" * 50 for number in range(500)})
        [bare] = FORMAT.scan(BytesSource(segment(encode(record))), bodies=False)
        assert isinstance(bare, Record)
        assert bare.headers == record.headers


class TestContent:
    def test_as_it_was_enqueued(self) -> None:
        assert content(RECORDS["V1"]) == b"hello"
        assert content(replace(RECORDS["V1"], encoding="none")) == b"hello"
        packed = replace(RECORDS["V1"], encoding="gzip", payload=gzip.compress(b"x" * 5000))
        assert content(packed) == b"x" * 5000

    @pytest.mark.parametrize(
        "payload",
        [b"", b"hello", GZIP[:-1], GZIP[:-4] + bytes(4), GZIP + GZIP, GZIP + b"\0\0\0\0"],
        ids=["empty", "raw", "cut", "wrong size", "two members", "more behind"],
    )
    def test_what_is_no_gzip(self, payload) -> None:
        with pytest.raises(SegmentCorruptError):
            content(replace(RECORDS["V1"], encoding="gzip", payload=payload))

    @pytest.mark.parametrize("said", [10, 100 << 20 | 1, 0xFFFFFFFF])
    def test_a_bomb_is_not_inflated(self, said) -> None:
        bomb = gzip.compress(bytes(20 << 20), 9)[:-4] + said.to_bytes(4, "little")
        tracemalloc.start()
        try:
            with pytest.raises(SegmentCorruptError):
                content(replace(RECORDS["V1"], encoding="gzip", payload=bomb))
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


class TestHeader:
    @pytest.mark.parametrize(("raw", "ids"), [(HEADERS[0], (0, 0)), (HEADERS[1], (1, 7))])
    def test_golden(self, raw, ids) -> None:
        assert decode_header(raw) == SegmentHeader(1, NOW, *ids)
        assert encode_header(SegmentHeader(1, NOW, *ids)) == raw

    def test_every_flipped_bit_shows(self) -> None:
        raw = HEADERS[1]
        for at in range(64):
            bad = bytearray(raw)
            bad[at] ^= 1 << at % 8
            with pytest.raises(SegmentCorruptError):
                decode_header(bytes(bad))
            file = bytes(bad) + RAW["V1"] + RAW["V2"]
            with pytest.raises(SegmentCorruptError, match="header"):
                list(FORMAT.scan(BytesSource(file)))
            first, *rest = salvaged(file)
            assert isinstance(first, Damage)
            assert (first.offset, first.size) == (0, 64)
            assert sequences(iter(rest)) == [1, 2]

    @pytest.mark.parametrize("change", [(4, 2), (6, 1), (40, 1)])
    def test_another_version_is_refused(self, change) -> None:
        raw = bytearray(HEADERS[0][:60])
        raw[change[0]] = change[1]
        with pytest.raises(SegmentCorruptError, match="version"):
            decode_header(bytes(raw) + crc32c(bytes(raw)).to_bytes(4, "little"))

    def test_a_torn_one_has_no_records(self) -> None:
        """L2: it waits in a buffer with the first records."""
        for size in range(64):
            source = BytesSource(HEADERS[0][:size])
            expected = [Torn(0, size)]
            assert list(FORMAT.salvage(source)) == list(FORMAT.scan(source)) == expected
            assert list(FORMAT.salvage(BytesSource(bytes(size)))) == expected
            assert FORMAT.verify(source) == [Damage(0, size, "ends within a record, or its header")]

    def test_another_file_is_damage(self) -> None:
        [damage] = FORMAT.salvage(BytesSource(b"another file"))
        assert isinstance(damage, Damage)


class TestScan:
    RAW = segment(*[RAW[name] for name in ("V1", "V2", "V3", "V4", "V5", "V6", "V7")])

    def test_in_order_with_offsets(self) -> None:
        records = list(FORMAT.scan(BytesSource(self.RAW)))
        assert sequences(iter(records)) == [1, 2, 3, 4, 5, 6, 7]
        assert all(self.RAW[r.offset : r.offset + r.size] == encode(r) for r in records)  # type: ignore[arg-type]

    def test_from_a_record_on(self) -> None:
        records = list(FORMAT.scan(BytesSource(self.RAW)))
        for number, record in enumerate(records):
            assert list(FORMAT.scan(BytesSource(self.RAW), record.offset)) == records[number:]
        assert list(FORMAT.scan(BytesSource(self.RAW), len(self.RAW))) == []

    def test_from_nowhere(self) -> None:
        with pytest.raises(UsageError):
            list(FORMAT.scan(BytesSource(self.RAW), 63))
        with pytest.raises(SegmentCorruptError, match="ends before"):
            list(FORMAT.scan(BytesSource(self.RAW), len(self.RAW) + 1))
        with pytest.raises(SegmentCorruptError):
            list(FORMAT.scan(BytesSource(self.RAW), 65))

    def test_payloads_are_not_read_without_bodies(self) -> None:
        big = [
            encode(replace(RECORDS["V1"], sequence=n, payload=bytes(500_000))) for n in range(1, 9)
        ]
        source = Counting(segment(*big))
        assert sequences(FORMAT.scan(source, bodies=False)) == list(range(1, 9))
        assert source.bytes_read < 200_000

    def test_what_grows_while_read(self) -> None:
        """Where the file ended when it was opened, a record may have been half written."""
        for cut in range(1, 36):
            items = list(FORMAT.scan(BytesSource(segment(RAW["V2"], RAW["V1"])[:-cut])))
            assert sequences(iter(items)) == ([2, 1] if cut <= 4 else [2])


class Counting(BytesSource):
    bytes_read = 0

    def read(self, offset: int, count: int) -> bytes:
        data = super().read(offset, count)
        self.bytes_read += len(data)
        return data


def of_three() -> tuple[bytes, list[tuple[int, int]]]:
    """A file, and where its records lie."""
    parts = [RAW["V1"], RAW["V7"], encode(replace(RECORDS["V1"], sequence=9, payload=b"last" * 5))]
    ends = list(itertools.accumulate(map(len, parts), initial=HEADER_BYTES))
    return segment(*parts), list(itertools.pairwise(ends))


THREE, PLACES = of_three()
NUMBERS = [1, 7, 9]


class TestDamage:
    def test_cut_at_every_byte(self) -> None:
        for size in range(HEADER_BYTES, len(THREE)):
            source = BytesSource(THREE[:size])
            items = salvaged(THREE[:size])
            whole = [n for n, (_, end) in zip(NUMBERS, PLACES, strict=True) if end - 4 <= size]
            assert sequences(iter(items)) == whole
            at_end = size == 64 or any(end - 4 <= size <= end for _, end in PLACES)
            assert [item for item in items if not isinstance(item, Record)] == (
                [] if at_end else [Torn(items[-1].offset, items[-1].size)]
            )
            assert list(FORMAT.scan(source)) == items
            assert FORMAT.verify(source) or size in (64, *[end for _, end in PLACES])

    @pytest.mark.parametrize("filler", ["zeros", "garbage"])
    def test_torn_at_every_byte(self, filler: str) -> None:
        rng = random.Random(7)
        for at in range(HEADER_BYTES, len(THREE)):
            rest = len(THREE) - at
            raw = THREE[:at] + (bytes(rest) if filler == "zeros" else rng.randbytes(rest))
            items = salvaged(raw)
            whole = [n for n, (_, end) in zip(NUMBERS, PLACES, strict=True) if end - 4 <= at]
            assert sequences(iter(items))[: len(whole)] == whole
            if raw[: len(THREE) - 4] == THREE[:-4]:
                assert sequences(iter(items)) == NUMBERS
            elif filler == "zeros":
                assert sequences(iter(items)) == whole  # no record ends with zeros of its own
                in_checksum = any(end - 8 < at < end - 4 for _, end in PLACES)
                assert in_checksum or isinstance(items[-1], Torn | Record)
            assert FORMAT.verify(BytesSource(raw)) or raw == THREE

    def test_one_flipped_bit_at_every_byte(self) -> None:
        good = list(FORMAT.scan(BytesSource(THREE)))
        for at, bit in itertools.product(range(HEADER_BYTES, len(THREE)), range(8)):
            raw = bytearray(THREE)
            raw[at] ^= 1 << bit
            source = BytesSource(bytes(raw))
            items = salvaged(bytes(raw))
            hit = next(n for n, (begin, end) in enumerate(PLACES) if begin <= at < end)
            others = [record for n, record in enumerate(good) if n != hit]
            assert [item for item in items if item in others] == others
            assert FORMAT.verify(source)
            if at >= PLACES[hit][1] - 4:
                assert items == good  # the zeros carry nothing
                continue
            assert [type(item) for item in items if item not in others] == [Damage]
            with pytest.raises(SegmentCorruptError) as caught:
                list(FORMAT.scan(source))
            assert caught.value.offset == PLACES[hit][0]

    def test_a_length_that_leads_to_another_record_skips_none(self) -> None:
        records = [
            encode(replace(RECORDS["V1"], sequence=n, payload=bytes(34))) for n in range(1, 9)
        ]
        raw = bytearray(segment(*records))
        assert len(records[0]) == 64
        raw[64 + 64 * 2] ^= 0x40  # the third says it ends where the fourth does
        items = salvaged(bytes(raw))
        assert sequences(iter(items)) == [1, 2, 4, 5, 6, 7, 8]
        assert [(i.offset, i.size) for i in items if isinstance(i, Damage)] == [(192, 64)]

    def test_records_in_the_payload_of_a_damaged_one_are_not_taken_for_its_followers(self) -> None:
        inner = encode(replace(RECORDS["V1"], payload=RAW["V3"] * 3, sequence=2))
        for last in (b"", RAW["V5"]):
            raw = bytearray(segment(RAW["V1"], inner, last))
            raw[64 + 35 + 22] ^= 1
            assert sequences(iter(salvaged(bytes(raw)))) == ([1, 5] if last else [1])

    def test_bytes_that_are_missing_or_too_many(self) -> None:
        for raw in (
            segment(RAW["V1"], b"\xff" * 17, RAW["V3"]),
            segment(RAW["V1"], bytes(4096), RAW["V3"]),
            segment(RAW["V1"], RAW["V2"][5:], RAW["V3"]),
        ):
            first, damage, last = salvaged(raw)
            assert sequences(iter([first, last])) == [1, 3]
            assert isinstance(damage, Damage)
            with pytest.raises(SegmentCorruptError):
                list(FORMAT.scan(BytesSource(raw)))

    def test_a_closed_segment_is_not_torn(self) -> None:
        raw = segment(RAW["V1"], RAW["V2"], header=SegmentHeader(1, NOW, 1, 2))
        assert FORMAT.verify(BytesSource(raw)) == []
        items = salvaged(raw[:-10])
        assert [type(item) for item in items] == [Record, Damage]
        assert sequences(FORMAT.salvage(BytesSource(raw[:-4]))) == [1, 2]

    def test_bytes_after_the_last_record_of_a_closed_segment_were_being_written(self) -> None:
        raw = segment(RAW["V1"], RAW["V2"][:9], header=SegmentHeader(1, NOW, 1, 1))
        assert [type(item) for item in salvaged(raw)] == [Record, Torn]

    def test_a_file_that_shrinks_meanwhile(self) -> None:
        class Shrinking(BytesSource):
            def read(self, offset: int, count: int) -> bytes:
                if offset > 64:
                    raise CorruptionError("cut short")
                return super().read(offset, 35)

        items = list(FORMAT.salvage(Shrinking(segment(RAW["V1"], RAW["V2"]))))
        assert items[-1] == Damage(items[-1].offset, items[-1].size, "cut short")


class TestVerify:
    @pytest.mark.parametrize(
        ("raw", "damage"),
        [
            (segment(RAW["V1"][:-1]), Damage(95, 3, "no four zeros behind the record")),
            (segment(RAW["V1"][:-1] + b"\1"), Damage(95, 4, "no four zeros behind the record")),
            (segment(RAW["V2"], RAW["V1"]), Damage(94, 35, "id 1 after 2")),
            (segment(RAW["V1"], RAW["V1"]), Damage(99, 35, "id 1 after 1")),
            (segment(with_crc(head(flags=16) + b"\3")), Damage(64, 31, "priority 3")),
            (
                segment(RAW["V2"], header=SegmentHeader(1, NOW, 1, 2)),
                Damage(24, 16, "header: ids 1 to 2, but 2 to 2 are there"),
            ),
            (
                segment(header=SegmentHeader(1, NOW, 1, 2)),
                Damage(24, 16, "header: ids 1 to 2, but 0 to 0 are there"),
            ),
        ],
    )
    def test_what_a_scan_puts_up_with(self, raw, damage) -> None:
        list(FORMAT.scan(BytesSource(raw)))
        assert FORMAT.verify(BytesSource(raw)) == [damage]

    def test_nothing(self) -> None:
        assert FORMAT.verify(BytesSource(TestScan.RAW)) == []
        assert FORMAT.verify(BytesSource(segment())) == []


class TestFuzz:
    def test_random_bytes_and_mutations(self) -> None:
        rng = random.Random(3)
        for _ in range(1500):
            raw = bytearray(TestScan.RAW)
            for _ in range(rng.choice((1, 2, 5, 20))):
                at, how = rng.randrange(len(raw) + 1), rng.randrange(5)
                if how == 0:
                    raw[at : at + 1] = rng.randbytes(1)
                elif how == 1:
                    del raw[at : at + rng.randrange(40)]
                elif how == 2:
                    raw[at:at] = rng.randbytes(rng.randrange(40))
                elif how == 3:
                    raw[at : at + 4] = rng.choice((0, 30, 1 << 20, 0xFFFFFFFF)).to_bytes(
                        4, "little"
                    )
                else:
                    del raw[at:]
            data = bytes(raw) if rng.random() < 0.9 else rng.randbytes(len(raw))
            salvaged(data)
            FORMAT.verify(BytesSource(data))
            for bodies in (True, False):
                with contextlib.suppress(SegmentCorruptError):
                    list(FORMAT.scan(BytesSource(data), bodies=bodies))
            with contextlib.suppress(SegmentCorruptError):
                FORMAT.decode(data[rng.randrange(len(data) + 1) :])

    @pytest.mark.parametrize("pattern", ["nested", "headers"])
    def test_a_file_made_to_be_slow_is_read_in_proportion(self, pattern: str, monkeypatch) -> None:
        """Every few bytes begin what could be a record that reaches to the end."""
        monkeypatch.setattr("lodeq.segments.formats.ledgerq.index._HUNT_BYTES", 1000)
        size = 60_000
        flags = 0 if pattern == "nested" else 8
        raw = bytearray(encode_header(SegmentHeader(1, NOW)))
        while len(raw) < size:
            body = head(flags=flags) + b"\xff\xff"
            raw += (size - len(raw)).to_bytes(4, "little") + body
        source = Counting(bytes(raw))
        assert not sequences(FORMAT.salvage(source))
        assert source.bytes_read < 60 * len(raw)


@pytest.mark.slow
def test_a_large_record_behind_a_damaged_one_is_read() -> None:
    """LedgerQ takes 10 MiB by default."""
    damaged = bytearray(encode(replace(RECORDS["V1"], payload=b"x" * 100)))
    damaged[40] ^= 1
    large = encode(replace(RECORDS["V1"], payload=b"y" * (5 << 20), sequence=2))
    for wrong in (bytes(damaged), b"\xff" + bytes(damaged[1:])):  # its length leads on, or astray
        items = salvaged(segment(wrong, large, encode(replace(RECORDS["V1"], sequence=3))))
        assert sequences(iter(items)) == [2, 3]
