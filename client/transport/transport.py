"""The connections of a client to its server, async and blocking. The only module with httpx.

A client speaks the binary protocol of docs/link.md (``framed``) where its server does, and HTTP
where it does not, for what fits no frame, and over a transport that it is given. On asyncio that is
``http_connection``; for trio and for threads, and over what is given, it is httpx.

A repeatable call whose answer is lost is sent once more. Any other lost write raises
``CommitUnknownError``, since it may have happened; a lost read raises ``UnreachableError``.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from math import inf
from ssl import SSLContext
from threading import Event
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from anyio import CancelScope, current_time, sleep

from ...errors import (
    BusyError,
    ClosedError,
    CommitUnknownError,
    InvariantError,
    LodeqError,
    UnreachableError,
    UsageError,
)
from ...repository.model.payload_sources import is_read_again

try:
    import httpx

    from ..blocking.fast_calls import SyncFastCalls
    from ..calls import CLOSED, FORM, Call, Session
    from ..documents.problems import error_of
    from ..fast_calls import FastCalls
    from .blocking_link import SyncFramedLink
    from .entries import NotSpokenError, TooLargeError
    from .forks import FORKED, watch_forks
    from .framed_link import FramedLink
    from .http_connection import Address, Answer, HttpConnection, LostError
    from .line import Lane, Line, SyncLine, delays
    from .shared_link import SharedLink
    from .socket_path import absolute_url
    from .target import Doubt, FramedTarget, GivenUp
    from .upload import Upload
except ImportError as exc:
    raise UsageError('a client needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["SyncTransport", "Target", "Transport"]

_STREAMED: Final = {
    "content-type": "application/octet-stream",
    "transfer-encoding": "chunked",
}
_IDLE_MAX: Final = 32
_IN_PATH: Final = "/%:@!$&'()*+,;=~"  # what is already as it is sent
_KEPT_ALIVE_S: Final = 30.0  # shorter than the server keeps them: no request meets a closing one
_LOST: Final = (
    LostError,
    httpx.RemoteProtocolError,
    httpx.ReadError,
    httpx.WriteError,
    httpx.ReadTimeout,
)
_NO_ANSWER: Final = (UnreachableError, CommitUnknownError)
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, OSError)


class Target:
    """A server's address and token, and the requests made for it."""

    def __init__(
        self,
        url: str,
        token: str | None,
        timeout_s: float,
        *,
        connect_s: float = inf,
        pid: int | None = None,
    ) -> None:
        if not isinstance(url, str):
            raise UsageError(f"an address is a str, not {type(url).__name__}")
        _check_one(url)
        url = absolute_url(url)
        self.uds: str | None = None
        if url[:5].lower() == "unix:":
            # Not parsed as a URL: a file's name may contain ``?`` or ``#``.
            self.uds = url[5:].removeprefix("//")
            if not self.uds or "\0" in self.uds:
                raise UsageError(f"{url!r} names no socket: unix:///run/lodeq.sock")
            self.base = "http://lodeq/v1"
            self._address: str | tuple[str, int] | None = self.uds
        else:
            is_tcp = url[:6].lower() == "tcp://"  # the link, or HTTP without TLS
            self.base = _base(f"http://{url[6:]}" if is_tcp else url)
            self._address = _host_and_port(url) if is_tcp else None
        self._tls: SSLContext | None = None
        parts = urlsplit(self.base)
        self._root = quote(parts.path, safe=_IN_PATH)
        self._host, self._port = parts.hostname or "", parts.port
        self.url = url
        self.timeout_s = timeout_s
        self.connect_s = connect_s  # over the link, hello included
        self.pid = pid  # of the process whose event loop connects; None: any
        self.headers = {"accept": FORM.content_type, "user-agent": "lodeq"}
        if token is not None:
            is_text = isinstance(token, str) and token.isascii() and token.isprintable()
            if not is_text or not token:
                raise UsageError("the token must be printable ASCII")
            self.headers["authorization"] = f"Bearer {token}"
        self._token = token
        shown = f"[{self._host}]" if ":" in self._host else self._host.encode("idna").decode()
        shown = shown if self._port is None else f"{shown}:{self._port}"
        self._shown_host = shown
        lines = [f"host: {shown}", *(f"{name}: {value}" for name, value in self.headers.items())]
        self._head = "\r\n".join(["", *lines, ""])

    @property
    def framed(self) -> FramedTarget | None:
        """The same server for the binary protocol; None where only HTTP can reach it."""
        if self._address is None:
            return None
        return FramedTarget(self.url, self._address, self._token, self.timeout_s, self.connect_s)

    def transport_options(self) -> dict[str, Any]:
        """Options of an httpx transport, async or blocking."""
        limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEPT_ALIVE_S)
        return {"uds": self.uds, "limits": limits, "verify": self._certificates()}

    def _certificates(self) -> SSLContext:
        if self._tls is None:  # one for all: certificates are read from files
            self._tls = httpx.create_ssl_context(verify=self.base.startswith("https:"))
        return self._tls

    def address(self) -> Address:
        """Where HTTP is spoken."""
        if self.uds is not None:
            return Address(self.uds, None)
        if self.base.startswith("https:"):
            return Address(self._host, self._port or 443, self._certificates())
        return Address(self._host, self._port or 80)

    def request_bytes(self, call: Call) -> bytes:
        """The call as HTTP/1.1, or a ``UsageError`` if an argument cannot be encoded."""
        try:
            query = f"?{urlencode(call.query)}" if call.query else ""
            path = quote(call.path, safe=_IN_PATH)
            head = f"{call.method} {self._root}{path}{query} HTTP/1.1{self._head}"
            if call.method != "POST":
                return f"{head}\r\n".encode("ascii")
            content = FORM.dumps({} if call.doc is None else call.doc)
            form = f"content-type: {FORM.content_type}\r\ncontent-length: {len(content)}"
            return f"{head}{form}\r\n\r\n".encode("ascii") + content
        except (TypeError, ValueError, OverflowError) as exc:  # a lone surrogate, an object
            raise UsageError(f"{call.method} {call.path}: cannot be sent: {exc}") from exc

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

    def upload_request(self, call: Call, **body: Any) -> httpx.Request:
        """A call whose body is a stream: ``stream``, or ``content`` as httpx takes it."""
        timeout = httpx.Timeout(self.timeout_s, pool=None)
        return httpx.Request(
            call.method,
            self.base + call.path,
            params=call.query or None,
            headers={"host": self._shown_host, **self.headers, **_STREAMED},
            extensions={"timeout": timeout.as_dict()},
            **body,
        )

    def broken(self, call: Call, upload: Upload, exc: Exception) -> Exception:
        """The error to raise when an upload broke off: its source's own, if that did it."""
        if upload.error is not None:
            return upload.error
        if not isinstance(exc, httpx.HTTPError | OSError):
            return exc
        if upload.is_whole or isinstance(exc, _NEVER_SENT):
            return self.lost(call, exc)
        return UnreachableError(
            f"{self.url}: {type(exc).__name__} {exc}".rstrip()
            + "; it ended before all of the payload was sent, and nothing was enqueued"
        )

    def lost(self, call: Call, exc: Exception) -> LodeqError:
        """The error to raise when a request or its answer was lost."""
        text = f"{self.url}: {type(exc).__name__} {exc}".rstrip()
        if isinstance(exc, _NEVER_SENT) or not call.is_write:
            return UnreachableError(f"{text}; is the server running?")
        return CommitUnknownError(f"{text}: {call.lost_text}")


def _check_one(url: str) -> None:
    """Refuse the address of a cluster, which names several servers."""
    scheme, _, nodes = url.partition("://")
    if scheme.lower() == "lodeq":
        first = nodes.partition(",")[0].strip() or "HOST:PORT"
        one = first if first[:5].lower() == "unix:" or "://" in first else f"tcp://{first}"
        raise UsageError(f"{url!r} is a cluster; here one of its nodes is meant: give {one}")


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
        raise UsageError(f"{url!r} is none of unix://FILE, tcp://HOST:PORT and http://HOST:PORT")
    return base


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.port is None or parts.path.strip("/"):
        raise UsageError(f"{url!r} is not tcp://HOST:PORT")
    return parts.hostname or "", parts.port


def _read(answer: Answer, *, is_closed: bool) -> Any:
    if 200 <= answer.status < 300:
        if not answer.content_type.startswith(FORM.content_type):
            raise UsageError(f"this is no lodeq server: it answers {answer.content_type!r}")
        return FORM.loads(answer.content)
    try:
        doc: object = json.loads(answer.content)
    except (ValueError, RecursionError):
        doc = answer.content.decode("utf-8", "replace")
    error = error_of(doc, answer.status)
    # Its store is closed, not this client: another server may follow.
    if isinstance(error, ClosedError) and not is_closed:
        raise UnreachableError(f"the server is stopping, and has not done it: {error}")
    raise error


def _is_on_asyncio() -> bool:
    """Whether an asyncio loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _answer_of(response: httpx.Response, content: bytes) -> Answer:
    return Answer(response.status_code, response.headers.get("content-type", ""), content)


class _Body(httpx.AsyncByteStream):
    """The body of an upload. httpx's own leaves iterators behind that nobody closes."""

    def __init__(self, slices: AsyncIterator[bytes]) -> None:
        self._slices = slices

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._slices


class Transport:
    """Async connections, on asyncio and on trio.

    Args:
        target: the server.
        transport: what HTTP goes over; None makes connections.
        is_given_up: asked over the link where the server is silent: whether another has its place.
    """

    def __init__(
        self,
        target: Target,
        transport: httpx.AsyncBaseTransport | None = None,
        is_given_up: GivenUp | None = None,
    ) -> None:
        self.target = target
        self._idle: list[HttpConnection] = []
        self._by_httpx: httpx.AsyncBaseTransport | None = transport
        self._pending: set[CancelScope] = set()
        self._lines = {lane: Line(lane, target.timeout_s) for lane in Lane}
        self._is_closed = self._is_forked = False
        framed = target.framed if transport is None else None
        self._framed: FramedLink | SharedLink | None = None
        if framed is not None:
            if _is_on_asyncio():
                self._framed = FramedLink(framed, is_given_up)
            else:
                self._framed = SharedLink(framed, is_given_up)
        watch_forks(self)
        if target.pid not in (None, os.getpid()):
            self.forked()

    def forked(self) -> None:
        """In a forked child: it is closed for good, and nothing in it is touched any more."""
        self._is_closed = self._is_forked = True
        self._idle.clear()
        if self._framed is not None:
            self._framed.forked()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(FORKED if self._is_forked else CLOSED)

    def fast_calls(self, session: Session) -> FastCalls | None:
        """The short way for the calls a queue lives by; None where only HTTP is spoken."""
        framed = self._framed
        if framed is None:
            return None
        if isinstance(framed, FramedLink) and session.durability == "nosync":
            framed.send_ahead()
        return FastCalls(framed, session)

    async def send(self, call: Call) -> Any:
        """Send a request; return the answer's document or raise the error in it.

        Cancellation: the server notices, and the tasks of a claim go back to their queues.
        """
        self._check_open()
        with CancelScope() as scope:
            self._pending.add(scope)
            try:
                with Doubt() as doubt:
                    return await self._send(call, doubt)
            finally:
                self._pending.discard(scope)
        raise ClosedError(CLOSED)

    async def upload(self, call: Call, source: Any, bytes_max: int) -> Any:
        """Send a request whose body is a stream; return the answer's document.

        It goes over HTTP, on a connection of its own, and never twice: what the server has refused
        before it looked at it is sent again if the source can be read again.

        Args:
            call: the request, without a document.
            source: gives the body.
            bytes_max: of the body.

        Raises:
            UnreachableError: the server cannot have taken it. CommitUnknownError: it may have.
            LodeqError: the server's. What the source raises, and nothing was taken.

        Cancellation: the server notices; until all is sent nothing has happened.
        """
        self._check_open()
        with CancelScope() as scope:
            self._pending.add(scope)
            try:
                line = self._lines[Lane.UPLOAD]
                await line.enter(0.0)
                is_answered = False
                try:
                    answer = await self._upload_till_begun(call, source, bytes_max, line.moved)
                    is_answered = True
                except LodeqError as error:
                    is_answered = not isinstance(error, _NO_ANSWER)
                    raise
                finally:
                    line.leave(is_answered=is_answered)
                return answer
            finally:
                self._pending.discard(scope)
        raise ClosedError(CLOSED)

    async def _upload_till_begun(
        self, call: Call, source: Any, bytes_max: int, moved: Callable[[], object]
    ) -> Any:
        for delay_s in delays(self.target.timeout_s):
            try:
                return await self._upload(call, Upload(source, bytes_max, moved))
            except BusyError as error:
                if not error.not_begun or not is_read_again(source):
                    raise
            await sleep(delay_s)
        return await self._upload(call, Upload(source, bytes_max, moved))

    async def _upload(self, call: Call, upload: Upload) -> Any:
        given = self._by_httpx
        transport = given or httpx.AsyncHTTPTransport(**self.target.transport_options())
        try:
            async with aclosing(upload.slices()) as slices:
                request = self.target.upload_request(call, stream=_Body(slices))
                response = await transport.handle_async_request(request)
                try:
                    content = await response.aread()
                finally:
                    await response.aclose()
        except Exception as exc:
            error = self.target.broken(call, upload, exc)
            if error is exc:
                raise
            raise error from exc
        finally:
            if given is None:
                with CancelScope(shield=True):
                    await transport.aclose()
        if upload.error is not None:
            raise upload.error
        return _read(_answer_of(response, content), is_closed=self._is_closed)

    async def _send(self, call: Call, doubt: Doubt) -> Any:
        is_framed = True
        if self._framed is not None:
            try:
                return await self._over_link(call, doubt)
            except (NotSpokenError, TooLargeError):
                is_framed = False
            except BusyError as error:
                if not error.not_begun:
                    raise
        line = self._lines[Lane.of(call)]
        await line.enter(call.wait_s)
        is_answered = False
        try:
            answer = await self._till_begun(call, is_framed, doubt)
            is_answered = True
        except LodeqError as error:
            is_answered = not isinstance(error, _NO_ANSWER)
            raise
        finally:
            line.leave(is_answered=is_answered)
        return answer

    async def _till_begun(self, call: Call, is_framed: bool, doubt: Doubt) -> Any:
        """Send it, again where the server has refused it before it looked at it."""
        for delay_s in delays(self.target.timeout_s):
            try:
                return await self._once(call, is_framed, doubt)
            except BusyError as error:
                if not error.not_begun:
                    raise
            await sleep(delay_s)
        return await self._once(call, is_framed, doubt)

    async def _over_link(self, call: Call, doubt: Doubt) -> Any:
        """Send it over the link. Raises as ``FramedLink.send``."""
        framed = self._framed
        if framed is None:
            raise NotSpokenError
        try:
            return await framed.send(call, doubt)
        except NotSpokenError as exc:  # an older server, or one that stops: nothing was sent
            if exc.is_certain and self._framed is framed:
                self._framed = None
                await framed.aclose()
            raise

    async def _once(self, call: Call, is_framed: bool, doubt: Doubt) -> Any:
        if is_framed and self._framed is not None:
            try:
                return await self._over_link(call, doubt)
            except (NotSpokenError, TooLargeError):
                pass
        for is_last in (not call.is_repeatable, True):
            try:
                answer = await self._ask(call)
            except (httpx.HTTPError, LostError, OSError) as exc:
                error = self.target.lost(call, exc)
                if is_last or not isinstance(exc, _LOST):
                    raise error from exc
                doubt.of(error)
            else:
                return _read(answer, is_closed=self._is_closed)
        raise InvariantError("the last try neither returned nor raised")

    async def _ask(self, call: Call) -> Answer:
        self._check_open()
        if self._by_httpx is None and not _is_on_asyncio():
            self._by_httpx = httpx.AsyncHTTPTransport(**self.target.transport_options())
        if self._by_httpx is not None:
            response = await self._by_httpx.handle_async_request(self.target.request(call))
            try:
                content = await response.aread()
            finally:
                await response.aclose()
            return _answer_of(response, content)
        request = self.target.request_bytes(call)
        least_s = self.target.timeout_s if call.timeout_s is None else call.timeout_s
        connection = self._idle_one()
        if connection is None:
            connection = await HttpConnection.open(self.target.address(), least_s)
        try:
            return await connection.ask(request, least_s + call.wait_s)
        finally:
            if connection.is_open and len(self._idle) < _IDLE_MAX and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.close()

    def _idle_one(self) -> HttpConnection | None:
        """The connection that was used last, if the server still has it."""
        now = current_time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now - connection.idle_since < _KEPT_ALIVE_S:
                return connection
            connection.close()
        return None

    async def aclose(self) -> None:
        """Close the connections. Whoever waits for an answer gets ``ClosedError``."""
        if self._is_forked:
            return
        self._is_closed = True
        for scope in list(self._pending):
            scope.cancel()
        with CancelScope(shield=True):
            if self._framed is not None:
                await self._framed.aclose()
            if self._by_httpx is not None:
                await self._by_httpx.aclose()
            while self._idle:
                self._idle.pop().close()


class SyncTransport:
    """Blocking connections, for any number of threads. Args: as ``Transport``."""

    def __init__(
        self,
        target: Target,
        transport: httpx.BaseTransport | None = None,
        is_given_up: Callable[[], bool] | None = None,
    ) -> None:
        self.target = target
        self._given = transport
        # Each transport serves one call at a time: a shared one searches all its connections at
        # each call, and an httpx client would add redirects, cookies and proxies.
        self._idle: list[httpx.BaseTransport] = []
        self._lines = {lane: SyncLine(lane, target.timeout_s) for lane in Lane}
        self._is_closed = False
        self._closing = Event()
        framed = target.framed if transport is None else None
        self._framed = None if framed is None else SyncFramedLink(framed, is_given_up)
        watch_forks(self)

    def forked(self) -> None:
        """In a forked child: it has connections of its own, and nobody stands in its lines."""
        self._lines = {lane: SyncLine(lane, self.target.timeout_s) for lane in Lane}
        self._close_idle(0)
        if self._framed is not None:
            self._framed.forked()

    def fast_calls(self, session: Session) -> SyncFastCalls | None:
        """The short way for the calls a queue lives by; None where only HTTP is spoken."""
        return None if self._framed is None else SyncFastCalls(self._framed, session)

    def send(self, call: Call) -> Any:
        """Send a request; return the answer's document or raise the error in it."""
        if self._is_closed:
            raise ClosedError(CLOSED)
        with Doubt() as doubt:
            return self._send(call, doubt)

    def _send(self, call: Call, doubt: Doubt) -> Any:
        is_framed = True
        if self._framed is not None:
            try:
                return self._over_link(call, doubt)
            except (NotSpokenError, TooLargeError):
                is_framed = False
            except BusyError as error:
                if not error.not_begun:
                    raise
        line = self._lines[Lane.of(call)]
        line.enter(call.wait_s)
        is_answered = False
        try:
            answer = self._till_begun(call, is_framed, doubt)
            is_answered = True
        except LodeqError as error:
            is_answered = not isinstance(error, _NO_ANSWER)
            raise
        finally:
            line.leave(is_answered=is_answered)
        return answer

    def upload(self, call: Call, source: Any, bytes_max: int) -> Any:
        """Send a request whose body is a stream. See ``Transport.upload``."""
        line = self._lines[Lane.UPLOAD]
        line.enter(0.0)
        is_answered = False
        try:
            answer = self._upload_till_begun(call, source, bytes_max, line.moved)
            is_answered = True
        except LodeqError as error:
            is_answered = not isinstance(error, _NO_ANSWER)
            raise
        finally:
            line.leave(is_answered=is_answered)
        return answer

    def _upload_till_begun(
        self, call: Call, source: Any, bytes_max: int, moved: Callable[[], object]
    ) -> Any:
        for delay_s in delays(self.target.timeout_s):
            try:
                return self._upload(call, Upload(source, bytes_max, moved))
            except BusyError as error:
                if not error.not_begun or not is_read_again(source):
                    raise
            self._closing.wait(delay_s)
        return self._upload(call, Upload(source, bytes_max, moved))

    def _upload(self, call: Call, upload: Upload) -> Any:
        if self._is_closed:
            raise ClosedError(CLOSED)
        given = self._given
        transport = given or httpx.HTTPTransport(**self.target.transport_options())
        request = self.target.upload_request(call, content=upload.blocking_slices())
        try:
            response = transport.handle_request(request)
            try:
                content = response.read()
            finally:
                response.close()
        except Exception as exc:
            error = self.target.broken(call, upload, exc)
            if error is exc:
                raise
            raise error from exc
        finally:
            if given is None:
                transport.close()
        if upload.error is not None:
            raise upload.error
        return _read(_answer_of(response, content), is_closed=self._is_closed)

    def _till_begun(self, call: Call, is_framed: bool, doubt: Doubt) -> Any:
        for delay_s in delays(self.target.timeout_s):
            try:
                return self._once(call, is_framed, doubt)
            except BusyError as error:
                if not error.not_begun:
                    raise
            self._closing.wait(delay_s)
        return self._once(call, is_framed, doubt)

    def _over_link(self, call: Call, doubt: Doubt) -> Any:
        framed = self._framed
        if framed is None:
            raise NotSpokenError
        try:
            return framed.send(call, doubt)
        except NotSpokenError as exc:
            if exc.is_certain:
                self._framed = None
            raise

    def _once(self, call: Call, is_framed: bool, doubt: Doubt) -> Any:
        if is_framed and self._framed is not None:
            try:
                return self._over_link(call, doubt)
            except (NotSpokenError, TooLargeError):
                pass
        if self._given is not None:
            return self._ask(self._given, call, doubt)
        try:
            transport = self._idle.pop()
        except IndexError:
            transport = httpx.HTTPTransport(**self.target.transport_options())
        try:
            return self._ask(transport, call, doubt)
        finally:
            self._idle.append(transport)
            if self._is_closed or len(self._idle) > _IDLE_MAX:
                self._close_idle(0 if self._is_closed else _IDLE_MAX)

    def _ask(self, transport: httpx.BaseTransport, call: Call, doubt: Doubt) -> Any:
        for is_last in (not call.is_repeatable, True):
            if self._is_closed:
                raise ClosedError(CLOSED)
            try:
                response = transport.handle_request(self.target.request(call))
                try:
                    content = response.read()
                finally:
                    response.close()
            except httpx.HTTPError as exc:
                if self._is_closed:
                    raise ClosedError(CLOSED) from exc
                error = self.target.lost(call, exc)
                if is_last or not isinstance(exc, _LOST):
                    raise error from exc
                doubt.of(error)
            else:
                return _read(_answer_of(response, content), is_closed=self._is_closed)
        raise InvariantError("the last try neither returned nor raised")

    def close(self) -> None:
        """Close the connections. A thread that waits for an answer may still get it."""
        self._is_closed = True
        self._closing.set()
        if self._framed is not None:
            self._framed.close()
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
