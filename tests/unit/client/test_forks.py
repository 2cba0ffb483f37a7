"""Clients in a forked child.

A blocking one and its parent go on, each on a connection of its own. An async one is its parent's.
"""

import subprocess
import sys

import pytest
from support_http import socket_path
from support_worker import processes

SENDS = """
import os, sys
import lodeq
engine = lodeq.sync.connect(sys.argv[1])
mail = engine.queue("mail")
mail.enqueue("before")
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
for _ in range(2):
    mail.enqueue("parent" if child else "child")
if not child:
    os._exit(0)
print(*sorted(task.payload for task in mail.peek(limit=9)))
"""

CLAIMS = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import lodeq
engine, other = lodeq.sync.connect(sys.argv[1]), lodeq.sync.connect(sys.argv[1])
mail = engine.queue("mail")
with ThreadPoolExecutor(1) as threads:
    claiming = threads.submit(mail.claim, wait=60)
    while not engine._claims._ids:
        pass
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.read(reader, 1)
        engine.close()
        os._exit(0)
    other.queue("mail").enqueue("x")
    (lease,) = claiming.result()
    os.write(writer, b"x")
    assert os.waitpid(child, 0)[1] == 0
    lease.heartbeat()
    lease.complete()
print("held")
"""

# The parent waits for its child within the block of the first of three leases that it holds.
STREAMS = """
import os, sys
import lodeq

def leave(stream):
    sys.exit(0)

def fail(stream):
    raise ValueError("in the child")

def go_on(stream):
    mail.enqueue("child")

engine, other = lodeq.sync.connect(sys.argv[1]), lodeq.sync.connect(sys.argv[1])
mail, seen = engine.queue("mail"), []
mail.enqueue_many([lodeq.NewTask(n) for n in range(3)])
stream = mail.leases(wait=0.001)
child = None
try:
    with stream:
        for lease in stream:
            if child == 0:
                lease.cancel()
                seen += [] if lease.payload == "child" else [lease]
                break
            with lease:
                if child is None:
                    child = os.fork()
                    if not child:
                        globals()[sys.argv[2]](stream)
                    if child:
                        assert os.waitpid(child, 0)[1] == 0
                if not child:
                    continue
                lease.heartbeat()
                taken = other.queue("mail").claim(limit=9)
                assert not taken, taken
                seen.append((lease.payload, lease.attempt))
            if len(seen) == 3:
                break
finally:
    if child == 0:
        os._exit(1 if seen else 0)
print(*(n for n, attempt in sorted(seen) if attempt == 1), engine.stats().completed_total)
"""


ASYNC = """
import os, sys
import anyio
import lodeq

async def calls(engine):
    for call in (lambda: engine.queue("mail").enqueue("child"), engine.health):
        try:
            await call()
        except lodeq.ClosedError as error:
            assert "connect anew" in str(error)
        else:
            raise AssertionError("it was sent")

async def closes(engine):
    await engine.close()

async def blocks(engine):
    engine.sync.queue("other").enqueue("child")

async def goes_on(engine):
    for _ in range(1000):  # its copy of the loop would read what the parent waits for
        try:
            await anyio.sleep(0)
        except BaseException:
            return

async def main():
    async with lodeq.connect(sys.argv[1]) as engine, lodeq.connect(sys.argv[1]) as other:
        mail, leases = engine.queue("mail"), []
        await mail.enqueue("before")
        await (await mail.claim())[0].complete()

        async def claim():
            leases.extend(await mail.claim(wait=60))

        async with anyio.create_task_group() as group:
            group.start_soon(claim)
            while not engine._claims._ids:
                await anyio.sleep(0)
            child = os.fork()
            if not child:
                code = 1
                try:
                    await globals()[sys.argv[3]](engine)
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            await other.queue("mail").enqueue("x")
        await leases[0].heartbeat()
        await leases[0].complete()
    print("held")

anyio.run(main, backend=sys.argv[2])
"""

# Its loop is closed, with a call on it that has no answer.
OF_NO_LOOP = """
import asyncio, os, sys
import lodeq

async def main():
    engine = await lodeq.connect(sys.argv[1])
    claiming = asyncio.ensure_future(engine.queue("mail").claim(wait=60))
    while not engine._claims._ids:
        await asyncio.sleep(0)
    return engine, claiming

loop = asyncio.new_event_loop()
kept = loop.run_until_complete(main())
loop.close()
child = os.fork()
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("held")
sys.stdout.flush()
os._exit(0)
"""

FAILS = """
import os
from lodeq.client.transport.forks import watch_forks

class Client:
    has_let_go = False

    def forked(self):
        self.has_let_go = True
        raise RuntimeError("it cannot")

clients = [Client(), Client()]
for one in clients:
    watch_forks(one)
child = os.fork()
if not child:
    os._exit(0 if all(one.has_let_go for one in clients) else 1)
assert os.waitpid(child, 0)[1] == 0
print("let go")
"""


@pytest.mark.parametrize(
    ("script", "told"),
    [(SENDS, "before child child parent parent"), (CLAIMS, "held")],
    ids=["both send", "the child closes it while the parent claims"],
)
def test_a_client_goes_on_in_a_forked_child_and_in_its_parent(tmp_path, script, told):
    assert outcome(tmp_path, script) == told


@pytest.mark.parametrize("child", ["leave", "fail", "go_on"])
def test_leases_of_a_stream_are_its_parents_however_a_forked_child_leaves_it(tmp_path, child):
    assert outcome(tmp_path, STREAMS, child) == "0 1 2 3"


@pytest.mark.parametrize("child", ["calls", "closes", "blocks", "goes_on"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_async_client_is_its_parents_whatever_a_forked_child_does(tmp_path, backend, child):
    assert outcome(tmp_path, ASYNC, backend, child) == "held"


def test_the_client_of_a_cluster_is_its_parents(tmp_path):
    assert outcome(tmp_path, ASYNC, "asyncio", "calls", scheme="lodeq://") == "held"


def test_a_client_whose_loop_is_closed_lets_a_child_begin_in_silence(tmp_path):
    assert ran(tmp_path, OF_NO_LOOP).stderr == ""


def test_one_that_cannot_let_go_keeps_no_other_from_it(tmp_path):
    assert outcome(tmp_path, FAILS) == "let go"


def outcome(tmp_path, script, *arguments, scheme=""):
    """Run a script that has a server, and return what it prints; it ends well."""
    return ran(tmp_path, script, *arguments, scheme=scheme).stdout.strip()


def ran(tmp_path, script, *arguments, scheme=""):
    """A script that has a server, and has ended well."""
    with socket_path() as path, processes(tmp_path, f"unix://{path}") as crew:
        server = crew.start("server", "serve", tmp_path / "store", "--uds", path)
        assert "serving" in server.line()
        done = subprocess.run(
            [sys.executable, "-c", script, f"{scheme}{crew.store}", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done
