"""Login, the session cookie, and the token that ties a form to its session and user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from anyio import fail_after
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response

from ....errors import UsageError
from ..renderer import HEADERS, Pages, answer
from .grants import granted, root_of
from .sessions import COOKIE, SECURE_COOKIE, SESSION_S, Sessions

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["NOT_OURS", "Auth"]

NOT_OURS: Final = "This form belongs to another session, or an old one. Reload the page."
FORM_BYTES_MAX: Final = 16 << 10
FORM_WAIT_S: Final = 30.0  # until a form must have arrived
_PAGES: Final = (
    "/queues/",
    "/tasks/",
    "/live/",
    "/logout",
    "/functions",
    "/workers",
    "/cron",
    "/nodes",
    "/find",
    "/runs/",
)


class Auth:
    """Sessions and forms of one dashboard."""

    def __init__(self, sessions: Sessions, pages: Pages) -> None:
        self._sessions = sessions
        self._pages = pages

    def admits(self, headers: Mapping[bytes, bytes], path: str) -> bool:
        """Whether a session opens this path: the pages only; API and metrics need the token."""
        is_page = path == "/" or path.startswith(_PAGES)
        return is_page and self._sessions.known(headers) is not None

    def still_open(self, request: Request) -> Callable[[], Awaitable[bool]]:
        """A check whether the session or the right that opened a stream has not ended since."""
        grant = granted(request)
        if grant is not None:
            return grant.still
        headers = dict(request.scope["headers"])
        is_free = not self._sessions.needs_login or "authorization" in request.headers

        async def is_open() -> bool:
            return is_free or self._sessions.known(headers) is not None

        return is_open

    # -- cookie and form -----------------------------------------------------------------------

    def _cookie(self, request: Request) -> str:
        """The session cookie of a request; a new one where no login is needed."""
        known = self._known(request)
        if known is None:
            known = getattr(request.state, "new_cookie", None)
        if known is None:
            known = request.state.new_cookie = self._sessions.new()
        return known

    def _known(self, request: Request) -> str | None:
        return self._sessions.known(dict(request.scope["headers"]), _names(request))

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
        return self._sessions.form_token(self._cookie(request), _user(request))

    async def form(
        self, request: Request, *, bytes_max: int | None = None, fields_max: int = 16
    ) -> dict[str, str]:
        """The fields of a form that was sent.

        Args:
            request: with the form.
            bytes_max: of the form; None for what a page of ours sends that asks for nothing.
            fields_max: number of fields.

        Raises:
            UsageError: the request holds no form, or too large a one.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise UsageError("expected a form: application/x-www-form-urlencoded")
        raw = bytearray()
        try:
            with fail_after(FORM_WAIT_S):
                async for chunk in request.stream():
                    raw += chunk
                    if len(raw) > (FORM_BYTES_MAX if bytes_max is None else bytes_max):
                        raise UsageError("the form is too large")
        except (TimeoutError, ClientDisconnect) as exc:
            raise UsageError("the form did not arrive") from exc
        try:
            text = raw.decode("ascii")
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=fields_max))
        except ValueError as exc:
            raise UsageError("the form cannot be read") from exc

    def is_ours(self, request: Request, form: Mapping[str, str]) -> bool:
        """Whether a page of this dashboard, made for this session, sent the form."""
        cookie, given = self._known(request), form.get("form", "")
        return cookie is not None and self._sessions.is_form_token(cookie, given, _user(request))

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
        context = {
            "text": text,
            "status": status,
            "root": root_of(request),
            "form_token": self.form_token(request),
        }
        grant = granted(request)
        if grant is not None:
            context["can_write"] = grant.can_write
        return self._pages.page("problem.html", context, status)


def _user(request: Request) -> str:
    grant = granted(request)
    return "" if grant is None else grant.user


def _names(request: Request) -> tuple[str, str]:
    """The names of the session cookie: over TLS, and without."""
    grant = granted(request)
    if grant is None:
        return SECURE_COOKIE, COOKIE
    return f"__Secure-{grant.cookie}", grant.cookie  # ``__Host-`` is for the path / alone


def _set_cookie(request: Request, response: Response, cookie: str) -> None:
    is_secure, grant = _is_secure(request), granted(request)
    response.set_cookie(
        _names(request)[0 if is_secure else 1],
        cookie,
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        path="/" if grant is None else f"{grant.mount}/",
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
