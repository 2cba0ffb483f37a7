"""Ten thousand queues: what tells of them all costs no caller more than a turn of the loop."""

import anyio
import anyio.lowlevel
import httpx
import pytest
from starlette.routing import Route
from support_http import asgi_client
from support_turns import held_at_most

import lodeq
import lodeq.testing
from lodeq.client.calls import Session, engine_call
from lodeq.client.engine import RemoteEngine
from lodeq.client.transport.transport import Target, Transport
from lodeq.engine.runtime.ids import SeededRng
from lodeq.service.dashboard.routes import Dashboard
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.metrics.route import metrics_route
from lodeq.service.shared.engine_status import StatusCache

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
QUEUES = 10_000
TENANTS = 2_000
CALLBACK_MS = 50.0
PATHS = [
    "/metrics",
    "/v1/queues",
    "/v1/stats",
    "/",
    "/?q=q1",
    "/queues/all",
    "/queues/all?tenant=t7",
]


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def app(anyio_backend):
    """An engine of many queues, and one queue of many tenants."""
    async with lodeq.testing.open(reaper=False) as engine:
        for start in range(0, QUEUES, 1000):
            names = [f"q{n:05}" for n in range(start, start + 1000)]
            await engine.enqueue_many([lodeq.NewTask(b"x", queue=name) for name in names])
        tenants = [lodeq.NewTask(b"x", queue="all", tenant=f"t{n}") for n in range(TENANTS)]
        await engine.enqueue_many(tenants)
        dashboard = Dashboard(engine, rng=SeededRng(1))
        routes: list[Route] = [metrics_route(engine), *dashboard.routes]
        yield make_app(engine, dashboard.guarded(Settings()), routes=routes)


@pytest.fixture
async def taken(monkeypatch):
    """One entry for every status that is collected."""
    taken, collect = [], StatusCache.collect
    monkeypatch.setattr(StatusCache, "collect", lambda self: taken.append(self) or collect(self))
    return taken


@pytest.mark.turns
@pytest.mark.parametrize("path", PATHS)
async def test_nobody_holds_the_loop(app, path):
    async with asgi_client(app) as client:
        await client.get(path)  # templates are compiled once
        with held_at_most(CALLBACK_MS):
            answer = await client.get(path)
        assert answer.status_code == 200


@pytest.mark.turns
async def test_a_status_is_collected_in_turns(app, taken, monkeypatch):
    monkeypatch.setattr(StatusCache, "_recent", lambda self: None)
    async with asgi_client(app) as client:
        with held_at_most(CALLBACK_MS):
            assert (await client.get("/v1/queues")).status_code == 200
    assert len(taken) == 1


async def test_all_who_ask_share_one_status(app, taken):
    async with asgi_client(app) as client:
        answers = []

        async def ask(path):
            answers.append((await client.get(path)).status_code)

        async with anyio.create_task_group() as group:
            for path in ("/metrics", "/v1/queues", "/") * 10:
                group.start_soon(ask, path)
    assert answers == [200] * 30
    assert len(taken) <= 2  # the second, where the first is more than a second old by then


async def test_who_goes_away_takes_nobodys_status_along(app, taken):
    cache, scope, found = StatusCache(app.state.hub.engine), anyio.CancelScope(), []

    async def ask(own):
        with own:
            found.append(len((await cache.get()).names))

    async with anyio.create_task_group() as group:
        group.start_soon(ask, scope)
        while not taken:
            await anyio.lowlevel.checkpoint()
        group.start_soon(ask, anyio.CancelScope())
        await anyio.lowlevel.checkpoint()
        scope.cancel()
    assert scope.cancelled_caught
    assert (len(taken), found) == (2, [QUEUES + 1])


async def test_queues_come_in_pages(app):
    async with asgi_client(app) as client:
        pages, query = [], {"limit": "700"}
        while True:
            doc = (await client.get("/v1/queues", params=query)).json()
            pages.append([(one["queue"], one["tenant"]) for one in doc["queues"]])
            if doc["next"] is None:
                break
            query["after"] = doc["next"]
        told = [key for page in pages for key in page]
        assert told == sorted(told)
        assert len(set(told)) == len(told) == QUEUES + TENANTS
        assert {len(page) for page in pages[:-1]} == {700}
        first = (await client.get("/v1/queues")).json()  # as an older client asks
        assert len(first["queues"]) == 1000
        assert first["next"] == "/".join(told[999])
        for query in ("limit=0", "limit=1001", "limit=x", "after=mail"):
            assert (await client.get(f"/v1/queues?{query}")).status_code == 422


async def test_a_client_follows_the_pages(app):
    link = Transport(Target("http://lodeq", None, 30.0), httpx.ASGITransport(app))
    async with RemoteEngine(link, Session(await link.send(engine_call("/engine")))) as client:
        found = await client.queues()
    assert len(found) == QUEUES + TENANTS
    assert found["all", "t7"].ready == 1
