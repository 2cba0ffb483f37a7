"""Which keys of a shard a table's rows have, narrowed by filters, and cut for several readers.

A range only narrows what is read: rows that no filter wants may be in it, rows that one wants are
never outside. Ranges of one plan do not overlap, so every row is read once. They are plain tuples
of numbers and bytes, to be sent to other processes.

``cut`` shares the ranges of one shard out among several readers, of about the same number of
bytes: at the bounds of its files, and between them as if keys were spread evenly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from ...errors import UsageError
from ..records import keyspace as ks
from ..runtime.ids import shard_of
from .reader import ShardReader, TableFile

__all__ = ["TABLES", "Filters", "KeyRange", "cut", "key_ranges"]

_FAMILIES: Final = {
    "tasks": (ks.TASK, ks.TASK_END),
    "leases": (ks.LEASE, ks.LEASE_END),
    "results": (ks.RESULT, ks.RESULT_END),
    "ghosts": (ks.GHOST, ks.GHOST_END),
    "kv": (b"", b"\xff"),
}
_KINDS: Final = {"ready": ks.READY, "delayed": ks.DELAYED, "dead": ks.DEAD}
TABLES: Final = ("tasks", *_KINDS, "leases", "results", "ghosts", "kv")
_MS_MAX: Final = (1 << 48) - 1
_TIME_MAX: Final = (1 << 63) - 1


class KeyRange(NamedTuple):
    """``lower <= key < upper`` of one shard."""

    shard: int
    lower: bytes
    upper: bytes


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters on the rows wanted. None: no filter.

    ``since_us`` and ``until_us`` (microseconds since 1970-01-01 UTC, ``since <= time < until``) are
    of the time that the table's keys hold: for tasks, leases and results when the id was drawn
    (``id_at``); else when it became ready (``ready_at``), falls due (``due_at``) or died
    (``died_at``).
    """

    shards: frozenset[int] | None = None
    queues: frozenset[str] | None = None
    tenants: frozenset[str] | None = None
    ids: frozenset[bytes] | None = None
    since_us: int | None = None
    until_us: int | None = None


def key_ranges(reader: ShardReader, table: str, filters: Filters | None = None) -> list[KeyRange]:
    """Where the rows of ``table`` are in this shard: ascending, without overlaps. Blocks.

    Raises:
        UsageError: there is no such table, or an id has not 16 bytes.
        InvalidNameError: a queue or tenant cannot exist.
        CorruptionError: the shard is damaged.
    """
    filters = filters or Filters()
    if table not in TABLES:
        raise UsageError(f"no table {table!r}: there are {', '.join(TABLES)}")
    if filters.shards is not None and reader.shard not in filters.shards:
        return []
    found: list[tuple[bytes, bytes]] = []
    if table in _KINDS:
        for prefix in _tenant_queues(reader, filters):
            found += _tenant_queue_ranges(prefix, _KINDS[table], filters)
    else:
        found = list(_id_ranges(reader, table, filters))
    return [KeyRange(reader.shard, lower, upper) for lower, upper in sorted(found) if lower < upper]


def _id_ranges(reader: ShardReader, table: str, filters: Filters) -> Iterator[tuple[bytes, bytes]]:
    lower, upper = prefix, end = _FAMILIES[table]
    if table == "kv":  # all rows but the secret, which is nobody's to look at
        yield lower, ks.SECRET
        yield ks.SECRET + b"\0", upper
        return
    if table == "ghosts":
        yield lower, upper
        return
    if filters.since_us is not None:
        first_ms = min(max(-(-filters.since_us // 1000), 0), _MS_MAX + 1)
        lower = prefix + first_ms.to_bytes(6, "big") if first_ms <= _MS_MAX else end
    if filters.until_us is not None:
        past_ms = max(-(-filters.until_us // 1000), 0)
        upper = prefix + past_ms.to_bytes(6, "big") if past_ms <= _MS_MAX else end
    if filters.ids is None:
        yield lower, upper
        return
    for id in filters.ids:
        if not isinstance(id, bytes) or len(id) != 16:
            raise UsageError(f"an id has 16 bytes: {id!r}")
        if shard_of(id, reader.shards) == reader.shard and lower <= (key := prefix + id) < upper:
            yield key, key + b"\0"


def _tenant_queues(reader: ShardReader, filters: Filters) -> Iterator[bytes]:
    """The prefix of each (queue, tenant) that has an index row, by one seek each."""
    queues = _names(filters.queues, "queue")
    tenants = _names(filters.tenants, "tenant")
    if queues is not None and tenants is not None:
        yield from (ks.shard_queue_prefix(queue, tenant) for queue in queues for tenant in tenants)
        return
    outer = [(ks.INDEX, ks.INDEX_END)]
    if queues is not None:
        outer = [(b"q/%b\0" % queue, b"q/%b\1" % queue) for queue in queues]
    for lower, upper in outer:
        at = lower
        while rows := reader.scan(at, upper, 1):
            found = ks.decode_index_key(rows[0][0])
            prefix = ks.shard_queue_prefix(found.queue, found.tenant)
            if tenants is None or found.tenant in tenants:
                yield prefix
            at = ks.prefix_end(prefix)


def _names(names: frozenset[str] | None, what: str) -> list[bytes] | None:
    if names is None:
        return None
    return sorted(
        b"" if what == "tenant" and name == "" else ks.check_name(name, what) for name in names
    )


def _tenant_queue_ranges(prefix: bytes, kind: bytes, filters: Filters) -> list[tuple[bytes, bytes]]:
    start = prefix + kind
    if filters.since_us is None and filters.until_us is None:
        return [(start, ks.prefix_end(start))]
    since, until = filters.since_us or 0, filters.until_us
    if kind == ks.READY:
        return [
            _between(ks.ready_prefix(prefix, priority), since, until)
            for priority in range(9, -1, -1)
        ]
    return [_between(start, -(-since // 1000), None if until is None else -(-until // 1000))]


def _between(start: bytes, since: int, until: int | None) -> tuple[bytes, bytes]:
    lower = start + min(max(since, 0), _TIME_MAX).to_bytes(8, "big")
    if until is None:
        return lower, ks.prefix_end(start)
    return lower, start + min(max(until, 0), _TIME_MAX).to_bytes(8, "big")


# -- cutting ----------------------------------------------------------------------------------


def cut(ranges: Sequence[KeyRange], files: Sequence[TableFile], parts: int) -> list[list[KeyRange]]:
    """Share ``ranges`` of one shard out among at most ``parts`` readers; together they are all.

    Args:
        ranges: of ``key_ranges``.
        files: of ``ShardReader.files``.
        parts: from 1 on. There may be fewer, never an empty one.
    """
    if parts < 1:
        raise UsageError(f"{parts} parts: at least 1")
    pieces = [piece for one in ranges for piece in _pieces(one, files, parts)]
    total = sum(weight for _, weight in pieces)
    shares: list[list[KeyRange]] = [[]]
    done = 0.0
    for piece, weight in pieces:
        if shares[-1] and done + weight / 2 > total * len(shares) / parts and len(shares) < parts:
            shares.append([])
        last = shares[-1][-1] if shares[-1] else None
        if last is not None and last.upper == piece.lower:
            shares[-1][-1] = last._replace(upper=piece.upper)
        else:
            shares[-1].append(piece)
        done += weight
    return [share for share in shares if share]


def _pieces(
    whole: KeyRange, files: Sequence[TableFile], parts: int
) -> Iterator[tuple[KeyRange, float]]:
    """Pieces of a range, and about how many bytes each has."""
    overlapping = [f for f in files if f.first_key < whole.upper and f.last_key >= whole.lower]
    bounds = {f.first_key for f in overlapping} | {f.last_key + b"\0" for f in overlapping}
    inner = sorted(key for key in bounds if whole.lower < key < whole.upper)
    edges = [whole.lower, *inner, whole.upper]
    weights = [0.0] * (len(edges) - 1)
    for file in overlapping:
        first = max(bisect_left(edges, file.first_key), 0)
        last = bisect_left(edges, file.last_key + b"\0")
        spans = [i for i in range(first, last) if i < len(weights)] or [0]
        for i in spans:
            weights[i] += file.bytes / len(spans)
    target = sum(weights) / (4 * parts)
    for (lower, upper), weight in zip(pairwise(edges), weights, strict=True):
        count = max(1, min(4 * parts, int(weight / target))) if target else 1
        points = [lower, *_spread(lower, upper, count), upper]
        for a, b in pairwise(points):
            yield KeyRange(whole.shard, a, b), weight / (len(points) - 1)


def _spread(lower: bytes, upper: bytes, count: int) -> list[bytes]:
    """Up to ``count - 1`` keys between the two, evenly spread as numbers."""
    size = max(len(lower), len(upper)) + 2
    low = int.from_bytes(lower.ljust(size, b"\0"), "big")
    high = int.from_bytes(upper.ljust(size, b"\0"), "big")
    keys = {(low + (high - low) * i // count).to_bytes(size, "big") for i in range(1, count)}
    return sorted(key for key in keys if lower < key < upper)
