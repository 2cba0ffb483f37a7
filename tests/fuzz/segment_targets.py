"""Of segments: one record, header, index or note at a time; whole files: ``segment_files``."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fuzz.target import Example, Target, _b, _id, _q
from xxhash import xxh3_64_digest

from lodeq.errors import RecordCorruptError, SegmentCorruptError
from lodeq.segments.bodies.sqs import Sqs
from lodeq.segments.bodies.sqs_search import CHECKED
from lodeq.segments.checksums import crc32c
from lodeq.segments.formats.ledgerq import codec as lq
from lodeq.segments.formats.ledgerq import index as lq_index
from lodeq.segments.formats.ledgerq import state
from lodeq.segments.formats.ledgerq.folder import dead_letter
from lodeq.segments.formats.rdq import Rdq
from lodeq.segments.formats.rust_queue import index
from lodeq.segments.formats.rust_queue.codec import RustQueue
from lodeq.segments.formats.rust_queue.reader import Variant
from lodeq.segments.item import Record
from lodeq.segments.journal import log_format as journal
from lodeq.segments.journal import small_files as small

__all__ = ["SEGMENT_TARGETS", "headers"]

SQS, RDQ, LEDGERQ = Sqs(), Rdq(), lq.LedgerQ()


def _short(raw: bytes, least: int) -> None:
    if len(raw) < least:
        raise SegmentCorruptError("shorter than what the caller reads", reason="short")


def _sealed(raw: bytes) -> bytes:
    return raw[:-8] + xxh3_64_digest(raw[:-8])


def _put(raw: bytes, at: int, new: bytes) -> bytes:
    """Only within what is there."""
    return raw[:at] + new + raw[at + len(new) :] if 0 <= at <= len(raw) - len(new) else raw


# -- the journal -------------------------------------------------------------------------


def headers(rng: random.Random) -> dict[str, str]:
    return {f"k{i}": rng.choice(("", "v", "häß", "x" * 40)) for i in range(rng.randrange(3))}


def _frame(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return journal.encode_end(_q(rng), _q(rng))
    payloads = [
        rng.choice((_b(rng, 20), b"x" * rng.randrange(300))) for _ in range(rng.randrange(1, 5))
    ]
    raws, code = [len(payload) for payload in payloads], rng.choice((0, 0, journal.ZLIB))
    if code:
        payloads = [
            rng.choice((p, z)) if len(z := zlib.compress(p)) != len(p) else p for p in payloads
        ]
    metas = [
        journal.encode_meta(headers(rng), rng.choice((0, _q(rng))), rng.choice((0, _q(rng))))
        for _ in payloads
        if rng.random() < 0.9
    ]
    return journal.encode_frame(
        _q(rng),
        _q(rng),
        payloads,
        compression=code,
        raws=raws if code else (),
        metas=metas if len(metas) == len(payloads) else (),
    )


def _fix_frame(raw: bytes) -> bytes:
    raw = _put(raw, 8, len(raw).to_bytes(4, "little"))
    return _sealed(_put(raw, 28, xxh3_64_digest(raw[:28])[4:]))


def _decode_frame(raw: bytes) -> Any:
    """What it says, however that is written down."""
    _short(raw, journal.HEAD_BYTES)
    head = journal.decode_head(raw)
    records = journal.decode_frame(head, raw[: head.size])
    assert len(records) == head.records
    assert head.is_end == (not records)
    return (
        head.first,
        head.time_us if head.is_end else 0,
        [record._replace(headers=dict(record.headers)) for record in records],
    )


def _encode_frame(value: Any) -> bytes:
    first, time_us, records = value
    if not records:
        return journal.encode_end(first, time_us)
    metas = [journal.encode_meta(r.headers, r.time_us, r.expires_us) or b"\x80" for r in records]
    return journal.encode_frame(first, 0, [r.payload for r in records], metas=metas)


def _slots(rng: random.Random) -> bytes:
    """Both slots, one behind the other; in the file they lie 4,096 bytes apart."""
    first = 2 * rng.randrange(9)
    return b"".join(
        small.encode_slot(small.Position(g, _q(rng), _q(rng), _q(rng))) for g in (first, first + 1)
    )


def _fix_slots(raw: bytes) -> bytes:
    return _sealed(raw[:64]) + _sealed(raw[64:])


def _decode_slots(raw: bytes) -> small.Position:
    position = small.decode_position(raw[:64].ljust(4096, b"\0") + raw[64:])
    if position is None:
        raise RecordCorruptError("neither is whole")
    return position


def _encode_slots(position: small.Position) -> bytes:
    slot = small.encode_slot(position)
    return slot + bytes(64) if position.generation % 2 == 0 else bytes(64) + slot


def _log_index(rng: random.Random) -> bytes:
    entries = [small.IndexEntry(_q(rng), _q(rng), _q(rng)) for _ in range(rng.randrange(5))]
    return small.encode_index(small.LogIndex(_q(rng), 256, _q(rng), entries))


def _decode_log_index(raw: bytes) -> small.LogIndex:
    index = small.decode_index(raw)
    return index._replace(entries=tuple(index.entries))


# -- other people's ----------------------------------------------------------------------


def _sqs(rng: random.Random) -> bytes:
    return SQS.encode(_id(rng), _b(rng, 60), checksum=rng.random() < 0.8)


def _fix_sqs(raw: bytes) -> bytes:
    raw = _put(raw, 1, len(raw).to_bytes(4, "big"))
    return _put(raw, 21, zlib.crc32(raw[25:], zlib.crc32(raw[:21])).to_bytes(4, "big"))


def _exact(decode: Callable[[bytes], Record], encode: Callable[[Record], bytes]) -> Any:
    """A decoder of what a buffer begins with: that is, byte for byte, what is encoded again."""

    def inner(raw: bytes) -> Record:
        record = decode(raw)
        assert encode(record) == raw[: record.size], raw.hex()
        return record

    return inner


def _encode_sqs(record: Record) -> bytes:
    return SQS.encode(record.id, record.payload, checksum=record.kind == CHECKED)


def _encode_rdq(record: Record) -> bytes:
    return RDQ.encode(record.id, record.payload)


def _rust(rng: random.Random) -> bytes:
    """A record of CRC32: the other two are in ``segment_files``."""
    return RustQueue().encode(b"\x01" + _b(rng, 60))


def _fix_rust(raw: bytes) -> bytes:
    raw = _put(raw, 0, max(0, len(raw) - 8).to_bytes(4, "little"))
    return raw[:-4] + zlib.crc32(raw[:-4]).to_bytes(4, "little")


def _encode_rust(record: Record) -> bytes:
    return RustQueue().encode(record.payload)


def _ledgerq(rng: random.Random) -> bytes:
    gzip, at = zlib.compressobj(wbits=31), 1 + (_q(rng) >> 1)
    packed = gzip.compress(b"x" * rng.randrange(99)) + gzip.flush()
    payload, encoding = rng.choice(((packed, "gzip"), (_b(rng, 40), "none"), (_b(rng, 40), "")))
    return lq.encode(
        Record(
            0,
            0,
            payload,
            sequence=1 + _q(rng),
            timestamp_ns=at,
            expires_ns=rng.choice((0, at + 5)),
            priority=rng.choice((None, 0, 2)),
            headers=rng.choice(
                (
                    headers(rng),
                    {"dlq.original_msg_id": "7", "dlq.last_failure": "2024-01-02T03:04:05.6+01:00"},
                )
            ),
            encoding=encoding,
            kind=rng.randrange(1, 4),
        )
    )


def _fix_ledgerq(raw: bytes) -> bytes:
    raw = _put(raw, 0, max(0, len(raw) - 4).to_bytes(4, "little"))
    return raw[:-8] + crc32c(raw[:-8]).to_bytes(4, "little") + raw[-4:]


def _decode_ledgerq(raw: bytes) -> Record:
    record = LEDGERQ.decode(raw)
    dead_letter(record)
    if record.priority is not None and record.priority > 2:
        raise SegmentCorruptError("verify tells of it, encode refuses it", reason="priority")
    return replace(record, size=0, payload=lq.content(record), encoding="")


def _fix_crc32c(at: int) -> Callable[[bytes], bytes]:
    return lambda raw: _put(raw, at, crc32c(raw[:at]).to_bytes(4, "little"))


def _lq_index(rng: random.Random) -> bytes:
    entries, at = [], 64
    for i in range(rng.randrange(5)):
        entries.append(lq_index.IndexEntry(1 + 9 * i, at, _q(rng)))
        at += 4096 + rng.randrange(99)
    return lq_index.encode_index(lq_index.Index(_q(rng), tuple(entries)))


def _retry(rng: random.Random) -> bytes:
    return state.encode_retry(
        state.RetryState(
            3,
            tuple(
                state.RetryEntry(
                    i,
                    rng.randrange(9),
                    state.GoTime(_q(rng), rng.choice((0, -90, 60))),
                    rng.choice(("", "<timeout> & \u2028")),
                )
                for i in range(rng.randrange(3))
            ),
        )
    )


def _dedup(rng: random.Random) -> bytes:
    return state.encode_dedup(
        state.DedupState(
            tuple(
                state.DedupEntry(
                    rng.randbytes(32).hex(), _q(rng), _q(rng), _q(rng), rng.choice((None, 64))
                )
                for _ in range(rng.randrange(3))
            )
        )
    )


def _rust_index(rng: random.Random) -> bytes:
    entries = tuple(index.IndexEntry(1024 * i, 99 * i) for i in range(rng.randrange(5)))
    return index.encode_index(index.Index(1024, entries))


def _rust_manifest(rng: random.Random) -> bytes:
    path = "/q/2024/01/02/20240102-0001.data"
    return index.encode_manifest(
        index.Manifest(
            _q(rng),
            index.ActiveFile(rng.randrange(9), _q(rng), _q(rng), path[: _q(rng)]),
            tuple(
                index.SealedFile(_q(rng), _q(rng), _q(rng), rng.choice((path, "ü")))
                for _ in range(rng.randrange(4))
            ),
        )
    )


def _fix_manifest(raw: bytes) -> bytes:
    return _put(raw, 20, zlib.crc32(raw[32:]).to_bytes(4, "little"))


# -- all of them -------------------------------------------------------------------------


def _of(
    covers: str,
    example: Example,
    decode: Any,
    encode: Any = None,
    fix: Any = bytes,
    is_canonical: bool = False,
    rate: float = 0.4,
) -> Target:
    return Target(
        tuple(f"segments.{name}" for name in covers.split()),
        example,
        decode,
        encode,
        (SegmentCorruptError, RecordCorruptError),
        is_canonical,
        fix,
        rate,
    )


SEGMENT_TARGETS = {
    "journal_header": _of("journal.log_format.decode_header",
        lambda r: journal.encode_header(_q(r), _q(r)), journal.decode_header,
        lambda v: journal.encode_header(*v), lambda raw: _sealed(raw[:64])),
    "journal_frame": _of(
        "journal.log_format.decode_head journal.log_format.decode_frame "
        "journal.log_format._decode_rich journal.log_format._decode_meta",
        _frame, _decode_frame, _encode_frame, _fix_frame),
    "position": _of("journal.small_files.decode_position",
        _slots, _decode_slots, _encode_slots, _fix_slots),
    "journal_index": _of("journal.small_files.decode_index",
        _log_index, _decode_log_index, small.encode_index, _sealed),
    "place": _of("journal.small_files.decode_place",
        lambda r: small.encode_place(small.TailerPosition(_q(r), _q(r))), small.decode_place,
        small.encode_place, _sealed),
    "sqs_record": _of("bodies.sqs.decode", _sqs, _exact(SQS.decode, _encode_sqs), fix=_fix_sqs),
    "rdq_record": _of("formats.rdq.decode",
        lambda r: RDQ.encode(_id(r), _b(r, 60)), _exact(RDQ.decode, _encode_rdq)),
    "rust_record": _of("formats.rust_queue.codec.decode",
        _rust, _exact(RustQueue(Variant.CRC32).decode, _encode_rust), fix=_fix_rust),
    "rust_index": _of("formats.rust_queue.index.decode_index",
        _rust_index, index.decode_index, index.encode_index),
    "rust_manifest": _of(
        "formats.rust_queue.index.decode_manifest formats.rust_queue.index._decode_path",
        _rust_manifest, index.decode_manifest, index.encode_manifest,
        _fix_manifest),
    "rust_current": _of("formats.rust_queue.index.decode_current",
        lambda r: bytes((r.choice((1, 2)),)), index.decode_current,
        index.encode_current),
    "ledgerq_record": _of("formats.ledgerq.codec.decode formats.ledgerq.codec._decode_headers",
        _ledgerq, _decode_ledgerq, lq.encode, _fix_ledgerq, rate=0.2),
    "ledgerq_header": _of("formats.ledgerq.codec.decode_header",
        lambda r: lq.encode_header(lq.SegmentHeader(_q(r), _q(r), _q(r), _q(r))),
        lq.decode_header, lq.encode_header, _fix_crc32c(60), rate=0.2),
    "ledgerq_index": _of("formats.ledgerq.index.decode_index",
        _lq_index, lq_index.decode_index, lq_index.encode_index, _fix_crc32c(28),
        is_canonical=True),
    "ledgerq_meta": _of("formats.ledgerq.state.decode_metadata",
        lambda r: state.encode_metadata(state.Metadata(1 + _q(r), 1 + _q(r))),
        state.decode_metadata, state.encode_metadata, is_canonical=True),
    "ledgerq_retry": _of("formats.ledgerq.state.decode_retry",
        _retry, state.decode_retry, state.encode_retry, rate=0.2),
    "ledgerq_dedup": _of("formats.ledgerq.state.decode_dedup",
        _dedup, state.decode_dedup, state.encode_dedup, rate=0.2),
}  # fmt: skip
