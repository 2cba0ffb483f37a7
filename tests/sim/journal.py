"""A lifecycle journal on the simulated disk, and the judge of what it tells in the end.

What is true is read off the disk after every life: which commits of the shard's incarnation have
survived. Every row of events that was ever queued was overheard; those of commits that survived
must arrive, with the same bytes and in order, and no other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from support_lifecycle import LIVES

from lodeq.coalescer import event_buffer
from lodeq.coalescer.event_buffer import EventBuffer
from lodeq.coalescer.group import Group
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records.events import decode_start_row
from lodeq.engine.records.rows import decode_open, decode_ring
from lodeq.errors import ClosedError, StorageError, StorageFullError
from lodeq.repository.background import event_publisher
from lodeq.repository.state.engine_state import EngineState
from lodeq.segments.journal.waits import Ack
from lodeq.segments.lifecycle import Event, EventKind, Reader, RolledBack
from lodeq.testing import BrokenError
from lodeq.testing.simulation.world import Simulation

NUMBER_BITS = 40
KNOBS: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (event_buffer, "HELD_BYTES_MAX", (0, 300, 2000)),
    (event_publisher, "SCAN_ROWS", (1, 3)),
    (event_publisher, "MOVE_ROWS", (1, 5)),
    (event_publisher, "MOVE_BYTES", (1, 300)),
)


class SimJournal:
    """Outlives the processes that write it. ``has_faults``: it is full, or fails, now and then."""

    def __init__(self, sim: Simulation, draw: random.Random) -> None:
        self._sim = sim
        self.draw = draw
        self.has_faults = False
        self.records: list[bytes] = []
        self.durable = 0
        self.queued: dict[tuple[int, int], bytes] = {}  # by shard and commit
        self.survived: set[tuple[int, int]] = set()
        self.repeats = 0

    @contextmanager
    def overhear(self) -> Iterator[None]:
        """Every row that is queued; with sizes that make rare things common, as in ``knobs``."""
        take = EventBuffer.take

        def listen(tail: EventBuffer, group: Group) -> None:
            take(tail, group)
            if group.events:
                value = group.ops[-1][1]
                assert value is not None
                self.queued[tail.shard, group.number] = value

        with ExitStack() as stack:
            stack.enter_context(patch.object(EventBuffer, "take", listen))
            for module, name, values in KNOBS:
                if self.draw.random() < 0.3:
                    stack.enter_context(patch.object(module, name, self.draw.choice(values)))
            yield

    def open(self, state: EngineState) -> _Sink:
        """For one process."""
        return _Sink(self, self._sim.loop, state)

    def crash(self, *, is_power: bool) -> None:
        """After a life: what is left of it, and of the store."""
        if is_power:
            del self.records[self.draw.randint(self.durable, len(self.records)) :]
        self.durable = len(self.records)  # whoever opens it next syncs what it finds
        for shard, platter in enumerate(self._sim.disk.platters):
            raw = platter.rows.get(ks.OPEN)
            if raw is None:
                continue
            incarnation = decode_open(raw)
            for key, value in platter.rows.items():
                if key.startswith(ks.RING):
                    commit_seq = decode_ring(value)[0]
                    if commit_seq >> NUMBER_BITS == incarnation:
                        self.survived.add((shard, commit_seq))

    # -- the judge -------------------------------------------------------------------------

    def judge(self, *, is_whole: bool) -> None:
        """After the last life, which had no faults. ``is_whole``: no power was cut."""
        readers: dict[int, list[int]] = {}
        reader, states = Reader(), {}
        for payload in [*self.records, *self._left()]:
            said = reader.read(payload)
            self.repeats += not said
            if payload[:1] == b"N":
                self._judge_start(payload, said, is_whole=is_whole)
                continue
            shard, commit_seq = int.from_bytes(payload[2:4], "little"), _commit_of(payload)
            if (shard, commit_seq) not in self.survived:
                raise BrokenError(f"shard {shard}: commit {commit_seq:#x} is told and is gone")
            if self.queued[shard, commit_seq] != payload:
                raise BrokenError(f"shard {shard}: commit {commit_seq:#x} is told as another")
            if said:
                readers.setdefault(shard, []).append(commit_seq)
            if is_whole:
                _live(states, said)
        for shard in range(len(self._sim.disk.platters)):
            mine = sorted(n for at, n in self.queued if at == shard and (at, n) in self.survived)
            if (told := readers.get(shard, [])) != mine:
                missing = [f"{n:#x}" for n in mine if n not in told]
                raise BrokenError(f"shard {shard}: never told, or out of order: {missing[:9]}")
        if is_whole:
            self._judge_tasks(states)

    def _left(self) -> list[bytes]:
        """What the last close had no time for: the next open would move it."""
        return [
            value
            for platter in self._sim.disk.platters
            for key, value in sorted(platter.rows.items())
            if key.startswith(ks.EVENTS)
        ]

    def _judge_start(
        self, payload: bytes, said: Sequence[Event | RolledBack], *, is_whole: bool
    ) -> None:
        row = decode_start_row(payload)
        if not row.last:
            return
        base = row.last >> NUMBER_BITS << NUMBER_BITS
        gone = {n for first, last in row.missing for n in range(first, last + 1)}
        found = {n for at, n in self.survived if at == row.shard and n >> NUMBER_BITS == base >> 40}
        if found != set(range(base + 1, row.last + 1)) - gone:
            raise BrokenError(f"shard {row.shard}: the mark of {row.commit_seq:#x} is wrong")
        if is_whole and said:
            raise BrokenError(f"shard {row.shard}: a mark without a power cut: {said}")

    def _judge_tasks(self, states: dict[bytes, str | None]) -> None:
        told = {task_id for task_id, state in states.items() if state is not None}
        rows = {
            key[2:]
            for platter in self._sim.disk.platters
            for key in platter.rows
            if key.startswith(ks.TASK)
        }
        if told != rows:
            odd = [task_id.hex() for task_id in told ^ rows]
            raise BrokenError(f"the journal and the store have other tasks: {odd[:5]}")


class _Sink:
    """The journal as one process has it."""

    def __init__(self, journal: SimJournal, loop: Any, state: EngineState) -> None:
        self._journal = journal
        self._loop = loop
        self._state = state
        self._buffer: list[bytes] = []
        self._failed = False

    def _check(self) -> None:
        if self._loop.is_dead or self._failed:
            raise ClosedError("this journal takes nothing")

    async def append_many(self, payloads: Sequence[bytes], *, until: object = None) -> Ack:
        self._check()
        journal = self._journal
        if journal.has_faults and journal.draw.random() < 0.1:
            error = StorageFullError("simulated: no space")
            if journal.draw.random() < 0.5:
                self._buffer += payloads
                error.receipts = (Ack(1, 1, "buffered"),)
            raise error
        self._buffer += payloads
        return Ack(1, 1, "buffered")

    async def sync(self) -> None:
        self._check()
        journal, draw = self._journal, self._journal.draw
        if journal.has_faults and draw.random() < 0.1:
            raise StorageFullError("simulated: no space")
        journal.records += self._buffer
        self._buffer = []
        count = len(journal.records)
        future = self._state.spawner.future()
        self._state.spawner.call_later(draw.random() * 0.05, lambda: future.set_result(None))
        await future
        self._check()
        if journal.has_faults and draw.random() < 0.1:
            self._failed = True
            raise StorageError("simulated: EIO on a sync")
        journal.durable = max(journal.durable, count)

    async def close(self) -> None:
        if self._loop.is_dead or self._failed or not self._buffer:
            return
        await self.sync()


def _commit_of(payload: bytes) -> int:
    return int.from_bytes(payload[8:16], "little")


def _live(states: dict[bytes, str | None], said: Sequence[Event | RolledBack]) -> None:
    for event in said:
        assert isinstance(event, Event)
        before = states.get(event.task_id)
        allowed, after = LIVES[event.kind]
        if before not in allowed or (event.kind is EventKind.ENQUEUED and event.task_id in states):
            raise BrokenError(f"task {event.task_id}: {event.kind.name} although it is {before}")
        states[event.task_id] = after
