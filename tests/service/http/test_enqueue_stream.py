"""Payloads that clients of a served store stream into it, over a socket's HTTP and plain HTTP."""

import json
import os
import threading
from io import BytesIO
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from support_http import BASE, asgi_client, serving, socket_path
from support_roles import entry, token_of, write_tokens

import lodeq
import lodeq.sync
import lodeq.testing
from lodeq.client.blocking.cluster.transport import SyncClusterTransport
from lodeq.client.calls import Call, Session, engine_call
from lodeq.client.cluster.target import ClusterTarget
from lodeq.client.cluster.transport import ClusterTransport
from lodeq.client.engine import RemoteEngine
from lodeq.client.transport.line import Lane
from lodeq.client.transport.line import Line as PlaceLine
from lodeq.client.transport.transport import SyncTransport, Target, Transport
from lodeq.client.transport.upload import Upload
from lodeq.client.uploads import enqueue_stream
from lodeq.service.http.access.tokens_file import TokensFile
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings

pytestmark = pytest.mark.anyio
MIB = 1 << 20
LARGE = os.urandom(5 * MIB)
PATH = "/v1/queues/q/tasks/stream"
BYTES = {"content-type": "application/octet-stream"}
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


async def slices_of(data, size=100_000):
    for at in range(0, len(data), size):
        yield data[at : at + size]


def body_files(folder):
    bodies = folder / "s" / "bodies0"
    return sorted(os.listdir(bodies)) if bodies.exists() else []


async def until(condition):
    with anyio.fail_after(30):
        while not condition():
            await anyio.lowlevel.checkpoint()


@pytest.fixture(params=["unix", "http"])
def served(request, tmp_path):
    """Address of a server whose loop is in another thread."""
    with socket_path() as path, start_blocking_portal() as portal:
        opening = lodeq.open(tmp_path / "s")
        engine = portal.call(opening.__aenter__)
        where = path if request.param == "unix" else None
        with portal.wrap_async_context_manager(serving(engine, path=where)) as url:
            yield url
        portal.call(opening.__aexit__, None, None, None)


# -- clients -----------------------------------------------------------------------------------


async def test_a_client_streams_what_the_engine_takes(served):
    async with lodeq.connect(served) as client:
        queue = client.queue("q", max_attempts=7, backoff=lodeq.Backoff("fixed", base=2))
        for source in (BytesIO(LARGE), slices_of(LARGE), [LARGE[:MIB], memoryview(LARGE)[MIB:]]):
            receipt = await queue.enqueue_stream(
                source, priority=7, headers={"a": 1, "b": b"\0"}, labels={"of": "acme"}, delay=0
            )
            task = await client.get(receipt.id)
            assert (task.queue, task.priority, task.max_attempts) == ("q", 7, 7)
            assert (task.headers, task.labels) == ({"a": 1, "b": b"\0"}, {"of": "acme"})
            assert await client.read_payload(receipt.id) == LARGE
        acme = client.queue("q", tenant="acme")
        for data in (b"", b"small"):
            await acme.enqueue_stream([data, b""], durable=True)
        assert [task.payload for task in await acme.list("ready")] == [b"", b"small"]


def test_a_blocking_client_streams(served):
    with lodeq.sync.connect(served) as client:
        queue = client.queue("q")
        for source in (BytesIO(LARGE), iter([LARGE])):
            receipt = queue.enqueue_stream(source, shard_key="s")
            assert client.read_payload(receipt.id) == LARGE
        with pytest.raises(lodeq.UsageError, match="a client in its event loop"):
            queue.enqueue_stream(slices_of(LARGE))
        with pytest.raises(lodeq.PayloadTooLargeError, match=r"limit is 16777216.*Limits\("):
            queue.enqueue_stream([LARGE] * 4)
        with pytest.raises(ZeroDivisionError):
            queue.enqueue_stream(LARGE[: 1 // n] for n in (1, 0))
        assert queue.stats().ready == 2


async def test_a_key_is_held_as_of_any_enqueue(served):
    async with lodeq.connect(served) as client:
        queue = client.queue("q")
        for key in ("k", b"\xff"):
            first = await queue.enqueue_stream(slices_of(LARGE), dedup_key=key)
            again = await queue.enqueue_stream(slices_of(LARGE), dedup_key=key)
            assert (first.duplicate, again) == (False, lodeq.Receipt(first.id, duplicate=True))
            with pytest.raises(lodeq.DuplicateTaskError):
                await queue.enqueue_stream([LARGE], dedup_key=key, on_conflict="raise")
            new = await queue.enqueue_stream([b"new"], dedup_key=key, on_conflict="replace")
            assert new.replaced == first.id
        assert (await queue.stats()).ready == 2


async def test_a_wrong_call_or_source_enqueues_nothing(served, tmp_path):
    async def broken():
        yield LARGE
        raise OSError("the line is dead")

    async with lodeq.connect(served) as client:
        queue = client.queue("q")
        with pytest.raises(OSError, match=r"^the line is dead$"):
            await queue.enqueue_stream(broken())
        with pytest.raises(lodeq.PayloadTooLargeError, match=r"limit is 16777216.*Limits\("):
            await queue.enqueue_stream([LARGE] * 4)
        with pytest.raises(lodeq.UsageError, match="slices of bytes, not str"):
            await queue.enqueue_stream([LARGE, "text"])
        for wrong in (LARGE, 5):
            with pytest.raises(lodeq.UsageError, match="a file or an iterable of bytes"):
                await queue.enqueue_stream(wrong)
        for option, value in (("priority", 11), ("on_conflict", "x"), ("after", []), ("ttl", -1)):
            with pytest.raises(lodeq.UsageError, match=option):
                await queue.enqueue_stream([LARGE], **{option: value})
        with pytest.raises(lodeq.UsageError, match="dedup_window"):  # the server says so
            await queue.enqueue_stream([LARGE], dedup_window=5)
        with pytest.raises(lodeq.UsageError, match="ALL_TENANTS"):
            await client.queue("q", tenant=lodeq.ALL_TENANTS).enqueue_stream([LARGE])
        assert (await queue.stats()).ready == 0
        await until(lambda: not body_files(tmp_path))


async def test_a_cancelled_call_leaves_nothing(served, tmp_path):
    reached = anyio.Event()

    async def endless():
        yield LARGE
        reached.set()
        await anyio.sleep_forever()

    async with lodeq.connect(served) as client, anyio.create_task_group() as group:
        group.start_soon(client.queue("q").enqueue_stream, endless())
        await reached.wait()
        await until(lambda: body_files(tmp_path))
        group.cancel_scope.cancel()
    await until(lambda: not body_files(tmp_path))


async def test_a_cancelled_call_waits_for_no_source(served):
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def stuck():
        yield b"x"
        begun.set()
        go_on.wait(30)
        ended.set()

    async with lodeq.connect(served) as client, anyio.create_task_group() as group:
        group.start_soon(client.queue("q").enqueue_stream, stuck())
        await until(begun.is_set)
        group.cancel_scope.cancel()
    assert not ended.is_set()
    go_on.set()
    await until(ended.is_set)


async def test_a_closing_client_ends_its_uploads(served):
    reached = anyio.Event()

    async def endless():
        yield LARGE
        reached.set()
        await anyio.sleep_forever()

    client = await lodeq.connect(served)
    queue = client.queue("q")

    async def streams():
        with pytest.raises(lodeq.ClosedError):
            await queue.enqueue_stream(endless())

    async with anyio.create_task_group() as group:
        group.start_soon(streams)
        await reached.wait()
        await client.close()
    with pytest.raises(lodeq.ClosedError):
        await queue.enqueue_stream([b"x"])


class Line(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """A server's place: reads so many slices (None: all), then answers or fails."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.read = []

    def outcome(self):
        _, found = self.outcomes.pop(0)
        if isinstance(found, Exception):
            raise found
        return httpx.Response(found[0], json=found[1])

    async def handle_async_request(self, request):
        self.read.append(0)
        async for _ in request.stream:
            self.read[-1] += 1
            if self.read[-1] == self.outcomes[0][0]:
                break
        return self.outcome()

    def handle_request(self, request):
        self.read.append(0)
        for _ in request.stream:
            self.read[-1] += 1
            if self.read[-1] == self.outcomes[0][0]:
                break
        return self.outcome()


CALL = Call("POST", "/queues/q/tasks/stream", is_write=True)
BUSY = 503, {"type": "urn:lodeq:problem:busy", "status": 503, "detail": "full", "not_begun": True}


@pytest.fixture(params=[Transport, SyncTransport])
def upload(request):
    """Call ``upload`` of a client that has this line."""

    async def run(line, source):
        found = request.param(Target(BASE, None, 0.1), line).upload(CALL, source, 64 * MIB)
        return await found if request.param is Transport else found

    return run


async def test_a_lost_line_says_what_is_known(upload):
    broken = httpx.WriteError("broken pipe")
    with pytest.raises(lodeq.UnreachableError, match="nothing was enqueued"):
        await upload(Line((2, broken)), [b"x"] * 4)
    with pytest.raises(lodeq.CommitUnknownError):
        await upload(line := Line((None, httpx.ReadError("gone"))), [b"x"] * 4)
    assert line.read == [4]  # not sent again
    with pytest.raises(lodeq.UnreachableError, match="is the server running"):
        await upload(Line((1, httpx.ConnectError("nobody"))), [b"x"])


async def test_what_was_not_begun_is_sent_again_if_it_can_be_read_again(upload):
    line = Line((1, BUSY), (None, BUSY), (None, (422, {"detail": "no"})))
    with pytest.raises(lodeq.LodeqError, match="no"):
        await upload(line, [b"x"] * 4)
    assert line.read == [1, 4, 4]
    for source in (iter([b"x"] * 4), BytesIO(b"x")):
        line = Line((None, BUSY), (None, BUSY))
        with pytest.raises(lodeq.BusyError, match="full"):
            await upload(line, source)
        assert len(line.read) == 1


class Counted(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """Answers nobody before ``go_on``, and counts who is under way."""

    def __init__(self):
        self.now = self.most = 0
        self.go_on = anyio.Event()

    def begin(self):
        self.now += 1
        self.most = max(self.most, self.now)

    async def handle_async_request(self, request):
        self.begin()
        await self.go_on.wait()
        self.now -= 1
        return httpx.Response(422, json={"detail": "no"})

    def handle_request(self, request):
        self.begin()
        self.now -= 1
        return httpx.Response(422, json={"detail": "no"})


@ON_ASYNCIO
async def test_uploads_of_one_client_stand_in_line():
    """More than a server takes at once would be refused, and a source is read but once."""
    counted, count = Counted(), Lane.UPLOAD.value + 5
    transport, ended = Transport(Target(BASE, None, 30.0), counted), []

    async def upload():
        with pytest.raises(lodeq.LodeqError, match="no"):
            await transport.upload(CALL, iter([b"x"]), 1)
        ended.append(1)

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(upload)
        await anyio.wait_all_tasks_blocked()
        assert counted.now == Lane.UPLOAD.value
        counted.go_on.set()
    assert len(ended) == count
    assert counted.most == Lane.UPLOAD.value


async def test_an_upload_in_line_waits_as_long_as_those_before_it_get_on():
    line = PlaceLine(Lane.UPLOAD, 0.0)  # no patience at all
    for _ in range(Lane.UPLOAD.value):
        await line.enter(0.0)
    with pytest.raises(lodeq.UnreachableError, match="it was not sent"):
        await line.enter(0.0)
    upload, moves = Upload([b"x", b"y"], 2, lambda: moves.append(1)), []
    assert [one async for one in upload.slices()] == [b"x", b"y"]
    assert len(moves) == 2
    upload = Upload([b"x", b"y"], 2, lambda: moves.append(1))
    assert list(upload.blocking_slices()) == [b"x", b"y"]
    assert len(moves) == 4


def test_uploads_of_threads_stand_in_line():
    transport = SyncTransport(Target(BASE, None, 30.0), Counted())
    line = transport._lines[Lane.UPLOAD]
    for _ in range(Lane.UPLOAD.value):
        line.enter(0.0)
    done = threading.Event()

    def upload():
        with pytest.raises(lodeq.LodeqError, match="no"):
            transport.upload(CALL, iter([b"x"]), 1)
        done.set()

    thread = threading.Thread(target=upload)
    thread.start()
    while not line._waiting:
        assert not done.is_set()
    line.leave(is_answered=True)
    thread.join(30)
    assert done.is_set()
    assert line._n_free == 1


async def test_an_older_server_is_named():
    async with lodeq.testing.open() as engine:
        link = Transport(Target(BASE, None, 30.0), httpx.ASGITransport(make_app(engine)))
        doc = await link.send(engine_call("/engine"))
        assert doc.pop("stream_bytes_max") == 3 * MIB  # a store in memory
        async with RemoteEngine(link, Session(doc)) as client:
            with pytest.raises(lodeq.UsageError, match="upgrade the server"):
                await client.queue("q").enqueue_stream([b"x"])


async def test_options_that_fit_no_head_are_refused_before_anything_is_sent():
    limits = lodeq.Limits(headers_bytes_max=256 << 10)
    async with lodeq.testing.open(limits=limits) as engine:
        link = Transport(Target(BASE, None, 30.0), httpx.ASGITransport(make_app(engine)))
        async with RemoteEngine(link, Session(await link.send(engine_call("/engine")))) as client:
            queue = client.queue("q")
            with pytest.raises(lodeq.LimitError, match="they have 28672"):
                await queue.enqueue_stream([b"x"], headers={"a": "x" * 30_000})
            receipt = await queue.enqueue_stream([b"x"], headers={"a": "x" * 28_000})
            assert len((await client.get(receipt.id)).headers["a"]) == 28_000
            call = enqueue_stream(client.session, queue.template, {}, None)
            assert (call.path, call.query) == ("/queues/q/tasks/stream", {})


# -- HTTP --------------------------------------------------------------------------------------


@pytest.fixture
async def app(tmp_path):
    """An application over a store of which a request may hold next to nothing."""
    async with lodeq.open(tmp_path / "s") as engine:
        yield make_app(engine, Settings(body_bytes_max=MIB, held_bytes_max=2 * MIB))


async def streamed(app, *chunks, query=b"", headers=(), end=True):
    """Send chunks as a server of ASGI would; the answer's status and document, or None."""
    given = [{"type": "http.request", "body": one, "more_body": True} for one in chunks]
    last = {"type": "http.request", "body": b"", "more_body": False}
    given.append(last if end else {"type": "http.disconnect"})
    sent = []

    async def receive():
        return given.pop(0) if given else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    names = [(b"host", b"lodeq"), *((k.encode(), v.encode()) for k, v in BYTES.items()), *headers]
    scope = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": query,
        "headers": names,
        "scheme": "http",
        "server": ("lodeq", 80),
    }
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"], len(given)


@ON_ASYNCIO
async def test_it_holds_no_more_than_a_slice(app, tmp_path):
    status, body, _ = await streamed(app, *[LARGE[:MIB]] * 15)  # more than any request may hold
    assert status == 201
    engine = app.state.hub.engine
    assert len(await engine.read_payload(json.loads(body)["id"])) == 15 * MIB
    assert len(body_files(tmp_path)) == 1
    status, body, left = await streamed(app, LARGE[:MIB], LARGE * 2, LARGE)  # two slices at once
    assert (status, json.loads(body)["detail"]) == (
        503,
        "the server holds too many requests: try again",
    )
    assert left < 3
    status, _, _ = await streamed(app, b"x")  # nothing is held of those before
    assert status == 201
    assert len(body_files(tmp_path)) == 1


@ON_ASYNCIO
async def test_a_client_that_goes_in_the_middle_leaves_nothing(app, tmp_path):
    for chunks in ((b"x",), (LARGE[:MIB], LARGE[:MIB])):
        await streamed(app, *chunks, end=False)
        assert body_files(tmp_path) == []
    assert (await app.state.hub.engine.queue("q").stats()).ready == 0


@ON_ASYNCIO
async def test_what_is_too_large_is_refused_as_soon_as_it_is_known(app, tmp_path):
    length = (b"content-length", b"%d" % (16 * MIB + 1))
    status, body, left = await streamed(app, b"x", headers=[length])
    assert (status, left) == (413, 2)  # nothing is read
    problem = json.loads(body)
    assert problem["type"] == "urn:lodeq:problem:payload-too-large"
    assert (problem["size_bytes"], problem["limit_bytes"]) == (16 * MIB + 1, 16 * MIB)
    status, body, left = await streamed(app, *[LARGE[:MIB]] * 20)
    assert (status, json.loads(body)["limit_bytes"], left) == (413, 16 * MIB, 4)
    assert body_files(tmp_path) == []
    length = (b"content-length", b"%d" % (16 * MIB))
    status, _, _ = await streamed(app, *[LARGE[:MIB]] * 16, headers=[length])
    assert status == 201


@ON_ASYNCIO
async def test_options_are_in_the_query(app):
    engine = app.state.hub.engine
    query = {
        "priority": 9,
        "delay": 60,
        "tenant": "acme",
        "headers": '{"a": [1]}',
        "labels": '{"k": "v"}',
        "retry": '{"kind": "fixed", "base": 3}',
        "function": "f",
        "dedup_key": "k",
        "dedup_window": 5.5,
        "durable": "true",
    }
    async with asgi_client(make_app(engine), **BYTES) as client:
        answer = await client.post(PATH, params=query, content=b"x")
        assert answer.status_code == 201
        task = await engine.get(answer.json()["id"])
        assert (task.tenant, task.state, task.priority) == ("acme", "delayed", 9)
        assert (task.headers, task.labels, task.function) == ({"a": [1]}, {"k": "v"}, "f")
        again = await client.post(PATH, params=query, content=b"y")
        assert (again.status_code, again.json()["duplicate"]) == (200, True)
        key = {"idempotency-key": "once"}
        ids = {(await client.post(PATH, headers=key, content=b"x")).json()["id"] for _ in "12"}
        assert len(ids) == 1
        for wrong, text in (
            ({"after": "[]"}, "the query has no 'after'"),
            ({"payload": "x"}, "the query has no 'payload'"),
            ({"labels": "x"}, "labels: expected an object"),
            ({"headers": "[]"}, "headers: expected an object"),
            ({"retry": '{"kind": 1}'}, "retry.kind"),
            ({"priority": "10"}, "priority"),
            ({"dedup_key": "a", "shard_key": "b"}, "not both"),
        ):
            answer = await client.post(PATH, params=wrong, content=b"x")
            assert (answer.status_code, text in answer.json()["detail"]) == (422, True), wrong


@ON_ASYNCIO
async def test_the_body_is_bytes_as_they_are(app):
    async with asgi_client(make_app(app.state.hub.engine)) as client:
        for headers, text in (
            ({}, "the body is application/octet-stream"),
            ({"content-type": "application/json"}, "the body is application/octet-stream"),
            ({**BYTES, "content-encoding": "gzip"}, "send the body as it is"),
        ):
            answer = await client.post(PATH, content=b"x", headers=headers)
            assert (answer.status_code, text in answer.json()["detail"]) == (415, True)


@ON_ASYNCIO
async def test_a_body_that_stands_still_is_given_up(tmp_path):
    async with lodeq.open(tmp_path / "s") as engine:
        app = make_app(engine, Settings(body_wait_s=0.01))

        async def stuck():
            yield LARGE
            await anyio.sleep_forever()

        async with asgi_client(app, **BYTES) as client:
            answer = await client.post(PATH, content=stuck())
            assert answer.status_code == 408
        assert body_files(tmp_path) == []


@ON_ASYNCIO
async def test_uploads_count_as_calls_that_wait(tmp_path):
    async with lodeq.open(tmp_path / "s") as engine:
        app = make_app(engine, Settings(connections_max=2))
        begun = anyio.Event()

        async def waiting():
            yield LARGE
            begun.set()
            await anyio.sleep_forever()

        async with asgi_client(app, **BYTES) as client, anyio.create_task_group() as group:

            async def post():
                await client.post(PATH, content=waiting())

            group.start_soon(post)
            await begun.wait()
            assert (await client.post(PATH, content=b"x")).status_code == 503
            group.cancel_scope.cancel()
        async with asgi_client(app, **BYTES) as client:
            assert (await client.post(PATH, content=b"x")).status_code == 201


@ON_ASYNCIO
async def test_it_needs_a_producer_of_the_queue(tmp_path):
    async with lodeq.open(tmp_path / "s") as engine:
        tokens = write_tokens(
            tmp_path / "tokens.toml",
            entry("mailer", "producer", queues=["q"]),
            entry("other", "producer", queues=["other"]),
            entry("worker", "worker"),
        )
        async with serving(engine, settings=Settings(tokens=TokensFile(tokens))) as url:
            async with lodeq.connect(url, token=token_of("mailer")) as client:
                await client.queue("q").enqueue_stream(slices_of(LARGE))
            for name in ("other", "worker"):
                async with lodeq.connect(url, token=token_of(name)) as client:
                    with pytest.raises(lodeq.AccessDeniedError, match="scope producer"):
                        await client.queue("q").enqueue_stream(slices_of(LARGE))
        assert (await engine.queue("q").stats()).ready == 1


@ON_ASYNCIO
async def test_a_socket_that_breaks_in_the_middle(tmp_path):
    async with lodeq.open(tmp_path / "s") as engine, serving(engine) as url:
        place = urlsplit(url)
        head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {BYTES['content-type']}"
        async with await anyio.connect_tcp(place.hostname, place.port) as stream:
            await stream.send(f"{head}\r\ncontent-length: {16 * MIB}\r\n\r\n".encode() + LARGE)
            await until(lambda: body_files(tmp_path))
        await until(lambda: not body_files(tmp_path))
        async with await anyio.connect_tcp(place.hostname, place.port) as stream:
            await stream.send(f"{head}\r\ncontent-length: {16 * MIB + 1}\r\n\r\n".encode())
            assert (await stream.receive()).startswith(b"HTTP/1.1 413 ")  # with nothing sent
        assert (await engine.queue("q").stats()).ready == 0


@ON_ASYNCIO
async def test_a_store_that_keeps_no_files_says_so():
    async with lodeq.testing.open() as engine:
        status, body, _ = await streamed(make_app(engine), LARGE)
        assert (status, "a store in memory" in json.loads(body)["detail"]) == (413, True)
        link = Transport(Target(BASE, None, 30.0), httpx.ASGITransport(make_app(engine)))
        async with RemoteEngine(link, Session(await link.send(engine_call("/engine")))) as client:
            await client.queue("q").enqueue_stream([LARGE[: 3 * MIB]])
            with pytest.raises(lodeq.PayloadTooLargeError, match="limit is 3145728: store it"):
                await client.queue("q").enqueue_stream([LARGE])


async def test_nothing_is_streamed_to_several_nodes():
    target = ClusterTarget("lodeq://127.0.0.1:1,127.0.0.1:2", None, 1.0)
    with pytest.raises(lodeq.PayloadTooLargeError, match="enqueue up to 3145728 bytes, or"):
        await ClusterTransport(target).upload(CALL, [b"x"], MIB)
    with pytest.raises(lodeq.PayloadTooLargeError, match="enqueue up to 3145728 bytes, or"):
        SyncClusterTransport(target).upload(CALL, [b"x"], MIB)
