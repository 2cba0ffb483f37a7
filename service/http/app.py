"""The application: routes under ``/v1``, and beside them the routes of others."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ... import __version__
from ...client.documents.wire import JSON
from ...errors import AccessDeniedError, LodeqError, UsageError

try:
    import msgspec  # noqa: F401 - the same extra
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute, Match, Route
except ImportError as exc:
    raise UsageError('the HTTP service needs an extra: pip install "lodeq[http]"') from exc

from .access.roles import ACCESS, FULL, Access, Role
from .admission import Refusals
from .guard import Guard, RefusedError, Settings, Uploads, for_one_token
from .operations import OPERATIONS, Operation, called, openapi
from .request_context import ClientGoneError, RequestContext, UnsupportedError, problem
from .routes import (  # noqa: F401 - operations
    bulk,
    claims,
    cluster,
    enqueue,
    find,
    functions,
    history,
    operators,
    workflows,
)
from .server_state import ServerState

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ...repository.api.engine import Engine

__all__ = ["app_of", "make_app"]

_log = logging.getLogger("lodeq.http")
_Endpoint = Callable[[Request], Awaitable[Response]]
_READ_ONLY = (
    'here everybody may only read, as its dashboard\'s access="read" says: give it "write", or '
    'let clients write beside it with guarded(settings, clients="write")'
)


def make_app(
    engine: Engine,
    settings: Settings | None = None,
    *,
    routes: Sequence[BaseRoute] = (),
    refusals: Refusals | None = None,
) -> Starlette:
    """Make an ASGI application that serves ``engine``, on the loop that it was opened on.

    Args:
        engine: stays the caller's: it is not closed here.
        settings: token, accepted hosts and limits; by default no token and loopback's names.
        routes: more routes beside ``/v1`` (a dashboard, ``/metrics``), behind the same guard.
        refusals: the counter of refused requests, where others count there, too.

    ``app.state.hub.close_polls()`` answers all long polls; call it before the server stops.
    """
    server = ServerState(engine, settings if settings is not None else Settings())
    return app_of(server, routes=routes, refusals=refusals)


def app_of(
    server: ServerState, *, routes: Sequence[BaseRoute] = (), refusals: Refusals | None = None
) -> Starlette:
    """Make the application of a server whose state is there already; see ``make_app``."""
    _document()  # made once, before anybody waits
    own, direct = [], {}
    for one in OPERATIONS:
        path, endpoint = f"/v1{one.path}", _endpoint(server, one)
        own.append(Route(path, endpoint, methods=[one.method], name=one.name))
        if "{" not in path:
            direct[one.method, path] = endpoint
    own.append(Route("/v1/openapi.json", _openapi))
    app = Starlette(
        routes=[*own, *routes],
        middleware=[
            Middleware(
                Guard,
                settings=server.settings,
                refusals=refusals,
                callers=server.callers,
                uploads=_uploads(server, own),
            ),
            Middleware(_Direct, endpoints=direct, own=own),
        ],
        exception_handlers={HTTPException: _not_here},
    )
    app.router.redirect_slashes = False
    app.state.hub = server
    return app


def _uploads(server: ServerState, own: Sequence[Route]) -> Uploads:
    """The operations that read their bodies as they come."""
    names = {one.name for one in OPERATIONS if one.streams}
    paths = [route.path_regex for route in own if route.name in names]

    def covers(method: str, path: str) -> bool:
        return method == "POST" and any(one.match(path) for one in paths)

    return Uploads(covers, server.limits.payload_bytes_max, server.view.kept_bytes_max)


class _Direct:
    """ASGI middleware: an operation whose path has no parts is found at once.

    Starlette tries its routes one by one, and wraps each call twice for errors that ``_endpoint``
    answers. Whatever is not found here it finds itself.

    Operations say themselves who may call them. What is none of ours does not, so it is kept here
    from tokens that may do a part: pages have sessions, nodes and the routes of others no roles.
    """

    def __init__(
        self,
        app: ASGIApp,
        endpoints: Mapping[tuple[str, str], _Endpoint],
        own: Sequence[Route],
    ) -> None:
        self._app = app
        self._endpoints = endpoints
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        found = None
        if scope["type"] == "http":
            found = self._endpoints.get((scope["method"], scope["path"]))
            if found is None:
                denied = self._denial(scope)
                if denied is not None:
                    await problem(denied)(scope, receive, send)
                    return
        if found is None:
            await self._app(scope, receive, send)
        else:
            response = await found(Request(scope, receive))
            await response(scope, receive, send)

    def _denial(self, scope: Scope) -> LodeqError | None:
        """Why a caller may not have what lies beside the operations; None: he may."""
        access: Access = scope[ACCESS]
        if access is FULL:
            return None
        if any(route.matches(scope)[0] is Match.FULL for route in self._own):
            return None
        if scope["path"].removeprefix(scope.get("root_path", "")) == "/metrics":
            try:
                access.require_whole(Role.READER)
            except AccessDeniedError as error:
                return error
            return None
        return for_one_token(access)


@cache
def _document() -> bytes:
    return JSON.dumps(openapi(OPERATIONS, __version__))


def _openapi(_: Request) -> Response:
    return Response(_document(), media_type=JSON.content_type)


def _endpoint(server: ServerState, operation: Operation) -> _Endpoint:
    is_refused = operation.changes and server.settings.clients == "read"

    async def endpoint(request: Request) -> Response:
        if is_refused:
            return problem(AccessDeniedError(_READ_ONLY), 403)
        try:
            return await called(operation, RequestContext(server, request))
        except UnsupportedError as error:
            return problem(error, 415)
        except LodeqError as error:
            return problem(error)
        except (ClientGoneError, ClientDisconnect):
            return Response(status_code=503)  # to nobody
        except RefusedError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours: logged, not shown outside
            method, path = request.method, request.url.path
            fields = {"event": "request_failed", "method": method, "path": path}
            _log.error("%r %r failed", method, path, exc_info=error, extra=fields)
            return problem(LodeqError("the server failed: see its log"), 500)

    return endpoint


async def _not_here(request: Request, error: Exception) -> Response:
    """Answer that the path does not exist, or not with this method."""
    status = getattr(error, "status_code", 500)
    answer = problem(UsageError(f"{request.method} {request.url.path}: {error}"), status)
    for name, value in (getattr(error, "headers", None) or {}).items():
        answer.headers[name] = value
    return answer
