"""``uvicorn --workers``: several processes of one service, one of which owns the store."""

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice

import pytest
from support_http import socket_path

import lodeq
import lodeq.sync
from lodeq.engine.files.served_note import find_served

pytestmark = [pytest.mark.crash, pytest.mark.slow]
WORKERS = 3
TRIES = 500
AT_ONCE = 8  # requests: each is answered by some process

SERVICE = """
import os
from contextlib import asynccontextmanager

from lodeq.worker import App
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

jobs = App(os.environ["STORE"], serve=True, join=True, block_cache_bytes=8 << 20)

@jobs.task("mail")
async def send(n: int): ...

async def who(request):
    sum(range(500_000))  # so long that another process takes the next request
    return JSONResponse({"pid": os.getpid(), "kind": type(jobs.engine).__name__})

async def enqueue(request):
    try:
        receipt = await send.enqueue(int(request.query_params["n"]))
    except Exception as error:
        return JSONResponse({"error": repr(error)}, status_code=503)
    return JSONResponse({"id": str(receipt.id)})

@asynccontextmanager
async def lifespan(app):
    async with jobs:
        yield

web = Starlette(routes=[Route("/who", who), Route("/enqueue", enqueue)], lifespan=lifespan)
"""


class Service:
    """The service behind its socket; every request is a connection of its own."""

    def __init__(self, process, path):
        self.process = process
        self._path = path

    def get(self, path):
        """The answer's document; None where the process that took the request has died."""
        asked = f"GET {path} HTTP/1.1\r\nHost: service\r\nConnection: close\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            try:
                connection.connect(self._path)
                connection.sendall(asked.encode())
                answer = b"".join(iter(lambda: connection.recv(65_536), b""))
            except OSError:
                answer = b""
        assert self.process.poll() is None, "the service has ended"
        head, _, body = answer.partition(b"\r\n\r\n")
        return json.loads(body) if head.startswith(b"HTTP/1.1 200 ") else None

    def kinds(self, is_enough):
        """Kind of engine by process, of those that answered last, once it is enough."""
        found = {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in range(TRIES):
                for one in pool.map(self.get, ["/who"] * AT_ONCE):
                    if one is not None:
                        found[one["pid"]] = one["kind"]
                if is_enough(found):
                    return found
        raise AssertionError(found)


@contextmanager
def started(folder):
    (folder / "prefork_service.py").write_text(SERVICE)
    with socket_path() as store, socket_path() as path:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "uvicorn", "prefork_service:web", "--uds", str(path)),
                *("--workers", str(WORKERS), "--no-access-log", "--app-dir", str(folder)),
            ],
            env={"STORE": str(store), "PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            lines = (line for line in process.stderr if "startup complete" in line)
            assert len(list(islice(lines, WORKERS))) == WORKERS, "the service has ended"
            yield Service(process, str(path)), store
        finally:
            process.terminate()
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()
                process.stderr.close()


def owner_of(store):
    note = find_served(store)
    return None if note is None else note.pid


def test_one_process_owns_the_store_and_another_takes_its_place(tmp_path):
    with started(tmp_path) as (service, store):
        kinds = service.kinds(lambda found: len(found) == WORKERS)
        assert sorted(kinds.values()) == ["Engine", "RemoteEngine", "RemoteEngine"]
        (owner,) = [pid for pid, kind in kinds.items() if kind == "Engine"]
        assert find_served(store).pid == owner
        acknowledged = [one["id"] for n in range(20) if (one := service.get(f"/enqueue?n={n}"))]
        assert len(acknowledged) == 20

        os.kill(owner, signal.SIGKILL)
        service.kinds(lambda found: owner_of(store) not in (None, owner))  # it serves from there
        for n in range(20):
            for _ in range(TRIES):
                if (one := service.get(f"/enqueue?n={n}")) is not None:
                    acknowledged.append(one["id"])
                    break
        assert len(acknowledged) == 40
        service.process.terminate()
        assert service.process.wait(60) == 0
        with lodeq.sync.open(store, block_cache_bytes=8 << 20) as engine:
            assert engine.verify().ok
            for task_id in acknowledged:
                assert engine.get(task_id).state == "ready"
