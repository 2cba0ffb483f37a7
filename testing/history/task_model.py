"""What a history keeps of tasks, calls and queues."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from .states import ABSENT, EXPORTED, NO_CLAIMS, SHORT, Claims, Op, States

__all__ = ["FOREVER_US", "Call", "Deliveries", "Known", "Lane"]

FOREVER_US = 1 << 62
_LOOSE_MAX: Claims = (1, 4, 1, 4)


class Call:
    """An operation that was invoked."""

    __slots__ = (
        "at",
        "ids",
        "is_done",
        "is_split",
        "keys",
        "kind",
        "lanes",
        "mono_us",
        "op",
        "params",
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
        self.tasks: list[Known] = []
        self.ids: list[str] = []  # it names, and we cannot place yet
        self.sure: list[Known] = []  # tasks that nothing but this call can have changed
        self.lanes: list[Lane] = []  # of a claim
        self.keys: set[tuple[str, str | None]] = set()
        self.is_done = False
        self.is_split = "split" in params  # over several batches, perhaps

    def flags(self, now_us: int) -> int:
        """Of the leases a claim grants: whether their time may be up, whether they are exported."""
        params = self.params
        flags = EXPORTED if params.get("exported") else 0
        return flags | SHORT if params.get("short") or self.until_us() <= now_us else flags

    def until_us(self) -> int:
        """The earliest monotonic moment at which a lease of this claim may be reaped."""
        lease_us = self.params.get("lease_us")
        return FOREVER_US if lease_us is None else self.mono_us + int(lease_us) - 1000


class Deliveries:
    """Of one priority, queue and shard: the latest claim up to any moment. See ``order``."""

    __slots__ = ("ends", "latest", "newest")

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.latest: list[int] = []  # the latest invocation of a claim answered up to then
        self.newest: list[int] = []  # … of a task that was also enqueued after that moment

    def add(self, began: int, ended: int, enqueued: int) -> None:
        """A task was delivered."""
        newest = min(began, enqueued)
        if self.ends:
            began, newest = max(began, self.latest[-1]), max(newest, self.newest[-1])
        self.ends.append(ended)
        self.latest.append(began)
        self.newest.append(newest)

    def before(self, at: int) -> int:
        """The position of the last claim answered before; -1 if there is none."""
        return bisect_left(self.ends, at) - 1


class Lane:
    """One (queue, tenant)."""

    __slots__ = ("claimed_at", "loose", "loose_at", "name", "open", "order", "ranges", "tasks")

    def __init__(self, queue: str, tenant: str) -> None:
        self.name = (queue, tenant)
        self.tasks: list[Known] = []
        self.open: dict[int, Call] = {}  # claims under way
        self.ranges: dict[int, Call] = {}  # purges and redrives of all that is dead
        self.loose = [0, 0, 0, 0]  # claims that ended without an answer, by their flags
        self.loose_at = 0  # the last of them
        self.claimed_at = 0
        self.order: dict[int, list[Deliveries]] = {}  # by shard, then priority

    def claims(self, now_us: int) -> Claims:
        """How many claims may have taken a task of this lane without our knowing."""
        if not self.open and not self.loose_at:
            return NO_CLAIMS
        count = list(self.loose)
        for call in self.open.values():
            count[call.flags(now_us)] += 1
        # Nothing of ours follows a lease whose epoch nobody knows, so one that lasts is as many.
        a, b, c, d = (min(n, most) for n, most in zip(count, _LOOSE_MAX, strict=True))
        return (a, b, c, d)


class Known:
    """One task, as far as the records tell."""

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
        "due_us",
        "ended_at",
        "epoch",
        "first",
        "follower",
        "id",
        "is_alone",
        "is_doubtful",
        "is_redriven",
        "is_windowed",
        "key",
        "lane",
        "leaves_nothing",
        "log",
        "number",
        "priority",
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

    def __init__(self, told: dict[str, Any], lane: Lane, call: Call) -> None:
        get = told.get
        self.number: int = told["n"]
        self.lane = lane
        self.call = call  # that enqueues it
        self.key: str | None = get("key")
        self.priority: int = get("priority", 5)
        self.attempts_max: int = get("attempts", 5)
        self.delay_us: int = get("delay_us", 0)
        self.run_at_us: int = get("run_at_us", 0)
        self.ttl_us: int | None = get("ttl_us")
        self.retention_us: int | None = get("retention_us")
        self.dead_retention_us: int | None = get("dead_retention_us")
        self.is_windowed: bool = get("windowed", False)
        self.is_alone: bool = get("alone", False)  # has a shard of its own choice
        self.states: States = frozenset([ABSENT])
        self.doing: dict[int, tuple[Op, ...]] = {}  # operations under way
        self.assumed: set[int] = set()  # of these, what an observation needed to be explained
        self.id = ""
        self.shard = -1
        self.epoch = 0
        self.until_us = FOREVER_US  # monotonic: before it the lease in hand is not reaped
        self.since_us = call.wall_us  # wall: it has ended later than this, if it has
        self.due_us = 0  # wall: not before it, after a nack or a release with a delay
        self.acked_at = 0
        self.ended_at = 0
        self.deliveries = 0
        self.completes = 0  # calls that would complete it
        self.first = (0, 0)  # its first delivery: when that claim was invoked, and answered
        self.follower: Known | None = None  # the next of its call, queue and priority
        self.is_redriven = False
        self.is_doubtful = False  # a power cut may have brought it back
        self.leaves_nothing = False
        self.solid_at = 0  # what is up to here survives a power cut
        self.trail: list[tuple[int, States]] = [(0, self.states)]  # every state since
        self.log: list[tuple[int, str]] = []

    def note(self, at: int, text: str) -> None:
        """A line of its story, for whoever reads why it is wrong."""
        self.log.append((at, text))

    def has_waited(self) -> bool:
        """Whether it may be, or have been, delayed or given back."""
        return bool(self.deliveries or self.delay_us or self.run_at_us)

    def not_before_us(self) -> int:
        """The wall time before which it must not be delivered; 0 for none."""
        first = self.run_at_us or (self.call.wall_us + self.delay_us if self.delay_us else 0)
        return max(first, self.due_us)

    def expires_us(self) -> int:
        """The earliest wall time at which its TTL may end it."""
        if self.ttl_us is None:
            return FOREVER_US
        return max(self.call.wall_us + self.delay_us, self.run_at_us) + self.ttl_us

    def story(self) -> str:
        """The last of what happened to it."""
        return "\n".join(f"  {at}: {text}" for at, text in self.log[-24:])
