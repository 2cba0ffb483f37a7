"""Find tasks by a filter, count them, and act on what was found: slice by slice.

What a search looks at, and where, is in ``task_search``. An act looks at each task again in the
atomic section that changes it: one that is not where it was found is skipped, so a repeated slice
does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from ....coalescer.group import Group
from ....engine.records.frame import attempt
from ....engine.records.keyspace import (
    DEAD,
    DELAYED,
    DUE_AT,
    MOVED,
    READY,
    RESULT,
    SEQ_AT,
    decode_index_key,
    delayed_key,
    expiry_key,
)
from ....engine.records.queues.key_waits import is_key_wait, key_of_row, wait_due
from ....engine.records.result import Status, decode_result, result_due_ms
from ....engine.records.rows import (
    MOVED_ROW,
    Moved,
    decode_expiry,
    encode_index_row,
    encode_moved,
)
from ....engine.records.workflow import MEMBER_RESULT, MEMBER_ROW
from ....engine.recovery.verify import bucket_of
from ....engine.runtime.task_id import TaskId
from ....errors import BusyError, CorruptionError, UsageError
from ...model.arguments import check_priority, check_redrive_policy
from ...model.encoded_tasks import to_datetime
from ...model.filters import (
    ACTS,
    ActReport,
    FoundCount,
    FoundTasks,
    TaskFilter,
    check_found,
    check_looks,
    start_of,
)
from ...model.tally import Tally
from ...model.values import Task, payload_bytes
from ...state.engine_state import EngineState
from ...state.pages import Pages
from ...state.queue_state import Shard
from ...state.rows.expiry_entries import drop_with_entries, is_final
from ...state.rows.task_location import (
    TaskLocation,
    first_key,
    forget_result,
    leave,
    read_task,
    task_location,
)
from ...state.turns import PacedGroups
from ..lookup import Payloads
from ..task_end import end_task, finish
from .admin import Renew, redrive_one
from .functions import policies_of_today
from .task_search import TaskSearch

__all__ = ["act", "count", "find"]

FOUND_BYTES_MAX: Final = 4 << 20  # of payloads that one call returns
_SLICE: Final = 128  # tasks of one shard that are changed in one batch
_REFUSED_MAX: Final = 100  # that a report names
_GONE: Final = ""  # the task is not where it was found
_FINAL: Final = "final"  # its expiry entry has to go with it
_PINNED: Final = "its workflow may still read it: delete it when that is over"
_UNFILED: Final = "its expiry entry is not where it should be: run lodeq verify"


async def find(
    state: EngineState,
    meant: TaskFilter,
    *,
    limit: object,
    cursor: object,
    payloads: Payloads = "decoded",
    oldest_first: object = False,
    after: object = None,
) -> FoundTasks:
    """See ``Engine.find``.

    Args:
        state: of the engine.
        meant: the filter.
        limit: tasks, 1 to 1,000.
        cursor: of the page before; None begins.
        payloads: what is shown of payloads and headers.
        oldest_first: tasks that have ended, in the order of their ids.
        after: the id behind which that begins, or None.
    """
    n = check_found(limit)
    start = start_of(after, oldest_first)
    search = TaskSearch(state, meant, cursor, payloads, n, looks_again=True, start=start)
    out: list[Task] = []
    size = 0
    async with aclosing(search.pages()) as pages:
        async for page in pages:
            room = n - len(out)
            out += page[:room]
            size += sum(map(payload_bytes, page[:room]))
            if len(page) >= room:
                search.behind(out[-1])
                break
            if search.is_spent or size >= FOUND_BYTES_MAX:
                break
    at = search.at
    return FoundTasks(
        tuple(out),
        None if at is None else at.text(),
        at is not None and len(out) < n,
        search.has_cut_previews,
    )


async def count(state: EngineState, meant: TaskFilter, looks: object) -> FoundCount:
    """See ``Engine.count``."""
    most = check_looks(looks)
    search = TaskSearch(state, meant, None, "none")
    total = 0
    async with aclosing(search.pages()) as pages:
        async for page in pages:
            total += len(page)
            if search.looks >= most:
                break
    return FoundCount(total, search.at is None, search.has_cut_previews)


# -- acts ------------------------------------------------------------------------------


async def act(
    state: EngineState,
    name: object,
    meant: TaskFilter,
    *,
    priority: object = None,
    policy: object = "stored",
    limit: object,
    cursor: object,
) -> ActReport:
    """See ``Engine.act``.

    Args:
        state: of the engine.
        name: one of ``ACTS``.
        meant: the filter; its states are narrowed to those the act applies to.
        priority: 0 to 9, for ``reprioritise`` alone.
        policy: ``stored`` or ``current``, for ``redrive`` alone.
        limit: tasks, 1 to 1,000.
        cursor: of the slice before; None begins.
    """
    n = check_found(limit)
    meant, new = _check_act(name, meant, priority, policy)
    renewals = _Renewals(state) if policy == "current" else None
    do = {
        "redrive": lambda *of: _redrive(*of, renewals=renewals),
        "cancel": _cancel,
        "delete": _delete,
        "reprioritise": lambda *of: _reprioritise(*of, priority=new or 0),
    }[str(name)]
    search = TaskSearch(state, meant, cursor, "none", n)
    skipped = 0
    refused: dict[str, str] = {}
    with Tally() as tally:
        async with aclosing(search.pages()) as pages:
            async for found in pages:
                # One that has moved to its new priority is met again further on.
                page = found if new is None else [one for one in found if one.priority != new]
                room = n - tally.count - skipped - len(refused)
                taken = page[:room]
                if renewals is not None:
                    await renewals.learn(taken)
                outcomes = await _each(state, taken, do, tally)
                outcomes.pop(None, None)  # the tally has them
                skipped += len(outcomes.pop(_GONE, ()))
                named = _name_refused(refused, taken, outcomes)
                if taken and (len(page) >= room or named < len(taken)):
                    search.behind(taken[named - 1])
                    break
                if search.is_spent or len(refused) >= _REFUSED_MAX:
                    break
    at = search.at
    return ActReport(tally.count, skipped, refused, None if at is None else at.text())


def _name_refused(
    refused: dict[str, str], tasks: Sequence[Task], outcomes: Mapping[str | None, Sequence[bytes]]
) -> int:
    """Add those that were refused, as many as a report names.

    Returns how many of the tasks are reported so: the next slice meets the others once more, and
    nothing was done to those of them that were refused.

    Args:
        refused: of the report: why, by id; there is room for one at least.
        tasks: of the slice, in its order.
        outcomes: the refused ones, by why.
    """
    whys = {TaskId(one): why for why, ids in outcomes.items() for one in ids}
    for n, task in enumerate(tasks):
        if why := whys.get(task.id):
            if len(refused) >= _REFUSED_MAX:
                return n
            refused[str(task.id)] = why
    return len(tasks)


class _Renewals:
    """The policies that functions have today, by queue: read before the step that uses them."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._found: dict[str, Renew] = {}

    async def learn(self, tasks: list[Task]) -> None:
        """Read those of the tasks' queues."""
        for queue in {task.queue for task in tasks} - set(self._found):
            self._found[queue] = await policies_of_today(self._state, queue)

    def of(self, task: Task) -> Renew:
        """That of a task's queue."""
        return self._found[task.queue]


def _check_act(
    name: object, meant: TaskFilter, priority: object, policy: object
) -> tuple[TaskFilter, int | None]:
    """Check what an act is asked for, and narrow its filter to the states that it applies to."""
    if not isinstance(meant, TaskFilter):
        raise UsageError(f"expected a lodeq.TaskFilter, not {type(meant).__name__}")
    if not isinstance(name, str) or name not in ACTS:
        raise UsageError(f"act {name!r} is not one of {', '.join(ACTS)}")
    states = ACTS[str(name)]
    if meant.state is not None:
        wrong = [state for state in meant.states if state not in states]
        if wrong:
            hint = "; cancel it first" if "leased" in wrong and name == "delete" else ""
            raise UsageError(
                f"{name} applies to tasks that are {', '.join(states)}, "
                f"not {', '.join(wrong)}{hint}"
            )
        states = meant.states
    if (priority is not None) is not (name == "reprioritise"):
        raise UsageError("priority= is for reprioritise, which needs it")
    if check_redrive_policy(policy) != "stored" and name != "redrive":
        raise UsageError("policy= is for redrive")
    new = check_priority(priority) if priority is not None else None
    return replace(meant, state=states), new


_Do = Callable[[EngineState, Group, Shard, Task], "str | None"]


async def _each(
    state: EngineState, tasks: list[Task], do: _Do, tally: Tally
) -> dict[str | None, list[bytes]]:
    """Act on each task, a batch a shard and slice; ids by what came of it: None is done.

    Args:
        state: of the engine.
        tasks: as they were found.
        do: the act.
        tally: gets what is done.
    """
    by_shard: dict[int, list[Task]] = {}
    for task in tasks:
        by_shard.setdefault(state.shard_of(task.id).index, []).append(task)
    out: dict[str | None, list[bytes]] = {}
    for index, of_shard in sorted(by_shard.items()):
        shard = state.shards[index]
        groups = PacedGroups(state, shard, tally)
        for start in range(0, len(of_shard), _SLICE):
            if not shard.coalescer.has_capacity:
                await state.backpressure(shard)
            part = of_shard[start : start + _SLICE]
            async with groups:
                for task in part:
                    group = await groups.group()
                    try:
                        with group:
                            why = do(state, group, shard, task)
                    except CorruptionError as error:
                        why = str(error)
                    if why is None:
                        groups.changed()
                    out.setdefault(why, []).append(task.id)
            state.check()
        if final := out.pop(_FINAL, None):
            await _delete_final(
                state, shard, {task.id: task for task in of_shard}, final, out, tally
            )
    return out


async def _delete_final(
    state: EngineState,
    shard: Shard,
    tasks: dict[TaskId, Task],
    final: list[bytes],
    out: dict[str | None, list[bytes]],
    tally: Tally,
) -> None:
    """Delete results together with their expiry entries: see ``expiry_entries``.

    Args:
        state: of the engine.
        shard: of all of them.
        tasks: the tasks, as they were found.
        final: ids of those that are meant.
        out: gets what came of each.
        tally: gets what is deleted.
    """
    await state.commit_barrier(shard)  # entries of this turn are not rows yet
    state.check()
    by_second: dict[int, dict[bytes, int]] = {}
    for task_id in final:
        record = attempt(decode_result, shard.overlay.get(RESULT + task_id))
        if record is None or to_datetime(record.finished_us) != tasks[TaskId(task_id)].finished_at:
            out.setdefault(_GONE, []).append(task_id)
            continue
        second = bucket_of(result_due_ms(record))
        by_second.setdefault(second, {})[task_id] = record.finished_us // 1000
    for second, meant in sorted(by_second.items()):
        lower, upper = expiry_key(second, 0), expiry_key(second + 1, 0)
        pages = Pages(state, shard, lower, upper, 1, for_writing=True)  # a row may name thousands
        while meant and (rows := await pages.following()):
            ((key, raw),) = rows
            if not any(ref in meant for _, ref in attempt(decode_expiry, raw) or ()):
                continue
            group = shard.coalescer.begin(256 + 32 * len(meant))
            with group:
                gone = drop_with_entries(state, shard, group, key, raw, meant)
            await shard.coalescer.wait(group)
            tally.count += len(gone)
            state.check()
            for task_id in gone:
                del meant[task_id]
            out.setdefault(None, []).extend(gone)
        for task_id in meant:
            is_there = shard.overlay.has(RESULT + task_id)
            out.setdefault(_UNFILED if is_there else _GONE, []).append(task_id)


def _where(state: EngineState, shard: Shard, task: Task) -> TaskLocation | None:
    """Location of a task that is still at the row where it was found."""
    if task.id in state.leases:
        return None
    location = task_location(state, shard, task.id)
    return location if location is not None and location.key == task.position else None


def _redrive(
    state: EngineState, group: Group, shard: Shard, task: Task, *, renewals: _Renewals | None
) -> str | None:
    location = _where(state, shard, task)
    if location is None or location.kind != DEAD:
        return _GONE
    renew = None if renewals is None else renewals.of(task)
    refusal = redrive_one(state, group, location, renew=renew)
    return None if refusal is None else str(refusal)


def _cancel(state: EngineState, group: Group, shard: Shard, task: Task) -> str | None:
    if task.state == "leased":
        lease = state.leases.get(task.id)
        if lease is None or lease.leased_us != int.from_bytes(task.position[:8], "big"):
            return _GONE
        try:
            state.check_inherited(lease)
        except BusyError as error:
            return str(error)
        finish(state, group, lease, Status.CANCELLED, error=b"cancelled")
        return None
    location = _where(state, shard, task)
    if location is None:
        return _GONE
    end_task(state, group, location, Status.CANCELLED, "cancelled")
    return None


def _delete(state: EngineState, group: Group, shard: Shard, task: Task) -> str | None:
    """Forget a task with its result and its attempts; its dedup window stays."""
    record = attempt(decode_result, shard.overlay.get(RESULT + task.id))
    is_dead = task.state == "dead"
    location = _where(state, shard, task) if is_dead else None
    if is_dead:
        if location is None:
            return _GONE
    elif record is None or to_datetime(record.finished_us) != task.finished_at:
        return _GONE
    is_member = record is not None and record.flags & MEMBER_RESULT != 0
    if location is not None:
        is_member = is_member or location.row.flags & MEMBER_ROW != 0
    if is_member and state.flows.pins(shard, task.id):
        return _PINNED
    if location is not None:
        end_task(state, group, location, None, "deleted")
    elif record is not None and is_final(record):
        return _FINAL
    if record is None:  # of a dead letter, and not kept
        return None
    forget_result(state, shard, group, task.id, record)
    return None


def _reprioritise(
    state: EngineState, group: Group, shard: Shard, task: Task, *, priority: int
) -> str | None:
    """The same task in another place of the line: same seq, same attempts."""
    location = _where(state, shard, task)
    if location is None or location.kind not in (READY, DELAYED):
        return _GONE
    shard_queue, row = location.shard_queue, location.row
    if row.priority == priority:
        return _GONE
    record = read_task(shard, task.id)
    if record is None:
        return "its record is missing"
    key = location.key
    if location.kind == READY:
        seq = decode_index_key(key).seq
        key = shard_queue.ready_key(shard_queue.ready_prefixes[9 - priority], seq, task.id)
    elif is_key_wait(key):  # among those that wait for its key
        at = decode_index_key(key)
        due_ms = wait_due(key_of_row(key), priority)
        key = delayed_key(shard_queue.prefix, due_ms, at.seq, task.id)
    moved: bytes | None = None  # at its first key a task has no such row
    flags = row.flags & ~MOVED_ROW
    if key != first_key(task.id, record):
        moved, flags = encode_moved(Moved(row.attempts, key)), flags | MOVED_ROW
    row = row._replace(priority=priority, flags=flags)
    woken = state.key_limits.woken.pop(task.id, None)  # it goes nowhere: nobody gets its room
    leave(state, group, location)
    if woken is not None:
        state.key_limits.woken[task.id] = woken
    if moved is not None or location.has_moved:
        group.ops.append((MOVED + task.id, moved))
    if location.kind == READY:
        state.put_ready(group, shard_queue, 9 - priority, key, task.id, row)
    else:
        due_ms = int.from_bytes(key[DUE_AT:SEQ_AT], "big")
        state.put_delayed(group, shard_queue, key, due_ms, encode_index_row(row))
    return None
