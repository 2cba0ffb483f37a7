"""Test bench of an app: its store in memory, its clock moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..repository.api.engine import Engine
from .clock import ManualClock
from .engine import open

if TYPE_CHECKING:
    from ..service.worker.app import App

__all__ = ["Bench", "worker"]


@dataclass(frozen=True, slots=True)
class Bench:
    """An app, its engine and its clock: ``async with lodeq.testing.worker(app) as bench:``."""

    app: App
    engine: Engine
    clock: ManualClock


@asynccontextmanager
async def worker(
    app: App, *, clock: ManualClock | None = None, **open_options: Any
) -> AsyncIterator[Bench]:
    """Put an app on an engine in memory; ``await app.drain()`` runs what is ready.

    ::

        async with lodeq.testing.worker(app) as bench:
            await send.enqueue("a@example.org")
            assert (await app.drain()).completed == 1
            bench.clock.advance(60)

    The store that the app names is not touched. Its ``setup`` is entered; cron functions tick as
    the clock moves, and the next ``drain`` enqueues the ticks.

    Args:
        app: a ``lodeq.worker.App`` that is not open.
        clock: an existing one; a new one by default.
        open_options: options of ``lodeq.testing.open``.

    Durability: none. Cancellation: as the calls inside.
    """
    clock = ManualClock() if clock is None else clock
    async with open(clock=clock, **open_options) as engine, app.use(engine), app.prepared():
        yield Bench(app, engine, clock)
