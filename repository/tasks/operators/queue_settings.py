"""Set what is durable of a queue: one row on shard 0, and memory, in one atomic section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ....engine.records.keyspace import queue_settings_key
from ....engine.records.queues.queue_settings import STARTS, encode_queue_settings
from ....engine.values import Setting, SettingValue
from ....errors import LimitError
from ...model.queue_settings import QueueSettings, merged, public_settings
from ...state.engine_state import EngineState
from ...state.limits.queue_rules import UNSET, QueueRules

__all__ = ["QUEUES_MAX", "configure", "save_starts", "settings_of"]

QUEUES_MAX: Final = 10_000  # queues with settings: all of them are in memory


def settings_of(state: EngineState, queue: bytes) -> QueueSettings:
    """See ``Engine.settings``."""
    return public_settings(queue.decode(), state.rules.get(queue, UNSET).stored)


def save_starts(state: EngineState) -> None:
    """At a close: leave the next process what has started of late, so that no window is full.

    Where the first shard takes no writes, or the process is killed, windows count as full. So they
    do after a process that had some of the shards: what started on the others it does not know.
    """
    shard = state.first
    if not state.has_limits or not shard.coalescer.takes_writes:
        return
    incarnation = shard.next_epoch >> 40
    for queue, limit in state.queue_limits.by_queue.items():
        stored, key = state.rules[queue].stored, queue_settings_key(queue)
        starts = state.queue_limits.starts_of(limit)
        if starts is not None and state.has_all:
            stored = {**stored, STARTS: Setting(tuple(starts), "engine", incarnation)}
        value = encode_queue_settings(stored)
        if shard.overlay.get(key) != value:
            shard.coalescer.begin(len(value) + 64).ops.append((key, value))


async def configure(
    state: EngineState,
    queue: bytes,
    changes: Mapping[str, SettingValue | None],
    by: str,
    *,
    replace: bool,
) -> QueueSettings:
    """See ``Engine.configure``.

    Args:
        state: the engine's state.
        queue: its name.
        changes: from ``check_changes``.
        by: who makes them.
        replace: False refuses to change what somebody else has set.
    """
    shard = state.first
    if not shard.coalescer.has_capacity:
        await state.backpressure(shard)
    had = state.rules.get(queue, UNSET).stored
    now_us = state.clock.wall_us()
    stored = merged(queue.decode(), had, changes, by, now_us, replace=replace)
    if stored == had:
        await state.commit_barrier(shard, is_durable=True)
        return public_settings(queue.decode(), stored)
    if not had and len(state.rules) >= QUEUES_MAX:
        raise LimitError(
            f"{QUEUES_MAX:,} queues of this store have settings: take those of another queue back"
        )
    value = encode_queue_settings(stored) if stored else None
    group = shard.coalescer.begin(512)
    state.set_rules(queue, QueueRules(stored) if stored else UNSET)
    group.ops.append((queue_settings_key(queue), value))
    await shard.coalescer.wait(group, is_durable=True)
    return public_settings(queue.decode(), stored)
