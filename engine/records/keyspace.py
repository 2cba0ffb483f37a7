"""The key families of a shard: one encode and decode pair each, byte order = logical order.

======== ================================================= ================================
family   key                                               order
======== ================================================= ================================
task     ``t/`` id:16                                      by time of enqueue, roughly
ready    ``q/`` queue 0 tenant 0 ``r`` 9-prio:1 seq:8 id   priority 9 first, then seq
delayed  ``q/`` queue 0 tenant 0 ``d`` due_ms:8 seq:8 id   due first
dead     ``q/`` queue 0 tenant 0 ``x`` died_ms:8 id        oldest first
moved    ``s/`` id                                         (point lookups)
lease    ``l/`` id                                         (scanned at open)
result   ``r/`` id                                         (point lookups)
ghost    ``g/`` blake2b_128 of queue 0 tenant 0 key, keyed (point lookups; see ``ghost_hash``)
body     ``b/`` id                                         (point lookups)
body at  ``o/`` file:8 offset:8 id                         by position in the body files
expiry   ``e/`` bucket_ms:8 commit_seq:8                   due first, then order of finishing
attempts ``a/`` id                                         (point lookups)
events   ``j/`` commit_seq:8                               by commit
progress ``p/`` id                                         (scanned at open)
stamp    ``m/stamp``  ``m/open``  ``m/health``
secret   ``m/secret``                                      (what dedup hashes are keyed with)
old      ``m/ghosts``                                      (how many ghosts have the old hash)
counters ``m/c/`` queue 0 tenant 0
pause    ``m/p/`` queue 0 tenant 0                         tenant ``*``: every tenant
settings ``m/q/`` queue 0                                  (on shard 0: see ``queue_settings``)
function ``m/f/`` queue 0 function                         by queue (``functions``)
ring     ``m/k/`` (commit_seq mod 65,536):2
applied  ``m/applied``                                     (a replica's: how far it has come)
files    ``m/files``                                       (how far body files are numbered)
journal  ``m/journal``                                     (of a replica: where its events go)
workflow ``w/…``                                           (joins and parts: ``workflow.py``)
outbox   ``u/`` id:16 id:16                               (ends to be counted on other slots)
ingested ``m/b/`` job                                      (a load that has come in)
counts   ``m/n/`` job                                      (its rows, not yet in the counters)
======== ================================================= ================================

Integers are fixed-width big-endian. Names match ``[a-z0-9][a-z0-9._-]{0,63}`` (a tenant may be
empty) and are NUL-terminated, so no name is a prefix of another's keys and none can forge one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import xxhash

from ...errors import InvalidNameError, RecordCorruptError
from ..values import spelled

__all__ = [
    "ALL_TENANTS_MARK",
    "APPLIED",
    "ATTEMPTS",
    "ATTEMPTS_END",
    "BODY",
    "BODY_AT",
    "BODY_AT_END",
    "BODY_END",
    "BODY_FILES",
    "COUNTERS",
    "COUNTERS_END",
    "DEAD",
    "DELAYED",
    "DELAYED_KIND",
    "DUE_AT",
    "EVENTS",
    "EVENTS_END",
    "EXPIRY",
    "EXPIRY_BUCKET",
    "EXPIRY_END",
    "FAMILY",
    "FAMILY_BOUNDS",
    "FAMILY_BYTES",
    "FIRST_ID",
    "FLOWS",
    "FLOWS_END",
    "FUNCTIONS",
    "FUNCTIONS_END",
    "GHOST",
    "GHOST_END",
    "HEALTH",
    "ID_AT",
    "INDEX",
    "INDEX_END",
    "INGESTED",
    "JOURNAL",
    "LEASE",
    "LEASE_END",
    "MOVED",
    "MOVED_END",
    "NAME_PATTERN",
    "OLD_GHOSTS",
    "OPEN",
    "ORDER_AT",
    "OUTBOX",
    "OUTBOX_END",
    "PAUSE",
    "PAUSE_END",
    "PROGRESS",
    "PROGRESS_END",
    "QUEUE_SETTINGS",
    "QUEUE_SETTINGS_END",
    "READY",
    "RESULT",
    "RESULT_END",
    "RING",
    "RING_END",
    "RING_SLOTS",
    "ROW_ID",
    "SECRET",
    "SECRET_BYTES",
    "SEQ_AT",
    "STAMP",
    "TASK",
    "TASK_END",
    "UNCOUNTED",
    "UNCOUNTED_END",
    "IndexKey",
    "body_at_key",
    "check_name",
    "counters_key",
    "dead_key",
    "decode_body_at_key",
    "decode_counters_key",
    "decode_events_key",
    "decode_expiry_key",
    "decode_index_key",
    "decode_pause_key",
    "decode_queue_settings_key",
    "delayed_key",
    "events_key",
    "expiry_key",
    "ghost_hash",
    "ghost_hasher",
    "old_ghost_hash",
    "pause_key",
    "prefix_end",
    "queue_settings_key",
    "ready_key",
    "ready_prefix",
    "ring_key",
    "secret_fingerprint",
    "shard_queue_hash",
    "shard_queue_prefix",
]

TASK: Final = b"t/"
TASK_END: Final = b"t0"
INDEX: Final = b"q/"
INDEX_END: Final = b"q0"
MOVED: Final = b"s/"
MOVED_END: Final = b"s0"
LEASE: Final = b"l/"
LEASE_END: Final = b"l0"
RESULT: Final = b"r/"
RESULT_END: Final = b"r0"
GHOST: Final = b"g/"
GHOST_END: Final = b"g0"
EXPIRY: Final = b"e/"
EXPIRY_END: Final = b"e0"
EVENTS: Final = b"j/"
EVENTS_END: Final = b"j0"
ATTEMPTS: Final = b"a/"
ATTEMPTS_END: Final = b"a0"
BODY: Final = b"b/"
BODY_END: Final = b"b0"
BODY_AT: Final = b"o/"
BODY_AT_END: Final = b"o0"
FLOWS: Final = b"w/"  # its families: ``workflow.py``
FLOWS_END: Final = b"w0"
OUTBOX: Final = b"u/"
OUTBOX_END: Final = b"u0"
PROGRESS: Final = b"p/"
PROGRESS_END: Final = b"p0"
# Where one family ends and another may begin, in key order.
FAMILY_BOUNDS: Final[Sequence[bytes]] = sorted(
    (
        TASK,
        TASK_END,
        INDEX,
        INDEX_END,
        MOVED,
        MOVED_END,
        LEASE,
        LEASE_END,
        RESULT,
        RESULT_END,
        GHOST,
        GHOST_END,
        EXPIRY,
        EXPIRY_END,
        EVENTS,
        EVENTS_END,
        BODY,
        BODY_END,
        BODY_AT,
        BODY_AT_END,
        ATTEMPTS,
        ATTEMPTS_END,
        FLOWS,
        FLOWS_END,
        OUTBOX,
        OUTBOX_END,
        PROGRESS,
        PROGRESS_END,
    )
)
# Parts of a key, as slices. What is compiled takes numbers: mypyc cuts bytes by no slice object.
FAMILY_BYTES: Final = 2
FAMILY: Final = slice(FAMILY_BYTES)
ROW_ID: Final = slice(2, None)  # the id, or the hash, of a family with one of them alone
FIRST_ID: Final = slice(2, 18)  # of a family with two as well; of a key that is cut, what is left
EXPIRY_BUCKET: Final = slice(2, 10)
# Where the parts of a key of ``q/`` begin, counted from its end. A ready one ends with inverted
# priority, seq and id; a delayed one with due_ms, seq and id; a dead one with dead_ms and id.
ID_AT: Final = -16
SEQ_AT: Final = ID_AT - 8  # of a dead one: dead_ms
ORDER_AT: Final = SEQ_AT - 1
DUE_AT: Final = SEQ_AT - 8
DELAYED_KIND: Final = slice(DUE_AT - 1, DUE_AT)  # in a delayed key alone
STAMP: Final = b"m/stamp"
OPEN: Final = b"m/open"
HEALTH: Final = b"m/health"
APPLIED: Final = b"m/applied"
SECRET: Final = b"m/secret"
OLD_GHOSTS: Final = b"m/ghosts"
COUNTERS: Final = b"m/c/"
COUNTERS_END: Final = b"m/c0"
FUNCTIONS: Final = b"m/f/"
FUNCTIONS_END: Final = b"m/f0"
PAUSE: Final = b"m/p/"
PAUSE_END: Final = b"m/p0"
QUEUE_SETTINGS: Final = b"m/q/"
QUEUE_SETTINGS_END: Final = b"m/q0"
RING: Final = b"m/k/"
RING_END: Final = b"m/k0"
BODY_FILES: Final = b"m/files"
JOURNAL: Final = b"m/journal"
INGESTED: Final = b"m/b/"
UNCOUNTED: Final = b"m/n/"
UNCOUNTED_END: Final = b"m/n0"

READY: Final = b"r"
DELAYED: Final = b"d"
DEAD: Final = b"x"
RING_SLOTS: Final = 65_536
SECRET_BYTES: Final = 32
ALL_TENANTS_MARK: Final = b"*"  # not a valid name, so it cannot clash with a tenant

_SECRETS_MAX: Final = 4096  # as many secrets as a store has shards at most
_dedup_hashers: Final[dict[bytes, blake2b]] = {}
NAME_PATTERN: Final[str] = r"[a-z0-9][a-z0-9._-]{0,63}"
_NAME: Final = re.compile(NAME_PATTERN)


def check_name(name: object, what: str) -> bytes:
    """The name as bytes, or ``InvalidNameError``. ``what`` is ``queue`` or ``tenant``."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        shown = text if len(text := spelled(name)) <= 80 else text[:77] + "…"
        raise InvalidNameError(
            f"{what} name {shown} is not valid: use 1 to 64 of a-z, 0-9, '.', '_', '-', "
            "starting with a letter or digit"
        )
    return name.encode("ascii")


def shard_queue_prefix(queue: bytes, tenant: bytes) -> bytes:
    """Start of every index key of one (queue, tenant)."""
    return b"q/" + queue + b"\0" + tenant + b"\0"


def prefix_end(prefix: bytes) -> bytes:
    """The least key above everything that starts with ``prefix`` (which ends below 0xff)."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def ready_prefix(prefix: bytes, priority: int) -> bytes:
    """Start of the ready rows of one priority; ``prefix`` from ``shard_queue_prefix``."""
    return prefix + b"r" + bytes((9 - priority,))


def ready_key(prefix: bytes, priority: int, seq: int, task_id: bytes) -> bytes:
    """Key order is claim order.

    Args:
        prefix: from ``shard_queue_prefix``.
        priority: 0 to 9.
        seq: the engine's hybrid clock, microseconds.
        task_id: 16 bytes.
    """
    return prefix + b"r" + bytes((9 - priority,)) + seq.to_bytes(8, "big") + task_id


def delayed_key(prefix: bytes, due_ms: int, seq: int, task_id: bytes) -> bytes:
    """Key order is the order of falling due.

    Args:
        prefix: from ``shard_queue_prefix``.
        due_ms: wall milliseconds.
        seq: the engine's hybrid clock, microseconds.
        task_id: 16 bytes.
    """
    return prefix + b"d" + due_ms.to_bytes(8, "big") + seq.to_bytes(8, "big") + task_id


def dead_key(prefix: bytes, died_ms: int, task_id: bytes) -> bytes:
    """Key order is the order of dying."""
    return prefix + b"x" + died_ms.to_bytes(8, "big") + task_id


class IndexKey(NamedTuple):
    """A decoded ready, delayed or dead key. ``at`` is due_ms or died_ms; 0 for ready."""

    kind: bytes
    queue: bytes
    tenant: bytes
    priority: int
    at: int
    seq: int
    task_id: bytes


def decode_index_key(key: bytes) -> IndexKey:
    """The inverse of the three encoders above."""
    try:
        q = key.index(b"\0", 2)
        t = key.index(b"\0", q + 1)
    except ValueError:
        raise RecordCorruptError(f"not an index key: {key!r}") from None
    queue, tenant, kind, rest = key[2:q], key[q + 1 : t], key[t + 1 : t + 2], key[t + 2 :]
    if key.startswith(INDEX):
        if kind == READY and len(rest) == 25 and rest[0] <= 9:
            seq = int.from_bytes(rest[1:9], "big")
            return IndexKey(kind, queue, tenant, 9 - rest[0], 0, seq, rest[9:])
        if kind == DELAYED and len(rest) == 32:
            at, seq = int.from_bytes(rest[:8], "big"), int.from_bytes(rest[8:16], "big")
            return IndexKey(kind, queue, tenant, 0, at, seq, rest[16:])
        if kind == DEAD and len(rest) == 24:
            return IndexKey(kind, queue, tenant, 0, int.from_bytes(rest[:8], "big"), 0, rest[8:])
    raise RecordCorruptError(f"not an index key: {key!r}")


def ghost_hash(secret: bytes, routing: bytes) -> bytes:
    """The dedup index is by hash: fixed width, and no user text in keys.

    Whoever chooses dedup keys must not be able to make one collide with another's, so it is keyed
    with the store's secret.

    Args:
        secret: of the store, 32 bytes.
        routing: what the key routes by: queue NUL tenant NUL key.
    """
    hasher = ghost_hasher(secret).copy()
    hasher.update(routing)
    return hasher.digest()


def ghost_hasher(secret: bytes) -> blake2b:
    """The hasher of ``ghost_hash`` before it has taken anything in: to be copied, and kept.

    A copy of one that has taken the secret in already costs half of a new one.
    """
    keyed = _dedup_hashers.get(secret)
    if keyed is None:
        if len(_dedup_hashers) >= _SECRETS_MAX:
            _dedup_hashers.clear()
        keyed = blake2b(digest_size=16, key=secret, person=b"lodeq-dedup")
        _dedup_hashers[secret] = keyed
    return keyed


def old_ghost_hash(routing: bytes) -> bytes:
    """The hash of entries from before format 2: anybody can compute two keys that share one."""
    return xxhash.xxh3_128_digest(routing)


def shard_queue_hash(secret: bytes, queue: bytes, tenant: bytes) -> bytes:
    """Name of a (queue, tenant) in expiry rows: 16 bytes, keyed with the store's secret."""
    names = b"%b\0%b" % (queue, tenant)
    return blake2b(names, digest_size=16, key=secret, person=b"lodeq-bucket").digest()


def secret_fingerprint(secrets: bytes) -> bytes:
    """Says whether two stores have the same secrets (of all shards, joined), and nothing else."""
    return blake2b(secrets, digest_size=16, person=b"lodeq-secret").digest()


def expiry_key(bucket_ms: int, commit_seq: int) -> bytes:
    """One row per commit group and due bucket."""
    return b"e/" + bucket_ms.to_bytes(8, "big") + commit_seq.to_bytes(8, "big")


def decode_expiry_key(key: bytes) -> tuple[int, int]:
    """(bucket_ms, commit_seq)."""
    if len(key) != 18 or not key.startswith(EXPIRY):
        raise RecordCorruptError(f"not an expiry key: {key!r}")
    return int.from_bytes(key[2:10], "big"), int.from_bytes(key[10:], "big")


def events_key(commit_seq: int) -> bytes:
    """Key of the events that commit ``commit_seq`` has for the lifecycle journal."""
    return b"j/" + commit_seq.to_bytes(8, "big")


def decode_events_key(key: bytes) -> int:
    """The commit_seq."""
    if len(key) != 10 or not key.startswith(EVENTS):
        raise RecordCorruptError(f"not a key of events: {key!r}")
    return int.from_bytes(key[2:], "big")


def counters_key(queue: bytes, tenant: bytes) -> bytes:
    """The counter row of one (queue, tenant) on this shard."""
    return b"m/c/" + queue + b"\0" + tenant + b"\0"


def pause_key(queue: bytes, tenant: bytes) -> bytes:
    """Present while the queue is paused; tenant ``*`` pauses every tenant."""
    return b"m/p/" + queue + b"\0" + tenant + b"\0"


def queue_settings_key(queue: bytes) -> bytes:
    """Present while anything is set for the queue."""
    return b"m/q/" + queue + b"\0"


def decode_queue_settings_key(key: bytes) -> bytes:
    """The queue."""
    queue = key[len(QUEUE_SETTINGS) : -1]
    if not key.startswith(QUEUE_SETTINGS) or key[-1:] != b"\0" or not queue or b"\0" in queue:
        raise RecordCorruptError(f"not a key of a queue's settings: {key!r}")
    return queue


def _pair(key: bytes, start: bytes) -> tuple[bytes, bytes]:
    parts = key[len(start) :].split(b"\0")
    if not key.startswith(start) or len(parts) != 3 or parts[2]:
        raise RecordCorruptError(f"not a {start!r} key: {key!r}")
    return parts[0], parts[1]


def decode_counters_key(key: bytes) -> tuple[bytes, bytes]:
    """(queue, tenant)."""
    return _pair(key, COUNTERS)


def decode_pause_key(key: bytes) -> tuple[bytes, bytes]:
    """(queue, tenant or ``*``)."""
    return _pair(key, PAUSE)


def ring_key(commit_seq: int) -> bytes:
    """Where commit ``commit_seq`` leaves its number."""
    return b"m/k/" + (commit_seq & 0xFFFF).to_bytes(2, "big")


def body_at_key(file: int, offset: int, task_id: bytes) -> bytes:
    """Key of one task's reference to the payload at ``file`` and ``offset``."""
    return BODY_AT + file.to_bytes(8, "big") + offset.to_bytes(8, "big") + task_id


def decode_body_at_key(key: bytes) -> tuple[int, int, bytes]:
    """(file, offset, id)."""
    if len(key) != 34 or not key.startswith(BODY_AT):
        raise RecordCorruptError(f"not a key of a body's position: {key!r}")
    return int.from_bytes(key[2:10], "big"), int.from_bytes(key[10:18], "big"), key[18:]
