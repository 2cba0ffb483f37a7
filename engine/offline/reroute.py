"""The rows of a shard, as another number of shards would have them: what resharding is made of.

An id holds its slot, and the slot determines the shard; so every row says where it goes, and the
rows of a new shard are those of the old ones whose slots it overlaps, merged in the order of their
keys. Two families are more than copied:

- An expiry row lists what one commit has to look at later. It is split: each new shard gets a row
  of the same key with what is its own. Commits of different shards have the same numbers, so rows
  that meet under one key become one. An entry for a dedup key whose ghost is gone is left out.
- Rows of payloads outside the tree say where the payload lies, so they follow the files
  (``repository/maintenance/reshard.py``).

Counters, the ring and the rest of ``m/`` are made anew. What a row *is* does not change with the
shard it lies in, so a ``Tally`` of all old shards is that of all new ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

import xxhash

from ...errors import RecordCorruptError
from ..bulk.reader import ShardReader
from ..records import keyspace as ks
from ..records.keyspace import FLOWS, ID_AT, OUTBOX
from ..records.rows import decode_body, decode_expiry, decode_ghost, encode_expiry
from ..records.workflow import flow_slot_id
from ..recovery.health import Census
from ..runtime.ids import SLOTS, shard_of
from ..store.port import Rows

__all__ = [
    "COPIED",
    "FAMILIES",
    "Tally",
    "add_tallies",
    "check_row",
    "rerouted",
    "sources_of",
    "tally",
]

# All that says anything of tasks.
FAMILIES: Final = ("a", "b", "e", "g", "l", "q", "r", "s", "t", "u", "w")
COPIED: Final = ("a", "e", "g", "l", "q", "r", "s", "t", "u", "w")
_BY_ID: Final = frozenset((ks.TASK, ks.MOVED, ks.LEASE, ks.RESULT, ks.BODY, ks.ATTEMPTS))
_SHARD_QUEUES, _IN_SHARD_QUEUE, _GHOST = b"bB", b"cvh", ord("g")
_MASK: Final = (1 << 64) - 1
Row = tuple[bytes, bytes]
Entry = tuple[int, bytes]


class Tally(NamedTuple):
    """How many rows (of ``e``: entries), and a checksum that no order changes."""

    rows: int = 0
    checksum: int = 0


def add_tallies(tallies: Iterable[dict[str, Tally]]) -> dict[str, Tally]:
    """Sums of several shards, by family; each family is there."""
    total = dict.fromkeys(FAMILIES, Tally())
    for one in tallies:
        for family, (rows, checksum) in one.items():
            had = total[family]
            total[family] = Tally(had.rows + rows, had.checksum + checksum & _MASK)
    return total


def sources_of(shard: int, shards: int, old_shards: int) -> range:
    """Which of ``old_shards`` hold slots of shard ``shard`` of ``shards``."""
    first = -(-shard * SLOTS // shards)
    last = -(-(shard + 1) * SLOTS // shards) - 1
    return range(first * old_shards // SLOTS, last * old_shards // SLOTS + 1)


def rerouted(readers: Sequence[ShardReader], family: str, shard: int, shards: int) -> Iterator[Row]:
    """The rows of a family (of ``COPIED``) for one new shard, ascending. Blocks as it goes.

    Args:
        readers: of the shards that ``sources_of`` names.
        family: one letter.
        shard: the new one.
        shards: how many there will be.

    Raises:
        RecordCorruptError: a row does not decode.
        CorruptionError: a block is damaged.
    """
    if family == "e":
        yield from _merged(_expiries(readers, shard, shards))
        return
    for key, value in heapq.merge(*(_rows(reader, family) for reader in readers)):
        if shard_of(_id_of(key, value), shards) == shard:
            yield key, value


def check_row(census: Census, key: bytes, value: bytes) -> None:
    """Decode and count a row. Raises ``RecordCorruptError``, which names its key."""
    try:
        census.add(key, value)
    except RecordCorruptError as exc:
        raise RecordCorruptError(f"{key!r}: {exc}") from exc


def tally(reader: ShardReader, families: Iterable[str] = FAMILIES) -> dict[str, Tally]:
    """Sums of a shard, by family. Blocks; reads all of it, and decodes every row.

    Raises:
        RecordCorruptError, CorruptionError: it is damaged.
    """
    census, out = Census(), {}
    for family in families:
        rows = checksum = 0
        for batch in _batches(reader, family):
            for key, value in batch:
                check_row(census, key, value)
            said = _said(reader, family, batch)
            rows += len(said)
            checksum += sum(map(xxhash.xxh3_64_intdigest, said))
        out[family] = Tally(rows, checksum & _MASK)
    return out


def _said(reader: ShardReader, family: str, batch: Rows) -> list[bytes]:
    """Sums of rows, whichever shard they lie in."""
    if family == "e":
        return [
            key + bytes((kind,)) + ref
            for key, entries in _live_entries(reader, batch)
            for kind, ref in entries
            if kind not in _SHARD_QUEUES
        ]
    if family == "b":
        bodies = ((key, decode_body(value)) for key, value in batch)
        return [b"%b%b%d" % (key, row.record_id, row.size) for key, row in bodies]
    return [key + value for key, value in batch]


def _batches(reader: ShardReader, family: str) -> Iterator[Rows]:
    prefix = f"{family}/".encode()
    return reader.batches(prefix, ks.prefix_end(prefix))


def _rows(reader: ShardReader, family: str) -> Iterator[Row]:
    for batch in _batches(reader, family):
        yield from batch


def _id_of(key: bytes, value: bytes) -> bytes:
    family = key[ks.FAMILY]
    if family in _BY_ID:
        return key[ks.ROW_ID]
    if family == ks.GHOST:
        return decode_ghost(value).task_id
    if family in (FLOWS, OUTBOX):
        return flow_slot_id(key, value)
    return key[ID_AT:]  # ready, delayed, dead


# -- expiry rows ------------------------------------------------------------------------------


def _expiries(readers: Sequence[ShardReader], shard: int, shards: int) -> Iterator[Row]:
    """(key, packed entries) of one new shard, rows of one key apart."""
    split = (_split(reader, shard, shards) for reader in readers)
    yield from heapq.merge(*split, key=itemgetter(0))


def _merged(rows: Iterable[Row]) -> Iterator[Row]:
    for key, group in groupby(rows, itemgetter(0)):
        packed = b"".join(value for _, value in group)
        yield key, encode_expiry([packed])


def _split(reader: ShardReader, shard: int, shards: int) -> Iterator[Row]:
    for batch in _batches(reader, "e"):
        named = _ghost_ids(reader, batch)
        for key, entries in _live_entries(reader, batch, named):
            mine: list[bytes] = []
            header = b""
            for kind, ref in entries:
                if kind in _SHARD_QUEUES:  # of the final results that follow
                    header = bytes((kind,)) + ref
                    continue
                task_id = named[ref] if kind == _GHOST else ref
                if shard_of(task_id, shards) != shard:
                    continue
                if kind in _IN_SHARD_QUEUE and header:
                    mine.append(header)
                    header = b""
                mine.append(bytes((kind,)) + ref)
            if mine:
                yield key, b"".join(mine)


def _ghost_ids(reader: ShardReader, batch: Rows) -> dict[bytes, bytes]:
    """Whose the dedup keys are that expiry rows name; those that are gone are left out."""
    refs = list({ref for _, raw in batch for kind, ref in decode_expiry(raw) if kind == _GHOST})
    found = reader.multi_get([ks.GHOST + ref for ref in refs])
    return {
        ref: decode_ghost(raw).task_id
        for ref, raw in zip(refs, found, strict=True)
        if raw is not None
    }


def _live_entries(
    reader: ShardReader, batch: Rows, named: dict[bytes, bytes] | None = None
) -> Iterator[tuple[bytes, list[Entry]]]:
    if named is None:
        named = _ghost_ids(reader, batch)
    for key, raw in batch:
        entries = decode_expiry(raw)
        yield key, [(kind, ref) for kind, ref in entries if kind != _GHOST or ref in named]
