"""Claims that pass over tasks for functions that their callers do not know, in a rolling deploy.

The line is ordered by priority and age, and its rows name no function. So such a claim looks at
the records of the first rows in line, a bounded number, takes the first that it may, and puts the
others back to where they were. They go to whoever knows them, as if nobody had looked.

It is a wish, and the line goes before it. A task is granted in spite of it

- where the whole look is at such tasks, and others lie behind them: who claims gives them back with
  a delay, and the line moves;
- once it has been in line for ``YOUNG_US``: then it is rather nobody's than a deploy's, who claims
  says how many there are, and its delays, which grow, keep it out of the way;
- in a queue with a rate or a concurrency: a look would have to count what it does not start;
- of a queue object with ``boost_after``: of every eight that are looked at, not granted, one would
  be the oldest.
"""

from __future__ import annotations

from typing import Final

from ...engine.records.keyspace import ID_AT, SEQ_AT
from ..state.caches.ready_cache import EXPIRES_MS, RECORD, Row
from ..state.engine_state import EngineState
from ..state.function_counts import function_in
from ..state.limits.key_limit import face_of_record
from ..state.long_polls import ClaimRequest
from ..state.queue_state import ShardQueue
from .claim_order import Picked, put_back_picked

__all__ = ["pass_over"]

YOUNG_US: Final = 60_000_000  # in line for less than this


def pass_over(
    state: EngineState,
    request: ClaimRequest,
    picked: list[Picked],
    records: list[bytes | None],
    *,
    most: int,
    is_last: bool,
) -> tuple[list[Picked], list[bytes | None]]:
    """Put back what is for functions that the claim skips. Returns what is left, and its records.

    Args:
        state: the engine's state.
        request: a claim from one queue, of all tenants.
        picked: as ``pick`` returned it.
        records: of these rows.
        most: rows to keep; others are put back too.
        is_last: nobody looks at more rows. Where all are to be skipped, and others lie behind them,
            none is.
    """
    queue_state = picked[0][0].tenant_queue.queue_state
    if queue_state.limit is not None or request.boosts:
        return picked, records
    now_us = state.clock.wall_us()
    kept: list[Picked] = []
    kept_records: list[bytes | None] = []
    passed: list[Picked] = []
    for (shard_queue, row), record in zip(picked, records, strict=True):
        if (
            len(kept) < most
            and not (
                record is not None
                and not 0 < row[EXPIRES_MS] <= now_us // 1000  # its TTL is over: it ends
                and int.from_bytes(row[0][SEQ_AT:ID_AT], "big") > now_us - YOUNG_US
                and function_in(face_of_record(record)) in request.skipped_functions
            )
        ):
            kept.append((shard_queue, row))
            kept_records.append(record)
        else:
            passed.append((shard_queue, _with_record(state, row, record)))
    if not passed:
        return picked, records
    if is_last and not kept and _has_more(state, request):
        return picked, records
    # Whose task was passed over keeps its turn, and who gets one has had it.
    turns = queue_state.turns
    waiting = dict.fromkeys(shard_queue.tenant_queue.tenant for shard_queue, _ in picked)
    put_back_picked(state, passed[::-1], request)
    for shard_queue, _ in kept:
        tenant = shard_queue.tenant_queue.tenant
        waiting.pop(tenant, None)
        if tenant in turns:
            turns.move_to_end(tenant)
    for tenant in reversed(waiting):
        turns.move_to_end(tenant, last=False)
    return kept, kept_records


def _with_record(state: EngineState, row: Row, record: bytes | None) -> Row:
    """The row with what was read of it, so that the next look need not read it again."""
    if row[RECORD] is None and record is not None and state.held_bytes < state.held_bytes_max:
        return (*row[:6], record)
    return row


def _has_more(state: EngineState, request: ClaimRequest) -> bool:
    """Whether there are rows that a claim may have and that were not picked."""
    queue_state = state.queue_states[request.keys[0][0]]
    return any(
        tenant not in request.skipped and _is_open(tenant_queue.shard_queues)
        for tenant in queue_state.turns
        if not (tenant_queue := queue_state.tenant_queues[tenant]).is_paused
    )


def _is_open(shard_queues: list[ShardQueue | None]) -> bool:
    return any(
        one is not None and one.ready > 0 and one.shard.coalescer.takes_writes
        for one in shard_queues
    )
