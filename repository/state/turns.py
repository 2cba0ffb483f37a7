"""Long work on the loop, in turns of a few milliseconds.

The number of rows that fit in a turn cannot be predicted: a row may name thousands, or lie behind
a million that were deleted. So the clock ends it. ``Turns`` is for coroutines that may pause
between atomic sections; ``in_slices`` runs a generator that yields often; ``PacedGroups`` is for
work that writes many rows, so that callers do not wait long behind its commits.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, TypeVar

from ...coalescer.group import Group
from ...errors import LodeqError
from ..model.tally import Tally
from .engine_state import EngineState
from .queue_state import Shard

__all__ = ["TURN_S", "PacedGroups", "Turns", "in_slices"]

_T = TypeVar("_T")

TURN_S: Final = 0.004
STEPS_MAX: Final = 256  # after which a turn ends even if the clock (one moved by hand) stands still
BATCH_S: Final = 0.0004
BATCH_BYTES_MAX: Final = 256 << 10  # a redrive may write whole records, which are large


class Turns:
    """The turns of one piece of work. Under a clock moved by hand no turn is ever over.

    After a pause, read everything again: other callers may have changed the engine.
    """

    __slots__ = ("_state", "_until")

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._until = state.clock.mono() + TURN_S

    @property
    def is_over(self) -> bool:
        """Whether this turn has lasted ``TURN_S``."""
        return self._state.clock.mono() >= self._until

    async def give(self) -> None:
        """Yield to the event loop if the turn is over, and start a new one."""
        if self.is_over:
            await self.give_now()

    async def give_now(self) -> None:
        """Yield to the event loop, and start a new turn."""
        await self._state.spawner.checkpoint()
        self._until = self._state.clock.mono() + TURN_S


class PacedGroups:
    """The groups of one piece of work that writes to a shard, each committed before the next.

    A caller's enqueue, claim and complete may each wait for one group and its commit. So a group
    ends after 0.4 ms, or after half the time of the last commit if that is longer, at most 4 ms;
    and at 256 KiB. Under a clock moved by hand only its bytes end it.

    A context manager, also several times: what is queued when it is left is committed. An error of
    ours waits for that, for nobody could take it back.

    Args:
        state: of the engine.
        shard: that is written to.
        tally: gets what ``changed`` was called for, once that is committed.
    """

    __slots__ = (
        "_bytes",
        "_changed",
        "_group",
        "_queued",
        "_shard",
        "_state",
        "_tally",
        "_until",
        "_wait_s",
    )

    def __init__(self, state: EngineState, shard: Shard, tally: Tally | None = None) -> None:
        self._state = state
        self._shard = shard
        self._tally = Tally() if tally is None else tally
        self._changed = 0
        self._group: Group | None = None
        self._wait_s = self._until = 0.0
        self._bytes = self._queued = 0

    async def group(self) -> Group:
        """The group for the next task's rows. Do not ``await`` before the rows are queued."""
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc is None:
            await self.commit()
        elif isinstance(exc, LodeqError):
            with suppress(LodeqError):  # the first one says what is wrong
                await self.commit()

    def changed(self) -> None:
        """Count a task whose rows are in the group."""
        self._changed += 1

    async def commit(self) -> None:
        """Commit the open group, if there is one, and wait for it."""
        group, self._group = self._group, None
        changed, self._changed = self._changed, 0
        if group is not None:
            self._count(group)
            began = self._state.clock.mono()
            await self._shard.coalescer.wait(group)
            self._wait_s = self._state.clock.mono() - began
            self._tally.count += changed

    def _count(self, group: Group) -> None:
        self._bytes += group.count_from(self._queued)
        self._queued = len(group.ops)


async def in_slices(state: EngineState, work: Generator[None, None, _T]) -> _T:
    """Run the generator ``work`` in turns, and return its result.

    Cancellation: takes effect between two turns, and closes the generator.
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
