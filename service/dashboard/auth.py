"""Who may come in, and which forms are ours: logging in, the cookie, the token of a form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from starlette.responses import RedirectResponse, Response

from ...errors import UsageError
from .sessions import COOKIE, SECURE_COOKIE, SESSION_S, Sessions
from .templating import HEADERS, Pages, answer

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["NOT_OURS", "Doors"]

NOT_OURS: Final = "This form was not made for you, or too long ago. Reload the page."
FORM_BYTES_MAX: Final = 16 << 10
_PAGES: Final = ("/queues/", "/tasks/", "/live/", "/logout")


class Doors:
    """Of one dashboard."""

    def __init__(self, sessions: Sessions, pages: Pages) -> None:
        self._sessions = sessions
        self._pages = pages

    def admits(self, headers: Mapping[bytes, bytes], path: str) -> bool:
        """A session opens the pages. The interface and the metrics go on asking for the token."""
        is_page = path == "/" or path.startswith(_PAGES)
        return is_page and self._sessions.known(headers) is not None

    def still_open(self, request: Request) -> Callable[[], bool]:
        """Whether what let a stream in would still let it in: a session ends."""
        if not self._sessions.needs_login or "authorization" in request.headers:
            return lambda: True
        headers = dict(request.scope["headers"])
        return lambda: self._sessions.known(headers) is not None

    # -- cookie and form -----------------------------------------------------------------------

    def _cookie(self, request: Request) -> str:
        """The session of a request; a new one where nothing has to be proved."""
        known = self._sessions.known(dict(request.scope["headers"]))
        if known is None:
            known = getattr(request.state, "new_cookie", None)
        if known is None:
            known = request.state.new_cookie = self._sessions.new()
        return known

    def with_cookie(self, request: Request, response: Response) -> Response:
        """The answer, with the session that was made for it if there was none."""
        cookie = getattr(request.state, "new_cookie", None)
        if cookie is not None:
            _give(request, response, cookie)
        return response

    def form_token(self, request: Request) -> str:
        """What the forms of the page carry."""
        if self._sessions.needs_login and "authorization" in request.headers:
            return ""  # a script with the token: it has the interface for writing
        return self._sessions.form_token(self._cookie(request))

    async def form(self, request: Request) -> dict[str, str]:
        """The members of a form that was sent.

        Raises:
            UsageError: it is none.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise UsageError("this takes the form of a page")
        raw = await request.body()
        if len(raw) > FORM_BYTES_MAX:
            raise UsageError("the form is too large")
        try:
            return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=16))
        except ValueError as exc:
            raise UsageError("this is no form of ours") from exc

    def is_ours(self, request: Request, form: Mapping[str, str]) -> bool:
        """Whether a page of this dashboard, made for this session, sent the form."""
        cookie = self._sessions.known(dict(request.scope["headers"]))
        return cookie is not None and self._sessions.is_form_token(cookie, form.get("form", ""))

    # -- in and out ----------------------------------------------------------------------------

    async def login(self, request: Request) -> Response:
        """The page that asks for the token, and what becomes of it."""
        if not self._sessions.needs_login:
            return RedirectResponse("/", 303, dict(HEADERS))
        if request.method != "POST":
            return self._pages.page("login.html", {"is_wrong": False})
        try:
            form = await self.form(request)
        except UsageError as error:
            return answer(str(error), 422, "text/plain")
        if not self._sessions.is_token(form.get("token", "")):
            return self._pages.page("login.html", {"is_wrong": True}, 403)
        response = RedirectResponse("/", 303, dict(HEADERS))
        _give(request, response, self._sessions.new())
        return response

    async def logout(self, request: Request) -> Response:
        """The cookie opens nothing any more, wherever it is kept."""
        if not self.is_ours(request, await self.form(request)):
            return self.problem(request, NOT_OURS, 403)
        cookie = self._sessions.known(dict(request.scope["headers"]))
        if cookie is not None:
            self._sessions.end(cookie)
        response = RedirectResponse("/login", 303, dict(HEADERS))
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        if _is_secure(request):
            response.delete_cookie(SECURE_COOKIE, secure=True, httponly=True, samesite="strict")
        return response

    def problem(self, request: Request, text: str, status: int) -> Response:
        """A page that says why not."""
        context = {"text": text, "status": status, "form_token": self.form_token(request)}
        return self._pages.page("problem.html", context, status)


def _give(request: Request, response: Response, cookie: str) -> None:
    is_secure = _is_secure(request)
    response.set_cookie(
        SECURE_COOKIE if is_secure else COOKIE,
        cookie,
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        path="/",
        secure=is_secure,
    )


def _is_secure(request: Request) -> bool:
    """Whether the browser speaks TLS, to us or to a proxy that says so.

    Who says so without a proxy gets a cookie that works over TLS only: nothing is gained by it.
    """
    if request.url.scheme == "https":
        return True
    forwarded = request.headers.get("forwarded", "").lower()
    said = request.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    return said == "https" or "proto=https" in forwarded.replace('"', "").replace(" ", "")
