"""The line of callers who wait because ``submit_queue_max`` submissions are waiting already.

First come, first admitted, each woken once: whoever is admitted has its room *reserved* until it
has had its turn of the event loop, in which it queues its submission or gives up. Nobody else is
admitted to that room meanwhile, and nobody who comes later overtakes: as long as anybody is in the
line or on the way out of it, newcomers stand behind.

A call that needs room on several shards stands in one line after the other. It keeps nothing
reserved on one shard while it waits for another: a stalled shard must not use up the room of those
that are well. So it may find more waiting on the earlier ones than ``submit_queue_max``, by as many
submissions as the last line admitted at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ..engine.runtime.event_loop import Future, Spawner

__all__ = ["RoomLine"]


class RoomLine:
    """See the module's essay. True while somebody waits in it."""

    __slots__ = (
        "_admitted",
        "_free",
        "_left",
        "_left_reserved",
        "_spawner",
        "futures",
        "queued",
        "reserved",
    )

    def __init__(self, spawner: Spawner, free: Callable[[], None]) -> None:
        """Make an empty line; ``free`` is called whenever somebody has left it."""
        self._spawner = spawner
        self._free = free
        self._admitted: set[Future] = set()  # woken, and yet to run
        self._left = self._left_reserved = 0  # callers who ran since ``_leave`` was last called
        self.futures: OrderedDict[Future, None] = OrderedDict()
        self.queued = 0  # in the line, or admitted and not out of it yet
        self.reserved = 0  # admitted, and may not have queued yet

    def __len__(self) -> int:
        return len(self.futures)

    async def wait(self) -> None:
        """Stand in line until admitted. Queue before the next ``await``: the room is reserved.

        Whoever does not (cancelled, its lease lost) passes it on by that.
        """
        future = self._spawner.future()
        self.futures[future] = None
        self.queued += 1
        try:
            await future
        finally:
            self.futures.pop(future, None)  # gave up: over a stalled store nobody else removes it
            if not self._left:
                self._spawner.call_soon(self._leave)
            self._left += 1
            if future in self._admitted:
                self._admitted.remove(future)
                self._left_reserved += 1

    def _leave(self) -> None:
        """A turn after they ran: what those who left have not queued by now they never will."""
        self.queued -= self._left
        self.reserved -= self._left_reserved
        self._left = self._left_reserved = 0
        self._free()

    def admit(self, free: int) -> None:
        """Let callers go on while there is room for more than is reserved already.

        Args:
            free: submissions that fit, reserved ones included.
        """
        futures = self.futures
        free -= self.reserved
        while futures and free > 0:
            future, _ = futures.popitem(last=False)
            if not future.done():
                self._admitted.add(future)
                self.reserved += 1
                free -= 1
                future.set_result(None)

    def admit_all(self) -> None:
        """The shard takes no more: everybody finds out by trying."""
        self.admit(len(self.futures) + self.reserved)
