"""The task record: written once, at enqueue, and never rewritten.

::

    0   u8   'T'            1   u8   version, 1
    2   u16  flags: bits 0-1 payload kind, 2-3 compression, 4 the payload lies in a body file,
             6 its end concerns a join (workflow.py)
    4   u8   priority       5   u8   first index kind, 'r' or 'd'
    6   u8   queue bytes    7   u8   tenant bytes
    8   i64  created_us     16  i64  seq (of the first index key)
    24  i64  due_ms (0: ready at once)
    32  i64  expires_ms (TTL; 0: never)
    40  32 B policy         (policy.py)
    72  16 B ghost key      88  i64  ghost_expires_ms (0: while the task lives)
    96  u32  headers bytes  100 u32  payload bytes    104 u32 payload bytes before compression
    108 u8   form of the ghost key's hash: 0 xxh3_128 (or no ghost), 1 keyed
    109 u8   0              110 u16  face bytes (face.py; 0: none, as in all records before it)
    112      queue, tenant, headers (msgpack), face, payload
    end u64  xxh3_64

A ghost key of zeros means none. The body is opaque to the engine. With a body file, what stands in
place of the payload is the id (16 bytes) of the record there, and the task has a ``b/`` row;
``whole_record`` puts both together again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from ...errors import RecordCorruptError
from .fixed_fields import FixedFields
from .frame import open_frame, seal

__all__ = [
    "ATTEMPTS_MAX",
    "BODY_FLAG",
    "FIRST_DELAYED",
    "FIRST_READY",
    "FRAME_BYTES",
    "NO_GHOST",
    "PAYLOAD_AT",
    "RECORD_ID_BYTES",
    "TASK_FIELDS",
    "TASK_HEAD",
    "TIMES",
    "WHOLE_BYTES_MAX",
    "TaskRecord",
    "created_us",
    "decode_task",
    "encode_task",
    "has_body",
    "is_streamed",
    "is_streamed_task",
    "lease_fields",
    "option_packer",
    "pack_task_head",
    "pack_task_middle",
    "pack_task_times",
    "payload_of",
    "plain_packer",
    "raw_bytes_of",
    "record_face",
    "record_id_in",
    "slim_record",
    "whole_record",
]

TASK_FIELDS: Final = FixedFields(
    kind="B",
    version="B",
    flags="H",
    priority="B",
    first="B",
    queue="B",
    tenant="B",
    created="q",
    seq="q",
    due="q",
    expires="q",
    policy="32s",
    ghost="16s",
    ghost_until="q",
    headers="I",
    payload="I",
    raw="I",
    ghost_form="B",
    unused="x",
    face="H",
)
TASK_HEAD: Final = TASK_FIELDS.whole
# The same, cut where it varies: what the tasks of a queue share is packed once and kept.
_TIMES: Final = TASK_FIELDS.part("created", "expires")
_REST: Final = TASK_FIELDS.part("policy", "face") + TASK_FIELDS.zeros("face")
_HEAD: Final = struct.Struct(f"<{TASK_FIELDS.part('kind', 'tenant')}")
_MIDDLE: Final = struct.Struct(f"<{TASK_FIELDS.rest('policy')}")
FRAME_BYTES: Final = 48  # of a record, beside middle, names, headers, face and payload
FIRST_READY: Final[int] = 0x72
FIRST_DELAYED: Final[int] = 0x64
# created_us, seq, due_ms, expires_ms: what follows the head.
pack_task_times: Final[Callable[..., bytes]] = struct.Struct(f"<{_TIMES}").pack
# (times, policy, ghost, ghost_expires_ms, payload bytes, face bytes) of a record: what a lease
# takes over, and where the record has its face.
lease_fields: Final[Callable[[bytes], tuple[bytes, bytes, bytes, int, int, int]]] = (
    TASK_FIELDS.picked("created:seq", "policy", "ghost", "ghost_until", "payload", "face")
).unpack_from
TIMES: Final = struct.Struct("<qq")  # created_us and seq: side by side in all records of a task
PAYLOAD_AT: Final = TASK_HEAD.size
NO_GHOST: Final = bytes(16)
BODY_FLAG: Final = 16
RECORD_ID_BYTES: Final = 16
# A payload above it is *streamed*: it lies in a body file of its own, as it was given, and whoever
# asks for it reads it. No record is ever put together with it.
WHOLE_BYTES_MAX: Final = 3 << 20
ATTEMPTS_MAX: Final[int] = 0xFFFF  # all records count attempts in a u16
_U16, _U32 = struct.Struct("<H"), struct.Struct("<I")
_FLAGS_AT, _PAYLOAD_BYTES_AT = TASK_FIELDS.at["flags"], TASK_FIELDS.at["payload"]
_RAW_BYTES_AT: Final = TASK_FIELDS.at["raw"]
_KIND: Final = 0x54
_VERSION: Final = 1


class TaskRecord(NamedTuple):
    """A decoded task record."""

    flags: int
    priority: int
    first_kind: int
    created_us: int
    seq: int
    due_ms: int
    expires_ms: int
    policy: bytes
    ghost: bytes
    ghost_expires_ms: int
    raw_bytes: int
    queue: bytes
    tenant: bytes
    headers: bytes
    payload: bytes
    ghost_form: int = 1  # KEYED_FORM; says nothing without a ghost
    face: bytes = b""


def pack_task_head(
    flags: int, priority: int, first_kind: int, queue: bytes, tenant: bytes
) -> bytes:
    """The first eight bytes.

    Args:
        flags: payload kind, compression, ``BODY_FLAG``.
        priority: 0 to 9.
        first_kind: ``FIRST_READY`` or ``FIRST_DELAYED``.
        queue: its name; only the length goes in.
        tenant: as ``queue``.
    """
    return _HEAD.pack(_KIND, _VERSION, flags, priority, first_kind, len(queue), len(tenant))


def pack_task_middle(
    policy: bytes,
    ghost: bytes,
    ghost_expires_ms: int,
    headers_bytes: int,
    payload_bytes: int,
    raw_bytes: int,
    ghost_form: int,
    face_bytes: int = 0,
) -> bytes:
    """The fixed part between times and names.

    Args:
        policy: 32 bytes, see ``policy``.
        ghost: 16 bytes, ``NO_GHOST`` for none.
        ghost_expires_ms: wall milliseconds; 0: while the task lives.
        headers_bytes: how many follow the names.
        payload_bytes: how many follow the headers.
        raw_bytes: those of the payload before compression.
        ghost_form: of the ghost's hash; 0 without one.
        face_bytes: how many stand between headers and payload.
    """
    return _MIDDLE.pack(
        policy,
        ghost,
        ghost_expires_ms,
        headers_bytes,
        payload_bytes,
        raw_bytes,
        ghost_form,
        face_bytes,
    )


def plain_packer(middle_bytes: int, payload_bytes: int) -> Callable[..., bytes]:
    """Packs all of a record but its checksum, for tasks that differ in times and payload alone.

    What is returned takes head, created_us, seq, the middle with due_ms and expires_ms before it
    and the names behind it, and the payload.
    """
    return struct.Struct(f"<{_HEAD.size}sqq{middle_bytes}s{payload_bytes}s").pack


@lru_cache(maxsize=1024)
def option_packer(names_bytes: int, payload_bytes: int) -> Callable[..., bytes]:
    """Packs all of a record but its checksum, for tasks with the common options.

    Fields behind the length of the face are zero: whoever sets one takes ``pack_task_middle``.
    What is returned takes head, created_us, seq, due_ms, expires_ms, policy, ghost, its
    expires_ms, the length of the headers, that of the payload twice, the form of the ghost's
    hash, the length of the face, the names with headers and face behind them, and the payload.
    """
    return struct.Struct(f"<{_HEAD.size}s{_TIMES}{_REST}{names_bytes}s{payload_bytes}s").pack


def encode_task(t: TaskRecord) -> bytes:
    """The record's bytes."""
    return seal(
        TASK_HEAD.pack(
            _KIND,
            _VERSION,
            t.flags,
            t.priority,
            t.first_kind,
            len(t.queue),
            len(t.tenant),
            t.created_us,
            t.seq,
            t.due_ms,
            t.expires_ms,
            t.policy,
            t.ghost,
            t.ghost_expires_ms,
            len(t.headers),
            len(t.payload),
            t.raw_bytes,
            t.ghost_form if t.ghost != NO_GHOST else 0,
            len(t.face),
        )
        + t.queue
        + t.tenant
        + t.headers
        + t.face
        + t.payload
    )


def decode_task(raw: bytes) -> TaskRecord:
    """The inverse; ``RecordCorruptError`` on anything else."""
    open_frame(raw, TASK_HEAD, _KIND, _VERSION, "task record")
    (
        _,
        _,
        flags,
        priority,
        kind,
        nq,
        nt,
        created,
        seq,
        due,
        expires,
        policy,
        ghost,
        ghost_exp,
        nh,
        np,
        raw_bytes,
        form,
        nf,
    ) = TASK_HEAD.unpack_from(raw)
    a = PAYLOAD_AT + nq
    b = a + nt
    c = b + nh
    d = c + nf
    if d + np + 8 != len(raw) or priority > 9 or kind not in b"rd":
        raise RecordCorruptError("task record: lengths do not add up")
    return TaskRecord(
        flags,
        priority,
        kind,
        created,
        seq,
        due,
        expires,
        policy,
        ghost,
        ghost_exp,
        raw_bytes,
        raw[PAYLOAD_AT:a],
        raw[a:b],
        raw[b:c],
        raw[d : d + np],
        form if ghost != NO_GHOST else 1,
        raw[c:d],
    )


def record_face(raw: bytes, payload_bytes: int, face_bytes: int) -> bytes:
    """The face out of an encoded record that was checked, whole or with ``BODY_FLAG``.

    Args:
        raw: the record.
        payload_bytes: as it says, and as the next.
        face_bytes: at least 1.
    """
    end = len(raw) - 8 - payload_bytes
    return raw[end - face_bytes : end]


def record_id_in(raw: bytes) -> bytes:
    """Which record of a body file has the payload of an encoded record with ``BODY_FLAG``."""
    return raw[-8 - RECORD_ID_BYTES : -8]


def whole_record(raw: bytes, payload: bytes) -> bytes:
    """A record as it would be with the payload in it, but for its checksum, which is left out.

    For memory only: what was stored has been checked.
    """
    end = len(raw) - 8 - _U32.unpack_from(raw, _PAYLOAD_BYTES_AT)[0]
    head = bytearray(raw[:PAYLOAD_AT])
    _U16.pack_into(head, _FLAGS_AT, _U16.unpack_from(head, _FLAGS_AT)[0] & ~BODY_FLAG)
    _U32.pack_into(head, _PAYLOAD_BYTES_AT, len(payload))
    return b"".join((head, raw[PAYLOAD_AT:end], payload, bytes(8)))


def has_body(record: bytes | None) -> bool:
    """Whether a record, which may be damaged, says that its payload lies in a file."""
    return record is not None and len(record) > 2 and record[2] & BODY_FLAG != 0


def raw_bytes_of(record: bytes) -> int:
    """Bytes of the payload before compression, as an encoded record says."""
    size: int = _U32.unpack_from(record, _RAW_BYTES_AT)[0]
    return size


def is_streamed(record: bytes) -> bool:
    """Whether the payload of an encoded record that was checked is a streamed one."""
    return record[2] & BODY_FLAG != 0 and raw_bytes_of(record) > WHOLE_BYTES_MAX


def is_streamed_task(task: TaskRecord) -> bool:
    """The same of a decoded record."""
    return task.flags & BODY_FLAG != 0 and task.raw_bytes > WHOLE_BYTES_MAX


def payload_of(raw: bytes) -> bytes:
    """The payload, as it is stored, in an encoded record that was checked."""
    return raw[-8 - _U32.unpack_from(raw, _PAYLOAD_BYTES_AT)[0] : -8]


def slim_record(raw: bytes, record_id: bytes) -> bytes:
    """The inverse of ``whole_record``: ``record_id`` stands where the payload was."""
    end = len(raw) - 8 - _U32.unpack_from(raw, _PAYLOAD_BYTES_AT)[0]
    head = bytearray(raw[:PAYLOAD_AT])
    _U16.pack_into(head, _FLAGS_AT, _U16.unpack_from(head, _FLAGS_AT)[0] | BODY_FLAG)
    _U32.pack_into(head, _PAYLOAD_BYTES_AT, len(record_id))
    return seal(b"".join((head, raw[PAYLOAD_AT:end], record_id)))


def created_us(times: bytes) -> int:
    """The first of the two."""
    return int.from_bytes(times[:8], "little")
