"""Functions get payloads above 3 MiB whole, like any other."""

import os

import pytest
from support_behaviour import until

import lodeq
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
