"""``/metrics`` for the HTTP service, or for a Starlette application of your own."""

from __future__ import annotations

from ...errors import UsageError
from ...repository.api.engine import Engine
from .collector import CONTENT_TYPE, LodeqCollector, render

try:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as exc:
    raise UsageError('the HTTP service needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["metrics_route"]


def metrics_route(engine: Engine, path: str = "/metrics") -> Route:
    """A route that serves an engine's metrics. Make it on the engine's loop."""
    collector = LodeqCollector(engine)

    async def metrics(request: Request) -> Response:
        return Response(await render(collector), headers={"content-type": CONTENT_TYPE})

    return Route(path, metrics, methods=["GET"], name="metrics")
