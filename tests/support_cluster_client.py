"""A cluster of several served engines in this process, and clients of it."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from support_replication import Cluster

import lodeq
import lodeq.testing
from lodeq.engine.runtime.clock import SystemClock
from lodeq.repository.api.view import view_of
from lodeq.service.http.guard import Settings
from lodeq.service.http.listener import listen_unix
from lodeq.service.http.server import Server

NODES = 3


class Relay:
    """Before a node: passes bytes on, unless it is frozen as a stopped process would be."""

    def __init__(self, name):
        self.name = name
        self.behind = name + ".node"
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.connections = []  # an event each: whether it passes bytes on
        self._tasks = set()
        self._writers = []
        self._is_closing = False

    async def start(self):
        path = self.name.removeprefix("unix://")
        self._server = await asyncio.start_unix_server(self._accepted, path)

    async def _accepted(self, reader, writer):
        self._writers.append(writer)
        await self.thawed.wait()  # a stopped process has its sockets: the kernel accepts for it
        if self._is_closing:
            return
        path = self.behind.removeprefix("unix://")
        try:
            there, back = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()
            return
        self._writers.append(back)
        passes = asyncio.Event()
        passes.set()
        self.connections.append(passes)
        for one in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass_on(passes, *one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, passes, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                await self.thawed.wait()
                await passes.wait()
                writer.write(data)
        except OSError:
            pass
        writer.close()

    async def close(self):
        self._is_closing = True
        self.thawed.set()
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with suppress(OSError):
                await writer.wait_closed()


class LeaderCalls:
    """What leaders tell one another, within this process."""

    def __init__(self, engines):
        self.engines = engines

    async def tell_joins(self, url, document):
        try:
            told = json.loads(json.dumps(document))
            answer = await view_of(self.engines[url]).take_joins(told)
        except lodeq.LodeqError as error:
            raise lodeq.UnreachableError(str(error)) from error
        return json.loads(json.dumps(answer))


class ServedCluster:
    """Engines of one store, each served on a socket; node and leader names are addresses."""

    def __init__(self, log, names):
        self.log = log
        self.names = names
        self.engines = {}
        self.servers = {}
        self.relays = {}

    @property
    def url(self):
        return "lodeq://" + ",".join(name.replace("unix://", "unix:") for name in self.names)

    def url_of(self, *names):
        return "lodeq://" + ",".join(name.replace("unix://", "unix:") for name in names)

    async def serve(self, name, settings=None):
        ready = asyncio.Event()
        relay = self.relays.get(name)
        where = name if relay is None else relay.behind
        listener = listen_unix(where.removeprefix("unix://"))
        engine = self.engines[name]
        server = Server(engine, [listener], settings or Settings(), on_ready=ready.set)
        self.servers[name] = server, asyncio.create_task(server.run())
        await ready.wait()

    async def stop(self, name):
        """The node's server goes; its engine is there, and hears of the log."""
        server, task = self.servers.pop(name)
        server.stop()
        await task

    def freeze(self, name):
        """The node stops: its sockets accept, and nothing answers; it hears nothing of the log."""
        self.log.nodes[name].cut()
        self.relays[name].thawed.clear()

    async def lead(self, *leaders):
        """The node of each number leads the shard at its place."""
        for shard, n in enumerate(leaders):
            await self.log.elect(self.names[n], shard)


@asynccontextmanager
async def cluster(
    *, shards=6, nodes=NODES, leaders=None, settings=None, freezable=False, **options
):
    """A cluster in which the nodes lead in turn: shard 0 the first, shard 1 the second, …"""
    options.setdefault("clock", SystemClock())
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="lodeq"))
        names = [f"unix://{Path(folder) / str(n)}" for n in range(nodes)]
        found = ServedCluster(Cluster(), names)
        for name in names:
            opening = found.log.open(name, shards=shards, **options)
            engine = found.engines[name] = await stack.enter_async_context(opening)
            view_of(engine).reach_leaders(LeaderCalls(found.engines))
        await found.lead(*(leaders or [n % nodes for n in range(shards)]))
        try:
            for name in names:
                if freezable:
                    relay = found.relays[name] = Relay(name)
                    await relay.start()
                await found.serve(name, settings)
            yield found
        finally:
            for relay in found.relays.values():
                await relay.close()
            for one in list(found.servers):
                await found.stop(one)


@asynccontextmanager
async def client(found, **options):
    async with lodeq.connect(found.url, **options) as engine:
        yield engine


class ClusterOpening:
    """As ``lodeq.testing.open``, of a cluster; what it opens is a client of it."""

    def __init__(self, **options):
        self._options = options
        self._stack = AsyncExitStack()

    def __await__(self):
        return self.__aenter__().__await__()

    async def __aenter__(self):
        found = await self._stack.enter_async_context(cluster(**self._options))
        self._engine = await lodeq.connect(found.url)
        self._engine.inner = found.engines[found.names[0]]
        self._engine.nodes = found
        real = self._engine.close

        async def close():
            await real()
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()

        self._engine.close = close
        return self._engine

    async def __aexit__(self, *error):
        with anyio.CancelScope(shield=True):
            await self._engine.close()
