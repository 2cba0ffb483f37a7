"""What holds of a file of segments, whatever its bytes: scan, salvage and verify agree.

Every payload of an example ends with a digest of it and of the other fields of its record. ``fix``
makes that right as well as the checksums, as if the damage had been written; so whatever is told
by a format with checksums must bear its digest, or it was never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from xxhash import xxh3_64_digest

from lodeq.errors import SegmentCorruptError
from lodeq.segments.item import Damage, Format, Item, Record, Torn
from lodeq.segments.journal import log_format as journal
from lodeq.segments.journal.log_walk import JournalLog
from lodeq.segments.source import BytesSource

__all__ = ["Bad", "check_file", "is_signed", "records_of", "resigned", "scanned", "signed"]

Bad = Damage | Torn


def _key(record: Record, body: bytes) -> bytes:
    fields = replace(record, offset=0, size=0, payload=body, headers={})
    return xxh3_64_digest(repr((fields, dict(record.headers))).encode())


def signed(record: Record) -> Record:
    return replace(record, payload=record.payload + _key(record, record.payload))


def resigned(record: Record) -> bytes:
    """A payload of the same size that this record could have been written with."""
    body = record.payload[:-8]
    return (body + _key(record, body))[: len(record.payload)]


def scanned(items: Iterator[Item]) -> tuple[list[Item], SegmentCorruptError | None]:
    """What comes before the error, and the error."""
    told: list[Item] = []
    try:
        told.extend(items)
    except SegmentCorruptError as exc:
        return told, exc
    return told, None


def _places(items: Iterable[Item]) -> list[tuple[int, int]]:
    """Offset and size of each item; the records of one frame are one."""
    return list(dict.fromkeys((item.offset, item.size) for item in items))


def _tiled_to(codec: Format, raw: bytes, places: list[tuple[int, int]]) -> int:
    """How far the items reach without a gap or an overlap. No item: headers, ends of a journal."""
    begin = 0 if places and places[0][0] == 0 else min(codec.data_offset, len(raw))
    for at, size in [*places, (len(raw), 0)]:
        while begin < at and isinstance(codec, JournalLog):
            head = journal.decode_head(raw, begin)
            assert head.is_end
            begin += head.size
        assert begin == at
        begin += size
    return begin


def records_of(items: Iterable[Item]) -> list[Record]:
    return [item for item in items if isinstance(item, Record)]


def is_signed(record: Record) -> bool:
    return record.payload == resigned(record)


def check_file(
    codec: Format,
    raw: bytes,
    is_written: Callable[[Record], bool],
    is_searched: Callable[[Bad], bool] = lambda _: False,
    starts: bytes = bytes(range(256)),
) -> list[Item]:
    """What a scan tells; the error that it ends with is the only one there may be.

    ``is_written``: can this record have been written? ``is_searched``: of damage whose own size was
    not believed, does the next item begin with the first whole record behind its first byte?
    Records begin with one of ``starts``.
    """
    told, error = scanned(codec.scan(BytesSource(raw)))
    try:
        items = list(codec.salvage(BytesSource(raw)))
        _compare(codec, raw, told, items)
        assert all(map(is_written, records_of(items + told)))
        assert codec.verify(BytesSource(raw)) or error is None
        for item in items:
            if isinstance(item, Bad) and is_searched(item):
                inner = range(item.offset + 1, item.offset + item.size)
                assert not any(raw[at] in starts and _is_whole(codec, raw, at) for at in inner)
    except SegmentCorruptError as exc:
        raise AssertionError("of something else than a scan") from exc
    if error is not None:
        raise error
    return told


def _compare(codec: Format, raw: bytes, told: list[Item], items: list[Item]) -> None:
    """The ways to read a file, one with the other."""
    source = BytesSource(raw)
    saved, believed = records_of(items), records_of(told)
    assert all(item.size > 0 for item in items) or not raw  # ledgerq: torn before its first byte
    assert _tiled_to(codec, raw, _places(items)) == source.size
    assert {item for item in items if isinstance(item, Damage)} <= set(codec.verify(source))
    hops, _ = scanned(codec.scan(source, bodies=False))
    begun = _places(believed)
    assert _places(records_of(hops))[: len(begun)] == begun
    ids = {(record.offset, record.id) for record in saved + believed if record.id}
    if len(ids) == len({id for _, id in ids}):  # of those with one id, only the first is saved
        assert all(record in saved for record in believed)
    for record in {r.offset: r for r in reversed(saved) if r.payload}.values():
        again = codec.decode(raw[record.offset : record.offset + record.size], record.offset)
        assert replace(again, sequence=record.sequence) == record


def _is_whole(codec: Format, raw: bytes, at: int) -> bool:
    try:
        record = codec.decode(raw[at:], at)
    except SegmentCorruptError:
        return False
    return len(record.payload) >= 8 and is_signed(record)
