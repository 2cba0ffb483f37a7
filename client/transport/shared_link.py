"""The link of a client on any loop but asyncio: all its tasks share one connection.

There is no task in the background. Whoever puts a request writes all that was put in the same turn
of the loop, in one frame, unless somebody is writing already; of those who wait for an answer one
reads for all, and wakes the next one when it leaves.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from copy import copy
from math import inf
from typing import Any, Final

import anyio
from anyio import CancelScope
from anyio.abc import SocketAttribute
from anyio.lowlevel import cancel_shielded_checkpoint

from ...errors import ClosedError, InvariantError
from ..calls import CLOSED, FORM, Call, QueueTemplate
from .entries import (
    AnswerLostError,
    NotBegunError,
    NotSpokenError,
    SilentError,
    call_members,
    document_of,
    read_answer,
)
from .exchange import FramedExchange, Roles, Slot
from .forks import cut, watch_forks
from .layout import FrameSizeError, Op
from .target import SILENCE_S, TRIES, Doubt, FramedTarget, GivenUp

__all__ = ["SharedConnection", "SharedLink"]

_READ_BYTES: Final = 256 << 10
_WRITES: Final = 4  # in a row by one task; then another one writes what has come meanwhile
_BROKEN: Final = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


class _Slot(Slot):
    """Where one task waits: for its answer, or to read for all."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        super().__init__()
        self.event = anyio.Event()


class SharedConnection:
    """One connection, of any number of tasks."""

    def __init__(self, target: FramedTarget, is_given_up: GivenUp | None = None) -> None:
        self._target = target
        self._is_given_up = is_given_up
        self._heard = 0  # how often anything has come
        self._exchange: FramedExchange[_Slot] = FramedExchange()
        self._stream: anyio.abc.ByteStream | None = None
        self._roles = Roles(self._exchange)
        self._is_retired = False
        watch_forks(self)

    def forked(self) -> None:
        """In a forked child: nothing is sent or read by it."""
        self._exchange.is_open = False
        if self._stream is not None:
            cut(_raw_of(self._stream))

    async def open(self) -> None:
        """Connect and say hello. Raises as ``FramedConnection.open``."""
        target = self._target
        try:
            with anyio.fail_after(target.hello_s):
                if isinstance(target.address, str):
                    self._stream = await anyio.connect_unix(target.address)
                else:
                    self._stream = await anyio.connect_tcp(*target.address)
                stream = self._stream
                await stream.send(self._exchange.hello(target.token))
                while not self._exchange.welcomed(await _received(stream)):
                    pass
        except (AnswerLostError, FrameSizeError) as exc:
            await self.aclose()
            raise NotSpokenError(is_certain=isinstance(exc, FrameSizeError)) from exc
        except _BROKEN as exc:  # TimeoutError is one of them
            await self.aclose()
            raise target.unreached(exc) from exc
        except BaseException:
            await self.aclose()
            raise

    @property
    def operations(self) -> frozenset[int]:
        """Those that the server takes."""
        return self._exchange.operations

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent; one that is idle may have been closed by the server."""
        exchange = self._exchange
        if exchange.is_open and not exchange.pending and self._is_stale:
            self._lose("the server closed the connection")
        return exchange.is_open

    @property
    def _is_stale(self) -> bool:
        """Whether the server has sent something, or closed, while nobody waits for anything."""
        stream = self._stream
        raw: Any = None if stream is None else _raw_of(stream)
        peek = getattr(raw, "recv", None)
        if peek is None:
            return stream is None
        try:
            peek(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

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
        slot = _Slot()
        self._exchange.put(slot, operation, template, members, begun)
        try:
            with anyio.move_on_after(self._target.timeout_s + wait_s):
                await self._await(slot, max(0.0, wait_s))
        finally:
            is_late = not slot.is_done
            if is_late:
                self._exchange.forget(slot)
            self._hand_on()
            if is_late:
                with CancelScope(shield=True):
                    await self._write(slot)
            if self._is_retired and not self._exchange.pending:
                await self.aclose()
        if is_late:
            raise AnswerLostError("no answer in time")
        return slot.result()

    async def _await(self, slot: _Slot, wait_s: float) -> None:
        """Until the answer is there; where the server is silent, ask whether it is given up."""
        quiet_s = inf if self._is_given_up is None else SILENCE_S + wait_s
        heard, asked_at = -1, inf
        while not slot.is_done:
            if self._heard != heard:
                heard, asked_at = self._heard, anyio.current_time() + quiet_s
            elif asked_at <= anyio.current_time():
                await self._ask_whether(slot, heard)
                asked_at = anyio.current_time() + SILENCE_S / 4
                continue
            if self._exchange.has_unsent:
                await self._write(slot)
                if slot.is_done:
                    return
            with CancelScope(deadline=asked_at):
                await self._wait(slot)

    async def _wait(self, slot: _Slot) -> None:
        """Read for all, or until another one who reads has something for this slot."""
        if self._roles.reading is not None:
            await slot.event.wait()
            slot.event = anyio.Event()
        else:
            await self._read(slot)

    async def _ask_whether(self, slot: _Slot, heard: int) -> None:
        """Give the server up if it has been silent, and others have its place. One asks for all."""
        if self._is_given_up is None or self._roles.asking is not None:
            return
        self._roles.asking = slot
        self._hand_on()  # others may read while this one asks
        is_over = False
        try:
            is_over = await self._is_given_up()
        except Exception:  # noqa: BLE001 - it is about the server's place, not this request
            pass
        finally:
            self._roles.asking = None
        if is_over and self._heard == heard and not self._is_stale:  # no answer is there unread
            self._lose(str(SilentError()), SilentError)

    async def _write(self, slot: _Slot) -> None:
        """Write all that was put, unless somebody does; not for ever, where others could.

        Not cancelled: nothing may follow part of a frame. It lasts only where the server reads
        nothing.
        """
        stream = self._stream
        if self._roles.writing is not None or stream is None:
            return
        self._roles.writing = slot
        try:
            if len(self._exchange.pending) > 1:  # others of this turn have something to send
                await cancel_shielded_checkpoint()
            left = _WRITES
            while left > 0 or self._roles.other_unsent(slot) is None:
                data = self._exchange.outgoing()
                if not data:
                    break
                left -= 1
                with CancelScope(shield=True), anyio.fail_after(self._target.timeout_s):
                    await self._send(slot, stream, data)
        except (*_BROKEN, AnswerLostError) as exc:  # TimeoutError is one of them
            self._lose(_text(exc))
        except BaseException:
            self._lose("a write was interrupted")
            raise
        finally:
            self._roles.writing = None
            self._hand_on()

    async def _send(self, slot: _Slot, stream: anyio.abc.ByteStream, data: bytes) -> None:
        """Send all of it; where the server takes nothing, ask whether it is given up."""
        raw = None if self._is_given_up is None else _raw_of(stream)
        at_once = getattr(raw, "send", None)
        if at_once is None:
            await stream.send(data)
            return
        try:
            n_sent = at_once(data, socket.MSG_DONTWAIT)  # nearly always all of it
        except BlockingIOError:
            n_sent = 0
        if n_sent == len(data):
            return
        error: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch, slot)
            try:
                await stream.send(data[n_sent:])
            except _BROKEN as exc:
                error = exc  # not in a group
            group.cancel_scope.cancel()
        if error is not None:
            raise error

    async def _watch(self, slot: _Slot) -> None:
        """Ask whether the server is given up while nothing comes, until this is cancelled."""
        heard, quiet_s = self._heard, SILENCE_S
        while True:
            await anyio.sleep(quiet_s)
            if self._heard == heard:
                await self._ask_whether(slot, heard)
                quiet_s = SILENCE_S / 4
            else:
                heard, quiet_s = self._heard, SILENCE_S

    async def _read(self, slot: _Slot) -> None:
        """Read once, for all."""
        stream = self._stream
        if stream is None:
            return
        self._roles.reading = slot
        try:
            data = await _received(stream)
            self._heard += 1
            for ended in self._exchange.incoming(data):
                ended.event.set()
        except AnswerLostError as exc:
            self._lose(_text(exc))
        finally:
            self._roles.reading = None

    def _hand_on(self) -> None:
        """Wake one who does what nobody does now."""
        slot = self._roles.successor()
        if slot is not None:
            slot.event.set()

    def _lose(self, text: str, kind: type[Exception] = AnswerLostError) -> None:
        for slot in self._exchange.lose(text, kind):
            slot.event.set()
        if self._stream is not None:
            raw = _raw_of(self._stream)
            try:
                if raw is not None:
                    raw.shutdown(socket.SHUT_RDWR)  # or the task that reads would go on waiting
            except OSError:
                pass

    @property
    def is_closed(self) -> bool:
        """Whether it is closed for good."""
        return self._stream is None

    async def retire(self) -> None:
        """Take no more requests, and close once all are answered."""
        self._is_retired = True
        self._exchange.is_open = False
        if not self._exchange.pending:
            await self.aclose()

    async def aclose(self) -> None:
        """Close it; whoever waits gets ``ClosedError``."""
        self._lose(CLOSED, ClosedError)
        stream, self._stream = self._stream, None
        if stream is not None:
            with CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)


def _text(exc: BaseException) -> str:
    return str(exc) if isinstance(exc, AnswerLostError) else f"{type(exc).__name__} {exc}"


async def _received(stream: anyio.abc.ByteStream) -> bytes:
    try:
        return await stream.receive(_READ_BYTES)
    except anyio.EndOfStream:
        return b""
    except _BROKEN as exc:
        raise AnswerLostError(f"{type(exc).__name__} {exc}") from exc


def _raw_of(stream: anyio.abc.ByteStream) -> Any:
    attributes: Any = stream.extra_attributes
    found = attributes.get(SocketAttribute.raw_socket)
    return None if found is None else found()


class SharedLink:
    """Calls over one connection at a time, shared by all tasks of a client."""

    def __init__(self, target: FramedTarget, is_given_up: GivenUp | None = None) -> None:
        self.target = target
        self._is_given_up = is_given_up
        self._opening: anyio.Lock | None = None
        self._connection: SharedConnection | None = None
        self._n_failed = 0  # attempts to open one
        self._failure: Exception | None = None  # of the last of them
        self._retired: list[SharedConnection] = []  # with requests that are not answered yet
        self._is_closed = False

    def taken(self, operation: int) -> SharedConnection | None:
        """The connection for one request, if it is open and takes that operation."""
        found = self._connection
        if found is None or not found.is_usable:
            return None
        return found if operation in found.operations else None

    async def connected(self) -> SharedConnection:
        """The connection, opened if need be; while one task opens it, others wait.

        Where that fails, those who waited fail too: none opens again after the other.

        Raises:
            UnreachableError: nobody answers there. NotSpokenError: the server speaks HTTP only.
            AccessDeniedError: the token is wrong.
        """
        found = self.taken(int(Op.CALL))
        if found is not None:
            return found
        if self._opening is None:
            self._opening = anyio.Lock()
        n_failed = self._n_failed
        async with self._opening:
            found = self.taken(int(Op.CALL))
            if found is None:
                if self._is_closed:
                    raise ClosedError(CLOSED)
                if self._failure is not None and self._n_failed != n_failed:
                    raise copy(self._failure)
                await self._retire()
                found = SharedConnection(self.target, self._is_given_up)
                try:
                    await found.open()
                except Exception as exc:
                    self._n_failed, self._failure = self._n_failed + 1, copy(exc)
                    raise
                self._connection = found
            return found

    def forked(self) -> None:
        """In a forked child: no call opens or uses a connection."""
        self._is_closed = True
        self._connection = None
        self._retired.clear()

    async def _retire(self) -> None:
        """Replace the connection. The server may still answer what it has begun there."""
        self._retired = [one for one in self._retired if not one.is_closed]
        old, self._connection = self._connection, None
        if old is not None:
            self._retired.append(old)
            await old.retire()

    async def send(self, call: Call, doubt: Doubt | None = None) -> Any:
        """Send a call and return the document of its answer, or raise the error in it.

        Args:
            call: what is asked.
            doubt: is told if the answer was lost and it is sent again.

        Raises:
            NotSpokenError, TooLargeError: it was not sent: use HTTP.
        """
        document = document_of(call)
        for is_last in (not call.is_repeatable, True):
            try:
                return await self._ask(call, document)
            except AnswerLostError as exc:
                error = self.target.lost(call, exc)
                if is_last or isinstance(exc, SilentError):
                    raise error from exc
                if doubt is not None:
                    doubt.of(error)
        raise InvariantError("the last try neither returned nor raised")

    async def _ask(self, call: Call, document: bytes | None) -> Any:
        timeout_s = self.target.timeout_s if call.timeout_s is None else call.timeout_s
        members = call_members(call, document, timeout_s + call.wait_s)
        more_s = timeout_s + call.wait_s - self.target.timeout_s
        for _ in range(TRIES):
            connection = await self.connected()
            try:
                answer = await connection.ask(int(Op.CALL), None, members, more_s)
            except NotBegunError:
                continue  # it was closing: nothing was done
            return read_answer(FORM.loads, answer)
        raise self.target.closing()

    async def aclose(self) -> None:
        """Close the connection; who waits is cancelled by ``Transport``."""
        self._is_closed = True
        await self._retire()
        for one in self._retired:
            await one.aclose()
