"""Rows of joins and edges, read and queued one by one."""

from __future__ import annotations

from ...coalescer.group import Group
from ...engine.records.workflow import (
    EDGES_MAX,
    JOIN,
    Edge,
    JoinRecord,
    decode_edges,
    decode_join,
    edges_key,
    encode_edges,
    encode_join,
)
from ...engine.runtime.task_id import TaskId
from ...errors import LimitError
from ..state.queue_state import Shard

__all__ = ["drop_edge", "join_of", "put_edge", "put_join"]


def join_of(shard: Shard, join: bytes) -> JoinRecord | None:
    """The join's record, as queued or on disk. Raises CorruptionError."""
    raw = shard.overlay.get(JOIN + join)
    return None if raw is None else decode_join(raw)


def put_join(group: Group, join: bytes, record: JoinRecord) -> None:
    """Queue the join's row."""
    group.ops.append((JOIN + join, encode_join(record)))


def put_edge(group: Group, shard: Shard, task_id: bytes, edge: Edge) -> None:
    """Add an edge to a task's; LimitError where it has too many.

    Args:
        group: of the task's shard; gets the rows.
        shard: of the task.
        task_id: whose end concerns the join.
        edge: what it is to the join.
    """
    raw = shard.overlay.get(edges_key(task_id))
    edges = [one for one in (decode_edges(raw) if raw is not None else ()) if one[:3] != edge[:3]]
    if len(edges) >= EDGES_MAX:
        raise LimitError(
            f"{TaskId(task_id)} is waited for by {len(edges)} tasks already, which is the most: "
            "put them behind one task, or into a workflow of their own"
        )
    group.ops.append((edges_key(task_id), encode_edges([*edges, edge])))


def drop_edge(group: Group, shard: Shard, task_id: bytes, join: bytes) -> None:
    """Take the edges to one join from a task's.

    Args:
        group: of the task's shard; gets the rows.
        shard: of the task.
        task_id: whose edges.
        join: which is forgotten.
    """
    raw = shard.overlay.get(edges_key(task_id))
    if raw is None:
        return
    left = [one for one in decode_edges(raw) if one.join != join]
    group.ops.append((edges_key(task_id), encode_edges(left) if left else None))
