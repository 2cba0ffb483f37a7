"""The server: uvicorn, with limits on slow clients and a shutdown that answers long polls.

uvicorn bounds the size of a request's head but not its time, and an idle connection but not one
that never sends anything; it waits for ever for a client that does not read. ``_Protocol`` adds
these limits. Signals are the caller's: uvicorn's own handler would end the process before the
engine is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import unquote

from anyio import CancelScope, move_on_after, sleep

from ...client.documents.problems import CONTENT_TYPE, problem_of
from ...client.transport.layout import FIRST_BYTE
from ...errors import UsageError
from ..shared.origin import CONNECTION
from .access.callers import Callers
from .admission import Admission, Refusals, TooManyError, has_unread
from .app import app_of
from .guard import ALWAYS, ANSWERS_BYTES_MAX, HEAD_BYTES_MAX, Settings
from .link.connection import LinkConnection
from .link.serving import LinkServing
from .server_state import ServerState
from .unread_answers import UnreadAnswers

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from .plain_request import OneWrite, PlainReader, PlainRequest
except ImportError as exc:
    raise UsageError('the HTTP service needs an extra: pip install "lodeq[http]"') from exc

if TYPE_CHECKING:
    import socket

    from starlette.applications import Starlette
    from starlette.routing import BaseRoute

    from ...repository.api.engine import Engine
    from .unread_answers import Reader

__all__ = ["AppServer", "Server"]

_log = logging.getLogger("lodeq.http")

HEAD_WAIT_S: Final = 10.0  # until a request's head must have arrived
READ_WAIT_S: Final = 30.0  # until a client must have read enough of its answer
IDLE_S: Final = 75.0  # longer than our clients keep a connection
GRACE_S: Final = 10.0
LINGER_S: Final = 0.25  # for what a client that is turned away is just writing
STOP_LOOK_S: Final = 0.02  # between looks whether the requests of a stop have ended
CUT_S: Final = 1.0  # what was cancelled has to end by then, or is left behind
# Of a request, as h11 has it; the third: it offers another protocol as well, which nobody takes.
_WHOLE: Final = (
    h11.DONE,
    h11.MUST_CLOSE,
    h11.MIGHT_SWITCH_PROTOCOL,  # type: ignore[attr-defined]  # documented, and left out of __all__
    h11.CLOSED,
)
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


class _Polls(Protocol):
    """The requests of an application that wait."""

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
        """Log a bug of ours in full. A request that a stop cuts is none, and is counted there."""
        if isinstance(options.get("exc_info"), asyncio.CancelledError):
            return
        self._log_error(message, *args, **options)


class _Protocol(H11Protocol):
    """One connection."""

    _is_new = True
    _is_leaving = False
    _is_plain = False  # the request that is answered, or was last
    _behind = b""  # what arrived behind a plain request
    has_ended = False  # the client sends no more
    is_polling = False  # what it has asked waits
    on_unsent: Callable[[], object] | None = None  # called if the last answer is not wholly sent
    _slow: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, gate: _Gate, **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = gate
        self._reader = PlainReader()
        self.logger = _Counting(gate.refusals, self.loop)  # type: ignore[assignment]
        self.app_state = {**self.app_state, CONNECTION: self}  # the guard finds it in the scope

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.admission = self._gate.admission_of(transport)
        self._answers = OneWrite(transport, self.loop)
        self._arm()
        self.admission.arrived(self)

    @property
    def has_unread(self) -> bool:
        """Whether it has sent something that has not been read yet."""
        return has_unread(self.transport)

    def shutdown(self) -> None:
        """The server stops: the answer that is under way is the last, and says so.

        uvicorn adds the header to answers to plain requests only. By it the client knows that what
        it has sent behind was not begun.
        """
        super().shutdown()
        if not self._is_plain and self.cycle is not None and not self.cycle.response_complete:
            self.cycle.default_headers = [*self.cycle.default_headers, (b"connection", b"close")]

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
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering:
            self.on_unsent = None  # its answer is followed by another
        if is_answering and self._is_plain:
            self._behind += data
            self.flow.pause_reading()
            return
        is_between = not is_answering and self.conn.their_state is h11.IDLE
        plain = None
        if is_between and not self.conn.trailing_data[0]:
            plain = self._reader.read(data)
        self._is_plain = plain is not None
        if plain is not None:
            self._answer_plain(plain)
        else:
            super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            if self._slow is None:
                self._arm()
        else:
            self._disarm()
            self.admission.asked(self)

    def _answer_plain(self, request: PlainRequest) -> None:
        """As uvicorn starts the application for others."""
        self._unset_keepalive_if_required()
        raw_path, _, query = request.target.partition(b"?")
        path = raw_path.decode("ascii")
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "method": request.method,
            "root_path": self.root_path,
            "path": self.root_path + unquote(path),
            "raw_path": self.root_path.encode("ascii") + raw_path,
            "query_string": query,
            "headers": request.headers,
            "state": self.app_state.copy(),
        }
        cycle = RequestResponseCycle(
            scope=self.scope,
            transport=self._answers,  # type: ignore[arg-type]  # all that a cycle calls
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )
        cycle.body += request.body
        cycle.more_body = False
        cycle.message_event.set()
        self.cycle = cycle  # type: ignore[assignment]  # of the other parser, and used alike
        task = self.loop.create_task(cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

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
        return is_asked and self.has_whole_request and not self.is_polling

    @property
    def has_whole_request(self) -> bool:
        """Whether the request that is answered has arrived to its end."""
        return self._is_plain or self.conn.their_state in _WHOLE

    @property
    def has_gone(self) -> bool:
        """Whether nobody reads its answers any more."""
        return self.transport.is_closing()

    def on_response_complete(self) -> None:
        self._answers.flush()
        self.admission.answered(self)
        super().on_response_complete()
        behind, self._behind = self._behind, b""
        if behind and not self.transport.is_closing():
            self.data_received(behind)
        elif not self.cycle.response_complete:  # a request that had arrived behind it
            self.on_unsent = None
            self.admission.asked(self)
        elif self.has_ended:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self._answer_early(400, b"text/plain; charset=utf-8", msg.encode("ascii")):
            self.transport.close()

    def _answer_early(self, status: int, content_type: bytes, body: bytes) -> bool:
        """Answer what has not reached the application; False: it cannot be, and is closed."""
        headers = [
            (b"content-type", content_type),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *ALWAYS,
        ]
        reason = HTTPStatus(status).phrase.encode()
        try:
            for event in (
                h11.Response(status_code=status, headers=headers, reason=reason),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # in the middle of another answer
            self.transport.abort()
            return False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.admission.left(self)
        self._gate.unread.left(self)
        self._disarm()
        if self._stuck is not None and self.on_unsent is not None:
            self.on_unsent()
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
    def __init__(
        self,
        config: uvicorn.Config,
        polls: _Polls,
        on_ready: Callable[[], object],
        callers: Callers | None,
    ) -> None:
        super().__init__(config)
        self._polls = polls
        self._on_ready = on_ready
        self._callers = callers

    async def on_tick(self, counter: int) -> bool:
        """Each tenth of a second: tokens that were removed lose their rights without a request."""
        if self._callers is not None:
            self._callers.look()
        return await super().on_tick(counter)

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
        self._polls.close_polls()
        for server in self.servers:
            server.close()
        for one in sockets or ():
            one.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        await self._all_over(self.config.timeout_graceful_shutdown or 0.0)
        if state.connections or state.tasks:
            readers = cast("set[Reader]", state.connections)
            n_unread = sum(one.unread_bytes > 0 for one in readers)
            links = [one for one in state.connections if isinstance(one, LinkConnection)]
            n_at_work = len(state.tasks) + sum(one.called_back_count for one in links)
            count = max(n_at_work, n_unread)  # where somebody reads slowly, one is both
            fields = {"event": "requests_cut", "count": count}
            _log.warning("%d requests were cut at the stop", count, extra=fields)
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            if isinstance(connection, LinkConnection):
                connection.give_back_unsent()
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
        app: what is served.
        polls: the requests of ``app`` that wait.
        listeners: from ``listen_unix`` and ``listen_tcp``, which decide who can reach them.
        refusals: the application's counter of refused requests.
        linked: the state of the engine that links reach; None: only HTTP is spoken.
        connections_max: known connections, by listener; ``admission`` says who stays above it.
            All listeners together take at most a quarter of the files the process may open.
        unread: the answers that are not read; beyond its bound the slowest reader is cut.
        grace_s: seconds that requests have to end once it stops.
        on_ready: called once connections are accepted.
    """

    def __init__(
        self,
        app: Starlette,
        polls: _Polls,
        listeners: Sequence[socket.socket],
        *,
        refusals: Refusals,
        linked: ServerState | None = None,
        connections_max: int = 1024,
        unread: UnreadAnswers | None = None,
        grace_s: float = GRACE_S,
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        most = _connections_max(connections_max, len(listeners))
        gate = _Gate(most, refusals, linked, unread or UnreadAnswers(ANSWERS_BYTES_MAX))
        config: dict[str, Any] = {
            "http": partial(_Protocol, gate=gate),
            "ws": "none",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "proxy_headers": False,
            "timeout_keep_alive": int(IDLE_S),
            "h11_max_incomplete_event_size": HEAD_BYTES_MAX,
            "backlog": ACCEPTS,
            "timeout_graceful_shutdown": grace_s,
        }
        self._listeners = list(listeners)
        callers = None if linked is None else linked.callers
        self._server = _Uvicorn(uvicorn.Config(app, **config), polls, on_ready, callers)

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
        state = ServerState(engine, settings if settings is not None else Settings())
        super().__init__(
            app_of(state, routes=routes, refusals=refusals),
            state,
            listeners,
            refusals=refusals,
            linked=None if state.settings.clients == "read" else state,
            connections_max=connections_max,
            unread=state.unread,
            grace_s=grace_s,
            on_ready=on_ready,
        )
