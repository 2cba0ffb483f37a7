"""The server: uvicorn, with limits on slow clients and a shutdown that answers long polls.

uvicorn bounds neither the size of a request's head nor its time, and an idle connection but not one
that never sends anything; it waits for ever for a client that does not read, and writes the head
and the body of an answer one by one. ``_Protocol`` adds what is missing. Signals are the caller's:
uvicorn's own handler would end the process before the engine is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from anyio import CancelScope, move_on_after, sleep

from ...client.documents.problems import CONTENT_TYPE, problem_of
from ...client.transport.layout import FIRST_BYTE
from ...errors import UsageError
from ..shared.origin import CONNECTION
from .admission import Admission, Refusals, TooManyError, has_unread
from .app import make_app
from .guard import ALWAYS, ANSWERS_BYTES_MAX, HEAD_BYTES_MAX, Settings
from .link.connection import LinkConnection
from .link.serving import LinkServing
from .unread_answers import UnreadAnswers

try:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
except ImportError as exc:
    raise UsageError('the HTTP service needs an extra: pip install "lodeq[http]"') from exc

if TYPE_CHECKING:
    import socket

    from starlette.applications import Starlette
    from starlette.routing import BaseRoute

    from ...repository.api.engine import Engine
    from .server_state import ServerState

__all__ = ["AppServer", "Server"]

_log = logging.getLogger("lodeq.http")

HEAD_WAIT_S: Final = 10.0  # until a request's head must have arrived
READ_WAIT_S: Final = 30.0  # until a client must have read enough of its answer
IDLE_S: Final = 75.0  # longer than our clients keep a connection
GRACE_S: Final = 10.0
LINGER_S: Final = 0.25  # for what a client that is turned away is just writing
STOP_LOOK_S: Final = 0.02  # between looks whether the requests of a stop have ended
CUT_S: Final = 1.0  # what was cancelled has to end by then, or is left behind
PIPELINED_MAX: Final = 64  # requests behind the one that is answered; then it is cut
HELD_BYTES_MAX: Final = 64 << 10  # of an answer, joined to one write
BACKLOG: Final = 2048  # connections that wait to be accepted
ACCEPTS: Final = 64  # accepted in one turn of the loop, before the others can send their heads


def _connections_max(wanted: int, n_listeners: int) -> int:
    """Connections that each listener may have, so that the store has files left to open.

    An ``Admission`` holds up to three times as many, and half as many that leave. An eighth of the
    process's files stays free.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft // (4 * max(1, n_listeners))))


class _Hub(Protocol):
    """The state of an application."""

    def close_polls(self) -> object:
        """Answer all requests that wait: the server closes."""


class _Gate:
    """State that all connections of a server share: an admission for each listener."""

    def __init__(
        self,
        connections_max: int,
        refusals: Refusals,
        linked: ServerState | None,
        unread: UnreadAnswers,
    ) -> None:
        self.refusals = refusals
        self.unread = unread
        self._linked = linked
        self._links: LinkServing | None = None
        self._connections_max = connections_max
        self._by_listener: dict[object, Admission] = {}

    def admission_of(self, transport: asyncio.BaseTransport) -> Admission:
        """The admission of the listener that accepted a connection: by path or port."""
        name = transport.get_extra_info("sockname")
        key = name[1] if isinstance(name, tuple) else name
        found = self._by_listener.get(key)
        if found is None:
            found = self._by_listener[key] = Admission(self._connections_max)
        return found

    def links(self, beside: _Protocol) -> LinkServing | None:
        """The state that links share; made with the first of them. None: only HTTP is spoken."""
        if self._links is None and self._linked is not None:
            self._links = LinkServing(
                self._linked,
                self.refusals,
                beside.connections,
                beside.tasks,
                beside.loop,
                self.unread,
            )
        return self._links


class _Counting:
    """The logger of a connection: warnings, which anybody can cause at will, are only counted."""

    level: Final = logging.WARNING

    def __init__(self, refusals: Refusals, loop: asyncio.AbstractEventLoop) -> None:
        self._refusals = refusals
        self._loop = loop
        self._log_error = logging.getLogger("uvicorn.error").error

    def warning(self, message: str, *args: object) -> None:
        """Count a request that is not HTTP, or asks for another protocol."""
        self._refusals.count(400, self._loop.time())

    def error(self, message: str, *args: object, **options: Any) -> None:
        """Log a bug of ours in full."""
        self._log_error(message, *args, **options)


class _OneWrite:
    """The transport of an answer: its head waits for its body, for a turn of the loop at most."""

    __slots__ = ("_held", "_held_bytes", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0

    def write(self, data: bytes) -> None:
        """Write with what comes next."""
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX:
            self.flush()
            self._transport.write(data)
            return
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)

    def flush(self) -> None:
        """Write what is held."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            self._transport.write(b"".join(held))

    def close(self) -> None:
        """Close it, once everything is written."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._transport.is_closing()


class _Protocol(HttpToolsProtocol):
    """One connection."""

    _head_bytes = 0  # of a head that has not come to its end
    _is_whole = True  # the last request has come to its end
    _is_new = True
    _is_leaving = False
    has_ended = False  # the client sends no more
    is_polling = False  # what it has asked waits
    _slow: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, gate: _Gate, **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = gate
        self.logger = _Counting(gate.refusals, self.loop)  # type: ignore[assignment]
        self.app_state = {**self.app_state, CONNECTION: self}  # the guard finds it in the scope

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answers = _OneWrite(transport, self.loop)
        self.admission = self._gate.admission_of(transport)
        self._arm()
        self.admission.arrived(self)

    @property
    def has_unread(self) -> bool:
        """Whether it has sent something that has not been read yet."""
        return has_unread(self.transport)

    def shed(self) -> None:
        """Close it: there are too many."""
        self.transport.abort()

    def turn_away(self) -> None:
        """Answer 503 before anything is asked, and listen a moment longer.

        Who is cut off while it writes would not read the answer.
        """
        self._is_leaving = True
        self._disarm()
        self._unset_keepalive_if_required()
        error = TooManyError("the server has as many callers as it accepts: try again")
        doc = json.dumps(problem_of(error)).encode()
        if not self._answer_early(503, CONTENT_TYPE.encode(), doc):
            return
        self._slow = self.loop.call_later(LINGER_S, self.transport.abort)
        try:
            self.transport.write_eof()
        except (OSError, RuntimeError):  # the client has gone
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_leaving:
            return
        if self._is_new:
            self._is_new = False
            links = self._gate.links(self) if data[0] == FIRST_BYTE else None
            if links is not None:  # neither HTTP nor TLS begins so
                self._become_link(links, data)
                return
        if self._is_whole:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_whole and self._head_bytes > HEAD_BYTES_MAX:
            self._head_bytes = 0
            self.send_400_response(f"The request's head is larger than {HEAD_BYTES_MAX} bytes.")
        if self.cycle is None or self.cycle.response_complete:
            if self._slow is None:
                self._arm()
        else:
            self._disarm()
            self.admission.asked(self)

    def _become_link(self, links: LinkServing, data: bytes) -> None:
        """Hand the connection over to the link (docs/link.md)."""
        self._disarm()
        self.connections.discard(self)
        self.admission.left(self)
        link = LinkConnection(links, self.admission)
        self.transport.set_protocol(link)
        link.connection_made(self.transport)
        link.data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. What it has asked is answered, unless it is a call that waits.

        Whoever closes both ways looks the same, and takes nothing that it waits for.
        """
        self.has_ended = True
        is_asked = self.cycle is not None and not self.cycle.response_complete
        return is_asked and self._is_whole and not self.is_polling

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self._is_whole = False
        if len(self.pipeline) >= PIPELINED_MAX:
            raise UsageError("too many requests before the first is answered")
        super().on_headers_complete()
        self.cycle.transport = self._answers  # type: ignore[assignment]  # all that a cycle calls

    def on_message_complete(self) -> None:
        self._is_whole = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._answers.flush()
        self.admission.answered(self)
        super().on_response_complete()
        if not self.cycle.response_complete:  # a request that had arrived behind it
            self.admission.asked(self)
        elif self.has_ended:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self._answer_early(400, b"text/plain; charset=utf-8", msg.encode("ascii")):
            self.transport.close()

    def _answer_early(self, status: int, content_type: bytes, body: bytes) -> bool:
        """Answer what has not reached the application; False: it cannot be, and is closed."""
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()  # in the middle of another answer
            return False
        headers = (
            (b"content-type", content_type),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *ALWAYS,
        )
        head = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"".join((STATUS_LINE[status], *head, b"\r\n", body)))
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.admission.left(self)
        self._gate.unread.left(self)
        self._disarm()
        self._forget_stuck()
        super().connection_lost(exc)

    @property
    def unread_bytes(self) -> int:
        """Bytes that were written and that the system has not taken yet."""
        return self.transport.get_write_buffer_size()

    def cut(self) -> None:
        """Close it: it reads slowest, where too much is unread."""
        self._gate.refusals.count(503, self.loop.time())
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.loop.call_soon(self._note_unread)  # not in the middle of a write
        self._stuck = self.loop.call_later(READ_WAIT_S, self.transport.abort)

    def _note_unread(self) -> None:
        if self._stuck is not None:
            self._gate.unread.written(self, 0)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._gate.unread.left(self)
        self._forget_stuck()

    def _forget_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # it does not even read its last answer
        else:
            super().timeout_keep_alive_handler()

    def _arm(self) -> None:
        self._slow = self.loop.call_later(HEAD_WAIT_S, self.transport.abort)

    def _disarm(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, state: _Hub, on_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._state = state
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(BACKLOG)  # asyncio accepts as many at once as its backlog says
        self._on_ready()

    async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's own, without its log: it may serve the program around us, too."""
        if not self.config.loaded:
            self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets=sockets)
        if not self.should_exit:
            await self.main_loop()
        await self.shutdown(sockets=sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the polls, wait for the other requests, then cut what is left.

        Requests that have arrived get their answer; who sends another is not heard any more. At the
        end of the grace what still runs is cancelled, and every connection is cut.
        """
        self._state.close_polls()
        for server in self.servers:
            server.close()
        for one in sockets or ():
            one.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        await self._all_over(self.config.timeout_graceful_shutdown or 0.0)
        if state.connections or state.tasks:
            fields = {"event": "requests_cut", "count": len(state.tasks)}
            _log.warning("%d requests were cut at the stop", len(state.tasks), extra=fields)
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        await self._all_over(CUT_S)

    async def _all_over(self, within_s: float) -> None:
        """Wait until there is no connection and no request; uvicorn sets no event for it."""
        state = self.server_state
        with move_on_after(within_s):
            while state.connections or state.tasks:  # noqa: ASYNC110 - as above
                await sleep(STOP_LOOK_S)


class AppServer:
    """Serves an application on sockets that listen already. asyncio only.

    Args:
        app: its ``state.hub`` ends the requests that wait.
        listeners: from ``listen_unix`` and ``listen_tcp``, which decide who can reach them.
        refusals: the application's counter of refused requests.
        linked: the state of the engine that links reach; None: only HTTP is spoken.
        connections_max: known connections, by listener; ``admission`` says who stays above it.
            All listeners together take at most a quarter of the files the process may open.
        answers_bytes_max: of answers that are not read; beyond it the slowest reader is cut.
        grace_s: seconds that requests have to end once it stops.
        on_ready: called once connections are accepted.
    """

    def __init__(
        self,
        app: Starlette,
        listeners: Sequence[socket.socket],
        *,
        refusals: Refusals,
        linked: ServerState | None = None,
        connections_max: int = 1024,
        answers_bytes_max: int = ANSWERS_BYTES_MAX,
        grace_s: float = GRACE_S,
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        most = _connections_max(connections_max, len(listeners))
        gate = _Gate(most, refusals, linked, UnreadAnswers(answers_bytes_max))
        config: dict[str, Any] = {
            "http": partial(_Protocol, gate=gate),
            "ws": "none",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "proxy_headers": False,
            "timeout_keep_alive": int(IDLE_S),
            "backlog": ACCEPTS,
            "timeout_graceful_shutdown": grace_s,
        }
        self._listeners = list(listeners)
        self._server = _Uvicorn(uvicorn.Config(app, **config), app.state.hub, on_ready)

    def descriptors(self) -> list[int]:
        """The open files of the listeners and connections: a forked child has copies of them."""
        found = [one.fileno() for one in self._listeners]
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            inner = None if transport is None else transport.get_extra_info("socket")
            if inner is not None:
                found.append(inner.fileno())
        return [fd for fd in found if fd >= 0]

    def stop(self) -> None:
        """Accept no more connections, answer the long polls, then let ``run`` return."""
        self._server.should_exit = True

    async def run(self) -> None:
        """Serve until ``stop``.

        Durability: an answer means what the engine's acknowledgement means.
        Cancellation: as ``stop``; then it is raised.
        """
        task = asyncio.ensure_future(self._server.serve(sockets=self._listeners))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self.stop()
            with CancelScope(shield=True):
                await task
            raise


class Server(AppServer):
    """Serves an engine, over HTTP and over the link.

    ::

        server = Server(engine, [listen_unix("/run/lodeq.sock")])
        await server.run()      # until ``stop()``, or cancelled
    """

    def __init__(
        self,
        engine: Engine,
        listeners: Sequence[socket.socket],
        settings: Settings | None = None,
        *,
        routes: Sequence[BaseRoute] = (),
        connections_max: int = 1024,
        grace_s: float = GRACE_S,
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        """Take over ``listeners``.

        Args:
            engine: stays the caller's; close it after ``run`` has returned.
            listeners: as ``AppServer`` takes them.
            settings: see ``Settings``.
            routes: more routes beside ``/v1``, behind the same guard.
            connections_max: as ``AppServer`` takes it.
            grace_s: seconds that requests have to end once it stops.
            on_ready: called once connections are accepted.
        """
        refusals = Refusals()
        app = make_app(engine, settings, routes=routes, refusals=refusals)
        super().__init__(
            app,
            listeners,
            refusals=refusals,
            linked=None if app.state.hub.settings.clients == "read" else app.state.hub,
            connections_max=connections_max,
            answers_bytes_max=app.state.hub.settings.answers_bytes_max,
            grace_s=grace_s,
            on_ready=on_ready,
        )
