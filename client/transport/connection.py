"""One link of an asyncio client: any number of calls on one connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from math import inf
from typing import Any, Final, cast

from msgspec import DecodeError
from msgspec.msgpack import Decoder

from ...engine.runtime.ids import SystemRng
from ...errors import ClosedError
from ..calls import CLOSED, Call, QueueTemplate
from .entries import (
    MISREAD,
    AnswerLostError,
    NotBegunError,
    NotSpokenError,
    SilentError,
    call_members,
    document_of,
    error_in,
    queue_document,
    read_welcome,
    turned_away,
)
from .forks import FORKED, cut, watch_forks
from .layout import (
    HANDLES_MAX,
    NONCE_BYTES,
    FrameReader,
    FrameSizeError,
    Op,
    Status,
    claim_id_of,
    frames_of,
    hello_frame,
)
from .target import SILENCE_S, FramedTarget, GivenUp

__all__ = ["FramedConnection"]

_SWEEPS: Final = 4  # looks for overdue answers in the time that one may take
_UNSENT_BYTES: Final = 4 << 20
_AHEAD_MIN: Final = 8  # entries, or tasks of one, that are not kept until the turn ends
_OF_MANY: Final = frozenset((int(Op.ENQUEUE_MANY), int(Op.CLAIM), int(Op.COMPLETE_MANY)))
_decode = Decoder().decode


class FramedConnection(asyncio.Protocol):
    """A connection to a server. ``open`` makes it; once it is lost another is needed.

    Attributes:
        is_open: whether requests may be sent.
        is_paused: whether the server reads too slowly to be sent more now.
        operations: what the server takes.
        sends_ahead: whether requests are sent before a turn of the loop ends. Where they wait for a
            sync, that is worth less than all of them in one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        is_given_up: GivenUp | None = None,
    ) -> None:
        self.is_open = False
        self.is_paused = False
        self.operations: frozenset[int] = frozenset()
        self.sends_ahead = False
        self._loop = loop
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._greeted: asyncio.Future[None] = loop.create_future()
        self._nonce = SystemRng().bytes(NONCE_BYTES)
        self._id = 0
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._parts: dict[int, list[bytes]] = {}
        self._waits: dict[int, float] = {}  # when requests that wait by themselves are overdue
        self._marks: deque[tuple[float, int]] = deque()  # (time, last id then)
        self._sweep: asyncio.TimerHandle | None = None
        self._handles: dict[QueueTemplate, int] = {}
        self._out: list[Any] = []
        self._n_sent = 0  # entries of the last write
        self._resumed: asyncio.Event = asyncio.Event()
        self._paused_at = inf
        self._has_heard = False  # the server has sent something, of late once it is open
        self._heard_at = loop.time()
        self._is_given_up = is_given_up
        self._asking: asyncio.Task[None] | None = None
        looks_s = timeout_s / _SWEEPS
        self._look_s = looks_s if is_given_up is None else min(looks_s, SILENCE_S / 4)
        watch_forks(self)

    def forked(self) -> None:
        """In a forked child: nothing is sent or read by it."""
        transport, self._transport = self._transport, None
        if transport is not None:
            cut(transport.get_extra_info("socket"))
        waiting = list(self._pending.values())
        with suppress(RuntimeError):  # its loop is closed, or another thread's: nobody waits here
            self.lose(ClosedError(FORKED))
        for future in waiting:
            if future.done() and not future.cancelled():
                future.exception()  # nobody may ever ask for it here

    async def open(self, target: FramedTarget) -> None:
        """Connect and say hello.

        Raises:
            OSError: nobody listens there. TimeoutError: nobody answers.
            NotSpokenError: the server speaks HTTP only. AccessDeniedError: the token is wrong.
        """
        try:
            async with asyncio.timeout(target.hello_s):
                if isinstance(target.address, str):
                    await self._loop.create_unix_connection(lambda: self, target.address)
                else:
                    await self._loop.create_connection(lambda: self, *target.address)
                if self._transport is not None:
                    self._transport.write(hello_frame(target.token, self._nonce))
                await self._greeted
        except BaseException:
            self.close(ClosedError(CLOSED))
            raise

    # -- the transport's calls -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        # A cast: uvloop's transports are no subclasses of asyncio.Transport.
        stream = self._transport = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(high=_UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        """Resolve the calls that are answered."""
        self._has_heard = True
        if not self._greeted.done() and (error := turned_away(data)) is not None:
            self._greeted.set_exception(error)
            self.lose(error)
            return
        try:
            for body in self._reader.feed(data):
                if not self._greeted.done():
                    self._greet(body)
                    continue
                pending, waits = self._pending, self._waits
                for entry in _decode(body):
                    id, status, value = entry[0], entry[1], entry[2]
                    if not status:
                        if self._parts and id in self._parts:
                            value = b"".join((*self._parts.pop(id), value))
                        future = pending.pop(id, None)
                        if waits:
                            waits.pop(id, None)
                        if future is not None and not future.done():
                            future.set_result(value)
                    else:
                        self._take(id, status, value)
        except (FrameSizeError, DecodeError, *MISREAD) as exc:
            if not self._greeted.done():
                self._greeted.set_exception(NotSpokenError())
            self.lose(AnswerLostError(f"the server answers with what is no frame: {exc}"))

    def _greet(self, body: bytes) -> None:
        try:
            self.operations = frozenset(read_welcome(body))
        except Exception as exc:  # noqa: BLE001 - for whoever opens it
            self._greeted.set_exception(exc)
        else:
            self.is_open = True
            self._greeted.set_result(None)

    def _take(self, id: int, status: int, value: Any) -> None:
        """An answer that is not done."""
        if status == Status.PART:
            if id in self._pending:
                self._parts.setdefault(id, []).append(value)
        elif status == Status.GOODBYE:
            self.is_open = False
            for other in [one for one in self._pending if one > value]:
                self._fail(other, NotBegunError())
        elif id:
            self._parts.pop(id, None)
            self._fail(id, error_in(value))
        else:
            self.lose(AnswerLostError(str(error_in(value))))

    def _fail(self, id: int, error: Exception) -> None:
        self._waits.pop(id, None)
        future = self._pending.pop(id, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits."""
        self._transport = None
        if not self._greeted.done():
            # A server that knows HTTP only may close as well as answer.
            self._greeted.set_exception(NotSpokenError(is_certain=self._has_heard))
            self._greeted.exception()  # looked at, should nobody wait
        text = "the server closed the connection" if exc is None else f"{type(exc).__name__} {exc}"
        self.lose(AnswerLostError(text))

    def pause_writing(self) -> None:
        """Send no more for now."""
        self.is_paused = True
        self._paused_at = self._loop.time()
        self._resumed.clear()
        if self.is_open:
            self._look_later()

    def resume_writing(self) -> None:
        """Send again."""
        self.is_paused = False
        self._resumed.set()

    async def writable(self) -> None:
        """Wait while the server reads too slowly.

        Raises:
            NotBegunError: it has read nothing for as long as an answer may take.
        """
        while self.is_paused and self.is_open:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._resumed.wait()
            except TimeoutError:
                if self.is_paused:
                    self.lose(AnswerLostError("the server reads nothing"))
                    raise NotBegunError from None

    # -- requests --------------------------------------------------------------------------

    async def ask(
        self,
        operation: int,
        template: QueueTemplate | None,
        members: tuple[Any, ...],
        wait_s: float = 0.0,
        begun: Callable[[bytes], object] | None = None,
    ) -> Any:
        """Send a request and return its answer.

        Args:
            operation: its number.
            template: the queue that it is about; its handle goes before ``members``.
            members: what follows.
            wait_s: seconds for which the server may hold it, on top of the timeout.
            begun: called with the id by which a claim can be taken back, before it is sent.

        Raises:
            NotBegunError, AnswerLostError: the connection is lost, or no answer came in time.
            LodeqError: the server's.

        Cancellation: the server is notified: what waits ends, leases go back.
        """
        self._id = id = self._id + 1
        if template is None:
            entry = (operation, id, *members)
        else:
            entry = (operation, id, self._handle(template), *members)
        if begun is not None:
            begun(claim_id_of(self._nonce, id))
        future = self._pending[id] = self._loop.create_future()
        if wait_s:
            self._waits[id] = self._loop.time() + wait_s + self._timeout_s
        self._look_later()
        self.put(entry)
        if (
            self.sends_ahead
            and operation in _OF_MANY
            and _n_tasks(operation, members) >= _AHEAD_MIN
        ):
            self._flush()  # the server begins while this process makes the next
        try:
            return await future
        except BaseException:
            self.forget(id)
            raise

    def put(self, entry: Any) -> None:
        """Send an entry with the others of this turn of the loop.

        With ``sends_ahead`` they go once as many have gathered as are unanswered: else the server
        would wait while this process makes its calls, and this process while the server answers.
        """
        out = self._out
        if not out:
            if self._n_sent == 1 and len(self._pending) == 1:  # as it seems nobody else calls
                transport = self._transport
                if transport is not None:
                    transport.write(frames_of((entry,)))
                return
            self._loop.call_soon(self._flush)
        out.append(entry)
        n = len(out)
        if n >= _AHEAD_MIN and self.sends_ahead and 2 * n >= len(self._pending) - len(self._waits):
            self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out:  # they went ahead
            return
        self._out = []
        self._n_sent = len(out)
        if self._transport is not None:
            try:
                data = frames_of(out)
            except (TypeError, ValueError, OverflowError) as exc:  # whoever waits must hear of it
                self.lose(AnswerLostError(f"a request cannot be written: {exc}"))
                return
            self._transport.write(data)

    def _handle(self, template: QueueTemplate) -> int:
        """The number of a queue on this connection; it is sent first if it is new."""
        found = self._handles.get(template)
        if found is not None:
            return found
        if len(self._handles) >= HANDLES_MAX:
            self._handles.clear()  # numbers may be given anew
        number = self._handles[template] = len(self._handles)
        self._n_sent = 0
        self.put((int(Op.QUEUE), number, queue_document(template)))
        return number

    async def send(self, call: Call) -> bytes:
        """Send a call, and return the document of its answer.

        Raises:
            NotBegunError, AnswerLostError: the connection is lost, or no answer came in time.

        Cancellation: the server ends what waits.
        """
        document = document_of(call)
        await self.writable()
        if not self.is_open:
            raise NotBegunError
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        members = call_members(call, document, timeout_s + call.wait_s)
        more_s = timeout_s + call.wait_s - self._timeout_s
        answer: bytes = await self.ask(int(Op.CALL), None, members, more_s)
        return answer

    def forget(self, id: int) -> None:
        """Nobody waits for this answer any more: the server may end what waits."""
        if self._pending.pop(id, None) is not None and self._transport is not None:
            self._parts.pop(id, None)
            self._waits.pop(id, None)
            self.put((int(Op.CANCEL), id))

    def _look(self) -> None:
        """Fail the calls whose answers are overdue, and ask whether a silent server is given up."""
        self._sweep = None
        now = self._loop.time()
        if self._has_heard:
            self._has_heard, self._heard_at = False, now
        elif self._is_given_up is not None and self._asking is None and self._is_silent(now):
            self._asking = self._loop.create_task(self._ask_whether(self._is_given_up))
        late_id = 0
        marks = self._marks
        while marks and marks[0][0] <= now - self._timeout_s:
            late_id = marks.popleft()[1]
        waits = self._waits
        late = [
            id
            for id in self._pending
            if (id <= late_id and id not in waits) or waits.get(id, now) < now
        ]
        for id in late:
            future = self._pending.get(id)
            self.forget(id)
            if future is not None and not future.done():
                future.set_exception(AnswerLostError("no answer in time"))
        if self._pending:
            marks.append((now, self._id))
        else:
            marks.clear()
        if self._pending or (self.is_paused and self.is_open):
            self._look_later()

    def _look_later(self) -> None:
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._look_s, self._look)

    def _is_silent(self, now: float) -> bool:
        """Whether an answer is due or nothing can be sent, and nothing has come for a while."""
        if now - self._heard_at < SILENCE_S:
            return False
        if self.is_paused and self._paused_at <= now - SILENCE_S:
            return True  # those who wait until they can send are not pending
        old_id = max((id for at, id in self._marks if at <= now - SILENCE_S), default=0)
        waits, due = self._waits, now - SILENCE_S + self._timeout_s
        return any(id <= old_id and waits.get(id, 0.0) <= due for id in self._pending)

    async def _ask_whether(self, is_given_up: GivenUp) -> None:
        heard_at = self._heard_at
        is_over = False
        try:
            is_over = await is_given_up()
        except Exception:  # noqa: BLE001 - it is about the server's place, not these requests
            pass
        finally:
            self._asking = None
        if is_over and not self._has_heard and self._heard_at == heard_at:
            self.lose(SilentError())

    # -- the end ---------------------------------------------------------------------------

    def lose(self, error: Exception) -> None:
        """End the connection; whoever waits gets the error, each its own: it carries receipts."""
        self.is_open = False
        self.is_paused = False
        self._resumed.set()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(copy(error))
        self._parts.clear()
        self._out.clear()
        self._handles.clear()
        if self._transport is not None:
            self._transport.abort()

    def close(self, error: Exception) -> None:
        """Close it; whoever waits gets the error."""
        if self._transport is not None and self._out and self.is_open:
            self._flush()
        transport = self._transport
        self._transport = None
        self.lose(error)
        if transport is not None:
            transport.close()


def _n_tasks(operation: int, members: tuple[Any, ...]) -> int:
    """The number of tasks that a request is about."""
    if operation == Op.CLAIM:
        limit: int = members[0]
        return limit
    return len(members[1] if operation == Op.ENQUEUE_MANY else members[0])
