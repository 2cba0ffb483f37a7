"""Data files of the Rust queue: all three checksums, every tear, every flipped bit."""

import contextlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodeq.errors import PayloadTooLargeError, SegmentCorruptError, UsageError
from lodeq.segments.formats.rust_queue import reader
from lodeq.segments.formats.rust_queue.codec import UNKNOWN_SEQUENCE, RustQueue, variant_of
from lodeq.segments.formats.rust_queue.reader import Variant
from lodeq.segments.item import Damage, Format, Hole, Item, Record, Torn
from lodeq.segments.source import BytesSource, FileSource

VECTORS = json.loads(
    (Path(__file__).resolve().parents[4] / "vectors" / "rust_queue.json").read_text("utf-8")
)
WRITTEN_BY = {
    "head_crc32_over_len_and_payload": Variant.CRC32,
    "seed_readme_crc64_ecma_over_payload": Variant.CRC64_PAYLOAD,
    "first_version_crc64_ecma_over_len_and_payload": Variant.CRC64_RECORD,
}
EACH = pytest.mark.parametrize("variant", list(Variant), ids=lambda variant: variant.name)
EMPTY = {
    Variant.CRC32: bytes.fromhex("00000000 1cdf4421"),
    Variant.CRC64_PAYLOAD: bytes(12),
    Variant.CRC64_RECORD: bytes(12),
}
# The second and the third are of one size: a length can lead astray and still fit.
THREE = (b"hello world", b"abcdefgh", b"ABCDEFGH")
ROOM = bytes(64)


def joined(variant: Variant, payloads: Sequence[bytes]) -> bytes:
    return b"".join(map(RustQueue(variant).encode, payloads))


def starts(variant: Variant, payloads: Sequence[bytes]) -> list[int]:
    sizes = [4 + len(payload) + variant.checksum_bytes for payload in payloads]
    return [sum(sizes[:i]) for i in range(len(sizes) + 1)]


def scan(codec: RustQueue, data: bytes) -> tuple[list[Item], SegmentCorruptError | None]:
    items: list[Item] = []
    try:
        for item in codec.scan(BytesSource(data)):
            items.append(item)  # noqa: PERF402  what came before an error counts
    except SegmentCorruptError as exc:
        return items, exc
    return items, None


def salvage(codec: RustQueue, data: bytes) -> list[Item]:
    """Checked to cover the file, without a gap and without an overlap."""
    items = list(codec.salvage(BytesSource(data)))
    at = 0
    for item in items:
        assert item.offset == at
        assert item.size > 0
        at += item.size
    assert at == len(data)
    return items


def payloads(items: Sequence[Item]) -> list[bytes]:
    return [item.payload for item in items if isinstance(item, Record)]


def kinds(items: Sequence[Item]) -> list[type[Item]]:
    return [type(item) for item in items]


def test_it_is_a_format() -> None:
    codec: Format = RustQueue()
    assert (codec.name, codec.suffix, codec.data_offset) == ("rust-queue", ".data", 0)


@pytest.mark.parametrize(
    ("by", "payload"), [(by, payload) for by in WRITTEN_BY for payload in VECTORS[by]]
)
def test_what_others_wrote(by: str, payload: str) -> None:
    variant, raw = WRITTEN_BY[by], bytes.fromhex(VECTORS[by][payload])
    assert RustQueue(variant).encode(payload.encode()).hex() == raw.hex()
    assert RustQueue().decode(raw) == Record(0, len(raw), payload.encode())
    assert variant_of(BytesSource(raw)) is variant


@EACH
@given(payload=st.binary(min_size=1, max_size=300), offset=st.integers(0, 1 << 40))
def test_decode_is_the_inverse(variant: Variant, payload: bytes, offset: int) -> None:
    codec = RustQueue(variant, start_sequence=7)
    try:
        raw = codec.encode(payload)
    except UsageError:
        assert variant is Variant.CRC64_PAYLOAD
        assert not any(payload)
        return
    record = Record(offset, len(raw), payload, sequence=7)
    assert codec.decode(raw + b"more", offset) == record
    assert RustQueue(start_sequence=7).decode(raw, offset) == record


@EACH
@given(
    messages=st.lists(st.binary(min_size=1, max_size=40).map(b"m".__add__), max_size=6),
    room=st.integers(0, 40),
)
def test_a_file_is_read_as_written(variant: Variant, messages: list[bytes], room: int) -> None:
    data = joined(variant, messages) + bytes(room)
    at = starts(variant, messages)
    expected: list[Item] = [
        Record(at[i], at[i + 1] - at[i], message, sequence=i) for i, message in enumerate(messages)
    ]
    if room:
        expected.append(Hole(at[-1], room))
    for codec in (RustQueue(), RustQueue(variant)):
        assert scan(codec, data) == (expected, None)
        assert salvage(codec, data) == expected
        assert codec.verify(BytesSource(data)) == []
        hops = list(codec.scan(BytesSource(data), bodies=False))
        assert [(item.offset, item.size) for item in hops] == [
            (item.offset, item.size) for item in expected
        ]
        assert not any(payloads(hops))


@EACH
def test_a_scan_starts_at_any_record(variant: Variant) -> None:
    data = joined(variant, THREE)
    at = starts(variant, THREE)
    items = list(RustQueue(start_sequence=41).scan(BytesSource(data), at[1]))
    assert payloads(items) == list(THREE[1:])
    assert [item.sequence for item in items if isinstance(item, Record)] == [41, 42]


def test_what_the_format_cannot_hold_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(UsageError, match="empty"):
        RustQueue().encode(b"")
    with pytest.raises(PayloadTooLargeError):
        RustQueue().encode(Huge(b"x"))
    with pytest.raises(UsageError, match="zeros"):
        RustQueue(Variant.CRC64_PAYLOAD).encode(bytes(5))
    assert RustQueue(Variant.CRC64_RECORD).encode(bytes(5))


@EACH
@pytest.mark.parametrize("codec", [RustQueue(), None], ids=["told", "named"])
def test_cut_at_every_byte(variant: Variant, codec: RustQueue | None) -> None:
    codec = codec or RustQueue(variant)
    data = joined(variant, THREE)
    at = starts(variant, THREE)
    for cut in range(len(data)):
        whole = [THREE[i] for i in range(3) if at[i + 1] <= cut]
        for rest in (b"", bytes(len(data) - cut), bytes(len(data) - cut) + ROOM):
            torn = data[:cut] + rest
            items, error = scan(codec, torn)
            assert payloads(items) == payloads(salvage(codec, torn)) == whole
            is_clean = not any(torn[at[len(whole)] :])
            if codec.variant or whole:
                assert error is None
                assert (Torn in kinds(items)) is not is_clean
            else:  # four bytes less or more: only a good record tells
                assert error or is_clean or Torn in kinds(items)


@EACH
@pytest.mark.parametrize("codec", [RustQueue(), None], ids=["told", "named"])
@pytest.mark.parametrize("room", [b"", ROOM], ids=["exact", "preallocated"])
def test_garbage_from_every_byte_on(variant: Variant, codec: RustQueue | None, room: bytes) -> None:
    codec = codec or RustQueue(variant)
    data = joined(variant, THREE)
    at = starts(variant, THREE)
    for cut in range(len(data)):
        torn = data[:cut] + b"\xa5" * (len(data) - cut) + room
        whole = [THREE[i] for i in range(3) if at[i + 1] <= cut]
        items, error = scan(codec, torn)
        assert payloads(items) == payloads(salvage(codec, torn)) == whole
        assert error or isinstance(items[-1], Torn)
        assert codec.verify(BytesSource(torn))


@EACH
@pytest.mark.parametrize("codec", [RustQueue(), None], ids=["told", "named"])
@pytest.mark.parametrize("room", [b"", ROOM], ids=["exact", "preallocated"])
def test_one_wrong_bit_costs_one_record(
    variant: Variant, codec: RustQueue | None, room: bytes
) -> None:
    """Whichever it is: no other record is lost, none is made up, and it is told."""
    codec = codec or RustQueue(variant)
    data = joined(variant, THREE) + room
    at = starts(variant, THREE)
    for position in range(at[-1]):
        hit = next(i for i in range(3) if position < at[i + 1])
        for bit in range(8):
            rotten = bytearray(data)
            rotten[position] ^= 1 << bit
            items, error = scan(codec, bytes(rotten))
            saved = salvage(codec, bytes(rotten))
            assert payloads(saved) == [*THREE[:hit], *THREE[hit + 1 :]]
            found = next(item for item in saved if not isinstance(item, Record))
            assert found.offset == at[hit]
            if error is not None:
                assert isinstance(found, Damage)
                if payloads(items):
                    assert error.offset == at[hit]
            else:  # a length that is too large, in the last record, looks torn
                assert hit == 2
                assert kinds(items) == [Record, Record, Torn]
            assert payloads(items) == list(THREE[:hit]) or not payloads(items)


@EACH
def test_numbers_go_on_behind_one_lost_record_only(variant: Variant) -> None:
    data = bytearray(joined(variant, THREE))
    at = starts(variant, THREE)
    data[at[1] + 5] ^= 1  # its payload: the length still leads on
    items = salvage(RustQueue(start_sequence=10), bytes(data))
    assert [item.sequence for item in items if isinstance(item, Record)] == [10, 12]
    data[at[1]] ^= 1  # now its length, too
    _, damage, last = salvage(RustQueue(start_sequence=10), bytes(data))
    assert isinstance(last, Record)
    assert last.sequence == UNKNOWN_SEQUENCE
    assert isinstance(damage, Damage)
    assert "the numbers of what follows" in damage.reason


@EACH
def test_a_length_that_leads_to_a_later_record_is_not_believed(variant: Variant) -> None:
    messages = (b"01234567", b"12345678" * 2, b"last")
    data = bytearray(joined(variant, messages))
    data[0] = 8 + starts(variant, messages)[2] - starts(variant, messages)[1]
    assert payloads(salvage(RustQueue(variant), bytes(data))) == list(messages[1:])


@EACH
def test_a_message_may_hold_a_file_of_this_format(variant: Variant) -> None:
    inner = joined(variant, THREE)
    data = bytearray(joined(variant, [b"before", inner, b"after"]))
    data[starts(variant, [b"before"])[1] + 4] ^= 0x10  # the first length within
    first, damage, last = salvage(RustQueue(variant), bytes(data))
    assert payloads([first, last]) == [b"before", b"after"]
    assert isinstance(damage, Damage)


@EACH
def test_an_empty_record_does_not_hide_what_follows(variant: Variant) -> None:
    """The original writes one, and never reads on."""
    data = joined(variant, [b"one"]) + EMPTY[variant] + joined(variant, [b"two", b"three"]) + ROOM
    at = starts(variant, [b"one"])[1]
    items, error = scan(RustQueue(), data)
    assert payloads(items) == [b"one"]
    assert error is not None
    assert error.offset == at
    saved = salvage(RustQueue(), data)
    assert payloads(saved) == [b"one", b"", b"two", b"three"]
    assert [item.sequence for item in saved if isinstance(item, Record)] == [0, 1, 2, 3]
    assert [(found.offset, found.size) for found in RustQueue().verify(BytesSource(data))] == [
        (at, len(EMPTY[variant]))
    ]


def test_an_empty_record_alone_is_told_where_it_differs_from_zeros() -> None:
    for data in (EMPTY[Variant.CRC32], EMPTY[Variant.CRC32] + ROOM):
        assert payloads(salvage(RustQueue(), data)) == [b""]
        assert scan(RustQueue(), data)[1] is not None
    assert kinds(salvage(RustQueue(Variant.CRC64_RECORD), bytes(12))) == [Hole]


@EACH
@pytest.mark.parametrize("zeros", [24, 40, 4096])
def test_records_behind_zeros_are_found(variant: Variant, zeros: int) -> None:
    """A page of a mapped file that never reached the disk."""
    data = joined(variant, THREE[:1]) + bytes(zeros) + joined(variant, THREE[1:])
    saved = salvage(RustQueue(), data)
    assert kinds(saved) == [Record, Damage, Record, Record]
    assert saved[1].size == zeros
    assert scan(RustQueue(), data)[1] is not None


def test_zeros_that_were_not_yet_written_are_no_message() -> None:
    """CRC-64 from zero over the payload: a length before zeros has the right checksum."""
    good = RustQueue(Variant.CRC64_PAYLOAD).encode(b"good")
    torn = good + (5).to_bytes(4, "little") + bytes(5 + 8)
    for data in (torn, torn + ROOM):
        assert kinds(scan(RustQueue(), data)[0]) == [Record, Torn]
        assert kinds(salvage(RustQueue(), data)) == [Record, Torn]
    between = torn + good
    assert payloads(scan(RustQueue(), between)[0]) == [b"good", bytes(5), b"good"]


def test_files_without_a_record() -> None:
    assert scan(RustQueue(), b"") == ([], None)
    assert salvage(RustQueue(), b"") == []
    assert scan(RustQueue(), ROOM) == ([Hole(0, 64)], None)
    assert salvage(RustQueue(), ROOM) == [Hole(0, 64)]
    lost = salvage(RustQueue(), b"nothing that was ever written" + ROOM)
    assert kinds(lost) in ([Torn], [Damage, Hole])


def test_two_checksums_that_fit_are_reported() -> None:
    fits = forged()
    with pytest.raises(SegmentCorruptError, match="more than one"):
        RustQueue().decode(fits)
    assert variant_of(BytesSource(fits)) is Variant.CRC64_RECORD  # with it, the file ends well
    neither = fits + b"\xff" * 20
    with pytest.raises(SegmentCorruptError, match="more than one"):
        variant_of(BytesSource(neither))
    (damage,) = salvage(RustQueue(), neither)
    assert isinstance(damage, Damage)
    assert "more than one" in damage.reason
    assert payloads(salvage(RustQueue(Variant.CRC64_RECORD), neither)) == [fits[4:12]]


def forged() -> bytes:
    """A record that is good with CRC-32 and CRC-64 both: the bits of a payload, solved for.

    Both checksums are affine, so 32 equations (the first half of one equals the other) in the bits
    of 8 bytes have a solution.
    """

    def difference(payload: bytes) -> int:
        short = RustQueue(Variant.CRC32).encode(payload)[-4:]
        long = RustQueue(Variant.CRC64_RECORD).encode(payload)[-8:-4]
        return int.from_bytes(short, "little") ^ int.from_bytes(long, "little")

    base = bytes(7) + b"\1"
    target = difference(base)
    rows: dict[int, tuple[int, int]] = {}  # by leading bit: what changes, by which bits
    for bit in range(8, 64):
        mask = 1 << bit
        change = difference((int.from_bytes(base, "big") ^ mask).to_bytes(8, "big")) ^ target
        while change and change.bit_length() in rows:
            other, by = rows[change.bit_length()]
            change, mask = change ^ other, mask ^ by
        if change:
            rows[change.bit_length()] = (change, mask)
    chosen = 0
    while target:
        change, mask = rows[target.bit_length()]
        target, chosen = target ^ change, chosen ^ mask
    return RustQueue(Variant.CRC64_RECORD).encode(
        (int.from_bytes(base, "big") ^ chosen).to_bytes(8, "big")
    )


@EACH
def test_a_damaged_beginning_hides_no_variant(variant: Variant) -> None:
    for rest in (THREE, THREE[:1]):
        data = b"\xff" * 7 + joined(variant, rest) + ROOM
        assert variant_of(BytesSource(data)) is variant
        saved = salvage(RustQueue(), data)
        assert payloads(saved) == list(rest)


def test_lengths_of_gigabytes_read_nothing_of_the_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(BytesSource):
        most = 0

        def read(self, offset: int, count: int) -> bytes:
            self.most = max(self.most, count)
            return super().read(offset, count)

    monkeypatch.setattr(reader, "_BLOCK", 1 << 12)
    monkeypatch.setattr(reader, "_ZEROS", bytes(1 << 12))
    data = joined(Variant.CRC32, THREE) + b"\xff\xff\xff\xff" + b"\1\0\1\0" * 20_000 + ROOM
    source = Counting(data)
    for codec in (RustQueue(), RustQueue(Variant.CRC32)):
        assert payloads(list(codec.salvage(source))) == list(THREE)
    assert source.most <= (1 << 12) + 8
    large = joined(Variant.CRC32, [b"0" * 70_000, b"1" * 70_000])
    assert [len(payload) for payload in payloads(salvage(RustQueue(), large))] == [70_000] * 2


def nested(depth: int) -> bytes:
    raw = b"x"
    for _ in range(depth):
        raw = RustQueue().encode(b"in " + raw)
    return raw


@pytest.mark.parametrize(
    "data",
    [
        b"\1\0\1\0" * 10_000,
        b"\xff" * 5 + nested(400),
        (RustQueue().encode(b"good") + b"\0\x10\0\0") * 2500,
        (RustQueue().encode(b"good") + b"\0\x70\0\0") * 2500,
        bytes(range(1, 251)) * 160,
    ],
    ids=["lengths", "records in records", "wrong lengths", "longer ones", "noise"],
)
def test_the_work_is_bounded(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    covered = 0

    def counting(piece: bytes, start: int = 0) -> int:
        nonlocal covered
        covered += len(piece)
        return crc32(piece, start)

    crc32 = zlib.crc32
    monkeypatch.setattr(reader, "_CREDIT_BYTES", 0)
    monkeypatch.setattr(zlib, "crc32", counting)
    salvage(RustQueue(Variant.CRC32), data)
    assert covered < 24 * len(data)


def test_large_records_are_found_when_their_lengths_lead_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "_CREDIT_FILES", 1)
    monkeypatch.setattr(reader, "_CREDIT_BYTES", 0)
    large = [bytes([65 + i]) * 1000 for i in range(6)]
    for count in (2, 6):
        data = b"\xff" * 5 + joined(Variant.CRC32, large[:count]) + ROOM
        assert payloads(salvage(RustQueue(Variant.CRC32), data)) == large[:count]
    data = b"\xff" * 5 + joined(Variant.CRC32, large[:1]) + b"\xff" * 2000
    assert payloads(salvage(RustQueue(Variant.CRC32), data)) == []  # what the bound costs
    monkeypatch.undo()
    assert payloads(salvage(RustQueue(Variant.CRC32), data)) == large[:1]


def test_a_sparse_file_is_read_by_blocks(tmp_path: Path) -> None:
    path = tmp_path / "20260115-0000.data"
    with path.open("wb") as file:
        file.write(joined(Variant.CRC32, THREE))
        file.truncate(32 << 20)
    with FileSource(path) as source:
        for items in (RustQueue().scan(source), RustQueue().salvage(source)):
            assert kinds(list(items)) == [Record, Record, Record, Hole]


@pytest.mark.slow
@settings(max_examples=200)
@given(data=st.data(), variant=st.sampled_from(list(Variant)))
def test_anything_is_read_without_another_error(data: st.DataObject, variant: Variant) -> None:
    piece = st.one_of(
        st.binary(max_size=30),
        st.integers(0, 60).map(bytes),
        st.binary(min_size=1, max_size=20).map(b"m".__add__).map(RustQueue(variant).encode),
        st.integers(0, 1 << 32).map(lambda length: length.to_bytes(5, "little")[:4]),
        st.just(EMPTY[variant]),
    )
    raw = b"".join(data.draw(st.lists(piece, max_size=8)))
    for codec in (RustQueue(), RustQueue(variant)):
        items, error = scan(codec, raw)
        saved = salvage(codec, raw)
        assert payloads(saved)[: len(payloads(items))] == payloads(items)
        if error is None:
            assert payloads(saved) == payloads(items)
        with contextlib.suppress(SegmentCorruptError):
            list(codec.scan(BytesSource(raw), bodies=False))
        with contextlib.suppress(SegmentCorruptError):
            codec.decode(raw)


@EACH
@pytest.mark.slow
def test_a_record_of_any_size_is_read(variant: Variant) -> None:
    payload = bytes(range(1, 251)) * 1600
    data = RustQueue(variant).encode(payload)
    items, error = scan(RustQueue(variant), data)
    assert ([item.payload for item in items], error) == ([payload], None)
    assert [item.payload for item in salvage(RustQueue(variant), data)] == [payload]


@EACH
@pytest.mark.slow
def test_whatever_a_search_costs_the_records_behind_are_read(variant: Variant) -> None:
    """A damaged record of small numbers: each of them looks like a length."""
    codec = RustQueue(variant)
    damaged = bytearray(codec.encode(b"\x10\0\0\0" * (1 << 16)))
    damaged[50] ^= 1
    payloads = [b"%04d" % n * 10_000 for n in range(4)]
    items = salvage(codec, bytes(damaged) + joined(variant, payloads))
    assert [type(item) for item in items] == [Damage] + [Record] * 4
    assert [item.payload for item in items[1:]] == payloads
