"""Whole files of segments: scanned, salvaged and verified. ``segment_oracle``: what must hold."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

from fuzz.segment_oracle import Bad, check_file, is_signed, records_of, resigned, scanned, signed
from fuzz.segment_targets import headers
from fuzz.target import Example, Target, _b, _id, _q
from xxhash import xxh3_64_digest

from lodeq.errors import SegmentCorruptError
from lodeq.segments.bodies.sqs import HEADER, HEADER_BYTES, Sqs
from lodeq.segments.bodies.sqs_search import CHECKED
from lodeq.segments.checksums import crc32c
from lodeq.segments.formats.ledgerq import codec as lq
from lodeq.segments.formats.rdq import Rdq, Verdict
from lodeq.segments.formats.rust_queue.codec import RustQueue
from lodeq.segments.formats.rust_queue.reader import Variant
from lodeq.segments.item import Damage, Item, Record
from lodeq.segments.journal import log_format as journal
from lodeq.segments.journal.log_walk import JournalLog
from lodeq.segments.source import BytesSource

__all__ = ["SEGMENT_FILES"]


def _pieces(rng: random.Random, make: Example) -> bytes:
    return b"".join(make(rng) for _ in range(rng.randrange(1, 6)))


# -- sqs, rdq ----------------------------------------------------------------------------


def _sqs(rng: random.Random) -> bytes:
    """Ours; one in eight is RabbitMQ's."""
    if rng.randrange(8):
        return HEADER + _pieces(rng, _sqs_piece)
    message: Example = lambda r: Sqs().encode(_id(r), _b(r, 40), checksum=False)  # noqa: E731
    return b"RSQS" + HEADER[4:] + _pieces(rng, message)


def _sqs_piece(rng: random.Random) -> bytes:
    how = rng.randrange(6)
    if how < 2:
        gap = rng.randrange(1, 40)
        hole = Sqs().holes(gap)
        return hole + rng.randbytes(gap - len(hole))
    if how == 2:
        return Sqs().encode(_id(rng), _b(rng, 40), checksum=False)
    record = signed(Record(0, 0, _b(rng, 40), id=_id(rng), kind=CHECKED))
    return Sqs().encode(record.id, record.payload)


def _fix_sqs(raw: bytes) -> bytes:
    out, at = raw[:HEADER_BYTES], HEADER_BYTES
    while at < len(raw):
        size = 1 if raw[at] == 1 else int.from_bytes(raw[at + 1 : at + 5], "big")
        if not 0 < size <= len(raw) - at:
            break
        if raw[at] == CHECKED and size >= 25:
            record = Record(0, 0, raw[at + 25 : at + size], id=raw[at + 5 : at + 21], kind=CHECKED)
            out += Sqs().encode(record.id, resigned(record))
        else:
            out += raw[at : at + size]
        at += size
    return out + raw[at:]


def _decode_sqs(raw: bytes) -> list[Item]:
    codec = Sqs(foreign=raw[:1] == b"R", is_current=len(raw) % 2 == 1)
    sized = ("bad_header", "bad_checksum", "duplicate_id")
    return check_file(
        codec,
        raw,
        lambda record: record.kind != CHECKED or is_signed(record),
        lambda bad: not codec.foreign and isinstance(bad, Damage) and bad.reason not in sized,
        bytes((CHECKED,)),
    )


def _rdq(rng: random.Random) -> bytes:
    return _pieces(
        rng,
        lambda r: r.choice(
            (
                bytes(r.randrange(1, 12)),
                Rdq().encode(
                    bytes((r.randrange(3),)) + r.randbytes(15), r.choice((_b(r, 40), bytes(9)))
                ),
            )
        ),
    )


def _judge(id: bytes, offset: int, size: int) -> Verdict:
    return (Verdict.VALID, Verdict.VALID, Verdict.PREVIOUSLY_VALID, Verdict.INVALID)[id[0] & 3]


def _decode_rdq(raw: bytes) -> list[Item]:
    """There is no checksum: any message that is framed is told."""
    return check_file(Rdq(_judge if len(raw) % 2 else None), raw, lambda _: True)


# -- ledgerq -----------------------------------------------------------------------------


def _ledgerq(rng: random.Random) -> bytes:
    count = rng.randrange(1, 5)
    ids = (1, count) if rng.random() < 0.5 else (0, 0)
    out = lq.encode_header(lq.SegmentHeader(1, 1_700_000_000, *ids))
    for sequence in range(1, count + 1):
        out += lq.encode(
            signed(
                Record(
                    0,
                    0,
                    _b(rng, 40),
                    sequence=sequence,
                    timestamp_ns=1 + (_q(rng) >> 1),
                    priority=rng.choice((None, 1)),
                    headers=headers(rng),
                    kind=rng.randrange(1, 4),
                )
            )
        )
    return out


def _fix_ledgerq(raw: bytes) -> bytes:
    out, at = bytearray(raw), lq.HEADER_BYTES
    if len(out) >= at:
        out[60:64] = crc32c(raw[:60]).to_bytes(4, "little")
    while at + 4 <= len(out):
        end = at + int.from_bytes(out[at : at + 4], "little")
        if not at + 26 <= end <= len(out):
            break
        for _ in range(2):  # as it is, and with a payload of these fields
            out[end - 4 : end] = crc32c(bytes(out[at : end - 4])).to_bytes(4, "little")
            try:
                payload = resigned(lq.LedgerQ().decode(bytes(out[at:end])))
            except SegmentCorruptError:
                break
            out[end - 4 - len(payload) : end - 4] = payload
        at = end + 4
    return bytes(out)


def _decode_ledgerq(raw: bytes) -> list[Item]:

    def is_searched(bad: Bad) -> bool:
        length = int.from_bytes(raw[bad.offset : bad.offset + 4], "little")
        end = min(bad.offset + length + 4, len(raw))
        return bad.offset > 0 and bad.offset + bad.size != end

    return check_file(lq.LedgerQ(), raw, is_signed, is_searched)


# -- rust queue --------------------------------------------------------------------------
# Before the file, one byte: the variant, and if the reader is told.


def _rust(rng: random.Random) -> bytes:
    how = rng.randrange(256)
    codec = RustQueue([*Variant][how % 3])
    data = _pieces(rng, lambda r: codec.encode(signed(Record(0, 0, _b(r, 40))).payload))
    return bytes((how,)) + data + bytes(rng.choice((0, 0, 5, 50)))


def _fix_rust(raw: bytes) -> bytes:
    if not raw:
        return raw
    variant, out, at = [*Variant][raw[0] % 3], raw[:1], 1
    while at + 4 <= len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        if end == at + 4 or end + variant.checksum_bytes > len(raw):
            break
        record = raw[at : at + 4] + resigned(Record(0, 0, raw[at + 4 : end]))
        checksum = variant.checksum(record[variant.checked_from :], 0)
        out += record + checksum.to_bytes(variant.checksum_bytes, "little")
        at = end + variant.checksum_bytes
    return out + raw[at:]


def _decode_rust(raw: bytes) -> list[Item]:
    how = raw[0] if raw else 0
    codec = RustQueue([*Variant][how % 3] if how & 128 else None)

    def is_written(record: Record) -> bool:
        # Zeros have the checksum zero in one variant: between records, they are told as one.
        return not any(record.payload) or is_signed(replace(record, sequence=0))

    return check_file(codec, raw[1:], is_written)


# -- the journal -------------------------------------------------------------------------


def _journal(rng: random.Random) -> bytes:
    first, out = 1, journal.encode_header(1, _q(rng))
    for _ in range(rng.randrange(1, 5)):
        records = [
            signed(
                Record(
                    0,
                    0,
                    _b(rng, 40),
                    sequence=first + i,
                    headers=headers(rng),
                    timestamp_ns=1000 * _q(rng),
                    expires_ns=rng.choice((0, 5000)),
                )
            )
            for i in range(rng.randrange(1, 4))
        ]
        out += _encode_frame(records)
        first += len(records)
    return out + (journal.encode_end(first, 5) if rng.random() < 0.3 else b"")


def _encode_frame(records: list[Record]) -> bytes:
    metas = [
        journal.encode_meta(r.headers, r.timestamp_ns // 1000, r.expires_ns // 1000)
        for r in records
    ]
    return journal.encode_frame(records[0].sequence, 0, [r.payload for r in records], metas=metas)


def _fix_journal(raw: bytes) -> bytes:
    """Frames are encoded anew if they can be."""
    out, at = raw[:56] + xxh3_64_digest(raw[:56]), 64
    while at + 40 <= len(raw):
        end = at + int.from_bytes(raw[at + 8 : at + 12], "little")
        if not at + 40 <= end <= len(raw):
            break
        head = raw[at : at + 28]
        frame = head + xxh3_64_digest(head)[4:] + raw[at + 32 : end - 8]
        frame += xxh3_64_digest(frame)
        source = BytesSource(journal.encode_header(1, 0) + frame)
        records = records_of(scanned(JournalLog().scan(source))[0])
        if not all(map(is_signed, records)):
            frame = _encode_frame([replace(r, payload=resigned(r)) for r in records])
        out += frame
        at = end
    return out + raw[at:]


def _decode_journal(raw: bytes) -> list[Item]:

    def is_searched(bad: Bad) -> bool:
        try:
            return journal.decode_head(raw, bad.offset).size > len(raw) - bad.offset
        except (SegmentCorruptError, struct.error):  # none, or not all of it
            return True

    return check_file(JournalLog(), raw, is_signed, is_searched, b"F")


def _of(
    covers: str,
    example: Example,
    decode: Callable[[bytes], list[Item]],
    fix: Callable[[bytes], bytes] = bytes,
    rate: float = 0.06,
) -> Target:
    return Target(
        (f"segments.{covers}.decode",),
        example,
        decode,
        errors=(SegmentCorruptError,),
        fix=fix,
        rate=rate,
    )


SEGMENT_FILES = {
    "sqs": _of("bodies.sqs", _sqs, _decode_sqs, _fix_sqs),
    "rdq": _of("formats.rdq", _rdq, _decode_rdq),
    "ledgerq": _of("formats.ledgerq.codec", _ledgerq, _decode_ledgerq, _fix_ledgerq),
    "rust_queue": _of("formats.rust_queue.codec", _rust, _decode_rust, _fix_rust),
    "journal": _of("journal.log_walk", _journal, _decode_journal, _fix_journal),
}
