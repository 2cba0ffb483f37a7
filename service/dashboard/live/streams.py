"""Server-sent events: the live part of a page is sent again whenever it has changed.

A stream renders the template that the page itself rendered, so the script only swaps HTML. Streams
of the same page share one rendering. A page that is slow to render is sent less often: one page
takes a twentieth of the loop at most, and so do all pages together.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

from anyio import CancelScope, Lock
from starlette.responses import Response, StreamingResponse

from ....errors import BusyError, LodeqError
from ...shared.origin import CONNECTION
from ..host import PollRegister
from ..renderer import HEADERS
from ..source import Source

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["STREAMS_MAX", "Draw", "Streams"]

STEP_S: Final = 1.0
SHARE: Final = 20
QUIET_STEPS: Final = 15  # then a comment is sent: proxies close silent connections
STREAMS_MAX: Final = 64
# Collects the context of a template, and returns a function that renders it in one go.
Draw = Callable[[], Awaitable[Callable[[], str]]]


class _Page:
    """The last rendering of a page that some streams show."""

    __slots__ = ("begun", "cost_s", "done", "due_mono", "event", "lock", "streams")

    def __init__(self) -> None:
        self.streams = 0
        self.lock = Lock()
        self.begun = 0  # number of the last rendering that has begun
        self.done = 0  # number of the last one that has ended
        self.cost_s = 0.0  # time of the loop that rendering took in one go
        self.due_mono = 0.0  # when the next rendering is due
        self.event = b""


class _Stream(StreamingResponse):
    def __init__(self, streams: Streams, name: str, events: AsyncIterator[bytes]) -> None:
        headers = {**HEADERS, "x-accel-buffering": "no"}
        super().__init__(events, 200, headers, "text/event-stream")
        self._streams = streams
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("state", {}).get(CONNECTION)
        try:
            if connection is not None and connection.has_ended:  # it sends no more, and has gone
                await Response(status_code=204)(scope, receive, send)
                return
            if connection is not None:
                connection.is_polling = True
            await super().__call__(scope, receive, send)
        finally:
            if connection is not None:
                connection.is_polling = False
            self._streams.leave(self._name)


def _shown(html: str) -> bytes:
    return f"event: show\ndata: {json.dumps(html)}\n\n".encode()


class Streams:
    """All streams of one dashboard."""

    def __init__(self, view: Source) -> None:
        self._view = view
        self._pages: dict[str, _Page] = {}
        self.open = 0

    def enter(self, name: str) -> None:
        """Count one more stream of the page ``name``.

        Raises:
            BusyError: ``STREAMS_MAX`` are open.
        """
        if self.open >= STREAMS_MAX:
            raise BusyError("too many browsers watch")
        self.open += 1
        self._pages.setdefault(name, _Page()).streams += 1

    def leave(self, name: str) -> None:
        """Count one stream less; the counterpart of ``enter``."""
        self.open -= 1
        page = self._pages[name]
        page.streams -= 1
        if not page.streams:
            del self._pages[name]

    async def answer(
        self, polls: PollRegister, name: str, draw: Draw, may_go_on: Callable[[], Awaitable[bool]]
    ) -> Response:
        """A stream that ends with the client, the server, the engine or the session.

        The page is rendered before the stream begins, by this request or by one that began since:
        a page that cannot be shown then gets an ordinary error, and the browser does not retry.

        Args:
            polls: those of the server; it ends the stream when it stops.
            name: of the page; streams share it by name. It was entered, the answer leaves it.
            draw: collects the context, and returns what renders it.
            may_go_on: asked before each event.
        """
        page = self._pages[name]
        await self._render(page, draw, page.begun + 1)
        return _Stream(self, name, self._events(polls, page, draw, may_go_on))

    async def _render(self, page: _Page, draw: Draw, wanted: int) -> None:
        """Render the page, unless rendering number ``wanted`` or a later one is done."""
        clock = self._view.clock
        async with page.lock:
            if page.done >= wanted:
                return
            self._view.check()
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
        self, polls: PollRegister, page: _Page, draw: Draw, may_go_on: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        number, sent, quiet = page.done, page.event, 0
        yield b"retry: 2000\n\n" + sent
        while await self._pause(polls, page.due_mono) and await may_go_on():
            try:
                await self._render(page, draw, number + 1)
            except LodeqError:
                return  # the engine is closed or the task is gone: the next request says so
            number = page.done
            quiet += 1
            if page.event is not sent:
                sent, quiet = page.event, 0
                yield sent
            elif quiet >= QUIET_STEPS:
                quiet = 0
                yield b": still here\n\n"

    async def _pause(self, polls: PollRegister, until_mono: float) -> bool:
        """Wait. Returns whether to go on: False once the server stops."""
        view = self._view
        future = view.spawner.future()
        timer = view.clock.call_at(
            view.spawner,
            until_mono,
            lambda: None if future.done() else future.set_result(None),
        )
        try:
            with CancelScope() as scope, polls.polling(scope):
                await future
        finally:
            timer.cancel()
        return not scope.cancelled_caught
