"""A queue for threads: the same calls, each blocking until the event loop has done it.

Every method is written out, for editors and type checkers. Arguments, errors and what a return
promises are documented at the method of ``Queue`` that it calls. See ``thread_calls`` for what a
blocked thread can rely on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..model.encoded_tasks import listed
from ..model.values import (
    AnyId,
    Duration,
    NewTask,
    OnConflict,
    QueueStats,
    Receipt,
    Task,
)
from .thread_calls import ThreadCalls
from .thread_leases import ThreadLease, ThreadLeaseStream

if TYPE_CHECKING:
    import builtins

    from .queue import Queue

__all__ = ["ThreadQueue"]


class ThreadQueue:
    """A ``Queue`` whose calls block."""

    def __init__(self, queue: Queue, call: ThreadCalls) -> None:
        self._queue = queue
        self._call = call

    def __repr__(self) -> str:
        return f"<Thread{repr(self._queue)[1:]}"

    @property
    def twin(self) -> Queue:
        """The queue as the loop's own code holds it."""
        return self._queue

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    @property
    def tenant(self) -> str:
        """The tenant's name; empty for the default tenant, and for ALL_TENANTS."""
        return self._queue.tenant

    def enqueue(
        self,
        payload: Any,
        *,
        priority: int = 5,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        ttl: Duration | None = None,
        dedup_key: str | bytes | None = None,
        dedup_window: Duration | None = None,
        on_conflict: OnConflict = "return",
        headers: Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        shard_key: str | bytes | None = None,
        durable: bool | None = None,
    ) -> Receipt:
        """See ``Queue.enqueue``, also for Durability and Cancellation."""
        return self._call(
            self._queue.enqueue,
            payload,
            priority=priority,
            delay=delay,
            run_at=run_at,
            ttl=ttl,
            dedup_key=dedup_key,
            dedup_window=dedup_window,
            on_conflict=on_conflict,
            headers=headers,
            max_attempts=max_attempts,
            shard_key=shard_key,
            durable=durable,
        )

    def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> builtins.list[Receipt]:
        """See ``Queue.enqueue_many``, also for Durability and Cancellation."""
        return self._call(self._queue.enqueue_many, listed(tasks), durable=durable, atomic=atomic)

    def claim(
        self,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        exported: bool = False,
        skip_tenants: Collection[str] = (),
    ) -> builtins.list[ThreadLease]:
        """See ``Queue.claim``, also for Durability and Cancellation."""
        found = self._call(
            self._queue.claim,
            limit=limit,
            lease=lease,
            wait=wait,
            worker=worker,
            exported=exported,
            skip_tenants=skip_tenants,
        )
        return [ThreadLease(one, self._call) for one in found]

    def claim_one(
        self, *, lease: Duration | None = None, wait: Duration = 0.0, worker: str = ""
    ) -> ThreadLease | None:
        """See ``Queue.claim_one``, also for Durability and Cancellation."""
        leases = self.claim(lease=lease, wait=wait, worker=worker)
        return leases[0] if leases else None

    def leases(
        self,
        *,
        limit: int = 64,
        lease: Duration | None = None,
        keepalive: bool = True,
        wait: Duration = 1.0,
        worker: str = "",
    ) -> ThreadLeaseStream:
        """Leases one after another, without end: ``for lease in queue.leases(): with lease: …``.

        Otherwise as ``Queue.leases``, including Durability and Cancellation. They are kept alive
        by the loop, whatever their thread does meanwhile.
        """
        stream = self._queue.leases(
            limit=limit, lease=lease, keepalive=keepalive, wait=wait, worker=worker
        )
        return ThreadLeaseStream(stream, self._call)

    def stats(self) -> QueueStats:
        """See ``Queue.stats``, also for Durability and Cancellation."""
        return self._call(self._queue.stats)

    def list(
        self, state: str, *, limit: int = 100, after: Task | None = None
    ) -> builtins.list[Task]:
        """See ``Queue.list``, also for Durability and Cancellation."""
        return self._call(self._queue.list, state, limit=limit, after=after)

    def peek(self, limit: int = 10) -> builtins.list[Task]:
        """See ``Queue.peek``, also for Durability and Cancellation."""
        return self._call(self._queue.peek, limit)

    def dead_letters(self, limit: int = 100, *, after: Task | None = None) -> builtins.list[Task]:
        """See ``Queue.dead_letters``, also for Durability and Cancellation."""
        return self._call(self._queue.dead_letters, limit, after=after)

    def redrive(self, ids: Sequence[AnyId] | None = None) -> int:
        """See ``Queue.redrive``, also for Durability and Cancellation."""
        return self._call(self._queue.redrive, ids)

    def pause(self) -> None:
        """See ``Queue.pause``, also for Durability and Cancellation."""
        self._call(self._queue.pause)

    def resume(self) -> None:
        """See ``Queue.resume``, also for Durability and Cancellation."""
        self._call(self._queue.resume)

    def purge(self, state: str | None = None) -> int:
        """See ``Queue.purge``, also for Durability and Cancellation."""
        return self._call(self._queue.purge, state)
