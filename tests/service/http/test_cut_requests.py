"""A stop counts the requests that had not ended when its grace was over."""

import asyncio
import logging
from contextlib import AsyncExitStack

import anyio
import pytest
from support_http import serving, socket_path

import lodeq
import lodeq.testing
from lodeq.service.http.link import operations, requests

pytestmark = pytest.mark.anyio
COUNT = 3


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_link_requests_that_wait_for_the_engine_to_call_back_are_counted(monkeypatch, caplog):
    """Such as an enqueue whose write does not come back: no task is for it."""
    begun, all_begun = [], anyio.Event()

    def stuck(link, entry):
        begun.append(entry)
        if len(begun) == COUNT:
            all_begun.set()

    monkeypatch.setitem(operations.HANDLERS, requests.Enqueue, stuck)
    with caplog.at_level(logging.WARNING, "lodeq.http"):
        async with lodeq.testing.open() as engine, AsyncExitStack() as stack:
            path = stack.enter_context(socket_path())
            server = AsyncExitStack()
            url = await server.enter_async_context(serving(engine, path=path, grace_s=0.001))
            client = await stack.enter_async_context(lodeq.connect(url))
            asked = [
                asyncio.ensure_future(client.queue("mail").enqueue(b"x")) for _ in range(COUNT)
            ]
            await all_begun.wait()
            await server.aclose()
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, lodeq.LodeqError) for one in outcomes)
    (line,) = [one for one in caplog.records if getattr(one, "event", "") == "requests_cut"]
    assert line.count == COUNT
