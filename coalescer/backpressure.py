"""Backpressure: the line of callers while ``submit_queue_max`` submissions wait already.

The first to come is the first to be admitted, and each caller is woken once. For an admitted
caller one submission is *reserved* until it has had its turn of the event loop, in which it submits
or gives up. Nobody else gets that one meanwhile, and nobody overtakes: as long as anybody is in the
line or on the way out of it, newcomers stand behind.

A call that submits to several shards stands in one line after the other. It keeps nothing
reserved on one shard while it waits for another: a stalled shard must not use up the capacity of
those that are well. So it may find more waiting on the earlier ones than ``submit_queue_max``, by
as many submissions as the last line admitted at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ..engine.runtime.event_loop import Future, Spawner

__all__ = ["SubmitLine"]


class SubmitLine:
    """The callers of one shard who wait to submit; see the module's essay.

    Its length is how many wait; ``futures`` says without a call whether anybody does.
    """

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
        """Make an empty line.

        Args:
            spawner: the event loop.
            free: called a turn after callers have left the line; it admits the next ones.
        """
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
        """Stand in line until admitted. Submit before the next ``await``: it is reserved till then.

        A caller that does not submit (it was cancelled, or has lost its lease) passes it on.
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
        """Release what was reserved: callers who left a turn ago have submitted, or never will."""
        self.queued -= self._left
        self.reserved -= self._left_reserved
        self._left = self._left_reserved = 0
        self._free()

    def admit(self, free: int) -> None:
        """Admit callers while more submissions fit than are reserved already.

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
        """Admit everybody: the shard takes no more, and callers find that out by trying."""
        self.admit(len(self.futures) + self.reserved)
