"""The line of callers who wait because ``queue_max`` submissions are waiting already."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ..engine.spawner import Future, Spawner

__all__ = ["RoomLine"]


class RoomLine:
    """First come, first admitted. True while somebody is in it."""

    __slots__ = ("_spawner", "futures")

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self.futures: OrderedDict[Future, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.futures)

    async def wait(self, leave: Callable[[], None]) -> None:
        """Stand in line until admitted; ``leave`` runs a turn after the caller has gone on.

        Whoever is admitted may not use its place (cancelled, its lease lost): the next in line
        looks once it has had its turn.
        """
        future = self._spawner.future()
        self.futures[future] = None
        try:
            await future
        finally:
            self.futures.pop(future, None)  # gave up: over a stalled store nobody else removes it
            self._spawner.call_soon(leave)

    def admit(self, free: int) -> None:
        """Let ``free`` callers go on."""
        futures = self.futures
        while futures and free > 0:
            future, _ = futures.popitem(last=False)
            if not future.done():
                future.set_result(None)
                free -= 1

    def admit_all(self) -> None:
        """The shard takes no more: everybody finds out by trying."""
        self.admit(len(self.futures))
