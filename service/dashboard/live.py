"""Server-sent events: the live part of a page again, whenever it has changed.

A stream renders what the page itself rendered, so there is one truth and the script needs to know
nothing of it. What several streams show is rendered once for all of them. What costs long is sent
seldom: a page takes a twentieth of the loop at most, and so do all pages together.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

from anyio import CancelScope, Lock
from starlette.responses import Response, StreamingResponse

from ...errors import BusyError, LodeqError
from ...repository.state.engine_state import EngineState
from .templating import HEADERS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ..http.server_state import ServerState

__all__ = ["STREAMS_MAX", "Draw", "Streams"]

STEP_S: Final = 1.0
SHARE: Final = 20
QUIET_STEPS: Final = 15  # then something is sent nevertheless: a proxy may close what is silent
STREAMS_MAX: Final = 64
# Gathers what is shown, and returns what renders it in one go.
Draw = Callable[[], Awaitable[Callable[[], str]]]


class _Page:
    """A page that some streams show, as it was rendered last."""

    __slots__ = ("begun", "cost_s", "done", "due_mono", "event", "lock", "streams")

    def __init__(self) -> None:
        self.streams = 0
        self.lock = Lock()
        self.begun = 0  # renders, by number
        self.done = 0  # the last of them that came to its end
        self.cost_s = 0.0  # what it took of the loop in one go
        self.due_mono = 0.0  # when the next one is
        self.event = b""


class _Stream(StreamingResponse):
    def __init__(self, streams: Streams, name: str, events: AsyncIterator[bytes]) -> None:
        headers = {**HEADERS, "x-accel-buffering": "no"}
        super().__init__(events, 200, headers, "text/event-stream")
        self._streams = streams
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.leave(self._name)


def _shown(html: str) -> bytes:
    return f"event: show\ndata: {json.dumps(html)}\n\n".encode()


class Streams:
    """All streams of one dashboard."""

    def __init__(self, core: EngineState) -> None:
        self._core = core
        self._pages: dict[str, _Page] = {}
        self.open = 0

    def enter(self, name: str) -> None:
        """Count one more that shows the page ``name``.

        Raises:
            BusyError: there are as many as there may be.
        """
        if self.open >= STREAMS_MAX:
            raise BusyError("too many browsers watch")
        self.open += 1
        self._pages.setdefault(name, _Page()).streams += 1

    def leave(self, name: str) -> None:
        """The other end of ``enter``."""
        self.open -= 1
        page = self._pages[name]
        page.streams -= 1
        if not page.streams:
            del self._pages[name]

    async def answer(
        self, hub: ServerState, name: str, draw: Draw, may_go_on: Callable[[], bool]
    ) -> Response:
        """A stream that ends with the client, the server, the engine or the session.

        What cannot be shown has an answer of its own, after which a browser does not ask again; so
        it is rendered before there is a stream: by itself, or by one that began since it was asked
        for.

        Args:
            hub: of the server.
            name: of the page, by which streams share it. It was entered; the answer leaves it.
            draw: gathers and renders it.
            may_go_on: asked before each of its events.
        """
        page = self._pages[name]
        await self._render(page, draw, page.begun + 1)
        return _Stream(self, name, self._events(hub, page, draw, may_go_on))

    async def _render(self, page: _Page, draw: Draw, wanted: int) -> None:
        """See to it that the render ``wanted``, or a later one, is done."""
        core, clock = self._core, self._core.clock
        async with page.lock:
            if page.done >= wanted:
                return
            core.check()
            begun = clock.mono()
            page.begun += 1
            number = page.begun
            render = await draw()
            drawn = clock.mono()
            event = _shown(render())
            now = clock.mono()
            if event != page.event:
                page.event = event
            page.done, page.cost_s = number, now - drawn
            all_s = sum(one.cost_s for one in self._pages.values())
            page.due_mono = begun + max(STEP_S, SHARE * (now - begun), SHARE * all_s)

    async def _events(
        self, hub: ServerState, page: _Page, draw: Draw, may_go_on: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        number, sent, quiet = page.done, page.event, 0
        yield b"retry: 2000\n\n" + sent
        while await self._pause(hub, page.due_mono) and may_go_on():
            try:
                await self._render(page, draw, number + 1)
            except LodeqError:
                return  # the engine is closed, or the task is gone: the next connect says so
            number = page.done
            quiet += 1
            if page.event is not sent:
                sent, quiet = page.event, 0
                yield sent
            elif quiet >= QUIET_STEPS:
                quiet = 0
                yield b": still here\n\n"

    async def _pause(self, hub: ServerState, until_mono: float) -> bool:
        """Whether to go on: False once the server stops."""
        core = self._core
        future = core.spawner.future()
        timer = core.clock.call_at(
            core.spawner,
            until_mono,
            lambda: None if future.done() else future.set_result(None),
        )
        try:
            with CancelScope() as scope, hub.polling(scope):
                await future
        finally:
            timer.cancel()
        return not scope.cancelled_caught
