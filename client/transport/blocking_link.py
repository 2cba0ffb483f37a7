"""The link of a client whose calls block: all its threads share one connection.

No thread of ours reads or writes for them. Whoever puts a request writes all that was put
meanwhile, in one frame, unless somebody is writing already; of those who wait for an answer one
reads for all. Whoever leaves hands on what is left to do.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from copy import copy
from math import inf
from threading import Lock
from typing import Any, Final

from ...engine.runtime.clock import SystemClock
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
from .layout import FrameSizeError, Op
from .target import SILENCE_S, TRIES, Doubt, FramedTarget

__all__ = ["SyncFramedConnection", "SyncFramedLink"]

_READ_BYTES: Final = 256 << 10
_WRITES: Final = 4  # in a row by one thread; then another one writes what has come meanwhile
_LATE: Final = "no answer in time"
_mono = SystemClock.mono


class _Slot(Slot):
    """Where one thread waits: for its answer, or to read or write for all."""

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        super().__init__()
        self._gate = Lock()
        self._gate.acquire()

    def wake(self) -> None:
        """Let its thread look again. Under the connection's lock."""
        if self._gate.locked():
            self._gate.release()

    def wait(self, left_s: float) -> None:
        """Wait until it is woken, or that time is over."""
        self._gate.acquire(timeout=max(0.0, left_s))


class SyncFramedConnection:
    """One connection, of any number of threads."""

    def __init__(self, link: SyncFramedLink) -> None:
        """Connect and say hello. Raises as ``FramedConnection.open``."""
        self._target = target = link.target
        self._is_given_up = link.is_given_up
        self._heard = 0  # how often anything has come
        self._lock = Lock()  # of all that follows
        self._exchange: FramedExchange[_Slot] = FramedExchange()
        self._roles = Roles(self._exchange)
        self._is_retired = False
        try:
            # Two ends of one socket, for a timeout of their own each.
            self._receiver = self._sender = _connected(target)
        except OSError as exc:
            raise target.unreached(exc) from exc
        try:
            self._sender = self._receiver.dup()
            self._greet(_mono() + target.hello_s)
        except (AnswerLostError, FrameSizeError) as exc:
            self._shut()
            if isinstance(exc.__cause__, TimeoutError):
                raise target.unreached(exc) from exc
            raise NotSpokenError(is_certain=isinstance(exc, FrameSizeError)) from exc
        except OSError as exc:
            self._shut()
            raise NotSpokenError(is_certain=False) from exc
        except BaseException:
            self._shut()
            raise

    def _greet(self, until: float) -> None:
        self._sender.settimeout(self._target.hello_s)
        self._sender.sendall(self._exchange.hello(self._target.token))
        while True:
            left_s = until - _mono()
            if left_s <= 0:  # also where the server keeps sending other things
                raise AnswerLostError(_LATE)
            self._receiver.settimeout(left_s)
            try:
                data = self._receiver.recv(_READ_BYTES)
            except OSError as exc:
                raise AnswerLostError(f"{type(exc).__name__} {exc}") from exc
            if self._exchange.welcomed(data):
                return

    @property
    def operations(self) -> frozenset[int]:
        """Those that the server takes."""
        return self._exchange.operations

    def is_usable(self) -> bool:
        """Whether a request may be sent; one that is idle may have been closed by the server."""
        with self._lock:
            exchange = self._exchange
            if exchange.is_open and not exchange.pending and self._is_stale:
                self._lose("the server closed the connection")
            return exchange.is_open

    @property
    def _is_stale(self) -> bool:
        """Whether the server has sent something, or closed, while nobody waits for anything."""
        try:
            self._receiver.setblocking(False)
            self._receiver.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def ask(
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
        """
        until = _mono() + self._target.timeout_s + wait_s
        slot = _Slot()
        try:
            with self._lock:
                self._exchange.put(slot, operation, template, members, begun)
            self._await(slot, until, max(0.0, wait_s))
        finally:
            with self._lock:
                self._release(slot)
                if not slot.is_done:  # late, or interrupted
                    self._exchange.forget(slot)
                may_write = self._exchange.has_unsent and self._roles.writing is None
                if may_write:
                    self._roles.writing = slot
                else:
                    self._hand_on()
            if may_write:
                self._write(slot)
        return slot.result()

    # -- who does what ---------------------------------------------------------------------

    def _await(self, slot: _Slot, until: float, wait_s: float) -> None:
        """Until the answer is there: write what nobody writes, read where nobody reads, or wait."""
        quiet_s = inf if self._is_given_up is None else SILENCE_S + wait_s
        heard, asked_at = -1, inf
        while True:
            if self._heard != heard:
                heard, asked_at = self._heard, _mono() + quiet_s
            elif asked_at <= _mono():
                self._ask_whether(slot, heard)
                asked_at = _mono() + SILENCE_S / 4
            with self._lock:
                if slot.is_done:
                    return
                if until <= _mono():
                    raise AnswerLostError(_LATE)
                may_write = self._roles.writing is None and self._exchange.has_unsent
                if may_write:
                    self._roles.writing = slot
                elif self._roles.reading is None:
                    self._roles.reading = slot
            if may_write:
                self._write(slot)
            elif self._roles.reading is slot:
                self._read(slot, min(until, asked_at))
            else:
                slot.wait(min(until, asked_at) - _mono())

    def _release(self, slot: _Slot) -> None:
        """Let others do what this thread was to do when it was interrupted. Under the lock."""
        if self._roles.asking is slot:
            self._roles.asking = None
        if slot in (self._roles.reading, self._roles.writing):
            self._roles.reading = None if self._roles.reading is slot else self._roles.reading
            self._roles.writing = None if self._roles.writing is slot else self._roles.writing
            self._lose("a thread was interrupted")

    def _ask_whether(self, slot: _Slot, heard: int) -> None:
        """Give the server up if it has been silent, and others have its place. One asks for all."""
        with self._lock:
            if self._is_given_up is None or self._roles.asking is not None:
                return
            self._roles.asking = slot
            self._hand_on()  # others may read while this one asks
        is_over = False
        try:
            is_over = self._is_given_up()
        except Exception:  # noqa: BLE001 - it is about the server's place, not this request
            pass
        finally:
            with self._lock:
                self._roles.asking = None
                # Where nobody has read meanwhile, an answer may be there.
                if is_over and self._heard == heard and (self._roles.reading or not self._is_stale):
                    self._lose(str(SilentError()), SilentError)

    def _hand_on(self) -> None:
        """Wake one who does what nobody does now. Under the lock."""
        if self._is_retired and not self._exchange.pending:
            self._lose("this client is closed")
            return
        slot = self._roles.successor()
        if slot is not None:
            slot.wake()

    def _write(self, slot: _Slot) -> None:
        """Write until there is nothing left, or others have had enough of it."""
        left = _WRITES
        try:
            while True:
                with self._lock:
                    is_enough = left <= 0 and self._roles.other_unsent(slot) is not None
                    data = b"" if is_enough else self._exchange.outgoing()
                    if not data:
                        self._roles.writing = None
                        self._hand_on()
                        return
                left -= 1
                self._send(slot, data)
        except BaseException as exc:  # part of a frame may be on its way: nothing may follow it
            with self._lock:
                self._roles.writing = None
                self._lose(_text(exc))
            if not isinstance(exc, OSError | AnswerLostError):
                raise

    def _send(self, slot: _Slot, data: bytes) -> None:
        """Send all of it; where the server takes nothing, ask whether it is given up."""
        rest = memoryview(data)
        until = _mono() + self._target.timeout_s
        quiet_s = inf if self._is_given_up is None else SILENCE_S
        heard, asked_at = self._heard, _mono() + quiet_s
        while rest:
            left_s = until - _mono()
            if left_s <= 0:
                raise TimeoutError("the server reads nothing")
            self._sender.settimeout(max(0.001, min(left_s, asked_at - _mono())))
            try:
                rest = rest[self._sender.send(rest) :]
            except TimeoutError:
                if asked_at > _mono():
                    continue
                if self._heard == heard:
                    self._ask_whether(slot, heard)
                    asked_at = _mono() + SILENCE_S / 4
                    continue
            heard, asked_at = self._heard, _mono() + quiet_s

    def _read(self, slot: _Slot, until: float) -> None:
        """Read for all, until the own answer is there, its time is over, or it has to write."""
        is_sound = False  # interrupted in its midst, the stream cannot be read on
        try:
            while not slot.is_done:
                self._receiver.settimeout(max(0.001, until - _mono()))
                try:
                    data = self._receiver.recv(_READ_BYTES)
                except TimeoutError:
                    break
                with self._lock:
                    self._heard += 1
                    for ended in self._exchange.incoming(data):
                        ended.wake()
                    if self._exchange.unsent and self._roles.writing is None:
                        break
            is_sound = True
        except (OSError, AnswerLostError) as exc:
            with self._lock:
                self._lose(_text(exc))
        finally:
            with self._lock:
                self._roles.reading = None
                if not is_sound:
                    self._lose("a read was interrupted")

    # -- the end ---------------------------------------------------------------------------

    def _lose(self, text: str, kind: type[Exception] = AnswerLostError) -> None:
        """Under the lock."""
        for slot in self._exchange.lose(text, kind):
            slot.wake()
        self._shut()

    def _shut(self) -> None:
        for one in (self._receiver, self._sender):
            try:
                one.shutdown(socket.SHUT_RDWR)  # or a thread that reads would go on waiting
            except OSError:
                pass
            one.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of the sockets, which leaves the parent's open."""
        self._lock = Lock()  # a thread of the parent may have had it
        self._exchange.is_open = False
        for one in (self._receiver, self._sender):
            one.close()

    def retire(self) -> None:
        """Take no more requests, and close once all are answered."""
        with self._lock:
            self._is_retired = True
            self._exchange.is_open = False
            self._hand_on()


def _text(exc: BaseException) -> str:
    return str(exc) if isinstance(exc, AnswerLostError) else f"{type(exc).__name__} {exc}"


def _connected(target: FramedTarget) -> socket.socket:
    if not isinstance(target.address, str):
        found = socket.create_connection(target.address, target.hello_s)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.settimeout(target.hello_s)
        found.connect(target.address)
    except BaseException:
        found.close()
        raise
    return found


class SyncFramedLink:
    """Calls over one connection at a time, shared by all threads of a client."""

    def __init__(self, target: FramedTarget, is_given_up: Callable[[], bool] | None = None) -> None:
        self.target = target
        self.is_given_up = is_given_up
        self._opening = Lock()
        self._n_failed = 0  # attempts to open one
        self._failure: Exception | None = None  # of the last of them
        self._connection: SyncFramedConnection | None = None
        self._is_closed = False

    def taken(self, operation: int) -> SyncFramedConnection | None:
        """The connection for one request, if it is open and takes that operation."""
        found = self._connection
        if found is None or self._is_closed or not found.is_usable():
            return None
        return found if operation in found.operations else None

    def connected(self) -> SyncFramedConnection:
        """The connection, opened if need be; while one thread opens it, others wait.

        Where that fails, those who waited fail too: none opens again after the other.

        Raises:
            UnreachableError: nobody answers there. NotSpokenError: the server speaks HTTP only.
            AccessDeniedError: the token is wrong.
        """
        found = self.taken(int(Op.CALL))
        if found is not None:
            return found
        n_failed = self._n_failed
        with self._opening:
            found = self.taken(int(Op.CALL))
            if found is None:
                if self._is_closed:
                    raise ClosedError(CLOSED)
                if self._failure is not None and self._n_failed != n_failed:
                    raise copy(self._failure)
                if self._connection is not None:
                    self._connection.retire()  # the server may still answer what it has begun
                try:
                    found = SyncFramedConnection(self)
                except Exception as exc:
                    self._failure = copy(exc)
                    self._n_failed += 1
                    raise
                self._connection = found
                if self._is_closed:
                    found.retire()
            return found

    def send(self, call: Call, doubt: Doubt | None = None) -> Any:
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
                return self._ask(call, document)
            except AnswerLostError as exc:
                if self._is_closed:
                    raise ClosedError(CLOSED) from exc
                error = self.target.lost(call, exc)
                if is_last or isinstance(exc, SilentError):
                    raise error from exc
                if doubt is not None:
                    doubt.of(error)
        raise InvariantError("the last try neither returned nor raised")

    def _ask(self, call: Call, document: bytes | None) -> Any:
        timeout_s = self.target.timeout_s if call.timeout_s is None else call.timeout_s
        members = call_members(call, document, timeout_s + call.wait_s)
        more_s = timeout_s + call.wait_s - self.target.timeout_s
        for _ in range(TRIES):
            try:
                answer = self.connected().ask(int(Op.CALL), None, members, more_s)
            except NotBegunError:
                if self._is_closed:
                    raise ClosedError(CLOSED) from None
                continue  # it was closing: nothing was done
            return read_answer(FORM.loads, answer)
        raise self.target.closing()

    def forked(self) -> None:
        """In a forked child: the next call opens a connection of its own."""
        self._opening = Lock()
        found, self._connection = self._connection, None
        if found is not None:
            found.abandon()

    def close(self) -> None:
        """Close the connection. A thread that waits for an answer may still get it."""
        self._is_closed = True
        found = self._connection
        if found is not None:
            found.retire()
