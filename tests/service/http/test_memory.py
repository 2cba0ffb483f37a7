"""A server keeps no payload that it has handed out."""

import asyncio
import base64
import os

import pytest
from support_http import asgi_client
from support_loop import settle
from support_memory import only_new, payloads_held

import lodeq
from lodeq.service.http.app import make_app

pytestmark = pytest.mark.anyio
SIZE = 3000
TASKS = 20
FEW = 4


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.slow
@pytest.mark.parametrize("is_ended", [False, True], ids=["leased", "completed"])
async def test_what_was_handed_out_is_let_go_of(tmp_path, is_ended):
    with only_new():
        async with (
            lodeq.open(tmp_path / "s") as engine,
            asgi_client(make_app(engine)) as client,
        ):
            queue = engine.queue("q")
            idle = asyncio.ensure_future(
                client.post("/v1/leases/claim", json={"queues": ["idle"], "wait": 20})
            )
            for n in range(TASKS):
                ask = {"queues": ["q"], "wait": 20 if n % 2 else 0, "lease": 3600}
                if n % 2:
                    call = asyncio.ensure_future(client.post("/v1/leases/claim", json=ask))
                    await settle()
                    await queue.enqueue(os.urandom(SIZE))
                    answer = await call
                    del call
                else:
                    await queue.enqueue(os.urandom(SIZE))
                    answer = await client.post("/v1/leases/claim", json=ask)
                (doc,) = answer.json()["leases"]
                assert len(base64.b64decode(doc["payload_base64"])) == SIZE
                if is_ended:
                    held = {name: doc[name] for name in ("task_id", "epoch", "token")}
                    told = await client.post("/v1/leases/complete", json=held)
                    assert told.status_code == 200
                    del told
                del answer, doc
            await settle()
            assert payloads_held(SIZE) <= FEW
            assert (await engine.stats()).leased == (0 if is_ended else TASKS)
            idle.cancel()
