"""Long work on the loop, in turns of a few milliseconds.

Nobody knows beforehand how many rows fit a turn: a row may name thousands, or lie behind a million
that were deleted. So the clock says when a turn is over. ``Turns`` is for coroutines that need no
atomic section; ``in_slices`` runs a generator that yields often; ``PacedGroups`` is for those that
write much, where callers wait for the writes as well.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

from ...coalescer.group import Group
from .engine_state import EngineState
from .queue_state import Shard

__all__ = ["TURN_S", "PacedGroups", "Turns", "in_slices"]

_T = TypeVar("_T")

TURN_S: Final = 0.004
STEPS_MAX: Final = 256  # in a turn, under a clock that is moved by hand
BATCH_S: Final = 0.0004
BATCH_BYTES_MAX: Final = 256 << 10  # a redrive may write whole records: then fewer share a batch


class Turns:
    """The turns of one piece of work. Under a clock moved by hand no turn is ever over.

    Whoever gives others a turn finds a changed engine: nothing read before may decide anything.
    """

    __slots__ = ("_state", "_until")

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._until = state.clock.mono() + TURN_S

    @property
    def is_over(self) -> bool:
        """Whether it is time for the others."""
        return self._state.clock.mono() >= self._until

    async def give(self) -> None:
        """Let the others go first, if it is time."""
        if self.is_over:
            await self.give_now()

    async def give_now(self) -> None:
        """Let the others go first."""
        await self._state.spawner.checkpoint()
        self._until = self._state.clock.mono() + TURN_S


class PacedGroups:
    """The batches of one piece of work that writes to a shard, each committed before the next.

    A caller of the same loop waits for the work of a batch and for its commit, three times in a
    cycle. So a batch ends after 0.4 ms; later where the last commit took longer than that, as on a
    slow disk, or beside many callers: then the work takes about as much as they do. Under a clock
    moved by hand only its bytes end a batch.
    """

    __slots__ = ("_bytes", "_group", "_queued", "_shard", "_state", "_until", "_wait_s")

    def __init__(self, state: EngineState, shard: Shard) -> None:
        self._state = state
        self._shard = shard
        self._group: Group | None = None
        self._wait_s = self._until = 0.0
        self._bytes = self._queued = 0

    async def group(self) -> Group:
        """The group that the next task's rows go into; no wait may be between this and them."""
        group = self._group
        if group is not None:
            self._count(group)
            if self._bytes >= BATCH_BYTES_MAX or self._state.clock.mono() >= self._until:
                await self.commit()
                self._state.check()
                group = None
        if group is None:
            held_s = min(max(BATCH_S, self._wait_s / 2), TURN_S)
            self._until = self._state.clock.mono() + held_s
            self._bytes = 0
            group = self._group = self._shard.coalescer.begin()
        self._queued = len(group.ops)
        return group

    async def commit(self) -> None:
        """Wait until what was written is committed."""
        group, self._group = self._group, None
        if group is not None:
            self._count(group)
            began = self._state.clock.mono()
            await self._shard.coalescer.wait(group)
            self._wait_s = self._state.clock.mono() - began

    def _count(self, group: Group) -> None:
        self._bytes += group.count_from(self._queued)
        self._queued = len(group.ops)


async def in_slices(state: EngineState, work: Generator[None, None, _T]) -> _T:
    """Run ``work`` with turns of the loop in between; what it returns.

    Cancellation: between two turns; the generator is closed.
    """
    clock = state.clock
    try:
        while True:
            ends = clock.mono() + TURN_S
            for _ in range(STEPS_MAX):
                try:
                    next(work)
                except StopIteration as end:
                    result: _T = end.value
                    return result
                if clock.mono() >= ends:
                    break
            await state.spawner.checkpoint()
            state.check()
    finally:
        work.close()
