"""The link of an asyncio client: opens the connection, and another when that is lost."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any

from ...errors import ClosedError, InvariantError
from ..calls import CLOSED, FORM, Call
from .connection import FramedConnection
from .entries import AnswerLostError, NotBegunError, SilentError, read_answer
from .target import TRIES, Doubt, FramedTarget, GivenUp

__all__ = ["FramedLink"]


class FramedLink:
    """Calls over one connection at a time, shared by all tasks of a loop."""

    def __init__(self, target: FramedTarget, is_given_up: GivenUp | None = None) -> None:
        self.target = target
        self._is_given_up = is_given_up
        self._connection: FramedConnection | None = None
        self._opening: asyncio.Task[FramedConnection] | None = None
        self._is_closed = False
        self._sends_ahead = False

    @property
    def connection(self) -> FramedConnection | None:
        """The connection, if it is open."""
        found = self._connection
        return found if found is not None and found.is_open else None

    def send_ahead(self) -> None:
        """Requests are sent before a turn of the loop ends, on this connection and later ones."""
        self._sends_ahead = True
        if self._connection is not None:
            self._connection.sends_ahead = True

    def taken(self, operation: int) -> FramedConnection | None:
        """The connection for one request, if it is open and takes that operation now."""
        found = self._connection
        if found is None or not found.is_open or found.is_paused:
            return None
        return found if operation in found.operations else None

    async def connected(self) -> FramedConnection:
        """The connection, opened if need be.

        Raises:
            UnreachableError: nobody answers there. NotSpokenError: the server speaks HTTP only.
            AccessDeniedError: the token is wrong.
        """
        for _ in range(TRIES):
            if self._is_closed:
                raise ClosedError(CLOSED)
            found = self.connection
            if found is not None:
                return found
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
                self._opening.add_done_callback(self._opened)
            opening = self._opening
            # Not cancelled with one of those who wait for it.
            await asyncio.wait([opening])
            if opening.cancelled():
                raise ClosedError(CLOSED)
            if (error := opening.exception()) is not None:
                raise copy(error) from error  # others who wait raise it too, with their receipts
        raise self.target.closing()

    def _opened(self, task: asyncio.Task[FramedConnection]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            if self._is_closed:
                task.result().close(ClosedError(CLOSED))
            else:
                self._connection = task.result()
                self._connection.sends_ahead = self._sends_ahead

    async def _open(self) -> FramedConnection:
        loop = asyncio.get_running_loop()
        connection = FramedConnection(loop, self.target.timeout_s, self._is_given_up)
        try:
            await connection.open(self.target)
        except OSError as exc:  # TimeoutError is one
            raise self.target.unreached(exc) from exc
        return connection

    async def send(self, call: Call, doubt: Doubt | None = None) -> Any:
        """Send a call and return the document of its answer, or raise the error in it.

        Args:
            call: what is asked.
            doubt: is told if the answer was lost and it is sent again.

        Raises:
            NotSpokenError, TooLargeError: it was not sent: use HTTP.
        """
        for is_last in (not call.is_repeatable, True):
            try:
                return await self._ask(call)
            except AnswerLostError as exc:
                error = self.target.lost(call, exc)
                if is_last or isinstance(exc, SilentError):
                    raise error from exc
                if doubt is not None:
                    doubt.of(error)
        raise InvariantError("the last try neither returned nor raised")

    async def _ask(self, call: Call) -> Any:
        for _ in range(TRIES):
            connection = await self.connected()
            try:
                return read_answer(FORM.loads, await connection.send(call))
            except NotBegunError:
                continue  # it was closing: nothing was done
        raise self.target.closing()

    def forked(self) -> None:
        """In a forked child: no call opens or uses a connection."""
        self._is_closed = True
        self._connection = self._opening = None

    async def aclose(self) -> None:
        """Close the connection. Whoever waits for an answer gets ``ClosedError``."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._connection is not None:
            self._connection.close(ClosedError(CLOSED))
