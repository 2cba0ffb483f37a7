"""Answers of the routes of a node, whatever is sent."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from lodeq.service.cluster.answers import BODY_BYTES_MAX, answering, document_of

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture
async def post():
    async def said(request):
        return JSONResponse(await document_of(request))

    app = Starlette(routes=[Route("/", answering(said), methods=["POST"])])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:

        async def sent(content, media="application/json"):
            return await client.post("/", content=content, headers={"content-type": media})

        yield sent


@pytest.mark.parametrize(
    "content",
    [b"[" * BODY_BYTES_MAX, b'{"a":' * (BODY_BYTES_MAX // 5), b"{", b"\xff", b"1" * BODY_BYTES_MAX],
    ids=["lists", "objects", "cut", "no text", "digits"],
)
async def test_what_is_no_json_is_the_callers_mistake(post, content):
    answer = await post(content)
    assert answer.status_code in (200, 400)
    assert answer.json().keys() <= {"error"}


async def test_a_form_of_another_site_is_refused(post):
    assert (await post(b"a=b", "application/x-www-form-urlencoded")).status_code == 400
