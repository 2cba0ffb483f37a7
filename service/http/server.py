"""The server: uvicorn, with what it lacks against slow clients, and a shutdown that answers.

uvicorn bounds the size of a request's head but not its time, how long an idle connection may stay
but not one that never begins, and it waits for ever for one that does not read. ``_Protocol`` adds
what is missing. Signals are the caller's: uvicorn's
own handler would end the process before the engine is closed.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from anyio import CancelScope

from ...errors import UsageError
from .admission import Admission, Refusals
from .app import make_app
from .guard import ALWAYS, Settings

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as exc:
    raise UsageError('the HTTP service needs an extra: pip install "lodeq[http]"') from exc

if TYPE_CHECKING:
    import socket

    from starlette.routing import BaseRoute

    from ...repository.api.engine import Engine
    from .server_state import ServerState

__all__ = ["Server"]

HEAD_WAIT_S: Final = 10.0  # until a request's head must have come
READ_WAIT_S: Final = 30.0  # until a client has read enough of its answer
HEAD_BYTES_MAX: Final = 32 << 10
IDLE_S: Final = 75.0  # more than the clients keep a connection
GRACE_S: Final = 10.0
BACKLOG: Final = 2048  # connections that wait to be taken in
ACCEPTS: Final = 64  # taken in before those there are have their turn, and can send their heads


def _room(wanted: int, n_listeners: int) -> int:
    """How many callers each listener may have, so that the store has files left to open.

    An admission holds three times as many connections. A quarter of the files stays free.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft // (4 * max(1, n_listeners))))


class _Gate:
    """What all connections of a server share: an admission for each listener."""

    def __init__(self, connections_max: int, refusals: Refusals) -> None:
        self.refusals = refusals
        self._connections_max = connections_max
        self._by_listener: dict[object, Admission] = {}

    def admission_of(self, transport: asyncio.BaseTransport) -> Admission:
        """By the path of a unix socket, or the port."""
        name = transport.get_extra_info("sockname")
        key = name[1] if isinstance(name, tuple) else name
        found = self._by_listener.get(key)
        if found is None:
            found = self._by_listener[key] = Admission(self._connections_max)
        return found


class _Counting:
    """The logger of a connection: what it warns of, anybody can cause as often as he likes."""

    level: Final = logging.WARNING

    def __init__(self, refusals: Refusals, loop: asyncio.AbstractEventLoop) -> None:
        self._refusals = refusals
        self._loop = loop
        self._told = logging.getLogger("uvicorn.error").error

    def warning(self, message: str, *args: object) -> None:
        """Count it: no HTTP, or an upgrade to what is not spoken here."""
        self._refusals.count(400, self._loop.time())

    def error(self, message: str, *args: object, **options: Any) -> None:
        """A bug of ours: told in full."""
        self._told(message, *args, **options)


class _Protocol(H11Protocol):
    """One connection."""

    _slow: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, gate: _Gate, **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = gate
        self.logger = _Counting(gate.refusals, self.loop)  # type: ignore[assignment]
        self.app_state = {**self.app_state, "connection": self}  # the guard finds it in the scope

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.admission = self._gate.admission_of(transport)
        self._arm()
        self.admission.arrived(self)

    def shed(self) -> None:
        """There are too many."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            if self._slow is None:
                self._arm()
        else:
            self._disarm()
            self.admission.asked(self)

    def on_response_complete(self) -> None:
        self.admission.answered(self)
        super().on_response_complete()
        if not self.cycle.response_complete:  # one that had come behind it
            self.admission.asked(self)

    def send_400_response(self, msg: str) -> None:
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"connection", b"close"),
            *ALWAYS,
        ]
        body = msg.encode("ascii")
        try:
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # in the middle of another answer
            self.transport.abort()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.admission.left(self)
        self._disarm()
        self._forget_stuck()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(READ_WAIT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
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
        self, config: uvicorn.Config, hub: ServerState, on_ready: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self._hub = hub
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(BACKLOG)  # asyncio takes in as many in one go as it was told may wait
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close_polls()
        await super().shutdown(sockets)


class Server:
    """Serves an engine on sockets that listen already. asyncio only.

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
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        """Take over ``listeners``.

        Args:
            engine: stays the caller's; close it after ``run`` has returned.
            listeners: of ``listening``, which sees to who can reach them.
            settings: see ``Settings``.
            routes: what is served beside ``/v1``, behind the same guard.
            connections_max: of callers, by listener: see ``admission`` for who stays above it. No
                more than a quarter of the files that the process may open, for all listeners.
            on_ready: called once connections are accepted.
        """
        refusals = Refusals()
        room = _room(connections_max, len(listeners))
        app = make_app(engine, settings, routes=routes, refusals=refusals)
        config: dict[str, Any] = {
            "http": partial(_Protocol, gate=_Gate(room, refusals)),
            "ws": "none",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "proxy_headers": False,
            "timeout_keep_alive": int(IDLE_S),
            "h11_max_incomplete_event_size": HEAD_BYTES_MAX,
            "backlog": ACCEPTS,
            "timeout_graceful_shutdown": int(GRACE_S),
        }
        self._listeners = list(listeners)
        self._server = _Uvicorn(uvicorn.Config(app, **config), app.state.hub, on_ready)

    def stop(self) -> None:
        """Take no more connections, answer those who wait, then let ``run`` return."""
        self._server.should_exit = True

    async def run(self) -> None:
        """Serve.

        Durability: what was answered is what the engine acknowledged.
        Cancellation: as ``stop``, and then it is raised.
        """
        task = asyncio.ensure_future(self._server.serve(sockets=self._listeners))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self.stop()
            with CancelScope(shield=True):
                await task
            raise
