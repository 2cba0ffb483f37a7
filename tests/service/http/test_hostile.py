"""Whatever is sent: a clear refusal, and nothing written."""

import asyncio
import json
import os
import socket
import stat
from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel
import httpx
import msgpack
import pytest
from click.testing import CliRunner
from support_http import asgi_client, serving, socket_path

import lodeq
import lodeq.testing
from lodeq.service.cli.app import lodeq as command
from lodeq.service.http import guard
from lodeq.service.http import server as module
from lodeq.service.http.access import callers
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.http.listener import listen_tcp, listen_unix
from lodeq.service.shared.origin import host_of

pytestmark = pytest.mark.anyio
TOKEN = "a token of some length"
JSON = {"content-type": "application/json"}
MSGPACK = {"content-type": "application/msgpack"}
TASKS = "/v1/queues/mail/tasks"
LINK = {  # the user follows a link of another site
    "host": "localhost",
    "sec-fetch-site": "cross-site",
    "sec-fetch-mode": "navigate",
    "sec-fetch-dest": "document",
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine():
    async with lodeq.testing.open() as engine:
        yield engine
        stats = await engine.stats()
        assert (stats.ready, stats.leased) == (0, 0)


@pytest.fixture
async def client(engine):
    async with asgi_client(make_app(engine)) as client:
        yield client


def refused(response, status, name="usage"):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    doc = response.json()
    assert (doc["type"], doc["status"]) == (f"urn:lodeq:problem:{name}", status)
    assert doc["detail"]
    return doc


# --- who may call -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN],
)
async def test_a_wrong_token(engine, given):
    async with asgi_client(make_app(engine, Settings(token=TOKEN))) as client:
        headers = JSON | ({} if given is None else {"authorization": given})
        for path in (TASKS, "/v1/nothing", "/metrics"):
            answer = await client.post(path, content=b'{"payload": 1}', headers=headers)
            refused(answer, 401, "access-denied")
            is_missing = given is None
            assert answer.text.count("give the server's token") == is_missing
            assert answer.text.count("this token is not the server's") == (not is_missing)
            assert answer.headers["www-authenticate"] == "Bearer"
        answer = await client.get("/v1/stats", headers={"authorization": f"bearer  {TOKEN}"})
        assert answer.status_code == 200


async def test_a_token_is_compared_in_constant_time(engine, monkeypatch):
    compared = []
    real = callers.hmac.compare_digest
    monkeypatch.setattr(
        callers.hmac, "compare_digest", lambda a, b: compared.append(len(a) == len(b)) or real(a, b)
    )
    async with asgi_client(make_app(engine, Settings(token=TOKEN))) as client:
        for token in ("", "a", TOKEN * 9):
            await client.get("/v1/stats", headers={"authorization": f"Bearer {token}"})
    assert compared == [True] * 3


@pytest.mark.parametrize(
    ("headers", "is_welcome"),
    [
        ({"host": "evil.example"}, False),
        ({"host": "localhost.evil.example"}, False),
        ({"host": ""}, False),
        ({"host": "localhost:8765"}, True),
        ({"host": "LOCALHOST"}, True),
        ({"host": "[::1]:80"}, True),
        ({"host": "[::1].evil.com"}, False),
        ({"host": "[::1]evil.com:80"}, False),
        ({"host": "[::1"}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost:evil.com"}, False),
        ({"host": "localhost:80:80"}, False),
        ({"host": "localhost:"}, False),
        ({"host": "localhost:808080"}, False),
        ({"host": "localhost/evil.com"}, False),
        ({"host": "evil.com@localhost"}, False),
        ({"host": "localhost, evil.com"}, False),
        ({"host": "127.0.0.1", "origin": "evil://127.0.0.1"}, False),
        ({"host": "127.0.0.1", "origin": "//127.0.0.1"}, False),
        ({"host": "127.0.0.1", "origin": "127.0.0.1"}, False),
        ({"host": "127.0.0.1", "origin": "http://evil://127.0.0.1"}, False),
        ({"host": "127.0.0.1", "origin": "http://127.0.0.1/"}, False),
        ({"host": "127.0.0.1", "origin": "https://127.0.0.1"}, True),  # behind a proxy with TLS
        ([("host", "localhost"), ("host", "evil.com")], False),
        ([("host", "evil.com"), ("host", "localhost")], False),
        (
            [("host", "localhost"), ("origin", "http://evil.com"), ("origin", "http://localhost")],
            False,
        ),
        ({"host": "localhost", "origin": "http://evil.example"}, False),
        ({"host": "localhost", "origin": "null"}, False),
        ({"host": "localhost:1", "origin": "http://localhost:2"}, False),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, True),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, False),
        ({"host": "localhost", "sec-fetch-site": "same-site"}, False),
        ({"host": "localhost", "sec-fetch-site": "same-origin"}, True),
        (LINK, True),
        (LINK | {"sec-fetch-dest": "iframe"}, False),
        (LINK | {"sec-fetch-mode": "no-cors"}, False),
        (LINK | {"origin": "http://evil.example"}, False),
    ],
    ids=str,
)
async def test_pages_of_other_sites_are_kept_out(client, headers, is_welcome):
    answer = await client.get("/v1/stats", headers=headers)
    if is_welcome:
        assert answer.status_code == 200
    else:
        refused(answer, 403, "access-denied")


def test_names_of_hosts():
    assert [host_of(one) for one in ("A:1", "[::1]:1", "[::1]", " b ", "", "a:b", "[::1]x")] == [
        "a",
        "::1",
        "::1",
        "b",
        "",
        "",
        "",
    ]


@pytest.mark.parametrize("name", ["localhost:evil", "[::1", "::1", "a/b", "", "a b"])
def test_a_host_that_is_none_cannot_be_allowed(name, tmp_path):
    run = CliRunner().invoke(command, ["serve", str(tmp_path / "s"), "--allow-host", name])
    assert (run.exit_code, "expected a host name" in run.output) == (2, True)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/stats", {}, 200),
        ("/v1/openapi.json", {}, 200),
        ("/v1/nothing", {}, 404),
        ("/v1/leases/claim", {}, 405),
        ("/v1/stats", {"host": "evil.com"}, 403),
        ("/v1/stats", {"content-length": "9999999999"}, 413),
    ],
)
async def test_no_answer_is_guessed_at_or_kept(client, path, headers, status):
    answer = await client.get(path, headers=headers)
    assert answer.status_code == status
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    assert answer.headers.get_list("cache-control") == ["no-store"]


async def test_what_is_refused_is_told_in_one_line_a_minute(engine, monkeypatch, caplog):
    now = [1000.0]
    monkeypatch.setattr(guard, "current_time", lambda: now[0])
    told = lambda: [r.getMessage() for r in caplog.records if r.event == "requests_refused"]  # noqa: E731
    async with asgi_client(make_app(engine, Settings(token=TOKEN))) as client:
        for _ in range(50):
            await client.get("/v1/stats")
            await client.get("/v1/stats", headers={"host": "evil.com"})
        assert len(told()) == 1
        now[0] += 60
        await client.get("/v1/stats")
    assert told()[1].endswith("50 with 401, 50 with 403")
    assert caplog.records[-1].count == 100


async def test_a_form_that_is_sent_by_a_page_of_another_site(client):
    refused(await client.post("/v1/queues/mail/pause", headers=LINK | JSON), 403, "access-denied")


@pytest.mark.parametrize("verb", ["pause", "purge", "redrive", "resume"])
async def test_a_form_of_another_site_changes_nothing(client, verb):
    for headers in ({}, {"content-type": "text/plain"}, {"content-type": "multipart/form-data"}):
        refused(await client.post(f"/v1/queues/mail/{verb}", headers=headers), 415)


# --- where it listens ---------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_nothing_listens_beyond_loopback_without_a_token(host, tmp_path):
    with pytest.raises(lodeq.UsageError, match="token"):
        listen_tcp(host, 0, None)
    listen_tcp(host, 0, TOKEN).close()
    run = CliRunner().invoke(command, ["serve", str(tmp_path / "s"), "--host", host])
    assert (run.exit_code, "--token-file" in run.output) == (2, True)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_none(host):
    listen_tcp(host, 0, None).close()


async def test_no_answer_over_tcp_waits_for_the_acknowledgement_of_the_one_before():
    accepted = asyncio.get_running_loop().create_future()

    class Look(asyncio.Protocol):
        def connection_made(self, transport):
            sock = transport.get_extra_info("socket")
            accepted.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    with listen_tcp("127.0.0.1", 0, None) as listener:
        server = await asyncio.get_running_loop().create_server(Look, sock=listener)
        async with server:
            stream = await anyio.connect_tcp(*listener.getsockname())
            assert await accepted
            await stream.aclose()


def test_an_address_that_is_taken_or_none_of_ours():
    with listen_tcp("127.0.0.1", 0, None) as taken, pytest.raises(lodeq.StorePathError):
        listen_tcp("127.0.0.1", taken.getsockname()[1], None)
    with pytest.raises(lodeq.StorePathError):
        listen_tcp("no such host", 0, None)


def test_a_unix_socket_is_its_owners():
    with socket_path() as path:
        listener = listen_unix(path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with pytest.raises(lodeq.StorePathError, match="listens there already"):
            listen_unix(path)
        listener.close()  # as a killed server leaves it
        listen_unix(path).close()
        os.unlink(path)
        with open(path, "w"), pytest.raises(lodeq.StorePathError, match="no socket"):
            listen_unix(path)
        with pytest.raises(lodeq.StorePathError):
            listen_unix(f"{path}/none")


@pytest.mark.parametrize(
    ("content", "mode"), [("short", 0o600), (TOKEN, 0o644), ("", 0o600), ("ü" * 20, 0o600)]
)
def test_a_token_file_that_is_none(content, mode, tmp_path):
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)
    run = CliRunner().invoke(command, ["serve", str(tmp_path / "s"), "--token-file", str(file)])
    assert run.exit_code == 2
    assert not (tmp_path / "s").exists()


def test_two_places_at_once(tmp_path):
    run = CliRunner().invoke(command, ["serve", str(tmp_path), "--uds", "x", "--host", "::1"])
    assert run.exit_code == 2


# --- bodies -------------------------------------------------------------------------------------

DEEP = b"[" * 100_000
BODIES = [
    (b"", JSON, 422), (b"{", JSON, 422), (b"null", JSON, 422), (b"[]", JSON, 422),
    (b"\xff\xfe", JSON, 422), (b"\0", JSON, 422), (DEEP, JSON, 422),
    (b'{"payload":' + b"[" * 5000 + b"]" * 5000 + b"}", JSON, 422),
    (b'{"payload": NaN}', JSON, 422), (b'{"payload": 1' + b"0" * 5000 + b"}", JSON, 422),
    (b'{"payload": 18446744073709551616}', JSON, 422), (b'{"payload": "\\ud800"}', JSON, 422),
    (b'{"payload": 1, "prioritty": 9}', JSON, 422), (b"{}", JSON, 422),
    (b'{"payload": 1, "payload_base64": ""}', JSON, 422),
    (b'{"payload_base64": "%%%%"}', JSON, 422), (b'{"payload_base64": 5}', JSON, 422),
    (b'{"payload_base64": "wQ==", "payload_kind": "msgpack"}', JSON, 422),
    (b'{"payload_base64": "", "payload_kind": "pickle"}', JSON, 422),
    (b'{"payload_base64": "", "payload_kind": []}', JSON, 422),
    (b'{"payload": 1, "headers": 5}', JSON, 422), (b'{"payload": 1, "headers": [1]}', JSON, 422),
    (b'{"payload": 1, "queue": "other"}', JSON, 422), (b'{"payload": 1, "run_at": 5}', JSON, 422),
    (b'{"payload": 1, "run_at": "2024-01-01T00:00:00"}', JSON, 422),
    (b'{"payload": 1, "delay": 1e400}', JSON, 422), (b'{"payload": 1, "dedup_key": {}}', JSON, 422),
    (b'{"payload": 1, "durable": "yes"}', JSON, 422),
    (b"\xc1", MSGPACK, 422), (b"\x91" * 5000, MSGPACK, 422),
    (b"\xdf\xff\xff\xff\xff", MSGPACK, 422),
    (msgpack.packb({"payload": msgpack.ExtType(9, b"")}), MSGPACK, 422),
    (msgpack.packb({"payload": msgpack.ExtType(1, b"\xc1")}), MSGPACK, 422),
    (msgpack.packb({b"payload": 1}), MSGPACK, 422),
    (b"payload=1", {"content-type": "application/x-www-form-urlencoded"}, 415),
    (b"{}", {"content-type": "application/jsonp"}, 415), (b"{}", {}, 415),
]  # fmt: skip


@pytest.mark.parametrize(("body", "headers", "status"), BODIES, ids=lambda one: repr(one)[:40])
async def test_a_body_that_is_none(client, body, headers, status):
    refused(await client.post(TASKS, content=body, headers=headers), status)


@pytest.mark.parametrize(
    ("path", "doc"),
    [
        ("/v1/tasks", {"tasks": 5}),
        ("/v1/tasks", {"tasks": [5]}),
        ("/v1/tasks", {}),
        ("/v1/tasks", {"tasks": [{"payload": 1}]}),  # of which queue?
        ("/v1/tasks", {"tasks": [], "queue": "mail", "policy": {"retries": 5}}),
        ("/v1/tasks", {"tasks": [], "queue": "mail", "policy": {"backoff": {"kind": "worse"}}}),
        ("/v1/tasks", {"tasks": [], "queue": ["mail"]}),
        ("/v1/leases/claim", {"queues": []}),
        ("/v1/leases/claim", {"queues": [5]}),
        ("/v1/leases/claim", {"queues": ["mail"], "limit": 0}),
        ("/v1/leases/claim", {"queues": ["mail"], "wait": "long"}),
        ("/v1/leases/claim", {"queues": ["mail"], "lease": 0}),
        ("/v1/leases/claim", {"queues": ["mail"], "worker": "w" * 300}),
        ("/v1/leases/claim", {"queues": [{"queue": "m", "tenant": "a", "all_tenants": True}]}),
        ("/v1/leases/claim", {"queues": [{"queue": "m", "all_tenants": 1}]}),
        ("/v1/leases/complete", {"task_id": "x", "epoch": 1, "token": ""}),
        ("/v1/leases/complete", {"task_id": "0" * 32, "epoch": "1", "token": ""}),
        ("/v1/leases/nack", {"task_id": "0" * 32, "epoch": 1, "token": "", "reason": 5}),
        ("/v1/leases/nack", {"task_id": "0" * 32, "epoch": 1}),
        ("/v1/leases/heartbeat", {"task_id": "0" * 32, "epoch": 1, "token": "", "seconds": -1}),
        ("/v1/checkpoint", {"path": "x"}),
        ("/v1/queues/mail/redrive", {"ids": "x"}),
        ("/v1/queues/mail/purge", {"state": "leased"}),
        ("/v1/queues/mail/purge", {"state": 5}),
        ("/v1/queues/MAIL/pause", {}),
        ("/v1/queues/mail/pause?tenant=A", {}),
        ("/v1/queues/mail/pause?all_tenants=maybe", {}),
        ("/v1/fsync", {"hard": True}),
    ],
    ids=str,
)
async def test_a_document_that_is_none(client, path, doc):
    answer = await client.post(path, json=doc)
    assert answer.json()["type"] in ("urn:lodeq:problem:usage", "urn:lodeq:problem:invalid-name")
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/tasks/5", 422),
        ("GET", "/v1/queues/mail/tasks?limit=0", 422),
        ("GET", "/v1/queues/mail/tasks?limit=1e3", 422),
        ("GET", f"/v1/queues/mail/tasks?limit={'9' * 5000}", 422),
        ("GET", "/v1/queues/mail/tasks?state=lost", 422),
        ("GET", "/v1/queues/mail/tasks?after=", 422),
        ("GET", "/v1/queues/mail/tasks?after=ü", 422),
        ("GET", "/v1/queues/mail/tasks?statee=ready", 422),
        ("GET", f"/v1/tasks/{'0' * 32}/result?wait=nan", 422),
        ("GET", f"/v1/tasks/{'0' * 32}/result?wait=soon", 422),
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/queues/mail", 404),
        ("PUT", TASKS, 405),
        ("TRACE", "/v1/stats", 405),
        ("GET", "/v1/leases/claim", 405),
    ],
)
async def test_a_request_that_is_none(client, method, path, status):
    refused(await client.request(method, path), status)


@pytest.mark.parametrize("key", ["", "a b", "ü", "k" * 256, "a,b"])
async def test_an_idempotency_key_that_is_none(client, key):
    headers = JSON | {"idempotency-key": key.encode()}
    refused(await client.post(TASKS, content=b'{"payload": 1}', headers=headers), 422)


@pytest.mark.parametrize(
    "option",
    [
        {"on_conflict": "replace"},
        {"on_conflict": "raise"},
        {"dedup_window": 1},
        {"dedup_key": "k"},
        {"shard_key": "k"},
    ],
    ids=str,
)
async def test_what_would_make_a_repeat_do_something_else(client, option):
    headers, task = JSON | {"idempotency-key": "k"}, {"payload": 1} | option
    refused(await client.post(TASKS, json=task, headers=headers), 422)
    many = {"queue": "mail", "tasks": [{"payload": 1}, task]}
    refused(await client.post("/v1/tasks", json=many, headers=headers), 422)


async def test_too_many_in_one_request(client):
    docs = [{"payload": 1}] * 4097
    refused(await client.post("/v1/tasks", json={"queue": "mail", "tasks": docs}), 422, "limit")


async def chunks(n, size=65536):
    for _ in range(n):
        yield b" " * size


async def test_a_body_that_is_too_large(engine):
    settings = Settings(body_bytes_max=100_000)
    async with asgi_client(make_app(engine, settings)) as client:
        answer = await client.post(TASKS, content=b" " * 100_001, headers=JSON)
        assert refused(answer, 413, "payload-too-large")["limit_bytes"] == 100_000
        answer = await client.post(TASKS, content=chunks(2), headers=JSON)  # no length told
        refused(answer, 413, "payload-too-large")
        assert answer.headers["connection"] == "close"


async def test_bodies_of_all_requests_are_bounded(engine):
    settings = Settings(held_bytes_max=100_000)
    async with asgi_client(make_app(engine, settings)) as client:
        refused(await client.post(TASKS, content=chunks(2), headers=JSON), 503, "busy")
        answer = await client.post(TASKS, content=b"{}", headers=JSON)  # what was held is free
        refused(answer, 422)


async def test_a_bug_is_not_told_outside(engine, client, monkeypatch, caplog):
    async def broken():
        raise KeyError("secret")

    monkeypatch.setattr(engine, "stats", broken)
    doc = refused(await client.get("/v1/stats"), 500, "lodeq")
    monkeypatch.undo()
    assert "secret" not in json.dumps(doc)
    assert "secret" in caplog.text


# --- slow and silent clients, over a socket -----------------------------------------------------


class Raw:
    """A connection that sends what it is told to."""

    def __init__(self, stream):
        self.stream = stream

    async def send(self, text):
        await self.stream.send(text.encode())

    async def rest(self):
        """All that comes until the server closes."""
        got = b""
        try:
            while True:
                got += await self.stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return got


@pytest.fixture
async def raw(engine):
    with socket_path() as path:
        async with AsyncExitStack() as open_ones:

            async def connect():
                stream = await anyio.connect_unix(path)
                return Raw(await open_ones.enter_async_context(stream))

            settings = Settings(body_wait_s=0.02)
            async with serving(engine, path=path, settings=settings, connections_max=4):
                yield connect
                await open_ones.aclose()


@pytest.mark.parametrize("begun", ["", "GET /v1/stats HTTP/1.1\r\nHost: loc"])
async def test_a_head_that_does_not_come(raw, monkeypatch, begun):
    monkeypatch.setattr(module, "HEAD_WAIT_S", 0.02)
    connection = await raw()
    await connection.send(begun)
    assert await connection.rest() == b""


async def test_a_second_head_that_does_not_come(raw, monkeypatch):
    monkeypatch.setattr(module, "HEAD_WAIT_S", 0.02)
    connection = await raw()
    await connection.send("GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await connection.stream.receive()
    await connection.send("GET /v1/st")
    await connection.rest()


async def test_a_head_without_end(raw):
    connection = await raw()
    await connection.send("GET /v1/stats HTTP/1.1\r\nX: " + "x" * 40_000)
    assert (await connection.rest()).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("name", ["max_attempts", "retention", "boost_after"])
async def test_what_is_refused_does_not_rest_on_what_others_have_sent(client, name):
    for value, status in ((1, 200), (True, 422)):
        options = {name: value} if name == "boost_after" else {"policy": {name: value}}
        doc = {"queues": [{"queue": "mail"} | options]}
        answer = await client.post("/v1/leases/claim", json=doc)
        assert answer.status_code == status, answer.text


async def test_a_body_of_a_poll_that_has_none(engine, caplog):
    """It is looked at while the poll waits: what is wrong with it is the caller's, not ours."""
    app = make_app(engine, Settings(body_bytes_max=1000))
    task_id = (await engine.queue("mail").enqueue(b"")).id

    async def pieces():
        for _ in range(20):
            yield b"x" * 100

    async with asgi_client(app) as client:
        path = f"/v1/tasks/{task_id}/result?wait=30"
        answer = await client.request("GET", path, content=pieces())
        refused(answer, 413, "payload-too-large")
    assert "failed" not in caplog.text
    await engine.cancel(task_id)


async def test_a_body_that_does_not_come(raw):
    connection = await raw()
    head = f"POST {TASKS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    await connection.send(head + 'Content-Length: 20\r\n\r\n{"payl')
    assert (await connection.rest()).startswith(b"HTTP/1.1 408")


async def test_an_answer_that_nobody_reads(raw, engine, monkeypatch):
    monkeypatch.setattr(module, "READ_WAIT_S", 0.02)
    await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x" * 1_000_000)] * 3)
    connection = await raw()
    await connection.send(
        "GET /v1/queues/mail/tasks?state=ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    while b"HTTP/1.1 200" not in await connection.stream.receive(16):
        pass
    other = await raw()  # the server is not held up meanwhile
    await other.send("GET /v1/stats HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await other.rest()).startswith(b"HTTP/1.1 200")
    await engine.queue("mail").purge()


async def test_a_head_without_an_end(raw):
    """It is cut while it comes, not once it is whole."""
    connection = await raw()
    await connection.send("GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n")
    await connection.send("X-Long: " + "x" * module.HEAD_BYTES_MAX)
    answer = await connection.rest()
    assert answer.startswith(b"HTTP/1.1 400")


async def test_an_offer_to_upgrade_is_ignored_and_the_body_is_the_request_s(raw, engine):
    """Java's client makes one. A body taken for another protocol's would be a smuggled request."""
    connection = await raw()
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    first = posted("/v1/queues/mail/tasks", '{"payload": 1}', offer)
    head, _, body = first.partition("\r\n\r\n")
    await connection.send(f"{head}\r\n\r\n")
    await connection.send(body)
    await connection.stream.send_eof()
    assert (await connection.rest()).startswith(b"HTTP/1.1 201")
    assert await engine.queue("mail").purge() == 1


@pytest.mark.parametrize(
    ("version", "more"), [("1.1", "Content-Length: 2\r\n"), ("1.0", "Connection: keep-alive\r\n")]
)
async def test_a_body_whose_end_others_see_elsewhere_is_refused(raw, version, more):
    """RFC 9112, 6.1. Else what a proxy takes for its rest would be a request of its own."""
    connection = await raw()
    head = f"POST /v1/fsync HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    behind = "GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
    await connection.send(head + more + body + behind)
    answer = await connection.rest()
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


async def test_not_http_at_all(raw):
    connection = await raw()
    await connection.send("\x16\x03\x01\x02\x00\x01\x00 tls?\r\n\r\n")
    assert (await connection.rest()).startswith(b"HTTP/1.1 400")


async def test_what_is_no_http_is_told_in_one_line(raw, caplog):
    for _ in range(5):
        connection = await raw()
        await connection.send("\x16\x03\x01\r\n\r\n")
        answer = (await connection.rest()).lower()
        assert b"nosniff" in answer
        assert b"no-store" in answer
    assert [record.event for record in caplog.records] == ["requests_refused"]


async def test_over_tcp(engine):
    async with serving(engine) as url, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{url}/v1/health")).json() == {"ok": True, "reasons": []}
        refused(
            await client.get(f"{url}/v1/health", headers={"host": "evil.example"}),
            403,
            "access-denied",
        )


def posted(path, body, more=""):
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )


async def test_who_sends_no_more_is_answered(raw, engine):
    connection = await raw()
    await connection.send(posted("/v1/queues/mail/tasks", '{"payload": 1}'))
    await connection.stream.send_eof()
    assert (await connection.rest()).startswith(b"HTTP/1.1 201")
    two = await raw()
    await two.send(2 * posted("/v1/queues/mail/tasks", '{"payload": 1}'))
    await two.stream.send_eof()
    assert (await two.rest()).count(b"HTTP/1.1 201") == 2
    assert await engine.queue("mail").purge() == 3


async def test_who_sends_no_more_and_waits_takes_nothing(raw, engine):
    connection = await raw()
    await connection.send(posted("/v1/leases/claim", '{"queues": ["mail"], "wait": 30}'))
    await connection.stream.send_eof()
    await connection.rest()
    await engine.queue("mail").enqueue(b"x")
    assert (await engine.queue("mail").stats()).leased == 0
    assert await engine.queue("mail").purge() == 1


async def test_half_a_body_of_who_sends_no_more_is_none(raw, engine):
    connection = await raw()
    await connection.send(posted("/v1/queues/mail/tasks", '{"payload": 1}')[:-1])
    await connection.stream.send_eof()
    assert not (await connection.rest()).startswith(b"HTTP/1.1 2")
    assert (await engine.queue("mail").stats()).ready == 0


async def test_a_large_head_that_comes_at_once(raw):
    connection = await raw()
    more = "X: " + "x" * 33_000 + "\r\n"
    await connection.send(posted("/v1/queues/mail/tasks", '{"payload": 1}', more))
    assert (await connection.rest()).startswith(b"HTTP/1.1 431")


async def test_a_token_that_is_given_twice(raw):
    connection = await raw()
    twice = "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"
    await connection.send(posted("/v1/queues/mail/tasks", '{"payload": 1}', twice))
    assert (await connection.rest()).startswith(b"HTTP/1.1 400")


async def test_a_parameter_that_is_given_twice_and_a_body_that_is_packed(engine):
    async with asgi_client(make_app(engine)) as client:
        twice = await client.get("/v1/queues/mail/tasks?limit=1&limit=2")
        assert "given twice" in refused(twice, 422)["detail"]
        headers = {"content-type": "application/json"}
        for body in (b'{"payload": 1, "payload": 2}', b'{"payload": {"a": [{"b": 1, "b": 1}]}}'):
            twice = await client.post("/v1/queues/mail/tasks", content=body, headers=headers)
            assert "given twice" in refused(twice, 422)["detail"]
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        packed = await client.post("/v1/queues/mail/tasks", content=b"\x1f\x8b", headers=headers)
        assert "gzip" in refused(packed, 415)["detail"]
