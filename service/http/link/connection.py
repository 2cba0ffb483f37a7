"""One link: frames in and out, hello, admission, flow control, and its end.

What arrives is taken in slices: a turn of the loop takes ``SLICE`` requests at most. Reading stops
while the client has too much unanswered or does not read its answers; so both directions are
bounded by what one connection may hold.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from ....client.documents.problems import problem_of
from ....client.transport.layout import (
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    VERSION,
    FrameReader,
    FrameSizeError,
    Status,
    claim_id_of,
    frame_of,
    frames_of,
)
from ....errors import AccessDeniedError, LodeqError, UsageError
from ....repository.model.arguments import duration_s
from ..access.roles import FULL
from ..admission import TooManyError, has_unread
from ..guard import WRONG_TOKEN
from . import operations
from .limits import Handler, limited_handlers
from .port import LinkPort
from .requests import Cancel, MalformedError, Queue, read_entry, read_frame, read_hello
from .serving import LinkServing

try:
    from msgspec import Raw
    from msgspec.msgpack import encode
except ImportError as exc:
    raise UsageError('the HTTP service needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["LinkConnection"]

HELLO_WAIT_S: Final = 10.0
FRAME_WAIT_S: Final = 30.0  # until a frame that has begun is whole
READ_WAIT_S: Final = 30.0  # until a client must have read enough of its answers
LINGER_S: Final = 0.25  # for what the client has written before it read of the end
SLICE: Final = 256  # requests taken in one turn of the loop
SLICE_COST: Final = 4 << 20  # one turn does what costs as much as so many bytes of answers
OPEN_MAX: Final = 4096  # requests that are not answered, claims that wait apart
UNREAD_BYTES: Final = 8 << 20  # of answers that the client has not read

_log = logging.getLogger("lodeq.http")


class LinkConnection(LinkPort, asyncio.Protocol):
    """One client's connection, after its first byte has shown that it is a link."""

    def __init__(self, serving: LinkServing, admission: Any) -> None:
        super().__init__(serving, admission)
        self.nonce = b""
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._backlog: deque[tuple[Any, float]] = deque()  # and when each has come
        self._last_id = 0
        self._n_taken = 0  # requests, since data came last
        self._is_cut = False  # frames are kept that have not been read
        self._n_waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()  # of requests; others wait by callback
        self._written_bytes = 0
        self._unsent_claims: deque[tuple[int, list[Any]]] = deque()  # and where each answer ends
        self._held_bytes = 0  # of a frame that is not whole
        self._is_slice_due = False
        self._is_greeted = False
        self._is_busy = False
        self._is_write_paused = False
        self._is_read_paused = False
        self._is_closing = False
        self._slow: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._resumed = asyncio.Event()
        self._limited: Mapping[type, Handler] | None = None  # where the token may not do everything

    # -- the transport's calls -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the hello is awaited."""
        # A cast: uvloop's transports are no subclasses of asyncio.Transport.
        stream = self.transport = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(high=UNREAD_BYTES)
        sock = stream.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:  # one whose machine has gone
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.serving.connections.add(self)
        self.admission.arrived(self)
        self._slow = self._loop.call_later(HELLO_WAIT_S, self._abort)

    def data_received(self, data: bytes) -> None:
        """Take the frames that are whole."""
        if self._is_closing:
            return
        self._n_taken = 0
        try:
            for body in self._reader.feed(data):
                if self._is_greeted:
                    if self._slow is not None:
                        self._forget_slow()
                    self._take(read_frame(body))
                    if len(self._backlog) >= SLICE:  # the frames behind it wait, unread
                        self._is_cut = True
                        break
                else:
                    self._greet(body)
                if self._is_closing:
                    return
        except (MalformedError, FrameSizeError) as exc:
            self._refuse(UsageError(str(exc)), 400)
            return
        if self._held_bytes or not self._reader.is_empty:
            self._await_rest()

    def _await_rest(self) -> None:
        """Part of a frame is here: the rest has its time, and all such parts together a limit."""
        hub, size = self.serving.hub, self._reader.size
        hub.held_bytes += size - self._held_bytes
        self._held_bytes = size
        if size and hub.held_bytes > hub.settings.held_bytes_max:
            self._refuse(TooManyError("the server holds too many requests: try again"), 503)
        elif size and self._slow is None and not self._is_read_paused:
            self._slow = self._loop.call_later(FRAME_WAIT_S, self._abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: claims without an answer give back what they took, other waits end."""
        self.transport = None
        self._is_closing = True
        self.serving.connections.discard(self)
        self.serving.hub.held_bytes -= self._held_bytes
        self._held_bytes = 0
        self.admission.left(self)
        self.serving.unread.left(self)
        self._forget_slow()
        if self._stuck is not None:
            self._stuck.cancel()
        self._backlog.clear()
        self._is_write_paused = False
        self._resumed.set()
        for claim in list(self.claims.values()):
            claim.take_back()
        if self._unsent:
            self.serving.direct.give_back(self._unsent)
        for give_up in list(self.calls.values()):
            give_up()
        self._out.clear()
        self._unsent_claims.clear()  # its client has gone: it may have read them
        self.queues.clear()

    @property
    def unread_bytes(self) -> int:
        """Bytes that were written and that the system has not taken yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def called_back_count(self) -> int:
        """Requests at work that no task is for: the engine calls back when they are done."""
        return max(0, self._n_open - len(self._tasks))

    def cut(self) -> None:
        """Close it: it reads slowest, where too much is unread."""
        self.serving.refusals.count(503, self._loop.time())
        self._abort()

    def _write(self, data: bytes) -> None:
        super()._write(data)
        self._written_bytes += len(data)
        if self.unread_bytes:  # the system took not all of it
            self.serving.unread.written(self, len(data))

    def _write_entries(self, entries: list[Any], leases: list[Any]) -> None:
        super()._write_entries(entries, leases)
        sent = self._written_bytes - self.unread_bytes
        unsent = self._unsent_claims
        while unsent and unsent[0][0] <= sent:
            unsent.popleft()
        if leases and sent < self._written_bytes:
            unsent.append((self._written_bytes, leases))

    def give_back_unsent(self) -> None:
        """Give back the leases of answers that the system has not wholly taken: it is cut."""
        sent = self._written_bytes - self.unread_bytes
        while self._unsent_claims:
            end, leases = self._unsent_claims.pop()
            if end > sent:
                self._give_back(leases)

    def _abort(self) -> None:
        self.give_back_unsent()
        super()._abort()

    def pause_writing(self) -> None:
        """Take no more requests while the client does not read."""
        self._is_write_paused = True
        self._resumed.clear()
        if self._stuck is None:
            self._stuck = self._loop.call_later(READ_WAIT_S, self._abort)
        for claim in list(self.claims.values()):  # or they would add to what it does not read
            if claim.is_waiting:
                claim.end_wait()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_write_paused = False
        self._resumed.set()
        if self._stuck is not None and not self._is_ended:
            self._stuck.cancel()
            self._stuck = None
        self._go_on()

    # -- hello -----------------------------------------------------------------------------

    def _greet(self, body: bytes) -> None:
        """Answer the hello."""
        version, hello = read_hello(body)
        if version < VERSION:
            self._turn_away(UsageError(f"version {version} of the link is not known here"), 400, 0)
            return
        self.admission.asked(self)
        access = self.serving.access_of(hello.token)
        if access is None:
            self.admission.strange(self)
            why = WRONG_TOKEN if hello.token else "give the server's token"
            self._turn_away(AccessDeniedError(why), 401)
            return
        if not self.admission.admits(self):
            error = TooManyError("the server has as many callers as it accepts: try again")
            self._turn_away(error, 503)
            return
        self._forget_slow()
        self.nonce = hello.nonce
        self.access = access
        self._limited = None if access is FULL else limited_handlers(access)
        self._reader.bytes_max = FRAME_BYTES_MAX
        self._is_greeted = True
        self.admission.answered(self)
        self._write(_first_frame(VERSION, True, self.serving.operations))

    def _turn_away(self, error: LodeqError, status: int, version: int = VERSION) -> None:
        self.serving.refusals.count(status, self._loop.time())
        self._write(_first_frame(version, False, problem_of(error, status)))
        self._end()

    # -- requests --------------------------------------------------------------------------

    def _take(self, entries: list[Any]) -> None:
        if not self._is_busy and entries:
            self._is_busy = True
            self.admission.asked(self)
        self._n_taken += len(entries)
        if self._backlog or self._n_taken > SLICE or self._is_held:
            now = self._loop.time()
            self._backlog += [(entry, now) for entry in entries]
            if not self._is_slicing:
                self._go_on()
            return
        self._slice(entries)

    @property
    def _is_held(self) -> bool:
        return (
            self._is_write_paused or self._n_open >= OPEN_MAX or self.claimed_bytes > UNREAD_BYTES
        )

    def _go_on_soon(self) -> None:
        """In a turn of its own."""
        if not self._is_slice_due:
            self._is_slice_due = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Take a slice of what waits, and read again once nothing does."""
        self._is_slice_due = False
        if self._is_over or self._is_slicing:
            return
        backlog = self._backlog
        if backlog and not self._is_held:
            n = min(SLICE, len(backlog))
            taken = [backlog.popleft() for _ in range(n)]
            self._slice([entry for entry, _ in taken], [came for _, came in taken])
        is_full = bool(backlog) or self._is_held
        if is_full != self._is_read_paused and self.transport is not None:
            self._is_read_paused = is_full
            if is_full:
                self._forget_slow()
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
                self._await_rest()
        if backlog and not self._is_held:
            self._go_on_soon()
        elif self._is_cut and not backlog:
            self._is_cut = False
            self._loop.call_soon(self.data_received, b"")

    def _slice(self, entries: list[Any], came: Sequence[float] = ()) -> None:
        """Begin requests; ``came``: when each of them has come, if not just now."""
        self._is_slicing = True
        self.cost = 0
        handlers = operations.HANDLERS if self._limited is None else self._limited
        last_id = self._last_id
        n = 0
        try:
            self.serving.direct.check()
            for entry in entries:
                n += 1
                kind = entry.__class__
                if kind is Raw:  # of a large frame
                    entry = read_entry(entry)
                    kind = entry.__class__
                if kind is Queue:
                    handlers[kind](self, entry)
                    continue
                id = entry.id
                if kind is not Cancel:
                    if id <= last_id:
                        raise MalformedError(f"request {id} comes behind {last_id}")
                    self._last_id = last_id = id
                    self._n_open += 1
                try:
                    if kind is not Cancel and entry.deadline is not None:
                        self._begin_time(entry, came[n - 1] if came else None)
                    handlers[kind](self, entry)
                except LodeqError as error:
                    self.fail(id, error)
                except Exception as error:  # noqa: BLE001 - a bug of ours: logged, not shown
                    self._fail_unexpectedly(id, error)
                if self.cost > SLICE_COST or self.claimed_bytes > UNREAD_BYTES:
                    break
        except MalformedError as exc:
            self._refuse(UsageError(str(exc)), 400)
            return
        except LodeqError as error:  # the engine is closed: each hears so
            n = len(entries)
            if Raw in map(type, entries):
                self._refuse(error, 503)
                return
            for entry in entries:
                if entry.__class__ is not Queue and entry.__class__ is not Cancel:
                    self._n_open += 1
                    self.fail(entry.id, error)
        finally:
            self._is_slicing = False
        if n < len(entries):
            times = came[n:] if came else [self._loop.time()] * (len(entries) - n)
            self._backlog.extendleft(reversed([*zip(entries[n:], times, strict=True)]))
            self._go_on_soon()
        if self._out:
            self._flush()
        else:
            self._settle()

    def _begin_time(self, entry: Any, came: float | None) -> None:
        """A request with a deadline is about to begin.

        Raises:
            DeadlineExceededError: too late.
        """
        seconds = duration_s(entry.deadline, "deadline")
        entry.deadline = (self._loop.time() if came is None else came) + seconds
        if came is not None:
            self.check_time(entry.deadline)

    # -- requests at work (the operations call these) ------------------------------------

    def forget(self) -> None:
        """A request gets no answer any more."""
        self._n_open -= 1
        self._settle()

    def waits(self, is_waiting: bool) -> None:
        """Count a claim that waits apart from requests at work, or do so no more."""
        step = 1 if is_waiting else -1
        self._n_waiting += step
        self._n_open -= step

    def claim_id(self, id: int) -> bytes:
        """The id by which a claim can be taken back from elsewhere."""
        return claim_id_of(self.nonce, id)

    async def readable(self) -> bool:
        """Wait while the client does not read; False: it has gone."""
        while self._is_write_paused:
            await self._resumed.wait()
        return self.transport is not None

    def spawn(self, id: int, work: Coroutine[Any, Any, None]) -> Callable[[], object]:
        """Do the work of a request in a task of its own. It answers; its errors are answered.

        Returns what gives it up, without an answer.
        """
        task = self._loop.create_task(self._work(id, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.serving.tasks.add(task)
        task.add_done_callback(self.serving.tasks.discard)
        return partial(self._loop.call_soon, task.cancel)  # not before it has begun

    async def _work(self, id: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except LodeqError as error:
            self.fail(id, error)
        except Exception as error:  # noqa: BLE001 - a bug of ours: logged, not shown outside
            self._fail_unexpectedly(id, error)
        except BaseException:  # cancelled at shutdown
            self.forget()
            raise

    def _fail_unexpectedly(self, id: int, error: Exception) -> None:
        fields = {"event": "request_failed", "method": "link", "path": str(id)}
        _log.error("a request over the link failed", exc_info=error, extra=fields)
        self.fail(id, LodeqError("the server failed: see its log"), 500)

    def _settle(self) -> None:
        """Answers have left: go on with what was held, note that nothing is left to do."""
        if self._backlog or self._is_read_paused:
            if not self._is_slicing:
                self._go_on_soon()
        elif self._n_open == 0 and not self._out:
            if self._is_closing:
                self._end()
            elif self._is_busy and self._n_waiting == 0:
                self._is_busy = False
                self.admission.answered(self)

    def _give_back(self, leases: list[Any]) -> None:
        self.serving.direct.give_back(leases)

    # -- the end ---------------------------------------------------------------------------

    def _refuse(self, error: LodeqError, status: int) -> None:
        """Say that something the client has sent cannot be taken, and close."""
        if self._is_greeted:
            self.serving.refusals.count(status, self._loop.time())
            self._backlog.clear()  # nothing behind it is begun
            self._out.append((0, Status.PROBLEM, problem_of(error, status)))
            self._is_closing = True
            self._flush()
            self._end()
        else:
            self._turn_away(error, status)

    def shutdown(self) -> None:
        """The server stops: claims that wait are answered, requests at work are awaited."""
        if self._is_closing:
            return
        self._is_closing = True
        self._backlog.clear()  # not begun, as the goodbye says
        for claim in list(self.claims.values()):
            if claim.is_waiting:
                claim.end_wait()
        self._out.append((0, Status.GOODBYE, self._last_id))
        self._flush()

    def revoke(self) -> None:
        """Its token has lost its rights: nothing more is begun, and what waits ends its wait."""
        self.shutdown()
        self._settle()

    @property
    def has_unread(self) -> bool:
        """Whether it has sent something that has not been read yet."""
        return has_unread(self.transport)

    def shed(self) -> None:
        """Close it: there are too many."""
        if self._is_greeted:
            self._write(frames_of([(0, Status.GOODBYE, self._last_id)]))
            self._end()
        else:
            self._abort()

    def turn_away(self) -> None:
        """The same, of one at rest."""
        self.shed()

    def _end(self) -> None:
        """Say no more, and listen a moment longer: who is cut off while it writes reads no more."""
        self._is_closing = True
        if self.transport is None or self._is_ended:
            return
        self._is_ended = True
        self._backlog.clear()
        if self._stuck is None:
            self._stuck = self._loop.call_later(READ_WAIT_S, self._abort)
        self._forget_slow()
        self._slow = self._loop.call_later(LINGER_S, self.transport.close)
        self.transport.resume_reading()
        try:
            self.transport.write_eof()
        except (OSError, RuntimeError):  # the client has gone
            self.transport.close()

    def _forget_slow(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None


def _first_frame(version: int, is_welcome: bool, value: Any) -> bytes:
    return frame_of(bytes((version,)) + encode((is_welcome, value)))
