"""The main address of a store that several processes have: it leads clients on to them.

A client asks ``GET /v1/engine`` before anything else. Where the answer names ``processes`` it goes
on as the client of a cluster, whose nodes they are; no task passes through here. What is about the
whole store is answered here: health, totals, fsync, verify, checkpoints, ``/metrics`` and the
pages. Anything else is refused, with the addresses of the processes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...client import calls
from ...client.calls import Call, engine_call
from ...client.documents.wire import form_of
from ...client.transport.transport import Target, Transport
from ...engine.runtime.clock import SystemClock
from ...engine.runtime.current_loop import current_spawner
from ...errors import (
    AccessDeniedError,
    LodeqError,
    StorePathError,
    UnreachableError,
    UsageError,
)
from ..dashboard.pages.processes import ProcessLine
from ..dashboard.routes import Dashboard
from ..http.access.roles import ACCESS, ANY, FULL, Access, Role
from ..http.admission import Refusals
from ..http.guard import Guard, Settings, Uploads, for_one_token, refuse
from ..http.request_context import UnsupportedError, problem, wanted_form
from ..http.routes.operators import checkpoint_path
from .backup import joined_checkpoint
from .metrics_text import joined
from .supervisor import ProcessStatus

if TYPE_CHECKING:
    from anyio import CancelScope
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ...client.engine import RemoteEngine

__all__ = ["Front"]

SCRAPE_S: Final = 5.0  # until a process that does not give its metrics is left out
COPY_S: Final = 600.0  # for a process to copy its shards
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BODY_BYTES_MAX: Final = 64 << 10
_UPLOAD: Final = re.compile(r"/v1/queues/[^/]+/tasks/stream")
_Answer = Callable[["Request"], Awaitable[Any]]
_Check = Callable[[Access], None]


class _Polls:
    """Requests that wait: those of live pages."""

    def __init__(self) -> None:
        self._waiting: set[CancelScope] = set()
        self._is_closing = False

    @contextmanager
    def polling(self, scope: CancelScope) -> Iterator[None]:
        """Within the block, ``close_polls`` cancels the scope."""
        self._waiting.add(scope)
        if self._is_closing:
            scope.cancel()
        try:
            yield
        finally:
            self._waiting.discard(scope)

    def close_polls(self) -> None:
        """Answer all of them: the server closes."""
        self._is_closing = True
        for scope in list(self._waiting):
            scope.cancel()


class Front:
    """The application at the main address.

    Args:
        engine: a client of all processes.
        urls: by process, where clients reach it.
        statuses: of all processes, now.
        settings: token, hosts, folder of checkpoints.
        dashboard: ``read``, ``write`` or ``off``.
        refusals: the counter of refused requests.
    """

    def __init__(
        self,
        engine: RemoteEngine,
        urls: Sequence[str],
        statuses: Callable[[], Sequence[ProcessStatus]],
        settings: Settings,
        dashboard: str,
        refusals: Refusals,
    ) -> None:
        self._engine = engine
        self._urls = tuple(urls)
        self._statuses = statuses
        self._settings = settings
        self._copying = asyncio.Lock()
        routes = self._routes()
        if dashboard != "off":
            board = Dashboard(
                engine,
                access="write" if dashboard == "write" else "read",
                token=settings.token,
                processes=self._lines,
            )
            settings = board.guarded(settings, clients="write")
            routes += board.routes
        guards = [
            Middleware(Guard, settings=settings, refusals=refusals, uploads=_UPLOADS),
            Middleware(_ForOneToken),
        ]
        self.app = Starlette(routes=routes, middleware=guards)
        self.app.router.redirect_slashes = False
        self.app.state.hub = self.polls = _Polls()

    def _routes(self) -> list[BaseRoute]:
        looks, acts = _of_whole(Role.READER), _of_whole(Role.ADMIN)
        gets: dict[str, tuple[_Answer, _Check]] = {
            "/v1/engine": (self._of_engine, _any_role),
            "/v1/cluster": (self._map, _any_role),
            "/v1/health": (self._health, looks),
            "/v1/processes": (self._processes, looks),
            "/v1/stats": (partial(self._forward, "/stats"), looks),
            "/v1/queues": (self._queues, _reads_some),
        }
        posts: dict[str, tuple[_Answer, _Check]] = {
            "/v1/fsync": (self._fsync, acts),
            "/v1/verify": (self._verify, acts),
            "/v1/checkpoint": (self._checkpoint, acts),
        }
        elsewhere = _answering(self._elsewhere, _any_role)
        return [
            *(Route(path, _answering(*one), methods=["GET"]) for path, one in gets.items()),
            *(Route(path, _answering(*one), methods=["POST"]) for path, one in posts.items()),
            Route("/v1/{call:path}", elsewhere, methods=["GET", "POST", "DELETE"]),
            Route("/metrics", _checked(self._metrics, looks), methods=["GET"]),
        ]

    def _lines(self) -> list[ProcessLine]:
        return [
            ProcessLine(one.number, one.url, one.shards, one.pid, one.state, one.restarts, one.why)
            for one in self._statuses()
        ]

    # -- what clients ask ----------------------------------------------------------------------

    async def _of_engine(self, _: Request) -> Any:
        return await self._engine.send(engine_call("/engine"))

    async def _map(self, _: Request) -> Any:
        """The map of the cluster: nothing is led here."""
        now_us = SystemClock().wall_us()
        leaders = [self._urls[n % len(self._urls)] for n in range(self._engine.shards)]
        return {
            "shards": self._engine.shards,
            "led": [],
            "leaders": leaders,
            "members": list(self._urls),
            "now_us": now_us,
            "seq": now_us,
        }

    async def _health(self, _: Request) -> Any:
        """Health of all; a process that is down is named once, and not asked."""
        statuses = self._statuses()
        reasons = [one.problem for one in statuses if one.problem is not None]
        serving = [one for one in statuses if one.state == "serving"]
        asks = [self._ask(one.url, engine_call("/health"), SCRAPE_S) for one in serving]
        for one, found in zip(
            serving, await asyncio.gather(*asks, return_exceptions=True), strict=True
        ):
            if isinstance(found, BaseException):
                reasons.append(f"process {one.number} does not answer: {found}")
            else:
                reasons += [f"process {one.number}: {reason}" for reason in found["reasons"]]
        return {"ok": not reasons, "reasons": reasons}

    async def _processes(self, _: Request) -> Any:
        return {"processes": [one.document() for one in self._statuses()]}

    async def _forward(self, path: str, request: Request) -> Any:
        query = dict(request.query_params)
        return await self._engine.send(Call("GET", path, query=query, is_repeatable=True))

    async def _queues(self, request: Request) -> Any:
        access: Access = request.scope[ACCESS]
        if access.whole & Role.READER:
            return await self._forward("/queues", request)
        raise _ElsewhereError(
            f"token {access.name!r} is not for all queues: lodeq.connect and the commands ask the "
            f"processes for those that it may see, at {', '.join(self._urls)}"
        )

    async def _fsync(self, request: Request) -> Any:
        await _document(request)
        await self._engine.fsync()
        return {}

    async def _verify(self, request: Request) -> Any:
        await _document(request)
        report = await self._engine.verify()
        return {
            "ok": report.ok,
            "findings": [
                {
                    "shard": one.shard,
                    "kind": one.kind,
                    "detail": one.detail,
                    "task_id": None if one.task_id is None else one.task_id.hex(),
                }
                for one in report.findings
            ],
        }

    async def _checkpoint(self, request: Request) -> Any:
        folder = self._settings.checkpoints
        document = await _document(request)
        name = document.get("path")
        if folder is None:
            raise UsageError("this server makes no checkpoints: start it with --checkpoints DIR")
        if not isinstance(name, str):
            raise UsageError("a checkpoint needs 'path': its name below the server's folder")
        path = checkpoint_path(folder, name)
        copies = [partial(self._copy, url) for url in self._urls]
        async with self._copying:
            await joined_checkpoint(path, copies, self._engine.shards)
        return {"path": path}

    async def _copy(self, url: str, path: str) -> None:
        await self._ask(url, calls.checkpoint(path), COPY_S)

    async def _ask(self, url: str, call: Call, timeout_s: float) -> Any:
        """Ask one process, over a connection of its own."""
        transport = Transport(Target(url, self._settings.token, timeout_s))
        try:
            return await transport.send(call)
        finally:
            await transport.aclose()

    async def _elsewhere(self, request: Request) -> Any:
        if _is_upload(request.method, request.url.path):
            # Read, and forgotten: who is cut off while it writes reads no answer.
            left = self._settings.body_bytes_max
            async with aclosing(request.stream()) as parts:
                async for part in parts:
                    left -= len(part)
                    if left < 0:
                        break
        known = ", ".join(self._urls)
        raise _ElsewhereError(
            f"{request.method} {request.url.path} is not answered at this address: the store's "
            f"shards are open in {len(self._urls)} processes, at {known}; lodeq.connect and the "
            "commands go on to them by themselves. Snapshots, loads and archived purges need a "
            "store that one process serves"
        )

    # -- metrics -------------------------------------------------------------------------------

    async def _metrics(self, _: Request) -> Response:
        statuses = [one for one in self._statuses() if one.state == "serving"]
        found = await asyncio.gather(
            *(self._scrape(one.url) for one in statuses), return_exceptions=True
        )
        pages = {
            one.number: page
            for one, page in zip(statuses, found, strict=True)
            if not isinstance(page, BaseException)
        }
        page = await current_spawner().run_in_thread(partial(joined, pages, self._statuses()))
        return Response(page, headers={"content-type": _METRICS_TYPE})

    async def _scrape(self, url: str) -> str:
        target = Target(url, self._settings.token, SCRAPE_S)
        headers = {name: one for name, one in target.headers.items() if name == "authorization"}
        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(**target.transport_options()),
            base_url=target.base.removesuffix("/v1"),
            headers=headers,
            timeout=SCRAPE_S,
        ) as client:
            answer = await client.get("/metrics")
        if not answer.is_success:
            raise UnreachableError(f"{url} gives no metrics: {answer.status_code}")
        return answer.text


def _is_upload(method: str, path: str) -> bool:
    """Whether a process would read the body as it comes."""
    return method == "POST" and _UPLOAD.fullmatch(path) is not None


# They are led elsewhere, too, and not refused for their size; nothing of them is kept here.
_UPLOADS: Final = Uploads(_is_upload, bytes_max=10**18, kept_bytes_max=lambda: 0)


class _ElsewhereError(UsageError):
    """The call belongs to one of the processes."""


class _ForOneToken:
    """ASGI middleware: pages are for the server's one token, as those of any server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        path = scope.get("path", "")
        if scope["type"] == "http" and not path.startswith("/v1/") and path != "/metrics":
            access: Access = scope[ACCESS]
            if access is not FULL:
                await refuse(send, for_one_token(access), 403)
                return
        await self._app(scope, receive, send)


def _any_role(access: Access) -> None:
    access.require(ANY)


def _reads_some(access: Access) -> None:
    access.require(Role.READER)


def _of_whole(needs: Role) -> _Check:
    """A check for what is about the whole store."""
    return lambda access: access.require_whole(needs)


def _checked(
    handler: Callable[[Request], Awaitable[Response]], check: _Check
) -> Callable[[Request], Awaitable[Response]]:
    """A route that is refused to callers without a role."""

    async def answer(request: Request) -> Response:
        try:
            check(request.scope[ACCESS])
        except AccessDeniedError as error:
            return problem(error)
        return await handler(request)

    return answer


def _answering(handler: _Answer, check: _Check) -> Callable[[Request], Awaitable[Response]]:
    """A route whose answer is a document, in the form that the client accepts."""

    async def answer(request: Request) -> Response:
        headers = request.headers
        out = wanted_form(headers.get("accept", ""), headers.get("content-type"))
        try:
            check(request.scope[ACCESS])
            doc = await handler(request)
        except _ElsewhereError as error:
            return problem(error, 421)
        except UnsupportedError as error:
            return problem(error, 415)
        except StorePathError as error:
            return problem(error, 409)
        except LodeqError as error:
            return problem(error)
        return Response(out.dumps(doc), media_type=out.content_type)

    return answer


async def _document(request: Request) -> Mapping[str, Any]:
    """The document of a POST, whose media type a page of another site cannot state."""
    content_type = request.headers.get("content-type", "")
    form = form_of(content_type)
    if form is None:
        raise UnsupportedError(
            f"Content-Type {content_type!r}: send application/json or application/msgpack"
        )
    data = await request.body()
    if len(data) > _BODY_BYTES_MAX:
        raise UsageError(f"a document of {len(data)} bytes, at most {_BODY_BYTES_MAX}")
    found = form.loads(data) if data else {}
    if not isinstance(found, dict):
        raise UsageError("expected an object")
    return found
