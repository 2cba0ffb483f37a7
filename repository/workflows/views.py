"""Workflows as users see them: their numbers, and their parts page by page."""

from __future__ import annotations

from ...engine.records.frame import attempt
from ...engine.records.keyspace import RESULT, TASK
from ...engine.records.result import HAS_VALUE, Status, decode_result
from ...engine.records.workflow import (
    CANCELLED_FLAG,
    KEY,
    NO_ID,
    ON_FAILURE,
    OVER,
    PART,
    PART_NUMBER,
    REDRIVING,
    SEALED,
    TARGET_ROLE,
    WAITS,
    WORKFLOW_FLAG,
    JoinRecord,
    PartRecord,
    decode_edges,
    decode_key,
    decode_part,
    edges_key,
    part_key,
    workflow_key_hash,
)
from ...engine.runtime.task_id import TaskId
from ...errors import NotLeaderError, TaskNotFoundError, UsageError
from ..model.codec import deferred_value, stored_value
from ..model.encoded_tasks import to_datetime
from ..model.flows.workflows import PARTS_MAX, WorkflowInfo
from ..model.values import Part
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..tasks.lookup import Payloads, get
from .build import the_workflow, workflow_slot
from .edges import join_of
from .joins import range_end

__all__ = [
    "info_of",
    "join_for",
    "parts",
    "state_of",
    "workflow_for",
    "workflow_info",
]

_PAGE_BYTES = 4 << 20
_POLICIES = {code: name for name, code in ON_FAILURE.items()}


def join_for(shard: Shard, named: bytes) -> tuple[bytes, JoinRecord]:
    """The join of a workflow, of a callback, or of a task that waits for others.

    Raises:
        TaskNotFoundError: it is none of these.
        NotLeaderError: as far as this replica knows, which does not lead the shard.
    """
    record = join_of(shard, named)
    if record is not None:
        return named, record
    raw = shard.overlay.get(edges_key(named))
    for edge in decode_edges(raw) if raw is not None else ():
        if edge.role == TARGET_ROLE:
            record = join_of(shard, edge.join)
            if record is not None:
                return edge.join, record
    shard.coalescer.check_absence()
    raise TaskNotFoundError(
        f"{TaskId(named)} is no workflow, and waits for no others", task_id=named
    )


async def workflow_info(state: EngineState, workflow: bytes) -> WorkflowInfo:
    """See ``Engine.workflow_info``."""
    _, workflow, record = workflow_for(state, workflow)
    return await info_of(state, workflow, record)


def workflow_for(state: EngineState, named: bytes) -> tuple[Shard, bytes, JoinRecord]:
    """The workflow of this id, or that of which a task is a member or the callback, or the opener.

    Args:
        state: of the engine.
        named: of a workflow or a task.

    Returns: its shard, its id and its record.

    Raises:
        TaskNotFoundError: it is none of these.
        NotLeaderError: as far as this replica knows, which does not lead the shard.
    """
    shard = state.shard_of(named)
    raw = shard.overlay.get(edges_key(named))
    for edge in decode_edges(raw) if raw is not None else ():
        record = join_of(shard, edge.join)
        if record is not None and record.flags & WORKFLOW_FLAG:
            return shard, edge.join, record
    if join_of(shard, named) is None:
        opened = _opened_by(state, named)
        if opened is not None:
            return opened
        if shard.overlay.has(TASK + named) or shard.overlay.has(RESULT + named):
            shard.coalescer.check_absence()  # of what makes it a member
            raise TaskNotFoundError(
                f"{TaskId(named)} is a task, and of no workflow that is known: Engine.workflows "
                "('lodeq workflow ls') lists those",
                task_id=named,
            )
    return shard, named, the_workflow(shard, named)


def _opened_by(state: EngineState, task_id: bytes) -> tuple[Shard, bytes, JoinRecord] | None:
    """The workflow that a task has opened with its own id as the key, as a worker's do."""
    shard = state.shard_of_slot(workflow_slot(task_id))
    try:
        raw = shard.overlay.get(KEY + workflow_key_hash(shard.secret, task_id))
        workflow = None if raw is None else decode_key(raw)
        record = None if workflow is None else join_of(shard, workflow)
    except NotLeaderError:  # the shard is not here, and whether it has one is unknown
        return None
    if workflow is None or record is None or not record.flags & WORKFLOW_FLAG:
        return None
    return shard, workflow, record


async def info_of(state: EngineState, workflow: bytes, r: JoinRecord) -> WorkflowInfo:
    """A workflow in numbers, from its record.

    Args:
        state: of the engine.
        workflow: its id.
        r: its join.
    """
    shard = state.shard_of(workflow)
    callback = None if r.target == NO_ID else TaskId(r.target)
    found = None if callback is None else await get(state, callback, "none")
    if callback is None:
        await state.commit_barrier(shard)
    return WorkflowInfo(
        id=TaskId(workflow),
        name=r.name.decode("utf-8", "replace"),
        state=state_of(r),
        on_failure=_POLICIES[r.on_failure],
        generation=r.generation,
        members=r.parts,
        ended=r.ended,
        failed=r.failed,
        callback=callback,
        callback_state=None if found is None else found.state,
        created_at=to_datetime(r.created_us),
        joined_at=to_datetime(r.fired_us) if r.fired_us else None,
    )


def state_of(r: JoinRecord) -> str:
    """State of a workflow, as users see it."""
    if r.flags & CANCELLED_FLAG:
        return "cancelled"
    if r.state != WAITS:
        return "over" if r.state == OVER else "joined"
    if r.flags & REDRIVING:
        return "running"
    if not r.flags & SEALED:
        return "open"
    return "waiting" if r.is_complete else "running"


async def parts(
    state: EngineState,
    named: bytes,
    *,
    after: int,
    limit: int,
    failed: bool,
    payloads: Payloads = "decoded",
) -> list[Part]:
    """See ``Engine.parts_page``.

    Args:
        named: a workflow, its callback, or a task that waits for others.
        after: the number of the last one of the page before; -1 for the first page.
        limit: parts at most, 1 to 1,024; fewer where their values are large.
        failed: only those that have ended and did not complete.
        payloads: ``none`` reads no value.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PARTS_MAX:
        raise UsageError(f"limit {limit!r} is not between 1 and {PARTS_MAX}")
    if isinstance(after, bool) or not isinstance(after, int) or not -1 <= after < 1 << 31:
        raise UsageError(f"after {after!r} is not the number of a part, or -1")
    shard = state.shard_of(named)
    join, _ = join_for(shard, named)
    out: list[Part] = []
    lower: bytes | None = part_key(join, after + 1)
    size = 0
    while lower is not None and len(out) < limit and size < _PAGE_BYTES:
        rows, lower = shard.overlay.scan_readable(lower, range_end(PART + join), limit)
        for key, raw in rows:
            part = attempt(decode_part, raw)
            if part is None or (failed and part.status in (0, Status.COMPLETED)):
                continue
            one, size_of_it = _part(state, int.from_bytes(key[PART_NUMBER], "big"), part, payloads)
            out.append(one)
            size += size_of_it
            if len(out) >= limit or size >= _PAGE_BYTES:
                break
        else:
            await state.spawner.checkpoint()
            state.check()
    await state.commit_barrier(shard)
    return out


def _part(
    state: EngineState, number: int, part: PartRecord, payloads: Payloads
) -> tuple[Part, int]:
    value, error, queue, size = None, "", "", 64
    if part.status:
        try:
            raw = state.shard_of(part.source).overlay.get_sound(RESULT + part.source)
        except NotLeaderError:  # it is not here: how it ended is all that is known
            raw = None
        record = attempt(decode_result, raw)
        if record is not None and record.status == part.status:
            error, queue = record.error.decode("utf-8", "replace"), record.queue.decode()
            if record.flags & HAS_VALUE and payloads != "none":
                stored = record.flags & 3, record.flags >> 2 & 3, record.value, record.raw_bytes
                size += len(record.value)
                if payloads == "stored":
                    value = stored_value(*stored)
                else:
                    value = deferred_value(*stored, state.codecs.get(record.queue))
    return (
        Part(
            number=number,
            task_id=TaskId(part.source),
            status=Status(part.status).name.lower() if part.status else None,
            value=value,
            error=error,
            queue=queue,
            ended_at=to_datetime(part.ended_us) if part.ended_us else None,
        ),
        size,
    )
