"""A dashboard that only reads, in an application of one's own: nothing there changes the store."""

import pytest
from support_http import asgi_client, serving, socket_path

import lodeq
import lodeq.testing
from lodeq.service.dashboard.routes import Dashboard
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.http.operations import OPERATIONS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_nothing_under_v1_changes_anything():
    async with lodeq.testing.open() as engine:
        await engine.queue("mail").enqueue(b"x")
        board = Dashboard(engine)
        app = make_app(engine, board.guarded(Settings()), routes=board.routes)
        async with asgi_client(app) as client:
            for one in OPERATIONS:
                if not one.changes:
                    continue
                path = one.path.replace("{queue}", "mail")
                answer = await client.request(one.method, f"/v1{path}", json={})
                assert (answer.status_code, one.name) == (403, one.name)
                assert 'access="read"' in answer.json()["detail"]
            assert (await client.get("/v1/queues/mail/stats")).json()["ready"] == 1
            found = await client.post("/v1/tasks/count", json={"filter": {}})
            assert found.status_code == 200
        assert (await engine.queue("mail").stats()).ready == 1


async def test_a_client_may_read_over_either_transport_and_write_where_that_is_said():
    async with lodeq.testing.open() as engine:
        board = Dashboard(engine)
        with socket_path() as path:
            for clients, n in (("read", 0), (None, 0), ("write", 1)):
                settings = board.guarded(Settings(), clients=clients)
                async with (
                    serving(engine, path=path, settings=settings, routes=board.routes) as url,
                    lodeq.connect(url) as client,
                ):
                    queue = client.queue("mail")
                    if n:
                        await queue.enqueue(b"x")
                    else:
                        with pytest.raises(lodeq.AccessDeniedError, match="guarded"):
                            await queue.enqueue(b"x")
                    assert (await queue.stats()).ready == n


async def test_one_that_writes_lets_clients_write():
    async with lodeq.testing.open() as engine:
        board = Dashboard(engine, access="write")
        app = make_app(engine, board.guarded(Settings()), routes=board.routes)
        async with asgi_client(app) as client:
            answer = await client.post("/v1/queues/mail/purge", json={})
            assert answer.status_code == 200
