"""Claims of large payloads, many at once: their answers stay below the bound of unread answers."""

import asyncio
from contextlib import AsyncExitStack

import anyio
import httpx
import pytest
from support_http import BASE, serving, socket_path

import lodeq
import lodeq.testing
from lodeq.client.documents.wire import MSGPACK_FORM
from lodeq.client.transport.layout import Op, frames_of, hello_frame
from lodeq.repository.api.engine import claim_within
from lodeq.repository.state.long_polls import LongPolls
from lodeq.service.http.guard import Settings
from lodeq.service.http.unread_answers import (
    CLAIM_BYTES_LEAST,
    ClaimedBytes,
    ClaimShare,
    UnreadAnswers,
)

pytestmark = pytest.mark.anyio
KIB, MIB = 1 << 10, 1 << 20
CALLERS, TASKS = 32, 10
SETTINGS = Settings(answers_bytes_max=16 * MIB)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def cuts(monkeypatch):
    """Connections that were cut because too much was unread."""
    found = []
    written = UnreadAnswers.written

    def looked_at(self, one, n_bytes):
        written(self, one, n_bytes)
        if one not in self._sizes and one.unread_bytes:
            found.append(one)

    monkeypatch.setattr(UnreadAnswers, "written", looked_at)
    return found


@pytest.mark.parametrize("wait", [0.0, 30.0])
@pytest.mark.parametrize("transport", ["http", "link"])
async def test_no_client_that_reads_is_cut_for_what_others_claim(
    transport, wait, cuts, monkeypatch
):
    """Together they claim five times as much as may be unread; each is granted some of it."""
    waiting, add = [], LongPolls.add

    def adding(self, *args, **options):
        waiting.append(add(self, *args, **options))
        return waiting[-1]

    monkeypatch.setattr(LongPolls, "add", adding)
    async with lodeq.testing.open() as engine, AsyncExitStack() as stack:
        queue = engine.queue("mail")
        path = stack.enter_context(socket_path())
        url = await stack.enter_async_context(serving(engine, path=path, settings=SETTINGS))
        if transport == "http":
            over = httpx.AsyncHTTPTransport(uds=path, limits=httpx.Limits(max_connections=CALLERS))
            client = await stack.enter_async_context(
                httpx.AsyncClient(transport=over, base_url=BASE, timeout=None)
            )
            document = {"queues": ["mail"], "limit": TASKS, "lease": 600, "wait": wait}

            async def claim():
                answer = await client.post("/v1/leases/claim", json=document)
                return answer.json()["leases"]

            claims = [claim] * CALLERS
        else:
            engines = [await stack.enter_async_context(lodeq.connect(url)) for _ in range(CALLERS)]

            def claim_of(client):
                queue = client.queue("mail")
                return lambda: queue.claim(limit=TASKS, lease=600.0, wait=wait)

            claims = [claim_of(one) for one in engines]
        payload = b"x" * (256 * KIB)
        if wait:
            asked = [asyncio.ensure_future(one()) for one in claims]
            while len(waiting) < CALLERS:
                await anyio.lowlevel.checkpoint()
        for _ in range(TASKS * (1 if wait else CALLERS)):
            await queue.enqueue_many([lodeq.NewTask(payload)] * (CALLERS if wait else 1))
        if not wait:
            asked = [asyncio.ensure_future(one()) for one in claims]
        found = await asyncio.gather(*asked)
        assert not cuts
        sizes = [len(one) for one in found]
        assert min(sizes) >= 1
        assert sum(sizes) == (await queue.stats()).leased
        assert max(sizes) * 256 * KIB <= 4 * MIB


async def test_a_claim_that_takes_in_turns_has_the_least_once():
    unread = UnreadAnswers(16 * MIB)
    claimed = ClaimedBytes(unread)
    ClaimShare(claimed).took(8 * MIB)
    async with lodeq.testing.open() as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([lodeq.NewTask(b"x" * KIB)] * 3000)
        share = ClaimShare(claimed)
        leases = await claim_within(
            engine, [queue], share, limit=4096, lease=None, wait=0.0, worker="w"
        )
        size = sum(lease.record_bytes for lease in leases)
        assert CLAIM_BYTES_LEAST <= size <= CLAIM_BYTES_LEAST + 2 * KIB
        share.end()
        assert claimed.taken_bytes == 8 * MIB


@pytest.mark.parametrize("transport", ["http", "link"])
async def test_leases_of_an_answer_that_was_cut_go_back(transport):
    """Who reads nothing is cut once too much is unread: nobody has seen what it claimed."""
    settings = Settings(answers_bytes_max=2 * MIB)
    body = b'{"queues": ["mail"], "lease": 600}'
    head = (
        "POST /v1/leases/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    async with lodeq.testing.open() as engine, AsyncExitStack() as stack:
        queue = engine.queue("mail")
        for _ in range(4):
            await queue.enqueue(b"x" * MIB)
        path = stack.enter_context(socket_path())
        await stack.enter_async_context(serving(engine, path=path, settings=settings))
        for _ in range(4):
            stream = await stack.enter_async_context(await anyio.connect_unix(path))
            if transport == "http":
                await stream.send(head.encode() + body)
            else:
                await stream.send(hello_frame(None, bytes(8)))
                await stream.receive()
                handle = (int(Op.QUEUE), 0, MSGPACK_FORM.dumps({"queue": "mail"}))
                await stream.send(frames_of([handle, (int(Op.CLAIM), 1, 0, 1, 600.0, 0.0, "w")]))
        async with asyncio.timeout(10):
            while (await engine.stats()).claimed_total < 4 or (await queue.stats()).leased > 2:
                await anyio.lowlevel.checkpoint()
        assert (await queue.stats()).ready == 4 - (await queue.stats()).leased
        await stack.aclose()


async def test_no_link_that_reads_is_cut_for_the_pages_of_others(cuts):
    """Each has eight pages under way, all together three times what may be unread."""
    settings = Settings(answers_bytes_max=32 * MIB)
    async with lodeq.testing.open() as engine, AsyncExitStack() as stack:
        for _ in range(2):
            await engine.queue("mail").enqueue(b"x" * (MIB // 2))
        path = stack.enter_context(socket_path())
        url = await stack.enter_async_context(serving(engine, path=path, settings=settings))
        clients = [await stack.enter_async_context(lodeq.connect(url)) for _ in range(12)]
        asked = [client.queue("mail").peek(limit=2) for client in clients for _ in range(8)]
        assert [len(page) for page in await asyncio.gather(*asked)] == [2] * 96
        assert not cuts
