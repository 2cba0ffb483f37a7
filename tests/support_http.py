"""A served engine: in this process through ASGI, or over a socket."""

import asyncio
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint

import lodeq
import lodeq.testing
from lodeq.client.calls import Session, engine_call
from lodeq.client.engine import RemoteEngine
from lodeq.client.transport.transport import Target, Transport
from lodeq.service.http.admission import Refusals
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.http.link.connection import LinkConnection
from lodeq.service.http.link.serving import LinkServing
from lodeq.service.http.listener import listen_tcp, listen_unix
from lodeq.service.http.server import Server

BASE = "http://lodeq"


def asgi_client(app, **headers):
    """Plain HTTP, as curl would speak it."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE, headers=headers)


class Owning(RemoteEngine):
    """A client that takes its engine along when it closes."""

    inner: lodeq.Engine

    async def close(self):
        await super().close()
        await self.inner.close()


class ServedOpening:
    """As ``lodeq.testing.open``, but what it opens is served, and this is the client's end."""

    def __init__(self, opening, settings=None):
        self._opening = opening
        self._settings = settings
        self._engine = None

    def __await__(self):
        return self.__aenter__().__await__()

    async def __aenter__(self):
        inner = await self._opening
        app = make_app(inner, self._settings)
        link = Transport(Target(BASE, None, 30.0), httpx.ASGITransport(app))
        self._engine = Owning(link, Session(await link.send(engine_call("/engine"))))
        self._engine.inner = inner
        return self._engine

    async def __aexit__(self, *error):
        with anyio.CancelScope(shield=True):
            await self._engine.close()


@contextmanager
def socket_path():
    """Short enough for a socket's name, wherever the tests' own folders lie."""
    with tempfile.TemporaryDirectory(prefix="lodeq") as folder:
        yield str(Path(folder) / "s")


@asynccontextmanager
async def serving(engine, *, path=None, settings=None, **options):
    """A server on a unix socket (or on loopback, without a path); its address."""
    listener = listen_tcp("127.0.0.1", 0, None) if path is None else listen_unix(path)
    ready = anyio.Event()
    server = Server(engine, [listener], settings or Settings(), on_ready=ready.set, **options)
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        await ready.wait()
        port = None if path is not None else listener.getsockname()[1]
        try:
            yield f"unix://{path}" if path is not None else f"http://127.0.0.1:{port}"
        finally:
            server.stop()


class LinkedOpening:
    """As ``ServedOpening``, over the link: the server's end and the client's are in this loop."""

    def __init__(self, opening, settings=None):
        self._opening = opening
        self._settings = settings
        self._stack = AsyncExitStack()
        self._engine = None

    def __await__(self):
        return self.__aenter__().__await__()

    async def __aenter__(self):
        inner = await self._opening
        path = self._stack.enter_context(socket_path())
        await self._stack.enter_async_context(linking(inner, path, self._settings))
        link = Transport(Target(f"unix://{path}", None, 30.0))
        engine = self._engine = Linked(link, Session(await link.send(engine_call("/engine"))))
        engine.inner, engine.stack = inner, self._stack
        assert engine.fast is not None  # or it spoke HTTP
        return engine

    async def __aexit__(self, *error):
        await self._engine.close()


class Linked(Owning):
    """Closes the server's end, too."""

    stack: AsyncExitStack

    async def close(self):
        with anyio.CancelScope(shield=True):
            await super().close()
            await self.stack.aclose()


class EmbeddedOpening:
    """``lodeq.open(serve=…)`` of a store on disk; what it opens is a client of that address."""

    def __init__(self, store, path, **options):
        options.setdefault("block_cache_bytes", 8 << 20)
        self._opening = lodeq.open(store, serve=path, **options)
        self._url = f"unix://{path}"
        self._engine = None

    def __await__(self):
        return self.__aenter__().__await__()

    async def __aenter__(self):
        inner = await self._opening
        link = Transport(Target(self._url, None, 30.0))
        self._engine = Owning(link, Session(await link.send(engine_call("/engine"))))
        self._engine.inner = inner
        return self._engine

    async def __aexit__(self, *error):
        with anyio.CancelScope(shield=True):
            await self._engine.close()


# How a suite of an engine reaches a served one. Links are served on asyncio, and so is a store by
# the process that has it open (``serve=``). The first two are in every run, others in the second
# tier.
WAYS = [
    ("asyncio", "link"),
    ("asyncio", "http"),
    pytest.param("trio", "http", marks=pytest.mark.slow),
]
ALL_WAYS = [*WAYS, pytest.param("asyncio", "embedded", marks=pytest.mark.slow)]


@contextmanager
def opening_by(transport, shards, folder):
    """How a suite opens its engines: over HTTP, over the link, or on disk with ``serve=``."""
    if transport == "embedded":
        with socket_path() as path:
            yield lambda **options: EmbeddedOpening(folder / "s", path, shards=shards, **options)
        return
    kind = LinkedOpening if transport == "link" else ServedOpening
    yield lambda **options: kind(lodeq.testing.open(shards=shards, **options))


@asynccontextmanager
async def linking(engine, path, settings=None):
    """Accepts links on a unix socket, without HTTP beside them; yields what they share."""
    loop = asyncio.get_running_loop()
    hub = make_app(engine, settings).state.hub
    serving = LinkServing(hub, Refusals(), set(), set(), loop)
    server = await loop.create_unix_server(
        lambda: LinkConnection(serving, hub.admission), path, backlog=64
    )
    try:
        yield serving
    finally:
        server.close()
        for connection in list(serving.connections):
            connection.shutdown()
        while serving.connections or serving.tasks:
            await checkpoint()
        await server.wait_closed()
