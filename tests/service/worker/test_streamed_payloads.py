"""Functions get payloads above 3 MiB whole, like any other."""

import os

import pytest
from support_behaviour import until

import lodeq
from lodeq.errors import NotLeaderError, UnreachableError
from lodeq.worker import App

pytestmark = pytest.mark.anyio
LARGE = os.urandom((3 << 20) + 1)


async def test_a_function_gets_it_as_bytes(tmp_path):
    app, seen = App(), []

    @app.task("files")
    async def index(data: bytes):
        seen.append(data)
        return len(data)

    @app.task("others")
    def in_a_thread(data: bytes):
        return len(data)

    async with lodeq.open(tmp_path / "s") as engine, app.use(engine), app.work() as running:
        receipts = [await engine.queue(name).enqueue(LARGE) for name in ("files", "others")]
        await until(lambda: running.outcomes["completed"] == 2)
        for receipt in receipts:
            assert (await engine.result(receipt.id)).value == len(LARGE)
    assert seen == [LARGE]


@pytest.mark.parametrize("error", [UnreachableError, NotLeaderError])
async def test_one_that_cannot_be_read_now_counts_no_attempt(tmp_path, monkeypatch, error):
    """The store may be out of reach, or without a leader, between the claim and the read."""
    app, reads, real = App(), [], lodeq.Lease.read_payload

    async def read(lease):
        reads.append(lease.attempt)
        if len(reads) == 1:
            raise error("the server is deployed")
        return await real(lease)

    monkeypatch.setattr(lodeq.Lease, "read_payload", read)

    @app.task("files", max_attempts=1)
    async def index(data: bytes):
        return len(data)

    async with lodeq.open(tmp_path / "s") as engine, app.use(engine), app.work() as running:
        receipt = await engine.queue("files").enqueue(LARGE, max_attempts=1)
        assert (await engine.result(receipt.id, wait=60)).value == len(LARGE)
        await until(lambda: running.outcomes == {"released": 1, "completed": 1})
    assert reads == [1, 1]
