"""The values of the reference queue."""

from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Lease", "Policy", "RefusedError", "Result", "Spec", "Task", "second"]


class RefusedError(Exception):
    """Its argument is the name of the error's class; of many, what became of each as well."""


class Policy(NamedTuple):
    """Of a task. Milliseconds; ``backoff`` None: not fixed, every nack has a delay of its own."""

    attempts: int = 5
    retention: int = 3_600_000
    dead: int = 604_800_000
    backoff: int | None = None


class Spec(NamedTuple):
    """One task to be enqueued. ``key`` is (queue, tenant, dedup key)."""

    n: int
    queue: str
    tenant: str
    policy: Policy
    priority: int = 5
    delay: int = 0
    ttl: int | None = None
    key: Any = None
    window: int | None = None
    on_conflict: str = "return"
    headers: Any = None
    labels: Any = None


@dataclass(eq=False)
class Lease:
    """``by`` of a result: completing again under the same lease succeeds again."""

    leased: int
    length: int
    deadline: int
    worker: str
    exported: bool
    dead: bool = False  # of a dead letter: that is what it goes back as
    is_restarted: bool = False  # in full after a kill, and no heartbeat since
    ends: int = 0  # wall; what its row says, where that decides


@dataclass(eq=False)
class Task:
    """One that has not ended, or is dead. ``forget``: when a dead one is."""

    spec: Spec
    created: int
    expires: int
    state: str = ""
    attempts: int = 0
    seq: int = 0
    due: int = 0
    died: int = 0
    forget: int = 0
    reason: str = ""
    lease: Lease | None = None

    @property
    def is_borrowed(self):
        """A dead letter that somebody has under a lease."""
        return self.lease is not None and self.lease.dead

    @property
    def order(self):
        return (9 - self.spec.priority, self.seq)


@dataclass
class Result:
    """How a task ended."""

    spec: Spec
    status: str
    error: Any
    value: Any
    attempts: int
    created: int
    ready: int
    finished: int
    by: Lease | None
    retention: int  # milliseconds; 0: it is history, and no result (any more)
    history: int  # milliseconds for which its row is kept


def second(ms):
    return -(-ms // 1000) * 1000
