"""Every decoder of stored bytes: how to make an example, how to mutate it, what may come of it.

The oracle is the same for all: what ``decode`` raises is one of the target's own errors, what it
returns comes back as the same value from ``decode(encode(value))``, and where the format claims
one spelling a value, ``encode(decode(raw)) == raw``.
"""

from __future__ import annotations

import json
import random
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
import zstandard
from fuzz.import_targets import IMPORTS
from fuzz.link_targets import LINKS
from fuzz.load_targets import LOADS
from fuzz.segment_files import SEGMENT_FILES
from fuzz.segment_targets import SEGMENT_TARGETS
from fuzz.target import Example, Target, _b, _id, _q

from lodeq.engine.records import events as ev
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows
from lodeq.engine.records import workflow as wf
from lodeq.engine.records.attempts import AttemptRecord, decode_attempts, encode_attempts
from lodeq.engine.records.compression import inflate
from lodeq.engine.records.face import Face, pack_face, unpack_face
from lodeq.engine.records.frame import open_frame, seal
from lodeq.engine.records.lease import LeaseRecord, decode_lease, encode_lease
from lodeq.engine.records.policy import Policy, decode_policy, encode_policy
from lodeq.engine.records.progress import ProgressRecord, decode_progress, encode_progress
from lodeq.engine.records.queues import functions as fn
from lodeq.engine.records.queues.queue_settings import decode_queue_settings, encode_queue_settings
from lodeq.engine.records.result import ResultRecord, decode_result, encode_result
from lodeq.engine.records.task import TaskRecord, decode_task, encode_task
from lodeq.engine.recovery import checkpoint, watermark
from lodeq.engine.recovery.table_blocks import StrangeError, unpacked, varint
from lodeq.engine.values import Setting
from lodeq.errors import CorruptionError, FormatTooNewError, OpenError, RecordCorruptError
from lodeq.repository.model.calls.functions import (
    FunctionParameter,
    PublishedFunction,
    pack_function,
    unpack_function,
)
from lodeq.repository.model.codec import decode_headers, decode_value, encode_headers, encode_value
from lodeq.segments.lifecycle import Reader

# -- examples ----------------------------------------------------------------------------


def _policy(rng: random.Random) -> bytes:
    return encode_policy(Policy(rng.randrange(65536), rng.randrange(5), 2.0, 1, 2, 3, 4))


def _decode_policy(raw: bytes) -> Policy:
    return decode_policy(raw.ljust(32, b"\0")[:32])  # a record's field: never of another length


def _task(rng: random.Random) -> bytes:
    return encode_task(
        TaskRecord(
            rng.randrange(16),
            rng.randrange(10),
            rng.choice(b"rd"),
            _q(rng),
            _q(rng),
            _q(rng),
            _q(rng),
            _policy(rng),
            _id(rng),
            _q(rng),
            rng.getrandbits(32),
            _b(rng, 65),
            _b(rng, 65),
            _b(rng, 40),
            _b(rng, 80),
        )
    )


def _lease(rng: random.Random) -> bytes:
    return encode_lease(
        LeaseRecord(
            rng.randrange(4),
            rng.randrange(65536),
            rng.randrange(10),
            _q(rng),
            _id(rng),
            _q(rng),
            rng.getrandbits(32),
            rng.getrandbits(32),
            _q(rng),
            _q(rng),
            _q(rng),
            _policy(rng),
            _id(rng),
            _q(rng),
            _b(rng, 65),
            _b(rng, 65),
            _b(rng, 40),
        )
    )


def _result(rng: random.Random) -> bytes:
    return encode_result(
        ResultRecord(
            rng.randrange(32),
            rng.randrange(1, 5),
            rng.randrange(10),
            rng.randrange(65536),
            _q(rng),
            _q(rng),
            _q(rng),
            _q(rng),
            _q(rng),
            _q(rng),
            _q(rng),
            rng.getrandbits(32),
            _b(rng, 65),
            _b(rng, 65),
            _b(rng, 40),
            _b(rng, 40),
            _b(rng, 80),
        )
    )


def _lz4_block(rng: random.Random) -> bytes:
    """A block of a table: literals, and a copy of some of them."""
    literals = _b(rng, 300)
    count, copied = len(literals), rng.randrange(15) if literals else 0
    token = min(count, 15) << 4 | copied
    extra = bytes([255] * ((count - 15) // 255) + [(count - 15) % 255]) if count >= 15 else b""
    back = rng.randint(1, count).to_bytes(2, "little") if literals else b""
    return (
        varint(count + (4 + copied if literals else 0)) + bytes((token,)) + extra + literals + back
    )


def _expiry(rng: random.Random) -> bytes:
    n = rng.randrange(6)
    return rows.encode_expiry([bytes((rng.choice(b"trgxbc"),)) + _id(rng) for _ in range(n)])


def _index_row(rng: random.Random) -> bytes:
    return rows.encode_index_row(
        rows.IndexRow(
            rng.randrange(2), rng.randrange(10), rng.randrange(99), 200, _q(rng), _b(rng, 60)
        )
    )


def _event_row(rng: random.Random) -> bytes:
    runs = [
        ev.pack_run(
            rng.randrange(1, 11),
            rng.randrange(10),
            rng.randrange(9),
            _q(rng),
            ev.tenant_queue_tag(_name(rng), rng.choice((b"", _name(rng)))),
            rng.choice((b"", b"w1")),
            [_id(rng) for _ in range(rng.randrange(1, 4))],
        )
        for _ in range(rng.randrange(4))
    ]
    return ev.encode_event_row(rng.randrange(4096), _q(rng), runs)


def _encode_event_row(row: ev.EventRow) -> bytes:
    return ev.encode_event_row(row.shard, row.commit_seq, [ev.encode_run(run) for run in row.runs])


def _begin_row(rng: random.Random) -> bytes:
    return ev.encode_begin_row(rng.randrange(4096), _q(rng))


def _start_row(rng: random.Random) -> bytes:
    ranges = [(_q(rng), _q(rng)) for _ in range(rng.randrange(4))]
    return ev.encode_start_row(rng.randrange(4096), _q(rng), _q(rng), ranges)


def _name(rng: random.Random) -> bytes:
    return rng.choice((b"a", b"mail", b"a.b-c_9", b"q" * 64))


def _index_key(rng: random.Random) -> bytes:
    prefix = ks.shard_queue_prefix(_name(rng), rng.choice((b"", _name(rng))))
    return rng.choice(
        (
            ks.ready_key(prefix, rng.randrange(10), _q(rng), _id(rng)),
            ks.delayed_key(prefix, _q(rng), _q(rng), _id(rng)),
            ks.dead_key(prefix, _q(rng), _id(rng)),
        )
    )


def _encode_index_key(at: ks.IndexKey) -> bytes:
    prefix = ks.shard_queue_prefix(at.queue, at.tenant)
    if at.kind == ks.READY:
        return ks.ready_key(prefix, at.priority, at.seq, at.task_id)
    if at.kind == ks.DELAYED:
        return ks.delayed_key(prefix, at.at, at.seq, at.task_id)
    return ks.dead_key(prefix, at.at, at.task_id)


def _thing(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(9 if depth else 6)
    if kind < 6:
        return (None, True, _q(rng), 1.5, _b(rng, 20), "häßlich")[kind]
    if kind == 6:
        return [_thing(rng, depth - 1) for _ in range(rng.randrange(4))]
    keys = ("a", "b", 1, b"c", 2.5)
    return {rng.choice(keys): _thing(rng, depth - 1) for _ in range(rng.randrange(4))}


def _value(rng: random.Random) -> bytes:
    """Kind, compression, declared size, bytes: as a record's fields give them."""
    kind, data = encode_value(_thing(rng), None, 1 << 20, "payload")
    size, code = len(data), rng.randrange(3)
    if code == 1:
        data = zlib.compress(data, 1)
    elif code == 2:
        data = zstandard.ZstdCompressor(level=1).compress(data)
    return bytes((kind, code)) + size.to_bytes(4, "little") + data


def _decode_value(raw: bytes) -> Any:
    if len(raw) < 6:
        raise RecordCorruptError("too short to say what it is")
    size = int.from_bytes(raw[2:6], "little") & 0xFFFFF  # a record's limit: 1 MiB
    return decode_value(raw[0] & 3, raw[1] & 3, raw[6:], size, None)


def _packed(rng: random.Random) -> bytes:
    raw = b"x" * rng.randrange(4000) + _b(rng, 300)
    code = rng.choice((0, 1, 2))
    data = (raw, zlib.compress(raw), zstandard.ZstdCompressor().compress(raw))[code]
    return bytes((code,)) + len(raw).to_bytes(3, "little") + data


def _inflate(raw: bytes) -> bytes:
    if len(raw) < 4:
        raise RecordCorruptError("too short to say what it is")
    size = int.from_bytes(raw[1:4], "little")
    out = inflate(raw[0], raw[4:], size)
    assert raw[0] == 0 or len(out) == size
    return out


def _headers(rng: random.Random) -> bytes:
    return encode_headers({f"k{i}": _thing(rng) for i in range(rng.randrange(4))}, 1 << 14)


# -- files -------------------------------------------------------------------------------

_SLOT = struct.Struct("<8sHHI16sQQQ")
_FOLDER = tempfile.TemporaryDirectory(
    prefix="lodeq-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
)
FOLDER = Path(_FOLDER.name)


def _slot(rng: random.Random) -> bytes:
    """Both slots, one behind the other; in the file they lie 4,096 bytes apart."""
    out = b""
    for slot in range(2):
        body = _SLOT.pack(b"lodeqWM\0", 1, 3, 0, _id(rng), 5, _q(rng), 2 * rng.randrange(9) + slot)
        out += body + xxhash.xxh3_64_digest(body)
    return out


def _fix_slots(raw: bytes) -> bytes:
    half = len(raw) // 2
    return b"".join(p[:-8] + xxhash.xxh3_64_digest(p[:-8]) for p in (raw[:half], raw[half:]))


def _decode_slots(raw: bytes) -> watermark.WatermarkState:
    half = len(raw) // 2
    path = FOLDER / "watermark"
    with path.open("wb") as file:
        for at, part in zip(watermark.SLOT_AT, (raw[:half], raw[half:]), strict=True):
            file.seek(at)
            file.write(part[:2000])
    return watermark.Watermark.read(str(path))


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, indent=0, sort_keys=True).encode("ascii")


def _manifest(rng: random.Random) -> bytes:
    n = rng.randrange(1, 4)
    body = {
        "format": "lodeq-checkpoint",
        "version": 1,
        "store_id": _id(rng).hex(),
        "shards": [[i, rng.randrange(9), rng.getrandbits(50)] for i in range(n)],
        "files": [
            [f"shard{i}/{name}", rng.randrange(1 << 30), _id(rng).hex()]
            for i in range(n)
            for name in ("CURRENT", "000004.sst")
        ],
    }
    return _fix_manifest(_dump(body | {"xxh3_128": ""}))


def _fix_manifest(raw: bytes) -> bytes:
    try:
        body = json.loads(raw)
        body.pop("xxh3_128", None)
        return _dump(body | {"xxh3_128": xxhash.xxh3_128_hexdigest(_dump(body))})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return raw


def _decode_manifest(raw: bytes) -> checkpoint.Manifest:
    (FOLDER / checkpoint.MANIFEST).write_bytes(raw)
    return checkpoint.read_manifest(FOLDER)


def reseal(raw: bytes) -> bytes:
    """A record whose checksum fits, whatever else is wrong with it."""
    return seal(raw[:-8])


_FRAME = struct.Struct("<BBH")


def _frame(raw: bytes) -> bytes:
    open_frame(raw, _FRAME, 0x45, 1, "frame")
    return raw[:-8]


def _record(
    name: str,
    example: Example,
    decode: Any,
    encode: Any,
    *more: type[Exception],
    is_canonical: bool = False,
) -> Target:
    return Target(
        (name,),
        example,
        decode,
        encode,
        (RecordCorruptError, *more),
        is_canonical=is_canonical,
        fix=reseal,
    )


def _queue_settings(r: random.Random) -> bytes:
    values = (3, True, (10, 1000), -1)
    given = {
        name: Setting(r.choice(values), "function send", _q(r))
        for name in ("rate", "faces", "of-later")
        if r.random() < 0.7
    }
    return encode_queue_settings(given)


def _attempts(r: random.Random) -> bytes:
    return encode_attempts(
        [
            AttemptRecord(n, r.randrange(1, 4), _q(r), _q(r), _b(r, 40), b"e" * r.randrange(600))
            for n in range(1, r.randrange(2, 14))
        ]
    )


def _face(r: random.Random) -> bytes:
    labels = tuple(f"k{n}=ä" for n in range(r.randrange(4)))
    return pack_face(Face(r.choice(("", "send")), r.choice(("", "to='a'")), labels))


def _join(r: random.Random) -> bytes:
    return wf.encode_join(
        wf.JoinRecord(
            r.randrange(1, 4),
            r.randrange(1, 4),
            r.randrange(16),
            *(r.getrandbits(32) for _ in range(4)),
            _q(r),
            _q(r),
            _id(r),
            _id(r),
            _id(r),
            _b(r, 65),
        )
    )


def _edges(r: random.Random) -> bytes:
    count = r.randrange(5)
    return wf.encode_edges(
        [wf.Edge(r.randrange(2), r.getrandbits(32), _id(r)) for _ in range(count)]
    )


def _meta(
    name: str, make: Callable[[random.Random], bytes], spread: bool = False, *more: type[Exception]
) -> Target:
    decode, encode = getattr(rows, f"decode_{name}"), getattr(rows, f"encode_{name}")
    return _record(
        f"engine.records.rows.decode_{name}",
        make,
        decode,
        (lambda v: encode(*v)) if spread else encode,
        *more,
    )


_R = "engine.records."
TARGETS = (
    {
        "frame": _record(_R + "frame.open_frame", _expiry, _frame, seal, is_canonical=True),
        "task": _record(_R + "task.decode_task", _task, decode_task, encode_task),
        "lease": _record(_R + "lease.decode_lease", _lease, decode_lease, encode_lease),
        "result": _record(_R + "result.decode_result", _result, decode_result, encode_result),
        "policy": Target((_R + "policy.decode_policy",), _policy, _decode_policy, encode_policy),
        "attempts": _record(
            _R + "attempts.decode_attempts", _attempts, decode_attempts, encode_attempts
        ),
        "progress": _record(
            _R + "progress.decode_progress",
            lambda r: encode_progress(
                ProgressRecord(_q(r), r.choice((None, 0.0, 0.5, 1.0)), _b(r, 257))
            ),
            decode_progress,
            encode_progress,
        ),
        "face": Target(  # what is no face is none: nothing is raised
            (_R + "face.unpack_face",), _face, unpack_face, pack_face, errors=()
        ),
        "join": _record(_R + "workflow.decode_join", _join, wf.decode_join, wf.encode_join),
        "part": _record(
            _R + "workflow.decode_part",
            lambda r: wf.encode_part(
                wf.PartRecord(r.randrange(5), r.getrandbits(32), _q(r), _id(r))
            ),
            wf.decode_part,
            wf.encode_part,
        ),
        "edges": _record(_R + "workflow.decode_edges", _edges, wf.decode_edges, wf.encode_edges),
        "workflow_key": _record(
            _R + "workflow.decode_key",
            lambda r: wf.encode_key(_id(r)),
            wf.decode_key,
            wf.encode_key,
        ),
        "outbox": _record(
            _R + "workflow.decode_outbox",
            lambda r: wf.encode_outbox(
                wf.OutboxRecord(r.randrange(5), r.getrandbits(32), r.getrandbits(32), _q(r))
            ),
            wf.decode_outbox,
            wf.encode_outbox,
        ),
        "index_row": _meta("index_row", _index_row),
        "moved": _meta("moved", lambda r: rows.encode_moved(rows.Moved(3, _index_key(r)))),
        "ghost": _meta("ghost", lambda r: rows.encode_ghost(rows.Ghost(_id(r), _q(r)))),
        "expiry": Target(
            (_R + "rows.decode_expiry",),
            _expiry,
            rows.decode_expiry,
            lambda v: rows.encode_expiry(bytes((k,)) + x for k, x in v),
            fix=reseal,
        ),
        "counters": _meta(
            "counters",
            lambda r: rows.encode_counters(*(_q(r) for _ in range(r.choice((5, 6))))),
            True,
        ),
        "pause": _meta("pause", lambda r: rows.encode_pause(_q(r))),
        "queue_settings": _record(
            _R + "queues.queue_settings.decode_queue_settings",
            _queue_settings,
            decode_queue_settings,
            encode_queue_settings,
        ),
        "queue_settings_key": Target(
            (_R + "keyspace.decode_queue_settings_key",),
            lambda r: ks.queue_settings_key(_name(r)),
            ks.decode_queue_settings_key,
            ks.queue_settings_key,
            is_canonical=True,
        ),
        "stamp": _meta(
            "stamp", lambda r: rows.encode_stamp(rows.Stamp(1, 4, 0, _id(r))), False, OpenError
        ),
        "open": _meta("open", lambda r: rows.encode_open(_q(r))),
        "files": _meta("files", lambda r: rows.encode_files(_q(r))),
        "journal_row": _meta("journal", lambda r: rows.encode_journal(r.randbytes(16))),
        "ring": _meta("ring", lambda r: rows.encode_ring(_q(r), _q(r)), True),
        "applied": _meta("applied", lambda r: rows.encode_applied(rows.Applied(_q(r), _q(r)))),
        "secret": _meta("secret", lambda r: rows.encode_secret(_id(r) + _id(r))),
        "old_ghosts": _meta("old_ghosts", lambda r: rows.encode_old_ghosts(_q(r))),
        "body": _meta(
            "body",
            lambda r: rows.encode_body(rows.BodyRow(r.getrandbits(32), _q(r), _q(r), _id(r))),
        ),
        "body_at": _meta("body_at", lambda r: rows.encode_body_at(r.getrandbits(32))),
        "lz4_block": Target(
            ("engine.recovery.table_blocks._unpack_lz4",),
            _lz4_block,
            lambda raw: unpacked(raw, 4),
            errors=(StrangeError,),
        ),
        "body_at_key": Target(
            ("engine.records.keyspace.decode_body_at_key",),
            lambda r: ks.body_at_key(_q(r), _q(r), _id(r)),
            ks.decode_body_at_key,
            lambda v: ks.body_at_key(*v),
            is_canonical=True,
        ),
        "index_key": Target(
            ("engine.records.keyspace.decode_index_key",),
            _index_key,
            ks.decode_index_key,
            _encode_index_key,
            is_canonical=True,
        ),
        "expiry_key": Target(
            ("engine.records.keyspace.decode_expiry_key",),
            lambda r: ks.expiry_key(_q(r), _q(r)),
            ks.decode_expiry_key,
            lambda v: ks.expiry_key(*v),
            is_canonical=True,
        ),
        "counters_key": Target(
            ("engine.records.keyspace.decode_counters_key",),
            lambda r: ks.counters_key(_name(r), _name(r)),
            ks.decode_counters_key,
            lambda v: ks.counters_key(*v),
            is_canonical=True,
        ),
        "pause_key": Target(
            ("engine.records.keyspace.decode_pause_key",),
            lambda r: ks.pause_key(_name(r), r.choice((b"*", b""))),
            ks.decode_pause_key,
            lambda v: ks.pause_key(*v),
            is_canonical=True,
        ),
        "function_key": Target(
            ("engine.records.queues.functions.decode_function_key",),
            lambda r: fn.function_key(_name(r), r.choice((b"send", b"a\0b", b"x/y"))),
            fn.decode_function_key,
            lambda v: fn.function_key(*v),
            is_canonical=True,
        ),
        "function_row": _record(
            _R + "queues.functions.decode_function",
            lambda r: fn.encode_function(fn.FunctionRow(_q(r) >> 1, b"\x80")),
            fn.decode_function,
            fn.encode_function,
        ),
        "function_facts": Target(
            ("repository.model.calls.functions.unpack_function",),
            lambda r: pack_function(
                PublishedFunction(
                    "mail",
                    "send",
                    max_attempts=r.randrange(1, 9),
                    parameters=r.choice((None, (), (FunctionParameter("to"),))),
                    doc=r.choice(("", "Send it.")),
                )
            ),
            lambda raw: unpack_function(b"mail", b"send", 1, raw),
            pack_function,
            (RecordCorruptError,),
        ),
        "event_row": _record(
            _R + "events.decode_event_row",
            _event_row,
            ev.decode_event_row,
            _encode_event_row,
            is_canonical=True,
        ),
        "start_row": _record(
            _R + "events.decode_start_row",
            _start_row,
            ev.decode_start_row,
            lambda v: ev.encode_start_row(*v),
            is_canonical=True,
        ),
        "begin_row": _record(
            _R + "events.decode_begin_row",
            _begin_row,
            ev.decode_begin_row,
            lambda v: ev.encode_begin_row(*v),
            is_canonical=True,
        ),
        "events_key": Target(
            ("engine.records.keyspace.decode_events_key",),
            lambda r: ks.events_key(_q(r)),
            ks.decode_events_key,
            ks.events_key,
            is_canonical=True,
        ),
        "lifecycle": Target(
            ("segments.lifecycle._decode",),
            lambda r: r.choice((_event_row, _start_row, _begin_row))(r),
            Reader().read,
            fix=reseal,
        ),
        "value": Target(("repository.model.codec.decode_value",), _value, _decode_value, rate=0.5),
        "headers": Target(("repository.model.codec.decode_headers",), _headers, decode_headers),
        "inflate": Target(("engine.records.compression.inflate",), _packed, _inflate, rate=0.5),
        "watermark": Target(
            ("engine.recovery.watermark._decode",),
            _slot,
            _decode_slots,
            errors=(CorruptionError, OpenError),
            fix=_fix_slots,
            rate=0.1,
        ),
        "manifest": Target(
            ("engine.recovery.checkpoint.read_manifest",),
            _manifest,
            _decode_manifest,
            lambda m: checkpoint._dump(m),
            (CorruptionError, FormatTooNewError),
            fix=_fix_manifest,
            rate=0.1,
        ),
    }
    | LOADS
    | SEGMENT_TARGETS
    | SEGMENT_FILES
    | IMPORTS
    | LINKS
)

# What reads stored bytes only by calling what is above, or reads none.
ELSEWHERE = {
    "engine.bulk.arrow.page.decode",  # of the protocol: each is the plain decoder of a record
    "engine.recovery.health._decode_events",
    "engine.recovery.health._decode_meta",
    "repository.model.codec._decode_inflated",
    "repository.tasks.claim_order._decode",
    "repository.model.values.decode",  # of a codec: the user's
    "segments.item.decode",  # of the protocol: the codecs' own are above
}
