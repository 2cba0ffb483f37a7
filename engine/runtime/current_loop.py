"""The adapter for the event loop that is running: asyncio or trio."""

from __future__ import annotations

import sys

from ...errors import UsageError
from .event_loop import Spawner

__all__ = ["current_spawner"]


def current_spawner() -> Spawner:
    """The adapter for the loop that is running here; ``UsageError`` where none is."""
    import asyncio  # noqa: PLC0415 - only what runs is imported

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        from .on_asyncio import AsyncioSpawner  # noqa: PLC0415

        return AsyncioSpawner(loop)
    if "trio" in sys.modules:
        import trio  # noqa: PLC0415

        try:
            trio.lowlevel.current_trio_token()
        except RuntimeError:
            pass
        else:
            from .on_trio import TrioSpawner  # noqa: PLC0415

            return TrioSpawner()
    raise UsageError(
        "no event loop is running here: use 'async with lodeq.open(...)' inside asyncio or trio, "
        "or lodeq.sync.open(...) in a script"
    )
