"""Export of what was found over HTTP: a stream that is whole, or broken off."""

import csv
import io
import json

import httpx
import pytest
from support_http import LinkedOpening, asgi_client, serving

import lodeq
import lodeq.testing
from lodeq import NewTask
from lodeq.client.calls import Call
from lodeq.repository.model import filters
from lodeq.service.http.app import make_app
from lodeq.service.http.routes import find as find_routes

pytestmark = pytest.mark.anyio
URL = "/v1/tasks/export"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine():
    async with lodeq.testing.open(shards=2) as engine:
        tasks = [NewTask({"n": n}, function="send", preview=f"n={n}") for n in range(700)]
        await engine.queue("mail").enqueue_many(tasks)
        await engine.queue("sms").enqueue(b"x")
        yield engine


@pytest.fixture
async def client(engine):
    async with asgi_client(make_app(engine)) as client:
        yield client


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
async def test_all_of_them_in_parts(engine, monkeypatch, format):
    monkeypatch.setattr(find_routes, "FOUND_MAX", 100)
    document = {"filter": {"queue": "mail"}, "format": format, "payloads": format == "jsonl"}
    async with (
        serving(engine) as url,
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", URL, json=document) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["transfer-encoding"] == "chunked"
        chunks = [chunk async for chunk in answer.aiter_raw()]
    data = b"".join(chunks)
    if format == "jsonl":
        assert answer.headers["content-type"] == "application/x-ndjson"
        rows = [json.loads(line) for line in data.splitlines()]
        assert sorted(row["payload"]["n"] for row in rows) == list(range(700))
    elif format == "csv":
        rows = list(csv.DictReader(io.StringIO(data.decode())))
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = parquet.read_table(io.BytesIO(data)).to_pylist()
    assert {row["preview"] for row in rows} == {f"n={n}" for n in range(700)}
    assert "payload" not in rows[0] or format == "jsonl"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"format": "xml"}, "jsonl, csv, parquet"),
        ({"filter": {"state": "dead"}}, "a filter has no state"),
        ({"filter": {"queue": "Mail"}}, "queue"),
        ({"payloads": 1}, "payloads"),
    ],
)
async def test_what_is_refused(client, document, text):
    answer = await client.post(URL, json=document)
    assert answer.status_code in (400, 422)
    assert text in answer.text


async def test_a_server_that_closes_breaks_it_off(engine, monkeypatch):
    """What came looks cut, not whole."""
    monkeypatch.setattr(find_routes, "FOUND_MAX", 100)
    app = make_app(engine)
    n = 0
    real = find_routes.check_open

    def check_open(context):
        nonlocal n
        n += 1
        if n == 4:
            app.state.hub.close_polls()
        real(context)

    monkeypatch.setattr(find_routes, "check_open", check_open)
    async with asgi_client(app) as client:
        with pytest.raises(lodeq.ClosedError, match="not whole"):
            await client.post(URL, json={})


async def test_a_client_that_goes_away_ends_it(engine, monkeypatch):
    monkeypatch.setattr(find_routes, "FOUND_MAX", 10)
    async with serving(engine) as url, httpx.AsyncClient(base_url=url) as client:
        async with client.stream("POST", URL, json={"payloads": True}) as answer:
            assert answer.status_code == 200
        assert (await client.post("/v1/tasks/count", json={})).json()["count"] == 701


async def test_a_link_has_no_streams():
    async with LinkedOpening(lodeq.testing.open()) as engine:
        with pytest.raises(lodeq.UsageError, match="over HTTP"):
            await engine.send(Call("POST", "/tasks/export", {}))
        assert [one async for one in engine.find_all(filters.TaskFilter())] == []
