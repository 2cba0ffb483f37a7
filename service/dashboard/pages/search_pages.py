"""The pages of searches: find, confirm an act on all that was found, watch it, stop it, export."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, cast

from ....engine.runtime.ids import Rng
from ....errors import TaskNotFoundError, UsageError
from ....repository.model.arguments import check_priority
from ....repository.model.filters import ACTS, Act, FoundCount
from ...shared.found_files import MEDIA_TYPES, check_found_format, formats_here, found_chunks
from ..access.auth import NOT_OURS, Auth
from ..access.grants import granted, root_of
from ..renderer import HEADERS, Pages
from ..source import AnyEngine, source_of
from .actions import Question, policy_of
from .runs import Run, Runs
from .search import narrowed, search_of, search_page

try:
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response, StreamingResponse
    from starlette.routing import BaseRoute, Route
except ImportError as exc:
    raise UsageError('the dashboard needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["SearchPages"]

_Context = dict[str, Any]
_Endpoint = Callable[[Request], Awaitable[Response]]
_QUESTIONS: Final[Mapping[str, Question]] = {
    "redrive": Question(
        "Redrive",
        "They go back to the tail of their queues with all their attempts. A dead letter stays "
        "dead if a newer task holds its dedup key.",
        "Redrive them",
    ),
    "cancel": Question(
        "Cancel",
        "They end as cancelled. Whoever works on one loses its lease and goes on working until it "
        "notices. This cannot be undone.",
        "Cancel them",
        is_final=True,
    ),
    "delete": Question(
        "Delete",
        "They are forgotten with their history; a dedup window stays. This cannot be undone.",
        "Delete them",
        is_final=True,
    ),
    "reprioritise": Question(
        "Reprioritise",
        "Each keeps its place among tasks of the new priority, and its attempts.",
        "Set the priority",
    ),
}
_STOP: Final = Question(
    "Stop", "It ends with the slice that is being done. What was done stays done.", "Stop it"
)


class _Board(Protocol):
    """The dashboard, as far as these pages need it."""

    def is_writer(self, request: Request) -> bool:
        """Whether the user of a request may act."""

    def common(self, request: Request) -> _Context:
        """Values that all templates need to know of a request."""

    def refuse(self, request: Request) -> Response:
        """The page for who may not act."""


class SearchPages:
    """The searches of one dashboard, and the runs that began with them."""

    def __init__(
        self, engine: AnyEngine, board: _Board, pages: Pages, auth: Auth, rng: Rng
    ) -> None:
        self._engine = engine
        self._board = board
        self._pages = pages
        self._auth = auth
        self._runs = Runs(engine, rng)

    def routes(self, whole: Callable[[_Endpoint], _Endpoint]) -> list[BaseRoute]:
        """Routes besides those of ``shows``; ``whole`` makes pages of errors."""
        return [
            Route("/find/export", whole(self._export), methods=["GET"]),
            Route("/find/{act}", whole(self._act), methods=["GET", "POST"]),
            Route("/runs/{run}/stop", whole(self._stop), methods=["GET", "POST"]),
        ]

    async def show_search(self, request: Request) -> tuple[str, _Context, int]:
        """The form, and what was found."""
        context = await search_page(self._engine, request.query_params)
        context |= {"runs": self._runs.known[:10], "formats": formats_here()}
        return "find", context, 422 if context["error"] else 200

    async def show_run(self, request: Request) -> tuple[str, _Context, int]:
        """How far a run is."""
        run = self._runs.get(request.path_params["run"])
        now_us = source_of(self._engine).clock.wall_us()
        took_s = ((run.ended_us if run.is_over else now_us) - run.began_us) / 1e6
        return (
            "run",
            {"run": run, "took_s": took_s, "is_still": run.is_over},
            200,
        )

    # -- acts ----------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        """Ask with the count before an act; confirmed, it begins."""
        name = request.path_params["act"]
        if name not in ACTS:
            raise TaskNotFoundError(f"there is no act {name!r:.40}: {', '.join(ACTS)}")
        if not self._board.is_writer(request):
            return self._board.refuse(request)
        search = search_of(request.query_params)
        meant = narrowed(search.meant, name)
        words = [*search.words, f"state {' or '.join(meant.states)}"]
        if request.method == "POST":
            form = await self._auth.form(request)
            if not self._auth.is_ours(request, form):
                return self._auth.problem(request, NOT_OURS, 403)
            grant = granted(request)
            run = self._runs.start(
                cast("Act", name),
                meant,
                _options(name, form),
                words=words,
                address=search.address,
                total=_total(form),
                user="" if grant is None else grant.user,
            )
            return RedirectResponse(f"{root_of(request)}/runs/{run.id}", 303, dict(HEADERS))
        context = self._board.common(request) | {
            "question": _QUESTIONS[name],
            "act": name,
            "words": words,
            "is_all": not search.words,
            "count": await self._engine.count(meant),
            "back": f"{root_of(request)}/find?{search.address or 'all=1'}",
            "form_token": self._auth.form_token(request),
        }
        return self._pages.page("confirm_found.html", context)

    async def _stop(self, request: Request) -> Response:
        """Ask, as before every action: a live page is shared, and holds nobody's form token."""
        if not self._board.is_writer(request):
            return self._board.refuse(request)
        run: Run = self._runs.get(request.path_params["run"])
        back = f"{root_of(request)}/runs/{run.id}"
        if request.method != "POST":
            context = self._board.common(request) | {
                "question": _STOP,
                "subject": f"{run.act} of {', '.join(run.words)}",
                "state": "",
                "stats": None,
                "action": "stop",
                "back": back,
                "form_token": self._auth.form_token(request),
            }
            return self._pages.page("confirm.html", context)
        form = await self._auth.form(request)
        if not self._auth.is_ours(request, form):
            return self._auth.problem(request, NOT_OURS, 403)
        run.is_stopping = True
        return RedirectResponse(back, 303, dict(HEADERS))

    # -- export --------------------------------------------------------------------------

    async def _export(self, request: Request) -> Response:
        """The tasks that were found as a file, without payloads."""
        query = request.query_params
        name = check_found_format(query.get("format", "jsonl"))
        tasks = self._engine.find_all(search_of(query).meant, payloads=False)
        turn = source_of(self._engine).spawner.checkpoint
        chunks = found_chunks(tasks, name, payloads=False, turn=turn)
        headers = {**HEADERS, "content-disposition": f'attachment; filename="found.{name}"'}
        return StreamingResponse(chunks, 200, headers, MEDIA_TYPES[name])


def _options(act: str, form: Mapping[str, str]) -> dict[str, Any]:
    if act == "reprioritise":
        text = form.get("priority", "")
        return {"priority": check_priority(int(text) if text in "0123456789" and text else -1)}
    if act == "redrive":
        return {"policy": policy_of(form)}
    return {}


def _total(form: Mapping[str, str]) -> FoundCount | None:
    """The number that the page that asked has shown."""
    text = form.get("count", "")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        return None
    return FoundCount(int(text), is_exact=form.get("is_exact", "") == "1")
