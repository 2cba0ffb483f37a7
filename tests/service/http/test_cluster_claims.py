"""Claims of a cluster whose nodes fail in the middle: what is granted is somebody's."""

import anyio
import pytest
from support_cluster_client import client, cluster

import lodeq
import lodeq.sync
from lodeq.client.blocking.fast_calls import SyncFastCalls
from lodeq.client.cluster.nodes import MAP
from lodeq.client.fast_calls import FastCalls

pytestmark = pytest.mark.anyio

ways = pytest.mark.parametrize("is_short", [True, False])


@pytest.fixture
def anyio_backend():
    return "asyncio"


def refuse_maps(engine, monkeypatch, error, *names):
    """Nodes of these names refuse to tell the map; all if none is named."""
    inner = engine._transport.nodes
    real = type(inner)._asker

    class Refusing:
        async def send(self, call):
            assert call.path == MAP.path
            raise error

    def asker(self, node):
        refuses = not names or any(name.endswith(node) or node.endswith(name) for name in names)
        return Refusing() if refuses else real(self, node)

    monkeypatch.setattr(type(inner), "_asker", asker)


@ways
async def test_what_is_granted_before_the_map_cannot_be_read_is_returned(monkeypatch, is_short):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        for n in range(6):
            await mail.enqueue(n)
        if not is_short:
            engine.fast = None
        inner, asked = engine._transport.nodes, []
        real_ask, real_claim = inner.ask, FastCalls.claim

        async def ask(node, call):
            if call.path == "/leases/claim":
                asked.append(node)
                if len(asked) == 2:
                    error = lodeq.NotLeaderError("another leads now")
                    inner.note(node, error)
                    raise error
            return await real_ask(node, call)

        async def claim(self, *args):
            asked.append(self)
            if len(asked) == 2:
                raise lodeq.NotLeaderError("another leads now")
            return await real_claim(self, *args)

        monkeypatch.setattr(inner, "ask", ask)
        monkeypatch.setattr(FastCalls, "claim", claim)
        refuse_maps(engine, monkeypatch, lodeq.AccessDeniedError("another token"))
        leases = await mail.claim(limit=6)
        assert len(asked) == 3
        monkeypatch.undo()
        assert (await mail.stats()).leased == len(leases) == 4


async def test_the_map_is_asked_of_others_where_a_node_has_too_many_callers(monkeypatch):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        inner = engine._transport.nodes
        refuse_maps(
            engine,
            monkeypatch,
            lodeq.BusyError("full", not_begun=True),
            inner.topology.tellers()[0],
        )
        inner.topology.is_stale = True
        await mail.enqueue(b"x")
        assert not inner.topology.is_stale


async def test_a_claim_of_a_thread_asks_no_further_node_once_its_client_closes(monkeypatch):
    def script():
        engine = lodeq.sync.connect(nodes.url)
        mail = engine.queue("mail")
        for n in range(6):
            mail.enqueue(n)
        asked, real = [], SyncFastCalls.claim

        def claim(self, *args):
            asked.append(self)
            if len(asked) == 2:
                engine._claims.close()
            return real(self, *args)

        monkeypatch.setattr(SyncFastCalls, "claim", claim)
        with pytest.raises(lodeq.ClosedError):
            mail.claim(limit=6)
        assert len(asked) == 2
        assert mail.stats().leased == 0
        engine.close()

    async with cluster() as nodes:
        await anyio.to_thread.run_sync(script)


async def test_a_claim_asks_no_further_node_once_its_client_closes(monkeypatch):
    """Its grants would be nobody's: claims under way have been taken back by then."""
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        for n in range(6):
            await mail.enqueue(n)
        n_asked, real = 0, FastCalls.claim

        async def claim(self, *args):
            nonlocal n_asked
            n_asked += 1
            if n_asked == 2:
                await engine._claims.close()
            return await real(self, *args)

        monkeypatch.setattr(FastCalls, "claim", claim)
        with pytest.raises(lodeq.ClosedError):
            await mail.claim(limit=6)
        assert n_asked == 2
        assert (await mail.stats()).leased == 0


@pytest.mark.parametrize(
    ("is_short", "error"),
    [
        (True, lodeq.NotLeaderError("no more")),
        (False, lodeq.NotLeaderError("no more")),
        (True, lodeq.UnreachableError("gone")),
    ],
)
async def test_a_claim_waits_until_somebody_leads_again(monkeypatch, is_short, error):
    """As it does where one node had led all."""
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        for n in range(6):
            await mail.enqueue(n)
        if not is_short:
            engine.fast = None
        inner, asked = engine._transport.nodes, []
        real_ask, real_claim = inner.ask, FastCalls.claim

        async def ask(node, call):
            if call.path == "/leases/claim":
                asked.append(node)
                if len(asked) <= 3:
                    inner.note(node, error)
                    raise error
            return await real_ask(node, call)

        async def claim(self, *args):
            asked.append(self)
            if len(asked) <= 3:
                raise error
            return await real_claim(self, *args)

        monkeypatch.setattr(inner, "ask", ask)
        monkeypatch.setattr(FastCalls, "claim", claim)
        assert len(await mail.claim(limit=6)) == 6
