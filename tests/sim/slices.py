"""Work in slices that really yields, in stores where production would do it in one turn.

Rebuilds, trims, sweeps, searches and bulk acts go on for some milliseconds and then give the loop
a turn. The stores of a simulation are so small that nothing ever would, and so nobody ever came in
between. In a *sliced* world every turn is over at once, slices have a row or a few, and a turn that
is given to the others is one callback, many, or some time in which timers run.

A quarter of the seeds are such worlds. The draws are of their own: all others are what they were.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from lodeq.engine.runtime.on_asyncio import AsyncioSpawner
from lodeq.repository.background import (
    body_liveness,
    dead_trim,
    event_publisher,
    expiry_sweep,
    history_trim,
    leadership,
    reaper,
)
from lodeq.repository.state import pages, turns
from lodeq.repository.tasks import follower, key_waits, lease_rows
from lodeq.repository.tasks.operators import admin, bulk_acts
from lodeq.repository.workflows import acts, joins, other_leaders

SHARE: Final = 0.25
OVER: Final = -1.0  # seconds that a turn lasts: none
SIZES: Final = (1, 1, 2, 5)
# Each name where it is used: some modules have taken it from another one.
SLICES: Final[tuple[tuple[Any, str], ...]] = (
    (pages, "SLICE"),
    (follower, "SLICE"),
    (leadership, "SLICE"),
    (reaper, "SLICE"),
    (reaper, "LEASES"),
    (reaper, "TENANT_QUEUES"),
    (expiry_sweep, "SLICE"),
    (expiry_sweep, "SLICE_FINAL"),
    (dead_trim, "SLICE"),
    (dead_trim, "PAGE"),
    (dead_trim, "TENANTS"),
    (history_trim, "SLICE"),
    (history_trim, "SCANNED"),
    (history_trim, "TENANT_QUEUES"),
    (key_waits, "SLICE"),
    (lease_rows, "SLICE"),
    (admin, "SLICE"),
    (bulk_acts, "_SLICE"),
    (joins, "SLICE"),
    (acts, "SLICE"),
    (other_leaders, "SLICE"),
    (event_publisher, "MOVE_ROWS"),
    (event_publisher, "SCAN_ROWS"),
    (body_liveness, "SCAN_ROWS"),
)
STEPS: Final = (1, 5, 40)  # callbacks, at most, in one turn that is given
TURN_S: Final = 0.2  # … or seconds


class Slices:
    """Slices of one world; draws of its own."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(f"{seed} slices")
        self.is_on = draw.random() < SHARE
        self._steps = draw.choice((*STEPS, 0))
        self.given = 0  # turns

    def delay(self) -> float:
        """The delay of a task in a sliced world: some fall due while a shard is gained."""
        return self.draw.choice((0.0, 0.0, 0.1, 1.0, 3.0)) if self.is_on else 0.0

    def tenant(self) -> str:
        """The tenant of a task; there may be more than one slice of them."""
        return self.draw.choice(("", "", "a", "b", "c", "d")) if self.is_on else ""

    @contextmanager
    def turned(self) -> Iterator[None]:
        """While the world runs."""
        with ExitStack() as stack:
            if self.is_on:
                for name in ("TURN_S", "BATCH_S"):
                    stack.enter_context(patch.object(turns, name, OVER))
                for module, name in SLICES:
                    size = self.draw.choice(SIZES)
                    stack.enter_context(patch.object(module, name, size))
                stack.enter_context(patch.object(AsyncioSpawner, "checkpoint", self._checkpoint()))
            yield

    def _checkpoint(self) -> Any:
        """A turn of the loop, or several."""
        draw = self.draw

        async def checkpoint(_: AsyncioSpawner) -> None:
            self.given += 1
            if not self._steps:
                await asyncio.sleep(TURN_S * draw.random() ** 3)
            else:
                for _ in range(draw.randint(1, self._steps)):
                    await asyncio.sleep(0)

        return checkpoint
