"""A blocking engine behind the calls of an async one: each call runs in a thread of its own.

So one suite holds for both forms. Which calls are awaited is what the async class says.
"""

import inspect
from contextlib import AsyncExitStack
from functools import partial

import anyio
import httpx
from anyio.from_thread import BlockingPortal
from support_http import BASE

import lodeq
import lodeq.sync
import lodeq.testing
from lodeq.client.blocking.engine import SyncRemoteEngine
from lodeq.client.blocking.lease import SyncRemoteLease
from lodeq.client.blocking.leases import SyncRemoteLeaseStream
from lodeq.client.blocking.payload import SyncRemotePayloadReader
from lodeq.client.blocking.queue import SyncRemoteQueue
from lodeq.client.calls import Session, engine_call
from lodeq.client.transport.transport import SyncTransport, Target
from lodeq.repository.api.threads.sync_engine import SyncEngine
from lodeq.repository.api.threads.thread_leases import (
    ThreadLease,
    ThreadLeaseStream,
    ThreadPayloadReader,
)
from lodeq.repository.api.threads.thread_queue import ThreadQueue
from lodeq.repository.model.flows.sync_workflow_handle import SyncWorkflow
from lodeq.repository.model.flows.workflow_handle import Workflow
from lodeq.repository.tasks.streamed_payloads import PayloadReader
from lodeq.service.http.app import make_app

TWINS = {
    SyncEngine: lodeq.Engine,
    SyncRemoteEngine: lodeq.Engine,
    ThreadQueue: lodeq.Queue,
    SyncRemoteQueue: lodeq.Queue,
    ThreadLease: lodeq.Lease,
    SyncRemoteLease: lodeq.Lease,
    ThreadLeaseStream: lodeq.LeaseStream,
    SyncRemoteLeaseStream: lodeq.LeaseStream,
    ThreadPayloadReader: PayloadReader,
    SyncRemotePayloadReader: PayloadReader,
    SyncWorkflow: Workflow,
}
_OVER = object()


class Blocking:
    """One object of a blocking engine, as the async one that it is the twin of."""

    def __init__(self, inner):
        self._inner = inner
        self._items = None

    def __repr__(self):
        return f"<Blocking {self._inner!r}>"

    def __eq__(self, other):
        return isinstance(other, Blocking) and self._inner == other._inner

    def __hash__(self):
        return hash(self._inner)

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if not callable(value):
            return wrapped(value)
        twin = inspect.getattr_static(TWINS[type(self._inner)], name, None)
        call = partial(_call, value)
        if not inspect.iscoroutinefunction(twin):
            return call

        async def in_a_thread(*args, **options):
            return await anyio.to_thread.run_sync(partial(call, *args, **options))

        return in_a_thread

    async def __aenter__(self):
        return await anyio.to_thread.run_sync(_call, self._inner.__enter__)

    async def __aexit__(self, *error):
        with anyio.CancelScope(shield=True):
            return await anyio.to_thread.run_sync(_call, self._inner.__exit__, *error)

    def __aiter__(self):
        self._items = iter(self._inner)
        return self

    async def __anext__(self):
        if self._items is None:
            self._items = iter(self._inner)
        found = await anyio.to_thread.run_sync(next, self._items, _OVER)
        if found is _OVER:
            raise StopAsyncIteration
        return wrapped(found)


class ThroughLoop(httpx.BaseTransport):
    """Requests of any thread to an application on a loop."""

    def __init__(self, app, portal):
        self._asgi = httpx.ASGITransport(app)
        self._portal = portal

    def handle_request(self, request):
        return self._portal.call(self._handle, request, request.read())

    async def _handle(self, request, content):
        asked = httpx.Request(request.method, request.url, headers=request.headers, content=content)
        answer = await self._asgi.handle_async_request(asked)
        return httpx.Response(
            answer.status_code, headers=answer.headers, content=await answer.aread()
        )


def _call(function, /, *args, **options):
    given = {name: plain(value) for name, value in options.items()}
    return wrapped(function(*map(plain, args), **given))


def wrapped(value):
    if type(value) in TWINS or inspect.isgenerator(value):
        return Blocking(value)
    if type(value) in (list, tuple):
        return type(value)(map(wrapped, value))
    return value


def plain(value):
    """What a blocking call takes: no object of this module."""
    if isinstance(value, Blocking):
        return value._inner
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


class BlockingOpening:
    """As ``lodeq.testing.open``, of a store in threads: its own, or a served one."""

    def __init__(self, path, *, is_served, **options):
        self._path = path
        self._is_served = is_served
        self._options = options
        self._stack = AsyncExitStack()

    def __await__(self):
        return self.__aenter__().__await__()

    async def __aenter__(self):
        if self._is_served:
            inner = await self._stack.enter_async_context(lodeq.testing.open(**self._options))
            portal = await self._stack.enter_async_context(BlockingPortal())
            opening = partial(_connect, ThroughLoop(make_app(inner), portal))
        else:
            options = {"block_cache_bytes": 8 << 20, **self._options}
            opening = partial(lodeq.sync.open, self._path, **options)
        self._engine = Blocking(await anyio.to_thread.run_sync(opening))
        await self._engine.__aenter__()
        return self._engine

    async def __aexit__(self, *error):
        await self._engine.__aexit__(None, None, None)
        await self._stack.aclose()


def _connect(through):
    transport = SyncTransport(Target(BASE, None, 30.0), through)
    return SyncRemoteEngine(transport, Session(transport.send(engine_call("/engine"))))
