"""Large answers, spread over the turns of the loop, for all links of a server together.

Each large answer is read, packed and copied in one go. Many that were asked for at once would all
be made in one turn, and whoever asks for little meanwhile, a claim, would wait for all of them. So
a turn makes ``TURN_BYTES`` of answers, or one; the others come in the turns behind it, in the order
in which they were asked for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

__all__ = ["TURN_BYTES", "AnswerTurns"]

TURN_BYTES: Final = 64 << 10


class AnswerTurns:
    """``await begin()`` before a call is answered; then say how long its answer is.

    Args:
        loop: that of the server.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left_bytes = TURN_BYTES
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False  # a turn is to come that has room again

    async def begin(self) -> None:
        """Wait for a turn with room. Cancellation: nothing is held."""
        if self._left_bytes > 0 and not self._waiting:
            return
        future = self._loop.create_future()
        self._waiting.append(future)
        await future

    def answered(self, n_bytes: int) -> None:
        """An answer of so many bytes was made in this turn."""
        self._left_bytes -= n_bytes
        if self._left_bytes <= 0 and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        """A turn without any: a claim takes two or three, and should meet one large answer."""
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        """A new turn: one of those who wait, and whoever comes once nobody does."""
        self._left_bytes = TURN_BYTES
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():  # else it was cancelled
                future.set_result(None)
                break
        self._is_due = bool(self._waiting)
        if self._is_due:
            self._loop.call_soon(self._pass)
