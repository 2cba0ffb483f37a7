"""A worker beside a served store, whose token may only work, on the queues that it serves."""

import logging

import anyio
import pytest
from anyio.lowlevel import checkpoint
from support_http import serving, socket_path
from support_roles import entry, token_of, write_tokens

import lodeq
import lodeq.testing
from lodeq.service.http.access.tokens_file import TokensFile
from lodeq.service.http.guard import Settings
from lodeq.worker import App

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.parametrize("limits", [{}, {"queues": ["mail"]}])
async def test_a_worker_works_with_the_role_of_one(tmp_path, limits, caplog):
    file = write_tokens(tmp_path / "t", entry("worker", "worker", **limits))
    with socket_path() as path:
        async with (
            lodeq.testing.open() as engine,
            serving(engine, path=path, settings=Settings(tokens=TokensFile(file))) as url,
        ):
            app = App(store=url, token=token_of("worker"))

            @app.task("mail")
            async def send(to: str) -> str:
                return to

            with caplog.at_level(logging.WARNING, logger="lodeq"), anyio.fail_after(20):
                async with app, app.work():
                    while not await engine.functions("mail"):
                        await checkpoint()
                    receipt = await engine.enqueue_function("mail", "send", {"to": "ann"})
                    result = await engine.result(receipt.id, wait=10)
                    assert [one.queues for one in await engine.workers()] == [("mail",)]
            assert (result.status, result.value) == ("completed", "ann")
    assert [record.getMessage() for record in caplog.records] == []
