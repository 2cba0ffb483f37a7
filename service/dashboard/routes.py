"""The dashboard's routes, to be served beside ``/v1`` behind the same guard.

::

    dashboard = Dashboard(engine, access="read", token=token)
    Server(engine, [listener], dashboard.guarded(settings), routes=dashboard.routes)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

from ...engine.runtime.ids import Rng, SystemRng
from ...engine.runtime.task_id import TaskId
from ...errors import BusyError, DuplicateTaskError, LodeqError, TaskNotFoundError, UsageError
from ...repository.api.engine import Engine
from ...repository.api.view import view_of
from .actions import (
    QUEUE_ACTIONS,
    TASK_ACTIONS,
    act_on_queue,
    act_on_task,
    check_state,
    done_text,
)
from .auth import NOT_OURS, Auth
from .details import queue_of, queue_page, task_page, tenant_of
from .host import PollRegister, SettingsT
from .live import Streams
from .live_figures import LiveFigures
from .overview import overview_of
from .sessions import Sessions
from .task_trace import Trace
from .templating import HEADERS, Pages, answer

try:
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import BaseRoute, Route
except ImportError as exc:
    raise UsageError('the dashboard needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["Access", "Dashboard"]

Access = Literal["read", "write"]
_Context = dict[str, Any]
_Show = Callable[[Request], Awaitable[tuple[str, _Context, int]]]
_STATIC: Final = {
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_STATUSES: Final = {TaskNotFoundError: 404, DuplicateTaskError: 409, UsageError: 422}


class Dashboard:
    """The pages of one engine, on the loop that it was opened on.

    Args:
        engine: an open one; the dashboard does not close it.
        access: ``read`` only shows; with ``write``, whoever may read may also cancel, redrive,
            pause and purge.
        token: the server's, to log in with; None where the server asks for none.
        rng: the source of session keys; the system's by default.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        access: Access = "read",
        token: str | None = None,
        rng: Rng | None = None,
    ) -> None:
        if access not in ("read", "write"):
            raise UsageError(f"access {access!r} is not 'read' or 'write'")
        self._engine = engine
        self._view = view_of(engine)
        self._figures = LiveFigures(engine)
        self._trace = Trace(engine)
        self._streams = Streams(self._view)
        sessions = Sessions(self._view.clock, rng or SystemRng(), token)
        self._can_write, self._needs_login = access == "write", sessions.needs_login
        self._pages = Pages(
            {
                "can_write": self._can_write,
                "needs_login": sessions.needs_login,
                "store": engine.path or "in memory",
                "durability": engine.durability,
                "shard_count": engine.shards,
            }
        )
        static = files(__package__) / "static"
        self._files = {name: (static / name).read_text("utf-8") for name in _STATIC}
        self._auth = Auth(sessions, self._pages)

    def guarded(self, settings: SettingsT) -> SettingsT:
        """A server's settings, extended so that browsers can log in.

        Raises:
            UsageError: the server has a token and the dashboard has none, or the other way round.
        """
        if (settings.token is not None) != self._needs_login:
            raise UsageError("the dashboard and the server take the same token")
        static = {f"/static/{name}" for name in _STATIC}
        return replace(
            settings,
            admits=self._auth.admits,
            login_path="/login",
            public_paths=settings.public_paths | static | {"/login"},
        )

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes of all pages, actions, streams and static files."""
        queue, task = "/queues/{queue}", "/tasks/{task_id}"
        shows: list[tuple[str, _Show]] = [
            ("", self._overview),
            (queue, self._queue),
            (task, self._task),
        ]
        found: list[BaseRoute] = [
            Route("/static/{name}", self._static, methods=["GET"]),
            Route("/login", self._auth.login, methods=["GET", "POST"]),
            Route("/logout", self._whole(self._auth.logout), methods=["POST"]),
            Route("/tasks/", self._whole(self._find), methods=["GET"]),
            Route(f"{queue}/{{action}}", self._whole(self._on_queue), methods=["GET", "POST"]),
            Route(f"{task}/{{action}}", self._whole(self._on_task), methods=["GET", "POST"]),
        ]
        for path, show in shows:
            found.append(Route(f"/live{path or '/'}", self._whole(self._live(show))))
            found.append(Route(path or "/", self._whole(self._page(show)), methods=["GET"]))
        return found

    # -- what is shown -------------------------------------------------------------------------

    async def _overview(self, request: Request) -> tuple[str, _Context, int]:
        part = request.query_params.get("q", "")[:64]
        return "overview", await overview_of(self._engine, self._figures, part), 200

    async def _queue(self, request: Request) -> tuple[str, _Context, int]:
        name = request.path_params["queue"]
        if not self._view.has_queue(name):
            raise TaskNotFoundError(f"there is no queue {name!r}, or it is empty now")
        query = request.query_params
        return "queue", await queue_page(self._engine, self._figures, name, query), 200

    async def _task(self, request: Request) -> tuple[str, _Context, int]:
        text = request.path_params["task_id"]
        found = await task_page(self._engine, self._trace, text)
        if found is None:
            raise TaskNotFoundError(f"there is no task {text}: it never existed, or was forgotten")
        return "task", found, 200

    async def _find(self, request: Request) -> Response:
        """Redirect to the page of the id that was typed."""
        task_id = TaskId(request.query_params.get("id", "").strip())
        return RedirectResponse(f"/tasks/{task_id}", 303, dict(HEADERS))

    # -- how it is shown -----------------------------------------------------------------------

    def _whole(
        self, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A handler whose errors become pages, and whose responses set a new session's cookie."""

        async def endpoint(request: Request) -> Response:
            try:
                response = await handler(request)
            except LodeqError as error:
                status = next((s for kind, s in _STATUSES.items() if isinstance(error, kind)), 503)
                response = self._auth.problem(request, str(error), status)
            return self._auth.with_cookie(request, response)

        return endpoint

    def _page(self, show: _Show) -> Callable[[Request], Awaitable[Response]]:
        async def page(request: Request) -> Response:
            template, context, status = await show(request)
            query = request.url.query
            context |= {
                "template": f"_{template}.html",
                "done": done_text(request.query_params),
                "live": f"/live{request.url.path}" + (f"?{query}" if query else ""),
                "form_token": self._auth.form_token(request),
            }
            return self._pages.page(f"{template}.html", context, status)

        return page

    def _live(self, show: _Show) -> Callable[[Request], Awaitable[Response]]:
        async def live(request: Request) -> Response:
            async def draw() -> Callable[[], str]:
                template, context, _ = await show(request)
                return partial(self._pages.render, f"_{template}.html", context)

            if request.method == "HEAD":
                await draw()
                return answer("", 200, "text/event-stream")
            name = f"{request.url.path}?{request.url.query}"
            try:
                self._streams.enter(name)
            except BusyError as error:
                return answer(str(error), 503, "text/plain")
            try:
                may_go_on = self._auth.still_open(request)
                return await self._streams.answer(_polls_of(request), name, draw, may_go_on)
            except BaseException:
                self._streams.leave(name)
                raise

        return live

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            return answer("no such file", 404, "text/plain")
        response = answer(self._files[name], 200, _STATIC[name])
        response.headers["cache-control"] = "no-cache"
        return response

    # -- what is done --------------------------------------------------------------------------

    async def _on_queue(self, request: Request) -> Response:
        name, action = request.path_params["queue"], request.path_params["action"]
        tenant = tenant_of(request.query_params)
        state = check_state(request.query_params.get("state", ""))
        if action not in QUEUE_ACTIONS or not self._view.has_queue(name):
            raise TaskNotFoundError(f"there is no {name!r} to {action}")
        whose = {} if tenant is None else {"tenant": tenant}
        back = f"/queues/{quote(name)}" + (f"?{urlencode(whose)}" if whose else "")
        if request.method == "POST":
            return await self._do(
                request, back, lambda: act_on_queue(self._engine, name, tenant, action, state)
            )
        subject = f"queue {name}" + ("" if tenant is None else f", tenant {tenant or '(none)'}")
        stats = await queue_of(self._engine, name, tenant).stats()
        question = QUEUE_ACTIONS[action]
        return self._ask(
            request,
            back,
            {
                "question": question,
                "subject": subject,
                "state": state,
                "stats": stats,
                "action": action,
            },
        )

    async def _on_task(self, request: Request) -> Response:
        task_id, action = TaskId(request.path_params["task_id"]), request.path_params["action"]
        task = await self._view.task(task_id, "none")
        if action not in TASK_ACTIONS or task is None:
            raise TaskNotFoundError(f"there is no task {task_id} to {action}")
        back = f"/tasks/{task_id}"
        if request.method == "POST":
            return await self._do(request, back, lambda: act_on_task(self._engine, task_id, action))
        return self._ask(
            request,
            back,
            {
                "question": TASK_ACTIONS[action],
                "subject": f"task {task_id}",
                "state": "",
                "stats": None,
                "action": action,
            },
        )

    def _ask(self, request: Request, back: str, context: _Context) -> Response:
        if not self._can_write:
            return self._auth.problem(request, _READ_ONLY, 403)
        context |= {"back": back, "form_token": self._auth.form_token(request)}
        return self._pages.page("confirm.html", context)

    async def _do(self, request: Request, back: str, act: Callable[[], Awaitable[str]]) -> Response:
        if not self._can_write:
            return self._auth.problem(request, _READ_ONLY, 403)
        form = await self._auth.form(request)
        if not self._auth.is_ours(request, form):
            return self._auth.problem(request, NOT_OURS, 403)
        joint = "&" if "?" in back else "?"
        return RedirectResponse(f"{back}{joint}{await act()}", 303, dict(HEADERS))


_READ_ONLY: Final = (
    "This dashboard is read-only. To act from it, start the service with --dashboard write."
)


def _polls_of(request: Request) -> PollRegister:
    polls: PollRegister = request.app.state.hub
    return polls
