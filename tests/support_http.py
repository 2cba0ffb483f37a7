"""A served engine: in this process through ASGI, or over a socket."""

import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import httpx

import lodeq
import lodeq.testing
from lodeq.client.calls import Session, engine_call
from lodeq.client.engine import RemoteEngine
from lodeq.client.link import Link, Target
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
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
        link = Link(Target(BASE, None, 30.0), httpx.ASGITransport(app))
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
