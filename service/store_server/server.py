"""The server of an embedded store: the interface, its dashboard and metrics, on the engine's loop.

It lives between two moments: the engine holds the store's lock when it starts, and still does when
it has stopped. So only the holder of the lock ever serves a store, and a socket that is found there
belongs to a server that died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...engine.files.paths import lock_path, normal_path
from ...engine.files.served_note import forget_note, leave_note
from ...engine.runtime.current_loop import current_spawner
from ...errors import StorageError, UsageError
from ...repository.api.serve_options import Serve, check_token
from ...repository.api.view import view_of
from ...repository.model.arguments import duration_s
from ..dashboard.routes import Dashboard
from ..http.access.tokens_file import TokensFile
from ..http.guard import Settings, loopback_hosts
from ..http.server import Server
from ..shared.origin import host_of
from .address import Address, address_of
from .forks import watch_forks

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from ...engine.runtime.event_loop import TaskHandle
    from ...repository.api.engine import Engine

__all__ = ["EmbeddedServer", "make_server"]

START_WAIT_S: Final = 10.0  # the loop accepts connections by then, or the open fails
HANG_S: Final = 3.0  # beyond the grace, until a server that does not end is left behind
_log: Final = logging.getLogger("lodeq.http")


def make_server(path: str | os.PathLike[str], serve: Serve) -> Callable[[], EmbeddedServer]:
    """Check the options, and return what makes the server; nothing is opened yet.

    Raises:
        UsageError, StorePathError: an option is wrong.
    """
    address = address_of(path, serve.address)
    token = check_token(serve.token, "serve=")
    grace_s = duration_s(serve.grace, "grace")
    if serve.dashboard not in ("read", "write", "off"):
        raise UsageError(f"dashboard must be 'read', 'write' or 'off', got {serve.dashboard!r}")
    for name in serve.hosts:
        if not host_of(name):
            raise UsageError(f"expected a host name in hosts ([…] around IPv6), got {name!r}")
    hosts = loopback_hosts | {host_of(name) for name in serve.hosts}
    if address.path is None:
        hosts |= {address.host.lower()}
    settings = Settings(
        token=token,
        tokens=None if serve.tokens is None else TokensFile(serve.tokens),
        hosts=frozenset(hosts),
        checkpoints=serve.checkpoints,
    )
    root = normal_path(path)
    return partial(EmbeddedServer, root, address, settings, serve.dashboard, grace_s, serve.routes)


class EmbeddedServer:
    """The server of one open store: the ``StoreServer`` of ``repository/api/store_server.py``.

    Args:
        root: the store's folder.
        address: where it listens.
        settings: of the interface.
        dashboard: ``read``, ``write`` or ``off``.
        grace_s: seconds that requests have to end once it is closed.
        more_routes: makes further routes.
    """

    def __init__(
        self,
        root: str,
        address: Address,
        settings: Settings,
        dashboard: str,
        grace_s: float,
        more_routes: Callable[[Any], Sequence[Any]] | None = None,
    ) -> None:
        self.address = ""
        self.problem: str | None = None
        self._root = root
        self._where = address
        self._settings = settings
        self._dashboard = dashboard
        self._grace_s = grace_s
        self._more_routes = more_routes
        self._pid = os.getpid()
        self._listener: socket.socket | None = None
        self._bound: tuple[int, int] | None = None
        self._server: Server | None = None
        self._task: TaskHandle | None = None
        self._ready = anyio.Event()
        self._ended = anyio.Event()
        self._is_closing = False

    @property
    def warning(self) -> str | None:
        """Why the file of tokens, as it is now, does not count."""
        tokens = self._settings.tokens
        if tokens is None or tokens.problem is None:
            return None
        return f"the tokens are those from before {tokens.path!r} changed: {tokens.problem}"

    @property
    def _required(self) -> str | None:
        """What keeps strangers out, if anything: the token, or the file of tokens."""
        tokens = self._settings.tokens
        return self._settings.token if tokens is None else tokens.path

    def check(self) -> None:
        """Refuse an address at which nothing can listen, and a loop that cannot serve.

        A socket that answers belongs to the holder of the lock, so it is only tried where there is
        no store yet. Of others the open says who holds them.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError as exc:
            raise UsageError(
                "serve= works on asyncio only: on trio leave it out, and let another process serve "
                "the store ('lodeq serve'); lodeq.connect works on trio"
            ) from exc
        is_new = not os.path.lexists(lock_path(self._root))
        self._where.check(self._root, self._required, is_probed=is_new)

    async def start(self, engine: Engine) -> None:
        """Listen, and leave the note in the store's folder.

        Raises:
            StorePathError: somebody else listens there, or nothing can.
        """
        listener = self._listener = self._where.listen(self._required)
        self._bound = _identity(self._where.path)
        self.address = self._where.url(listener)
        settings, routes = self._settings, _metrics_of(engine)
        if self._more_routes is not None:
            routes = [*routes, *self._more_routes(engine)]
        # Its pages are opened with the one token: where there are others alone, there are none.
        if self._dashboard != "off" and (settings.token is not None or settings.tokens is None):
            board = Dashboard(
                engine,
                access="write" if self._dashboard == "write" else "read",
                token=settings.token,
            )
            settings = board.guarded(settings, clients="write")
            routes = [*routes, *board.routes]
        server = self._server = Server(
            engine,
            [listener],
            settings,
            routes=routes,
            grace_s=self._grace_s,
            on_ready=self._ready.set,
        )
        self._task = current_spawner().spawn(partial(self._run, server), "lodeq-serve")
        watch_forks(self)
        with anyio.move_on_after(START_WAIT_S):
            await self._ready.wait()
        if self.problem is not None or not self._ready.is_set():
            raise StorageError(f"{self.address}: the server did not start: {self.problem}")
        if view_of(engine).processes() is None:  # else the note is the supervisor's
            self._leave_note()
        fields = {"event": "served", "path": self._root, "address": self.address}
        _log.info("serving %r at %r", self._root, self.address, extra=fields)

    def _leave_note(self) -> None:
        try:
            leave_note(self._root, self.address)
        except OSError as exc:  # a full disk is no reason not to start
            fields = {"event": "served_note_failed", "path": self._root}
            _log.warning("%r has no note of its address: %r", self._root, exc, extra=fields)

    async def _run(self, server: Server) -> None:
        try:
            await server.run()
        except Exception as error:  # noqa: BLE001 - health reports it, and the engine goes on
            self.problem = repr(error)
            fields = {"event": "server_failed", "address": self.address}
            _log.error("%r is not served any more", self.address, exc_info=error, extra=fields)
        finally:
            if self.problem is None and not self._is_closing:
                self.problem = "its task was cancelled"
            self._ready.set()
            self._ended.set()

    async def wait(self) -> None:
        """Wait until it serves no more, because it was closed or has failed.

        Durability: nothing to do. Cancellation: only ends the wait.
        """
        await self._ended.wait()

    async def close(self) -> None:
        """End polls, answer requests, stop; remove socket and note if they are still ours.

        Durability: nothing to do. Cancellation: call it again.
        """
        self._is_closing = True
        if os.getpid() != self._pid:
            return  # a forked child serves nothing, and removes nothing
        if self._server is not None and self._task is not None:
            self._server.stop()
            with anyio.move_on_after(self._grace_s + HANG_S) as waiting:
                await self._task.join()
            if waiting.cancelled_caught:
                fields = {"event": "server_left_behind", "address": self.address}
                _log.error("the server of %r does not end", self.address, extra=fields)
                self._task.cancel()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            forget_note(self._root)
            if self._where.path is not None and _identity(self._where.path) == self._bound:
                with suppress(OSError):  # not one that somebody else has put there since
                    os.unlink(self._where.path)

    def descriptors(self) -> list[int]:
        """The numbers of its open sockets, for a forked child."""
        return [] if self._server is None else self._server.descriptors()


def _identity(path: str | None) -> tuple[int, int] | None:
    """Device and inode of a file, whatever it is called now; None: there is none."""
    try:
        found = os.lstat(path or "")
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _metrics_of(engine: Engine) -> Sequence[BaseRoute]:
    """The route of the metrics, where their extra is installed."""
    try:
        from ..metrics.route import metrics_route  # noqa: PLC0415 - an extra
    except UsageError:
        return []
    return [metrics_route(engine)]
