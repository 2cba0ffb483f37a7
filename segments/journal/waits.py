"""Who waits for records to be flushed or fsynced, and what each of them gets."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal, NamedTuple, Protocol

from ...engine.runtime.event_loop import Future, Spawner
from ...errors import LodeqError, StorageFullError, UsageError

__all__ = ["Ack", "State", "Waiter", "Waiters", "check_loop"]

State = Literal["buffered", "flushed", "fsynced"]


class Ack(NamedTuple):
    """Records ``first`` to ``last`` are in the journal.

    ``state``: ``buffered`` in this process, ``flushed`` to the kernel (survives the process), or
    ``fsynced`` (survives the machine).
    """

    first: int
    last: int
    state: State


class Waiter(Protocol):
    """A future of the loop, or one that a thread waits for."""

    def done(self) -> bool:
        """Whether it has a result, an exception, or was cancelled by its waiter."""

    def set_result(self, value: Any, /) -> None:
        """Wake the waiter with a value."""

    def set_exception(self, error: BaseException, /) -> None:
        """Wake the waiter with an error."""


def check_loop(spawner: Spawner) -> None:
    """Raise ``UsageError`` unless called from the loop (and thread) that the journal belongs to."""
    try:
        spawner.check()
    except UsageError as exc:
        raise UsageError(
            "this journal belongs to another event loop or thread: use journal.threads from "
            "threads, or lodeq.sync.open_journal where no event loop runs"
        ) from exc


class Waiters:
    """In the order of their records."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._flush: list[tuple[Ack, Waiter]] = []
        self._sync: deque[tuple[Ack, Waiter]] = deque()

    @property
    def has_sync(self) -> bool:
        """Whether anybody waits for a sync."""
        return bool(self._sync)

    def add(self, taken: Ack, state: Literal["flushed", "fsynced"]) -> Future:
        """Done when those records are in that state."""
        future = self._spawner.future()
        self.wait_with(future, taken, state)
        return future

    def wait_with(self, waiter: Waiter, taken: Ack, state: Literal["flushed", "fsynced"]) -> None:
        """The same for one that is there already. Called in the order of their records."""
        (self._flush if state == "flushed" else self._sync).append((taken, waiter))

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
