"""Connections to a server, async and blocking. The only module that imports httpx.

A repeatable call whose answer is lost is sent once more. Any other lost write raises
``CommitUnknownError``, since it may have happened; a lost read raises ``UnreachableError``.
"""

from __future__ import annotations

import json
from ssl import SSLContext
from typing import Any, Final
from urllib.parse import urlsplit

from anyio import CancelScope

from ..errors import (
    ClosedError,
    CommitUnknownError,
    InvariantError,
    LodeqError,
    UnreachableError,
    UsageError,
)
from .calls import CLOSED, FORM, Call
from .problems import error_of

try:
    import httpx
except ImportError as exc:
    raise UsageError('a client needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["Link", "SyncLink", "Target"]

_IDLE_MAX: Final = 32
_KEPT_ALIVE_S: Final = 30.0  # shorter than the server keeps them: no request meets a closing one
_LOST: Final = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.ReadTimeout)
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Target:
    """A server's address and token, and the requests made for it."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        if not isinstance(url, str):
            raise UsageError(f"an address is a str, not {type(url).__name__}")
        self.uds: str | None = None
        if url[:5].lower() == "unix:":
            # Not parsed as a URL: a file's name may contain ``?`` or ``#``.
            self.uds = url[5:].removeprefix("//")
            if not self.uds or "\0" in self.uds:
                raise UsageError(f"{url!r} names no socket: unix:///run/lodeq.sock")
            self.base = "http://lodeq/v1"
        else:
            self.base = _base(url)
        self._tls: SSLContext | None = None
        self.url = url
        self.timeout_s = timeout_s
        self.headers = {"accept": FORM.content_type, "user-agent": "lodeq"}
        if token is not None:
            is_text = isinstance(token, str) and token.isascii() and token.isprintable()
            if not is_text or not token:
                raise UsageError("the token must be printable ASCII")
            self.headers["authorization"] = f"Bearer {token}"

    def transport_options(self) -> dict[str, Any]:
        """Options of an httpx transport, async or blocking."""
        limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEPT_ALIVE_S)
        if self._tls is None:  # one for all: certificates are read from files
            self._tls = httpx.create_ssl_context(verify=self.base.startswith("https:"))
        return {"uds": self.uds, "limits": limits, "verify": self._tls}

    def request(self, call: Call) -> httpx.Request:
        """The call as httpx sends it, or a ``UsageError`` if an argument cannot be encoded."""
        try:
            return self._request(call)
        except (TypeError, ValueError, OverflowError) as exc:  # a lone surrogate, an object
            raise UsageError(f"{call.method} {call.path}: cannot be sent: {exc}") from exc

    def _request(self, call: Call) -> httpx.Request:
        least_s = self.timeout_s if call.timeout_s is None else call.timeout_s
        timeout = httpx.Timeout(least_s, read=least_s + call.wait_s, pool=None)
        url, extensions = self.base + call.path, {"timeout": timeout.as_dict()}
        params = call.query or None
        if call.method != "POST":
            return httpx.Request(
                call.method, url, params=params, headers=self.headers, extensions=extensions
            )
        content = FORM.dumps({} if call.doc is None else call.doc)
        headers = self.headers | {"content-type": FORM.content_type}
        return httpx.Request(
            "POST", url, params=params, headers=headers, content=content, extensions=extensions
        )

    def lost(self, call: Call, exc: Exception) -> LodeqError:
        """The error to raise when a request or its answer was lost."""
        text = f"{self.url}: {type(exc).__name__} {exc}".rstrip()
        if isinstance(exc, _NEVER_SENT) or not call.is_write:
            return UnreachableError(f"{text}; is the server running?")
        return CommitUnknownError(
            f"{text}: the answer to {call.method} {call.path} was lost; it may have happened, "
            "so retry with the same dedup key"
        )


def _base(url: str) -> str:
    """The URL that paths of calls are appended to, or a ``UsageError``."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        if host is not None:
            host.encode("idna")  # as it will be when it is looked up
        base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/v1"
        httpx.URL(base)
    except (ValueError, httpx.InvalidURL) as exc:
        raise UsageError(f"{url!r} is no address: {exc}") from exc
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is neither unix://FILE nor http://HOST:PORT")
    return base


def _read(response: httpx.Response, *, is_closed: bool) -> Any:
    content_type = response.headers.get("content-type", "")
    if response.is_success:
        if not content_type.startswith(FORM.content_type):
            raise UsageError(f"this is no lodeq server: it answers {content_type!r}")
        return FORM.loads(response.content)
    try:
        doc: object = json.loads(response.content)
    except ValueError:
        doc = response.text
    error = error_of(doc, response.status_code)
    # Its store is closed, not this client: another server may follow.
    if isinstance(error, ClosedError) and not is_closed:
        raise UnreachableError(f"the server is stopping, and has not done it: {error}")
    raise error


class Link:
    """Async connections, on asyncio and on trio."""

    def __init__(self, target: Target, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.target = target
        self._given = transport
        # Each transport serves one call at a time: a shared one searches all its connections at
        # each call, and an httpx client would add redirects, cookies and proxies.
        self._idle: list[httpx.AsyncBaseTransport] = []
        self._pending: set[CancelScope] = set()
        self._is_closed = False

    async def send(self, call: Call) -> Any:
        """Send a request; return the answer's document or raise the error in it.

        Cancellation: the server notices, and the tasks of a claim go back to their queues.
        """
        if self._is_closed:
            raise ClosedError(CLOSED)
        with CancelScope() as scope:
            self._pending.add(scope)
            try:
                return await self._send(call)
            finally:
                self._pending.discard(scope)
        raise ClosedError(CLOSED)

    async def _send(self, call: Call) -> Any:
        if self._given is not None:
            return await self._ask(self._given, call)
        if self._idle:
            transport = self._idle.pop()
        else:
            transport = httpx.AsyncHTTPTransport(**self.target.transport_options())
        try:
            return await self._ask(transport, call)
        finally:
            if len(self._idle) < _IDLE_MAX and not self._is_closed:
                self._idle.append(transport)
            else:
                with CancelScope(shield=True):
                    await transport.aclose()

    async def _ask(self, transport: httpx.AsyncBaseTransport, call: Call) -> Any:
        for is_last in (not call.is_repeatable, True):
            try:
                response = await transport.handle_async_request(self.target.request(call))
                try:
                    await response.aread()
                finally:
                    await response.aclose()
            except httpx.HTTPError as exc:
                if is_last or not isinstance(exc, _LOST):
                    raise self.target.lost(call, exc) from exc
            else:
                return _read(response, is_closed=self._is_closed)
        raise InvariantError("the last try neither returned nor raised")

    async def aclose(self) -> None:
        """Close the connections. Whoever waits for an answer gets ``ClosedError``."""
        self._is_closed = True
        for scope in list(self._pending):
            scope.cancel()
        with CancelScope(shield=True):
            if self._given is not None:
                await self._given.aclose()
            while self._idle:
                await self._idle.pop().aclose()


class SyncLink:
    """Blocking connections, for any number of threads."""

    def __init__(self, target: Target, transport: httpx.BaseTransport | None = None) -> None:
        self.target = target
        self._given = transport
        self._idle: list[httpx.BaseTransport] = []  # see ``Link``
        self._is_closed = False

    def send(self, call: Call) -> Any:
        """Send a request; return the answer's document or raise the error in it."""
        if self._given is not None:
            return self._ask(self._given, call)
        try:
            transport = self._idle.pop()
        except IndexError:
            transport = httpx.HTTPTransport(**self.target.transport_options())
        try:
            return self._ask(transport, call)
        finally:
            self._idle.append(transport)
            if self._is_closed or len(self._idle) > _IDLE_MAX:
                self._close_idle(0 if self._is_closed else _IDLE_MAX)

    def _ask(self, transport: httpx.BaseTransport, call: Call) -> Any:
        for is_last in (not call.is_repeatable, True):
            if self._is_closed:
                raise ClosedError(CLOSED)
            try:
                response = transport.handle_request(self.target.request(call))
                try:
                    response.read()
                finally:
                    response.close()
            except httpx.HTTPError as exc:
                if self._is_closed:
                    raise ClosedError(CLOSED) from exc
                if is_last or not isinstance(exc, _LOST):
                    raise self.target.lost(call, exc) from exc
            else:
                return _read(response, is_closed=self._is_closed)
        raise InvariantError("the last try neither returned nor raised")

    def close(self) -> None:
        """Close the connections. A thread that waits for an answer may still get it."""
        self._is_closed = True
        if self._given is not None:
            self._given.close()
        self._close_idle(0)

    def _close_idle(self, kept: int) -> None:
        """Close idle connections beyond ``kept``, while other threads take and return some."""
        while len(self._idle) > kept:
            try:
                transport = self._idle.pop(0)
            except IndexError:
                return
            transport.close()
