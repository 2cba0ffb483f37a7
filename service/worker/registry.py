"""Registry of an app's functions: names unique in a queue, limits set once for a queue."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ...engine.records.keyspace import check_name
from ...errors import UsageError
from ...repository.model.arguments import (
    check_attempts,
    check_priority,
    check_retry,
    duration_s,
    length_s,
)
from ...repository.model.queue_settings import (
    CONCURRENCY_MAX,
    key_concurrency_text,
    parse_key_concurrency,
    parse_rate,
    rate_text,
)
from ...repository.model.values import Backoff, Duration
from .cron import CronEntry
from .run.functions import NAME_BYTES_MAX, Policy, TaskFunction

__all__ = ["QueueLimits", "Registry", "count", "make_policy"]


class QueueLimits(NamedTuple):
    """Limits that the functions of a queue share; None where no function has set one."""

    lease: Duration | None
    queue_concurrency: int | None
    rate: str | None
    key_concurrency: str | None
    max_inflight_per_tenant: int | None


def count(value: object, what: str, most: int = 10_000) -> int:
    """Check a whole number from 1 to ``most``, and return it."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"{what} {value!r} is not between 1 and {most:,}")
    return value


def make_policy(
    *,
    max_attempts: int,
    retry: Backoff | None,
    timeout: Duration | None,
    priority: int,
    ttl: Duration | None,
    retention: Duration,
    dead_retention: Duration,
    lease: Duration | None,
    concurrency: int | None,
    queue_concurrency: int | None,
    rate: str | None,
    key_concurrency: str | None,
    max_inflight_per_tenant: int | None,
) -> Policy:
    """Check the options of ``App.task``, so that a wrong one fails where it is written.

    Args:
        max_attempts: 1 to 65,535.
        retry: the backoff; None for ``Backoff()``.
        timeout: seconds of one run, at least 0.001; None for no limit.
        priority: 0 to 9.
        ttl: seconds; None for no limit.
        retention: seconds that a result is kept.
        dead_retention: seconds that a dead letter is kept.
        lease: seconds; None for the app's.
        concurrency: 1 to 10,000 runs at once of the function in a process; None for no limit but
            the app's.
        queue_concurrency: 1 to 1,000,000 leases at once of the queue in the store; None for no
            limit.
        rate: such as ``100/m``, of the queue in the store; None for no limit.
        key_concurrency: such as ``2/customer``, of the queue in the store; None for no limit.
        max_inflight_per_tenant: 1 to 10,000; None for no limit.
    """
    return Policy(
        max_attempts=check_attempts(max_attempts),
        retry=Backoff() if retry is None else check_retry(retry),
        timeout_s=None if timeout is None else duration_s(timeout, "timeout", least=0.001),
        priority=check_priority(priority),
        ttl=None if ttl is None else duration_s(ttl, "ttl"),
        retention=duration_s(retention, "retention"),
        dead_retention=duration_s(dead_retention, "dead_retention"),
        lease=None if lease is None else length_s(lease),
        concurrency=None if concurrency is None else count(concurrency, "concurrency"),
        queue_concurrency=None
        if queue_concurrency is None
        else count(queue_concurrency, "queue_concurrency", CONCURRENCY_MAX),
        rate=None if rate is None else rate_text(parse_rate(rate)),
        key_concurrency=None
        if key_concurrency is None
        else key_concurrency_text(parse_key_concurrency(key_concurrency)),
        max_inflight_per_tenant=None
        if max_inflight_per_tenant is None
        else count(max_inflight_per_tenant, "max_inflight_per_tenant"),
    )


class Registry:
    """The functions registered by ``@app.task`` and ``@app.cron``."""

    def __init__(self) -> None:
        self.functions: dict[str, dict[str, TaskFunction[Any, Any]]] = {}
        self.cron: list[CronEntry] = []

    def add(self, function: TaskFunction[Any, Any]) -> None:
        """Add a function, unless its name or a limit is taken in its queue."""
        name, queue = function.name, function.queue
        check_name(queue, "queue")
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
            raise UsageError(f"name {name!r} of a task function must be a str of 1 to 256 bytes")
        here = self.functions.get(queue, {})
        if name in here:
            raise UsageError(
                f"queue {queue!r} already has a task function {name!r}: pass another name"
            )
        if here and any(one.batches is not None for one in (function, *here.values())):
            raise UsageError(
                f"a batch function has its queue for itself: use another than {queue!r}"
            )
        for other in here.values():
            for field in QueueLimits._fields:
                mine, theirs = getattr(function.policy, field), getattr(other.policy, field)
                is_same = field == "key_concurrency" and mine == theirs  # each says whose tasks
                if None not in (mine, theirs) and not is_same:
                    raise UsageError(
                        f"{field} is a limit of the queue, and {other.name!r} has set it for "
                        f"{queue!r}; leave it out of {name!r}, or use another queue"
                    )
        self.functions.setdefault(queue, {})[name] = function

    def banner(self, queues: Collection[str], concurrency: int) -> list[str]:
        """Return what a worker of these queues does, one line each.

        Args:
            queues: names of queues that have functions.
            concurrency: of queues that have none of their own.
        """
        lines = []
        for queue in sorted(queues):
            limits = self.limits(queue)
            said = [f"{self.capacity(queue, concurrency)} at once"]
            if limits.rate is not None:
                said.append(limits.rate)
            if limits.key_concurrency is not None:
                said.append(f"{limits.key_concurrency} at once")
            names = [
                name if one.batches is None else f"{name} (batches of {one.batches.size})"
                for name, one in sorted(self.functions[queue].items())
            ]
            lines.append(f"queue {queue!r}, {', '.join(said)}: {', '.join(names)}")
        for entry in self.cron:
            lines.append(f"cron {entry.function.name!r}: {entry.ticks}")  # noqa: PERF401 - as above
        return lines

    def limits(self, queue: str) -> QueueLimits:
        """Return the limits of one queue."""
        policies = [function.policy for function in self.functions[queue].values()]
        return QueueLimits(
            *(
                next((getattr(p, field) for p in policies if getattr(p, field) is not None), None)
                for field in QueueLimits._fields
            )
        )

    def capacity(self, queue: str, total: int) -> int:
        """Return how many tasks of a queue one process can run at once: the sum of its functions'.

        ``total``: runs at once in the process, for functions without a limit of their own.
        """
        caps = [function.policy.concurrency for function in self.functions[queue].values()]
        return min(total, sum(total if cap is None else cap for cap in caps))

    @property
    def caps(self) -> dict[tuple[str, str], int]:
        """Runs at once of each function that has a limit, by queue and name."""
        return {
            (queue, name): function.policy.concurrency
            for queue, here in self.functions.items()
            for name, function in here.items()
            if function.policy.concurrency is not None
        }

    def who_sets(self, queue: str, field: str) -> str | None:
        """Return the name of the function that sets a limit of its queue, or None."""
        for name, function in self.functions[queue].items():
            if getattr(function.policy, field) is not None:
                return name
        return None
