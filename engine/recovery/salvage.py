"""A new shard out of what can be read of a damaged one.

Three steps, all beside the original, which is only read:

1. *Copy.* Tables are hard-linked, logs copied. Each table is read block by block
   (``table_blocks.py``); a damaged one is replaced by the same table without its damaged blocks.
   One of another shard or store (``table_owner.py``) is left out.
2. *Repair.* RocksDB makes a manifest out of the tables and logs it finds: no manifest of the
   original is needed, nor believed. What it puts together is only read, never compacted: it may
   hold tables that a compaction had replaced already, and blocks that are gone.
3. *Write anew.* Every row goes into a new shard, in key order. A row comes back at its newest
   version, whatever table it lies in. No damaged block comes along, so compactions succeed.

The row that says which incarnation is open does not come along either: until the caller has made
the rows agree and begins the next, an ordinary open refuses the new shard, and a salvage that is
repeated starts with it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...errors import (
    CorruptionError,
    RecordCorruptError,
    RecoveryRefusedError,
)
from ..files.disk_errors import error_class, is_limit
from ..files.paths import clone_folder, copy_path, fresh_path, fsync_dir, shard_path
from ..records import keyspace as ks
from ..records.frame import attempt
from ..records.rows import decode_counters
from ..store.port import StoreView, pages, write_patiently
from ..store.rocks import RocksStore
from ..store.rocks_options import SharedMemory
from ..store.wal_inspection import find_endless
from .pending_counts import uncounted_rows
from .table_blocks import Range, TableDamage, inspect_table, write_without
from .table_owner import foreign_tables
from .table_scan import scan_table, write_scanned

__all__ = ["Rebuilt", "broken_current", "count_tasks", "damaged_tables", "rebuild"]

# Each work folder is read through a cache of its own: blocks are cached by the name of the table's
# maker and its offset, the same for a table and its copy without the damaged blocks.
_CACHE_BYTES: Final = 32 << 20
_SHOWN_MAX: Final = 8
_SHOWN: Final = slice(80)  # of a key, in a message
_BY_ID: Final = (ks.TASK, ks.MOVED, ks.LEASE, ks.RESULT, ks.BODY, ks.ATTEMPTS, ks.PROGRESS)
_TABLE: Final = re.compile(r"(\d{6,}\.sst)")
_CURRENT: Final = re.compile(rb"(MANIFEST-\d{6,})\n")
_NOT_COPIED: Final = ("LOCK", "LOG", "MANIFEST-", "CURRENT", "IDENTITY", "OPTIONS-")
_FAMILIES: Final = {
    b"t/": "task records",
    b"q/": "index rows",
    b"s/": "moved rows",
    b"l/": "leases",
    b"r/": "results",
    b"a/": "attempts",
    b"g/": "dedup keys",
    b"b/": "rows of payloads",
    b"o/": "rows of payloads",
    b"e/": "expiry rows",
    b"j/": "events for the journal",
    b"m/": "counters and marks",
    b"p/": "progress of runs",
}


@dataclass(slots=True)
class Rebuilt:
    """A new shard at ``copy_path``, closed. ``open_row``: the original's, which it lacks."""

    rows: int = 0
    open_row: bytes | None = None
    reports: list[str] = field(default_factory=list)


def broken_current(folder: str) -> str:
    """Why the folder's ``CURRENT`` leads to no manifest, or nothing."""
    path = os.path.join(folder, "CURRENT")
    try:
        with open(path, "rb") as file:
            raw = file.read(64)
    except FileNotFoundError:
        return "CURRENT is missing"
    except OSError as exc:
        return f"CURRENT cannot be read ({exc.strerror})"
    named = _CURRENT.fullmatch(raw)
    if named is None:
        return "CURRENT is empty" if not raw else "CURRENT is damaged"
    name = os.fsdecode(named[1])
    if not os.path.isfile(os.path.join(folder, name)):
        return f"CURRENT names {name}, which is missing"
    return ""


def damaged_tables(folder: str) -> dict[str, TableDamage]:
    """The tables of a shard's folder that have damage, by name. Reads all of every table."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".sst"):
            damage = _inspect(os.path.join(folder, name))
            if not damage.is_whole:
                found[name] = damage
    return found


def _inspect(path: str) -> TableDamage:
    try:
        damage = inspect_table(path)
        if damage.is_lost or damage.is_strange:
            with open(path, "rb") as file:
                found = scan_table(file.fileno())
            if found.blocks:
                rest = [Range(found.last_key, None)] if found.is_cut else []
                return TableDamage(is_scanned=True, ranges=rest)
    except OSError as exc:
        if is_limit(exc):
            raise  # the table may be whole
        return TableDamage(is_lost=True)
    if damage.ranges and not damage.index:
        damage.is_lost = True  # every block of it
    return damage


def rebuild(
    root: str,
    index: int,
    *,
    shards: int,
    damaged: dict[str, TableDamage],
    store_id: bytes | None = None,
) -> Rebuilt:
    """Write what can be read of ``shard<index>`` into a new shard at its copy's path.

    Args:
        root: the store's folder.
        index: the shard, 0 to 4,095; it must be closed.
        shards: how many there are, for the size of the write buffers.
        damaged: what ``damaged_tables`` says of it.
        store_id: the store's, if it is known for sure: tables of another one are left out.

    Raises:
        RecoveryRefusedError: nothing can be read of it; nothing was changed.
        StorageFullError: no space for a second copy of the rows; nothing was changed.
        StorageError: the disk failed; nothing was changed.
    """
    work, fresh = copy_path(root, index), fresh_path(root, index)
    lost = {name for name, damage in damaged.items() if damage.is_lost}
    foreign: dict[str, str] = {}
    while True:
        built = Rebuilt()
        for path in (work, fresh):
            shutil.rmtree(path, ignore_errors=True)
        try:
            _copy_readable(shard_path(root, index), work, damaged, lost)
            foreign = foreign_tables(work, index, store_id, fresh, SharedMemory(_CACHE_BYTES))
            for name in foreign:
                os.unlink(os.path.join(work, name))
            _repair_and_copy(work, fresh, index, shards, built)
        except CorruptionError as exc:
            culprit = _named_table(str(exc), work)
            if culprit is None or culprit in lost:
                _drop(work, fresh)
                why = "; ".join((str(exc), *_describe_foreign(index, foreign)))
                raise RecoveryRefusedError(
                    f"shard {index}: nothing of it could be put together ({why}): restore a "
                    f"checkpoint; to go on without its tasks, move {shard_path(root, index)} "
                    'away and open once more with recovery="salvage"',
                    shard=index,
                ) from exc
            lost.add(culprit)  # it looked whole, and is not: without it
            continue
        except OSError as exc:
            _drop(work, fresh)
            raise error_class(exc)(
                f"shard {index} could not be written anew: {exc.strerror} ({exc.filename}); a "
                "salvage needs space for a second copy of the shard"
            ) from exc
        except BaseException:
            _drop(work, fresh)
            raise
        break
    shutil.rmtree(work, ignore_errors=True)
    os.rename(fresh, work)
    fsync_dir(root)
    built.reports[:0] = [
        *_describe(index, damaged, lost, built.rows),
        *_describe_foreign(index, foreign),
    ]
    return built


def _drop(*paths: str) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def _named_table(text: str, folder: str) -> str | None:
    """The table of the folder that an error of RocksDB's is about."""
    for name in _TABLE.findall(text):
        if os.path.exists(os.path.join(folder, name)):
            return str(name)
    return None


def _copy_readable(source: str, work: str, damaged: dict[str, TableDamage], lost: set[str]) -> None:
    """Links of whole tables, copies of damaged ones without their damage, logs."""
    clone_folder(source, work, links=(".sst",), skip=_NOT_COPIED)
    for name in lost | damaged.keys():
        path = os.path.join(work, name)
        os.unlink(path)
        if name in lost:
            continue
        if damaged[name].is_scanned:
            write_scanned(os.path.join(source, name), path)
        else:
            write_without(os.path.join(source, name), path, damaged[name])
    for name in os.listdir(work):
        if name.endswith(".log"):
            path = os.path.join(work, name)
            if (at := find_endless(path)) is not None:
                os.truncate(path, at)


def _repair_and_copy(work: str, fresh: str, index: int, shards: int, built: Rebuilt) -> None:
    before = set(os.listdir(work))
    RocksStore.repair(work, shared=SharedMemory(_CACHE_BYTES))
    dropped = os.path.join(work, "lost")
    if os.path.isdir(dropped):
        gone = sorted(n for n in os.listdir(dropped) if n.endswith(".sst") and n in before)
        if gone:
            built.reports.append(
                f"shard {index}: {_names(gone)} could not be read at all: their rows are lost"
            )
    source = RocksStore.open(
        work, shared=SharedMemory(_CACHE_BYTES), create=False, is_compacted=False
    )
    try:
        target = RocksStore.open(
            fresh, shared=SharedMemory(_CACHE_BYTES), shards=shards, create=True
        )
        try:
            for rows in pages(source, b"", b"\xff"):
                write_patiently(target, [row for row in rows if row[0] != ks.OPEN])
                built.rows += len(rows)
                built.open_row = dict(rows).get(ks.OPEN, built.open_row)
            target.flush()
        finally:
            target.close()
    finally:
        source.close()
    if not built.rows:
        raise CorruptionError("no row is left")
    fsync_dir(fresh)


def count_tasks(view: StoreView) -> int:
    """How many tasks there are by the counters that can be read."""
    total = sum(one.ready + one.delayed for one in uncounted_rows(view))
    for rows in pages(view, ks.COUNTERS, ks.COUNTERS_END):
        for _, raw in rows:
            counters = attempt(decode_counters, raw)
            if counters is not None:
                total += counters.ready + counters.delayed + counters.leased + counters.dead
    return total


def _describe(index: int, damaged: dict[str, TableDamage], lost: set[str], rows: int) -> list[str]:
    out = [f"shard {index}: {rows} rows that can be read were written into a new shard"]
    if lost:
        names = [
            f"{name} ({damaged[name].rows} rows)"
            if name in damaged and damaged[name].rows
            else name
            for name in sorted(lost)
        ]
        out.append(f"shard {index}: {_names(names)} cannot be read: their rows are lost")
    ranges = [
        part
        for name, damage in sorted(damaged.items())
        if name not in lost
        for part in damage.ranges
    ]
    if ranges:
        shown = "; ".join(_range(part) for part in ranges[:_SHOWN_MAX])
        more = f"; and {len(ranges) - _SHOWN_MAX} more" if len(ranges) > _SHOWN_MAX else ""
        out.append(f"shard {index}: unreadable: {shown}{more}")
    return out


def _describe_foreign(index: int, foreign: Mapping[str, str]) -> list[str]:
    """One line for each owner."""
    owners = sorted(set(foreign.values()))
    return [
        f"shard {index}: {_names(sorted(n for n in foreign if foreign[n] == owner))} of {owner}: "
        "left out, nothing of it was taken; put it back where it belongs"
        for owner in owners
    ]


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"table {', '.join(names[:_SHOWN_MAX])}{more}"


def _range(part: Range) -> str:
    """In words: which family, from where to where."""
    end = part.to or b"m\xff"
    families = dict.fromkeys(
        words
        for prefix, words in sorted(_FAMILIES.items())
        if prefix <= end[ks.FAMILY] and prefix >= part.after[ks.FAMILY]
    )
    return f"{', '.join(families) or 'rows'} after {_key(part.after)} up to {_key(end)}"


def _key(key: bytes) -> str:
    """A key for people: the id where it is one."""
    if not key:
        return "the first key"
    if key[ks.FAMILY] in _BY_ID:
        return f"{key[ks.FAMILY].decode()}{key[ks.FIRST_ID].hex()}"
    if key[ks.FAMILY] == ks.INDEX:
        try:
            at = ks.decode_index_key(key)
        except RecordCorruptError:
            return repr(key[_SHOWN])
        return f"q/{at.queue.decode()} {at.task_id.hex()}"
    return repr(key[_SHOWN])
