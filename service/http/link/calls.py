"""Calls over the link: any request of HTTP, answered by the same handler.

A ``CallRequest`` stands where a request of Starlette stands, as far as ``RequestContext`` looks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from ....client.documents.wire import MSGPACK_FORM
from ....client.transport.layout import OWN_FRAME_BYTES, PART_BYTES
from ....errors import LodeqError, PayloadTooLargeError, UsageError
from ...shared.origin import CONNECTION
from ..access.roles import ACCESS
from ..admission import TooManyError
from ..guard import RefusedError
from ..operations import OPERATIONS, Operation, called
from ..request_context import ClientGoneError, RequestContext, UnsupportedError
from . import requests
from .port import LinkPort

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest


__all__ = ["CallRequest", "answer_call"]

_HEADERS: Final = {
    "accept": MSGPACK_FORM.content_type,
    "content-type": MSGPACK_FORM.content_type,
}
_WAITING: Final = ("claim", "ready", "result")  # operations that may wait for a task
TIMER_S_MAX: Final = 1e6  # event loops take no timers for years
_GONE: Final = {"type": "http.disconnect"}


class CallRequest:
    """A request as handlers look at it."""

    def __init__(self, link: LinkPort, entry: requests.Call, path: Mapping[str, str]) -> None:
        self.headers: Mapping[str, str] = _HEADERS
        self.query_params: Mapping[str, str] = entry.query
        self.path_params = path
        self.scope = {"state": {CONNECTION: link}, ACCESS: link.access}
        self._document = entry.document or b""
        self._gone: asyncio.Event = asyncio.Event()

    async def body(self) -> bytes:
        """The document."""
        return self._document

    async def receive(self) -> dict[str, str]:
        """Wait until nobody wants the answer any more."""
        await self._gone.wait()
        return _GONE

    async def is_disconnected(self) -> bool:
        """Whether nobody wants the answer any more."""
        return self._gone.is_set()

    def give_up(self) -> None:
        """Nobody wants the answer any more: what waits, ends."""
        self._gone.set()


@lru_cache(maxsize=1024)
def _route(method: str, path: str) -> tuple[Operation, Mapping[str, str]] | None:
    """The operation at a path, and the parts of the path that it names."""
    for operation in OPERATIONS:
        if operation.method == method:
            found = _pattern(operation.path).match(path)
            if found is not None:
                return operation, {name: unquote(one) for name, one in found.groupdict().items()}
    return None


@lru_cache(maxsize=256)
def _pattern(path: str) -> Any:
    return compile_path(path)[0]


async def answer_call(link: LinkPort, entry: requests.Call) -> None:
    """Answer one call, unless its client wants it no more."""
    if link.calls.pop(entry.id, None) is None:  # taken back before it has begun
        link.forget()
        return
    found = _route(entry.method, entry.path) if len(entry.path) <= 1024 else None
    if found is None:
        error = UsageError(f"{entry.method[:20]} {entry.path[:200]}: Not Found")
        link.fail(entry.id, error, 404)
        return
    operation, parts = found
    hub = link.serving.hub
    size = len(entry.document or b"")
    limit = hub.settings.body_bytes_max
    if size > limit:
        text = f"the document is larger than {limit} bytes: send fewer tasks at once"
        raise PayloadTooLargeError(text, size_bytes=size, limit_bytes=limit)
    if hub.held_bytes + size > hub.settings.held_bytes_max:
        raise TooManyError("the server holds too many requests: try again")
    request = CallRequest(link, entry, parts)
    hub.held_bytes += size
    link.calls[entry.id] = request.give_up
    timer = None
    if entry.deadline is not None:
        left_s = entry.deadline - link.serving.loop.time()
        timer = link.serving.loop.call_later(min(left_s, TIMER_S_MAX), request.give_up)
    try:
        context = RequestContext(hub, cast("HttpRequest", request))
        if not operation.changes:  # what does has a small answer, and may be a heartbeat
            await link.serving.turns.begin()
        if operation.name in _WAITING:
            response = await called(operation, context)
        else:  # their answers are bounded together: not all that arrived at once are made at once
            async with link.calls_at_work:
                if not await link.readable():
                    raise ClientGoneError
                link.check_time(entry.deadline)
                response = await called(operation, context)
    except (ClientGoneError, ClientDisconnect):
        link.forget()
    except UnsupportedError as refusal:
        link.fail(entry.id, refusal, 415)
    except RefusedError as refused:
        link.fail(entry.id, refused.error, refused.status)
    else:
        link.serving.turns.answered(len(response.body))
        _answer(link, entry.id, response.status_code, bytes(response.body))
    finally:
        hub.held_bytes -= size
        link.calls.pop(entry.id, None)
        if timer is not None:
            timer.cancel()


def _answer(link: LinkPort, id: int, status: int, body: bytes) -> None:
    if status >= 400:
        try:
            link.fail_with(id, json.loads(body))
        except ValueError:
            link.fail(id, LodeqError(f"the server answered {status}"), status)
    elif len(body) > OWN_FRAME_BYTES:
        link.answer_parts(
            id, [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)]
        )
    else:
        link.answer_sized(id, body, len(body))
