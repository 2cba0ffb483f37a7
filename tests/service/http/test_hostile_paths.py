"""Paths come from the caller: whatever is wrong with one is the caller's to mend."""

import httpx
import pytest
from support_http import asgi_client

import lodeq
import lodeq.testing
from lodeq.client.documents.problems import error_of
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.http.operations import OPERATIONS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def ask(tmp_path):
    """Asks for a checkpoint at a path, in JSON as it was written."""
    async with lodeq.open(tmp_path / "store", shards=1) as engine:
        app = make_app(engine, Settings(checkpoints=str(tmp_path / "copies")))
        async with asgi_client(app) as client:

            async def ask(path: str) -> httpx.Response:
                headers = {"content-type": "application/json"}
                content = f'{{"path": "{path}"}}'
                return await client.post("/v1/checkpoint", content=content, headers=headers)

            yield ask


@pytest.mark.parametrize(
    "path",
    [
        *(r"a\u0000b", r"\ud800", "", ".", "..", "../x", "/tmp/x", "x/" * 128),
        *(r"a\nb", r"a\rb/c", r"a\u001b[2Jb", r"a\u2028b", r"a\u0085b", r"a\u202eb"),
    ],
)
async def test_what_is_no_path_below_the_folder(ask, path, tmp_path):
    answer = await ask(path)
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"] == "urn:lodeq:problem:usage"
    assert not (tmp_path / "copies").exists()


async def test_what_cannot_be_made_there_is_a_conflict(ask):
    assert (await ask("one")).status_code == 200
    for path in ("one", "one/checkpoint.json/two", r"\u00fc" * 200):
        answer = await ask(path)
        assert answer.status_code == 409, answer.text
        assert type(error_of(answer.json(), 409)) is lodeq.StorePathError


async def test_a_template_sent_as_it_stands_is_a_bad_name():
    """As of a client that has not filled in the parts of a path."""
    headers = {"content-type": "application/json"}
    async with lodeq.testing.open() as engine, asgi_client(make_app(engine)) as client:
        for one in OPERATIONS:
            if "{" in one.path:
                answer = await client.request(
                    one.method, f"/v1{one.path}", content=b"{}", headers=headers
                )
                assert 400 <= answer.status_code < 500, (one.name, answer.text)
