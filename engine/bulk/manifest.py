"""The manifest of a staged load: which files, what is in them, what they rest on.

JSON, canonical (sorted keys, no spaces), with a checksum of itself; ``docs/ingest.md`` has every
field. Nothing of it is believed before the checksum agrees, and no name in it leads out of the
job's own folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import xxhash

from ...errors import CorruptionError, FormatTooNewError, UsageError
from ..files.paths import SHARDS_MAX
from ..records.frame import attempt
from ..records.keyspace import check_name, decode_expiry_key
from ..records.rows import FORMAT_VERSION
from ..runtime.ids import is_task_id, shard_of
from ..values import spelled

__all__ = [
    "BODIES",
    "FAMILIES",
    "IDS",
    "JOB_PATTERN",
    "KEYS",
    "MANIFEST_BYTES_MAX",
    "Conflict",
    "FileMark",
    "Manifest",
    "ShardQueueRows",
    "check_conflict",
    "check_job",
    "decode_manifest",
    "encode_manifest",
]

Conflict = Literal["error", "skip", "replace"]

MANIFEST_BYTES_MAX: Final = 256 << 20
FAMILIES: Final = ("e", "g", "q", "t")  # of rows, in the order of their keys
# The kinds of files that are no SST: bulk/keys.py, bulk/ids.py, and streamed payloads.
KEYS: Final = "keys"
IDS: Final = "ids"
BODIES: Final = "bodies"
_FORMAT, _VERSION = "lodeq-ingest", 3
_WITHOUT_BODIES: Final = 2  # what earlier releases read, too
_CONFLICTS: Final[tuple[Conflict, ...]] = ("error", "skip", "replace")
JOB_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_JOB = re.compile(JOB_PATTERN)
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_HEX = re.compile(r"[0-9a-f]{32}")
_ROW_KEY_BYTES_MAX = 256


class FileMark(NamedTuple):
    """One staged file. ``first`` and ``last``: its least and its greatest key, or a task's id."""

    shard: int
    family: str
    name: str
    size_bytes: int
    xxh3_128: str
    rows: int
    first: bytes
    last: bytes


class ShardQueueRows(NamedTuple):
    """Tasks that one (queue, tenant) gets on one shard; the deltas of its counters.

    ``ready``: (priority, rows, least seq) of each priority that gets any. ``due_ms``: of the first
    delayed row, 0 without one.
    """

    shard: int
    queue: str
    tenant: str
    ready: tuple[tuple[int, int, int], ...]
    delayed: int
    due_ms: int

    @property
    def ready_rows(self) -> int:
        """Ready rows of all priorities."""
        return sum(rows for _, rows, _ in self.ready)


class Manifest(NamedTuple):
    """See the module. ``digest`` is that of the canonical bytes; empty before they are made.

    ``snapshot``: (shard, commit number) that whoever staged it has looked at; for people.
    ``secret``: the fingerprint of what its dedup hashes are keyed with; zeros in format 1.
    """

    job: str
    store_id: bytes
    shards: int
    conflict: Conflict
    staged_us: int
    seq_max: int
    files: tuple[FileMark, ...]
    shard_queues: tuple[ShardQueueRows, ...]
    snapshot: tuple[tuple[int, int], ...] = ()
    store_format: int = FORMAT_VERSION
    digest: bytes = b""
    secret: bytes = bytes(16)

    @property
    def has_keys(self) -> bool:
        """Whether any of its tasks has a dedup key."""
        return any(mark.family == KEYS for mark in self.files)

    @property
    def has_ids(self) -> bool:
        """Whether it lists the ids of its tasks. Those of version 1 do not."""
        return any(mark.family == IDS for mark in self.files)

    @property
    def has_bodies(self) -> bool:
        """Whether any of its tasks has a streamed payload."""
        return any(mark.family == BODIES for mark in self.files)

    @property
    def tasks(self) -> int:
        """How many tasks it brings."""
        return sum(one.ready_rows + one.delayed for one in self.shard_queues)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(mark.size_bytes for mark in self.files)

    def of_shard(self, shard: int) -> tuple[list[FileMark], list[ShardQueueRows]]:
        """Its files and its counts."""
        return (
            [mark for mark in self.files if mark.shard == shard],
            [one for one in self.shard_queues if one.shard == shard],
        )


def check_job(job: object) -> str:
    """1 to 128 of ``A-Za-z0-9._-``, starting with a letter or digit; else ``UsageError``."""
    if not isinstance(job, str) or _JOB.fullmatch(job) is None:
        raise UsageError(
            f"job {spelled(job)} is not valid: use 1 to 128 letters, digits, '.', '_', '-', "
            "starting with a letter or digit"
        )
    return job


def check_conflict(policy: object) -> Conflict:
    """``error``, ``skip`` or ``replace``; else ``UsageError``."""
    for known in _CONFLICTS:
        if policy == known:
            return known
    raise UsageError(f"on_conflict {policy!r} is not one of {', '.join(_CONFLICTS)}")


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def encode_manifest(m: Manifest) -> bytes:
    """The file's bytes. ``digest`` is not looked at."""
    body: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION if m.has_bodies else _WITHOUT_BODIES,
        "store_format": m.store_format,
        "job": m.job,
        "store_id": m.store_id.hex(),
        "shards": m.shards,
        "conflict": m.conflict,
        "staged_us": m.staged_us,
        "seq_max": m.seq_max,
        "secret": m.secret.hex(),
        "snapshot": [list(pair) for pair in m.snapshot],
        "files": [
            [
                f.shard,
                f.family,
                f.name,
                f.size_bytes,
                f.xxh3_128,
                f.rows,
                f.first.hex(),
                f.last.hex(),
            ]
            for f in m.files
        ],
        "buckets": [
            [b.shard, b.queue, b.tenant, [list(one) for one in b.ready], b.delayed, b.due_ms]
            for b in m.shard_queues
        ],
    }
    body["xxh3_128"] = xxhash.xxh3_128_hexdigest(_canonical(body))
    return _canonical(body)


def decode_manifest(raw: bytes, what: str) -> Manifest:
    """The inverse; ``what`` names it in errors.

    Raises:
        CorruptionError: it is damaged, cut off, or none.
        FormatTooNewError: it, or the rows it brings, are of a newer lodeq.
    """
    if len(raw) > MANIFEST_BYTES_MAX:
        raise CorruptionError(f"{what} is too large for a manifest: stage the load again")
    try:
        body = json.loads(raw)
        if body["format"] != _FORMAT:
            raise ValueError("it is no manifest")
        claimed = body.pop("xxh3_128")
        digest = xxhash.xxh3_128_digest(_canonical(body))
        if digest.hex() != claimed:
            raise ValueError("checksum mismatch")
        # The frame first: damage never reads as a newer version.
        for field, known in (("version", _VERSION), ("store_format", FORMAT_VERSION)):
            if _natural(body[field]) > known:
                raise FormatTooNewError(
                    f"{what} has {field} {body[field]}, this lodeq reads up to {known}: upgrade "
                    "lodeq, or stage the load with this version"
                )
        return _decoded(body, digest)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        if isinstance(exc, KeyError):
            exc = KeyError(f"no {exc.args[0]!r}")
        raise CorruptionError(f"{what} is damaged ({exc}): stage the load again") from exc


def _decoded(body: dict[str, Any], digest: bytes) -> Manifest:
    shards = _natural(body["shards"])
    if not 1 <= shards <= SHARDS_MAX:
        raise ValueError("no possible number of shards")
    files = tuple(_file(row, shards) for row in body["files"])
    if len({mark.name for mark in files}) != len(files):
        raise ValueError("a file is named twice")
    return Manifest(
        check_job(body["job"]),
        bytes.fromhex(_hex(body["store_id"])),
        shards,
        check_conflict(body["conflict"]),
        _natural(body["staged_us"]),
        _natural(body["seq_max"]),
        files,
        tuple(_shard_queues(body["buckets"], shards)),
        tuple((_natural(shard), _natural(number)) for shard, number in body["snapshot"]),
        _natural(body["store_format"]),
        digest,
        bytes.fromhex(_hex(body["secret"])) if body["store_format"] > 1 else bytes(16),
    )


def _file(row: Sequence[Any], shards: int) -> FileMark:
    shard, family, name, size, digest, rows, first, last = row
    mark = FileMark(
        _natural(shard),
        family,
        name,
        _natural(size),
        _hex(digest),
        _natural(rows),
        bytes.fromhex(first),
        bytes.fromhex(last),
    )
    if mark.shard >= shards or family not in (*FAMILIES, KEYS, IDS, BODIES) or not mark.rows:
        raise ValueError(f"not a file of a load: {row!r}")
    if not isinstance(name, str) or _FILE.fullmatch(name) is None:
        raise ValueError(f"not the name of a file: {name!r}")
    prefix = family.encode() + b"/" if family in FAMILIES else b""
    if not (mark.first.startswith(prefix) and mark.last.startswith(prefix)):
        raise ValueError(f"{name}: keys of another family")
    if mark.first > mark.last or len(mark.last) > _ROW_KEY_BYTES_MAX:
        raise ValueError(f"{name}: no possible keys")
    if family == BODIES and not _is_of_one(mark, shards):
        raise ValueError(f"{name}: not the payload of one task")
    if family == "e" and attempt(decode_expiry_key, mark.first) is None:
        raise ValueError(f"{name}: no possible keys")
    return mark


def _is_of_one(mark: FileMark, shards: int) -> bool:
    task_id = mark.first
    is_id = mark.last == task_id and is_task_id(task_id)
    return is_id and mark.rows == 1 and shard_of(task_id, shards) == mark.shard


def _shard_queues(rows: Sequence[Any], shards: int) -> Iterator[ShardQueueRows]:
    seen: set[tuple[int, str, str]] = set()
    for shard, queue, tenant, ready, delayed, due_ms in rows:
        check_name(queue, "queue")
        if tenant != "":
            check_name(tenant, "tenant")
        each = tuple((_natural(p), _natural(n), _natural(seq)) for p, n, seq in ready)
        at = (_natural(shard), queue, tenant)
        if at[0] >= shards or at in seen or any(p > 9 or not n or not seq for p, n, seq in each):
            raise ValueError(f"not counts of a load: {at!r}")
        if len({p for p, _, _ in each}) != len(each) or (_natural(delayed) > 0) != (due_ms > 0):
            raise ValueError(f"counts do not add up: {at!r}")
        seen.add(at)
        yield ShardQueueRows(*at, each, delayed, _natural(due_ms))


def _natural(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"not a number: {value!r}")
    return value


def _hex(value: object) -> str:
    if not isinstance(value, str) or _HEX.fullmatch(value) is None:
        raise ValueError(f"not 16 bytes in hexadecimal: {value!r}")
    return value
