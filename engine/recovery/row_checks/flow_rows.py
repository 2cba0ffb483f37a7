"""Rows of workflows held against each other, and against the tasks they are about.

- A join's counters are what a count of its parts gives, and a part has a join.
- A part that is under way has an edge to the join, under the part's number, and has a task, or its
  end is in the outbox. One that has ended keeps the edge, which pins its result, if it is of a
  workflow. (Asked of parts on the join's slot: others lie elsewhere.)
- A task with edges has a flag in its place, and in its result: else its end would not be counted,
  nor its result kept.
- A join that is complete has fired, unless it waits for a redrive. A target that waits has a join
  that has not fired, and whatever waits is a target.
- An outbox row is of a task that has ended, or had edges to the join; and the join that is to count
  it, if it is here, has a part for it.

``flow_repair`` makes them true again.
"""

from __future__ import annotations

from collections.abc import Generator

from ...records import keyspace as ks
from ...records.frame import attempt
from ...records.lease import decode_lease
from ...records.queues.key_waits import KEY_WAIT_MS
from ...records.result import decode_result
from ...records.rows import decode_index_row, decode_moved
from ...records.task import decode_task
from ...records.workflow import (
    CANCELLED_FLAG,
    EDGES,
    FLOW_ID,
    HELD_MS,
    JOIN,
    MEMBER_LEASE,
    MEMBER_RESULT,
    MEMBER_ROW,
    NO_ID,
    ON_FAILURE,
    OUTBOX_JOIN,
    OUTBOX_SOURCE,
    PART,
    PART_NUMBER,
    TARGET_ROLE,
    WAITS,
    JoinRecord,
    PartRecord,
    decode_edges,
    decode_join,
    decode_outbox,
    decode_part,
    edge_to,
    edges_key,
    outbox_key,
    part_key,
)
from ...runtime.ids import slot_of_id
from ...store.walk import Walk
from .first_keys import first_key

__all__ = ["strange_joins", "waits_for_nothing"]

_END = b"\xff" * 21
_UNFLAGGED = "its place does not say that a join counts its end"


def strange_joins(walk: Walk) -> Generator[list[tuple[str, bytes]], None, None]:
    """Find what is wrong with workflows: (what, id of a join or task), a few dozen rows a step."""
    for rows in walk.pages(JOIN, JOIN + _END):
        for key, raw in rows:
            record = attempt(decode_join, raw)
            if record is not None:
                yield from _join(walk, key[len(JOIN) :], record)
        yield []
    last = b""
    for rows in walk.pages(PART, PART + _END):
        found: list[tuple[str, bytes]] = []
        for key, _ in rows:
            join = key[len(PART) : -4]
            if join != last:
                last = join
                join_row, is_known = walk.read(JOIN + join)
                if attempt(decode_join, join_row) is None and is_known:
                    found.append(("part of a join that is not there", join))
        yield found
    for rows in walk.pages(EDGES, EDGES + _END):
        yield [
            (what, key[FLOW_ID])
            for key, _ in rows
            if (what := _flags(walk, key[FLOW_ID])) is not None
        ]
    for rows in walk.pages(ks.OUTBOX, ks.OUTBOX_END):
        yield [
            (what, key[OUTBOX_SOURCE])
            for key, raw in rows
            if (what := _sent(walk, key[OUTBOX_SOURCE], key[OUTBOX_JOIN], raw)) is not None
        ]


def waits_for_nothing(walk: Walk, task_id: bytes) -> str | None:
    """Say what is wrong with a task that waits: nothing will ever let it go."""
    raw, is_known = walk.read(edges_key(task_id))
    edges = [] if raw is None else attempt(decode_edges, raw)
    if not is_known or edges is None:
        return None
    for edge in edges:
        if edge.role == TARGET_ROLE:
            join, knows_join = walk.read(JOIN + edge.join)
            if attempt(decode_join, join) is not None or not knows_join:
                return None
    return "waits, and there is no join to let it go"


def _flags(walk: Walk, task_id: bytes) -> str | None:
    """Where a task with edges is under way, or has ended, it says so."""
    result_row, _ = walk.read(ks.RESULT + task_id)
    result = None if result_row is None else attempt(decode_result, result_row)
    if result is not None and not result.flags & MEMBER_RESULT:
        return "its result does not say that a join may read it"
    lease_row, knows_lease = walk.read(ks.LEASE + task_id)
    if lease_row is not None:
        lease = attempt(decode_lease, lease_row)
        return _UNFLAGGED if lease is not None and not lease.flags & MEMBER_LEASE else None
    task_row, _ = walk.read(ks.TASK + task_id)
    moved_row, knows_moved = walk.read(ks.MOVED + task_id)
    task = None if task_row is None else attempt(decode_task, task_row)
    if task is None or not (knows_lease and knows_moved):
        return None
    moved = None if moved_row is None else attempt(decode_moved, moved_row)
    if moved_row is not None and moved is None:
        return None
    raw, _ = walk.read(moved.key if moved is not None else first_key(task_id, task))
    row = None if raw is None else attempt(decode_index_row, raw)
    return _UNFLAGGED if row is not None and not row.flags & MEMBER_ROW else None


def _sent(walk: Walk, source: bytes, join: bytes, raw: bytes) -> str | None:
    """An end that is still to be counted: somebody sends it, somebody waits for it."""
    record = attempt(decode_outbox, raw)
    if record is None:
        return None
    edges_row, knows_edges = walk.read(edges_key(source))
    task_row, _ = walk.read(ks.TASK + source)
    if task_row is not None and knows_edges:
        edges = [] if edges_row is None else attempt(decode_edges, edges_row)
        is_dead = walk.read(ks.RESULT + source)[0] is not None
        if not is_dead and edges is not None and edge_to(edges, record.number, join) is None:
            return f"an outbox row of it for {join.hex()}, and it is under way"
    join_row, knows_join = walk.read(JOIN + join)
    if attempt(decode_join, join_row) is None:
        is_here = slot_of_id(join) == slot_of_id(source)
        return f"an outbox row for {join.hex()}, no join" if is_here and knows_join else None
    part_row, knows_part = walk.read(part_key(join, record.number))
    part = None if part_row is None else attempt(decode_part, part_row)
    is_strange = part.source != source if part is not None else part_row is None and knows_part
    return f"an outbox row for {join.hex()}, which does not wait for it" if is_strange else None


def _join(
    walk: Walk, join: bytes, record: JoinRecord
) -> Generator[list[tuple[str, bytes]], None, None]:
    parts = ended = failed = 0
    lower, upper = PART + join, PART + join + _END
    for rows in walk.pages(lower, upper):
        found: list[tuple[str, bytes]] = []
        for key, raw in rows:
            part = attempt(decode_part, raw)
            if part is None:
                continue
            parts += 1
            ended += part.status != 0
            failed += part.status > 1
            number = int.from_bytes(key[PART_NUMBER], "big")
            what = _part(walk, join, number, part, record)
            if what is not None:
                found.append((what, part.source))
        yield found
    if walk.has_lost(lower, upper):
        return
    said = record.parts, record.ended, record.failed
    if said != (parts, ended, failed):
        counts = f"{said} parts, ended and failed, there are {(parts, ended, failed)}"
        yield [(f"its join says {counts}", join)]
    elif (what := _target(walk, record)) is not None:
        yield [(what, join)]


def _part(walk: Walk, join: bytes, number: int, part: PartRecord, record: JoinRecord) -> str | None:
    if slot_of_id(part.source) != slot_of_id(join):
        return None
    if part.status and record.workflow == NO_ID:  # it may have ended before anybody waited for it
        return None
    raw, is_known = walk.read(edges_key(part.source))
    edges = None if raw is None else attempt(decode_edges, raw)
    if is_known and (edges is None or edge_to(edges, number, join) is None):
        return f"has no edge to the join {join.hex()}"
    if record.state == WAITS and not part.status:
        task, knows_task = walk.read(ks.TASK + part.source)
        sent, knows_sent = walk.read(outbox_key(part.source, join))
        if task is None and sent is None and knows_task and knows_sent:
            return f"has ended, and the join {join.hex()} has not counted it"
    return None


def _target(walk: Walk, record: JoinRecord) -> str | None:
    may_wait = record.failed and record.on_failure == ON_FAILURE["wait"]
    is_cancelled = record.flags & CANCELLED_FLAG
    if record.state == WAITS and record.is_complete and not may_wait and not is_cancelled:
        return "all that its join waits for has ended, and it has not fired"
    if record.state == WAITS or record.target == NO_ID:
        return None
    return "its join has fired, and its target waits" if _waits(walk, record.target) else None


def _waits(walk: Walk, target: bytes) -> bool:
    """Whether a task is there and waits. One of which not all is known does not."""
    task, _ = walk.read(ks.TASK + target)
    lease, knows_lease = walk.read(ks.LEASE + target)
    moved, knows_moved = walk.read(ks.MOVED + target)
    record = None if task is None else attempt(decode_task, task)
    if record is None or lease is not None or not (knows_lease and knows_moved):
        return False
    if moved is None:
        return record.due_ms >= HELD_MS
    place = attempt(decode_moved, moved)
    at = None if place is None else attempt(ks.decode_index_key, place.key)
    return at is not None and at.kind == ks.DELAYED and HELD_MS <= at.at < KEY_WAIT_MS
