"""Cancel and redrive a whole workflow: in slices, and resumed by the reaper after a kill.

Both first write what is to become of the workflow into its own row: *cancelled*, or *being
redriven* with a new generation. A process that dies between two slices leaves that mark, and the
next open goes on from it; each slice may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...coalescer.group import Group
from ...engine.records.frame import attempt
from ...engine.records.keyspace import DEAD, RESULT, TASK
from ...engine.records.result import Status, decode_result
from ...engine.records.rows import IndexRow, encode_index_row
from ...engine.records.task import BODY_FLAG, decode_task, encode_task
from ...engine.records.workflow import (
    CALLBACK,
    CANCELLED_FLAG,
    EDGES_MAX,
    HELD_MS,
    JOIN,
    MEMBER_ROW,
    NO_ID,
    OVER,
    PART,
    REDRIVING,
    SEALED,
    TARGET_ROLE,
    WAITS,
    WORKFLOW_FLAG,
    Edge,
    JoinRecord,
    PartRecord,
    decode_edges,
    decode_join,
    decode_part,
    edges_key,
    encode_edges,
)
from ...engine.runtime.ids import slot_of_id
from ...engine.runtime.task_id import TaskId
from ...errors import CorruptionError, UsageError
from ..model.tally import Tally
from ..state.engine_state import EngineState
from ..state.pages import Pages
from ..state.queue_state import Shard
from ..state.rows.task_location import first_key, is_alive, task_location
from ..tasks.operators.admin import redrive_one
from ..tasks.task_end import end_task, finish
from .build import the_joins, the_workflow
from .edges import drop_edge, join_of, put_join
from .joins import SLICE, range_end
from .redrives import uncount

__all__ = ["cancel_workflow", "redrive_workflow", "resume"]


async def cancel_workflow(state: EngineState, workflow: bytes) -> int:
    """Cancel every task of a workflow that has not ended. Returns how many members were."""
    shard = state.shard_of(workflow)
    if not shard.coalescer.has_capacity:
        await state.backpressure(shard)
    record = the_workflow(shard, workflow)
    if not record.flags & CANCELLED_FLAG:
        flags = (record.flags | CANCELLED_FLAG | SEALED) & ~REDRIVING
        group = shard.coalescer.begin()
        with group:
            put_join(group, workflow, record._replace(flags=flags))
        if record.state != WAITS and record.target != NO_ID:  # no member is left
            _cancel_one(state, shard, group, record.target)
        await shard.coalescer.wait(group)
        state.check()
    return await _written(state, shard, _cancel_slices(state, shard, workflow))


async def _written(state: EngineState, shard: Shard, slices: Iterator[tuple[Group, int]]) -> int:
    """Wait for each slice before the next one is made; how many tasks they concern."""
    with Tally() as tally:
        for group, n in slices:
            await shard.coalescer.wait(group)
            tally.count += n
            await state.spawner.checkpoint()
            state.check()
            if not shard.coalescer.has_capacity:
                await state.backpressure(shard)
    return tally.count


def _slices_of_parts(shard: Shard, workflow: bytes) -> Iterator[list[PartRecord]]:
    """The parts of a workflow that can be read; each slice is read when it is asked for."""
    lower: bytes | None = PART + workflow
    while lower is not None:
        rows, lower = shard.overlay.scan_readable(lower, range_end(PART + workflow), SLICE)
        parts = [attempt(decode_part, raw) for _, raw in rows]
        yield [part for part in parts if part is not None]


def _has_flag(shard: Shard, workflow: bytes, flag: int) -> bool:
    """Whether the act that has set it is still the last one."""
    record = join_of(shard, workflow)
    return record is not None and record.flags & flag != 0


def _cancel_slices(
    state: EngineState, shard: Shard, workflow: bytes
) -> Iterator[tuple[Group, int]]:
    """Cancel what is left of a cancelled workflow; an atomic section a step.

    A redrive that comes meanwhile ends it: its members, and its callback, are to run.
    """
    for parts in _slices_of_parts(shard, workflow):
        if not _has_flag(shard, workflow, CANCELLED_FLAG):
            return
        sources = [part.source for part in parts if not part.status]
        if sources:
            group = shard.coalescer.begin(len(sources) * 256)
            for source in sources:
                _cancel_one(state, shard, group, source)
            yield group, len(sources)
    record = join_of(shard, workflow)
    if record is None or not record.flags & CANCELLED_FLAG:
        return
    group = shard.coalescer.begin()
    with group:
        if record.state == WAITS:
            the_joins(state).settle(group, shard, workflow, record, state.clock.wall_us())
    if record.target != NO_ID:
        _cancel_one(state, shard, group, record.target)
    yield group, 0


def _cancel_one(state: EngineState, shard: Shard, group: Group, task_id: bytes) -> None:
    lease = state.leases.get(task_id)
    with group:
        if lease is not None:
            state.check_inherited(lease)
            finish(state, group, lease, Status.CANCELLED, error=b"its workflow was cancelled")
            return
        try:
            location = task_location(state, shard, task_id)
        except CorruptionError as error:
            state.anomaly(f"shard {shard.index}: {task_id.hex()}: {error}")
            return
        if location is None or location.kind == DEAD:
            return
        end_task(state, group, location, Status.CANCELLED, "its workflow was cancelled")


async def redrive_workflow(state: EngineState, workflow: bytes) -> int:
    """Redrive the dead members, and have the callback wait for them. Returns how many were.

    Of a task that waits for others (``after=``): the dead ones of these.
    """
    shard = state.shard_of(workflow)
    if not shard.coalescer.has_capacity:
        await state.backpressure(shard)
    awaited = join_of(shard, workflow)
    if awaited is not None and not awaited.flags & WORKFLOW_FLAG:
        return await _redrive_awaited(state, shard, workflow, awaited)
    record = the_workflow(shard, workflow)
    if not record.flags & REDRIVING:
        if not record.flags & SEALED:
            raise UsageError("the workflow is open: seal it first, or redrive its dead letters")
        _check_callback(state, shard, record)
        if not await _has_dead(state, shard, workflow, record):
            return 0
        record = the_workflow(shard, workflow)
        _check_callback(state, shard, record)
        group = shard.coalescer.begin(4096)
        with group:
            queued = len(group.ops)
            _rearm(state, shard, group, workflow, record)
            group.count_from(queued)  # a callback that is made anew comes with its payload
        await shard.coalescer.wait(group)
        state.check()
    return await _written(state, shard, _redrive_slices(state, shard, workflow))


def _check_callback(state: EngineState, shard: Shard, record: JoinRecord) -> None:
    """A callback that has been let go and is not over cannot wait again."""
    if record.target == NO_ID or record.state == WAITS:
        return
    location = task_location(state, shard, record.target)
    if record.target in state.leases or (location is not None and location.kind != DEAD):
        raise UsageError(
            f"the callback {TaskId(record.target)} is under way: redrive the workflow when it has "
            "ended, or cancel it first"
        )


async def _has_dead(state: EngineState, shard: Shard, workflow: bytes, record: JoinRecord) -> bool:
    """Whether there is anything to redrive: a dead member, or a dead callback."""
    if record.target != NO_ID:
        location = task_location(state, shard, record.target)
        if location is not None and location.kind == DEAD:
            return True
    pages = Pages(state, shard, PART + workflow, range_end(PART + workflow), SLICE)
    while rows := await pages.following():
        for _, raw in rows:
            part = attempt(decode_part, raw)
            if part is not None and part.status == Status.DEAD:
                return True
    await state.commit_barrier(shard)
    return False


def _rearm(
    state: EngineState, shard: Shard, group: Group, workflow: bytes, record: JoinRecord
) -> None:
    """A new generation: the join waits again, and so does its callback."""
    now_us = state.clock.wall_us()
    target = record.target
    location = None if target == NO_ID else task_location(state, shard, target)
    if location is not None and location.kind == DEAD:
        problem = redrive_one(state, group, location, is_held=True)
        if problem is not None:
            raise problem
    elif target != NO_ID and location is None:
        target = _make_callback(state, shard, group, workflow, now_us)
        drop_edge(group, shard, record.target, workflow)  # nobody looks for that one again
    put_join(
        group,
        workflow,
        record._replace(
            state=WAITS,
            flags=(record.flags | REDRIVING) & ~CANCELLED_FLAG,
            generation=record.generation + 1,
            fired_us=0,
            target=target,
        ),
    )


def _make_callback(
    state: EngineState, shard: Shard, group: Group, workflow: bytes, now_us: int
) -> bytes:
    """A callback that is over is made anew, with a new id, from what it was enqueued with."""
    raw = shard.overlay.get(CALLBACK + workflow)
    if raw is None:
        raise UsageError("the workflow's callback is over, and what it was enqueued with is lost")
    task_id = state.ids.new(now_us // 1000, slot_of_id(workflow))
    task = decode_task(raw)
    # Its TTL counted from the first enqueue.
    task = task._replace(
        flags=task.flags & ~BODY_FLAG,
        created_us=now_us,
        seq=state.next_seq(now_us),
        due_ms=HELD_MS,
        expires_ms=0,
    )
    packed = encode_task(task)
    row = encode_index_row(IndexRow(MEMBER_ROW, task.priority, 0, len(packed), 0, b""))
    shard_queue = state.tenant_queue(task.queue, task.tenant).shard_queue(shard)
    group.ops.append((TASK + task_id, packed))
    state.put_delayed(group, shard_queue, first_key(task_id, task), HELD_MS, row)
    edge = Edge(TARGET_ROLE, 0, workflow)
    group.ops.append((edges_key(task_id), encode_edges([edge])))
    state.totals.enqueued += 1
    shard_queue.tenant_queue.flow.enqueued += 1
    return task_id


def _redrive_slices(
    state: EngineState, shard: Shard, workflow: bytes
) -> Iterator[tuple[Group, int]]:
    """Redrive what is dead in a workflow that is being redriven; an atomic section a step.

    A cancel that comes meanwhile ends it.
    """
    for parts in _slices_of_parts(shard, workflow):
        if not _has_flag(shard, workflow, REDRIVING):
            return
        dead = [part.source for part in parts if part.status == Status.DEAD]
        if dead:
            group = shard.coalescer.begin(len(dead) * 512)
            yield group, sum(_redrive_part(state, shard, group, workflow, one) for one in dead)
    record = join_of(shard, workflow)
    if record is None or not record.flags & REDRIVING:
        return
    group = shard.coalescer.begin()
    with group:
        done = record._replace(flags=record.flags & ~REDRIVING)
        the_joins(state).settle(group, shard, workflow, done, state.clock.wall_us())
    yield group, 0


def _redrive_part(
    state: EngineState, shard: Shard, group: Group, workflow: bytes, source: bytes
) -> int:
    """One dead member runs again, and counts again in every join that it is part of."""
    try:
        location = task_location(state, shard, source)
        if location is None or location.kind != DEAD:
            with group:
                _take_again(state, shard, group, workflow, source, is_now=True)
            return 0
        own = join_of(shard, source)  # of a member that waits for others
        is_held = own is not None and own.state == WAITS
        with group:
            problem = redrive_one(state, group, location, is_held=is_held)
            if problem is not None:
                return 0
            _take_again(state, shard, group, workflow, source, is_now=False)
    except CorruptionError as error:
        state.anomaly(f"shard {shard.index}: {source.hex()}: {error}")
        return 0
    return 1


def _take_again(
    state: EngineState, shard: Shard, group: Group, workflow: bytes, source: bytes, *, is_now: bool
) -> None:
    """A part is under way again, in every join on its slot whose target is not over.

    Args:
        state: of the engine.
        shard: of the workflow.
        group: of the shard; gets the rows.
        workflow: its id.
        source: the part's task.
        is_now: it was redriven by hand before: if it has ended since, it counts by that end.
    """
    result = attempt(decode_result, shard.overlay.get_sound(RESULT + source)) if is_now else None
    is_over = is_now and not is_alive(state, shard, source)
    if is_over and (result is None or result.status == Status.DEAD):
        return  # nothing has become of it
    raw = shard.overlay.get(edges_key(source))
    for edge in decode_edges(raw) if raw is not None else ():
        if edge.role == TARGET_ROLE or slot_of_id(edge.join) != slot_of_id(workflow):
            continue
        record = join_of(shard, edge.join)
        if record is None or (record.state == OVER and record.target == edge.join):
            continue  # whoever has waited is over
        uncount(group, shard, edge.join, edge.number, source)
        if result is not None:
            the_joins(state).count_part(
                group, shard, edge.join, edge.number, source, result.status, result.finished_us
            )


async def _redrive_awaited(
    state: EngineState, shard: Shard, join: bytes, record: JoinRecord
) -> int:
    """Redrive what is dead of that which a task waits for (``after=``). Returns how many were."""
    if record.workflow != NO_ID:
        raise UsageError(
            f"{TaskId(join)} is a member of the workflow {TaskId(record.workflow)}: redrive that, "
            "or its dead letters in their queues"
        )
    if record.state != WAITS:
        raise UsageError(
            f"{TaskId(join)} has been let go and waits for nothing more: redrive it in its queue, "
            "if it is dead"
        )
    rows, _ = shard.overlay.scan_readable(PART + join, range_end(PART + join), EDGES_MAX)
    await state.commit_barrier(shard)
    count = 0
    elsewhere: list[bytes] = []
    for _, raw in rows:
        part = attempt(decode_part, raw)
        if part is None or part.status != Status.DEAD:
            continue
        home = state.shard_of(part.source)
        if home.coalescer.is_following:
            elsewhere.append(part.source)
            continue
        if not home.coalescer.has_capacity:
            await state.backpressure(home)
        location = task_location(state, home, part.source)
        if location is None or location.kind != DEAD:
            continue
        group = home.coalescer.begin(512)
        with group:
            count += redrive_one(state, group, location) is None
        await home.coalescer.wait(group)
        state.check()
    if elsewhere:
        count += await the_joins(state).redrive_elsewhere(elsewhere)
    return count


def resume(state: EngineState, shard: Shard, workflow: bytes) -> Iterator[dict[Shard, Group]]:
    """Do what a process that died has left to do of a cancel or a redrive."""
    record = attempt(decode_join, shard.overlay.get_sound(JOIN + workflow))
    if record is None:
        return
    if record.flags & REDRIVING:
        for group, _ in _redrive_slices(state, shard, workflow):
            yield {shard: group}
    elif record.flags & CANCELLED_FLAG and record.state == WAITS:
        for group, _ in _cancel_slices(state, shard, workflow):
            yield {shard: group}
