"""Calls that change many tasks of a served store, and fail in the middle: what is known of them."""

import httpx
import pytest
from support_cluster_client import client, cluster
from support_http import serving, socket_path

import lodeq
import lodeq.testing
from lodeq import NewTask, TaskFilter
from lodeq.client.cluster.nodes import Nodes
from lodeq.repository.api.engine import Engine
from lodeq.service.http.guard import Settings
from lodeq.service.http.link import connection as linked

pytestmark = pytest.mark.anyio
ALL = TaskFilter(queue="mail")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch):
    monkeypatch.setattr(linked, "LINGER_S", 0.0)


@pytest.fixture
async def served():
    async with lodeq.testing.open(clock=lodeq.testing.ManualClock()) as inner:
        with socket_path() as path:
            async with serving(inner, path=path) as url, lodeq.connect(url) as engine:
                await engine.queue("mail").enqueue_many([NewTask(n) for n in range(3)])
                yield engine, path


async def error_of(call):
    with pytest.raises(lodeq.LodeqError) as caught:
        await call
    return caught.value


async def test_an_act_whose_answer_is_lost_is_not_counted_as_none(served, cut):
    engine, _ = served
    cut[0] = 1
    error = await error_of(engine.act("cancel", ALL))
    assert isinstance(error, lodeq.CommitUnknownError)
    assert "the same call again does the rest" in str(error)
    assert (await engine.queue("mail").stats()).ready == 0


async def test_a_discard_whose_answer_is_lost_does_not_deny_it(served, cut):
    engine, _ = served
    lease = await engine.queue("mail").claim_one()
    await lease.bury("no")
    cut[0] = 1
    error = await error_of(engine.discard(lease.task_id))
    assert isinstance(error, lodeq.CommitUnknownError)


async def test_an_error_says_what_was_done_before_it(served, monkeypatch):
    engine, path = served

    async def act(self, *args, **options):
        error = lodeq.BusyError("too much at once")
        error.done = 128
        raise error

    monkeypatch.setattr(Engine, "act", act)
    assert (await error_of(engine.act("cancel", ALL))).done == 128
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1") as http:
        answer = await http.post("/tasks/act", json={"act": "cancel", "filter": {}})
    assert answer.json()["done"] == 128


def fail_once(monkeypatch, end, error, done, times=1):
    """Answer a call of a cluster's client with an error, as if ``done`` tasks were changed."""
    real, left = Nodes.ask, [times]

    async def ask(self, node, call, *args, **options):
        if call.path.endswith(end) and left[0]:
            left[0] -= 1
            failure = error("not now")
            failure.done = done
            raise failure
        return await real(self, node, call, *args, **options)

    monkeypatch.setattr(Nodes, "ask", ask)


async def test_what_a_leader_had_done_before_it_lost_its_shards_counts(monkeypatch):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(30)])
        fail_once(monkeypatch, "/purge", lodeq.NotLeaderError, 1000)
        assert await mail.purge() == 1030


async def test_what_was_done_of_one_shard_before_its_leader_changed_counts(monkeypatch):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(30)])
        fail_once(monkeypatch, "/tasks/act", lodeq.NotLeaderError, 100)
        assert (await engine.act("cancel", ALL)).done == 130


@pytest.mark.parametrize("name", ["purge", "cancel_all"])
async def test_what_other_nodes_have_done_is_said_where_one_refuses(monkeypatch, name):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(60)])
        fail_once(monkeypatch, f"/{name}", lodeq.StorageFullError, 2)
        error = await error_of(getattr(mail, name)())
        left = (await mail.stats()).ready
        assert 0 < left < 60
        assert error.done == 60 - left + 2


async def test_what_other_shards_have_done_is_said_where_an_act_fails(monkeypatch):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(60)])
        real, seen = Nodes.ask, []

        async def ask(self, node, call, *args, **options):
            seen.append(call.path == "/tasks/act")
            if sum(seen) == 4:
                raise lodeq.StorageFullError("full")
            return await real(self, node, call, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Nodes, "ask", ask)
            error = await error_of(engine.act("cancel", ALL))
        left = (await mail.stats()).ready
        assert 0 < left < 60
        assert error.done == 60 - left


async def test_a_checkpoint_whose_answer_is_lost_is_not_denied(tmp_path, cut):
    settings = Settings(checkpoints=str(tmp_path / "checkpoints"))
    async with lodeq.open(tmp_path / "jobs") as inner:
        with socket_path() as path:
            async with (
                serving(inner, settings=settings, path=path) as url,
                lodeq.connect(url) as engine,
            ):
                cut[0] = 1
                error = await error_of(engine.checkpoint("daily"))
    assert isinstance(error, lodeq.CommitUnknownError)
    assert "look whether it is there" in str(error)
    assert (tmp_path / "checkpoints" / "daily").is_dir()
