"""Applying a purge plan: rows that are archived are deleted, and nothing else.

Results are found through the expiry range, where each has an entry that must be deleted with it: an
entry of a completed task is acted on by time alone (``expiry_sweep``), so one that was left behind
would count its result out twice. That is one pass over ``e/`` for each shard, without reading any
completed task's result. Dead letters are looked up one by one. Ends that a workflow may still read
stay: the next plan names them again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ...engine.offline.purge_plan import KINDS, EndedRows, PurgePlan, read_plan
from ...engine.records.frame import attempt
from ...engine.records.keyspace import DEAD, EXPIRY_END, ID_AT, SEQ_AT
from ...engine.records.rows import decode_expiry
from ...engine.records.workflow import MEMBER_ROW
from ...errors import CorruptionError, UsageError
from ..model.reports import PurgeReport
from ..state.engine_state import EngineState
from ..state.pages import Pages
from ..state.queue_state import Shard
from ..state.rows.expiry_entries import RESULT_KINDS, drop_with_entries
from ..state.rows.task_location import task_location
from ..tasks.task_end import end_task

__all__ = ["purge_archived", "purge_parts"]

SLICE: Final = 128  # dead letters per batch
Parts = Mapping[tuple[int, str], Sequence[bytes]]


async def purge_archived(
    state: EngineState, store_id: bytes, path: str | os.PathLike[str]
) -> PurgeReport:
    """See ``Engine.purge_archived``."""
    plan: PurgePlan = await state.spawner.run_in_thread(partial(read_plan, path))
    state.check()
    _check(state, store_id, plan.store_id, plan.shards)
    state.check_led({file.shard for file in plan.files}, to_write=True)
    gone = {"results": 0, "dead": 0}
    for file in plan.files:
        rows: EndedRows = await state.spawner.run_in_thread(
            partial(EndedRows.read, plan.folder, file)
        )
        state.check()
        gone[file.kind] += await _purge_rows(state, state.shards[file.shard], file.kind, rows)
    planned = plan.rows_of("results") + plan.rows_of("dead")
    return PurgeReport(gone["results"], gone["dead"], planned - sum(gone.values()))


async def purge_parts(
    state: EngineState, store_id: bytes, planned: tuple[bytes, int], parts: Parts
) -> PurgeReport:
    """Apply parts of a plan that lies elsewhere, as bytes.

    Args:
        state: the engine's state.
        store_id: the store's 16 bytes.
        planned: the store's id and its number of shards, as the plan has them.
        parts: by shard and kind, the bytes of rows.

    Raises:
        UsageError: the plan is of another store, there is no such shard or kind, or these are no
            rows; nothing was purged.
        NotLeaderError: another replica leads one of the shards; nothing was purged.
    """
    _check(state, store_id, *planned)
    for shard, kind in parts:
        if not 0 <= shard < len(state.shards) or kind not in KINDS:
            raise UsageError(f"a plan has no {kind!r} of shard {shard}")
    state.check_led({shard for shard, _ in parts}, to_write=True)
    read = partial(_read_parts, parts)
    given: dict[tuple[int, str], EndedRows] = await state.spawner.run_in_thread(read)
    gone = {"results": 0, "dead": 0}
    for (shard, kind), rows in given.items():
        state.check()
        gone[kind] += await _purge_rows(state, state.shards[shard], kind, rows)
    total = sum(map(len, given.values()))
    return PurgeReport(gone["results"], gone["dead"], total - sum(gone.values()))


def _read_parts(parts: Parts) -> dict[tuple[int, str], EndedRows]:
    return {key: EndedRows.of(of_key) for key, of_key in parts.items()}


def _check(state: EngineState, store_id: bytes, planned_id: bytes, shards: int) -> None:
    if planned_id != store_id:
        raise UsageError(
            f"the plan is of another store ({planned_id.hex()}, this is {store_id.hex()}): "
            "archive this one"
        )
    if shards != len(state.shards):
        raise UsageError(
            f"the plan is for {shards} shards, the store has {len(state.shards)}: archive again"
        )


async def _purge_rows(state: EngineState, shard: Shard, kind: str, rows: EndedRows) -> int:
    if kind == "dead":
        return await _purge_dead(state, shard, rows)
    return await _purge_results(state, shard, rows)


async def _purge_dead(state: EngineState, shard: Shard, rows: EndedRows) -> int:
    count = 0
    for at in range(0, len(rows), SLICE):
        if not shard.coalescer.has_capacity:
            await state.backpressure(shard)
        group = shard.coalescer.begin(SLICE * 256)
        for task_id, ended_ms in rows[at : at + SLICE]:
            try:
                location = task_location(state, shard, task_id)
            except CorruptionError as error:
                state.anomaly(f"shard {shard.index}: {task_id.hex()}: {error}")
                continue
            if location is None or location.kind != DEAD:
                continue
            if location.row.flags & MEMBER_ROW and state.flows.pins(shard, task_id):
                continue  # its workflow may redrive it, or name it as failed
            if int.from_bytes(location.key[SEQ_AT:ID_AT], "big") == ended_ms:
                with group:
                    end_task(state, group, location, None, "archived")
                count += 1
        await shard.coalescer.wait(group)
        await state.spawner.checkpoint()
        state.check()
    return count


async def _purge_results(state: EngineState, shard: Shard, rows: EndedRows) -> int:
    count = 0
    # One row at a time: each has up to 1,024 entries.
    pages = Pages(state, shard, shard.expiry_head, EXPIRY_END, 1, for_writing=True)
    while found := await pages.following():
        key, raw = found[0]
        entries = attempt(decode_expiry, raw) or []
        meant = {
            ref: ended_ms
            for kind, ref in entries
            if kind in RESULT_KINDS and (ended_ms := rows.find(ref)) is not None
        }
        if meant:
            group = shard.coalescer.begin(256 + 32 * len(entries))
            with group:
                count += len(drop_with_entries(state, shard, group, key, raw, meant))
            await shard.coalescer.wait(group)
    return count
