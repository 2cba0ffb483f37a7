"""What a leader puts into the log of one shard: merged, one append at a time, answered in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..coalescer.replicator import Done
from ..engine.runtime.event_loop import TaskHandle
from ..engine.store.port import Op, ops_bytes
from ..errors import CommitUnknownError, LodeqError, LogRolledBackError, NotLeaderError
from .node import Node
from .port import FencedError
from .record import NONCE_BYTES, Batch, LogRecord, entries_of
from .waiting import Signal

__all__ = ["Proposals"]

ENTRY_OVERHEAD_BYTES = 64
MERGE_TURNS = 3  # of the loop behind an answer: those it wakes are in the next record, not after it
BATCHES_MAX = 1024  # of one record: what is applied in one turn of the loop


class _Proposal(NamedTuple):
    term: int
    batch: Batch
    size: int
    done: Done


class Proposals:
    """Proposals of one shard, from ``propose`` to ``done``.

    Args:
        node: whose they are.
        shard: its index.
        entered: called with the last index of a record that is in the log and about its bytes,
            before anybody is answered.
        failed: called when the log has refused a record, or not answered, after everybody was.
    """

    def __init__(
        self,
        node: Node,
        shard: int,
        entered: Callable[[int, int], None],
        failed: Callable[[LodeqError], None],
    ) -> None:
        self._node = node
        self._shard = shard
        self._entered = entered
        self._failed = failed
        self._queue: deque[_Proposal] = deque()
        self._has_work = Signal(node.waiting)
        self._task: TaskHandle | None = None
        self.is_sending = False
        self.term = 0  # of this leader; 0: it leads no more
        self.last = 0  # index of the last entry in the log

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.is_sending and not self._queue

    def begin(self, term: int, last: int) -> None:
        """Lead: what is proposed from now on follows the entry ``last``."""
        self.term, self.last = term, last

    def end(self) -> None:
        """Lead no more: what has not entered the log is refused, after what is under way."""
        self.term = 0
        if not self.is_sending:
            self._refuse()

    def add(self, commit_seq: int, ops: tuple[Op, ...], done: Done) -> None:
        """Take a proposal; it enters the log in a later turn of the loop."""
        batch = Batch(commit_seq, ops)
        self._queue.append(_Proposal(self.term, batch, ops_bytes(ops) + ENTRY_OVERHEAD_BYTES, done))
        if self._task is None:
            name = f"lodeq-log-append-{self._shard}"
            self._task = self._node.waiting.spawner.spawn(self._run, name)
        self._has_work.set()

    async def close(self) -> None:
        """Send nothing any more; what is under way has been answered, or nobody waits for it."""
        if self._task is not None:
            self._task.cancel()
            await self._task.join()

    async def _run(self) -> None:
        while True:
            await self._has_work.wait()
            while self._queue:
                if self._queue[0].term != self.term:
                    self._refuse()
                else:
                    await self._send(self._take())
                    for _ in range(MERGE_TURNS):
                        await self._node.waiting.spawner.checkpoint()

    def _take(self) -> list[_Proposal]:
        """Consecutive proposals for one record."""
        taken = [self._queue.popleft()]
        size = taken[0].size
        while self._queue and len(taken) < BATCHES_MAX and self._queue[0].term == self.term:
            size += self._queue[0].size
            if size > self._node.options.merge_bytes_max:
                break
            taken.append(self._queue.popleft())
        return taken

    async def _send(self, taken: list[_Proposal]) -> None:
        batches = tuple(proposal.batch for proposal in taken)
        nonce = self._node.rng.bytes(NONCE_BYTES)
        record = LogRecord(nonce, self._shard, self.term, self.last + 1, batches, self._node.level)
        self.is_sending = True
        failure: LodeqError | None = None
        try:
            await self._node.log.append(record)
        except LodeqError as error:
            failure = error
        finally:
            self.is_sending = False
        if failure is None:
            if self.term == record.term:
                self.last = record.last
            self._entered(record.last, sum(proposal.size for proposal in taken))
            for proposal, entry in zip(taken, entries_of(record), strict=True):
                proposal.done(entry)
        else:
            outcome = self._outcome(failure)
            for proposal in taken:
                proposal.done(outcome)
            self._failed(failure)
        if not self.term:
            self._refuse()

    def _outcome(self, failure: LodeqError) -> LodeqError:
        if isinstance(failure, FencedError):
            return self._refusal()
        if isinstance(failure, LogRolledBackError):
            self._node.stop(failure)
        return CommitUnknownError(
            f"shard {self._shard}: the log has not said whether this is committed ({failure}); "
            "retry with the same dedup key"
        )

    def _refuse(self) -> None:
        """Answer what has not entered the log, and was proposed by a term that is over."""
        while self._queue and self._queue[0].term != self.term:
            self._queue.popleft().done(self._refusal())

    def _refusal(self) -> NotLeaderError:
        return NotLeaderError(f"this node does not lead shard {self._shard} any more: retry")
