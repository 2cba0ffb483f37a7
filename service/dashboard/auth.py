"""Login, the session cookie, and the token that ties a form to its session."""

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

__all__ = ["NOT_OURS", "Auth"]

NOT_OURS: Final = "This form belongs to another session, or an old one. Reload the page."
FORM_BYTES_MAX: Final = 16 << 10
_PAGES: Final = ("/queues/", "/tasks/", "/live/", "/logout")


class Auth:
    """Sessions and forms of one dashboard."""

    def __init__(self, sessions: Sessions, pages: Pages) -> None:
        self._sessions = sessions
        self._pages = pages

    def admits(self, headers: Mapping[bytes, bytes], path: str) -> bool:
        """Whether a session opens this path: the pages only; API and metrics need the token."""
        is_page = path == "/" or path.startswith(_PAGES)
        return is_page and self._sessions.known(headers) is not None

    def still_open(self, request: Request) -> Callable[[], bool]:
        """A check whether the session that opened a stream has not ended since."""
        if not self._sessions.needs_login or "authorization" in request.headers:
            return lambda: True
        headers = dict(request.scope["headers"])
        return lambda: self._sessions.known(headers) is not None

    # -- cookie and form -----------------------------------------------------------------------

    def _cookie(self, request: Request) -> str:
        """The session cookie of a request; a new one where no login is needed."""
        known = self._sessions.known(dict(request.scope["headers"]))
        if known is None:
            known = getattr(request.state, "new_cookie", None)
        if known is None:
            known = request.state.new_cookie = self._sessions.new()
        return known

    def with_cookie(self, request: Request, response: Response) -> Response:
        """The response, with the cookie of a session that was made for it."""
        cookie = getattr(request.state, "new_cookie", None)
        if cookie is not None:
            _set_cookie(request, response, cookie)
        return response

    def form_token(self, request: Request) -> str:
        """The token for the forms of the page."""
        if self._sessions.needs_login and "authorization" in request.headers:
            return ""  # a script that bears the token: it writes through the API
        return self._sessions.form_token(self._cookie(request))

    async def form(self, request: Request) -> dict[str, str]:
        """The fields of a form that was sent.

        Raises:
            UsageError: the request holds no form, or too large a one.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise UsageError("expected a form: application/x-www-form-urlencoded")
        raw = await request.body()
        if len(raw) > FORM_BYTES_MAX:
            raise UsageError("the form is too large")
        try:
            return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=16))
        except ValueError as exc:
            raise UsageError("the form cannot be read") from exc

    def is_ours(self, request: Request, form: Mapping[str, str]) -> bool:
        """Whether a page of this dashboard, made for this session, sent the form."""
        cookie = self._sessions.known(dict(request.scope["headers"]))
        return cookie is not None and self._sessions.is_form_token(cookie, form.get("form", ""))

    # -- in and out ----------------------------------------------------------------------------

    async def login(self, request: Request) -> Response:
        """GET: the page that asks for the token. POST: check the token, begin a session."""
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
        _set_cookie(request, response, self._sessions.new())
        return response

    async def logout(self, request: Request) -> Response:
        """End the session: its cookie opens nothing any more, wherever it is kept."""
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
        """An error page."""
        context = {"text": text, "status": status, "form_token": self.form_token(request)}
        return self._pages.page("problem.html", context, status)


def _set_cookie(request: Request, response: Response, cookie: str) -> None:
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
    """Whether the browser speaks TLS, to this server or to a proxy that says so.

    A client that forges the header only gets a cookie that works over TLS alone.
    """
    if request.url.scheme == "https":
        return True
    forwarded = request.headers.get("forwarded", "").lower()
    said = request.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    return said == "https" or "proto=https" in forwarded.replace('"', "").replace(" ", "")
