"""Clients that go away, servers that stop, are killed and come back."""

import contextlib
import signal
import subprocess
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx
import pytest
from click.testing import CliRunner
from support_cli import RUN
from support_http import serving, socket_path

import lodeq
import lodeq.sync
import lodeq.testing
from lodeq.client import calls
from lodeq.client.calls import FORM
from lodeq.service.cli.app import lodeq as command
from lodeq.service.http.app import make_app
from lodeq.service.http.listener import listen_unix
from lodeq.service.http.server import Server

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine():
    async with lodeq.testing.open() as engine:
        yield engine


async def until(condition):
    with anyio.fail_after(30):
        while not condition():
            await anyio.lowlevel.checkpoint()


def waiters(engine):
    return sum(map(len, engine._state.waiters.by_tenant_queue.values()))


# --- a client that goes away --------------------------------------------------------------------


async def test_a_client_that_goes_while_its_claim_waits_loses_nothing(engine):
    with socket_path() as path:
        async with serving(engine, path=path) as url:
            client = await lodeq.connect(url)
            async with anyio.create_task_group() as group:
                group.start_soon(client.queue("mail").claim)  # a connection that is kept
                body = FORM.dumps({"queues": ["mail"], "wait": 60})
                async with await anyio.connect_unix(path) as stream:
                    await stream.send(
                        b"POST /v1/leases/claim HTTP/1.1\r\nHost: localhost\r\n"
                        b"Content-Type: application/msgpack\r\n"
                        b"Content-Length: %d\r\n\r\n" % len(body) + body
                    )
                    await until(lambda: waiters(engine))
                await until(lambda: not waiters(engine))
            await client.queue("mail").enqueue(b"x")
            lease = await client.queue("mail").claim_one()
            assert lease.attempt == 1
            await client.close()


async def test_a_cancelled_call_of_a_client_reaches_the_server(engine):
    with socket_path() as path:
        async with serving(engine, path=path) as url, lodeq.connect(url) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: client.queue("mail").claim(wait=60))
                await until(lambda: waiters(engine))
                group.cancel_scope.cancel()
            await until(lambda: not waiters(engine))


async def ask(app, doc, *messages):
    """The claim of a client from which ``messages`` come, the last one over and over again."""
    sent = []
    rest = [{"type": "http.request", "body": FORM.dumps(doc)}, *messages]

    async def receive():
        return rest.pop(0) if len(rest) > 1 else rest[0]

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/msgpack")]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/leases/claim",
        "raw_path": b"/v1/leases/claim",
        "query_string": b"",
        "headers": headers,
    }
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("wait", [0, 60])
async def test_what_a_client_that_has_gone_claimed_goes_back(engine, wait):
    await engine.queue("mail").enqueue(b"x")
    await ask(make_app(engine), {"queues": ["mail"], "wait": wait}, {"type": "http.disconnect"})
    (task,) = await engine.queue("mail").peek()
    assert (task.state, task.attempts) == ("ready", 0)


# --- a server that stops ------------------------------------------------------------------------


async def test_a_shutdown_answers_who_waits(engine):
    receipt = await engine.queue("later").enqueue(b"x")
    answers = []
    with socket_path() as path:
        ready = anyio.Event()
        server = Server(engine, [listen_unix(path)], on_ready=ready.set)
        async with anyio.create_task_group() as group:
            group.start_soon(server.run)
            await ready.wait()
            async with lodeq.connect(f"unix://{path}") as client:

                async def send(call):
                    answers.append(await client.send(call))

                options = {"limit": 1, "lease": None, "wait_s": 60, "worker": ""}
                group.start_soon(send, calls.claim(client.session, ["mail"], **options))
                group.start_soon(send, calls.task_call(receipt.id, what="/result", wait="60"))
                await until(lambda: waiters(engine) and engine._state.result_waiters)
                server.stop()
                await until(lambda: len(answers) == 2)
    assert sorted(answers, key=len) == [{}, {"leases": []}]


async def test_a_cancelled_server_answers_too(engine):
    answers = []
    with socket_path() as path:
        ready, over = anyio.Event(), anyio.Event()
        server = Server(engine, [listen_unix(path)], on_ready=ready.set)

        async def run():
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                await server.run()
            over.set()

        scopes = []
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await ready.wait()
            async with lodeq.connect(f"unix://{path}") as client:

                async def send(call):
                    answers.append(await client.send(call))

                options = {"limit": 1, "lease": None, "wait_s": 60, "worker": ""}
                group.start_soon(send, calls.claim(client.session, ["mail"], **options))
                await until(lambda: waiters(engine))
                scopes[0].cancel()
                await over.wait()
    assert scopes[0].cancelled_caught
    assert answers == [{"leases": []}]


async def test_a_request_that_a_stop_cuts_is_counted_and_leaves_no_traceback(engine, caplog):
    head = (
        b"POST /v1/queues/mail/tasks/stream HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/octet-stream\r\nContent-Length: 10\r\n\r\n12345"
    )
    with socket_path() as path:
        ready = anyio.Event()
        server = Server(engine, [listen_unix(path)], on_ready=ready.set, grace_s=0.0)
        async with anyio.create_task_group() as group:
            group.start_soon(server.run)
            await ready.wait()
            async with await anyio.connect_unix(path) as stream:
                await stream.send(head)
                await until(lambda: server._server.server_state.tasks)
                server.stop()
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()
    assert [one.getMessage() for one in caplog.records] == ["1 requests were cut at the stop"]
    assert not await engine.queue("mail").peek()


async def test_an_answer_that_a_stop_cuts_because_nobody_reads_it_is_counted(engine, caplog):
    await engine.queue("mail").enqueue(bytes(2 << 20))
    with socket_path() as path:
        ready = anyio.Event()
        server = Server(engine, [listen_unix(path)], on_ready=ready.set, grace_s=0.0)
        state = server._server.server_state
        async with contextlib.AsyncExitStack() as stack, anyio.create_task_group() as group:
            group.start_soon(server.run)
            await ready.wait()
            stream = await stack.enter_async_context(await anyio.connect_unix(path))
            await stream.send(
                b"GET /v1/queues/mail/tasks HTTP/1.1\r\nHost: localhost\r\n"
                b"Accept: application/msgpack\r\n\r\n"
            )
            await until(lambda: any(one.unread_bytes for one in state.connections))
            await until(lambda: not state.tasks)
            server.stop()
    assert [one.getMessage() for one in caplog.records] == ["1 requests were cut at the stop"]


async def test_the_last_answer_before_a_stop_says_that_nothing_behind_it_was_begun(engine):
    claim = FORM.dumps({"queues": ["none"], "wait": 60})
    task = FORM.dumps({"payload": b"x"})
    request = b"POST /v1/%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
    request += b"Content-Length: %d\r\n\r\n%b"
    both = request % (b"leases/claim", len(claim), claim)
    both += request % (b"queues/mail/tasks", len(task), task)
    answer = b""
    with socket_path() as path:
        ready = anyio.Event()
        server = Server(engine, [listen_unix(path)], on_ready=ready.set)
        async with anyio.create_task_group() as group:
            group.start_soon(server.run)
            await ready.wait()
            async with await anyio.connect_unix(path) as stream:
                await stream.send(both)
                await until(lambda: waiters(engine))
                server.stop()
                with contextlib.suppress(anyio.EndOfStream):
                    while True:
                        answer += await stream.receive()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"\r\nconnection: close\r\n" in answer
    assert not await engine.queue("mail").peek()


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path):
    """Starts ``lodeq serve`` in a process of its own; gives it, and its address."""
    running = []

    def start(*options):
        process = subprocess.Popen(
            [*RUN, "serve", str(tmp_path / "store"), *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        line = process.stdout.readline()
        assert line.startswith("serving "), line
        return process, line.split()[1]

    yield start
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdout.close()


# httpcore leaves a socket that could not connect to the collector.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_leases_outlive_a_server_that_is_stopped_and_one_that_is_killed(start):
    with socket_path() as path:
        process, url = start("--uds", path)
        assert url == f"unix://{path}"
        with lodeq.sync.connect(url) as client:
            queue = client.queue("mail")
            receipts = queue.enqueue_many([lodeq.NewTask(n) for n in range(3)])
            leases = queue.claim(limit=2, lease=300, worker="w")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert not Path(path).exists()
            with pytest.raises(lodeq.UnreachableError):
                leases[0].heartbeat()

            process, _ = start("--uds", path)
            leases[0].complete("over the restart")
            assert client.result(receipts[0].id).value == "over the restart"
            process.kill()
            process.wait(30)
            assert Path(path).exists()

            start("--uds", path)
            leases[1].heartbeat(60)
            leases[1].complete()
            leases[0].complete("again")  # repeated, across two restarts
            with pytest.raises(lodeq.LeaseLostError):
                leases[0].nack()
            (last,) = queue.claim(limit=5)
            assert (last.payload, last.attempt) == (2, 1)
            assert client.verify().ok


@pytest.mark.slow
def test_served_on_loopback_with_a_token(start, tmp_path):
    file = tmp_path / "token"
    file.write_text("a token of some length\n")
    file.chmod(0o600)
    copies = tmp_path / "copies"
    copies.mkdir()
    _, url = start(
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--token-file",
        str(file),
        "--checkpoints",
        str(copies),
        "--durability",
        "fsync",
        "--shards",
        "2",
    )
    with pytest.raises(lodeq.AccessDeniedError):
        lodeq.sync.connect(url)
    with lodeq.sync.connect(url, token="a token of some length") as client:
        assert (client.shards, client.durability) == (2, "fsync")
        client.queue("mail").enqueue(b"x")
        client.checkpoint("first")
        for path in ("", "..", "../x", "/tmp/x", "first/../.."):
            with pytest.raises(lodeq.UsageError):
                client.checkpoint(path)
        with pytest.raises(lodeq.LodeqError):
            client.checkpoint("first")
    assert [path.name for path in copies.iterdir()] == ["first"]


@pytest.mark.slow
def test_a_port_alone_is_one_of_loopback(start):
    _, url = start("--port", "0")
    assert url.startswith("http://127.0.0.1:")
    with lodeq.sync.connect(url) as client:
        assert client.shards == 1


@pytest.mark.slow
def test_a_socket_that_is_not_its_own_outlives_a_server(start):
    with socket_path() as path:
        process, _ = start("--uds", path)
        Path(path).unlink()
        with listen_unix(path):  # somebody else's
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert Path(path).is_socket()


@pytest.mark.parametrize("is_listening", [True, False])
def test_no_store_is_made_where_the_socket_cannot_be(tmp_path, is_listening):
    with socket_path() as path:
        with listen_unix(path) if is_listening else contextlib.nullcontext():
            name = path if is_listening else f"{path}{'x' * 120}"
            found = CliRunner().invoke(command, ["serve", str(tmp_path / "new"), "--uds", name])
        assert found.exit_code == 2
        assert ("listens there already" if is_listening else "107 bytes") in found.output
        assert not (tmp_path / "new").exists()


def test_a_socket_has_no_port(tmp_path):
    found = CliRunner().invoke(command, ["serve", str(tmp_path), "--uds", "s", "--port", "1"])
    assert found.exit_code == 2
    assert "not both" in found.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_socket_lies_beside_the_store(start, tmp_path):
    _, url = start()
    assert url == f"unix://{tmp_path}/store.sock"
    with lodeq.sync.connect(url) as client:
        assert client.path == str(tmp_path / "store")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("options", "status"),
    [
        ((), 403),
        (("--dashboard", "write"), 200),
        (("--dashboard", "off"), 404),
    ],
)
def test_served_with_a_dashboard(start, options, status):
    _, url = start(*options)
    with lodeq.sync.connect(url) as client:
        client.queue("mail").enqueue(b"x")
    transport = httpx.HTTPTransport(uds=url.removeprefix("unix://"))
    with httpx.Client(transport=transport, base_url="http://localhost") as browser:
        assert ("mail" in browser.get("/").text) == (status != 404)
        assert browser.get("/queues/mail/pause").status_code == status
