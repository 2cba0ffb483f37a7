"""Version 1: messages between zeros, compared with trying each byte in turn."""

import json
import os
from collections.abc import Iterable
from itertools import pairwise, permutations
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from lodeq import SegmentCorruptError, UsageError
from lodeq.segments.formats.rdq import Judge, Rdq, Verdict
from lodeq.segments.item import Damage, Format, Hole, Item, Record
from lodeq.segments.source import BytesSource, FileSource, Source

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "rabbitmq.json").read_text("utf-8"))
ACCEPT = {name: bytes.fromhex(text) for name, text in VECTORS["accept"].items()}
ID = bytes(range(16))
RDQ = Rdq()

# Read from its first byte on the size is 17, and the byte where that one ends is 255.
TRICKY = b"\0" + (0x1111).to_bytes(8, "big") + b"id" * 8 + b"\xff" + bytes(4352) + b"\xff"


class Counting(BytesSource):
    """Bytes that know how much of them was read."""

    calls = total = 0

    def read(self, offset: int, count: int) -> bytes:
        data = super().read(offset, count)
        self.calls += 1
        self.total += len(data)
        return data


class CountingFile(FileSource):
    """The same of a file."""

    calls = total = 0

    def read(self, offset: int, count: int) -> bytes:
        data = super().read(offset, count)
        self.calls += 1
        self.total += len(data)
        return data


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "little")  # not zeros first: they would be part of a run


def message(number: int, body: bytes = b"body") -> bytes:
    return RDQ.encode(id_of(number), body)


def brief(items: Iterable[Item]) -> list[tuple[str, int, int]]:
    return [(type(item).__name__.lower(), item.offset, item.size) for item in items]


def kept(items: Iterable[Item]) -> dict[bytes, bytes]:
    return {item.id: item.payload for item in items if isinstance(item, Record)}


def scanned(data: bytes, codec: Rdq = RDQ) -> tuple[list[Item], str]:
    """What a scan tells, and the reason why it stops, if it does."""
    items: list[Item] = []
    try:
        items.extend(codec.scan(BytesSource(data)))
    except SegmentCorruptError as exc:
        return items, exc.reason
    return items, ""


def salvaged(data: bytes, codec: Rdq = RDQ) -> list[Item]:
    items = list(codec.salvage(BytesSource(data)))
    assert sum(item.size for item in items) == len(data)
    assert all(a.offset + a.size == b.offset for a, b in pairwise(items))
    assert all(item.size > 0 for item in items)
    return items


def index(entries: dict[int, tuple[bytes, Verdict]]) -> Judge:
    """A verdict that knows what lies at which offset."""

    def verdict(id: bytes, offset: int, size: int) -> Verdict:
        known, answer = entries.get(offset, (b"", Verdict.INVALID))
        return answer if known == id else Verdict.INVALID

    return verdict


def shifted(data: bytes, verdict: Judge | None = None) -> list[tuple[int, int]]:
    """The rule as it is written: try each byte, keep what is valid, pass over what was."""
    found, seen, at = [], set(), 0
    while at + 25 <= len(data):
        size = int.from_bytes(data[at : at + 8], "big")
        id, end = data[at + 8 : at + 24], at + size + 9
        answer = Verdict.INVALID
        if size >= 16 and end <= len(data) and data[end - 1] == 255 and id not in seen:
            answer = verdict(id, at, size + 9) if verdict else Verdict.VALID
        if answer is Verdict.VALID:
            found.append((at, size + 9))
            seen.add(id)
        at = at + 1 if answer is Verdict.INVALID else end
    return found


def told(items: Iterable[Item]) -> list[tuple[int, int]]:
    return [(item.offset, item.size) for item in items if isinstance(item, Record)]


def test_it_is_a_format() -> None:
    codec: Format = RDQ
    assert (codec.name, codec.suffix, codec.data_offset) == ("rdq", ".rdq", 0)


class TestEncode:
    @pytest.mark.parametrize(
        ("name", "body"), [("empty", b""), ("abc", b"abc"), ("etf_abc", b"\x83m\0\0\0\x03abc")]
    )
    def test_vectors(self, name: str, body: bytes) -> None:
        raw = ACCEPT[f"v1_message_{name}"]
        assert RDQ.encode(ID, body) == raw
        assert RDQ.decode(raw, 5) == Record(5, len(raw), body, id=ID)

    @hypothesis.given(st.binary(min_size=16, max_size=16), st.binary(max_size=100))
    def test_decode_is_the_inverse(self, id: bytes, body: bytes) -> None:
        raw = RDQ.encode(id, body)
        assert RDQ.decode(raw + b"behind", 9) == Record(9, len(body) + 25, body, id=id)

    def test_an_id_has_sixteen_bytes(self) -> None:
        with pytest.raises(UsageError, match="not 15"):
            RDQ.encode(ID[1:], b"")

    @pytest.mark.parametrize(
        ("raw", "reason"),
        [
            (b"", "invalid_size"),
            (bytes(50), "invalid_size"),
            (message(1)[:-1], "torn_tail"),
            (message(1)[:-1] + b"\0", "bad_trailer"),
            ((15).to_bytes(8, "big") + bytes(15) + b"\xff", "invalid_size"),
        ],
    )
    def test_what_is_no_message_is_refused(self, raw: bytes, reason: str) -> None:
        with pytest.raises(SegmentCorruptError) as caught:
            RDQ.decode(raw, 77)
        assert (caught.value.offset, caught.value.reason) == (77, reason)


class TestBetweenMessages:
    def test_nothing(self) -> None:
        assert scanned(b"") == ([], "")
        assert salvaged(b"") == []

    @pytest.mark.parametrize("size", [8, 25, 5000])
    def test_zeros_only(self, size: int) -> None:
        assert scanned(bytes(size)) == ([Hole(0, size)], "")
        assert salvaged(bytes(size)) == [Hole(0, size)]
        assert RDQ.verify(BytesSource(bytes(size))) == []

    @pytest.mark.parametrize("count", [1, 2, 10, 100])
    def test_many_without_any(self, count: int) -> None:
        data = b"".join(message(n) for n in range(count))
        assert (
            told(scanned(data)[0]) == told(salvaged(data)) == [(29 * n, 29) for n in range(count)]
        )

    def test_holes_of_any_size_in_any_order(self) -> None:
        for sizes in permutations((0, 1, 7, 8, 300)):
            parts = [bytes(size) + message(n) for n, size in enumerate(sizes)]
            data = b"".join(parts)
            items, reason = scanned(data)
            assert reason == ""
            assert len(told(items)) == 5
            assert [item.size for item in items if isinstance(item, Hole)] == [
                size for size in sizes if size
            ]
            assert salvaged(data) == items

    @pytest.mark.parametrize("body", [b"\xff" * 40, b"\xff" + bytes(40), bytes(40)])
    def test_bodies_that_look_like_an_end_or_a_hole(self, body: bytes) -> None:
        data = b"\xff" * 40 + message(1, body) + bytes(40) + message(2, body) + b"\xff" * 40
        assert kept(salvaged(data)) == {id_of(1): body, id_of(2): body}
        assert scanned(data)[1] == "no_record"

    @pytest.mark.parametrize("size", [0, 15, 16, 17])
    def test_the_least_size(self, size: int) -> None:
        data = size.to_bytes(8, "big") + b"i" * size + b"\xff"
        assert told(salvaged(data)) == ([(0, size + 9)] if size >= 16 else [])
        assert (scanned(data + message(1))[1] == "") == (size >= 16)
        assert kept(salvaged(data + message(1)))[id_of(1)] == b"body"

    def test_a_large_run_of_zeros_costs_a_few_reads(self) -> None:
        size = 8 << 20
        data = bytes(size) + message(1) + bytes(size)
        for read in (RDQ.scan, RDQ.salvage):
            source = Counting(data)
            expected = [("hole", 0, size), ("record", size, 29)]
            assert brief(read(source))[:2] == expected
            assert source.calls < 400
            assert source.total < 4 * len(data)

    def test_an_error_tells_where_a_size_could_begin(self) -> None:
        data = message(1) + bytes(100) + b"junk" + message(2)
        with pytest.raises(SegmentCorruptError) as caught:
            list(RDQ.scan(BytesSource(data)))
        assert (caught.value.offset, caught.value.reason) == (29 + 93, "no_record")
        assert brief(scanned(data)[0]) == [("record", 0, 29), ("hole", 29, 93)]


class TestDuplicates:
    def test_the_earlier_one_is_kept(self) -> None:
        data = message(1, b"first") + message(2) + message(1, b"second") + message(3)
        found = kept(salvaged(data))
        assert found == {id_of(1): b"first", id_of(2): b"body", id_of(3): b"body"}
        assert RDQ.verify(BytesSource(data)) == [Damage(59, 31, "duplicate_id")]

    def test_the_later_ones_bytes_are_tried(self) -> None:
        data = message(1) + message(1, message(2, b"inside"))
        assert kept(salvaged(data)) == {id_of(1): b"body", id_of(2): b"inside"}

    def test_a_scan_tells_both(self) -> None:
        assert told(scanned(message(1) * 2)[0]) == [(0, 29), (29, 29)]


class TestVerdict:
    def test_without_an_index_the_earlier_offset_is_believed(self) -> None:
        assert len(TRICKY) == 4379
        for items in (scanned(TRICKY)[0], salvaged(TRICKY)):
            assert told(items)[0] == (0, 26)

    def test_with_one_the_true_message_is_found(self) -> None:
        codec = Rdq(index({1: (b"id" * 8, Verdict.VALID)}))
        expected = [("hole", 0, 1), ("record", 1, 4378)]
        assert brief(scanned(TRICKY, codec)[0]) == brief(salvaged(TRICKY, codec)) == expected
        assert codec.verify(BytesSource(TRICKY)) == []

    def test_a_size_that_ends_elsewhere_does_no_harm(self) -> None:
        data = b"\0" + message(1, bytes(4592))
        assert brief(scanned(data)[0]) == [("hole", 0, 1), ("record", 1, 4617)]

    def test_it_is_asked_about_the_whole_record(self) -> None:
        asked = []

        def verdict(id: bytes, offset: int, size: int) -> Verdict:
            asked.append((id, offset, size))
            return Verdict.VALID

        salvaged(message(1) + bytes(20) + message(2, b""), Rdq(verdict))
        assert asked == [(id_of(1), 0, 29), (id_of(2), 49, 25)]

    def test_what_was_valid_is_passed_over_whole(self) -> None:
        data = message(1, message(2)) + message(3)
        codec = Rdq(
            index(
                {
                    0: (id_of(1), Verdict.PREVIOUSLY_VALID),
                    33: (id_of(2), Verdict.VALID),
                    54: (id_of(3), Verdict.VALID),
                }
            )
        )
        expected = [("hole", 0, 54), ("record", 54, 29)]
        assert brief(scanned(data, codec)[0]) == brief(salvaged(data, codec)) == expected

    def test_what_is_invalid_is_tried_byte_by_byte(self) -> None:
        data = message(1, message(2)) + message(3)
        codec = Rdq(index({24: (id_of(2), Verdict.VALID), 54: (id_of(3), Verdict.VALID)}))
        assert codec.verify(BytesSource(data)) == [
            Damage(0, 24, "not_in_index"),
            Damage(53, 1, "no_record"),
        ]
        assert kept(salvaged(data, codec)) == {id_of(2): b"body", id_of(3): b"body"}
        assert scanned(data, codec) == ([], "no_record")

    def test_a_file_of_unknown_messages_is_read_once_or_so(self) -> None:
        data = b"".join(message(n, bytes(range(256)) * 468) for n in range(130))
        assert len(data) > 15_000_000
        source = Counting(data)
        items = list(Rdq(lambda *_: Verdict.INVALID).salvage(source))
        assert items == [Damage(0, len(data), "not_in_index")]
        assert source.total < 3 * len(data)
        assert source.calls < 1000

    def test_a_file_made_of_sizes_is_read_a_few_times(self) -> None:
        data = (b"\0" * 6 + b"\x10\0") * 20_000  # a place where one may begin every few bytes
        source = Counting(data)
        assert list(RDQ.salvage(source)) == [Damage(0, len(data), "no_record")]
        assert source.total < 20 * len(data)


class TestEnd:
    @pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 6, 7, 8, 23, 24, 28])
    def test_a_torn_message_is_dropped(self, cut: int) -> None:
        data = message(1) + message(2)[:cut]
        expected = [("record", 0, 29), ("torn", 29, cut)]
        assert brief(scanned(data)[0]) == brief(salvaged(data)) == expected
        assert RDQ.verify(BytesSource(data)) == [Damage(29, cut, "torn_tail")]

    def test_behind_a_hole_too(self) -> None:
        data = message(1) + bytes(100) + message(2)[:20]
        expected = [("record", 0, 29), ("hole", 29, 100), ("torn", 129, 20)]
        assert brief(scanned(data)[0]) == brief(salvaged(data)) == expected

    @pytest.mark.parametrize("beyond", range(1, 10))
    def test_old_bytes_that_reach_just_beyond_it_hide_nothing(self, beyond: int) -> None:
        rest = b"".join(message(n) for n in range(3))
        size = 8 + 16 + len(rest) - 9 + beyond
        data = size.to_bytes(8, "big") + b"i" * 16 + rest
        assert size + 9 == len(data) + beyond
        assert kept(salvaged(data)) == {id_of(n): b"body" for n in range(3)}
        assert brief(salvaged(data))[0] == ("damage", 0, 24)
        assert scanned(data) == ([], "no_record")

    def test_a_size_that_ends_within_it_is_not_torn(self) -> None:
        data = message(1) + message(2)[:-1] + b"x" * 9000
        assert scanned(data)[1] == "no_record"
        assert RDQ.verify(BytesSource(data)) == [Damage(29, 9028, "no_record")]

    def test_other_bytes_are_not_a_torn_message(self) -> None:
        for junk in (b"x", b"junk junk junk", (15).to_bytes(8, "big") + b"x" * 30):
            data = message(1) + junk
            assert scanned(data)[1] == "no_record"
            assert RDQ.verify(BytesSource(data)) == [Damage(29, len(junk), "no_record")]


class TestBodies:
    def test_a_file_of_one_large_message_costs_its_ends(self, tmp_path: Path) -> None:
        path, size = tmp_path / "0.rdq", 1 << 30
        path.write_bytes((size - 9).to_bytes(8, "big") + ID)
        os.truncate(path, size - 1)
        with path.open("ab") as more:
            more.write(b"\xff")
        with CountingFile(path) as source:
            assert list(RDQ.scan(source, bodies=False)) == [Record(0, size, b"", id=ID)]
            assert source.calls == 2
            assert source.total < 10_000

    def test_they_are_left_out(self) -> None:
        data = b"".join(message(n, bytes([n]) * 500_000) for n in range(8))
        source = Counting(data)
        items = list(RDQ.scan(source, bodies=False))
        assert source.total < 9 * 4097 + 4096
        assert brief(items) == brief(scanned(data)[0])
        assert kept(items) == {id_of(n): b"" for n in range(8)}

    def test_small_messages_are_read_in_blocks(self) -> None:
        data = b"".join(message(n, b"x" * 900) for n in range(1000))
        for bodies in (True, False):
            source = Counting(data)
            assert len(list(RDQ.scan(source, bodies=bodies))) == 1000
            assert source.calls < 30

    def test_a_scan_begins_at_any_message(self) -> None:
        data = message(1) + message(2)
        assert told(RDQ.scan(BytesSource(data), 29)) == [(29, 29)]
        assert list(RDQ.scan(BytesSource(data), 58)) == []


def test_a_file_cut_anywhere_loses_nothing_that_is_whole() -> None:
    data = b"".join(message(n, bytes([n + 65]) * 20 * n) for n in range(3))
    ends = [sum(25 + 20 * k for k in range(n)) for n in range(4)]
    for cut in range(len(data) + 1):
        expected = [(ends[n], ends[n + 1] - ends[n]) for n in range(3) if ends[n + 1] <= cut]
        items, reason = scanned(data[:cut])
        assert (told(items), reason) == (expected, "")
        assert salvaged(data[:cut]) == items


@pytest.mark.parametrize("junk", [0, 1, 254, None])
def test_a_file_torn_anywhere_loses_nothing_that_is_whole(junk: int | None) -> None:
    """Without a 255 where the last message ends, nothing wrong is delivered either."""
    data = b"".join(message(n, bytes([n + 65]) * 20 * n) for n in range(3))
    ends = [sum(25 + 20 * k for k in range(n)) for n in range(4)]
    old = bytes(n * 37 % 255 for n in range(200)) if junk is None else bytes([junk]) * 200
    for cut in range(len(data) + 1):
        torn = data[:cut] + old[: len(data) - cut]
        expected = [(ends[n], ends[n + 1] - ends[n]) for n in range(3) if ends[n + 1] <= cut]
        assert told(scanned(torn)[0]) == told(salvaged(torn)) == expected


def test_a_torn_body_that_ends_right_is_delivered() -> None:
    """As the page says: there is no checksum."""
    data = bytearray(message(1))
    data[26:28] = b"\0\0"
    assert kept(scanned(bytes(data))[0]) == {id_of(1): b"bo\0\0"}


PIECES = st.one_of(
    st.builds(message, st.integers(1, 5), st.binary(max_size=30)),
    st.builds(bytes, st.integers(1, 300)),
    st.builds(
        lambda size, rest: size.to_bytes(8, "big") + rest,
        st.integers(0, 600),
        st.sampled_from([b"", b"\xff" * 30, bytes(16) + b"\xff"]),
    ),
    st.lists(st.sampled_from([0, 16, 255, 1]), max_size=40).map(bytes),
    st.binary(max_size=40),
)


def some(offset_step: int) -> Judge:
    """A verdict that says something of everything."""
    return lambda id, offset, size: list(Verdict)[(offset * offset_step + size) % 3]


@hypothesis.given(st.lists(PIECES, max_size=10), st.sampled_from([None, some(1), some(2)]))
@hypothesis.settings(max_examples=150)
def test_it_finds_what_trying_each_byte_finds(pieces: list[bytes], verdict: Judge | None) -> None:
    data = b"".join(pieces)
    codec = Rdq(verdict)
    items = salvaged(data, codec)
    assert told(items) == shifted(data, verdict)
    for item in items:
        if isinstance(item, Record):
            assert RDQ.decode(data[item.offset :], item.offset) == item


@hypothesis.given(st.lists(PIECES, max_size=10), st.sampled_from([None, some(1)]))
def test_any_bytes_are_told_or_refused(pieces: list[bytes], verdict: Judge | None) -> None:
    data = b"".join(pieces)
    codec = Rdq(verdict)
    items, reason = scanned(data, codec)
    assert all(a.offset + a.size == b.offset for a, b in pairwise(items))
    assert reason or sum(item.size for item in items) == len(data)
    source: Source = BytesSource(data)
    assert brief(codec.scan(source, bodies=False)) == brief(items) if not reason else True
    assert all(item.reason for item in codec.verify(source))


def test_zeros_over_the_borders_of_blocks_hide_nothing() -> None:
    """The first blocks of a search have 64 and 256 bytes, and begin 7 bytes before the last end."""
    for before in range(350):
        data = b"x" + bytes(before) + message(1, b"z" * (before % 3) * 300)
        assert told(salvaged(data)) == shifted(data) != []
