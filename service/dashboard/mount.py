"""The dashboard as an ASGI application: mounted in somebody's web application, behind its login.

The host application says who may look: ``authorize`` is asked for every request, and every
``ASK_S`` seconds on a live page. Nothing is shown that it has not allowed; what it raises goes up
to the host. The store is looked up for each request, because an app opens it after the routes are
made.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from anyio import CancelScope

from ...client.documents.problems import problem_of
from ...client.engine import RemoteEngine
from ...errors import AccessDeniedError, LodeqError, UsageError
from ...repository.api.engine import Engine
from ..shared.origin import foreign_of
from .access.grants import Access, Grant, MountPath, grant_to, mount_path
from .renderer import HEADERS
from .routes import Dashboard
from .source import AnyEngine, source_of

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
except ImportError as exc:
    raise UsageError('the dashboard needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["ASK_S", "Authorize", "MountedDashboard", "Right"]

ASK_S: Final = 30.0  # between two questions about one live page
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Right = Access | None
Authorize = Callable[[Any], Awaitable[Right | tuple[Right, str | int]]]
_TOPS: Final = (
    "",
    "queues",
    "tasks",
    "workflows",
    "functions",
    "workers",
    "cron",
    "find",
    "runs",
    "live",
    "static",
    "logout",
)


class MountedDashboard:
    """An ASGI application: the pages of one store, for whoever ``authorize`` lets in.

    Args:
        store: an engine, a connected client, a ``lodeq.worker.App``, or a callable that returns
            one of them: it is called for each request.
        authorize: takes the scope of a request.
        login_url: where a browser that may not look is sent, with ``next=`` and the path that it
            wanted; others get a 401 that names it. None: all get a 403.
        hosts: names that ``Host`` may have, without the port; then ``Origin`` is checked as well.
            None: both are the host application's duty.
        secret: what form tokens are signed with, 16 bytes at least; None: a key that this process
            draws.
    """

    def __init__(
        self,
        store: Any,
        authorize: Authorize,
        *,
        login_url: str | None = None,
        hosts: Collection[str] | None = None,
        secret: str | bytes | None = None,
    ) -> None:
        if authorize is None or not callable(authorize):
            raise UsageError(
                "authorize= must be an async function of the request's scope that returns 'read', "
                "'write' or None; for pages that anybody may read write one that returns 'read'"
            )
        if isinstance(hosts, str):
            raise UsageError(f"hosts= takes a list of names, [{hosts!r}], not one string")
        key = secret.encode() if isinstance(secret, str) else secret
        if key is not None and len(key) < 16:
            raise UsageError("secret= must have 16 bytes at least")
        if not callable(store):
            _engine_of(store, is_open=False)
        self._store = store
        self._authorize = authorize
        self._login_url = login_url
        self._hosts = None if hosts is None else frozenset(name.lower() for name in hosts)
        self._secret = key
        self._made: tuple[AnyEngine, Starlette] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a host that passes the lifespan on is answered, too."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            app, inner = await self._admit(scope)
            await app(inner, receive, send)

    async def _admit(self, scope: Scope) -> tuple[Any, Scope]:
        """The application that answers a request, and the scope for it."""
        if self._hosts is not None:
            foreign = foreign_of(scope["headers"], scope["method"], self._hosts)
            if foreign is not None:
                return _plain(foreign, 403), scope
        where = mount_path(scope)
        if f"{where.inner}/".startswith("/v1/"):
            return _document(problem_of(UsageError(_NO_API), 404)), scope
        right, user = await self._ask(scope)
        if right is None:
            return self._refusal(scope, where), scope
        if where.is_bare:
            return _slashed(scope), scope
        if where.inner.split("/")[1] not in _TOPS:
            return _plain(_not_here(where), 404), scope
        try:
            engine, app = self._app()
        except LodeqError as error:
            return _plain(f"There is no open store to show: {error}", 503), scope
        inner = {name: value for name, value in scope.items() if name not in _OF_HOST}
        inner |= {
            "path": where.inner,
            "raw_path": where.inner.encode(),
            "root_path": "",
            "state": {},
        }
        still = self._still(scope, (right, user), engine)
        grant_to(inner, Grant(right == "write", user, where.mount, still))
        return app, inner

    # -- who may look --------------------------------------------------------------------------

    async def _ask(self, scope: Scope) -> tuple[Right, str]:
        """The answer of ``authorize``, checked: (right, user).

        Raises:
            UsageError: it returned something else. Nothing is shown then.
        """
        found: Any = self._authorize(dict(scope))
        if not hasattr(found, "__await__"):
            raise UsageError("authorize= must be async: 'async def authorize(scope): …'")
        found = await found
        right, user = found if isinstance(found, tuple) and len(found) == 2 else (found, "")
        is_right = right is None or right in ("read", "write")
        if not is_right or isinstance(user, bool) or not isinstance(user, str | int):
            raise UsageError(
                f"authorize returned {found!r}: return 'read', 'write' or None, or a pair of that "
                "and the user's name or number"
            )
        return right, str(user)

    def _still(
        self, scope: Scope, granted: tuple[Right, str], engine: AnyEngine
    ) -> Callable[[], Awaitable[bool]]:
        """Asks again when it is time: False once the answer is another one, or the server stops."""
        clock = source_of(engine).clock
        asked_mono = clock.mono()

        async def still() -> bool:
            nonlocal asked_mono
            if _is_server_stopping():
                return False
            if clock.mono() - asked_mono < ASK_S:
                return True
            asked_mono = clock.mono()
            return await self._ask(scope) == granted

        return still

    def _refusal(self, scope: Scope, where: MountPath) -> Any:
        """The answer for who may not look: a browser goes to the login, others read where it is."""
        if self._login_url is None:
            return _plain(_NOT_ALLOWED, 403)
        accept = dict(scope["headers"]).get(b"accept", b"")
        if b"text/html" in accept and scope["method"] in ("GET", "HEAD"):
            to = _with_next(self._login_url, scope, where)
            return RedirectResponse(to, 303, dict(HEADERS))
        text = f"{_NOT_ALLOWED} Log in at {self._login_url}"
        answer = _document(problem_of(AccessDeniedError(text), 401) | {"login": self._login_url})
        answer.headers["www-authenticate"] = 'Session realm="lodeq"'
        return answer

    # -- what is shown -------------------------------------------------------------------------

    def _app(self) -> tuple[AnyEngine, Starlette]:
        """The open store and the pages made for it: anew when the store was opened anew."""
        engine = _engine_of(self._store, is_open=True)
        if self._made is None or self._made[0] is not engine:
            pages = Dashboard(engine, secret=self._secret)
            app = Starlette(routes=pages.routes, exception_handlers={HTTPException: _problem})
            app.router.redirect_slashes = False
            app.state.hub = _NoPolls()
            self._made = engine, app
        return self._made


_NOT_ALLOWED: Final = "This application does not let you see its queues."
_NO_API: Final = (
    "this is the address of a dashboard, which is for browsers: commands and lodeq.connect take "
    "the store's folder, or the address at which its process serves it: unix://FOLDER.sock with "
    "serve=True, else the one that serve= or 'lodeq serve' names"
)

# What a host has put into the scope for itself, and what would mean something else further in.
_OF_HOST: Final = ("app", "app_root_path", "endpoint", "path_params", "route", "router", "state")


class _NoPolls:
    """A host does not say that it stops: ``_is_server_stopping`` is asked at each step."""

    @contextmanager
    def polling(self, scope: CancelScope) -> Iterator[None]:
        """Nothing to register."""
        del scope
        yield


def _engine_of(store: Any, *, is_open: bool) -> AnyEngine:
    """The engine of what the user has given.

    Raises:
        UsageError: it is no store, or an app whose store is not open.
    """
    found = store
    if is_open and callable(store):
        found = store()
    if isinstance(found, Engine | RemoteEngine):
        return found
    if hasattr(type(found), "backend"):  # an app
        return found.engine if is_open else found  # type: ignore[no-any-return]
    raise UsageError(
        "the dashboard shows an Engine, a connected client or an App, or what a callable returns; "
        f"got {type(found).__name__}"
    )


def _is_server_stopping() -> bool:
    """Whether the server of this process stops, if it is uvicorn.

    It waits for all answers to end without a word to them: a live page would hold it up forever.
    Its signal handler is a method of the server object, which knows.
    """
    server = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return getattr(server, "should_exit", False) is True


def _slashed(scope: Scope) -> Response:
    """To the same address with a slash at its end; relative, whatever stands before it."""
    raw = scope.get("raw_path")
    path = scope["path"] if raw is None else raw.partition(b"?")[0].decode("latin-1")
    path = path or scope.get("root_path", "")
    query = scope.get("query_string", b"").decode("latin-1")
    to = f"./{path.rpartition('/')[2]}/" + (f"?{query}" if query else "")
    return RedirectResponse(to, 303 if scope["method"] == "POST" else 307, dict(HEADERS))


def _not_here(where: MountPath) -> str:
    return (
        f"The dashboard has no page {where.inner}. If its mount is a part of that path, whoever "
        "dispatches to it has to put the mount into root_path, as Mount of Starlette does."
    )


def _with_next(login_url: str, scope: Scope, where: MountPath) -> str:
    """The address of the login, with the page that was wanted as ``next``: a path of this host.

    A login that names a ``next`` of its own keeps it.
    """
    parts = urlsplit(login_url)
    if "next" in parse_qs(parts.query, keep_blank_values=True):
        return login_url
    path = quote(f"{where.mount}{where.inner}".lstrip("/\\"), safe="/")
    query = scope.get("query_string", b"").decode("latin-1")
    wanted = f"/{path}?{query}" if query else f"/{path}"
    joint = f"{parts.query}&" if parts.query else ""
    return urlunsplit(parts._replace(query=f"{joint}next={quote(wanted, safe='/')}"))


def _document(doc: Mapping[str, Any]) -> Response:
    headers = dict(HEADERS)
    return JSONResponse(doc, doc["status"], headers, "application/problem+json")


def _plain(text: str, status: int) -> Response:
    return PlainTextResponse(text, status, dict(HEADERS))


async def _problem(request: Request, error: Exception) -> Response:
    """Answer that the path does not exist, or not with this method."""
    del request
    headers: Mapping[str, str] = getattr(error, "headers", None) or {}
    return PlainTextResponse(str(error), getattr(error, "status_code", 500), {**HEADERS, **headers})


async def _live(receive: Receive, send: Send) -> None:
    """Answer a server whose only application this is."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
