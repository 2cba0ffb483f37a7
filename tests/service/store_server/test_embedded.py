"""``lodeq.open(serve=…)``: the store of this process, reached by others."""

import asyncio
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint
from support_cli import run
from support_http import socket_path

import lodeq
import lodeq.sync
from lodeq.engine.files.lockfile import LockFile, boot_id
from lodeq.engine.files.paths import lock_path
from lodeq.engine.files.served_note import find_served, leave_note, note_path, read_note
from lodeq.repository.api.view import view_of
from lodeq.service.http.listener import listen_unix
from lodeq.service.http.server import Server
from lodeq.service.store_server import server as embedded

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CACHE_BYTES = 8 << 20
TOKEN = "a token of some length"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def root():
    """A folder with a short name, wherever the tests' own folders lie."""
    with socket_path() as path:
        yield Path(path).parent


@pytest.fixture
def store(root):
    return root / "jobs"


def opened(store, serve=True, **options):
    return lodeq.open(store, serve=serve, block_cache_bytes=CACHE_BYTES, **options)


def note_of(store):
    return Path(note_path(store)).read_text()


def waiters(engine):
    return sum(map(len, engine._state.waiters.by_tenant_queue.values()))


async def until(condition):
    with anyio.fail_after(30):
        while not condition():
            await checkpoint()


async def in_thread(*args, code=0):
    """A command, beside the loop that serves it."""
    return await anyio.to_thread.run_sync(lambda: run(*args, code=code))


# --- where it is served -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serve", "name"),
    [(True, "jobs.sock"), ("store.sock", "store.sock"), ("sub/../x", "x"), (Path("p"), "p")],
)
async def test_a_socket_beside_the_store(root, store, serve, name):
    path = root / name
    async with opened(store, serve) as engine:
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert json.loads(note_of(store)) == {
            "address": f"unix://{path}",
            "pid": os.getpid(),
            "boot_id": boot_id(),
        }
        assert stat.S_IMODE(os.stat(note_path(store)).st_mode) == 0o600
        async with lodeq.connect(f"unix://{path}") as client:
            receipt = await client.queue("mail").enqueue({"n": 1})
        assert (await engine.get(receipt.id)).state == "ready"
    assert [one.name for one in root.iterdir()] == ["jobs"]  # no socket, no temporary name
    assert read_note(store) is None


async def test_beside_a_store_whose_folder_is_still_to_be_made(root):
    with pytest.raises(lodeq.StorePathError, match="at most 107 bytes"):
        await opened(root / "new" / ("x" * 100))
    assert not (root / "new").exists()
    async with opened(root / "new" / "jobs"), lodeq.connect(f"unix://{root}/new/jobs.sock"):
        pass


async def test_an_absolute_path(root, store):
    async with opened(store, f"{root}/a.sock"), lodeq.connect(f"unix://{root}/a.sock"):
        pass
    async with opened(store, f"unix://{root}/a.sock"), lodeq.connect(f"unix://{root}/a.sock"):
        pass


async def test_a_port_with_a_token(store):
    serve = lodeq.Serve("127.0.0.1:0", token=TOKEN)
    async with opened(store, serve):
        note = find_served(store)
        assert note.url.startswith("http://127.0.0.1:")
        assert TOKEN not in note_of(store)
        assert TOKEN not in repr(serve)
        with pytest.raises(lodeq.AccessDeniedError):
            await lodeq.connect(note.url)
        async with lodeq.connect(note.url, token=TOKEN) as client:
            await client.queue("mail").enqueue(b"x")


@pytest.mark.parametrize(
    ("serve", "error", "text"),
    [
        ("0.0.0.0:0", lodeq.UsageError, "token"),
        (lodeq.Serve("127.0.0.1:0", token="short"), lodeq.UsageError, "16 printable"),
        ("127.0.0.1:70000", lodeq.UsageError, "65535"),
        ("https://x", lodeq.UsageError, "HOST:PORT"),
        ("", lodeq.UsageError, "HOST:PORT"),
        (7, lodeq.UsageError, "int"),
        ("jobs/s.sock", lodeq.StorePathError, "beside it"),
        ("x" * 120, lodeq.StorePathError, "at most 107 bytes, this one has"),
        ("no/s.sock", lodeq.StorePathError, "there is no folder '.*/no': make it"),
        (lodeq.Serve(dashboard="all"), lodeq.UsageError, "dashboard"),
        (lodeq.Serve(hosts=("a b",)), lodeq.UsageError, "host name"),
        (lodeq.Serve(grace=-1), lodeq.UsageError, "grace"),
    ],
)
async def test_what_cannot_be_is_refused_before_a_store_is_made(store, serve, error, text):
    with pytest.raises(error, match=text):
        await opened(store, serve)
    assert not store.exists()


async def test_a_port_that_is_taken_is_refused_before_a_store_is_made(store):
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(lodeq.StorePathError, match="take another port"):
        await opened(store, f"127.0.0.1:{taken.getsockname()[1]}")
    assert not store.exists()


async def test_a_missing_extra_is_named(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in [name for name in sys.modules if name.startswith("lodeq.service.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(lodeq.UsageError, match=r'pip install "lodeq\[http\]"'):
        opened(store)
    assert not store.exists()


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_on_trio_it_says_what_is_possible(store):
    with pytest.raises(lodeq.UsageError, match=r"asyncio only.*'lodeq serve'"):
        await opened(store)
    assert not store.exists()


# --- whom it is served by -----------------------------------------------------------------------


async def test_a_second_opener_is_told_the_address(root, store):
    async with opened(store):
        code = (
            "import sys, asyncio, lodeq\n"
            "async def main():\n"
            "    try:\n"
            "        await lodeq.open(sys.argv[1], serve=True)\n"
            "    except lodeq.LockedError as error:\n"
            "        print(error.address, error.pid, error)\n"
            "asyncio.run(main())\n"
        )
        found = await anyio.run_process([sys.executable, "-c", code, str(store)])
    address, pid, text = found.stdout.decode().split(" ", 2)
    assert (address, int(pid)) == (f"unix://{root}/jobs.sock", os.getpid())
    assert f"lodeq.connect('unix://{root}/jobs.sock')" in text
    assert "join=True" in text


async def test_in_this_process_too(root, store):
    async with opened(store):
        with pytest.raises(lodeq.LockedError, match="in this process") as caught:
            await opened(store)
        assert caught.value.address == f"unix://{root}/jobs.sock"
        async with lodeq.connect(caught.value.address):
            pass


async def test_an_opener_waits_until_the_holder_says_where(store):
    """Workers of one service start together: the note comes after the lock."""
    os.mkdir(store, 0o700)
    lock = LockFile.acquire(lock_path(str(store)))
    async with anyio.create_task_group() as group:
        errors = []

        async def open_it():
            with pytest.raises(lodeq.LockedError) as caught:
                await opened(store)
            errors.append(caught.value)

        group.start_soon(open_it)
        await checkpoint()
        leave_note(store, "http://127.0.0.1:1")
    assert errors[0].address == "http://127.0.0.1:1"
    lock.release()


async def test_but_not_for_ever(store, monkeypatch):
    monkeypatch.setattr("lodeq.repository.api.open.NOTE_WAIT_S", 0.1)
    async with lodeq.open(store, block_cache_bytes=CACHE_BYTES):
        with pytest.raises(lodeq.LockedError) as caught:
            await opened(store)
        assert caught.value.address is None


async def test_a_stale_socket_is_replaced_a_live_one_is_not(root, store):
    left = listen_unix(root / "jobs.sock")
    left.close()  # as a killed server leaves it
    async with opened(store), lodeq.connect(f"unix://{root}/jobs.sock"):
        pass
    with listen_unix(root / "jobs.sock"):
        with pytest.raises(lodeq.StorePathError, match="listens there already"):
            await opened(store)
        async with lodeq.open(store, block_cache_bytes=CACHE_BYTES):
            pass  # it was closed again


async def test_what_another_server_has_put_there_since_stays(root, store):
    async with opened(store):
        os.unlink(root / "jobs.sock")
        other = listen_unix(root / "jobs.sock")
    assert stat.S_ISSOCK((root / "jobs.sock").lstat().st_mode)
    other.close()


FORK = """
import os, sys, lodeq, lodeq.sync
store = sys.argv[1]
engine = lodeq.sync.open(store, serve=True)
child = os.fork()
if child == 0:
    server = engine._twin._runtime.server
    nulls = [os.readlink(f"/proc/self/fd/{fd}") for fd in server.descriptors()]
    import asyncio
    asyncio.new_event_loop().run_until_complete(server.close())  # removes nothing
    print("child", sorted(set(nulls)), os.path.exists(store + ".sock"), flush=True)
    os.read(0, 1)  # outlives its parent
    os._exit(0)
os.read(int(sys.argv[2]), 1)
os._exit(1)  # dies without closing
"""


def test_a_forked_child_serves_nothing(root, store):
    here, there = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", FORK, str(store), str(here)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[here],
    ) as process:
        line = process.stdout.readline().decode()
        assert line == "child ['/dev/null'] True\n"
        with lodeq.sync.connect(f"unix://{root}/jobs.sock"):
            pass  # the parent still serves
        os.write(there, b"x")
        assert process.wait(30) == 1
        probe = socket.socket(socket.AF_UNIX)
        with probe, pytest.raises(ConnectionRefusedError):  # although the child lives
            probe.connect(str(root / "jobs.sock"))
        assert read_note(store) is not None
        assert find_served(store) is None  # nobody holds the lock
        with lodeq.sync.open(store, serve=True), lodeq.sync.connect(f"unix://{root}/jobs.sock"):
            pass
        process.stdin.write(b"x")
    os.close(here)
    os.close(there)


# --- what is reached ----------------------------------------------------------------------------


async def test_commands_find_it_by_the_folder(root, store):
    async with opened(store) as engine:
        mail = engine.queue("mail")
        await mail.enqueue({"n": 1})
        asked = f"the store is held by process {os.getpid()}: asking unix://{root}/jobs.sock\n"
        assert (await in_thread("pause", store, "mail")).stderr == asked
        assert await mail.claim() == []
        await in_thread("resume", store, "mail")
        found = await in_thread("enqueue", store, "mail", "x")
        assert (await engine.get(found.stdout.strip())).state == "ready"
        stats = json.loads((await in_thread("stats", store, "--json")).stdout)
        assert stats["served"]
        assert "mail" in (await in_thread("ls", store)).stdout
        assert (
            "per second:"
            in (await in_thread("top", store, "--count", 2, "--interval", "50ms")).stdout
        )
        lease = await mail.claim_one()
        await lease.bury("no luck")
        assert "no luck" in (await in_thread("dead", store, "mail")).stdout
        assert str(lease.task_id) in (await in_thread("show", store, lease.task_id)).stdout
        await in_thread("redrive", store, "mail")
        await in_thread("purge", store, "mail", "--yes")
        assert (await mail.stats()).ready == 0
        assert "unix://" in (await in_thread("doctor", store)).stdout


async def test_dashboard_and_metrics_are_beside_it(root, store):
    serve = lodeq.Serve(dashboard="write")
    transport = httpx.AsyncHTTPTransport(uds=str(root / "jobs.sock"))
    async with opened(store, serve) as engine:
        await engine.queue("mail").enqueue(b"x")
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert "mail" in (await client.get("/")).text
            assert "lodeq_tasks" in (await client.get("/metrics")).text
            assert "/queues/mail/purge" in (await client.get("/queues/mail")).text


async def test_without_a_dashboard(root, store):
    transport = httpx.AsyncHTTPTransport(uds=str(root / "jobs.sock"))
    async with (
        opened(store, lodeq.Serve(dashboard="off")),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        assert (await client.get("/")).status_code == 404


def test_a_script_serves_from_its_loop_in_a_thread(root, store):
    with lodeq.sync.open(store, serve=True, block_cache_bytes=CACHE_BYTES) as engine:
        with lodeq.sync.connect(f"unix://{root}/jobs.sock") as client:
            client.queue("mail").enqueue(b"x")
        run("pause", store, "mail")
        assert engine.queue("mail").claim() == []
    assert not (root / "jobs.sock").exists()
    assert not [one for one in threading.enumerate() if one.name == "lodeq-loop"]


# --- the end ------------------------------------------------------------------------------------


async def test_requests_end_before_the_engine_does(root, store):
    """A long poll ends empty, a request that writes gets its answer, a waiter inside goes on."""
    engine = await opened(store)
    async with lodeq.connect(f"unix://{root}/jobs.sock") as client:
        answers = {}

        async def poll():  # it is answered, and then nobody is there any more
            with pytest.raises(lodeq.UnreachableError):
                await client.queue("idle").claim(wait=60)
            answers["poll"] = True

        async def write():
            with pytest.raises((lodeq.UnreachableError, lodeq.CommitUnknownError)):
                await write_on(answers.setdefault("write", []))

        async def write_on(receipts):
            while True:
                receipts.append(await client.queue("mail").enqueue(b"x"))

        async with anyio.create_task_group() as group:
            group.start_soon(poll)
            group.start_soon(write)
            await until(lambda: waiters(engine))
            await until(lambda: answers.get("write"))
            with anyio.fail_after(20):
                await engine.close()
        assert answers["poll"]
    async with lodeq.open(store, block_cache_bytes=CACHE_BYTES) as again:
        for receipt in answers["write"]:  # what was answered is there
            assert (await again.get(receipt.id)).state == "ready"


async def test_a_request_that_hangs_does_not_hold_the_close(root, store, monkeypatch, caplog):
    begun = anyio.Event()

    async def hang(self):
        begun.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(lodeq.Engine, "health", hang)
    engine = await opened(store, lodeq.Serve(grace=0.05))
    transport = httpx.AsyncHTTPTransport(uds=str(root / "jobs.sock"))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        errors = []

        async def ask():
            try:
                await client.get("/v1/health", timeout=60)
            except httpx.TransportError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await begun.wait()
            with anyio.fail_after(20):
                await engine.close()
        assert len(errors) == 1
    assert "1 requests were cut" in caplog.text
    async with lodeq.open(store, block_cache_bytes=CACHE_BYTES):
        pass


async def test_nor_does_a_server_that_never_ends(root, store, monkeypatch, caplog):
    monkeypatch.setattr(embedded, "HANG_S", 0.05)
    engine = await opened(store, lodeq.Serve(grace=0.0))
    over = anyio.Event()
    real = Server.stop
    server = view_of(engine).server._server
    monkeypatch.setattr(Server, "stop", lambda self: None)
    with anyio.fail_after(20):
        await engine.close()
    assert "does not end" in caplog.text
    async with lodeq.open(store, block_cache_bytes=CACHE_BYTES):
        pass
    real(server)
    over.set()
    await view_of(engine).server.wait()


async def test_a_server_that_fails_is_in_the_health(root, store, monkeypatch, caplog):
    async with opened(store) as engine:
        server = view_of(engine).server._server

        def fail():
            raise OSError("no luck")

        monkeypatch.setattr(server._server, "on_tick", fail, raising=True)
        await view_of(engine).server.wait()
        health = await engine.health()
        assert not health.ok
        assert "not served any more" in health.reasons[0]
        await engine.queue("mail").enqueue(b"x")
    assert "is not served any more" in caplog.text


async def test_a_cancelled_close_still_ends(root, store):
    with anyio.CancelScope() as scope:
        async with opened(store):
            scope.cancel()
    assert [one.name for one in root.iterdir()] == ["jobs"]
    assert read_note(store) is None


async def test_what_is_logged(root, store, caplog):
    caplog.set_level(logging.INFO)
    async with opened(store):
        pass
    assert f"serving '{store}' at 'unix://{root}/jobs.sock'" in caplog.text
    assert not [one for one in caplog.records if one.name.startswith("uvicorn")]


def test_it_serves_while_a_loop_of_asyncio_run_ends(root, store):
    async def main():
        engine = await opened(store)
        asyncio.get_running_loop().call_soon(engine._state.check)
        await engine.close()

    asyncio.run(main())
    assert not (root / "jobs.sock").exists()
