"""Payloads above 3 MiB of a served store: clients read them in slices, over HTTP and the link."""

import os

import pytest
from anyio.from_thread import start_blocking_portal
from support_http import ServedOpening, serving, socket_path

import lodeq
import lodeq.sync
from lodeq.client.calls import PAYLOAD_PART_BYTES_MAX

pytestmark = pytest.mark.anyio
LARGE = os.urandom(4 * PAYLOAD_PART_BYTES_MAX + 5)
HEADERS = {"n": 1}


@pytest.fixture
def served(tmp_path):
    """(URL, id of a large task): a server whose loop is in another thread."""
    with socket_path() as path, start_blocking_portal() as portal:
        opening = lodeq.open(tmp_path / "s")
        engine = portal.call(opening.__aenter__)
        receipt = portal.call(lambda: engine.queue("q").enqueue(LARGE, headers=HEADERS))
        portal.call(lambda: engine.queue("q").enqueue({"a": "small"}, priority=3))
        with portal.wrap_async_context_manager(serving(engine, path=path)) as url:
            yield url, receipt.id
        portal.call(opening.__aexit__, None, None, None)


async def reads(client, task_id):
    with pytest.raises(lodeq.PayloadNotLoadedError):
        _ = (await client.get(task_id)).payload
    assert await client.read_payload(task_id) == LARGE
    queue = client.queue("q")
    assert (await queue.list("ready"))[0].id == task_id
    large, small = await queue.claim(limit=9)
    assert (large.payload_bytes, large.headers) == (len(LARGE), HEADERS)
    with pytest.raises(lodeq.PayloadNotLoadedError, match="read_payload"):
        _ = large.payload
    assert await large.read_payload() == LARGE
    async with await large.open_payload(slice_bytes=100_000) as reader:
        assert reader.size == len(LARGE)
        slices = [data async for data in reader]
    assert b"".join(slices) == LARGE
    assert {len(data) for data in slices[:-1]} == {100_000}
    assert small.payload == await small.read_payload() == {"a": "small"}
    await large.complete()
    with pytest.raises(lodeq.TaskNotFoundError):
        await client.read_payload(task_id)
    with pytest.raises(lodeq.PayloadTooLargeError, match="enqueue_stream of the queue takes up"):
        await queue.enqueue(LARGE)
    with pytest.raises(lodeq.PayloadTooLargeError, match=r"enqueue a reference$"):
        await queue.enqueue(bytes(17 << 20))
    assert client.session.limits.payload_bytes_max == 3 << 20


async def test_a_client_reads_them_over_the_link(served):
    url, task_id = served
    async with lodeq.connect(url) as client:
        await reads(client, task_id)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_client_reads_them_over_http(tmp_path):
    async with ServedOpening(lodeq.open(tmp_path / "s")) as client:
        receipt = await client.inner.queue("q").enqueue(LARGE, headers=HEADERS)
        await client.inner.queue("q").enqueue({"a": "small"}, priority=3)
        await reads(client, receipt.id)


async def test_a_blocking_client_reads_them(served):
    url, task_id = served
    with lodeq.sync.connect(url) as client:
        assert client.read_payload(task_id) == LARGE
        lease = client.queue("q").claim()[0]
        assert lease.read_payload() == LARGE
        with lease.open_payload() as reader:
            assert b"".join(reader) == LARGE
        lease.complete()


async def test_a_damaged_one_is_told_with_its_last_slice(served, tmp_path):
    url, task_id = served
    with (tmp_path / "s" / "bodies0" / "1.sqs").open("r+b") as file:
        file.seek(2 << 20)
        file.write(b"damage")
    async with lodeq.connect(url) as client:
        with pytest.raises(lodeq.RecordCorruptError, match="has changed"):
            await client.read_payload(task_id)
