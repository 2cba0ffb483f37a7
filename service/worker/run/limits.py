"""Limits of one worker process: runs at once of a function, of a queue, of a tenant, of all.

What holds across processes (a rate, the leases of a queue) is set in the store and enforced there:
``settings``. Here a claimer asks how many tasks it may claim now, and a run waits for its slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import anyio

from ....engine.runtime.clock import TimerHandle

__all__ = ["CLAIM_MAX", "SLOT_WAIT_S", "Gate", "RunSlots"]

CLAIM_MAX: Final = 256  # tasks a claim takes; more would only wait in this process
SLOT_WAIT_S: Final = 1.0  # for a slot of the process; then another process may run the task


class RunSlots:
    """Runs at once in this process: of all functions, and of each that has a limit of its own.

    Tasks are claimed for a queue, before it is known which function they are for, and several
    queues are claimed from at once. So a task may be here while its function, or the process, is at
    its limit: it waits for a slot under its lease, which is kept alive. For one of the process it
    waits ``SLOT_WAIT_S`` at most and is given back: a process beside it may have nothing to do.

    Args:
        total: runs at once in this process.
        caps: runs at once of a function, by its queue and name.
    """

    def __init__(self, total: int, caps: Mapping[tuple[str, str], int]) -> None:
        self._total = total
        self._all = anyio.Semaphore(total, fast_acquire=True)
        self._own = {key: anyio.Semaphore(n, fast_acquire=True) for key, n in caps.items()}
        self._taken = 0  # tasks that are here, those that wait included

    @property
    def free(self) -> int:
        """How many more tasks this process can run now."""
        return max(0, self._total - self._taken)

    def enter(self) -> None:
        """Count a task that was claimed."""
        self._taken += 1

    def leave(self) -> bool:
        """Count a task that is over; returns whether there was no slot before."""
        self._taken -= 1
        return self._taken >= self._total - 1

    async def acquire(
        self,
        queue: str,
        name: str,
        held: list[anyio.Semaphore],
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
    ) -> bool:
        """Wait for the slots of a run: first that of its function, so that others go past it.

        Args:
            queue: of the function.
            name: of the function.
            held: gets what the run has to release, also if it is cancelled meanwhile.
            call_later: sets a timer, in seconds.

        Returns: whether it has them. False: the process has no slot.
        """
        own = self._own.get((queue, name))
        if own is not None:
            try:
                own.acquire_nowait()
            except anyio.WouldBlock:
                await own.acquire()
            held.append(own)
        try:
            self._all.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.CancelScope() as scope:
                timer = call_later(SLOT_WAIT_S, scope.cancel)
                try:
                    await self._all.acquire()
                finally:
                    timer.cancel()
            if scope.cancelled_caught:
                return False
        held.append(self._all)
        return True


class Gate:
    """The limits of one queue in this process, and the runs counted against them.

    Args:
        concurrency: tasks that are here at once.
        per_tenant: runs at once of one tenant; None for no limit.
        slots: those of the process.
    """

    def __init__(self, concurrency: int, per_tenant: int | None, slots: RunSlots) -> None:
        self._concurrency = concurrency
        self._per_tenant = per_tenant
        self._slots = slots
        self._running = 0
        self._tenants: Counter[str] = Counter()

    @property
    def free(self) -> int:
        """How many tasks may be claimed now."""
        free = min(self._concurrency - self._running, self._slots.free, CLAIM_MAX)
        # One after another: a claim of several may take them all from one tenant.
        return min(free, 1) if self._per_tenant is not None else free

    @property
    def full_tenants(self) -> frozenset[str]:
        """Tenants whose runs are at their limit."""
        most = self._per_tenant
        if most is None:
            return frozenset()
        return frozenset(tenant for tenant, n in self._tenants.items() if n >= most)

    def enter(self, tenant: str) -> None:
        """Count a task that was claimed."""
        self._running += 1
        self._tenants[tenant] += 1
        self._slots.enter()

    def leave(self, tenant: str) -> bool:
        """Count a run that has ended; returns whether the process had no slot before."""
        self._running -= 1
        self._tenants[tenant] -= 1
        if self._tenants[tenant] <= 0:
            del self._tenants[tenant]
        return self._slots.leave()
