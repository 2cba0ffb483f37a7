"""What the routes of a node share: errors as answers, and the small documents of requests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from ...errors import BusyError, LodeqError, UsageError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["answering", "document_of"]

BODY_BYTES_MAX: Final = 4096


def answering(handler: Callable[[Request], Awaitable[Response]]) -> Any:
    """A route's handler whose errors are answers: 400 the caller's, 409 try again, else 503."""
    from starlette.responses import JSONResponse  # noqa: PLC0415 - an extra

    async def answer(request: Request) -> Response:
        try:
            if request.method == "POST":
                _check_media(request)
            return await handler(request)
        except UsageError as error:
            return JSONResponse({"error": str(error)}, 400)
        except BusyError as error:
            return JSONResponse({"error": str(error)}, 409)
        except (LodeqError, OSError) as error:
            return JSONResponse({"error": str(error)}, 503)

    return answer


def _check_media(request: Request) -> None:
    """Refuse what a form of another site could send."""
    if request.headers.get("content-type", "").split(";")[0] != "application/json":
        raise UsageError("Content-Type must be application/json")


async def document_of(request: Request, bytes_max: int = BODY_BYTES_MAX) -> dict[str, Any]:
    """The document that a request carries; an empty one if it carries none, or a larger one."""
    given = await request.body()
    try:
        document = json.loads(given) if 0 < len(given) <= bytes_max else None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is no JSON: {error}") from error
    return document if isinstance(document, dict) else {}
