"""A redriven task and the joins that wait for it: its end is taken back, and it counts again.

Only a join that has not fired and whose ``on_failure`` is *wait* takes an end back: the others
count the first one. On the task's own slot that is the batch of the redrive. Elsewhere the outbox
says so, with an *epoch*: how often the task was redriven for that join. The part keeps the epoch
it has counted, so an end from before the redrive, however late it comes, counts no more.
"""

from __future__ import annotations

from typing import Final

from ...coalescer.group import Group
from ...engine.records.frame import attempt
from ...engine.records.result import Status
from ...engine.records.workflow import (
    CANCELLED_FLAG,
    JOIN,
    NO_ID,
    ON_FAILURE,
    TARGET_ROLE,
    WAITS,
    JoinRecord,
    OutboxRecord,
    PartRecord,
    decode_edges,
    decode_join,
    decode_part,
    edges_key,
    encode_edges,
    encode_outbox,
    encode_part,
    outbox_key,
    part_key,
)
from ...engine.runtime.ids import slot_of_id
from ..state.queue_state import Shard
from .edges import join_of, put_join

__all__ = [
    "ON_CANCEL",
    "ON_WAIT",
    "is_cancelled_whole",
    "take_back",
    "uncount",
    "waits_for_redrive",
]

ON_WAIT: Final = ON_FAILURE["wait"]
ON_CANCEL: Final = ON_FAILURE["cancel"]


def is_cancelled_whole(shard: Shard, record: JoinRecord) -> bool:
    """Whether the join, or the workflow that its target is a member of, was cancelled."""
    if record.flags & CANCELLED_FLAG:
        return True
    if record.workflow == NO_ID or record.workflow == record.target:
        return False
    whole = attempt(decode_join, shard.overlay.get_sound(JOIN + record.workflow))
    return whole is not None and bool(whole.flags & CANCELLED_FLAG)


def waits_for_redrive(shard: Shard, record: JoinRecord) -> bool:
    """Whether a dead task that the join waits for counts again when it is redriven."""
    if record.state != WAITS or record.on_failure != ON_WAIT:
        return False
    return not is_cancelled_whole(shard, record)


def take_back(group: Group, shard: Shard, task_id: bytes, now_us: int) -> bool:
    """A dead task is redriven: what waits for that hears of it. Whether the outbox has to tell.

    Args:
        group: of the task's shard; gets the rows.
        shard: of the task.
        task_id: its id.
        now_us: wall microseconds.
    """
    raw = shard.overlay.get(edges_key(task_id))
    edges = decode_edges(raw) if raw is not None else []
    is_told = False
    for i, edge in enumerate(edges):
        if edge.role == TARGET_ROLE:
            continue
        if slot_of_id(edge.join) == slot_of_id(task_id):
            record = join_of(shard, edge.join)
            if record is not None and waits_for_redrive(shard, record):
                uncount(group, shard, edge.join, edge.number, task_id)
            continue
        is_told = True
        edges[i] = edge = edge._replace(epoch=edge.epoch + 1)
        told = encode_outbox(OutboxRecord(0, edge.number, edge.epoch, now_us))
        group.ops.append((outbox_key(task_id, edge.join), told))
    if is_told:
        group.ops.append((edges_key(task_id), encode_edges(edges)))
    return is_told


def uncount(group: Group, shard: Shard, join: bytes, number: int, source: bytes) -> None:
    """A part on the join's own slot is under way again, and the join waits for it.

    Args:
        group: of the join's shard; gets the rows.
        shard: of the join.
        join: its id.
        number: of the part.
        source: the part's task.
    """
    key = part_key(join, number)
    raw, record = shard.overlay.get(key), join_of(shard, join)
    if raw is None or record is None:
        return
    part = decode_part(raw)
    group.ops.append((outbox_key(source, join), None))  # an end that is not yet counted
    if not part.status:
        return
    group.ops.append((key, encode_part(PartRecord(0, record.generation, 0, source))))
    failed = record.failed - (part.status != Status.COMPLETED)
    put_join(
        group,
        join,
        record._replace(state=WAITS, fired_us=0, ended=record.ended - 1, failed=failed),
    )
