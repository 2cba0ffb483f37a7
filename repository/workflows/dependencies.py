"""A task that waits for others, wherever these live.

Its join lives with it. Dependencies on its own slot are counted in the batch of their end; others
write an outbox row in that batch, which the reaper counts here. The rows of several shards are
queued in one atomic section and written apart: whatever a kill leaves, the next open makes whole,
because a join that has not fired asks for the end of each part, and gives it its edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...coalescer.group import Group
from ...engine.records.keyspace import RESULT, TASK
from ...engine.records.result import Status
from ...engine.records.task import NO_GHOST, WHOLE_BYTES_MAX
from ...engine.records.workflow import (
    EDGES_MAX,
    HELD_MS,
    MEMBER_TASK,
    NO_ID,
    ON_FAILURE,
    SEALED,
    TARGET_ROLE,
    WAITS,
    Edge,
    JoinRecord,
    PartRecord,
    decode_edges,
    edges_key,
    encode_part,
    part_key,
)
from ...engine.runtime.ids import slot_of_id
from ...engine.runtime.task_id import TaskId
from ...errors import (
    DuplicateTaskError,
    InvariantError,
    LimitError,
    NotLeaderError,
    UnknownDependencyError,
    UsageError,
)
from ..model.encoded_tasks import EncodedTask
from ..model.values import Receipt
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..tasks.enqueue import check_pending, holder, place, place_keyed
from .build import the_joins
from .edges import put_edge
from .joins import UNBORN_S
from .joins import end_of as how_it_ended

__all__ = ["end_of", "enqueue_after", "unknown"]


async def enqueue_after(
    state: EngineState,
    encoded: EncodedTask,
    after: Sequence[bytes],
    on_failure: str,
    durable: bool | None = None,
) -> Receipt:
    """See ``Engine.enqueue_after``. A dedup key that is held is answered as without ``after``.

    Args:
        state: of the engine.
        encoded: what to enqueue.
        after: ids of tasks that are there, or have a result.
        on_failure: a key of ``ON_FAILURE``.
        durable: True waits for an fsync, whatever the engine's mode.
    """
    sources = list(dict.fromkeys(after))
    _check(encoded, sources)
    state.check_intake()
    slot = slot_of_id(sources[0]) if encoded.slot is None else encoded.slot
    shard = state.shard_of_slot(slot)
    elsewhere = [one for one in sources if state.shard_of(one).coalescer.is_following]
    here = [one for one in sources if one not in elsewhere]
    homes = {shard: None, **dict.fromkeys(state.shard_of(one) for one in here)}
    for one in homes:
        if not one.coalescer.has_capacity:
            await state.backpressure(one)
    task_id: bytes | None = None
    known: dict[bytes, int | None] = {}
    begun = state.clock.mono()
    now_us = state.clock.wall_us()
    if (
        elsewhere
        and shard.coalescer.takes_writes
        and not _is_answered(state, shard, encoded, now_us)
    ):
        task_id = state.ids.new(now_us // 1000, slot)
        known = await _attached(state, task_id, sources, elsewhere, on_failure)
    committed: dict[bytes, int | None] = {}  # dependencies whose end nothing takes back
    while True:
        # atomic section, but for the last line
        now_us = state.clock.wall_us()
        if _is_answered(state, shard, encoded, now_us):
            return await _answer(state, shard, encoded, slot, durable)
        if encoded.ghost is NO_GHOST:
            check_pending(state, state.find_tenant_queue(encoded.queue, encoded.tenant), 1)
        for one in homes:
            if not one.coalescer.takes_writes:
                raise one.coalescer.refusal()
        ends = [known[one] if one in known else end_of(state, one) for one in sources]
        fresh = _fresh(state, sources, ends, {**known, **committed})
        if not fresh:
            break
        for one in {state.shard_of(source): None for source in fresh}:
            await state.commit_barrier(one)
        committed.update(fresh)
    if known and state.clock.mono() - begun > UNBORN_S / 2:
        raise NotLeaderError("the shards of the tasks it waits for took too long: try again")
    shard.write_bodies(state.ids, (encoded,))
    if task_id is None:
        task_id = state.ids.new(now_us // 1000, slot)
    groups = {one: one.coalescer.begin(encoded.record_bytes + 512) for one in homes}
    receipt = _put(state, shard, groups, encoded, task_id, sources, ends, known, on_failure, now_us)
    is_durable = bool(durable)
    for future in [
        one.coalescer.wait(group, None, is_durable=is_durable) for one, group in groups.items()
    ]:
        await future
    return receipt


def _fresh(
    state: EngineState,
    sources: Sequence[bytes],
    ends: Sequence[int | None],
    committed: Mapping[bytes, int | None],
) -> dict[bytes, int | None]:
    """Dependencies whose end is queued, and may not be counted yet: a power cut may take it alone.

    Args:
        state: of the engine.
        sources: all that it waits for.
        ends: how each has ended; None: it is under way.
        committed: the ends of which that is sure.
    """
    return {
        source: status
        for source, status in zip(sources, ends, strict=True)
        if status is not None
        and committed.get(source) != status
        and (home := state.shard_of(source)).coalescer.answered_number
        < home.coalescer.queued_number
    }


async def _attached(
    state: EngineState,
    task_id: bytes,
    sources: Sequence[bytes],
    elsewhere: Sequence[bytes],
    on_failure: str,
) -> dict[bytes, int | None]:
    """How dependencies have ended whose shards are led elsewhere; those under way have their edges.

    Args:
        state: of the engine.
        task_id: of the task that will wait for them.
        sources: all that it waits for.
        elsewhere: those of them.
        on_failure: a key of ``ON_FAILURE``.
    """
    parts = [(sources.index(one), one) for one in elsewhere]
    found = await the_joins(state).attach_elsewhere(task_id, parts, on_failure == "wait")
    return {one: status or None for one, status in found.items()}


def _is_answered(state: EngineState, shard: Shard, encoded: EncodedTask, now_us: int) -> bool:
    """Whether the dedup key is held, and nothing is to be enqueued: what it waits for is moot."""
    if encoded.ghost is NO_GHOST or encoded.on_conflict == "replace":
        return False
    return holder(state, shard, encoded, now_us // 1000) is not None


async def _answer(
    state: EngineState, shard: Shard, encoded: EncodedTask, slot: int, durable: bool | None
) -> Receipt:
    """The answer to a repeat: it rests on whoever queued the holder. Nothing is placed."""
    now_us = state.clock.wall_us()
    group = shard.coalescer.begin(256)
    refused: DuplicateTaskError | None = None
    receipt: Receipt | None = None
    try:
        with group:
            task_id = state.ids.new(now_us // 1000, slot)
            receipt = place_keyed(state, shard, group, encoded, task_id, now_us)
    except DuplicateTaskError as error:
        refused = error
    await shard.coalescer.wait(group, None, is_durable=bool(durable))
    if receipt is None:
        raise refused or InvariantError("a key that is held was neither returned nor refused")
    return receipt


def unknown(source: bytes) -> UnknownDependencyError:
    """The error of a dependency of which nothing is known."""
    return UnknownDependencyError(
        f"no task and no result {TaskId(source)}: it never existed, or was forgotten after its "
        "retention; keep results longer where others are to wait for them",
        task_id=source,
    )


def _check(encoded: EncodedTask, sources: Sequence[bytes]) -> None:
    if not sources:
        raise UsageError("after= names no task: enqueue it without")
    if len(sources) > EDGES_MAX - 1:
        raise LimitError(
            f"a task waits for at most {EDGES_MAX - 1} others, not {len(sources)}: a workflow's "
            "callback waits for any number"
        )
    if encoded.is_streamed:
        raise UsageError(
            f"a payload above {WHOLE_BYTES_MAX} bytes waits for no other task: store it elsewhere "
            "and enqueue a reference"
        )
    if encoded.due_ms:
        raise UsageError(
            "a task that waits for others becomes ready when they have ended: give it no delay "
            "and no run_at"
        )


def end_of(state: EngineState, source: bytes) -> int | None:
    """How a dependency, of a shard that is led here, has ended; None: it is under way.

    Raises:
        UnknownDependencyError: nothing is known of it. LimitError: too many wait for it already.
    """
    shard = state.shard_of(source)
    status = how_it_ended(state, shard, source)
    overlay = shard.overlay
    if status is not None and not overlay.has(RESULT + source) and not overlay.has(TASK + source):
        raise unknown(source)
    raw = overlay.get(edges_key(source))
    if status in (None, Status.DEAD) and raw is not None and len(decode_edges(raw)) >= EDGES_MAX:
        raise LimitError(f"{TaskId(source)} is waited for by {EDGES_MAX - 1} tasks already")
    return status


def _put(
    state: EngineState,
    shard: Shard,
    groups: dict[Shard, Group],
    encoded: EncodedTask,
    task_id: bytes,
    sources: Sequence[bytes],
    ends: Sequence[int | None],
    known: Mapping[bytes, int | None],
    on_failure: str,
    now_us: int,
) -> Receipt:
    joins, group = the_joins(state), groups[shard]
    encoded.due_ms = HELD_MS
    encoded.flags |= MEMBER_TASK
    join = JoinRecord(
        state=WAITS,
        on_failure=ON_FAILURE[on_failure],
        flags=SEALED,
        generation=0,
        parts=len(sources),
        ended=sum(status is not None for status in ends),
        failed=sum(status not in (None, 1) for status in ends),
        created_us=now_us,
        fired_us=0,
        workflow=NO_ID,
        target=task_id,
        key_hash=NO_ID,
        name=b"",
    )
    with group:
        if encoded.ghost is NO_GHOST:
            place(state, shard, group, encoded, task_id, now_us)
            receipt = Receipt(TaskId(task_id))
        else:
            receipt = place_keyed(state, shard, group, encoded, task_id, now_us)
        if receipt.replaced is not None:  # its end may have ended others
            ends = [
                known[one] if one in known else how_it_ended(state, state.shard_of(one), one)
                for one in sources
            ]
            join = join._replace(
                ended=sum(status is not None for status in ends),
                failed=sum(status not in (None, 1) for status in ends),
            )
        put_edge(group, shard, task_id, Edge(TARGET_ROLE, 0, task_id))
        for number, (source, status) in enumerate(zip(sources, ends, strict=True)):
            part = PartRecord(status or 0, 0, now_us if status else 0, source)
            group.ops.append((part_key(task_id, number), encode_part(part)))
        joins.settle(group, shard, task_id, join, now_us)
    for number, (source, status) in enumerate(zip(sources, ends, strict=True)):
        if source in known:  # its edge is there
            continue
        home = state.shard_of(source)
        is_dead = status == Status.DEAD and join.on_failure == ON_FAILURE["wait"]
        if status is None or (is_dead and home.overlay.has(TASK + source)):
            with groups[home]:
                joins.attach(groups[home], home, source, Edge(0, number, task_id))
    return receipt
