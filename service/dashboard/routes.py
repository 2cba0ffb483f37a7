"""The dashboard's routes, to be served beside ``/v1`` behind the same guard.

::

    dashboard = Dashboard(engine, access="read", token=token)
    Server(engine, [listener], dashboard.guarded(settings), routes=dashboard.routes)

With ``read`` the calls of that server change nothing either, unless ``guarded`` is told otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode

from ...engine.runtime.ids import Rng, SystemRng
from ...engine.runtime.task_id import TaskId
from ...errors import BusyError, DuplicateTaskError, LodeqError, TaskNotFoundError, UsageError
from ..shared.failure_text import failure_text
from .access.auth import NOT_OURS, Auth
from .access.grants import Access, granted, root_of
from .access.sessions import Sessions
from .host import PollRegister, SettingsT
from .live.figures import LiveFigures
from .live.streams import Streams
from .pages.actions import (
    QUEUE_ACTIONS,
    TASK_ACTIONS,
    WORKFLOW_ACTIONS,
    act_on_queue,
    act_on_task,
    act_on_workflow,
    check_state,
    done_text,
    policy_of,
)
from .pages.cluster import ClusterPage
from .pages.details import queue_of, queue_page, task_page, tenant_of
from .pages.functions import (
    cron_page,
    enqueue_from,
    find_function,
    functions_page,
    workers_page,
)
from .pages.overview import overview_of
from .pages.processes import ProcessesPage, ProcessLine
from .pages.search_pages import SearchPages
from .pages.task_trace import Trace
from .pages.workflows import workflow_page, workflows_page
from .remote import UNKNOWN, RemoteView
from .renderer import HEADERS, Pages, answer
from .source import AnyEngine, source_of

try:
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import BaseRoute, Route
except ImportError as exc:
    raise UsageError('the dashboard needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["Dashboard"]

_Context = dict[str, Any]
CALL_BYTES_MAX: Final = 64 << 10  # of a form with arguments
_Show = Callable[[Request], Awaitable[tuple[str, _Context, int]]]
_ID_PREFIX: Final = re.compile(r"[0-9a-fA-F][0-9a-fA-F-]*")
_ID_DIGITS: Final = 32
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
        secret: of a mounted dashboard, what its form tokens are signed with; by default a key that
            this process draws.
        processes: those that have the store, where several do.
    """

    def __init__(
        self,
        engine: AnyEngine,
        *,
        access: Access = "read",
        token: str | None = None,
        rng: Rng | None = None,
        secret: bytes | None = None,
        processes: Callable[[], Sequence[ProcessLine]] | None = None,
    ) -> None:
        if access not in ("read", "write"):
            raise UsageError(f"access {access!r} is not 'read' or 'write'")
        self._engine = engine
        self._view = source_of(engine)
        self._figures = LiveFigures(engine)
        self._trace = Trace(engine)
        self._cluster = ClusterPage(self._view)
        self._processes = ProcessesPage(processes)
        self._streams = Streams(self._view)
        rng = rng or SystemRng()
        sessions = Sessions(self._view.clock, rng, token, secret)
        self._can_write, self._needs_login = access == "write", sessions.needs_login
        self._pages = Pages(
            {
                "can_write": self._can_write,  # a mounted page says both anew
                "root": "",
                "needs_login": sessions.needs_login,
                "store": engine.path or "in memory",
                "durability": engine.durability,
                "shard_count": engine.shards,
                "is_replica": self._cluster.is_there,
                "has_processes": self._processes.is_there,
                "unknown": UNKNOWN if isinstance(self._view, RemoteView) else "",
            }
        )
        static = files(__package__) / "static"
        self._files = {name: (static / name).read_text("utf-8") for name in _STATIC}
        self._auth = Auth(sessions, self._pages)
        self._search = SearchPages(engine, self, self._pages, self._auth, rng)

    def guarded(self, settings: SettingsT, *, clients: Access | None = None) -> SettingsT:
        """A server's settings, extended so that browsers can log in.

        Args:
            settings: the server's.
            clients: what the calls under ``/v1`` may do; None: what the dashboard may.

        Raises:
            UsageError: the server has a token and the dashboard has none, or the other way round.
        """
        if (settings.token is not None) != self._needs_login:
            raise UsageError("the dashboard and the server take the same token")
        static = {f"/static/{name}" for name in _STATIC}
        return replace(
            settings,
            clients=clients or ("write" if self._can_write else "read"),
            admits=self._auth.admits,
            login_path="/login",
            public_paths=settings.public_paths | static | {"/login"},
        )

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes of all pages, actions, streams and static files."""
        queue, task = "/queues/{queue}", "/tasks/{task_id}"
        workflow = "/workflows/{workflow}"
        shows: list[tuple[str, _Show]] = [
            ("", self._overview),
            (queue, self._queue),
            (task, self._task),
            ("/workflows", self._workflows),
            (workflow, self._workflow),
            ("/functions", self._functions),
            ("/workers", self._workers),
            ("/cron", self._cron),
            ("/nodes", self._nodes),
            ("/find", self._search.show_search),
            ("/runs/{run}", self._search.show_run),
        ]
        found: list[BaseRoute] = [
            Route("/static/{name}", self._static, methods=["GET"]),
            Route("/login", self._auth.login, methods=["GET", "POST"]),
            Route("/logout", self._whole(self._auth.logout), methods=["POST"]),
            Route("/tasks/", self._whole(self._find), methods=["GET"]),
            *self._search.routes(self._whole),
            Route("/functions/{queue}", self._whole(self._call), methods=["GET", "POST"]),
            Route(f"{queue}/{{action}}", self._whole(self._on_queue), methods=["GET", "POST"]),
            Route(f"{task}/{{action}}", self._whole(self._on_task), methods=["GET", "POST"]),
            Route(
                f"{workflow}/{{action}}", self._whole(self._on_workflow), methods=["GET", "POST"]
            ),
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
        if not await self._has_queue(name):
            raise TaskNotFoundError(f"there is no queue {name!r}, or it is empty now")
        query = request.query_params
        return "queue", await queue_page(self._engine, self._figures, name, query), 200

    async def _has_queue(self, name: str) -> bool:
        if isinstance(self._view, RemoteView):
            has_tasks = name in (await self._figures.status()).queues
        else:
            has_tasks = self._view.has_queue(name)
        # One that is waiting for its first task: the page of functions links to it.
        return has_tasks or any(one.queue == name for one in await self._engine.functions())

    def is_writer(self, request: Request) -> bool:
        """Whether the user of a request may act."""
        grant = granted(request)
        return self._can_write if grant is None else grant.can_write

    def common(self, request: Request) -> _Context:
        """Values that all templates need to know of a request."""
        return {"root": root_of(request), "can_write": self.is_writer(request)}

    async def _task(self, request: Request) -> tuple[str, _Context, int]:
        text = request.path_params["task_id"]
        found = await task_page(self._engine, self._trace, text)
        if found is None:
            raise TaskNotFoundError(f"there is no task {text}: it never existed, or was forgotten")
        return "task", found, 200

    async def _workflows(self, request: Request) -> tuple[str, _Context, int]:
        return "workflows", await workflows_page(self._engine, request.query_params), 200

    async def _workflow(self, request: Request) -> tuple[str, _Context, int]:
        text = request.path_params["workflow"]
        return "workflow", await workflow_page(self._engine, text, request.query_params), 200

    async def _functions(self, request: Request) -> tuple[str, _Context, int]:
        part = request.query_params.get("q", "")[:64]
        return "functions", await functions_page(self._engine, part), 200

    async def _workers(self, request: Request) -> tuple[str, _Context, int]:
        return "workers", await workers_page(self._engine), 200

    async def _cron(self, request: Request) -> tuple[str, _Context, int]:
        return "cron", await cron_page(self._engine), 200

    async def _nodes(self, request: Request) -> tuple[str, _Context, int]:
        if self._processes.is_there:
            return "processes", self._processes.page(), 200
        return "nodes", await self._cluster.page(), 200

    async def _find(self, request: Request) -> Response:
        """Redirect to the page of the id that was typed; of its first digits, to a search."""
        text = request.query_params.get("id", "").strip()
        if _ID_PREFIX.fullmatch(text) and len(text.replace("-", "")) < _ID_DIGITS:
            to = f"find?id_prefix={text.lower()}"
        else:
            to = f"tasks/{TaskId(text)}"
        return RedirectResponse(f"{root_of(request)}/{to}", 303, dict(HEADERS))

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
                response = self._auth.problem(request, failure_text(error), status)
            return self._auth.with_cookie(request, response)

        return endpoint

    def _page(self, show: _Show) -> Callable[[Request], Awaitable[Response]]:
        async def page(request: Request) -> Response:
            template, context, status = await show(request)
            query = request.url.query
            path = request.scope["path"]
            context |= self.common(request) | {
                "template": f"_{template}.html",
                "done": done_text(request.query_params),
                "form_token": self._auth.form_token(request),
            }
            if not context.get("is_still"):
                live = f"{root_of(request)}/live{path}"
                context["live"] = live + (f"?{query}" if query else "")
            return self._pages.page(f"{template}.html", context, status)

        return page

    def _live(self, show: _Show) -> Callable[[Request], Awaitable[Response]]:
        async def live(request: Request) -> Response:
            async def draw() -> Callable[[], str]:
                template, context, _ = await show(request)
                context |= self.common(request)
                return partial(self._pages.render, f"_{template}.html", context)

            if request.method == "HEAD":
                await draw()
                return answer("", 200, "text/event-stream")
            right = "write" if self.is_writer(request) else "read"
            name = f"{right} {request.scope['path']}?{request.url.query}"
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
        if action not in QUEUE_ACTIONS or not await self._has_queue(name):
            raise TaskNotFoundError(f"there is no {name!r} to {action}")
        whose = {} if tenant is None else {"tenant": tenant}
        query = f"?{urlencode(whose)}" if whose else ""
        back = f"{root_of(request)}/queues/{quote(name)}{query}"
        if request.method == "POST":
            return await self._do(
                request,
                back,
                lambda form: act_on_queue(
                    self._engine, name, tenant, action, state, policy_of(form)
                ),
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
        back = f"{root_of(request)}/tasks/{task_id}"
        if request.method == "POST":
            return await self._do(
                request,
                back,
                lambda form: act_on_task(self._engine, task_id, action, policy_of(form)),
            )
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

    async def _on_workflow(self, request: Request) -> Response:
        workflow, action = TaskId(request.path_params["workflow"]), request.path_params["action"]
        info = await self._engine.workflow_info(workflow)
        if action not in WORKFLOW_ACTIONS or info.id != workflow:
            raise TaskNotFoundError(f"there is no workflow {workflow} to {action}")
        back = f"{root_of(request)}/workflows/{workflow}"
        if request.method == "POST":
            return await self._do(
                request, back, lambda _: act_on_workflow(self._engine, workflow, action)
            )
        return self._ask(
            request,
            back,
            {
                "question": WORKFLOW_ACTIONS[action],
                "subject": f"workflow {info.name or workflow}",
                "state": "",
                "stats": None,
                "workflow": info,
                "action": action,
            },
        )

    async def _call(self, request: Request) -> Response:
        """The form of a function's arguments; sent, the call is enqueued."""
        if not self.is_writer(request):
            return self.refuse(request)
        queue, name = request.path_params["queue"], request.query_params.get("name", "")
        one = await find_function(self._engine, queue, name)
        context: _Context = {"one": one, "given": {}, "error": ""}
        if request.method == "POST":
            form = await self._auth.form(request, bytes_max=CALL_BYTES_MAX, fields_max=80)
            if not self._auth.is_ours(request, form):
                return self._auth.problem(request, NOT_OURS, 403)
            task_id, error = await enqueue_from(self._engine, one, form)
            if task_id:
                to = f"{root_of(request)}/tasks/{task_id}"
                return RedirectResponse(to, 303, dict(HEADERS))
            context |= {"given": form, "error": error}
        context |= self.common(request) | {
            "back": f"{root_of(request)}/functions",
            "form_token": self._auth.form_token(request),
        }
        return self._pages.page("call.html", context, 422 if context["error"] else 200)

    def _ask(self, request: Request, back: str, context: _Context) -> Response:
        if not self.is_writer(request):
            return self.refuse(request)
        context |= self.common(request)
        context |= {"back": back, "form_token": self._auth.form_token(request)}
        return self._pages.page("confirm.html", context)

    def refuse(self, request: Request) -> Response:
        """The page for who may not act."""
        text = _READ_ONLY if granted(request) is None else _MAY_READ
        return self._auth.problem(request, text, 403)

    async def _do(
        self, request: Request, back: str, act: Callable[[Mapping[str, str]], Awaitable[str]]
    ) -> Response:
        if not self.is_writer(request):
            return self.refuse(request)
        form = await self._auth.form(request)
        if not self._auth.is_ours(request, form):
            return self._auth.problem(request, NOT_OURS, 403)
        joint = "&" if "?" in back else "?"
        return RedirectResponse(f"{back}{joint}{await act(form)}", 303, dict(HEADERS))


_READ_ONLY: Final = (
    "This dashboard is read-only. To act from it, start the service with --dashboard write."
)
_MAY_READ: Final = "You may read here, and not act: the application grants you no more."


def _polls_of(request: Request) -> PollRegister:
    polls: PollRegister = request.app.state.hub
    return polls
