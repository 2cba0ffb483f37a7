"""Claims from one queue: no more than its limits allow, and none once the worker stops.

A claim waits at the store, where an enqueue wakes it at once. It is cancelled only where it must
not wait on: when the worker stops, when a tenant that it skips may run again, and when the worker
has met another function that it does not know. A claim at a served store cannot be cancelled
(``WorkerBackend.is_served``); there it waits for short times instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from ....errors import LodeqError
from .limits import Gate
from .run_end import give_back

if TYPE_CHECKING:
    from ....repository.api.queue import Queue
    from ....repository.tasks.lease import Lease
    from .backend import WorkerBackend
    from .elsewhere import Elsewhere

__all__ = ["Claimer"]

WAIT_S: Final = 20.0  # one long poll; the next follows at once
SERVED_WAIT_S: Final = 1.0  # one long poll of a served store; a stop waits for its end
SKIPPING_WAIT_S: Final = 0.25  # … while tenants are skipped that may soon run again
PAUSE_S: Final = 0.1  # after a claim that failed; doubles …
PAUSE_S_MAX: Final = 15.0  # … up to this
log = logging.getLogger("lodeq.worker")


class Claimer:
    """Claims from one queue, from all tenants, and passes each batch to ``start``.

    Args:
        backend: the store and its clock.
        queue: the queue, with all its tenants.
        gate: its limits.
        worker: name of the worker, kept with the leases.
        start: called with each batch of leases.
        elsewhere: knows the functions whose tasks others are to have.
    """

    def __init__(
        self,
        backend: WorkerBackend,
        queue: Queue,
        gate: Gate,
        worker: str,
        start: Callable[[Claimer, Sequence[Lease]], None],
        elsewhere: Elsewhere,
    ) -> None:
        self._backend = backend
        self._queue = queue
        self.gate = gate
        self._worker = worker
        self._start = start
        self._elsewhere = elsewhere
        self.over = anyio.Event()  # set when it claims no more and holds no lease
        self._is_stopping = False
        self._changed = anyio.Event()
        self._poll: anyio.CancelScope | None = None
        self._skipped: frozenset[str] = frozenset()
        self._skipped_functions: frozenset[str] = frozenset()

    def stop(self) -> None:
        """Claim no more. If a claim can no longer be cancelled, its leases are released."""
        self._is_stopping = True
        self._changed.set()
        if self._poll is not None and not self._backend.is_served:
            self._poll.cancel()

    def run_ended(self, tenant: str) -> bool:
        """Count the end of a run; returns whether claimers of other queues may go on by it."""
        was_full = self.gate.leave(tenant)
        self._changed.set()
        if self._poll is not None and not self._backend.is_served and self._waits_wrongly(tenant):
            self._poll.cancel()
        return was_full

    def _waits_wrongly(self, tenant: str) -> bool:
        return tenant in self._skipped or not self._to_skip() <= self._skipped_functions

    def slot_freed(self) -> None:
        """A run of another queue has ended: this process has a slot again."""
        self._changed.set()

    async def run(self) -> None:
        """Claim until stopped.

        Raises:
            LodeqError: a retry does not help.
        """
        try:
            await self._run()
        finally:
            self.over.set()

    async def _run(self) -> None:
        clock = self._backend.clock
        pause_s = PAUSE_S
        while not self._is_stopping:
            free = self.gate.free
            if free <= 0:
                await self._change()
                continue
            try:
                leases = await self._claim(free)
                if self._is_stopping:
                    await give_back(leases)
                elif leases:
                    await self._begin(leases)
            except (LodeqError, OSError) as error:
                if self._backend.is_final(error):
                    raise
                log.warning(
                    "claim from %r failed: %r",
                    self._queue.name,
                    error,
                    extra={"event": "claim_failed", "queue": self._queue.name},
                )
                await self._change(clock.mono() + pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                continue
            pause_s = PAUSE_S

    async def _begin(self, leases: list[Lease]) -> None:
        """Start their runs.

        Raises:
            LodeqError: nothing can keep them alive; they are given back.
        """
        try:
            self._start(self, leases)
        except LodeqError:
            await give_back(leases)
            raise

    async def _claim(self, limit: int) -> list[Lease]:
        self._skipped = skip = self.gate.full_tenants
        self._skipped_functions = self._to_skip()
        leases: list[Lease] = []
        wait_s = WAIT_S
        if self._backend.is_served:
            wait_s = SKIPPING_WAIT_S if skip else SERVED_WAIT_S
        with anyio.CancelScope() as self._poll:
            leases = await self._queue.claim(
                limit=limit,
                wait=wait_s,
                worker=self._worker,
                skip_tenants=skip,
                skip_functions=self._skipped_functions,
            )
        self._poll = None
        return leases

    def _to_skip(self) -> frozenset[str]:
        return self._elsewhere.to_skip(self._backend.clock, self._queue.name)

    async def _change(self, until_mono: float = float("inf")) -> None:
        """Wait until a run ends, the worker stops, or that moment comes."""
        self._changed = anyio.Event()
        if not self._is_stopping:
            await self._backend.wait(self._changed, until_mono)
