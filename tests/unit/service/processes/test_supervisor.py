"""The supervisor over processes that only play their part."""

import json
import os
import signal
import sys
from dataclasses import replace

import anyio
import pytest

import lodeq
from lodeq import RecoveryRefusedError, StorageError
from lodeq.client.documents.problems import problem_of
from lodeq.service.processes.plan import Order
from lodeq.service.processes.prepare import prepare
from lodeq.service.processes.supervisor import Supervisor

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CHILD = """
import json, os, sys
order = json.loads(sys.stdin.buffer.readline() or "{}")
part = order.get("path")
if part == "refuses":
    os.write(1, (order["checkpoints"] + "\\n").encode())
    sys.exit(2)
if part == "dies":
    sys.exit(3)
if part == "chatters":
    print("hello", flush=True)
    sys.exit(0)
if part == "dies later" and not os.path.exists(order["checkpoints"]):
    open(order["checkpoints"], "w").close()
    print('{"serving": ""}', flush=True)
    os.kill(os.getpid(), 9)
print('{"serving": ""}', flush=True)
sys.stdin.buffer.read()
"""
STUBBORN = """
import signal
print('{"serving": ""}', flush=True)
while True:
    signal.pause()
"""
COMMAND = (sys.executable, "-S", "-c", CHILD)
# One of ours, whose first life has a shard that a write poisons, for the reason that it is given.
POISONED = """
import asyncio, os, sys
from lodeq.errors import CommitUnknownError
from lodeq.service.processes import child
mark, reason = sys.argv[1:]
looked = child.view_of
def look(engine):
    if not os.path.exists(mark):
        open(mark, "w").close()
        fail = engine._state.hosted[0].coalescer.fail
        asyncio.get_running_loop().call_soon(fail, CommitUnknownError(reason))
    return looked(engine)
child.view_of = look
raise SystemExit(child.main())
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def orders(*parts: str, given: str | None = None) -> list[Order]:
    urls = tuple(f"unix:///s.{n}" for n in range(len(parts)))
    return [
        Order(
            path=part,
            number=n,
            shards=4,
            durability="nosync",
            listen=urls[n],
            urls=urls,
            front="unix:///s",
            block_cache_bytes=1,
            grace_s=5.0,
            checkpoints=given,
        )
        for n, part in enumerate(parts)
    ]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - nothing tells it
            await anyio.sleep(0.01)


async def test_processes_serve_until_their_pipe_ends():
    supervisor = Supervisor(orders("serves", "serves"), COMMAND)
    await supervisor.start()
    found = supervisor.statuses()
    assert [(one.state, one.problem, list(one.shards)) for one in found] == [
        ("serving", None, [0, 2]),
        ("serving", None, [1, 3]),
    ]
    await supervisor.close()
    assert supervisor.is_clean
    assert not any(alive(one.pid) for one in found)
    assert [one.state for one in supervisor.statuses()] == ["stopped", "stopped"]


async def test_one_that_dies_is_started_again():
    supervisor = Supervisor(orders("serves", "serves"), COMMAND)
    await supervisor.start()
    first, other = supervisor.statuses()
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: supervisor.statuses()[0].restarts == 1)
    await until(lambda: supervisor.statuses()[0].state == "serving")
    assert supervisor.statuses()[0].pid != first.pid
    assert supervisor.statuses()[1] == other
    await supervisor.close()
    assert supervisor.is_clean  # the last one has closed its shards


async def test_one_that_dies_as_it_serves_is_started_again(tmp_path):
    supervisor = Supervisor(orders("dies later", given=str(tmp_path / "mark")), COMMAND)
    await supervisor.start()
    await until(lambda: supervisor.statuses()[0].restarts == 1)
    await until(lambda: supervisor.statuses()[0].state == "serving")
    await supervisor.close()


async def reasons(order: Order) -> tuple[str, ...]:
    async with lodeq.connect(order.listen) as engine:
        return (await engine.health()).reasons


@pytest.fixture
def one(tmp_path):
    """The order of the only process of a store."""
    held = prepare(str(tmp_path / "s"), 1, shards=2, durability="nosync")
    yield replace(
        orders("")[0],
        path=held.root,
        shards=2,
        listen=f"unix://{tmp_path}/o",
        urls=(f"unix://{tmp_path}/o",),
        block_cache_bytes=8 << 20,
    )
    held.lock.release()


async def test_a_poisoned_shard_is_reopened_by_another_process(one, tmp_path):
    command = (sys.executable, "-P", "-c", POISONED, str(tmp_path / "mark"), "IO error: full")
    supervisor = Supervisor([one], command)
    await supervisor.start()
    (first,) = supervisor.statuses()
    await until(lambda: supervisor.statuses()[0].restarts == 1)
    await until(lambda: supervisor.statuses()[0].state == "serving")
    assert not alive(first.pid)
    assert await reasons(one) == ()
    await supervisor.close()
    assert supervisor.is_clean


async def test_a_damaged_table_is_not_reopened_again_and_again(one, tmp_path):
    command = (sys.executable, "-P", "-c", POISONED, str(tmp_path / "mark"), "Corruption: block")
    supervisor = Supervisor([one], command)
    await supervisor.start()
    (reason,) = await reasons(one)
    assert "shard 0 is poisoned" in reason
    assert supervisor.statuses()[0].restarts == 0
    await supervisor.close()


async def test_what_a_process_refuses_at_the_start_ends_all():
    said = json.dumps({"refused": problem_of(RecoveryRefusedError("shard 1 is bad"))})
    supervisor = Supervisor(orders("serves", "refuses", given=said), COMMAND)
    with pytest.raises(RecoveryRefusedError, match="shard 1 is bad"):
        await supervisor.start()
    assert [one.state for one in supervisor.statuses()] == ["stopped", "stopped"]


async def test_one_that_ends_without_a_word_is_an_error_at_the_start():
    supervisor = Supervisor(orders("serves", "dies"), COMMAND)
    with pytest.raises(StorageError, match="process 1 ended with exit code 3 before it served"):
        await supervisor.start()
    assert "ended with exit code 3" in supervisor.statuses()[1].why


async def test_one_that_says_something_else_is_an_error_at_the_start():
    supervisor = Supervisor(orders("chatters"), COMMAND)
    with pytest.raises(StorageError, match="process 0 ended with exit code 0 before it served"):
        await supervisor.start()


async def test_one_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr("lodeq.service.processes.supervisor.HANG_S", -4.9)
    stubborn = (sys.executable, "-S", "-c", STUBBORN)
    supervisor = Supervisor(orders("stays"), stubborn)
    await supervisor.start()
    (found,) = supervisor.statuses()
    await supervisor.close()
    assert not alive(found.pid)
    assert not supervisor.is_clean


class Hanging:
    """A process that does not end by itself."""

    stdin = stdout = returncode = None
    pid = 0

    def __init__(self):
        self.is_awaited = False
        self.killed = anyio.Event()

    async def wait(self) -> int:
        self.is_awaited = True
        await self.killed.wait()
        return -9

    def kill(self) -> None:
        self.killed.set()


async def test_the_time_of_all_that_hang_runs_at_once():
    """Each would have half a minute behind the one before, and systemd kills who takes 90 s."""
    supervisor = Supervisor(orders("hangs", "hangs", "hangs"), COMMAND)
    hanging = [Hanging() for _ in supervisor._processes]
    for process, one in zip(supervisor._processes, hanging, strict=True):
        process.running = one
        process.is_clean = False
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.close)
        await anyio.wait_all_tasks_blocked()
        assert [one.is_awaited for one in hanging] == [True, True, True]
        for one in hanging:
            one.kill()
    assert not supervisor.is_clean
