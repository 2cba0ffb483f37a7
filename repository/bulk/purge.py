"""Applying a purge plan: rows that are archived are deleted, and nothing else.

Results are found through the expiry range, where each has an entry that must be deleted with it: an
entry of a completed task is acted on by time alone (``expiry_sweep``), so one that was left behind
would count its result out twice. That is one pass over ``e/`` for each shard, without reading any
completed task's result. Dead letters are looked up one by one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ...coalescer.group import Group
from ...engine.offline.purge_plan import KINDS, EndedRows, PurgePlan, read_plan
from ...engine.records.frame import attempt
from ...engine.records.keyspace import DEAD, EXPIRY_END, RESULT
from ...engine.records.result import decode_result
from ...engine.records.rows import decode_expiry, encode_expiry
from ...errors import CorruptionError, UsageError
from ..background.expiry_sweep import (
    BUCKET_KIND,
    BUCKET_KINDS,
    FINAL_KIND,
    RESULT_KIND,
)
from ..model.reports import PurgeReport
from ..state.engine_state import EngineState
from ..state.pages import Pages
from ..state.queue_state import Shard, ShardQueue
from ..state.task_location import drop_result, task_location
from ..tasks.task_end import end_task

__all__ = ["purge_archived", "purge_parts"]

SLICE: Final = 128  # dead letters per batch
Entry = tuple[int, bytes]
Parts = Mapping[tuple[int, str], Sequence[bytes]]


async def purge_archived(
    core: EngineState, store_id: bytes, path: str | os.PathLike[str]
) -> PurgeReport:
    """See ``Engine.purge_archived``."""
    plan: PurgePlan = await core.spawner.run_in_thread(partial(read_plan, path))
    core.check()
    _check(core, store_id, plan.store_id, plan.shards)
    gone = {"results": 0, "dead": 0}
    for file in plan.files:
        rows: EndedRows = await core.spawner.run_in_thread(
            partial(EndedRows.read, plan.folder, file)
        )
        core.check()
        gone[file.kind] += await _purge_rows(core, core.shards[file.shard], file.kind, rows)
    planned = plan.rows_of("results") + plan.rows_of("dead")
    return PurgeReport(gone["results"], gone["dead"], planned - sum(gone.values()))


async def purge_parts(
    core: EngineState, store_id: bytes, planned: tuple[bytes, int], parts: Parts
) -> PurgeReport:
    """Apply parts of a plan that lies elsewhere, as bytes.

    Args:
        core: the engine's state.
        store_id: the store's 16 bytes.
        planned: the store's id and its number of shards, as the plan has them.
        parts: by shard and kind, the bytes of rows.

    Raises:
        UsageError: the plan is of another store, there is no such shard or kind, or these are no
            rows; nothing was purged.
    """
    _check(core, store_id, *planned)
    for shard, kind in parts:
        if not 0 <= shard < len(core.shards) or kind not in KINDS:
            raise UsageError(f"a plan has no {kind!r} of shard {shard}")
    read = partial(_read_parts, parts)
    given: dict[tuple[int, str], EndedRows] = await core.spawner.run_in_thread(read)
    gone = {"results": 0, "dead": 0}
    for (shard, kind), rows in given.items():
        core.check()
        gone[kind] += await _purge_rows(core, core.shards[shard], kind, rows)
    total = sum(map(len, given.values()))
    return PurgeReport(gone["results"], gone["dead"], total - sum(gone.values()))


def _read_parts(parts: Parts) -> dict[tuple[int, str], EndedRows]:
    return {key: EndedRows.of(of_key) for key, of_key in parts.items()}


def _check(core: EngineState, store_id: bytes, planned_id: bytes, shards: int) -> None:
    if planned_id != store_id:
        raise UsageError(
            f"the plan is of another store ({planned_id.hex()}, this is {store_id.hex()}): "
            "archive this one"
        )
    if shards != len(core.shards):
        raise UsageError(
            f"the plan is for {shards} shards, the store has {len(core.shards)}: archive again"
        )


async def _purge_rows(core: EngineState, shard: Shard, kind: str, rows: EndedRows) -> int:
    if kind == "dead":
        return await _purge_dead(core, shard, rows)
    return await _purge_results(core, shard, rows)


async def _purge_dead(core: EngineState, shard: Shard, rows: EndedRows) -> int:
    count = 0
    for at in range(0, len(rows), SLICE):
        if not shard.co.has_capacity:
            await core.backpressure(shard)
        group = shard.co.begin(SLICE * 256)
        for task_id, ended_ms in rows[at : at + SLICE]:
            try:
                location = task_location(core, shard, task_id)
            except CorruptionError as error:
                core.anomaly(f"shard {shard.index}: {task_id.hex()}: {error}")
                continue
            if location is None or location.kind != DEAD:
                continue
            if int.from_bytes(location.key[-24:-16], "big") == ended_ms:
                with group:
                    end_task(core, group, location, None, "archived")
                count += 1
        await shard.co.wait(group)
        await core.spawner.checkpoint()
        core.check()
    return count


async def _purge_results(core: EngineState, shard: Shard, rows: EndedRows) -> int:
    count = 0
    # One row at a time: each has up to 1,024 entries.
    pages = Pages(core, shard, shard.expiry_head, EXPIRY_END, 1, for_writing=True)
    while found := await pages.following():
        key, raw = found[0]
        entries = attempt(decode_expiry, raw) or []
        meant = {
            ref: ended_ms
            for kind, ref in entries
            if kind in (FINAL_KIND, RESULT_KIND) and (ended_ms := rows.find(ref)) is not None
        }
        if meant:
            group = shard.co.begin(256 + 32 * len(entries))
            with group:
                keep, gone = _without(core, shard, group, entries, meant)
                left = encode_expiry(bytes((kind,)) + ref for kind, ref in keep) if keep else None
                if gone:
                    group.ops.append((key, left))
                    count += gone
            await shard.co.wait(group)
    return count


def _without(
    core: EngineState, shard: Shard, group: Group, entries: list[Entry], meant: dict[bytes, int]
) -> tuple[list[Entry], int]:
    """Delete results of one expiry row; returns (entries to keep, number of results deleted)."""
    keep: list[Entry] = []
    gone = 0
    header: Entry | None = None
    bucket: ShardQueue | None = None
    is_kept = False
    for kind, ref in entries:
        if kind in BUCKET_KINDS:
            header, is_kept = (kind, ref), False
            bucket = shard.buckets_by_hash.get(ref) if kind == BUCKET_KIND else None
            continue
        ended_ms = meant.get(ref)
        if ended_ms is not None and kind == FINAL_KIND and bucket is not None:
            group.ops.append((RESULT + ref, None))
            group.dirty[bucket] = None
            bucket.results -= 1
            shard.results -= 1
            gone += 1
        elif ended_ms is not None and _drop_if_same(core, shard, group, ref, ended_ms):
            gone += 1
        else:
            if kind == FINAL_KIND and header is not None and not is_kept:
                keep.append(header)
                is_kept = True
            keep.append((kind, ref))
    return keep, gone


def _drop_if_same(core: EngineState, shard: Shard, group: Group, id: bytes, ended_ms: int) -> bool:
    record = attempt(decode_result, shard.overlay.get_sound(RESULT + id))
    if record is None or record.finished_us // 1000 != ended_ms:
        return False
    drop_result(core, shard, group, id, record.queue, record.tenant)
    return True
