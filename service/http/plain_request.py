"""A plain request: one that arrives in one piece, and asks for nothing beside its answer.

h11 reads and writes HTTP with more care than a small call itself takes time. Nearly every call is
plain, and httptools reads it in a fifth of that. What it does not take for one plain request goes
to h11 as it came: parts of a request, several, chunks, HTTP/1.0, an offer to upgrade (whose body
httptools would lose), an end of the connection after it, a head that waits for ``100 Continue``.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import httptools

__all__ = ["OneWrite", "PlainReader", "PlainRequest"]

HELD_BYTES_MAX: Final = 64 << 10  # of an answer, joined to one write
_NOT_PLAIN: Final = frozenset((b"connection", b"expect", b"transfer-encoding", b"upgrade"))


class PlainRequest(NamedTuple):
    """A plain request.

    Attributes:
        method: such as ``POST``; never HEAD, whose answer has no body.
        target: as it was sent: a path and perhaps a query.
        headers: their names in lower case.
        body: all of it.
    """

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


class PlainReader:
    """Tells plain requests from others, and reads them. One for each connection."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)

    def read(self, data: bytes) -> PlainRequest | None:
        """Read what arrived where a request may begin; None: it is not one plain request."""
        self._n_begun = self._n_complete = self._n_hosts = 0
        self._is_plain = True
        self._target: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        parser = self._parser
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_plain = False
        if self._is_plain and self._n_begun == self._n_complete == self._n_hosts == 1:
            method, target = parser.get_method(), b"".join(self._target)
            is_path = target[:1] == b"/" and target.isascii()
            if (
                method != b"HEAD"
                and is_path
                and data.startswith(b"%b %b HTTP/1.1\r\n" % (method, target))
            ):
                return PlainRequest(method.decode(), target, self._headers, b"".join(self._body))
        self._parser = httptools.HttpRequestParser(self)  # this one is in the middle of something
        return None

    # -- the parser's calls --

    def on_message_begin(self) -> None:
        """Count requests."""
        self._n_begun += 1

    def on_url(self, url: bytes) -> None:
        """Keep a part of the target."""
        self._target.append(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        name, value = name.lower(), value.rstrip(b"\t ")
        if name == b"host":
            self._n_hosts += 1
        elif name in _NOT_PLAIN and (name, value.lower()) != (b"connection", b"keep-alive"):
            self._is_plain = False
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Count whole requests."""
        self._n_complete += 1


class OneWrite:
    """The transport of an answer: its head waits for its body, for a turn of the loop at most."""

    __slots__ = ("_held", "_held_bytes", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0

    def write(self, data: bytes) -> None:
        """Write with what comes next."""
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX:
            self.flush()
            self._transport.write(data)
            return
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)

    def flush(self) -> None:
        """Write what is held."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            self._transport.write(b"".join(held))

    def close(self) -> None:
        """Close it, once everything is written."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._transport.is_closing()
