"""Bursts of one's own client: thousands of calls at once, and each is answered."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter

import pytest
from support_http import serving, socket_path

import lodeq
import lodeq.sync
import lodeq.testing

pytestmark = pytest.mark.anyio
FEW = 32  # callers that the small server takes
WAYS = ["unix", "http", "tcp"]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


def address(url, way):
    return url.replace("http://", "tcp://") if way == "tcp" else url


class Burst:
    """Calls of each kind, all at once."""

    def __init__(self, url, n, *, is_http=False):
        self.url, self.n, self.is_http = url, n, is_http

    async def run(self, *kinds):
        async with lodeq.connect(self.url) as client:
            if self.is_http:  # as with a server that speaks nothing else
                await client._transport._framed.aclose()
                client._transport._framed = client.fast = None
            for kind in kinds:
                calls = (getattr(self, kind)(client) for _ in range(self.n))
                found = await asyncio.gather(*calls, return_exceptions=True)
                ends = Counter(type(one).__name__ for one in found if isinstance(one, Exception))
                assert not ends, (kind, ends)

    async def enqueue(self, client):
        await client.queue("mail").enqueue(b"x")

    async def stats(self, client):
        await client.queue("mail").stats()

    async def claim(self, client):
        await client.queue("mail").claim()

    async def poll(self, client):
        assert await client.queue("none").claim(wait=0.01) == []


async def burst(way, n, *kinds, connections_max=1024, clients=1, is_http=False):
    async with lodeq.testing.open() as engine:
        with socket_path() as path:
            at = path if way == "unix" else None
            async with serving(engine, path=at, connections_max=connections_max) as url:
                calls = Burst(address(url, way), n, is_http=is_http)
                await asyncio.gather(*(calls.run(*kinds) for _ in range(clients)))
        return (await engine.queue("mail").stats()).ready


@pytest.mark.parametrize(
    ("way", "is_http"),
    [*((way, False) for way in WAYS), *((way, True) for way in WAYS if way != "http")],
)
@pytest.mark.slow
async def test_more_calls_than_the_server_takes_callers(way, is_http):
    """They are refused before anything happens, and sent again."""
    kinds = "enqueue", "stats", "poll"
    few = {"connections_max": FEW, "clients": 2, "is_http": is_http}
    assert await burst(way, 24, *kinds, **few) == 48


@pytest.mark.slow
async def test_a_burst_of_three_thousand(way):
    assert await burst(way, 3_000, "enqueue", "stats", "poll") == 3_000


@pytest.mark.slow
async def test_a_burst_of_three_thousand_over_http_on_a_unix_socket():
    assert await burst("unix", 3_000, "enqueue", "stats", "poll", is_http=True) == 3_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["enqueue", "stats"])
async def test_a_burst_of_thirty_thousand(way, kind):
    await burst(way, 30_000, kind)


@pytest.mark.slow
async def test_a_burst_of_eight_processes(way):
    async with lodeq.testing.open() as engine:
        with socket_path() as path:
            at = path if way == "unix" else None
            async with serving(engine, path=at) as url:
                env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
                command = [sys.executable, __file__, address(url, way), "3750"]
                children = [
                    await asyncio.create_subprocess_exec(*command, env=env, stdout=subprocess.PIPE)
                    for _ in range(8)
                ]
                for child in children:
                    said, _ = await child.communicate()
                    assert json.loads(said) == {}
        assert (await engine.queue("mail").stats()).ready == 30_000


@pytest.mark.slow
async def test_threads_of_a_blocking_client(way):
    errors = []

    def call(client):
        try:
            client.queue("mail").enqueue(b"x")
            client.queue("mail").stats()
        except lodeq.errors.LodeqError as error:
            errors.append(error)

    def main(url):
        with lodeq.sync.connect(url) as client:
            threads = [threading.Thread(target=call, args=(client,)) for _ in range(100)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()

    async with lodeq.testing.open() as engine:
        with socket_path() as path:
            at = path if way == "unix" else None
            async with serving(engine, path=at, connections_max=FEW) as url:
                await asyncio.to_thread(main, address(url, way))
        assert (errors, (await engine.queue("mail").stats()).ready) == ([], 100)


async def test_a_refusal_says_that_nothing_was_begun():
    """A server of one keeps its place for calls that do not wait."""
    async with lodeq.testing.open() as engine:
        with socket_path() as path:
            serve = serving(engine, path=path, connections_max=1)
            async with serve as url, lodeq.connect(url, timeout=0.05) as client:
                with pytest.raises(lodeq.errors.BusyError) as refused:
                    await client.queue("mail").claim(wait=0.01)
                assert refused.value.not_begun


if __name__ == "__main__":
    asyncio.run(Burst(sys.argv[1], int(sys.argv[2])).run("enqueue"))
    sys.stdout.write("{}")
