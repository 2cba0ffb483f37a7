"""The client of examples/node, written after docs/link.md alone, and a served store."""

import os
import shutil
from pathlib import Path

import anyio
import pytest
from support_http import serving, socket_path

import lodeq.testing
from lodeq.service.http.guard import Settings

NODE = shutil.which("node")
SCRIPT = Path(__file__).with_name("node_round_trip.mjs")
TOKEN = "a token of some length"
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def run(*args):
    if NODE is None:
        why = "no node on the PATH: apt-get install nodejs"
        if os.environ.get("LODEQ_NEEDS_NODE") == "1":
            pytest.fail(why)
        pytest.skip(why)
    done = await anyio.run_process([NODE, str(SCRIPT), *args], check=False)
    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr.decode()


async def test_round_trip():
    with socket_path() as path:
        async with lodeq.testing.open() as engine, serving(engine, path=path):
            await run(path)


async def test_over_tcp_with_a_token():
    settings = Settings(token=TOKEN)
    async with lodeq.testing.open() as engine, serving(engine, settings=settings) as url:
        await run(url.removeprefix("http://"), TOKEN)
