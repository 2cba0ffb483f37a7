"""The lifecycle journals of a simulated cluster: each node writes its own, of the same events."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from lodeq.errors import ClosedError, StorageError
from lodeq.segments.journal.waits import Ack
from lodeq.segments.lifecycle import Reader


class NodeJournal:
    """The journal of one node; outlives its processes.

    ``is_whole`` until the node's store was replaced by a copy: from then on events are missing.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.records: list[bytes] = []
        self.durable = 0
        self.is_whole = True

    def open(self, state: Any, process: Any) -> _Sink:
        """For one process."""
        return _Sink(self, state, process)

    def crash(self, *, has_power: bool) -> None:
        if not has_power:
            del self.records[self.draw.randint(self.durable, len(self.records)) :]
        self.durable = len(self.records)

    def commits(self) -> dict[tuple[int, int], bytes]:
        """Records by shard and commit, as a reader gets them: in order, without repeats."""
        reader, found = Reader(), {}
        for record in self.records:
            if reader.read(record):
                shard, number = int.from_bytes(record[2:4], "little"), record[8:16]
                found[shard, int.from_bytes(number, "little")] = record
        return found


class _Sink:
    def __init__(self, journal: NodeJournal, state: Any, process: Any) -> None:
        self._journal = journal
        self._state = state
        self._process = process
        self._buffer: list[bytes] = []
        self._has_failed = False

    def _check(self) -> None:
        if self._process.is_dead or self._has_failed:
            raise ClosedError("this journal takes nothing")

    async def append_many(self, payloads: Sequence[bytes], *, until: object = None) -> Ack:
        self._check()
        self._buffer += payloads
        return Ack(1, 1, "buffered")

    async def sync(self) -> None:
        self._check()
        journal = self._journal
        journal.records += self._buffer
        self._buffer = []
        count, future = len(journal.records), self._state.spawner.future()
        self._state.spawner.call_later(
            journal.draw.random() * 0.05, lambda: future.set_result(None)
        )
        await future
        self._check()
        if journal.draw.random() < 0.02:
            self._has_failed = True
            raise StorageError("simulated: EIO on a sync")
        journal.durable = max(journal.durable, count)

    async def close(self) -> None:
        if not (self._process.is_dead or self._has_failed or not self._buffer):
            await self.sync()
