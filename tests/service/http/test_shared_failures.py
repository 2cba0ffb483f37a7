"""Callers who fail together, as their link does: each has an error of its own."""

import asyncio

import pytest
from support_cluster_client import client, cluster
from support_http import serving, socket_path

import lodeq
import lodeq.testing
from lodeq import NewTask
from lodeq.client.calls import CHUNK_BYTES_MAX
from lodeq.client.transport.connection import FramedConnection
from lodeq.service.http.link import connection as linked

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch):
    monkeypatch.setattr(linked, "LINGER_S", 0.0)


async def test_receipts_of_callers_whose_link_does_not_open_are_not_mixed(monkeypatch):
    """The first of them has receipts already; the second has none, and another number of tasks."""
    opened, both = FramedConnection.open, asyncio.Event()
    is_lost = asyncio.Event()
    waiting = []

    async def open(self, target):
        await both.wait()
        raise ConnectionRefusedError("gone")

    async with lodeq.testing.open(clock=lodeq.testing.ManualClock()) as inner:
        with socket_path() as path:
            async with serving(inner, path=path) as url, lodeq.connect(url) as engine:
                queue = engine.queue("mail")
                real = engine.send

                async def send(call):
                    waiting.append(call)
                    if len(waiting) == 2:
                        engine._transport._framed._connection.lose(OSError("gone"))
                        monkeypatch.setattr(FramedConnection, "open", open)
                        is_lost.set()
                    if len(waiting) == 3:
                        asyncio.get_running_loop().call_soon(both.set)
                    return await real(call)

                engine.send = send
                engine.fast = None
                large = NewTask(bytes(CHUNK_BYTES_MAX // 2 + 1))

                async def first():
                    await queue.enqueue_many([large] * 2)

                async def second():
                    await is_lost.wait()
                    await queue.enqueue_many([NewTask(n) for n in range(5)])

                found = await asyncio.gather(first(), second(), return_exceptions=True)
                monkeypatch.setattr(FramedConnection, "open", opened)
    assert [type(one) for one in found] == [lodeq.UnreachableError] * 2
    assert [one is None for one in found[0].receipts] == [False, True]
    assert list(found[1].receipts) == [None] * 5


async def test_receipts_of_callers_whose_client_is_closed_are_not_mixed():
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        for n in range(6):
            await mail.enqueue(n)
        waiting = [asyncio.create_task(mail.enqueue_many([NewTask(n)] * n)) for n in (3, 5)]
        await asyncio.sleep(0)
        for link in engine._transport.nodes._links.values():
            link._framed._connection.close(lodeq.ClosedError("this client is closed"))
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in found] == [lodeq.ClosedError] * 2
    assert [len(one.receipts) for one in found] == [3, 5]
