"""Who waits for records to be flushed or fsynced, and what each of them gets."""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

from ...engine.runtime.event_loop import Future, Spawner
from ...errors import LodeqError, StorageFullError

__all__ = ["Ack", "State", "Waiters"]

State = Literal["buffered", "flushed", "fsynced"]


class Ack(NamedTuple):
    """Records ``first`` to ``last`` are in the journal.

    ``state``: ``buffered`` in this process, ``flushed`` to the kernel (survives the process), or
    ``fsynced`` (survives the machine).
    """

    first: int
    last: int
    state: State


class Waiters:
    """In the order of their records."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._flush: list[tuple[Ack, Future]] = []
        self._sync: deque[tuple[Ack, Future]] = deque()

    @property
    def has_sync(self) -> bool:
        """Whether anybody waits for a sync."""
        return bool(self._sync)

    def add(self, taken: Ack, state: Literal["flushed", "fsynced"]) -> Future:
        """Done when those records are in that state."""
        future = self._spawner.future()
        (self._flush if state == "flushed" else self._sync).append((taken, future))
        return future

    def flushed(self, last: int) -> None:
        """The kernel has records up to that one."""
        waiters, self._flush = self._flush, []
        for taken, future in waiters:
            if taken.last > last:
                self._flush.append((taken, future))
            elif not future.done():
                future.set_result(None)

    def synced(self, durable: int) -> None:
        """The disk has records up to that one."""
        waiters = self._sync
        while waiters and waiters[0][0].last <= durable:
            _, future = waiters.popleft()
            if not future.done():
                future.set_result(None)

    def full(self, error: StorageFullError, flushed: int) -> None:
        """There is no space for records behind that one: they are kept in memory."""
        waiters, self._flush = self._flush, []
        while self._sync and self._sync[-1][0].last > flushed:
            waiters.append(self._sync.pop())
        for taken, future in waiters:
            if not future.done():
                full = StorageFullError(str(error))
                full.receipts = (taken,)
                future.set_exception(full)

    def fail(self, error: LodeqError) -> None:
        """Nothing more is written, or nothing is known of what was."""
        waiters = [*self._sync, *self._flush]
        self._sync.clear()
        self._flush.clear()
        for _, future in waiters:
            if not future.done():
                future.set_exception(type(error)(str(error)))
