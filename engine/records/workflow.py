"""The records of workflows: joins, their parts, edges, keys, and the outbox (docs/workflows.md).

============ ===== ==========================================================================
row          type  layout (little-endian), each sealed with xxh3_64
============ ===== ==========================================================================
join         'W'   u8 type, u8 version, u8 state (1 waits, 2 fired, 3 over), u8 on_failure
                   (1 run, 2 wait, 3 cancel), u16 flags (1 sealed, 2 workflow, 4 cancelled,
                   8 being redriven), u16 name bytes, u32 generation, u32 parts, u32 ended,
                   u32 failed, i64 created_us, i64 fired_us, workflow:16, target:16 (zeros:
                   none), key hash:16 (zeros: none), name
part         'w'   u8 type, u8 version, u8 status (0: under way), u8 0, u32 epoch,
                   i64 ended_us, source id:16
edges        'Z'   u8 type, u8 version, u16 count, then (u8 role: 0 part, 1 target; u32 number
                   of the part, join:16) each; version 2: then an u32 epoch each
key          'H'   u8 type, u8 version, u16 0, workflow:16
outbox       'Q'   u8 type, u8 version, u8 status (0: a redrive has taken its end back), u8 0,
                   u32 number of the part, u32 epoch, i64 ended_us
============ ===== ==========================================================================

======== ======================================= ============================================
family   key                                     order
======== ======================================= ============================================
join     ``w/j/`` join:16                        (point lookups)
part     ``w/m/`` join:16 number:4               by number
edges    ``w/e/`` id:16                          which joins a task's end concerns
key      ``w/k/`` keyed hash:16                  (point lookups)
callback ``w/t/`` join:16                        the callback's task record, as it was enqueued
outbox   ``u/``   source id:16 join:16           what one task's end has to say elsewhere
======== ======================================= ============================================

A workflow's join has the workflow's own id; the join of a task that waits for others has the id of
that task. All but the outbox lie on the slot of their join and its parts, which is one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ...errors import RecordCorruptError
from ..values import AFTER_MAX
from .frame import CHECKSUM_BYTES, open_frame, seal
from .keyspace import OUTBOX
from .task import decode_task

__all__ = [
    "CALLBACK",
    "CANCELLED_FLAG",
    "EDGES",
    "EDGES_MAX",
    "FIRED",
    "FLOW_ID",
    "HELD_MS",
    "JOIN",
    "JOIN_END",
    "KEY",
    "MEMBER_LEASE",
    "MEMBER_RESULT",
    "MEMBER_ROW",
    "MEMBER_TASK",
    "NO_ID",
    "ON_FAILURE",
    "OUTBOX_JOIN",
    "OUTBOX_SOURCE",
    "OVER",
    "PART",
    "PART_JOIN",
    "PART_NUMBER",
    "REDRIVING",
    "SEALED",
    "TARGET_ROLE",
    "WAITS",
    "WORKFLOW_FLAG",
    "Edge",
    "JoinRecord",
    "OutboxRecord",
    "PartRecord",
    "check_flow_row",
    "decode_edges",
    "decode_join",
    "decode_key",
    "decode_outbox",
    "decode_part",
    "edge_to",
    "edges_key",
    "encode_edges",
    "encode_join",
    "encode_key",
    "encode_outbox",
    "encode_part",
    "flow_slot_id",
    "outbox_key",
    "part_key",
    "workflow_key_hash",
]

JOIN: Final = b"w/j/"
JOIN_END: Final = b"w/j0"
PART: Final = b"w/m/"
EDGES: Final = b"w/e/"
KEY: Final = b"w/k/"
CALLBACK: Final = b"w/t/"
# Parts of their keys.
FLOW_ID: Final = slice(4, None)  # of a family of ``w/`` with one id alone, or a hash
PART_JOIN: Final = slice(4, 20)
PART_NUMBER: Final = slice(-4, None)
OUTBOX_SOURCE: Final = slice(2, 18)
OUTBOX_JOIN: Final = slice(18, None)

# Whose end concerns a join: a flag of the task record, of its index row and of its lease (which
# has those of the row, one bit up), and of its result.
MEMBER_TASK: Final[int] = 64
MEMBER_ROW: Final[int] = 4
MEMBER_LEASE: Final[int] = 8
MEMBER_RESULT: Final[int] = 64
# When a waiting task is due: it stands behind all delayed ones of its queue.
HELD_MS: Final[int] = 1 << 52

WAITS, FIRED, OVER = 1, 2, 3
SEALED, WORKFLOW_FLAG, CANCELLED_FLAG, REDRIVING = 1, 2, 4, 8
ON_FAILURE: Final = {"run": 1, "wait": 2, "cancel": 3}
TARGET_ROLE: Final = 1
NO_ID: Final = bytes(16)

_JOIN: Final = struct.Struct("<BBBBHHIIIIqq16s16s16s")
_PART: Final = struct.Struct("<BBBBIq16s")
_EDGES: Final = struct.Struct("<BBH")
_EDGE: Final = struct.Struct("<BI16s")
EDGES_MAX: Final = AFTER_MAX + 1  # of one task: one is its own join's
_KEY: Final = struct.Struct("<BBH16s")
_OUTBOX: Final = struct.Struct("<BBBBIIq")


class JoinRecord(NamedTuple):
    """A join: what it waits for, in numbers, and which task it lets go."""

    state: int
    on_failure: int
    flags: int
    generation: int
    parts: int
    ended: int
    failed: int
    created_us: int
    fired_us: int
    workflow: bytes
    target: bytes
    key_hash: bytes
    name: bytes

    @property
    def is_complete(self) -> bool:
        """Whether nothing that it waits for is under way, and nothing more can come."""
        return self.flags & (SEALED | REDRIVING) == SEALED and self.ended >= self.parts


def encode_join(r: JoinRecord) -> bytes:
    """The value's bytes."""
    return seal(
        _JOIN.pack(
            0x57,
            1,
            r.state,
            r.on_failure,
            r.flags,
            len(r.name),
            r.generation,
            r.parts,
            r.ended,
            r.failed,
            r.created_us,
            r.fired_us,
            r.workflow,
            r.target,
            r.key_hash,
        )
        + r.name
    )


def decode_join(raw: bytes) -> JoinRecord:
    """The inverse; ``RecordCorruptError`` on anything else."""
    open_frame(raw, _JOIN, 0x57, 1, "join")
    fields: tuple[Any, ...] = _JOIN.unpack_from(raw)
    state, on_failure, flags, n = fields[2:6]
    if _JOIN.size + n + CHECKSUM_BYTES != len(raw):
        raise RecordCorruptError("join: lengths do not add up")
    if not 1 <= state <= 3 or not 1 <= on_failure <= 3:
        raise RecordCorruptError("join: unknown state")
    name = raw[_JOIN.size : -CHECKSUM_BYTES]
    return JoinRecord._make((state, on_failure, flags, *fields[6:], name))


class PartRecord(NamedTuple):
    """One task a join waits for. ``status``: of its first end in this epoch; 0 before.

    ``epoch``: how often the task was redriven for the join, where the two are on different slots.
    On one slot it is the generation of the join in which the part was last written.
    """

    status: int
    epoch: int
    ended_us: int
    source: bytes


def encode_part(r: PartRecord) -> bytes:
    """The value's bytes."""
    return seal(_PART.pack(0x77, 1, r.status, 0, r.epoch, r.ended_us, r.source))


def decode_part(raw: bytes) -> PartRecord:
    """The inverse."""
    open_frame(raw, _PART, 0x77, 1, "part of a join")
    if len(raw) != _PART.size + CHECKSUM_BYTES:
        raise RecordCorruptError("part of a join: lengths do not add up")
    _, _, status, _, epoch, ended_us, source = _PART.unpack_from(raw)
    if status > 4:
        raise RecordCorruptError("part of a join: unknown status")
    return PartRecord(status, epoch, ended_us, source)


class Edge(NamedTuple):
    """A task's tie to a join: its part of that number, or the task that it lets go.

    ``epoch``: how often the task was redriven for a join on another slot.
    """

    role: int
    number: int
    join: bytes
    epoch: int = 0


def encode_edges(edges: Sequence[Edge]) -> bytes:
    """The value's bytes. Version 1 where no epoch has begun."""
    version = 2 if any(one.epoch for one in edges) else 1
    body = b"".join([_EDGE.pack(*one[:3]) for one in edges])
    if version == 2:
        body += b"".join([one.epoch.to_bytes(4, "little") for one in edges])
    return seal(_EDGES.pack(0x5A, version, len(edges)) + body)


def decode_edges(raw: bytes) -> list[Edge]:
    """The inverse."""
    version = 2 if raw[1:2] == b"\x02" else 1
    open_frame(raw, _EDGES, 0x5A, version, "edges")
    body, count = raw[_EDGES.size : -CHECKSUM_BYTES], _EDGES.unpack_from(raw)[2]
    epochs_at = count * _EDGE.size
    if len(body) != epochs_at + (4 * count if version == 2 else 0):
        raise RecordCorruptError("edges: lengths do not add up")
    edges = [Edge(*one) for one in _EDGE.iter_unpack(body[:epochs_at])]
    if version == 1:
        return edges
    epochs = struct.unpack_from(f"<{count}I", body, epochs_at)
    return [one._replace(epoch=epoch) for one, epoch in zip(edges, epochs, strict=True)]


def edge_to(edges: Sequence[Edge], number: int, join: bytes) -> Edge | None:
    """The edge by which the end of a task counts as this part of the join, if there is one.

    Args:
        edges: of the task.
        number: of the part.
        join: its id.
    """
    for edge in edges:
        if edge.role != TARGET_ROLE and edge.number == number and edge.join == join:
            return edge
    return None


def encode_key(workflow: bytes) -> bytes:
    """The value's bytes."""
    return seal(_KEY.pack(0x48, 1, 0, workflow))


def decode_key(raw: bytes) -> bytes:
    """The workflow that holds the key."""
    open_frame(raw, _KEY, 0x48, 1, "key of a workflow")
    workflow: bytes = _KEY.unpack_from(raw)[3]
    return workflow


class OutboxRecord(NamedTuple):
    """An end that has to be counted elsewhere. ``status`` 0: it was taken back by a redrive."""

    status: int
    number: int
    epoch: int
    ended_us: int


def encode_outbox(r: OutboxRecord) -> bytes:
    """The value's bytes."""
    return seal(_OUTBOX.pack(0x51, 1, r.status, 0, r.number, r.epoch, r.ended_us))


def decode_outbox(raw: bytes) -> OutboxRecord:
    """The inverse."""
    open_frame(raw, _OUTBOX, 0x51, 1, "outbox row")
    _, _, status, _, number, epoch, ended_us = _OUTBOX.unpack_from(raw)
    return OutboxRecord(status, number, epoch, ended_us)


def part_key(join: bytes, number: int) -> bytes:
    """Parts of a join lie side by side, by their number."""
    return b"w/m/" + join + number.to_bytes(4, "big")


def edges_key(task_id: bytes) -> bytes:
    """All edges of a task are one row: its end reads no more."""
    return b"w/e/" + task_id


def outbox_key(source: bytes, join: bytes) -> bytes:
    """One row for each task and join."""
    return b"u/" + source + join


def workflow_key_hash(secret: bytes, key: bytes) -> bytes:
    """Hash under which a workflow's key is stored, keyed with the store's secret."""
    return blake2b(key, digest_size=16, key=secret, person=b"lodeq-workflow").digest()


def flow_slot_id(key: bytes, value: bytes) -> bytes:
    """The id whose slot says where a row of ``w/`` or ``u/`` lives."""
    if key.startswith(KEY):
        return decode_key(value)
    at = 2 if key.startswith(OUTBOX) else 4
    if len(key) < at + 16:
        raise RecordCorruptError(f"not a key of a workflow: {key!r}")
    return key[at : at + 16]


_NONE: Final[tuple[int, Callable[[bytes], object] | None]] = (-1, None)
_DECODERS: Final[dict[bytes, tuple[int, Callable[[bytes], object] | None]]] = {
    JOIN: (20, decode_join),
    PART: (24, decode_part),
    EDGES: (20, decode_edges),
    KEY: (20, decode_key),
    CALLBACK: (20, decode_task),
}


def check_flow_row(key: bytes, value: bytes) -> None:
    """Decode a row of ``w/`` or ``u/``; ``RecordCorruptError`` where it is none."""
    size, decode = (34, decode_outbox) if key.startswith(OUTBOX) else _DECODERS.get(key[:4], _NONE)
    if len(key) != size or decode is None:
        raise RecordCorruptError(f"not a key of a workflow: {key!r}")
    decode(value)
