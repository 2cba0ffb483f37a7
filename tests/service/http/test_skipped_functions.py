"""Tasks for functions that who claims does not know, over HTTP and over the link."""

import pytest
from anyio import to_thread
from support_http import LinkedOpening, ServedOpening, serving

import lodeq
import lodeq.sync
import lodeq.testing
from lodeq.client import calls
from lodeq.client.cluster.claims import claim as claim_in_cluster

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=[ServedOpening, LinkedOpening])
async def engine(request):
    async with request.param(lodeq.testing.open()) as engine:
        yield engine


def two():
    return [lodeq.NewTask(n, function="new" if n % 2 else "old") for n in range(4)]


async def test_a_client_leaves_tasks_to_others(engine):
    every = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
    await engine.queue("mail").enqueue_many(two())
    got = await every.claim(limit=10, skip_functions=["new"])
    assert [lease.payload for lease in got] == [0, 2]
    assert await every.claim(limit=10, wait=0.01, skip_functions={"new"}) == []
    got = await every.claim(limit=10, skip_functions=["old"])
    assert [(lease.payload, lease.attempt) for lease in got] == [(1, 1), (3, 1)]


async def test_wrong_names_are_refused(engine):
    every = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
    for wrong in ("new", [""], ["x"] * 257):
        with pytest.raises(lodeq.UsageError, match="skip_functions"):
            await every.claim(skip_functions=wrong)
    with pytest.raises(lodeq.UsageError, match="ALL_TENANTS"):
        await engine.queue("mail").claim(skip_functions=["new"])


async def test_a_request_for_several_queues_is_refused(engine):
    call = calls.claim(
        engine.session,
        ["mail", "jobs"],
        limit=1,
        lease=None,
        wait_s=0,
        worker="",
        skip_functions=["new"],
    )
    with pytest.raises(lodeq.UsageError, match="one queue"):
        await engine.send(call)


async def test_an_older_server_is_told_of_none(engine):
    engine.session.skips_functions = False
    await engine.queue("mail").enqueue_many(two())
    every = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
    got = await every.claim(limit=10, skip_functions=["new"])
    assert [lease.payload for lease in got] == [0, 1, 2, 3]


async def test_a_cluster_is_told_of_none():
    sent = []

    class Nodes:
        async def leaders(self):
            return ["a"]

        async def ask(self, node, call):
            sent.append(call.doc)
            return {"leases": ["one"]}

    doc = {"queues": [], "limit": 1, "wait": 0, "skip_tenants": ["x"], "skip_functions": ["new"]}
    call = calls.Call("POST", "/leases/claim", doc)
    assert await claim_in_cluster(Nodes(), call) == {"leases": ["one"]}
    assert set(sent[0]) == {"queues", "limit", "wait", "skip_tenants"}


async def test_threads_leave_them_too():
    async with lodeq.testing.open() as engine, serving(engine) as url:
        await engine.queue("mail").enqueue_many(two())

        def claim(opened):
            every = opened.queue("mail", tenant=lodeq.ALL_TENANTS)
            return [one.payload for one in every.claim(skip_functions=["old"])]

        def remote():
            with lodeq.sync.connect(url) as client:
                return claim(client)

        assert await to_thread.run_sync(remote) == [1]
        assert await to_thread.run_sync(claim, engine.sync) == [3]
