"""One queue's claims: never more than there is room for, and none once the worker stops.

A claim waits at the store, which an enqueue wakes at once. It is taken back only where waiting on
would be wrong: when the worker stops, and when a tenant it passes over has room again. From a
served store it cannot be taken back (``WorkerBackend.is_served``): there it waits for short times
instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from ....errors import ClosedError, InvariantError, LodeqError, StoragePoisonedError, UsageError
from .limits import Gate
from .log_fields import fields

if TYPE_CHECKING:
    from ....repository.api.queue import Queue
    from ....repository.tasks.lease import Lease
    from .backend import WorkerBackend

__all__ = ["FATAL", "Claimer"]

WAIT_S: Final = 20.0  # one long poll; the next follows at once
SERVED_WAIT_S: Final = 1.0  # one long poll of a served store: as long as a stop waits for it
PASSING_WAIT_S: Final = 0.25  # … while tenants are passed over that may soon have room again
PAUSE_S: Final = 0.1  # after a claim that failed; doubles …
PAUSE_S_MAX: Final = 15.0  # … up to this
# Trying again helps with none of these: the store has to be opened again, or the code mended.
FATAL: Final = (ClosedError, InvariantError, StoragePoisonedError, UsageError)
log = logging.getLogger("lodeq.worker")


class Claimer:
    """Claims from one queue, of all tenants, and hands each batch to ``start``."""

    def __init__(
        self,
        ground: WorkerBackend,
        queue: Queue,
        gate: Gate,
        worker: str,
        start: Callable[[Claimer, Sequence[Lease]], None],
    ) -> None:
        self._ground = ground
        self._queue = queue
        self.gate = gate
        self._worker = worker
        self._start = start
        self.over = anyio.Event()  # it claims no more, and holds nothing
        self._is_stopping = False
        self._changed = anyio.Event()
        self._poll: anyio.CancelScope | None = None
        self._passed_over: frozenset[str] = frozenset()

    def stop(self) -> None:
        """Claim no more. What a claim brings that cannot be taken back any more is released."""
        self._is_stopping = True
        self._changed.set()
        if self._poll is not None and not self._ground.is_served:
            self._poll.cancel()

    def left(self, tenant: str) -> None:
        """A run has ended: there may be room again."""
        self.gate.leave(tenant)
        self._changed.set()
        if self._poll is not None and tenant in self._passed_over and not self._ground.is_served:
            self._poll.cancel()

    async def run(self) -> None:
        """Until stopped.

        Raises:
            LodeqError: one of ``FATAL``.
        """
        try:
            await self._run()
        finally:
            self.over.set()

    async def _run(self) -> None:
        clock = self._ground.clock
        pause_s = PAUSE_S
        while not self._is_stopping:
            now = clock.mono()
            room = self.gate.room(now)
            if room <= 0:
                await self._change(self.gate.next_at(now))
                continue
            try:
                leases = await self._claim(room)
            except FATAL:
                raise
            except (LodeqError, OSError) as error:
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
            if self._is_stopping:
                await self._give_back(leases)
            elif leases:
                self._start(self, leases)

    async def _give_back(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            try:
                await lease.release()
            except (LodeqError, OSError) as error:
                log.warning(
                    "task %s was not released: %r",
                    lease.task_id,
                    error,
                    extra=fields("not_told", lease),
                )

    async def _claim(self, room: int) -> list[Lease]:
        self._passed_over = skip = self.gate.full_tenants
        leases: list[Lease] = []
        wait_s = WAIT_S
        if self._ground.is_served:
            wait_s = PASSING_WAIT_S if skip else SERVED_WAIT_S
        with anyio.CancelScope() as self._poll:
            leases = await self._queue.claim(
                limit=room, wait=wait_s, worker=self._worker, skip_tenants=skip
            )
        self._poll = None
        return leases

    async def _change(self, until_mono: float) -> None:
        """Until a run ends, the worker stops, or that moment."""
        self._changed = anyio.Event()
        if not self._is_stopping:
            await self._ground.wait(self._changed, until_mono)
