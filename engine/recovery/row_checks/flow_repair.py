"""Rows of workflows, made to agree with each other and with the tasks there are.

What a hole in the log, a damaged block or a salvage has left: joins count the parts there are, what
has edges says so in its place and result, and outbox rows lead somewhere. A task that waits for a
join of which nothing is left is not let go here: nobody knows what it waited for.
"""

from __future__ import annotations

from collections.abc import Generator

from ...records import keyspace as ks
from ...records.frame import attempt
from ...records.lease import DEAD_LEASE, decode_lease, encode_lease
from ...records.queues.key_waits import KEY_WAIT_MS
from ...records.result import decode_result, encode_result
from ...records.rows import (
    MOVED_ROW,
    IndexRow,
    decode_index_row,
    decode_moved,
    encode_index_row,
)
from ...records.task import decode_task
from ...records.workflow import (
    EDGES,
    FIRED,
    HELD_MS,
    JOIN,
    MEMBER_LEASE,
    MEMBER_RESULT,
    MEMBER_ROW,
    NO_ID,
    OUTBOX_JOIN,
    OUTBOX_SOURCE,
    PART,
    SEALED,
    WAITS,
    WORKFLOW_FLAG,
    Edge,
    decode_edges,
    decode_join,
    decode_outbox,
    decode_part,
    edge_to,
    edges_key,
    encode_edges,
    encode_join,
    part_key,
)
from ...runtime.ids import slot_of_id
from ...store.port import Op, StoreView, pages
from .first_keys import first_key

__all__ = ["mend_joins"]

_END = b"\xff" * 21


def mend_joins(view: StoreView) -> Generator[list[Op], None, None]:
    """Operations that make joins count what there is, a join a step.

    A hole may have taken a slice of members and left a seal that came later: then the workflow is
    open again, for whoever fills it. What has ended and was not counted the engine asks for itself.
    """
    for rows in pages(view, JOIN, JOIN + _END):
        for key, raw in rows:
            record = attempt(decode_join, raw)
            if record is None:
                continue
            join = key[len(JOIN) :]
            found = [0, 0, 0]
            ops: list[Op] = []
            for page in pages(view, PART + join, PART + join + _END):
                for at, value in page:
                    part = attempt(decode_part, value)
                    if part is not None:
                        found[0] += 1
                        found[1] += part.status != 0
                        found[2] += part.status > 1
                        if not part.status or record.workflow != NO_ID:
                            number = int.from_bytes(at[-4:], "big")
                            ops += _mend_edge(view, join, number, part.source)
            flags = record.flags
            if found[0] < record.parts and flags & WORKFLOW_FLAG:
                flags &= ~SEALED
            mended = record._replace(flags=flags, parts=found[0], ended=found[1], failed=found[2])
            if mended.state == FIRED and not mended.is_complete:
                mended = mended._replace(state=WAITS, fired_us=0)
                ops += _hold(view, mended.target)
            yield ops if mended == record else [*ops, (key, encode_join(mended))]
    for rows in pages(view, PART, PART + _END):
        yield [(key, None) for key, _ in rows if view.get(JOIN + key[len(PART) : -4]) is None]
    for rows in pages(view, EDGES, EDGES + _END):
        yield [op for key, _ in rows for op in _mend_flags(view, key[len(EDGES) :])]
    for rows in pages(view, ks.OUTBOX, ks.OUTBOX_END):
        yield [
            (key, None)
            for key, raw in rows
            if _is_lost(view, key[OUTBOX_SOURCE], key[OUTBOX_JOIN], raw)
        ]


def _mend_flags(view: StoreView, task_id: bytes) -> list[Op]:
    """The flags of a task with edges, where it is: a row that was made anew may lack them."""
    ops: list[Op] = []
    raw = view.get(ks.RESULT + task_id)
    result = None if raw is None else attempt(decode_result, raw)
    if result is not None and not result.flags & MEMBER_RESULT:
        flagged = result._replace(flags=result.flags | MEMBER_RESULT)
        ops.append((ks.RESULT + task_id, encode_result(flagged)))
    raw = view.get(ks.LEASE + task_id)
    if raw is not None:
        lease = attempt(decode_lease, raw)
        if lease is not None and not lease.flags & MEMBER_LEASE:
            leased = lease._replace(flags=lease.flags | MEMBER_LEASE)
            ops.append((ks.LEASE + task_id, encode_lease(leased)))
        return ops
    task = attempt(decode_task, view.get(ks.TASK + task_id))
    if task is None:
        return ops
    moved = attempt(decode_moved, view.get(ks.MOVED + task_id))
    key = moved.key if moved is not None else first_key(task_id, task)
    raw = view.get(key)
    row = None if raw is None else attempt(decode_index_row, raw)
    if row is not None and not row.flags & MEMBER_ROW:
        ops.append((key, encode_index_row(row._replace(flags=row.flags | MEMBER_ROW))))
    return ops


def _is_lost(view: StoreView, source: bytes, join: bytes, raw: bytes) -> bool:
    """Whether an outbox row has nobody who sends it, or nobody here who waits for it."""
    record = attempt(decode_outbox, raw)
    if record is None:
        return False
    if view.get(ks.TASK + source) is not None and view.get(ks.RESULT + source) is None:
        edges = attempt(decode_edges, view.get(edges_key(source))) or []
        if edge_to(edges, record.number, join) is None:
            return True
    if view.get(JOIN + join) is None:
        return slot_of_id(join) == slot_of_id(source)
    part = attempt(decode_part, view.get(part_key(join, record.number)))
    return part is None or part.source != source


def _hold(view: StoreView, target: bytes) -> list[Op]:
    """A target that was let go waits again: the end that had allowed it is lost."""
    task = attempt(decode_task, view.get(ks.TASK + target))
    raw_lease = view.get(ks.LEASE + target)
    lease = None if raw_lease is None else attempt(decode_lease, raw_lease)
    raw_moved = view.get(ks.MOVED + target)
    moved = None if raw_moved is None else attempt(decode_moved, raw_moved)
    if task is None or task.due_ms < HELD_MS:
        return []
    if lease is not None and lease.flags & DEAD_LEASE:
        return []
    if lease is not None:
        place, flags = ks.LEASE + target, lease.flags >> 1
        facts = lease.priority, lease.attempts, lease.record_bytes, lease.expires_ms
    else:
        at = None if moved is None else attempt(ks.decode_index_key, moved.key)
        if moved is None or at is None or (at.kind != ks.READY and at.at < KEY_WAIT_MS):
            return []
        place = moved.key
        raw_row = view.get(place)
        row = None if raw_row is None else attempt(decode_index_row, raw_row)
        if row is None:
            return []
        flags = row.flags
        facts = row.priority, row.attempts, row.record_bytes, row.expires_ms
    prefix = ks.shard_queue_prefix(task.queue, task.tenant)
    key = ks.delayed_key(prefix, task.due_ms, task.seq, target)
    value = encode_index_row(IndexRow(flags & ~MOVED_ROW, *facts, b""))
    return [(place, None), (ks.MOVED + target, None), (key, value)]


def _mend_edge(view: StoreView, join: bytes, number: int, source: bytes) -> list[Op]:
    """The edge of a part, if it is missing: it came with a slice that is lost."""
    if slot_of_id(source) != slot_of_id(join):
        return []
    raw = view.get(edges_key(source))
    edges = (attempt(decode_edges, raw) or []) if raw is not None else []
    if edge_to(edges, number, join) is not None:
        return []
    return [(edges_key(source), encode_edges([*edges, Edge(0, number, join)]))]
