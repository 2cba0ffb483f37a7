"""Published functions in the store: written by workers at start, read by whoever enqueues by name.

Their rows stand on the first shard, and nothing of them is kept in memory: they are read where they
are asked for. The newest start wins: a row is what the worker that started last has said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ....engine.records.frame import attempt
from ....engine.records.keyspace import FUNCTIONS, FUNCTIONS_END, check_name, prefix_end
from ....engine.records.queues.functions import (
    FunctionRow,
    decode_function,
    decode_function_key,
    encode_function,
    function_key,
)
from ....engine.records.task import TaskRecord
from ....errors import LimitError, RecordCorruptError, UsageError
from ...model.calls.functions import (
    FUNCTIONS_MAX,
    NAME_HEADER,
    PublishedFunction,
    check_functions,
    pack_function,
    task_of_function,
    unknown_function,
    unpack_function,
)
from ...model.codec import decode_headers
from ...model.encoded_tasks import TaskTemplate
from ...model.values import NewTask
from ...state.engine_state import EngineState
from ...state.pages import Pages

__all__ = [
    "find_function",
    "forget_function",
    "functions",
    "policies_of_today",
    "publish",
    "task_by_name",
]

SLICE: Final = 128  # rows of one batch, or of one page: 256 KiB at most
FRESH_US: Final = 86_400_000_000  # a row that says the same is written again after this time


async def publish(state: EngineState, given: Sequence[PublishedFunction]) -> int:
    """Write the rows of functions that are new or differ; return how many. See ``Engine``."""
    checked = check_functions(given)
    rows = [
        (function_key(one.queue.encode(), one.name.encode()), pack_function(one)) for one in checked
    ]
    await _make_space(state, {key for key, _ in rows})
    shard, written = state.first, 0
    for start in range(0, len(rows), SLICE):
        if start:
            await state.spawner.checkpoint()
            state.check()
        if not shard.coalescer.has_capacity:
            await state.backpressure(shard)
        # atomic section
        now_us = state.clock.wall_us()
        changed = []
        for key, facts in rows[start : start + SLICE]:
            had = attempt(decode_function, shard.overlay.get(key))
            if had is None or had.facts != facts or now_us - had.published_us >= FRESH_US:
                changed.append((key, encode_function(FunctionRow(now_us, facts))))
        if changed:
            group = shard.coalescer.begin(sum(len(key) + len(value) for key, value in changed))
            with group:
                group.ops.extend(changed)
            await shard.coalescer.wait(group)
            written += len(changed)
    return written


async def _make_space(state: EngineState, wanted: set[bytes]) -> None:
    """Drop the functions longest not published, if more than the store keeps would be there."""
    if len(wanted) > FUNCTIONS_MAX:
        raise LimitError(f"{len(wanted)} functions are more than the {FUNCTIONS_MAX} a store keeps")
    others: list[tuple[int, bytes]] = []
    pages = Pages(state, state.first, FUNCTIONS, FUNCTIONS_END, SLICE)
    while rows := await pages.following():
        for key, value in rows:
            if key not in wanted:
                had = attempt(decode_function, value)
                others.append((0 if had is None else had.published_us, key))
    surplus = len(others) + len(wanted) - FUNCTIONS_MAX
    if surplus <= 0:
        return
    others.sort()
    if others[surplus - 1][0] > state.clock.wall_us() - FRESH_US:
        raise LimitError(
            f"the store keeps {FUNCTIONS_MAX} functions, and {len(others)} others were published "
            "within a day"
        )
    shard = state.first
    for start in range(0, surplus, SLICE):
        if not shard.coalescer.has_capacity:
            await state.backpressure(shard)
        group = shard.coalescer.begin()
        with group:
            group.ops.extend((key, None) for _, key in others[start : min(surplus, start + SLICE)])
        await shard.coalescer.wait(group)


async def functions(
    state: EngineState, queue: str | None, limit: int | None, after: tuple[str, str] | None
) -> list[PublishedFunction]:
    """Published functions by queue and name. Damaged rows are passed over: ``verify`` shows them.

    Args:
        queue: of this queue only; None for all.
        limit: how many at most; None for all, which are bounded.
        after: queue and name of the last one of the page before.
    """
    lower, upper = FUNCTIONS, FUNCTIONS_END
    if queue is not None:
        lower = FUNCTIONS + check_name(queue, "queue") + b"\0"
        upper = prefix_end(lower)
    if after is not None:
        lower = max(lower, function_key(after[0].encode(), after[1].encode()) + b"\0")
    found: list[PublishedFunction] = []
    pages = Pages(state, state.first, lower, upper, SLICE)
    while rows := await pages.following():
        for key, value in rows:
            one = _read(key, value)
            if one is not None:
                found.append(one)
            if limit is not None and len(found) >= limit:
                return found
    return found


def _read(key: bytes, value: bytes | None) -> PublishedFunction | None:
    row = attempt(decode_function, value)
    if row is None:
        return None
    try:
        return unpack_function(*decode_function_key(key), *row)
    except RecordCorruptError:
        return None


def find_function(state: EngineState, queue: str, name: str) -> PublishedFunction | None:
    """One function; None: nobody has published it."""
    if not isinstance(name, str):
        raise UsageError(f"a function is named by a str, not {type(name).__name__}")
    key = function_key(check_name(queue, "queue"), name.encode("utf-8", "replace"))
    return _read(key, state.first.overlay.get(key))


async def task_by_name(
    state: EngineState,
    queue: str,
    name: str,
    arguments: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> NewTask:
    """A task for a published function; see ``Engine.enqueue_function``.

    Args:
        state: the engine's state.
        queue: of the function.
        name: of the function.
        arguments: by name; None for none.
        options: fields of ``NewTask``.
    """
    one = find_function(state, queue, name)
    if one is None:
        known = await functions(state, queue, 1000, None)
        known = known or await functions(state, None, 1000, None)
        raise unknown_function(queue, name, known, more=len(known) >= 1000)
    if one.has_codec and state.codecs.get(queue.encode()) is None:
        raise UsageError(
            f"arguments of {name!r} are packed by its app's codec, which this process does not "
            "have: enqueue it with the app (lodeq enqueue … --app module:app)"
        )
    given = {} if arguments is None else arguments
    return task_of_function(one, given, options, redacts=state.redaction is not None)


async def policies_of_today(state: EngineState, queue: str) -> Callable[[TaskRecord], bytes]:
    """The policy that a task of the queue would get today; its own, if its function is unknown."""
    policies: dict[str, bytes] = {}
    for one in await functions(state, queue, None, None):
        template = TaskTemplate(queue.encode(), b"")
        policies[one.name] = template.policy_for(
            one.max_attempts, one.retry, one.retention, one.dead_retention
        )

    def renew(task: TaskRecord) -> bytes:
        try:
            name = decode_headers(task.headers).get(NAME_HEADER)
        except RecordCorruptError:
            name = None
        return policies.get(name, task.policy) if isinstance(name, str) else task.policy

    return renew


async def forget_function(state: EngineState, queue: str, name: str) -> bool:
    """Drop a function's row; return whether there was one."""
    shard = state.first
    if not isinstance(name, str):
        raise UsageError(f"a function is named by a str, not {type(name).__name__}")
    key = function_key(check_name(queue, "queue"), name.encode("utf-8", "replace"))
    if not shard.coalescer.has_capacity:
        await state.backpressure(shard)
    # atomic section
    if shard.overlay.get(key) is None:
        return False
    group = shard.coalescer.begin()
    with group:
        group.ops.append((key, None))
    await shard.coalescer.wait(group)
    return True
