"""Emit lifecycle events of tasks, into the group that makes them happen.

Every transition of a task emits exactly one event, in the very group that holds its rows; so an
event is there if and only if its transition is. Nobody who does that asks whether there is a
lifecycle journal: ``group.events`` is None where there is none. The commonest calls (``fast_path``,
``lease_grant``, ``task_end``) pack theirs themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ...coalescer.group import Group
from ...engine.records.events import CANCELLED, COMPLETED, EXPIRED, FORGOTTEN, pack_one, pack_run
from .lease_state import LeaseState

if TYPE_CHECKING:
    from .queue_state import ShardQueue

__all__ = ["END_KINDS", "emit", "emit_leases"]

# How a task ended, by the status of its result; one without a result had ended before.
END_KINDS: Final[dict[int | None, int]] = {
    1: COMPLETED,
    3: EXPIRED,
    4: CANCELLED,
    None: FORGOTTEN,
}


def emit(
    group: Group,
    kind: int,
    shard_queue: ShardQueue,
    task_id: bytes,
    priority: int,
    attempts: int,
    time_us: int,
    text: bytes = b"",
) -> None:
    """One event; ``text`` is a worker or a reason.

    Args:
        group: of the task's shard; gets the rows.
        kind: one of engine/records/events.py.
        attempts: runs so far, this one included.
        time_us: wall microseconds.
        text: a worker or a reason.
    """
    events = group.events
    if events is not None:
        one = pack_one(kind, priority, attempts, 1, len(text), time_us, task_id)
        events.append(one + shard_queue.tenant_queue.tag + text)


def emit_leases(
    group: Group, kind: int, leases: Sequence[LeaseState], time_us: int, reason: bytes | None = None
) -> None:
    """The same event of many leases. ``reason`` None: the text is each one's worker.

    Args:
        group: of the task's shard; gets the rows.
        kind: one of engine/records/events.py.
        leases: neighbours with the same tenant queue, priority and attempt share a record.
        time_us: wall microseconds.
        reason: None: the text is each lease's worker.
    """
    events = group.events
    if events is None or not leases:
        return
    ids: list[bytes] = []
    head: tuple[int, int, bytes, bytes] | None = None
    for lease in leases:
        text = lease.worker if reason is None else reason
        this = (lease.priority, lease.attempt, lease.shard_queue.tenant_queue.tag, text)
        if head is not None and this != head:
            events.append(pack_run(kind, head[0], head[1], time_us, head[2], head[3], ids))
            ids = []
        head = this
        ids.append(lease.task_id)
    if head is not None:
        events.append(pack_run(kind, head[0], head[1], time_us, head[2], head[3], ids))
