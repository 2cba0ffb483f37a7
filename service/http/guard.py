"""Guard: checks every request before any route sees it: host, origin, token, size, time.

A browser on the same machine can reach a loopback port, and a page of any site can make it send
requests. So a foreign ``Host`` (DNS rebinding) and a foreign ``Origin`` are refused even where no
token is required.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from anyio import current_time, fail_after, move_on_after

from ...client.documents.problems import CONTENT_TYPE, problem_of
from ...engine.runtime.clock import SystemClock
from ...errors import AccessDeniedError, BusyError, LodeqError, PayloadTooLargeError, UsageError
from ...repository.model.codec import too_large
from ..shared.origin import CONNECTION, foreign_of
from .access.callers import Callers
from .access.roles import ACCESS, FULL, NOBODY, Access
from .access.tokens_file import TokensFile
from .admission import Refusals, TooManyError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "ALWAYS",
    "ANSWERS_BYTES_MAX",
    "HEAD_BYTES_MAX",
    "WRONG_TOKEN",
    "Guard",
    "RefusedError",
    "Settings",
    "Uploads",
    "for_one_token",
    "loopback_hosts",
    "refuse",
]

ANSWERS_BYTES_MAX: Final = 128 << 20
HEAD_BYTES_MAX: Final = 32 << 10  # of a request, the first line included
loopback_hosts: Final = frozenset({"localhost", "127.0.0.1", "::1", "lodeq"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The bounds of a server. Sizes in bytes, times in seconds."""

    token: str | None = field(default=None, repr=False)  # None: none is required
    tokens: TokensFile | None = field(default=None, repr=False)  # beside it, with their roles
    hosts: frozenset[str] = loopback_hosts  # what may stand in ``Host``, without the port
    body_bytes_max: int = 8 << 20  # of one request
    held_bytes_max: int = 128 << 20  # of the bodies of all requests at work
    answers_bytes_max: int = ANSWERS_BYTES_MAX  # of all answers that are not read
    body_wait_s: float = 30.0  # until a request's body must have arrived
    wait_s_max: float = 60.0  # of one long poll; a longer one is answered without tasks
    batch_max: int = 4096  # tasks or leases in one request
    connections_max: int = 1024  # known ones, by listener (see ``admission``)
    checkpoints: str | None = None  # the folder for ``checkpoint``; None: there is none
    public_paths: frozenset[str] = field(default_factory=frozenset)  # no token is required there
    # Another proof than the token, from headers and path: a dashboard's session.
    admits: Callable[[Mapping[bytes, bytes], str], bool] = field(
        default=lambda headers, path: False
    )
    login_path: str | None = None  # where a browser without proof is redirected
    clients: Literal["read", "write"] = "write"  # ``read``: /v1 changes nothing, no link is spoken


WRONG_TOKEN: Final = "this token is not the server's: give what its --token-file holds"
# No browser guesses at the type of an answer, or keeps it. Routes may say otherwise of caching.
ALWAYS: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


@dataclass(frozen=True, slots=True)
class Uploads:
    """The requests whose bodies are streams, passed on as they come. Sizes in bytes."""

    covers: Callable[[str, str], bool]  # by method and path
    bytes_max: int  # of one
    kept_bytes_max: Callable[[], int]  # of one, in memory until its end if it has no more


def for_one_token(access: Access) -> AccessDeniedError:
    """The error for a token that may do a part, at what is neither of ``/v1`` nor metrics."""
    return AccessDeniedError(
        f"token {access.name!r} is for /v1 and /metrics: give the server's own token, which "
        "its --token-file holds",
        scope="the server's token",
    )


class RefusedError(Exception):
    """A body is not read to its end. No handler may catch this: the guard answers it."""

    def __init__(self, error: LodeqError, status: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.status = status


class Guard:
    """ASGI middleware.

    Args:
        app: gets the requests, with the access of each caller in ``scope[ACCESS]``.
        settings: of the server.
        refusals: counts what is refused; None: counted here alone.
        callers: who may call; None: whoever has the token of the settings.
        uploads: the requests whose bodies are streams; None: there are none.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        refusals: Refusals | None = None,
        callers: Callers | None = None,
        uploads: Uploads | None = None,
    ) -> None:
        self._app = app
        self._uploads = uploads
        self._settings = settings
        self._refusals = refusals if refusals is not None else Refusals()
        if callers is None:
            callers = Callers(settings.token, settings.tokens, SystemClock())
        self._callers = callers
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # nothing here speaks websocket: the server closes it
        headers = dict(scope["headers"])
        refused = _malformed(scope)
        access: Access | None = None
        if refused is None:
            access = self._access_of(headers, scope["path"])
            is_public = scope["path"] in self._settings.public_paths
            scope[ACCESS] = FULL if is_public else NOBODY if access is None else access
            refused = self._refusal(scope, headers, access)
        if refused is not None and (one := scope.get("state", {}).get(CONNECTION)) is not None:
            one.admission.strange(one)
        if refused is None and not self._is_taken_in(scope, access):
            refused = TooManyError("the server has as many callers as it accepts: try again"), 503
        if refused is not None:
            if refused[1] == 401 and self._is_browsing(scope["method"], headers):
                await _send_to(send, self._settings.login_path or "/")
            else:
                self._refusals.count(refused[1], current_time())
                if isinstance(refused[0], TooManyError):
                    await self._drain(receive)
                await refuse(send, *refused)
            return
        connection = scope.get("state", {}).get(CONNECTION)
        is_here = getattr(connection, "has_whole_request", False)
        uploads = self._uploads_of(scope)
        if uploads is None:
            counted = _Counted(self, receive, self._settings, is_here=is_here)
        else:
            kept_max = uploads.kept_bytes_max()
            counted = _Upload(self, receive, self._settings, kept_max, is_here=is_here)
        sent = False

        async def note(message: Message) -> None:
            nonlocal sent
            sent = True
            if message["type"] == "http.response.start":
                given = message.setdefault("headers", [])
                names = {name.lower() for name, _ in given}
                message["headers"] = [*given, *(one for one in ALWAYS if one[0] not in names)]
            await send(message)

        try:
            await self._app(scope, counted, note)
        except RefusedError as refusal:
            if sent:
                raise
            self._refusals.count(refusal.status, current_time())
            if isinstance(refusal.error, TooManyError):
                await self._drain(receive)
            await refuse(send, refusal.error, refusal.status)
        finally:
            self._held_bytes -= counted.bytes

    def _uploads_of(self, scope: Scope) -> Uploads | None:
        found = self._uploads
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return found if found is not None and found.covers(scope["method"], path) else None

    async def _drain(self, receive: Receive) -> None:
        """Read the rest of a body and forget it: who is cut off while it writes reads no answer."""
        n_left = self._settings.body_bytes_max
        with move_on_after(self._settings.body_wait_s):
            while n_left >= 0:
                message = await receive()
                n_left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return

    def _is_taken_in(self, scope: Scope, access: Access | None) -> bool:
        """Whether the connection may become a known one; other servers than ours have no limit."""
        one = scope.get("state", {}).get(CONNECTION)
        if one is None:
            return True
        if access is None:  # nothing is required there
            one.admission.strange(one)
            return True
        is_admitted: bool = one.admission.admits(one)
        return is_admitted

    def _refusal(
        self, scope: Scope, headers: Mapping[bytes, bytes], access: Access | None
    ) -> tuple[LodeqError, int] | None:
        settings, path = self._settings, scope["path"]
        foreign = foreign_of(scope["headers"], scope["method"], settings.hosts)
        if foreign is not None:
            return AccessDeniedError(foreign), 403
        if access is None and path not in settings.public_paths:
            return AccessDeniedError(self._why_not_admitted(headers)), 401
        length = headers.get(b"content-length", b"0")
        uploads = self._uploads_of(scope)
        most = settings.body_bytes_max if uploads is None else uploads.bytes_max
        if length.isdigit() and len(length) <= 18 and int(length) <= most:
            return None
        if uploads is None or not length.isdigit():
            return _too_large(settings), 413
        return too_large("payload", int(length[:18]), most), 413

    @staticmethod
    def _why_not_admitted(headers: Mapping[bytes, bytes]) -> str:
        if b"authorization" not in headers:
            return "give the server's token: Authorization: Bearer …"
        return f"{WRONG_TOKEN}, as Authorization: Bearer …"

    def _access_of(self, headers: Mapping[bytes, bytes], path: str) -> Access | None:
        """The access of a request's sender; None: he has shown nothing that counts."""
        if self._callers.is_open:
            return FULL
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        access = self._callers.access_of(given.strip())
        if access is not None and kind.lower() == b"bearer":
            return access
        return FULL if self._settings.admits(headers, path) else None

    def _is_browsing(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        is_page = b"text/html" in headers.get(b"accept", b"")
        return self._settings.login_path is not None and is_page and method in ("GET", "HEAD")

    def hold(self, n_bytes: int) -> None:
        """Count bytes of a request's body."""
        self._held_bytes += n_bytes

    @property
    def is_full(self) -> bool:
        """Whether the bodies of all requests at work exceed ``held_bytes_max``."""
        return self._held_bytes > self._settings.held_bytes_max


class _Counted:
    """A request's ``receive``, with a limit on its time and its bytes.

    ``is_here``: all of the request has arrived, so that there is nothing to wait for.
    """

    def __init__(
        self, guard: Guard, receive: Receive, settings: Settings, *, is_here: bool
    ) -> None:
        self._guard = guard
        self._receive = receive
        self._settings = settings
        self._is_here = is_here
        self._is_whole = False
        self._deadline_mono = current_time() + settings.body_wait_s
        self.bytes = 0

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()
        if self._is_here:
            message = await self._receive()
        else:
            message = await self._received_in_time()
        if message["type"] != "http.request":
            self._is_whole = True
            return message
        self._count(len(message.get("body", b"")))
        if self._guard.is_full:
            raise RefusedError(TooManyError("the server holds too many requests: try again"), 503)
        self._is_whole = not message.get("more_body", False)
        return message

    def _count(self, n_bytes: int) -> None:
        self._hold(self.bytes + n_bytes)
        if self.bytes > self._settings.body_bytes_max:
            raise RefusedError(_too_large(self._settings), 413)

    def _hold(self, n_bytes: int) -> None:
        self._guard.hold(n_bytes - self.bytes)
        self.bytes = n_bytes

    async def _received_in_time(self) -> Message:
        try:
            with fail_after(self._deadline_mono - current_time()):
                return await self._receive()
        except TimeoutError as exc:
            raise RefusedError(BusyError("the request's body did not arrive in time"), 408) from exc


class _Upload(_Counted):
    """The same of a stream: it may take its time, but no part of it may.

    It holds what the engine keeps until the end, and beyond that the part that came last. The
    engine refuses one that is too large.
    """

    def __init__(
        self, guard: Guard, receive: Receive, settings: Settings, kept_max: int, *, is_here: bool
    ) -> None:
        super().__init__(guard, receive, settings, is_here=is_here)
        self._kept_max = kept_max
        self._total_bytes = 0

    async def __call__(self) -> Message:
        self._deadline_mono = current_time() + self._settings.body_wait_s
        return await super().__call__()

    def _count(self, n_bytes: int) -> None:
        self._total_bytes += n_bytes
        self._hold(self._total_bytes if self._total_bytes <= self._kept_max else n_bytes)


def _malformed(scope: Scope) -> tuple[LodeqError, int] | None:
    """Find a fault of a request's head, whoever sends it: the error and its status."""
    n_bytes = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    n_tokens = 0
    has_length = has_coding = False
    for name, value in scope["headers"]:
        n_bytes += len(name) + len(value) + 4  # a colon, a space, and the line's end
        n_tokens += name == b"authorization"
        has_length |= name == b"content-length"
        has_coding |= name == b"transfer-encoding"
    if n_bytes > HEAD_BYTES_MAX:
        return UsageError(f"the request's head is larger than {HEAD_BYTES_MAX} bytes"), 431
    if n_tokens > 1:
        return UsageError("Authorization is given twice: give it once"), 400
    if has_coding and (has_length or scope.get("http_version") == "1.0"):
        # A proxy may have seen another end of it, and what follows is another's request (RFC 9112).
        return UsageError(
            "the length of the body is given in two ways, or in none of HTTP/1.0"
        ), 400
    return None


def _too_large(settings: Settings) -> PayloadTooLargeError:
    limit = settings.body_bytes_max
    return PayloadTooLargeError(
        f"the request's body is larger than {limit} bytes: send fewer tasks at once",
        limit_bytes=limit,
    )


async def _send_to(send: Send, path: str) -> None:
    headers = [(b"location", path.encode()), (b"content-length", b"0"), *ALWAYS]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def refuse(send: Send, error: LodeqError, status: int | None = None) -> None:
    """Answer with a problem document and close; the rest of the body is not read."""
    doc = problem_of(error, status)
    body = json.dumps(doc).encode()
    after_ms = doc.get("retry_after_ms")
    headers: Iterable[tuple[bytes, bytes]] = [
        (b"content-type", CONTENT_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *ALWAYS,
        *([(b"www-authenticate", b"Bearer")] if doc["status"] == 401 else []),
        *([(b"retry-after", b"%d" % -(-after_ms // 1000))] if after_ms else []),
    ]
    await send({"type": "http.response.start", "status": doc["status"], "headers": headers})
    await send({"type": "http.response.body", "body": body})
