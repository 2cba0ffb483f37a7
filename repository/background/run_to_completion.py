"""Blocking work whose result must not be lost when its caller is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...engine.runtime.event_loop import Spawner
from ...engine.runtime.shielded import await_shielded
from ...errors import ClosedError

__all__ = ["run_to_completion"]

T = TypeVar("T")


async def run_to_completion(
    spawner: Spawner, work: Callable[[], T], undo: Callable[[T], None]
) -> T:
    """Run ``work`` in a thread and wait for its end, also if the caller is cancelled meanwhile.

    Then ``undo`` gets its result, on the loop, and the cancellation goes on.

    Raises:
        ClosedError: the event loop stopped before the thread had ended.
    """
    results: list[T] = []
    failures: list[Exception] = []

    async def run() -> None:
        try:
            results.append(await spawner.run_in_thread(work))
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            failures.append(error)

    cancelled = await await_shielded(spawner.spawn(run, "lodeq-checkpoint").join)
    if cancelled is not None:
        for result in results:
            undo(result)
        raise cancelled
    if failures:
        raise failures[0]
    if not results:
        raise ClosedError("the engine's event loop stopped while this call waited")
    return results[0]
