"""An event loop on which a second takes some milliseconds.

Timers of the engine (retries, sync intervals, patience) run by the loop's own time. Real files and
real threads do not, so time cannot be virtual here; it is only faster, and nothing sleeps.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any

SPEED = 50.0


class _QuickSelector(selectors.DefaultSelector):  # type: ignore[valid-type, misc]
    def select(self, timeout: float | None = None) -> Any:
        return super().select(None if timeout is None else timeout / SPEED)


class QuickLoop(asyncio.SelectorEventLoop):
    """Its seconds are ``SPEED`` times shorter than others'."""

    def __init__(self) -> None:
        super().__init__(_QuickSelector())

    def time(self) -> float:
        return time.monotonic() * SPEED


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """``asyncio.run`` on a quick loop."""
    with asyncio.Runner(loop_factory=QuickLoop) as runner:
        return runner.run(main)
