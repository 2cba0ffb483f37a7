"""The lifespan in ASGI frameworks, the fixture, and trio."""

import subprocess
import sys

import anyio
import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import lodeq.testing
from lodeq.testing import ManualClock
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio


def mailing():
    app = App(lambda: lodeq.testing.open(clock=ManualClock()))

    @app.task("mail")
    async def send(to: str) -> str:
        return f"sent to {to}"

    @app.task("sums")
    def add(a: int, b: int) -> int:
        return a + b + current().attempt

    return app, send, add


async def ask(web):
    transport = httpx.ASGITransport(web)
    client = httpx.AsyncClient(transport=transport, base_url="http://web")
    async with web.router.lifespan_context(web), client:
        return (await client.post("/signup?to=a@b")).json()


async def test_fastapi():
    app, send, _ = mailing()
    web = FastAPI(lifespan=app.lifespan)

    @web.post("/signup")
    async def signup(to: str) -> str:
        receipt = await send.enqueue(to)
        return (await app.engine.result(receipt.id, wait=60)).value

    assert await ask(web) == "sent to a@b"
    assert await ask(web) == "sent to a@b"  # started, stopped, started again


async def test_starlette():
    app, send, _ = mailing()

    async def signup(request):
        receipt = await send.enqueue(request.query_params["to"])
        return JSONResponse((await app.engine.result(receipt.id, wait=60)).value)

    web = Starlette(routes=[Route("/signup", signup, methods=["POST"])], lifespan=app.lifespan)
    assert await ask(web) == "sent to a@b"


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_on_both_loops(anyio_backend):
    app, send, add = mailing()
    with anyio.fail_after(20):
        async with app, app.work() as worker:
            receipts = [await send.enqueue("a"), await add.enqueue(1, 2)]
            results = [await app.engine.result(one.id, wait=60) for one in receipts]
            assert [result.value for result in results] == ["sent to a", 4]
            worker.stop()
            await worker.finished.wait()


async def test_the_fixture(lodeq_worker):
    app, send, _ = mailing()
    async with lodeq_worker(app) as bench:
        await send.options(delay=60).enqueue("a")
        assert (await app.drain()).runs == 0
        bench.clock.advance(60)
        assert (await app.drain()).completed == 1


def test_the_worker_is_not_imported_by_those_who_do_not_use_it():
    code = "import lodeq, sys; sys.exit(any('.service' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)
