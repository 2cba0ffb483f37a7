"""Server-sent events: the live part of a page again, whenever it has changed.

A stream renders what the page itself rendered, so there is one truth and the script needs to know
nothing of it. What costs long is sent seldom: a stream takes a twentieth of the loop at most.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

from anyio import CancelScope
from starlette.responses import Response, StreamingResponse

from ...errors import LodeqError
from ...repository.core import Core
from .rendering import HEADERS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ..http.hub import Hub

__all__ = ["STREAMS_MAX", "Streams"]

STEP_S: Final = 1.0
SHARE: Final = 20
QUIET_STEPS: Final = 15  # then something is sent nevertheless: a proxy may close what is silent
STREAMS_MAX: Final = 64


class _Stream(StreamingResponse):
    def __init__(self, streams: Streams, events: AsyncIterator[str]) -> None:
        headers = {**HEADERS, "x-accel-buffering": "no"}
        super().__init__(events, 200, headers, "text/event-stream")
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1


def _shown(html: str) -> str:
    return f"event: show\ndata: {json.dumps(html)}\n\n"


class Streams:
    """All streams of one dashboard."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.open = 0

    @property
    def is_full(self) -> bool:
        """Whether there are as many as there may be."""
        return self.open >= STREAMS_MAX

    def answer(
        self, hub: Hub, first: str, render: Callable[[], Awaitable[str]],
        may_go_on: Callable[[], bool],
    ) -> Response:  # fmt: skip
        """A stream that ends with the client, the server, the engine or the session.

        ``first`` is what is sent at once. What cannot be shown has an answer of its own, after
        which a browser does not ask again; so it is rendered before there is a stream.
        """
        return _Stream(self, self._events(hub, first, render, may_go_on))

    async def _events(
        self, hub: Hub, first: str, render: Callable[[], Awaitable[str]],
        may_go_on: Callable[[], bool],
    ) -> AsyncIterator[str]:  # fmt: skip
        yield f"retry: 2000\n\n{_shown(first)}"
        sent, quiet, pause_s = first, 0, STEP_S
        while await self._pause(hub, pause_s) and may_go_on():
            begun = self._core.clock.mono()
            try:
                html = await render()
            except LodeqError:
                return  # the engine is closed, or the task is gone: the next connect says so
            took = self._core.clock.mono() - begun
            quiet += 1
            if html != sent:
                sent, quiet = html, 0
                yield _shown(html)
            elif quiet >= QUIET_STEPS:
                quiet = 0
                yield ": still here\n\n"
            pause_s = max(STEP_S, SHARE * took)

    async def _pause(self, hub: Hub, seconds: float) -> bool:
        """Whether to go on: False once the server stops."""
        core = self._core
        future = core.spawner.future()
        timer = core.clock.call_at(
            core.spawner, core.clock.mono() + seconds,
            lambda: None if future.done() else future.set_result(None),
        )  # fmt: skip
        try:
            with CancelScope() as scope, hub.polling(scope):
                await future
        finally:
            timer.cancel()
        return not scope.cancelled_caught
