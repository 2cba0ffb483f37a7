"""Long work on the loop, in slices: each as much as fits a few milliseconds.

How many rows fit nobody knows before: a row may name thousands, or lie behind a million that were
deleted. So work comes as a generator that yields often, and the clock says when a turn is over.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

from .engine_state import EngineState

__all__ = ["TURN_S", "in_slices"]

_T = TypeVar("_T")

TURN_S: Final = 0.004
STEPS_MAX: Final = 256  # in a turn, under a clock that is moved by hand


async def in_slices(core: EngineState, work: Generator[None, None, _T]) -> _T:
    """What ``work`` returns, with turns of the loop in between.

    Cancellation: between two turns; the generator is closed.
    """
    clock = core.clock
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
            await core.spawner.checkpoint()
            core.check()
    finally:
        work.close()
