"""Ends of leases whose answer is lost: sent again, and unknown where that settles nothing."""

import anyio
import httpx
import pytest
from support_cluster_client import client, cluster
from support_http import serving, socket_path

import lodeq
import lodeq.testing
from lodeq import NewTask
from lodeq.client.calls import Call
from lodeq.client.fast_calls import FastCalls
from lodeq.client.transport.framed_link import FramedLink
from lodeq.client.transport.transport import SyncTransport, Target, Transport
from lodeq.service.http.link import connection as linked

pytestmark = pytest.mark.anyio

refusals = pytest.mark.parametrize(
    "refusal",
    [
        lodeq.NotLeaderError("nobody"),
        lodeq.BusyError("full"),
        lodeq.StorageFullError("full"),
        lodeq.ClosedError("this client is closed"),
    ],
    ids=lambda one: type(one).__name__,
)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch):
    monkeypatch.setattr(linked, "LINGER_S", 0.0)


def refusing(engine, refusal):
    async def send(call):
        raise refusal

    engine.send = send
    if hasattr(engine.fast, "_send"):
        engine.fast._send = send


@refusals
async def test_a_lost_complete_that_is_refused_then_may_have_happened(cut, refusal):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        for n in range(6):
            await mail.enqueue(n)
        one, *rest = await mail.claim(limit=6)
        refusing(engine, refusal)
        cut[0] = 1
        with pytest.raises(lodeq.CommitUnknownError, match="was lost"):
            await one.complete()
        by_node = list(engine.fast._by_leader(x.granted for x in rest).values())
        same = [rest[n] for n in by_node[-1]]  # of one whose link is still there
        cut[0] = 1
        with pytest.raises(lodeq.CommitUnknownError, match="was lost"):
            await engine.complete_many([(lease, None) for lease in same])
        del engine.send
        assert (await mail.stats()).leased == 5 - len(same)


@pytest.mark.parametrize("is_short", [True, False])
async def test_a_lost_complete_of_a_server_that_is_gone_may_have_happened(
    cut, monkeypatch, is_short
):
    async with lodeq.testing.open(clock=lodeq.testing.ManualClock()) as inner:
        with socket_path() as path:
            async with serving(inner, path=path) as url, lodeq.connect(url) as engine:
                mail = engine.queue("mail")
                await mail.enqueue_many([NewTask(n) for n in range(3)])
                leases = await mail.claim(limit=3)
                engine.fast = engine.fast if is_short else None
                real = FramedLink.connected

                async def gone(self):
                    if self.connection is None:
                        raise lodeq.UnreachableError("gone")
                    return await real(self)

                with monkeypatch.context() as patch:
                    patch.setattr(FramedLink, "connected", gone)
                    cut[0] = 1
                    with pytest.raises(lodeq.CommitUnknownError, match="was lost"):
                        await leases[0].complete()
                assert (await mail.stats()).leased == 2


async def test_a_lost_complete_that_is_taken_then_is_done(cut):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        for n in range(6):
            await mail.enqueue(n)
        one, *rest = await mail.claim(limit=6)
        cut[0] = 1
        await one.complete()
        cut[0] = 1
        assert await engine.complete_many([(lease, None) for lease in rest]) == [None] * 5
        assert cut == [0]


@pytest.mark.parametrize("is_short", [True, False])
async def test_a_refusal_of_a_part_hides_no_other_that_may_have_happened(monkeypatch, is_short):
    """Whichever part is the first."""
    outcomes = []

    async def answer(self, *args):
        raise outcomes.pop(0)

    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail", retention=0)
        for n in range(6):
            await mail.enqueue(n)
        leases = await mail.claim(limit=6)
        n_parts = len(engine.fast._by_leader(one.granted for one in leases))
        if is_short:
            monkeypatch.setattr(FastCalls, "complete_many", answer)
        else:
            n_parts = len({engine._transport.nodes.topology.shard_of(x.task_id) for x in leases})
            engine.fast = None
            monkeypatch.setattr(engine._transport.nodes, "ask", lambda node, call: answer(node))
        assert n_parts > 1
        outcomes += [lodeq.BusyError("full")] * (n_parts - 1) + [lodeq.CommitUnknownError("lost")]
        with pytest.raises(lodeq.CommitUnknownError):
            await engine.complete_many([(lease, None) for lease in leases])
        assert outcomes == []


@pytest.mark.parametrize("name", ["purge", "redrive"])
async def test_a_refusal_of_a_node_hides_no_other_that_may_have_happened(monkeypatch, name):
    outcomes = [lodeq.BusyError("full"), lodeq.BusyError("full"), lodeq.CommitUnknownError("lost")]

    async def answer(node, call):
        raise outcomes.pop(0)

    async with cluster(shards=3) as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        ids = [(await mail.enqueue(n)).id for n in range(3)]
        monkeypatch.setattr(engine._transport.nodes, "ask", answer)
        with pytest.raises(lodeq.CommitUnknownError):
            await (mail.purge() if name == "purge" else mail.redrive(ids))
        assert outcomes == []


@pytest.mark.parametrize("is_blocking", [True, False])
async def test_over_http_what_was_lost_before_nobody_listens_may_have_happened(is_blocking):
    failures = [httpx.ReadError("lost"), httpx.ConnectError("gone")]

    def answer(request):
        raise failures.pop(0)

    target = Target("http://localhost:1", None, 5.0)
    call = Call("POST", "/leases/complete", {}, is_write=True, is_repeatable=True)
    kind = SyncTransport if is_blocking else Transport
    transport = kind(target, httpx.MockTransport(answer))

    async def send(call):
        if is_blocking:
            await anyio.to_thread.run_sync(transport.send, call)
        else:
            await transport.send(call)

    with pytest.raises(lodeq.CommitUnknownError, match="was lost"):
        await send(call)
    failures += [httpx.ReadError("lost"), httpx.ConnectError("gone")]
    with pytest.raises(lodeq.UnreachableError):  # of what only reads nothing is unknown
        await send(call._replace(is_write=False))
    assert failures == []
