"""Turns of the loop for work that is long but needs no atomic section: by the time it has taken."""

from __future__ import annotations

from typing import Final

from .engine_state import EngineState

__all__ = ["TURN_S", "Turns"]

TURN_S: Final = 0.004


class Turns:
    """Of one piece of work. Where the clock is moved by hand, no time passes and no turn is given.

    Whoever gives a turn finds a changed engine after it: nothing read before may decide anything.
    """

    __slots__ = ("_core", "_until")

    def __init__(self, core: EngineState) -> None:
        self._core = core
        self._until = core.clock.mono() + TURN_S

    @property
    def is_over(self) -> bool:
        """Whether it is time for the others."""
        return self._core.clock.mono() >= self._until

    async def give(self) -> None:
        """Let the others go first, if it is time."""
        if self.is_over:
            await self.give_now()

    async def give_now(self) -> None:
        """Let the others go first."""
        await self._core.spawner.checkpoint()
        self._until = self._core.clock.mono() + TURN_S
