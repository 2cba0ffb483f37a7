"""A bare server for the floor of a round trip: it answers whatever comes. ``PATH [LOG]``.

With a log it does so once what came in a turn of its loop is written there, and synced.
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import Any, cast

ANSWER = bytes(24)  # a task's id, and the frame around it


class Echo(asyncio.Protocol):
    """One client, who asks again once it is answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(ANSWER)


class Log:
    """Requests of one turn of the loop, synced together, on the loop: nothing else waits."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._came: list[tuple[asyncio.Transport, bytes]] = []

    def add(self, transport: asyncio.Transport, data: bytes) -> None:
        if not self._came:
            asyncio.get_running_loop().call_soon(self._sync)
        self._came.append((transport, data))

    def _sync(self) -> None:
        came, self._came = self._came, []
        os.write(self._fd, b"".join(data for _, data in came))
        os.fdatasync(self._fd)
        for transport, _ in came:
            transport.write(ANSWER)


class SyncedEcho(Echo):
    """The same, synced."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def data_received(self, data: bytes) -> None:
        self.log.add(self.transport, data)


class Caller(asyncio.Protocol):
    """The other end: one request at a time."""

    answered: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    async def ask(self, request: bytes) -> None:
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self.answered

    def data_received(self, data: bytes) -> None:
        if self.answered is not None:
            self.answered.set_result(None)


class EchoSession:
    """Three requests of a cycle's sizes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.caller: Caller | None = None

    async def put(self, payload: bytes) -> None:
        await self._ask(payload)

    async def take(self) -> Any:
        await self._ask(bytes(40))
        return ANSWER

    async def done(self, token: Any, result: bytes) -> None:
        await self._ask(token + bytes(16) + result)

    async def _ask(self, request: bytes) -> None:
        if self.caller is None:
            loop = asyncio.get_running_loop()
            _, self.caller = await loop.create_unix_connection(Caller, self.path)
        await self.caller.ask(request)

    async def close(self) -> None:
        if self.caller is not None:
            self.caller.transport.close()


async def main(path: str, log_path: str | None = None) -> None:
    """Serve until ended."""
    made = Echo if log_path is None else partial(SyncedEcho, Log(log_path))
    server = await asyncio.get_running_loop().create_unix_server(made, path)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
