"""Resharding: gives a closed store another number of shards (docs/reshard.md).

::

    plan = plan_reshard(source, target, 6)      the shards of a store, or of a snapshot of it
    for unit in plan.units: stage(plan, unit)   by several workers at once
    finish(plan, …)                             build, compare, name

Nothing is written into the source. The target is built under another name; it gets its own once
every row of the source has been found in it and synced.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...engine.bulk.inbox import pending
from ...engine.bulk.reader import ShardReader, open_shard
from ...engine.bulk.sst import SstWriter
from ...engine.files.disk_errors import disk_error
from ...engine.files.paths import (
    SHARDS_MAX,
    bodies_path,
    fsync_dir,
    make_root,
    normal_path,
)
from ...engine.offline.build_shards import Blueprint, build_shard
from ...engine.offline.reroute import (
    COPIED,
    FAMILIES,
    Tally,
    add_tallies,
    check_row,
    rerouted,
    sources_of,
    tally,
)
from ...engine.offline.settings_rows import RANGES
from ...engine.records import keyspace as ks
from ...engine.records.ingest import Ingested, decode_ingested, decode_uncounted, encode_ingested
from ...engine.records.rows import (
    OLD_FORM,
    Counters,
    decode_ghost,
    decode_open,
    decode_ring,
    decode_secret,
    decode_stamp,
    encode_counters,
    encode_old_ghosts,
)
from ...engine.recovery.health import Census
from ...engine.store.port import Op, pages
from ...errors import CorruptionError, FormatTooOldError, StorePathError, UsageError
from .body_copies import copy_bodies

__all__ = ["Plan", "Reshard", "Staged", "Unit", "build", "finish", "plan_reshard", "stage"]

BODIES: Final = "b"
_WORK: Final = ".resharding"
_STAGED: Final = "staged"
_COUNTED: Final = ("l", "q", "r")


class Unit(NamedTuple):
    """Work of one worker at a time: one family of rows of one new shard."""

    shard: int
    family: str


class Staged(NamedTuple):
    """Result of a unit; small enough to be sent to the one who finishes."""

    unit: Unit
    files: tuple[str, ...]
    counts: tuple[tuple[bytes, bytes, Counters], ...]
    folder: str = ""  # of body files
    old_ghosts: int = 0  # entries under the hash of format 1


class Plan(NamedTuple):
    """Paths and shard counts of a reshard. The source must not change until it is finished."""

    source: str
    target: str
    old_shards: int
    shards: int

    @property
    def work(self) -> str:
        """The folder in which the target is built."""
        return self.target + _WORK

    @property
    def staging(self) -> str:
        """The folder of the row files until then."""
        return os.path.join(self.work, _STAGED)

    @property
    def units(self) -> list[Unit]:
        """All units, to be done in any order."""
        return [Unit(shard, f) for shard in range(self.shards) for f in (BODIES, *COPIED)]


@dataclass(frozen=True, slots=True)
class Reshard:
    """Result of a reshard. ``rows``: their number by family, the same in source and target."""

    path: str
    old_shards: int
    shards: int
    rows: dict[str, int]
    tallies: dict[str, Tally]


def plan_reshard(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    shards: int,
    *,
    leave_events: bool = False,
) -> Plan:
    """Check a source, and make the folder to work in. Blocks.

    Args:
        source: a snapshot, or a closed store with an empty inbox.
        target: path of the new store; nothing may be there.
        shards: 1 to 4,096.
        leave_events: accept events that are not yet in the lifecycle journal, and leave them
            out. For snapshots: the store itself goes on to publish them, and a snapshot of a busy
            store nearly always has some.

    Raises:
        StorePathError: there is no source, or the target exists.
        UsageError: the number of shards is out of range, or the source must be opened once more.
        FormatTooOldError: the source must be opened once more, with this release.
        CorruptionError: the source is damaged.
    """
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise UsageError(f"expected shards from 1 to {SHARDS_MAX}, got {shards!r}")
    root, path = normal_path(source), normal_path(target)
    if os.path.lexists(path):
        raise StorePathError(f"{path} exists: choose another path")
    with open_shard(root, 0) as first:
        plan = Plan(root, path, first.shards, shards)
    if waiting := pending(root):
        raise UsageError(
            f"load {waiting[0]!r} waits in the inbox of {root}, staged for {plan.old_shards} "
            "shards: open the store until it has come in"
        )
    _check_secrets(plan)
    for shard in range(0 if leave_events else plan.old_shards):
        with open_shard(root, shard) as reader:
            if reader.scan(ks.EVENTS, ks.EVENTS_END, 1):
                raise UsageError(
                    f"shard {shard} has events for its lifecycle journal: open the store once "
                    "with that journal, and close it"
                )
    if os.path.lexists(plan.work):
        if not os.path.isdir(plan.staging):
            raise StorePathError(
                f"{plan.work} is a whole store, left by a reshard that was cut off: move it away"
            )
        shutil.rmtree(plan.work)  # of an attempt that was cut off
    make_root(plan.work)
    os.mkdir(plan.staging, 0o700)
    return plan


def _check_secrets(plan: Plan) -> None:
    """Check that all shards hash dedup keys alike: their entries will share shards."""
    found = set()
    for shard in range(plan.old_shards):
        with open_shard(plan.source, shard) as reader:
            raw = reader.get(ks.SECRET)
            if raw is None:
                raise FormatTooOldError(
                    f"{plan.source} has an older format than this lodeq writes, and a reshard does "
                    "not upgrade: start its service once with this release, which does (and take "
                    "another snapshot, if it is one), then reshard it"
                )
            found.add(decode_secret(raw))
    if len(found) > 1:
        raise UsageError(
            "the shards of this store hash dedup keys with different secrets, because replicas "
            "of it were led by different nodes when it was new: it cannot be resharded"
        )


def stage(plan: Plan, unit: Unit, attempt: str = "0") -> Staged:
    """Do one unit. Blocks. ``attempt`` keeps apart the files of two workers on the same unit.

    Raises:
        CorruptionError, RecordCorruptError: the source is damaged: audit it.
        StorageFullError, StorageError: the disk.
    """
    shard, family = unit
    stem = f"{attempt}-{shard}"
    with ExitStack() as stack:
        readers = [
            stack.enter_context(open_shard(plan.source, old))
            for old in sources_of(shard, plan.shards, plan.old_shards)
        ]
        if family == BODIES:
            return _stage_bodies(plan, unit, stem, readers)
        census = Census()
        writer = SstWriter(plan.staging, stem, shard=shard, family=family)
        old_ghosts = 0
        try:
            for key, value in rerouted(readers, family, shard, plan.shards):
                check_row(census, key, value)
                if family == "g":
                    old_ghosts += decode_ghost(value).form == OLD_FORM
                writer.put(key, value)
            marks = writer.finish()
        except BaseException:
            writer.abort()
            raise
    counts = tuple(census.counters()) if family in _COUNTED else ()
    return Staged(unit, tuple(mark.name for mark in marks), counts, old_ghosts=old_ghosts)


def _stage_bodies(plan: Plan, unit: Unit, stem: str, readers: Sequence[ShardReader]) -> Staged:
    """Copy payloads outside the tree, and write the rows that lead to them."""
    folder = f"{stem}-bodies"
    found, twins = copy_bodies(readers, os.path.join(plan.staging, folder), unit.shard, plan.shards)
    names: list[str] = []
    for family, rows in (("b", found), ("o", twins)):
        writer = SstWriter(plan.staging, stem, shard=unit.shard, family=family)
        writer.put_all(sorted(rows))
        names += [mark.name for mark in writer.finish()]
    return Staged(unit, tuple(names), (), folder if twins else "")


# -- finishing ------------------------------------------------------------------------------------


def finish(plan: Plan, staged: Iterable[Staged], tallies: Iterable[dict[str, Tally]]) -> Reshard:
    """Build the shards, compare them with the source, and give the target its name. Blocks.

    Args:
        plan: the plan from ``plan_reshard``.
        staged: the results of all units.
        tallies: the results of ``tally`` for all shards of the source.

    Raises:
        CorruptionError: rows of the source are not in the target, for they lie in a wrong shard:
            audit it. Nothing is at the target's path.
        StorageFullError, StorageError: the disk. Nothing is at the target's path.

    Durability: on return the new store survives a power cut.
    """
    report = build(plan, staged, tallies)
    try:
        os.rename(plan.work, plan.target)
        fsync_dir(os.path.dirname(plan.target))
    except OSError as exc:
        raise disk_error(exc, plan.target) from exc
    return report


def build(plan: Plan, staged: Iterable[Staged], tallies: Iterable[dict[str, Tally]]) -> Reshard:
    """Do ``finish`` without the rename: the store stays in ``plan.work``."""
    done = {one.unit: one for one in staged}
    missing = [unit for unit in plan.units if unit not in done]
    if missing:
        raise UsageError(f"{missing[0]} has not been staged")
    blueprint, meta = _meta_of(plan)
    wanted = add_tallies(tallies)
    try:
        for shard in range(plan.shards):
            units = [done[Unit(shard, family)] for family in (BODIES, *COPIED)]
            if folder := units[0].folder:
                os.rename(os.path.join(plan.staging, folder), bodies_path(plan.work, shard))
            counters = {
                ks.counters_key(*name): encode_counters(*counts)
                for name, counts in _counts_of(units).items()
            }
            if old := sum(one.old_ghosts for one in units):
                counters[ks.OLD_GHOSTS] = encode_old_ghosts(old)
            files = [os.path.join(plan.staging, name) for one in units for name in one.files]
            build_shard(plan.work, shard, blueprint, [*counters.items(), *meta[shard == 0]], files)
        shutil.rmtree(plan.staging)
        fsync_dir(plan.work)
    except OSError as exc:
        raise disk_error(exc, plan.work) from exc
    found = add_tallies(_tally_of(plan.work, shard) for shard in range(plan.shards))
    for family in FAMILIES:
        if found[family] != wanted[family]:
            raise CorruptionError(
                f"family {family!r}: {wanted[family].rows} rows in {plan.source}, "
                f"{found[family].rows} in what was made of it: audit the store"
            )
    rows = {family: one.rows for family, one in found.items()}
    return Reshard(plan.target, plan.old_shards, plan.shards, rows, found)


def _tally_of(root: str, shard: int) -> dict[str, Tally]:
    with open_shard(root, shard) as reader:
        return tally(reader)


def _counts_of(units: Iterable[Staged]) -> dict[tuple[bytes, bytes], Counters]:
    total: dict[tuple[bytes, bytes], Counters] = {}
    for one in units:
        for queue, tenant, counts in one.counts:
            had = total.get((queue, tenant), Counters())
            total[queue, tenant] = Counters(*map(sum, zip(had, counts, strict=True)))
    return total


def _meta_of(plan: Plan) -> tuple[Blueprint, tuple[list[Op], list[Op]]]:
    """Read what all new shards share, and their ``m/`` rows: (not for the first, for the first)."""
    seq = incarnation = durability = 0
    store_id = secret = b""
    of_first: list[Op] = []
    loads: dict[bytes, Ingested] = {}
    for shard in range(plan.old_shards):
        with open_shard(plan.source, shard) as reader:
            raw = reader.get(ks.OPEN)
            incarnation = max(incarnation, 0 if raw is None else decode_open(raw))
            stamp = decode_stamp(reader.get(ks.STAMP) or b"")
            store_id, durability = stamp.store_id, stamp.durability
            secret = decode_secret(reader.get(ks.SECRET) or b"")
            for rows in pages(reader, ks.RING, ks.RING_END):
                seq = max(seq, *(decode_ring(value)[1] for _, value in rows))
            for rows in pages(reader, ks.UNCOUNTED, ks.UNCOUNTED_END):
                seq = max(seq, *(decode_uncounted(value).seq_max for _, value in rows))
            if shard == 0:  # others may have old copies, from when several processes had it
                for lower, upper in RANGES:
                    for rows in pages(reader, lower, upper):
                        of_first += rows
            for rows in pages(reader, ks.INGESTED, ks.prefix_end(ks.INGESTED)):
                for key, value in rows:
                    one = decode_ingested(value)
                    had = loads.get(key)
                    loads[key] = (
                        one
                        if had is None
                        else one._replace(
                            tasks=one.tasks + had.tasks,
                            skipped=one.skipped + had.skipped,
                            replaced=one.replaced + had.replaced,
                        )
                    )
    # A load that has come in must not come in again on any shard; its numbers are counted once.
    empty: list[Op] = [
        (key, encode_ingested(one._replace(tasks=0, skipped=0, replaced=0)))
        for key, one in loads.items()
    ]
    first: list[Op] = [(key, encode_ingested(one)) for key, one in loads.items()]
    blueprint = Blueprint(store_id, plan.shards, durability, incarnation + 1, seq, secret)
    return blueprint, (empty, first + of_first)
