"""The small values: index rows, moved rows, ghosts, expiry lists, counters, meta rows.

============ ===== ==========================================================================
row          type  layout (little-endian), each sealed with xxh3_64
============ ===== ==========================================================================
ready,       'I'   u8 type, u8 version, u8 flags (1 moved, 2 body, 4 member), u8 priority,
delayed,           u16 attempts, u16 reason bytes, u32 task record bytes, i64 expires_ms
dead               (TTL; for a dead task: when it is forgotten), reason (UTF-8)
moved        'S'   u8 type, u8 version, u16 attempts, current index key
ghost        'G'   u8 type, u8 version, u16 form (of the hash in its key: 0 xxh3_128, 1 keyed),
                   i64 expires_ms (0: while the task lives), id:16
expiry       'E'   u8 type, u8 version, u16 0, then (kind:1, key:16) each: 't' id (TTL),
                   'r' id (result), 'g' ghost key, 'x' id (dead letter), 'B' keyed hash of
                   queue 0 tenant, then of that queue 'c' id (result of a completed task), 'v' id
                   (result whose value is dropped), 'h' id (result that is read before it goes);
                   'b' in the place of 'B', of format 1: an unkeyed hash, not looked at; 'w' id of
                   a join that is over
body         'B'   u8 type, u8 version, u16 lost (0 or 1), u32 record size, u64 file, u64 offset,
                   record id:16
body at      'Y'   u8 type, u8 version, u16 lost (0 or 1), u32 record size
counters     'C'   u8 type, u8 version, u16 n (0 or 1), u64 ready, delayed (waiting included),
                   leased, dead, results; n = 1: u64 waiting (for other tasks)
pause        'P'   u8 type, u8 version, u16 0, i64 since_us
function     'f'   u8 type, u8 version, u16 0, i64 published_us, msgpack map (``functions``)
stamp        'M'   u8 type, u8 version, u16 shard, u16 shards, u8 durability, u8 0, store id:16
open         'O'   u8 type, u8 version, u16 common (0 or 1), u64 incarnation
files        'F'   u8 type, u8 version, u16 0, u64 above the number of every body file; then
                   nothing, or u64 the first file that this incarnation has written to
ring         'K'   u8 type, u8 version, u16 whose (``ring_owner``; 0: not said), u64 commit_seq,
                   u64 seq
applied      'A'   u8 type, u8 version, u16 0, u64 term, u64 index of a replicated log
secret       'X'   u8 type, u8 version, u16 0, 32 random bytes
old ghosts   'V'   u8 type, u8 version, u16 0, u64 rows of ``g/`` with form 0
============ ===== ==========================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from xxhash import xxh3_64_digest

from ...errors import FormatTooNewError, FormatTooOldError, RecordCorruptError
from .fixed_fields import FixedFields
from .frame import CHECKSUM_BYTES, attempt, frame_version, open_frame, seal
from .keyspace import RING, RING_SLOTS, expiry_key

__all__ = [
    "BODY_ROW",
    "FORMAT_KEYED",
    "FORMAT_OLDEST",
    "FORMAT_VERSION",
    "GHOST_FIELDS",
    "INDEX_FIELDS",
    "KEYED_FORM",
    "MOVED_ROW",
    "OLD_FORM",
    "RING_BYTES",
    "Applied",
    "BodyRow",
    "CounterOwner",
    "Counters",
    "Ghost",
    "IndexRow",
    "Moved",
    "Stamp",
    "decode_applied",
    "decode_body",
    "decode_body_at",
    "decode_counters",
    "decode_expiry",
    "decode_files",
    "decode_ghost",
    "decode_index_row",
    "decode_journal",
    "decode_moved",
    "decode_old_ghosts",
    "decode_open",
    "decode_pause",
    "decode_ring",
    "decode_secret",
    "decode_stamp",
    "encode_applied",
    "encode_body",
    "encode_body_at",
    "encode_counters",
    "encode_expiry",
    "encode_files",
    "encode_ghost",
    "encode_index_row",
    "encode_journal",
    "encode_moved",
    "encode_old_ghosts",
    "encode_open",
    "encode_pause",
    "encode_ring",
    "encode_secret",
    "encode_stamp",
    "first_file_of_life",
    "is_common_open",
    "is_lost_at",
    "owner_of",
    "pack_ghost",
    "pack_group_end",
    "pack_moved",
    "pack_row",
    "ready_value",
    "ring_owner",
]

# The version of the whole store, in its stamp; a newer one is refused, an older one from
# ``FORMAT_OLDEST`` on is upgraded by an open. Records carry their own.
FORMAT_VERSION: Final = 4  # leased dead letters; payloads above ``task.WHOLE_BYTES_MAX``
FORMAT_OLDEST: Final = 1
FORMAT_KEYED: Final = 2  # from here on dedup hashes are keyed

INDEX_FIELDS: Final = FixedFields(
    kind="B",
    version="B",
    flags="B",
    priority="B",
    attempts="H",
    reason="H",
    record="I",
    expires="q",
)
_INDEX: Final = INDEX_FIELDS.whole
_MOVED: Final = struct.Struct("<BBH")
GHOST_FIELDS: Final = FixedFields(kind="B", version="B", form="H", expires="q", id="16s")
_GHOST: Final = GHOST_FIELDS.whole
_EXPIRY: Final = struct.Struct("<BBH")
_COUNTERS: Final = struct.Struct("<BBH5Q")
_WAITING: Final = struct.Struct("<BBH6Q")  # counters with that of tasks that wait for others
_PAUSE: Final = struct.Struct("<BBHq")
_STAMP: Final = struct.Struct("<BBHHBB16s")
_OPEN: Final = struct.Struct("<BBHQ")
_FILES: Final = struct.Struct("<BBHQ")
_JOURNAL: Final = struct.Struct("<BBH16s")
_RING: Final = struct.Struct("<BBHQQ")
_APPLIED: Final = struct.Struct("<BBHQQ")
_FILE_MAX: Final = (1 << 63) - 1  # a number of a body file, and where a file may end
_SECRET: Final = struct.Struct("<BBH32s")
_OLD_GHOSTS: Final = struct.Struct("<BBHQ")
_BODY: Final = struct.Struct("<BBHIQQ16s")
_BODY_AT: Final = struct.Struct("<BBHI")
_RING_PACK: Final = _RING.pack
RING_BYTES: Final = _RING.size + 8  # of a ring row's value
_COUNTERS_PACK: Final = _COUNTERS.pack
_WAITING_PACK: Final = _WAITING.pack
_INDEX_PACK: Final = _INDEX.pack
_MOVED_PACK: Final = _MOVED.pack
_GHOST_PACK: Final = _GHOST.pack

MOVED_ROW, BODY_ROW = 1, 2
OLD_FORM, KEYED_FORM = 0, 1  # of the hash of a dedup key
EXPIRY_KINDS: Final = frozenset(b"trgxbcBvhw")

_ready_values: Final[dict[tuple[int, int, int], bytes]] = {}  # by record size, priority, flags
_READY_VALUES_MAX: Final = 8192


class IndexRow(NamedTuple):
    """The value of a ready, delayed or dead row.

    ``flags``: ``MOVED_ROW``, the task has an ``s/`` row; ``BODY_ROW``, it has a ``b/`` row.
    ``record_bytes`` is that of the whole record, payload included, wherever that lies.
    """

    flags: int
    priority: int
    attempts: int
    record_bytes: int
    expires_ms: int
    reason: bytes


def encode_index_row(r: IndexRow) -> bytes:
    """The value's bytes."""
    return seal(
        _INDEX.pack(
            0x49, 1, r.flags, r.priority, r.attempts, len(r.reason), r.record_bytes, r.expires_ms
        )
        + r.reason
    )


def pack_row(flags: int, priority: int, attempts: int, record_bytes: int, expires_ms: int) -> bytes:
    """``encode_index_row`` of a row without a reason.

    Args:
        flags: ``MOVED_ROW``, ``BODY_ROW``.
        priority: 0 to 9.
        attempts: runs so far.
        record_bytes: of the whole task record.
        expires_ms: end of the TTL, wall milliseconds; 0: none.
    """
    body = _INDEX_PACK(0x49, 1, flags, priority, attempts, 0, record_bytes, expires_ms)
    return body + xxh3_64_digest(body)


def ready_value(record_bytes: int, priority: int, flags: int = 0) -> bytes:
    """The value of the index row of a task that has never run and has no TTL: packed once."""
    value = _ready_values.get((record_bytes, priority, flags))
    if value is None:
        if len(_ready_values) >= _READY_VALUES_MAX:
            _ready_values.clear()
        value = pack_row(flags, priority, 0, record_bytes, 0)
        _ready_values[record_bytes, priority, flags] = value
    return value


def decode_index_row(raw: bytes) -> IndexRow:
    """The inverse."""
    open_frame(raw, _INDEX, 0x49, 1, "index row")
    _, _, flags, priority, attempts, n, record_bytes, expires = _INDEX.unpack_from(raw)
    if _INDEX.size + n + 8 != len(raw) or priority > 9:
        raise RecordCorruptError("index row: lengths do not add up")
    return IndexRow(flags, priority, attempts, record_bytes, expires, raw[_INDEX.size : -8])


class Moved(NamedTuple):
    """Where a task that has left its first index key is now."""

    attempts: int
    key: bytes


def encode_moved(r: Moved) -> bytes:
    """The value's bytes."""
    return pack_moved(r.attempts, r.key)


def pack_moved(attempts: int, key: bytes) -> bytes:
    """``encode_moved`` of these fields."""
    body = _MOVED_PACK(0x53, 1, attempts) + key
    return body + xxh3_64_digest(body)


def decode_moved(raw: bytes) -> Moved:
    """The inverse."""
    open_frame(raw, _MOVED, 0x53, 1, "moved row")
    return Moved(_MOVED.unpack_from(raw)[2], raw[_MOVED.size : -8])


class Ghost(NamedTuple):
    """Who holds a dedup key, and until when it outlives the task (0: not at all).

    ``form``: which hash of the key the row lies under.
    """

    task_id: bytes
    expires_ms: int
    form: int = KEYED_FORM


def encode_ghost(r: Ghost) -> bytes:
    """The value's bytes."""
    return seal(_GHOST.pack(0x47, 1, r.form, r.expires_ms, r.task_id))


def pack_ghost(task_id: bytes, expires_ms: int) -> bytes:
    """``encode_ghost`` of an entry under the keyed hash."""
    body = _GHOST_PACK(0x47, 1, KEYED_FORM, expires_ms, task_id)
    return body + xxh3_64_digest(body)


def decode_ghost(raw: bytes) -> Ghost:
    """The inverse."""
    open_frame(raw, _GHOST, 0x47, 1, "ghost row")
    _, _, form, expires, task_id = _GHOST.unpack_from(raw)
    return Ghost(task_id, expires, form)


def encode_expiry(entries: Iterable[bytes]) -> bytes:
    """``entries``: kind byte and 16-byte key, joined."""
    return seal(_EXPIRY.pack(0x45, 1, 0) + b"".join(entries))


def decode_expiry(raw: bytes) -> list[tuple[int, bytes]]:
    """(kind, key) in the order they were filed."""
    open_frame(raw, _EXPIRY, 0x45, 1, "expiry row")
    body = raw[_EXPIRY.size : -8]
    if len(body) % 17:
        raise RecordCorruptError("expiry row: lengths do not add up")
    entries: list[tuple[int, bytes]] = []
    for at in range(0, len(body), 17):
        if body[at] not in EXPIRY_KINDS:
            raise RecordCorruptError(f"expiry row: unknown kind {body[at]:#x}")
        entries.append((body[at], body[at + 1 : at + 17]))
    return entries


class Counters(NamedTuple):
    """How many rows of each state a (queue, tenant) has on one shard."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    results: int = 0
    waiting: int = 0  # of those delayed: for other tasks, and not for a time


def encode_counters(
    ready: int, delayed: int, leased: int, dead: int, results: int, waiting: int = 0
) -> bytes:
    """The value's bytes.

    Args:
        ready: rows, as all others.
        delayed: those that wait for a time, or for other tasks.
        leased: live leases.
        dead: dead letters.
        results: kept results.
        waiting: those of ``delayed`` that wait for other tasks.
    """
    if waiting:
        body = _WAITING_PACK(0x43, 1, 1, ready, delayed, leased, dead, results, waiting)
    else:
        body = _COUNTERS_PACK(0x43, 1, 0, ready, delayed, leased, dead, results)
    return body + xxh3_64_digest(body)


def decode_counters(raw: bytes) -> Counters:
    """The inverse."""
    open_frame(raw, _COUNTERS, 0x43, 1, "counter row")
    fields = _COUNTERS.unpack_from(raw)
    if fields[2] == 0:
        return Counters(*fields[3:])
    if fields[2] != 1 or len(raw) != _WAITING.size + CHECKSUM_BYTES:
        raise RecordCorruptError("counter row: lengths do not add up")
    counters = Counters(*_WAITING.unpack_from(raw)[3:])
    if not counters.waiting:
        raise RecordCorruptError("counter row: names no task that waits, and has a place for it")
    return counters


class CounterOwner:
    """The live counters of one (queue, tenant) on one shard, and how its rows name it."""

    __slots__ = (
        "counters_key",
        "dead",
        "delayed",
        "hash",
        "leased",
        "ready",
        "results",
        "waiting",
    )

    def __init__(self, key: bytes, name: bytes) -> None:
        self.counters_key = key  # of the counter row
        self.hash = name  # sixteen bytes by which expiry rows name it
        # ``delayed`` counts rows: of these, ``waiting`` wait for other tasks, and not for a time.
        self.ready = self.delayed = self.leased = self.dead = self.results = self.waiting = 0


def pack_group_end(
    ops: list[tuple[bytes, bytes | None]],
    number: int,
    seq: int,
    owners: dict[CounterOwner, None],
    final: dict[tuple[int, CounterOwner, bytes], list[bytes]],
    expiry: dict[int, list[bytes]],
    whose: int = 0,
) -> None:
    """Append the rows that end a group of submissions: counters, expiry lists, the ring row.

    One function, because it runs for every commit.

    Args:
        ops: the operations of the group, in order.
        number: its commit_seq.
        seq: the value of the engine's hybrid clock, for the ring row.
        owners: whose counter rows are put; deleted where all counters are zero.
        final: ids of ended tasks, by when to look at them (ms), whose counter has them, and kind.
        expiry: other entries (kind and key), by when to look at them (ms); gets those of ``final``.
        whose: as ``ring_owner`` returns it; 0 does not say it.
    """
    for owner in owners:
        ready, leased, results = owner.ready, owner.leased, owner.results
        delayed, dead = owner.delayed, owner.dead
        if owner.waiting:
            n = owner.waiting
            body = _WAITING_PACK(0x43, 1, 1, ready, delayed, leased, dead, results, n)
            ops.append((owner.counters_key, body + xxh3_64_digest(body)))
        elif ready or leased or results or delayed or dead:
            body = _COUNTERS_PACK(0x43, 1, 0, ready, delayed, leased, dead, results)
            ops.append((owner.counters_key, body + xxh3_64_digest(body)))
        else:
            ops.append((owner.counters_key, None))
    for (at_ms, owner, kind), ids in final.items():
        if ids:
            entries = b"B%b%b%b" % (owner.hash, kind, kind.join(ids))
            expiry.setdefault(at_ms, []).append(entries)
    for at_ms, filed in expiry.items():
        ops.append((expiry_key(at_ms, number), encode_expiry(filed)))
    body = _RING_PACK(0x4B, 1, whose, number, seq)
    ops.append((RING + (number % RING_SLOTS).to_bytes(2, "big"), body + xxh3_64_digest(body)))


def encode_pause(since_us: int) -> bytes:
    """The value's bytes."""
    return seal(_PAUSE.pack(0x50, 1, 0, since_us))


def decode_pause(raw: bytes) -> int:
    """Wall microseconds since when the queue is paused."""
    open_frame(raw, _PAUSE, 0x50, 1, "pause row")
    since: int = _PAUSE.unpack_from(raw)[3]
    return since


class Stamp(NamedTuple):
    """The stamp: identifies the store. Written when it is created, again only by an upgrade.

    ``durability``: 0 nosync, 1 fsync. ``version``: the format of the whole store.
    """

    shard: int
    shards: int
    durability: int
    store_id: bytes
    version: int = FORMAT_VERSION


def encode_stamp(r: Stamp) -> bytes:
    """The value's bytes."""
    return seal(_STAMP.pack(0x4D, r.version, r.shard, r.shards, r.durability, 0, r.store_id))


def decode_stamp(raw: bytes) -> Stamp:
    """The inverse. Its frame is that of every version: only in a whole one is the version believed.

    Raises:
        RecordCorruptError: it is damaged.
        FormatTooNewError, FormatTooOldError: it is whole, and of a format that is not read.
    """
    version = frame_version(raw, 0x4D, "stamp")
    if version > FORMAT_VERSION:
        raise FormatTooNewError(
            f"the store has format {version}, this lodeq reads up to {FORMAT_VERSION}: upgrade "
            "lodeq"
        )
    if version < FORMAT_OLDEST:
        raise FormatTooOldError(
            f"the store has format {version}, this lodeq reads {FORMAT_OLDEST} to "
            f"{FORMAT_VERSION}: open it once with an older lodeq that reads format {version} and "
            "writes one of these (its CHANGELOG says so), which upgrades it; then with this one"
        )
    if len(raw) != _STAMP.size + CHECKSUM_BYTES:
        raise RecordCorruptError("stamp: lengths do not add up")
    _, _, shard, shards, durability, _, store_id = _STAMP.unpack_from(raw)
    return Stamp(shard, shards, durability, store_id, version)


def encode_open(incarnation: int, *, is_common: bool = False) -> bytes:
    """The value's bytes. ``is_common``: that open gave every shard of the store this number."""
    return seal(_OPEN.pack(0x4F, 1, is_common, incarnation))


def decode_open(raw: bytes) -> int:
    """The incarnation: how often the store has been opened for writing."""
    open_frame(raw, _OPEN, 0x4F, 1, "open row")
    incarnation: int = _OPEN.unpack_from(raw)[3]
    return incarnation


def is_common_open(raw: bytes) -> bool:
    """Whether every shard of the store has got the incarnation of this open row."""
    open_frame(raw, _OPEN, 0x4F, 1, "open row")
    return bool(_OPEN.unpack_from(raw)[2])


def encode_files(following: int, begun: int = 0) -> bytes:
    """The value's bytes. ``begun``: the first file that this incarnation has written to."""
    life = begun.to_bytes(8, "little") if begun else b""
    return seal(_FILES.pack(0x46, 1, 0, following) + life)


def decode_files(raw: bytes) -> int:
    """Above the number of every body file that a row has ever led to."""
    open_frame(raw, _FILES, 0x46, 1, "files row")
    following: int = _FILES.unpack_from(raw)[3]
    if following > _FILE_MAX:
        raise RecordCorruptError(f"files row: no file has number {following}")
    return following


def first_file_of_life(raw: bytes | None) -> int:
    """The least file that the incarnation of a files row has written to; 0 where none says it."""
    if attempt(decode_files, raw) is None or raw is None:
        return 0
    return int.from_bytes(raw[_FILES.size : -CHECKSUM_BYTES], "little")


def encode_journal(identity: bytes) -> bytes:
    """The value's bytes."""
    return seal(_JOURNAL.pack(0x6A, 1, 0, identity))


def decode_journal(raw: bytes) -> bytes:
    """The identity of the journal that has had all events whose rows are gone: 16 bytes."""
    open_frame(raw, _JOURNAL, 0x6A, 1, "journal row")
    if len(raw) != _JOURNAL.size + CHECKSUM_BYTES:
        raise RecordCorruptError("journal row: lengths do not add up")
    identity: bytes = _JOURNAL.unpack_from(raw)[3]
    return identity


def ring_owner(store_id: bytes, shard: int) -> int:
    """Number that ring rows of a shard bear: another for each shard of a store; never 0."""
    return (int.from_bytes(store_id, "little") + shard) % 65_535 + 1


def owner_of(raw: bytes) -> int:
    """Whose commit a ring row is of; 0: it does not say it, as those of earlier releases."""
    return int.from_bytes(raw[2:4], "little")


def encode_ring(commit_seq: int, seq: int, whose: int = 0) -> bytes:
    """The value's bytes."""
    body = _RING_PACK(0x4B, 1, whose, commit_seq, seq)
    return body + xxh3_64_digest(body)


def decode_ring(raw: bytes) -> tuple[int, int]:
    """(commit_seq, seq)."""
    open_frame(raw, _RING, 0x4B, 1, "ring row")
    _, _, _, commit_seq, seq = _RING.unpack_from(raw)
    return commit_seq, seq


@dataclass(frozen=True, slots=True)
class Applied:
    """The last entry of the replicated log that is in the rows. Index 0: none."""

    term: int = 0
    index: int = 0


def encode_applied(r: Applied) -> bytes:
    """The value's bytes."""
    return seal(_APPLIED.pack(0x41, 1, 0, r.term, r.index))


def decode_applied(raw: bytes) -> Applied:
    """The inverse."""
    open_frame(raw, _APPLIED, 0x41, 1, "applied row")
    _, _, _, term, index = _APPLIED.unpack_from(raw)
    return Applied(term, index)


def encode_secret(secret: bytes) -> bytes:
    """The value's bytes."""
    return seal(_SECRET.pack(0x58, 1, 0, secret))


def decode_secret(raw: bytes) -> bytes:
    """The secret that keys the shard's dedup hashes. Never shown, not even in an error."""
    open_frame(raw, _SECRET, 0x58, 1, "secret")
    if len(raw) != _SECRET.size + CHECKSUM_BYTES:
        raise RecordCorruptError("secret: lengths do not add up")
    secret: bytes = _SECRET.unpack_from(raw)[3]
    return secret


def encode_old_ghosts(count: int) -> bytes:
    """The value's bytes."""
    return seal(_OLD_GHOSTS.pack(0x56, 1, 0, count))


def decode_old_ghosts(raw: bytes) -> int:
    """How many ghosts of the shard lie under the hash of format 1."""
    open_frame(raw, _OLD_GHOSTS, 0x56, 1, "count of old ghosts")
    count: int = _OLD_GHOSTS.unpack_from(raw)[3]
    return count


class BodyRow(NamedTuple):
    """Where a task's payload lies, and the id that the record there bears.

    ``size`` 0: nowhere; a salvage has not found it. ``is_lost``: nor has it been found there, so
    nobody waits for it; what comes back is read.
    """

    size: int
    file: int
    offset: int
    record_id: bytes
    is_lost: bool = False


def encode_body(r: BodyRow) -> bytes:
    """The value's bytes."""
    return seal(_BODY.pack(0x42, 1, r.is_lost, *r[:4]))


def decode_body(raw: bytes) -> BodyRow:
    """The inverse."""
    open_frame(raw, _BODY, 0x42, 1, "body row")
    if len(raw) != _BODY.size + 8:
        raise RecordCorruptError("body row: lengths do not add up")
    _, _, is_lost, size, file, offset, record_id = _BODY.unpack_from(raw)
    row = BodyRow(size, file, offset, record_id, bool(is_lost))
    if max(row.file, row.offset) > _FILE_MAX:
        raise RecordCorruptError(f"body row: no file has number {row.file} or byte {row.offset}")
    return row


def encode_body_at(size: int, *, is_lost: bool = False) -> bytes:
    """The value's bytes: the size of the record at the key's position, as its body row says."""
    return seal(_BODY_AT.pack(0x59, 1, is_lost, size))


def is_lost_at(raw: bytes) -> bool:
    """Whether a row by place says that the record has not been found there."""
    return bool(_BODY_AT.unpack_from(raw)[2])


def decode_body_at(raw: bytes) -> int:
    """The inverse."""
    open_frame(raw, _BODY_AT, 0x59, 1, "row of a body's position")
    if len(raw) != _BODY_AT.size + 8:
        raise RecordCorruptError("row of a body's position: lengths do not add up")
    size: int = _BODY_AT.unpack_from(raw)[3]
    return size
