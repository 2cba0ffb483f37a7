"""The model of a store: tasks, calls and queues, as far as the records show them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Any

from .states import ABSENT, EXPORTED, NO_CLAIMS, SHORT, Claims, Op, States

__all__ = ["FOREVER_US", "Call", "Deliveries", "QueueModel", "TaskModel"]

FOREVER_US = 1 << 62
_LOOSE_MAX: Claims = (1, 4, 1, 4)


class Call:
    """An operation that was invoked.

    Args:
        op: its number.
        kind: ``enqueue``, ``claim`` and so on.
        params: as in the record.
        at: number of the record.
        wall_us: wall clock at the call.
        mono_us: monotonic clock at the call.
    """

    __slots__ = (
        "at",
        "ids",
        "is_done",
        "is_split",
        "keys",
        "kind",
        "mono_us",
        "op",
        "params",
        "queue_models",
        "sure",
        "tasks",
        "wall_us",
    )

    def __init__(
        self, op: int, kind: str, params: dict[str, Any], at: int, wall_us: int, mono_us: int
    ) -> None:
        self.op, self.kind, self.params, self.at = op, kind, params, at
        self.wall_us = wall_us  # the least wall time while it was under way
        self.mono_us = mono_us
        self.tasks: list[TaskModel] = []
        self.ids: list[str] = []  # ids it names, of tasks not known by id yet
        self.sure: list[TaskModel] = []  # tasks that nothing but this call can have changed
        self.queue_models: list[QueueModel] = []  # that a claim, purge or redrive acts on
        self.keys: set[tuple[str, str | None]] = set()
        self.is_done = False
        self.is_split = "split" in params  # over several batches, perhaps

    def flags(self, now_us: int) -> int:
        """Return the flags of the leases a claim grants: ``SHORT`` if they may have expired."""
        params = self.params
        flags = EXPORTED if params.get("exported") else 0
        return flags | SHORT if params.get("short") or self.until_us() <= now_us else flags

    def until_us(self) -> int:
        """Return the earliest monotonic time at which a lease of this claim may be reaped."""
        lease_us = self.params.get("lease_us")
        return FOREVER_US if lease_us is None else self.mono_us + int(lease_us) - 1000


class Deliveries:
    """Deliveries of one priority, queue and shard: the latest claim at any moment (``order``)."""

    __slots__ = ("ends", "latest", "newest")

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.latest: list[int] = []  # the latest invocation of a claim answered up to then
        self.newest: list[int] = []  # … of a task that was also enqueued after that moment

    def add(self, began: int, ended: int, enqueued: int) -> None:
        """Note a delivery."""
        newest = min(began, enqueued)
        if self.ends:
            began, newest = max(began, self.latest[-1]), max(newest, self.newest[-1])
        self.ends.append(ended)
        self.latest.append(began)
        self.newest.append(newest)

    def before(self, at: int) -> int:
        """Return the position of the last claim answered before ``at``; -1 if there is none."""
        return bisect_left(self.ends, at) - 1


class QueueModel:
    """One queue of one tenant."""

    __slots__ = ("claimed_at", "loose", "loose_at", "name", "open", "order", "ranges", "tasks")

    def __init__(self, queue: str, tenant: str) -> None:
        self.name = (queue, tenant)
        self.tasks: list[TaskModel] = []
        self.open: dict[int, Call] = {}  # claims under way
        self.ranges: dict[int, Call] = {}  # purges and redrives of all that is dead
        self.loose = [0, 0, 0, 0]  # claims that ended without an answer, by their flags
        self.loose_at = 0  # the last of them
        self.claimed_at = 0
        self.order: dict[int, list[Deliveries]] = {}  # by shard, then priority

    def claims(self, now_us: int) -> Claims:
        """Count the claims that may hold a task of this queue without a record of it."""
        if not self.open and not self.loose_at:
            return NO_CLAIMS
        count = list(self.loose)
        for call in self.open.values():
            count[call.flags(now_us)] += 1
        # No record follows a lease of unknown epoch, so one that lasts counts as much as many.
        a, b, c, d = (min(n, most) for n, most in zip(count, _LOOSE_MAX, strict=True))
        return (a, b, c, d)


class TaskModel:
    """One task, as far as the records show it.

    Args:
        fields: the task of the record.
        queue_model: its queue.
        call: the call that enqueues it.
    """

    __slots__ = (
        "acked_at",
        "assumed",
        "attempts_max",
        "call",
        "completes",
        "dead_retention_us",
        "delay_us",
        "deliveries",
        "doing",
        "drops_value",
        "due_us",
        "ended_at",
        "epoch",
        "first",
        "follower",
        "granted_at",
        "held_at",
        "id",
        "is_alone",
        "is_doubtful",
        "is_redriven",
        "is_windowed",
        "key",
        "labels",
        "leaves_nothing",
        "log",
        "number",
        "priority",
        "queue_model",
        "redriven_at",
        "retention_us",
        "run_at_us",
        "shard",
        "since_us",
        "solid_at",
        "states",
        "trail",
        "ttl_us",
        "until_us",
    )

    def __init__(self, fields: dict[str, Any], queue_model: QueueModel, call: Call) -> None:
        get = fields.get
        self.number: int = fields["n"]
        self.queue_model = queue_model
        self.call = call  # enqueues it
        self.key: str | None = get("key")
        self.priority: int = get("priority", 5)
        self.attempts_max: int = get("attempts", 5)
        self.delay_us: int = get("delay_us", 0)
        self.run_at_us: int = get("run_at_us", 0)
        self.ttl_us: int | None = get("ttl_us")
        self.retention_us: int | None = get("retention_us")
        self.dead_retention_us: int | None = get("dead_retention_us")
        self.is_windowed: bool = get("windowed", False)
        self.labels: Collection[str] = get("labels", ())  # their names
        self.is_alone: bool = get("alone", False)  # has a shard of its own choice
        self.states: States = frozenset([ABSENT])
        self.doing: dict[int, tuple[Op, ...]] = {}  # operations under way
        self.assumed: set[int] = set()  # those of them that explain an observation
        self.id = ""
        self.shard = -1
        self.epoch = 0
        self.granted_at = 0  # when the claim that has told that epoch was answered
        self.until_us = FOREVER_US  # monotonic: before it the lease in hand is not reaped
        self.since_us = call.wall_us  # wall: it has ended later than this, if it has
        self.due_us = 0  # wall: not before it, after a nack or a release with a delay
        self.acked_at = 0
        self.ended_at = 0
        self.deliveries = 0
        self.completes = 0  # calls that would complete it
        self.first = (0, 0)  # its first delivery: when that claim was invoked, and answered
        self.follower: TaskModel | None = None  # the next of its call, queue and priority
        self.held_at = 0  # when it was delivered as a dead letter, last
        self.is_redriven = False
        self.redriven_at = 0  # when somebody was about to, last
        self.is_doubtful = False  # a power cut may have brought it back
        self.leaves_nothing = False
        self.drops_value = False  # it may have been completed without one, or asked to keep none
        self.solid_at = 0  # what is up to here survives a power cut
        self.trail: list[tuple[int, States]] = [(0, self.states)]  # every state since
        self.log: list[tuple[int, str]] = []

    def note(self, at: int, text: str) -> None:
        """Add a line to the task's story, which errors show."""
        self.log.append((at, text))

    def has_waited(self) -> bool:
        """Return whether it may be, or have been, delayed or given back."""
        return bool(self.deliveries or self.delay_us or self.run_at_us)

    def not_before_us(self) -> int:
        """Return the wall time before which it must not be delivered; 0 for none."""
        first = self.run_at_us or (self.call.wall_us + self.delay_us if self.delay_us else 0)
        return max(first, self.due_us)

    def expires_us(self) -> int:
        """Return the earliest wall time at which its TTL may end it."""
        if self.ttl_us is None:
            return FOREVER_US
        return max(self.call.wall_us + self.delay_us, self.run_at_us) + self.ttl_us

    def story(self) -> str:
        """Return the last lines of the task's story."""
        return "\n".join(f"  {at}: {text}" for at, text in self.log[-24:])
