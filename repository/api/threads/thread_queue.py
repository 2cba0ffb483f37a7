"""A queue for threads: the same calls, each blocking until the event loop has done it.

Arguments, errors and what a return promises are documented at the method of ``Queue`` that a call
runs. See ``thread_calls`` for what a blocked thread can rely on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ...model.arguments import listed
from ...model.values import (
    Duration,
    NewTask,
    Receipt,
)
from ..queue import Queue
from .thread_calls import ThreadTwin, blocking
from .thread_leases import ThreadLease, ThreadLeaseStream

if TYPE_CHECKING:
    import builtins

__all__ = ["ThreadQueue"]


class ThreadQueue(ThreadTwin[Queue]):
    """A ``Queue`` whose calls block."""

    @property
    def twin(self) -> Queue:
        """The queue as the loop's own code holds it."""
        return self._twin

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._twin.name

    @property
    def tenant(self) -> str:
        """The tenant's name; empty for the default tenant, and for ALL_TENANTS."""
        return self._twin.tenant

    enqueue = blocking(Queue.enqueue)
    """See ``Queue.enqueue``, also for Durability and Cancellation."""

    enqueue_stream = blocking(Queue.enqueue_stream)
    """See ``Queue.enqueue_stream``, also for Durability and Cancellation."""

    def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> builtins.list[Receipt]:
        """See ``Queue.enqueue_many``, also for Durability and Cancellation."""
        return self._call(self._twin.enqueue_many, listed(tasks), durable=durable, atomic=atomic)

    def claim(
        self,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        exported: bool = False,
        skip_tenants: Collection[str] = (),
        dead: bool = False,
        skip_functions: Collection[str] = (),
    ) -> builtins.list[ThreadLease]:
        """Take ready tasks under leases, as ``Queue.claim``, also in Durability and Cancellation.

        Args:
            limit: 1 to 4,096 tasks at most.
            lease: seconds until a lease may be reaped; None uses the queue's.
            wait: seconds to wait for the first task.
            worker: a name kept with the lease and the result, at most 256 bytes.
            exported: the worker is another process: the lease outlives this one.
            skip_tenants: with ALL_TENANTS, tenants that get nothing this time.
            dead: take dead letters instead, the oldest first, 256 at most.
            skip_functions: with ALL_TENANTS, functions whose tasks are left to others where that
                can be.
        """
        found = self._call(
            self._twin.claim,
            limit=limit,
            lease=lease,
            wait=wait,
            worker=worker,
            exported=exported,
            skip_tenants=skip_tenants,
            dead=dead,
            skip_functions=skip_functions,
        )
        return [ThreadLease(one, self._call) for one in found]

    def claim_one(
        self,
        *,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        dead: bool = False,
    ) -> ThreadLease | None:
        """See ``Queue.claim_one``, also for Durability and Cancellation."""
        leases = self.claim(lease=lease, wait=wait, worker=worker, dead=dead)
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

        Args:
            limit: how many to claim at a time.
            lease: seconds; None uses the queue's.
            keepalive: the event loop extends all leases it holds, whatever their thread does.
            wait: seconds that one poll waits; it goes on polling.
            worker: a name kept with the lease and the result, at most 256 bytes.

        Otherwise as ``Queue.leases``, including Durability and Cancellation.
        """
        stream = self._twin.leases(
            limit=limit, lease=lease, keepalive=keepalive, wait=wait, worker=worker
        )
        return ThreadLeaseStream(stream, self._call)

    stats = blocking(Queue.stats)
    """See ``Queue.stats``, also for Durability and Cancellation."""

    list = blocking(Queue.list)
    """See ``Queue.list``, also for Durability and Cancellation."""

    peek = blocking(Queue.peek)
    """See ``Queue.peek``, also for Durability and Cancellation."""

    dead_letters = blocking(Queue.dead_letters)
    """See ``Queue.dead_letters``, also for Durability and Cancellation."""

    redrive = blocking(Queue.redrive)
    """See ``Queue.redrive``, also for Durability and Cancellation."""

    pause = blocking(Queue.pause)
    """See ``Queue.pause``, also for Durability and Cancellation."""

    resume = blocking(Queue.resume)
    """See ``Queue.resume``, also for Durability and Cancellation."""

    cancel_all = blocking(Queue.cancel_all)
    """See ``Queue.cancel_all``, also for Durability and Cancellation."""

    purge = blocking(Queue.purge)
    """See ``Queue.purge``, also for Durability and Cancellation."""
