"""Signals of processes that task functions fork: they end the child, never the worker."""

import functools
import multiprocessing
import os
import select
import signal
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor

import anyio
import anyio.lowlevel
import pytest

import lodeq.testing
from lodeq.service.shared import child_signals
from lodeq.worker import App

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
FORK = multiprocessing.get_context("fork")


def child_that_waits() -> tuple[int, int]:
    """Fork a child that exits with 7 once the returned descriptor is closed."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        os.read(told, 1)
        os._exit(7)
    os.close(told)
    return pid, tell


def fate_of_a_child(number: int) -> int:
    """Send a forked child a signal, then let it end by itself if it still lives."""
    pid, tell = child_that_waits()
    os.kill(pid, number)
    os.close(tell)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fails(_: int) -> None:
    raise ValueError("row 0")


def nothing() -> None: ...


LEAVES = [("returns", 0), ("raises", 1), ("exits", 3)]


def app_with_children() -> App:
    app = App()

    @app.task("t", name="thread", max_attempts=1)
    def in_thread() -> int:
        return fate_of_a_child(signal.SIGTERM)

    @app.task("t", name="loop", max_attempts=1)
    async def on_loop() -> int:
        return fate_of_a_child(signal.SIGTERM)

    @app.task("t", name="process", max_attempts=1)
    def process() -> int | None:
        child = FORK.Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join()
        return child.exitcode

    @app.task("t", name="pool", max_attempts=1)
    def pool() -> None:
        with FORK.Pool(2) as workers:  # left by an error: its processes are terminated
            workers.map(fails, [0])

    return app


async def work_until_told(app: App, use) -> list[str]:
    """Run the app as its own main program; return the signals that it has received."""
    ended = []
    with warnings.catch_warnings(record=True):
        async with lodeq.testing.open() as engine, app.use(engine):

            async def main() -> None:
                await app.run(grace=30)
                ended.append("worker")

            async with anyio.create_task_group() as group:
                group.start_soon(main)
                await use(engine)
                ended.append("use")
                os.kill(os.getpid(), signal.SIGTERM)
    return ended


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("name", ["thread", "loop"])
def test_a_signal_of_a_child_ends_the_child_and_not_the_worker(name, backend):
    app = app_with_children()

    async def use(engine):
        receipt = await app.function("t", name).enqueue()
        result = await engine.result(receipt.id, wait=60)
        assert (result.status, result.value) == ("completed", -signal.SIGTERM)
        after = await app.function("t", name).enqueue()  # the worker goes on
        assert (await engine.result(after.id, wait=60)).status == "completed"

    assert anyio.run(work_until_told, app, use, backend=backend) == ["use", "worker"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "status", "value"),
    [("process", "completed", -signal.SIGTERM), ("pool", "dead", None)],
)
def test_the_processes_of_a_library_end_when_they_are_told_to(name, status, value):
    app = app_with_children()

    async def use(engine):
        receipt = await app.function("t", name).enqueue()
        result = await engine.result(receipt.id, wait=60)
        assert result is None or (result.status, result.value) == (status, value)
        assert (await engine.get(receipt.id)).state == status
        after = await app.function("t", "loop").enqueue()  # the worker goes on
        assert (await engine.result(after.id, wait=60)).status == "completed"

    assert anyio.run(work_until_told, app, use) == ["use", "worker"]


def test_a_signal_to_the_whole_group_counts_once():
    """As systemd sends it, and a terminal: to the worker and to each process it has forked."""
    app, hall = App(), anyio.Event()
    caught = []

    @app.task("t", max_attempts=1)
    async def crunch() -> str:
        assert [fate_of_a_child(signal.SIGTERM) for _ in range(2)] == [-signal.SIGTERM] * 2
        os.kill(os.getpid(), signal.SIGTERM)
        await hall.wait()
        return "done"

    async def use():
        async with lodeq.testing.open() as engine, app.use(engine):
            receipt = await crunch.enqueue()
            async with anyio.create_task_group() as group:
                group.start_soon(functools.partial(app.run, grace=30))
                with pytest.MonkeyPatch.context() as patch:
                    stop = lodeq.service.worker.worker.Worker.stop

                    def noted(worker):
                        caught.append(worker.name)
                        stop(worker)
                        hall.set()

                    patch.setattr(lodeq.service.worker.worker.Worker, "stop", noted)
                    await hall.wait()
                    await anyio.wait_all_tasks_blocked()
            assert (await engine.result(receipt.id)).value == "done"

    anyio.run(use)
    assert len(caught) == 2  # the signal, and the end of the block in ``App.run``


def test_what_is_received_is_undone_in_a_child_alone():
    """Handlers and the wake-up descriptor, and nothing once nobody receives signals any more."""
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert fate_of_a_child(signal.SIGTERM) == 7
        with child_signals.leave_children_theirs(signal.SIGTERM):
            assert fate_of_a_child(signal.SIGTERM) == -signal.SIGTERM
            assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert fate_of_a_child(signal.SIGTERM) == 7
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_a_pool_that_is_kept_survives_what_ends_its_users():
    """The executor of a module: it works on after a child was terminated elsewhere."""
    app = app_with_children()

    async def use(engine):
        with ProcessPoolExecutor(1, mp_context=FORK) as kept:
            kept.submit(nothing).result()
            receipt = await app.function("t", "process").enqueue()
            await engine.result(receipt.id, wait=60)
            kept.submit(nothing).result()

    assert anyio.run(work_until_told, app, use) == ["use", "worker"]


async def comes_back(how: str) -> str:
    if how == "awaits":
        await anyio.lowlevel.checkpoint()
    return leaves(how)


def leaves(how: str) -> str:
    if how == "exits":
        sys.exit(3)
    if how == "raises":
        raise ValueError("in the child")
    return "child"


def status_of(pid: int, held: int) -> int:
    """How a child has ended, which has the other end of that pipe; 9 if it goes on."""
    if not select.select([held], [], [], 20)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(held)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("form", "how", "status"),
    [
        *((form, *one) for form in ("loop", "thread") for one in LEAVES),
        ("loop", "awaits", 1),
    ],
)
def test_a_forked_child_ends_where_its_function_does(form, how, status, backend):
    if (how, backend) == ("awaits", "trio"):
        pytest.skip("trio has no hook for it")
    app = App()

    @app.task("t", name="loop", max_attempts=1)
    async def on_loop() -> int | str:
        held, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            return await comes_back(how)
        os.close(end)
        return status_of(pid, held)

    @app.task("t", name="thread", max_attempts=1)
    def in_thread() -> int | str:
        held, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            return leaves(how)
        os.close(end)
        return status_of(pid, held)

    async def use(engine):
        result = await (await app.function("t", form).enqueue()).result(wait=60)
        assert (result.status, result.value) == ("completed", status)

    assert anyio.run(work_until_told, app, use, backend=backend) == ["use", "worker"]
