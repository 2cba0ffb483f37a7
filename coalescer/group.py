"""A group: the submissions that share one RocksDB write, one WAL append, one commit number.

A group is *open* while submitters add to it, *sealed* when the commit loop takes it or it is
full, *applied* when it has been written, *durable* when a later sync has covered it.

Sealing is where the counters get into the batch. Submissions change the live counters and
queue their rows in one atomic section, groups are filled strictly one after another, and
nothing can be queued between the last submission of a group and its sealing; so the live
counters *at that moment* are exactly what groups up to this one add up to. Copying them later, at
commit time, would let counts run ahead of rows (ADR counters-at-seal).

An operation whose rows are queued by more than one step queues them under ``with group:``. Left
by an exception with some of them queued, the group is *torn*: it cannot be sealed, so nothing of
it is ever written (ADR a-torn-group-is-never-written). Encode first, and it does not come to that.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ..engine.records.rows import CounterOwner, pack_group_end
from ..engine.runtime.event_loop import Future
from ..engine.store.port import Op, ops_bytes
from ..errors import InvariantError

__all__ = ["Group"]


class Group:
    """One group; see the module's essay. Fields are plain on purpose: this is the hot path."""

    __slots__ = (
        "_marks",
        "bytes",
        "dirty",
        "durable_waiters",
        "events",
        "expiry",
        "final",
        "fresh",
        "has_bodies",
        "indexed",
        "number",
        "ops",
        "sealed",
        "submissions",
        "torn",
        "waiters",
        "whose",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.ops: list[Op] = []
        self.bytes = 0
        self.submissions = 0
        self.sealed = False
        self.has_bodies = False  # a payload in a file: see ``body_sync_barrier``
        self.dirty: dict[CounterOwner, None] = {}
        self.expiry: dict[int, list[bytes]] = {}
        # Ids of ended tasks, by when their results are due (ms), whose counter has them, and the
        # kind of their expiry entries.
        self.final: dict[tuple[int, CounterOwner, bytes], list[bytes]] = {}
        # Index rows that this group puts for the first time, and where: see ``replace_fresh``.
        self.fresh: dict[bytes, int] = {}
        # (future, value): gets the value when the group is applied, in fsync mode when durable.
        self.waiters: list[tuple[Future, Any]] = []
        self.durable_waiters: list[tuple[Future, Any]] = []  # … when durable, in nosync mode
        # Packed runs of events (engine/records/events.py). None: there is no lifecycle journal.
        self.events: list[bytes] | None = None
        self.torn: BaseException | None = None  # the exception that ended an operation halfway
        self._marks: list[tuple[int, int]] = []  # operations and events before each open section
        self.whose = 0  # as the ring row says it
        self.indexed = 0  # so many operations have been read by the overlay

    def __enter__(self) -> None:
        events = self.events
        self._marks.append((len(self.ops), 0 if events is None else len(events)))

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        operations, events = self._marks.pop()
        if exc is None:
            return
        if len(self.ops) > operations:
            self.torn = exc
        elif self.events is not None:  # nothing has happened
            del self.events[events:]

    def count_from(self, start: int) -> int:
        """Count the operations from ``start`` on as bytes of the group; how many they are.

        For a submission that did not say them beforehand.
        """
        size = ops_bytes(self.ops[start:])
        self.bytes += size
        return size

    def replace_fresh(self, key: bytes, op: Op) -> bool:
        """Replace by ``op`` the put of a row that this very group was going to create.

        A row put and deleted by one atomic batch might as well never be written: a task that is
        claimed in the tick of its enqueue costs no index row (ADR rows-that-never-were). False,
        with nothing changed: the row is an older one, or somebody has read it already.
        """
        at = self.fresh.pop(key, None)
        if at is None or at < self.indexed:  # what has been read stays visible
            return False
        self.ops[at] = op
        return True

    def seal(self, seq: int) -> None:
        """Add counters, expiry lists and the ring row. Nothing may be queued afterwards.

        ``seq`` is the engine's hybrid clock, which the ring row keeps. ``InvariantError`` if the
        group is torn.
        """
        if self.torn is not None:
            reason = f"an operation ended halfway ({type(self.torn).__name__})"
            raise InvariantError(f"{reason}: nothing of its group is written") from self.torn
        pack_group_end(self.ops, self.number, seq, self.dirty, self.final, self.expiry, self.whose)
        self.sealed = True
