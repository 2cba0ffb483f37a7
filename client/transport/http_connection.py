"""One HTTP/1.1 connection of a client on asyncio: one request at a time.

A pool, redirects, cookies and proxies are nothing that a client of ours needs, and they cost more
than the request itself does. So a request is written as bytes, and httptools reads the answer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from ssl import SSLContext
from typing import Final, NamedTuple, cast

import httptools

from .forks import FORKED, cut, watch_forks

__all__ = ["Address", "Answer", "HttpConnection", "LostError"]

_UNSENT_BYTES: Final = 4 << 20


class LostError(Exception):
    """The request, or its answer, was lost."""


class Address(NamedTuple):
    """Where a server listens.

    Attributes:
        host: its name, or the path of its socket.
        port: None: it is a unix socket.
        tls: how to check its certificate; None: there is none.
    """

    host: str
    port: int | None
    tls: SSLContext | None = None


class Answer(NamedTuple):
    """An answer of the server."""

    status: int
    content_type: str
    content: bytes


class HttpConnection(asyncio.Protocol):
    """A connection. ``open`` makes it.

    Attributes:
        is_open: whether another request may be sent.
        idle_since: of the loop's clock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = False
        self.idle_since = 0.0
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._asked: asyncio.Future[Answer] | None = None
        self._patience_s = 0.0
        self._heard_at = 0.0
        self._unsent_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._begin()
        watch_forks(self)

    def forked(self) -> None:
        """In a forked child: nothing is sent or read by it."""
        transport, self._transport = self._transport, None
        if transport is not None:
            cut(transport.get_extra_info("socket"))
        self.is_open = False
        if self._asked is not None and not self._asked.done():
            with suppress(RuntimeError):  # its loop is closed, or another thread's: nobody waits
                self._asked.set_exception(LostError(FORKED))
            self._asked.exception()  # nobody may ever ask for it here

    def _begin(self) -> None:
        self._ends_with_stream = True  # unless a header says otherwise
        self._content_type = ""
        self._parts: list[bytes] = []

    @staticmethod
    async def open(address: Address, within_s: float) -> HttpConnection:
        """Connect.

        Raises:
            OSError: nobody listens there, or its certificate is wrong.
            TimeoutError: it took longer.
        """
        loop = asyncio.get_running_loop()
        connection = HttpConnection(loop)
        async with asyncio.timeout(within_s):
            if address.port is None:
                await loop.create_unix_connection(lambda: connection, address.host)
            else:
                await loop.create_connection(
                    lambda: connection, address.host, address.port, ssl=address.tls
                )
        return connection

    async def ask(self, request: bytes, patience_s: float) -> Answer:
        """Send a request, and return its answer.

        Args:
            request: as it is sent.
            patience_s: seconds in which the server takes and sends nothing, after which it is
                given up.

        Raises:
            LostError: the connection broke, or the answer came too late or is no HTTP.

        Cancellation: the connection is closed.
        """
        if self._transport is None:
            raise LostError("the server closed the connection")
        self.is_open = False
        self._patience_s = patience_s
        self._heard_at = self._loop.time()
        asked: asyncio.Future[Answer] = self._loop.create_future()
        self._asked = asked
        self._transport.write(request)
        self._unsent_bytes = self._transport.get_write_buffer_size()
        if self._timer is not None and self._timer.when() > self._heard_at + patience_s:
            self._timer.cancel()  # of a request with more patience
            self._timer = None
        if self._timer is None:
            self._look_later()
        try:
            return await asked
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it at once."""
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _look_later(self) -> None:
        self._timer = self._loop.call_at(self._heard_at + self._patience_s, self._look)

    def _look(self) -> None:
        """Give up an answer that is overdue, if the server does not read what it is sent either."""
        self._timer = None
        if self._asked is None or self._transport is None:
            return
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._heard_at = self._loop.time()
        self._unsent_bytes = unsent_bytes
        if self._heard_at + self._patience_s > self._loop.time():
            self._look_later()
        else:
            self._lose("no answer in time")

    def _lose(self, why: str) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_exception(LostError(why))
        self.close()

    # -- the transport's calls --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        # A cast: uvloop's transports are no subclasses of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Read a part of the answer."""
        self._heard_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._lose(f"the answer is no HTTP: {exc}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits, unless the end of the connection is the end of the answer."""
        self._transport = None
        if exc is None and self._ends_with_stream and self._parts:
            self._finish(is_kept=False)
        self._lose("the server closed the connection" if exc is None else f"{exc!r}")

    # -- the parser's calls --

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note what is needed of a header."""
        match name.lower():
            case b"content-type":
                self._content_type = value.decode("latin-1")
            case b"content-length" | b"transfer-encoding":
                self._ends_with_stream = False

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """Hand it over, unless another comes behind it (100 Continue)."""
        if self._parser.get_status_code() >= 200:
            self._finish(is_kept=self._parser.should_keep_alive())
        self._begin()

    def _finish(self, *, is_kept: bool) -> None:
        asked, self._asked = self._asked, None
        answer = Answer(self._parser.get_status_code(), self._content_type, b"".join(self._parts))
        if asked is not None and not asked.done():
            self.is_open = is_kept
            self.idle_since = self._loop.time()
            asked.set_result(answer)
        else:  # nobody has asked for it
            self.close()
