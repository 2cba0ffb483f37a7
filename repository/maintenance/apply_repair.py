"""Apply a repair plan to a closed store (docs/audit.md).

Rows that do not decode are deleted, if they are still as the audit has seen them. Rows of another
shard move there, unless it has a row with that key; a task whose payload lies in a file moves if
that file is in the folder of the other shard, as when tables were swapped. Rows that lead to no
payload are deleted, so that the payload is searched for. Then ``engine.recovery.repair`` makes the
shards consistent: places, dedup keys, expiry, counters. After a crash at any step, applying the
plan again goes on.
"""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass

from ...engine.files.paths import bodies_path, normal_path
from ...engine.offline.audit_marks import mark_of
from ...engine.offline.repair_plan import RepairPlan
from ...engine.records.frame import attempt
from ...engine.records.keyspace import BODY, FAMILY, FLOWS, GHOST, ID_AT, OUTBOX, TASK, body_at_key
from ...engine.records.rows import decode_body, decode_ghost
from ...engine.records.task import BODY_FLAG, decode_task
from ...engine.records.workflow import flow_slot_id
from ...engine.recovery.decide import NUMBER_BITS
from ...engine.recovery.incarnation import sync_all
from ...engine.recovery.open_shard import OpenStore, open_store
from ...engine.recovery.repair import RepairReport, repair
from ...engine.runtime.clock import Clock, SystemClock
from ...engine.runtime.ids import shard_of
from ...engine.store.port import Op, Store, write_patiently
from ...errors import RecordCorruptError, UsageError
from ...segments.bodies.find import BodyFolder

__all__ = ["AppliedRepair", "apply_repair"]


@dataclass(frozen=True, slots=True)
class AppliedRepair:
    """Counts of what was done. ``skipped``: rows that have changed since the plan was made."""

    dropped: int
    moved: int
    skipped: int
    shards: tuple[tuple[int, RepairReport], ...]


def apply_repair(
    path: str | os.PathLike[str], plan: RepairPlan, *, clock: Clock | None = None
) -> AppliedRepair:
    """Apply a repair plan. Blocks.

    Raises:
        UsageError: the plan is for another store, or another number of shards.
        OpenError, RecoveryRefusedError: the store is open, or cannot be opened.
        RecordCorruptError: a row that is not in the plan does not decode: audit again.
        StorageFullError, StorageError: the disk failed. What was done stays; call it again.

    Durability: on return it survives a power cut.
    """
    root = normal_path(path)
    opened = open_store(root, clock=clock, bodies=BodyFolder)
    try:
        if (opened.store_id, len(opened.shards)) != (plan.store_id, plan.shards):
            raise UsageError(
                f"the plan is of store {plan.store_id.hex()} with {plan.shards} shards, {root} is "
                f"{opened.store_id.hex()} with {len(opened.shards)}: audit this one"
            )
        stores = [shard.store for shard in opened.shards]
        dropped, skipped = _drop(plan, stores)
        found = _payloads(plan, root, stores)
        moved, strange = _move(plan, stores, found)
        _forget_bodies(plan, stores)
        now_ms = (clock or SystemClock()).wall_us() // 1000
        reports = _repair_shards(plan, root, opened, now_ms, {shard for shard, _ in found})
        sync_all(stores)
    finally:
        opened.close()
    return AppliedRepair(dropped, moved, skipped + strange, reports)


def _drop(plan: RepairPlan, stores: list[Store]) -> tuple[int, int]:
    dropped = skipped = 0
    for shard, mark in plan.drop:
        raw = stores[shard].get(mark.key)
        if raw is None or mark_of(mark.key, raw) != mark:
            skipped += 1
            continue
        write_patiently(stores[shard], [(mark.key, None)])
        dropped += 1
    return dropped, skipped


def _payloads(plan: RepairPlan, root: str, stores: list[Store]) -> set[tuple[int, bytes]]:
    """Payloads in files of the shards that tasks move to: (shard, record's id)."""
    wanted: dict[int, set[bytes]] = {}
    for shard, mark in plan.move:
        raw = stores[shard].get(mark.key) if mark.key[FAMILY] == TASK else None
        task = attempt(decode_task, raw)
        if task is not None and task.flags & BODY_FLAG:
            wanted.setdefault(shard_of(mark.key[ID_AT:], plan.shards), set()).add(task.payload)
    return {
        (shard, record_id)
        for shard, records in wanted.items()
        for record_id in BodyFolder(bodies_path(root, shard)).find(records)
    }


def _move(plan: RepairPlan, stores: list[Store], found: Set[tuple[int, bytes]]) -> tuple[int, int]:
    """Copy rows to where they belong, durably, then delete them where they are."""
    leaving: list[tuple[Store, Op]] = []
    skipped = 0
    for shard, mark in plan.move:
        raw = stores[shard].get(mark.key)
        if raw is None or mark_of(mark.key, raw) != mark:
            skipped += 1
            continue
        ghost = attempt(decode_ghost, raw) if mark.key[FAMILY] == GHOST else None
        task_id = ghost.task_id if ghost is not None else mark.key[ID_AT:]
        if mark.key[FAMILY] in (FLOWS, OUTBOX):
            task_id = flow_slot_id(mark.key, raw)
        task = attempt(decode_task, raw) if mark.key[FAMILY] == TASK else None
        home = shard_of(task_id, plan.shards)
        if task is not None and task.flags & BODY_FLAG and (home, task.payload) not in found:
            skipped += 1  # its payload stays in the old shard, and so does it: audited again
            continue
        target = stores[home]
        if target.get(mark.key) is None:
            write_patiently(target, [(mark.key, raw)])
        leaving.append((stores[shard], (mark.key, None)))
    sync_all(stores)
    for store, op in leaving:
        write_patiently(store, [op])
    return len(leaving), skipped


def _forget_bodies(plan: RepairPlan, stores: list[Store]) -> None:
    for shard, task_id in plan.bodies:
        row = attempt(decode_body, stores[shard].get(BODY + task_id))
        if row is not None:
            twin = body_at_key(row.file, row.offset, task_id)
            write_patiently(stores[shard], [(BODY + task_id, None), (twin, None)])


def _repair_shards(
    plan: RepairPlan, root: str, opened: OpenStore, now_ms: int, look: Set[int]
) -> tuple[tuple[int, RepairReport], ...]:
    look |= {shard for shard, _ in plan.bodies}
    reports = []
    for shard in opened.shards:
        if shard.index not in plan.settle:
            continue
        folder = BodyFolder(bodies_path(root, shard.index)) if shard.index in look else None
        try:
            report = repair(
                shard.store,
                now_ms=now_ms,
                bodies=folder,
                next_commit_seq=(shard.incarnation << NUMBER_BITS) + 1,
            )
        except RecordCorruptError as exc:
            raise RecordCorruptError(f"shard {shard.index}: {exc}; audit the store again") from exc
        reports.append((shard.index, report))
    return tuple(reports)
