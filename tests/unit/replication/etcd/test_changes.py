"""The watch of an etcd: what it writes, and how it ends."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("grpc")

from lodeq.replication.etcd import changes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Stream:
    """A stream whose write ends when it is let go."""

    def __init__(self):
        self.go = asyncio.Event()

    async def write(self, _request):
        await self.go.wait()


@pytest.mark.parametrize("turns", range(6))
async def test_a_watch_that_is_cancelled_as_a_write_ends_is_cancelled(turns):
    stream = Stream()
    endpoints = SimpleNamespace(try_s=60.0, is_closed=False)

    async def watch():
        await changes._write(stream, object(), endpoints)
        await asyncio.Event().wait()

    task = asyncio.ensure_future(watch())
    for _ in range(6):
        await asyncio.sleep(0)
    stream.go.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    for _ in range(6):
        await asyncio.sleep(0)
    assert task.cancelled()


async def test_a_write_that_takes_too_long_has_ended_the_stream():
    endpoints = SimpleNamespace(try_s=0.0, is_closed=False)
    assert not await changes._write(Stream(), object(), endpoints)
