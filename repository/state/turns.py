"""Long work on the loop, in turns of a few milliseconds.

Nobody knows beforehand how many rows fit a turn: a row may name thousands, or lie behind a million
that were deleted. So the clock says when a turn is over. ``Turns`` is for coroutines that need no
atomic section; ``in_slices`` runs a generator that yields often.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

from .engine_state import EngineState

__all__ = ["TURN_S", "Turns", "in_slices"]

_T = TypeVar("_T")

TURN_S: Final = 0.004
STEPS_MAX: Final = 256  # in a turn, under a clock that is moved by hand


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
