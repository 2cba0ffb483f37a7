"""Ended tasks read on from an id over HTTP, and by a client of an older server."""

import pytest
from support_http import ServedOpening, asgi_client

import lodeq
import lodeq.testing
from lodeq import NewTask, TaskFilter
from lodeq.service.http.app import make_app

pytestmark = pytest.mark.anyio
FIND = "/v1/tasks/find"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine():
    async with lodeq.testing.open(shards=2) as engine:
        mail = engine.queue("mail")
        await mail.enqueue_many([NewTask(b"%d" % n) for n in range(7)])
        await engine.complete_many([(lease, None) for lease in await mail.claim(limit=7)])
        yield engine


async def test_pages_of_a_search_and_of_the_history(engine):
    ended = TaskFilter(queue="mail", state="completed")
    ids = [str(task.id) async for task in engine.find_all(ended, oldest_first=True)]
    assert len(ids) == 7
    order = {"limit": 3, "oldest_first": True, "after": ids[1]}
    async with asgi_client(make_app(engine)) as client:
        given = {"filter": {"queue": "mail"}, **order}
        first = (await client.post(FIND, json=given)).json()
        assert [task["id"] for task in first["tasks"]] == ids[2:5]
        rest = (await client.post(FIND, json={**given, "cursor": first["cursor"]})).json()
        assert ([task["id"] for task in rest["tasks"]], rest["cursor"]) == (ids[5:], None)

        given = {"queue": "mail", **order, "oldest_first": "true"}
        first = (await client.get("/v1/history", params=given)).json()
        assert [one["task_id"] for one in first["results"]] == ids[2:5]
        rest = (await client.get("/v1/history", params={**given, "cursor": first["cursor"]})).json()
        assert ([one["task_id"] for one in rest["results"]], rest["cursor"]) == (ids[5:], None)

        for answer, text in [
            (await client.post(FIND, json={"after": ids[0]}), "goes with oldest_first"),
            (await client.post(FIND, json={"oldest_first": True, "after": "7"}), "after"),
            (await client.post(FIND, json={"oldest_first": "yes"}), "oldest_first"),
            (await client.get("/v1/history", params={"after": ids[0]}), "goes with oldest_first"),
            (await client.get("/v1/history", params={"cursor": first["cursor"]}), "oldest_first="),
        ]:
            assert answer.status_code == 422
            assert text in answer.json()["detail"]


async def test_an_older_server_is_named(engine):
    async with ServedOpening(lodeq.testing.open()) as client:
        client.session.lists_oldest_first = False
        for call in (
            client.find(TaskFilter(), oldest_first=True),
            client.history(oldest_first=True),
        ):
            with pytest.raises(lodeq.UsageError, match="upgrade the server"):
                await call
        assert (await client.find(TaskFilter())).cursor is None
        assert (await client.history()).cursor is None
