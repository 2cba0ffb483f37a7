"""The application: routes under ``/v1``, room beside them for what else is served."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from ... import __version__
from ...client.wire import JSON
from ...errors import LodeqError, UsageError

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute, Route
except ImportError as exc:
    raise UsageError('the HTTP service needs an extra: pip install "lodeq[http]"') from exc

from . import bulk, claiming, enqueueing, operating
from .exchange import ClientGoneError, Exchange, UnsupportedError, problem
from .guard import Guard, RefusedError, Settings
from .hub import Hub
from .openapi import openapi

if TYPE_CHECKING:
    from ...repository.engine import Engine

__all__ = ["OPERATIONS", "make_app"]

Handler = Callable[[Exchange], Awaitable[Response]]
_log = logging.getLogger("lodeq.http")

# (name, method, path, handler)
OPERATIONS: Sequence[tuple[str, str, str, Handler]] = (
    ("enqueue", "POST", "/queues/{queue}/tasks", enqueueing.enqueue),
    ("enqueue_many", "POST", "/tasks", enqueueing.enqueue_many),
    ("claim", "POST", "/leases/claim", claiming.claim),
    ("heartbeat", "POST", "/leases/heartbeat", claiming.heartbeat),
    ("complete", "POST", "/leases/complete", claiming.complete),
    ("nack", "POST", "/leases/nack", claiming.nack),
    ("release", "POST", "/leases/release", claiming.release),
    ("bury", "POST", "/leases/bury", claiming.bury),
    ("cancel_lease", "POST", "/leases/cancel", claiming.cancel),
    ("cancel_claim", "POST", "/leases/cancel_claim", claiming.cancel_claim),
    ("complete_many", "POST", "/leases/complete_many", claiming.complete_many),
    ("heartbeat_many", "POST", "/leases/heartbeat_many", claiming.heartbeat_many),
    ("get", "GET", "/tasks/{task_id}", operating.get),
    ("cancel", "DELETE", "/tasks/{task_id}", operating.cancel),
    ("result", "GET", "/tasks/{task_id}/result", operating.result),
    ("list", "GET", "/queues/{queue}/tasks", operating.tasks),
    ("queue_stats", "GET", "/queues/{queue}/stats", operating.queue_stats),
    ("redrive", "POST", "/queues/{queue}/redrive", operating.redrive),
    ("purge", "POST", "/queues/{queue}/purge", operating.purge),
    ("pause", "POST", "/queues/{queue}/pause", operating.pause),
    ("resume", "POST", "/queues/{queue}/resume", operating.resume),
    ("engine", "GET", "/engine", operating.engine),
    ("stats", "GET", "/stats", operating.stats),
    ("queues", "GET", "/queues", operating.queues),
    ("health", "GET", "/health", operating.health),
    ("verify", "POST", "/verify", operating.verify),
    ("checkpoint", "POST", "/checkpoint", operating.checkpoint),
    ("migrate_bodies", "POST", "/migrate_bodies", operating.migrate_bodies),
    ("snapshot", "POST", "/snapshots", bulk.snapshot),
    ("snapshots", "GET", "/snapshots", bulk.snapshots),
    ("release_snapshot", "DELETE", "/snapshots/{snapshot_id}", bulk.release_snapshot),
    ("ingest", "POST", "/ingest", bulk.ingest),
    ("forget_loads", "POST", "/forget_loads", bulk.forget_loads),
    ("purge_archived", "POST", "/purge_archived", bulk.purge_archived),
    ("fsync", "POST", "/fsync", operating.fsync),
)


def make_app(
    engine: Engine,
    settings: Settings | None = None,
    *,
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """An ASGI application that serves ``engine``, on the loop that it was opened on.

    Args:
        engine: stays the caller's: it is not closed here.
        settings: token, accepted hosts and limits; by default no token and loopback's names.
        routes: more routes beside ``/v1`` (a dashboard, ``/metrics``), behind the same guard.

    ``app.state.hub.close_polls()`` answers who waits; call it before the server stops.
    """
    the_settings = settings if settings is not None else Settings()
    hub = Hub(engine, the_settings)
    own = [
        Route(f"/v1{path}", _endpoint(hub, handler), methods=[method], name=name)
        for name, method, path, handler in OPERATIONS
    ]
    document = openapi(OPERATIONS, __version__)
    own.append(
        Route(
            "/v1/openapi.json",
            lambda _: Response(JSON.dumps(document), media_type=JSON.content_type),
        )
    )
    app = Starlette(
        routes=[*own, *routes],
        middleware=[Middleware(Guard, settings=the_settings)],
        exception_handlers={HTTPException: _not_here},
    )
    app.router.redirect_slashes = False
    app.state.hub = hub
    return app


def _endpoint(hub: Hub, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(Exchange(hub, request))
        except UnsupportedError as error:
            return problem(error, 415)
        except LodeqError as error:
            return problem(error)
        except (ClientGoneError, ClientDisconnect):
            return Response(status_code=503)  # to nobody
        except RefusedError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours: told in the log, not outside
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
