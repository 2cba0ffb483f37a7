"""The application: routes under ``/v1``, and beside them the routes of others."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ... import __version__
from ...client.wire import JSON
from ...errors import LodeqError, UsageError

try:
    import msgspec  # noqa: F401 - the same extra
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute, Route
except ImportError as exc:
    raise UsageError('the HTTP service needs an extra: pip install "lodeq[http]"') from exc

from . import bulk_routes, claim_routes, enqueue_routes, operator_routes
from .admission import Refusals
from .guard import Guard, RefusedError, Settings
from .openapi import openapi
from .request_context import ClientGoneError, RequestContext, UnsupportedError, problem
from .server_state import ServerState

if TYPE_CHECKING:
    from ...repository.api.engine import Engine

__all__ = ["OPERATIONS", "make_app"]

Handler = Callable[[RequestContext], Awaitable[Response]]
_log = logging.getLogger("lodeq.http")

# (name, method, path, handler)
OPERATIONS: Sequence[tuple[str, str, str, Handler]] = (
    ("enqueue", "POST", "/queues/{queue}/tasks", enqueue_routes.enqueue),
    ("enqueue_many", "POST", "/tasks", enqueue_routes.enqueue_many),
    ("claim", "POST", "/leases/claim", claim_routes.claim),
    ("heartbeat", "POST", "/leases/heartbeat", claim_routes.heartbeat),
    ("complete", "POST", "/leases/complete", claim_routes.complete),
    ("nack", "POST", "/leases/nack", claim_routes.nack),
    ("release", "POST", "/leases/release", claim_routes.release),
    ("bury", "POST", "/leases/bury", claim_routes.bury),
    ("cancel_lease", "POST", "/leases/cancel", claim_routes.cancel),
    ("cancel_claim", "POST", "/leases/cancel_claim", claim_routes.cancel_claim),
    ("complete_many", "POST", "/leases/complete_many", claim_routes.complete_many),
    ("heartbeat_many", "POST", "/leases/heartbeat_many", claim_routes.heartbeat_many),
    ("get", "GET", "/tasks/{task_id}", operator_routes.get),
    ("cancel", "DELETE", "/tasks/{task_id}", operator_routes.cancel),
    ("result", "GET", "/tasks/{task_id}/result", operator_routes.result),
    ("list", "GET", "/queues/{queue}/tasks", operator_routes.tasks),
    ("queue_stats", "GET", "/queues/{queue}/stats", operator_routes.queue_stats),
    ("redrive", "POST", "/queues/{queue}/redrive", operator_routes.redrive),
    ("purge", "POST", "/queues/{queue}/purge", operator_routes.purge),
    ("pause", "POST", "/queues/{queue}/pause", operator_routes.pause),
    ("resume", "POST", "/queues/{queue}/resume", operator_routes.resume),
    ("engine", "GET", "/engine", operator_routes.engine),
    ("stats", "GET", "/stats", operator_routes.stats),
    ("queues", "GET", "/queues", operator_routes.queues),
    ("health", "GET", "/health", operator_routes.health),
    ("verify", "POST", "/verify", operator_routes.verify),
    ("checkpoint", "POST", "/checkpoint", operator_routes.checkpoint),
    ("migrate_bodies", "POST", "/migrate_bodies", operator_routes.migrate_bodies),
    ("snapshot", "POST", "/snapshots", bulk_routes.snapshot),
    ("snapshots", "GET", "/snapshots", bulk_routes.snapshots),
    ("release_snapshot", "DELETE", "/snapshots/{snapshot_id}", bulk_routes.release_snapshot),
    ("ingest", "POST", "/ingest", bulk_routes.ingest),
    ("forget_loads", "POST", "/forget_loads", bulk_routes.forget_loads),
    ("purge_archived", "POST", "/purge_archived", bulk_routes.purge_archived),
    ("fsync", "POST", "/fsync", operator_routes.fsync),
)


def make_app(
    engine: Engine,
    settings: Settings | None = None,
    *,
    routes: Sequence[BaseRoute] = (),
    refusals: Refusals | None = None,
) -> Starlette:
    """An ASGI application that serves ``engine``, on the loop that it was opened on.

    Args:
        engine: stays the caller's: it is not closed here.
        settings: token, accepted hosts and limits; by default no token and loopback's names.
        routes: more routes beside ``/v1`` (a dashboard, ``/metrics``), behind the same guard.
        refusals: where what is refused is counted, if others count there, too.

    ``app.state.hub.close_polls()`` answers who waits; call it before the server stops.
    """
    the_settings = settings if settings is not None else Settings()
    server = ServerState(engine, the_settings)
    _document()  # made once, before anybody waits
    own = [
        Route(f"/v1{path}", _endpoint(server, handler), methods=[method], name=name)
        for name, method, path, handler in OPERATIONS
    ]
    own.append(Route("/v1/openapi.json", _openapi))
    app = Starlette(
        routes=[*own, *routes],
        middleware=[Middleware(Guard, settings=the_settings, refusals=refusals)],
        exception_handlers={HTTPException: _not_here},
    )
    app.router.redirect_slashes = False
    app.state.hub = server
    return app


@cache
def _document() -> bytes:
    return JSON.dumps(openapi(OPERATIONS, __version__))


def _openapi(_: Request) -> Response:
    return Response(_document(), media_type=JSON.content_type)


def _endpoint(server: ServerState, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(RequestContext(server, request))
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
    """No such path, or not with this method."""
    status = getattr(error, "status_code", 500)
    answer = problem(UsageError(f"{request.method} {request.url.path}: {error}"), status)
    for name, value in (getattr(error, "headers", None) or {}).items():
        answer.headers[name] = value
    return answer
