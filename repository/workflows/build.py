"""Building workflows: open one, add members in slices, seal it. One batch each.

Every call may be repeated: a workflow has a key, a member a number, and what is there already is
returned. So a producer that was killed between two slices runs again and fills the same workflow.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...coalescer.group import Group
from ...engine.records.frame import seal as sealed
from ...engine.records.keyspace import TASK
from ...engine.records.workflow import (
    CALLBACK,
    CANCELLED_FLAG,
    EDGES_MAX,
    HELD_MS,
    KEY,
    MEMBER_TASK,
    NO_ID,
    ON_FAILURE,
    SEALED,
    TARGET_ROLE,
    WAITS,
    WORKFLOW_FLAG,
    Edge,
    JoinRecord,
    PartRecord,
    decode_edges,
    decode_key,
    decode_part,
    edges_key,
    encode_edges,
    encode_key,
    encode_part,
    part_key,
    workflow_key_hash,
)
from ...engine.runtime.ids import slot_of, slot_of_id
from ...engine.runtime.task_id import TaskId
from ...errors import LimitError, TaskNotFoundError, UnknownDependencyError, UsageError
from ..model.encoded_tasks import EncodedTask
from ..model.flows.workflows import MEMBERS_MAX, SLICE_BYTES_MAX, SLICE_TASKS_MAX
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..tasks.enqueue import check_pending, place
from .edges import join_of, put_edge, put_join
from .joins import Joins, end_of

__all__ = [
    "add_members",
    "open_workflow",
    "put_callback",
    "seal_workflow",
    "the_joins",
    "the_workflow",
    "workflow_slot",
]


def the_joins(state: EngineState) -> Joins:
    """The engine's joins, as what they are."""
    joins = state.flows
    if not isinstance(joins, Joins):
        raise UsageError("this engine has no workflows")
    return joins


def the_workflow(shard: Shard, workflow: bytes) -> JoinRecord:
    """The workflow's record.

    Raises:
        TaskNotFoundError: there is none.
        NotLeaderError: this replica has none, and does not lead the shard.
    """
    record = join_of(shard, workflow)
    if record is None or not record.flags & WORKFLOW_FLAG:
        shard.coalescer.check_absence()
        raise TaskNotFoundError(
            f"no workflow {TaskId(workflow)}: it never existed, or was over a week ago",
            task_id=workflow,
        )
    return record


def workflow_slot(key: bytes) -> int:
    """Where the workflow with this key lies."""
    return slot_of(b"workflow\0" + key)


async def open_workflow(
    state: EngineState, callback: EncodedTask | None, key: bytes | None, name: str, on_failure: str
) -> tuple[TaskId, TaskId | None, bool]:
    """Open a workflow, or find the one that holds the key.

    Args:
        callback: the task that runs when all members have ended; None for none.
        key: names it for whoever opens it again; None draws a slot.
        name: shown to people.
        on_failure: a key of ``ON_FAILURE``.

    Returns: its id, that of its callback, and whether it is new.
    """
    state.check_intake()
    slot = state.healthy_slot() if key is None else workflow_slot(key)
    shard = state.shard_of_slot(slot)
    if not shard.coalescer.has_capacity:
        await state.backpressure(shard)
    # atomic section
    now_us = state.clock.wall_us()
    hashed = NO_ID if key is None else workflow_key_hash(shard.secret, key)
    raw = shard.overlay.get(KEY + hashed) if key is not None else None
    held_by = None if raw is None else decode_key(raw)
    if held_by is not None:
        record = the_workflow(shard, held_by)
        await state.commit_barrier(shard)
        target = None if record.target == NO_ID else TaskId(record.target)
        return TaskId(held_by), target, False
    size = 512
    if callback is not None:
        _check_members((callback,), waits=True)
        check_pending(state, state.find_tenant_queue(callback.queue, callback.tenant), 1)
        shard.write_bodies(state.ids, (callback,))
        size += 2 * callback.record_bytes
    workflow = state.ids.new(now_us // 1000, slot)
    target_id = NO_ID if callback is None else state.ids.new(now_us // 1000, slot)
    record = JoinRecord(
        state=WAITS,
        on_failure=ON_FAILURE[on_failure],
        flags=WORKFLOW_FLAG,
        generation=0,
        parts=0,
        ended=0,
        failed=0,
        created_us=now_us,
        fired_us=0,
        workflow=workflow,
        target=target_id,
        key_hash=hashed,
        name=name.encode("utf-8", "replace"),
    )
    group = shard.coalescer.begin(size)
    with group:
        put_join(group, workflow, record)
        if key is not None:
            group.ops.append((KEY + hashed, encode_key(workflow)))
        if callback is not None:
            put_callback(state, shard, group, callback, target_id, workflow, now_us)
    await shard.coalescer.wait(group)
    return TaskId(workflow), None if callback is None else TaskId(target_id), True


def put_callback(
    state: EngineState,
    shard: Shard,
    group: Group,
    callback: EncodedTask,
    task_id: bytes,
    workflow: bytes,
    now_us: int,
) -> None:
    """The callback waits from the start; what it was enqueued with is kept for a redrive.

    Args:
        group: of the workflow's shard; gets the rows.
        callback: encoded; its payload is written.
        task_id: new, of the workflow's slot.
        workflow: its id.
        now_us: wall microseconds.
    """
    callback.due_ms = HELD_MS
    callback.flags |= MEMBER_TASK
    place(state, shard, group, callback, task_id, now_us)
    edge = Edge(TARGET_ROLE, 0, workflow)
    group.ops.append((edges_key(task_id), encode_edges([edge])))
    raw = shard.overlay.get(TASK + task_id)
    whole = None if raw is None else shard.whole_record(task_id, raw)
    if whole is not None:
        group.ops.append((CALLBACK + workflow, sealed(whole[:-8])))


async def add_members(
    state: EngineState,
    workflow: bytes,
    encoded_tasks: Sequence[EncodedTask],
    *,
    first: int | None,
    after: Sequence[bytes],
    is_chain: bool,
) -> list[TaskId]:
    """Add a slice of members, in one batch; those whose numbers are taken are there already.

    Args:
        workflow: its id.
        encoded_tasks: without keys of their own.
        first: number of the first; None: the next.
        after: members that each of the slice waits for.
        is_chain: each of the slice waits for the one before it instead, the first for ``after``.

    Returns: the ids of all of them.
    """
    shard = state.shard_of(workflow)
    size = sum(encoded.record_bytes for encoded in encoded_tasks)
    if len(encoded_tasks) > SLICE_TASKS_MAX or size > SLICE_BYTES_MAX:
        raise LimitError(
            f"a slice has at most {SLICE_TASKS_MAX} members and {SLICE_BYTES_MAX} bytes, this one "
            f"{len(encoded_tasks)} and {size}: add them in several"
        )
    state.check_intake()
    if not shard.coalescer.has_capacity:
        await state.backpressure(shard)
    # atomic section
    record = the_workflow(shard, workflow)
    start = record.parts if first is None else first
    if not 0 <= start <= MEMBERS_MAX - len(encoded_tasks):
        raise LimitError(f"a workflow has at most {MEMBERS_MAX} members: numbers from 0 on")
    there = [shard.overlay.get(part_key(workflow, start + i)) for i in range(len(encoded_tasks))]
    missing = [i for i, raw in enumerate(there) if raw is None]
    ids = [b"" if raw is None else decode_part(raw).source for raw in there]
    if not missing:
        await state.commit_barrier(shard)
        return [TaskId(one) for one in ids]
    _check_open(workflow, record)
    _check_members(encoded_tasks, waits=is_chain or bool(after))
    sources = [(one, _status_of(state, shard, workflow, one)) for one in dict.fromkeys(after)]
    if len(sources) > EDGES_MAX:
        raise LimitError(f"a task waits for at most {EDGES_MAX} others, not {len(sources)}")
    for i in missing:
        check_pending(
            state,
            state.find_tenant_queue(encoded_tasks[i].queue, encoded_tasks[i].tenant),
            len(missing),
        )
    shard.write_bodies(state.ids, [encoded_tasks[i] for i in missing])
    now_us = state.clock.wall_us()
    fresh = state.ids.run(now_us // 1000, slot_of_id(workflow), len(missing))
    for i, task_id in zip(missing, fresh, strict=True):
        ids[i] = task_id
    _check_edges(shard, sources, 1 if is_chain else len(missing))
    group = shard.coalescer.begin(size + 512 * len(missing))
    with group:
        put_join(group, workflow, record._replace(parts=record.parts + len(missing)))
        for i in missing:
            waits_for = sources
            if is_chain and i:  # which may have ended in this very batch: cancelled
                waits_for = [(ids[i - 1], _status_of(state, shard, workflow, ids[i - 1]))]
            if waits_for:
                encoded_tasks[i].due_ms = HELD_MS
            _put_member(
                state, shard, group, workflow, record, encoded_tasks[i], ids[i], start + i, now_us
            )
            if waits_for:
                _put_wait(state, shard, group, workflow, record, ids[i], waits_for, now_us)
    await shard.coalescer.wait(group)
    return [TaskId(one) for one in ids]


def _check_members(encoded_tasks: Sequence[EncodedTask], *, waits: bool) -> None:
    """Refuse what a member, or a callback, may not be given.

    Args:
        encoded_tasks: what to enqueue.
        waits: whether they wait for others.
    """
    for encoded in encoded_tasks:
        if encoded.slot is not None:
            raise UsageError(
                "a member lives where its workflow does: give it no dedup_key and no shard_key; "
                "its number is its key within the workflow"
            )
        if waits and encoded.due_ms:
            raise UsageError(
                "a task that waits for others becomes ready when they have ended: give it no delay "
                "and no run_at"
            )


def _check_open(workflow: bytes, record: JoinRecord) -> None:
    if record.flags & CANCELLED_FLAG:
        raise UsageError(f"the workflow {TaskId(workflow)} was cancelled: it takes no members")
    if record.flags & SEALED or record.state != WAITS:
        raise UsageError(
            f"the workflow {TaskId(workflow)} is sealed: it takes no members but those it has"
        )


def _status_of(state: EngineState, shard: Shard, workflow: bytes, task_id: bytes) -> int | None:
    """First end of a member that another one is to wait for; None: it is under way."""
    raw = None
    if slot_of_id(task_id) == slot_of_id(workflow):
        raw = shard.overlay.get(edges_key(task_id))
    for edge in decode_edges(raw) if raw is not None else ():
        if edge.join == workflow and edge.role != TARGET_ROLE:
            part = shard.overlay.get(part_key(workflow, edge.number))
            status = 0 if part is None else decode_part(part).status
            return status or end_of(state, shard, task_id)
    raise UnknownDependencyError(
        f"{TaskId(task_id)} is no member of the workflow {TaskId(workflow)}: add it first, members "
        "wait for members",
        task_id=task_id,
    )


def _check_edges(shard: Shard, sources: Sequence[tuple[bytes, int | None]], more: int) -> None:
    for task_id, _ in sources:
        raw = shard.overlay.get(edges_key(task_id))
        if raw is not None and len(decode_edges(raw)) + more > EDGES_MAX:
            raise LimitError(
                f"{TaskId(task_id)} is waited for by too many: {EDGES_MAX - 1} at most; put them "
                "behind one task, or into a workflow of their own"
            )


def _put_member(
    state: EngineState,
    shard: Shard,
    group: Group,
    workflow: bytes,
    record: JoinRecord,
    encoded: EncodedTask,
    task_id: bytes,
    number: int,
    now_us: int,
) -> None:
    part = PartRecord(0, record.generation, 0, task_id)
    edge = Edge(0, number, workflow)
    group.ops.append((part_key(workflow, number), encode_part(part)))
    group.ops.append((edges_key(task_id), encode_edges([edge])))
    encoded.flags |= MEMBER_TASK
    place(state, shard, group, encoded, task_id, now_us)


def _put_wait(
    state: EngineState,
    shard: Shard,
    group: Group,
    workflow: bytes,
    record: JoinRecord,
    task_id: bytes,
    sources: Sequence[tuple[bytes, int | None]],
    now_us: int,
) -> None:
    """The join of a member that waits for others."""
    put_edge(group, shard, task_id, Edge(TARGET_ROLE, 0, task_id))
    ended = failed = 0
    for number, (source, status) in enumerate(sources):
        ended += status is not None
        failed += status not in (None, 1)
        part = PartRecord(status or 0, record.generation, now_us if status else 0, source)
        group.ops.append((part_key(task_id, number), encode_part(part)))
        put_edge(group, shard, source, Edge(0, number, task_id))
    join = JoinRecord(
        state=WAITS,
        on_failure=record.on_failure,
        flags=SEALED,
        generation=record.generation,
        parts=len(sources),
        ended=ended,
        failed=failed,
        created_us=now_us,
        fired_us=0,
        workflow=workflow,
        target=task_id,
        key_hash=NO_ID,
        name=b"",
    )
    the_joins(state).settle(group, shard, task_id, join, now_us)


async def seal_workflow(state: EngineState, workflow: bytes) -> bool:
    """No more members: from here on the join may fire. Returns whether it was open."""
    shard = state.shard_of(workflow)
    if not shard.coalescer.has_capacity:
        await state.backpressure(shard)
    record = the_workflow(shard, workflow)
    if record.flags & SEALED:
        await state.commit_barrier(shard)
        return False
    group = shard.coalescer.begin()
    with group:
        sealed_one = record._replace(flags=record.flags | SEALED)
        the_joins(state).settle(group, shard, workflow, sealed_one, state.clock.wall_us())
    await shard.coalescer.wait(group)
    return True
