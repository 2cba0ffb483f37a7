"""A function that ends the event loop: its own task fails, counted, and the worker goes on."""

import asyncio
import contextvars
import gc
import signal
import sys
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from anyio.from_thread import run as run_on_loop
from anyio.to_thread import run_sync
from support_behaviour import StillClock, in_memory, settle, sound, until
from support_http import socket_path
from support_worker import processes

import lodeq
from lodeq.repository.tasks.lease import Lease
from lodeq.service.worker.run import loop_guard
from lodeq.service.worker.run.loop_guard import guarded_loop, lasting_loop
from lodeq.worker import App, ChildExitError

SOON = lodeq.Backoff("fixed", base=1)


async def leave(code: int = 2) -> None:
    sys.exit(code)


async def interrupted() -> None:
    raise KeyboardInterrupt


@asynccontextmanager
async def working(app, clock):
    async with in_memory(clock) as engine:
        async with app.use(engine), app.work() as worker:
            yield engine, worker
        await sound(engine)


async def by_gather():
    await asyncio.gather(leave(), asyncio.sleep(0))


async def by_task():
    await asyncio.create_task(leave(), name="leaves")


async def by_task_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(leave())
        await asyncio.sleep(1)


async def by_anyio():
    async with anyio.create_task_group() as group:
        group.start_soon(leave)
        await asyncio.sleep(1)


async def by_grandchild():
    await asyncio.create_task(by_gather())


async def by_wait_for():
    await asyncio.wait_for(leave(), 9)


async def by_another_context():
    await asyncio.create_task(leave(), context=contextvars.Context())


def by_thread():
    run_on_loop(leave)


def by_loop_of_thread():
    asyncio.run(leave())


async def by_late_throw():
    """It raises when it is cancelled."""

    async def late():
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            sys.exit(2)

    task = asyncio.create_task(late())
    await asyncio.sleep(0)
    task.cancel()
    await task


WAYS = [
    by_gather,
    by_task,
    by_task_group,
    by_anyio,
    by_grandchild,
    by_wait_for,
    by_another_context,
    by_thread,
    by_loop_of_thread,
    by_late_throw,
]


@pytest.mark.anyio
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_child_that_exits_fails_its_run_and_nothing_else(way, caplog):
    clock, app, seen = StillClock(), App(), []
    odd = app.task("odd", max_attempts=2, retry=SOON)(way)

    @app.task("odd")
    async def good() -> str:
        seen.append(asyncio.get_running_loop().get_task_factory())
        return "good"

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue()
        await until(lambda: worker.outcomes["failed"] == 1 and not worker.running)
        await clock.advance(1)
        await until(lambda: worker.outcomes["failed"] == 2 and not worker.running)
        task = await engine.get(receipt.id)
        assert (task.state, task.attempts) == ("dead", 2)
        assert "SystemExit: 2" in task.reason
        assert "loop_guard" not in task.reason
        after = await good.enqueue()
        assert (await engine.result(after.id, wait=60)).value == "good"
        assert (worker.finished.is_set(), worker.error) == (False, None)
    if way not in (by_loop_of_thread, by_thread):
        told = [r for r in caplog.records if getattr(r, "event", "") == "run_ends_loop"]
        assert {(r.levelname, r.function, r.task_id) for r in told} == {
            ("ERROR", way.__name__, str(receipt.id))
        }
    assert seen[0] is not None
    assert asyncio.get_running_loop().get_task_factory() is None
    assert "stop" not in vars(asyncio.get_running_loop())


@pytest.mark.anyio
async def test_a_function_may_catch_the_exit_of_its_child():
    clock, app = StillClock(), App()

    @app.task("odd")
    async def odd() -> str:
        try:
            await asyncio.create_task(leave(5))
        except ChildExitError as error:
            return f"{error}, code {error.__cause__.code}"
        return ""

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue()
        await until(lambda: worker.outcomes.total())
        value = (await engine.result(receipt.id)).value
        assert value == "a child task of 'odd' raised SystemExit: 5, code 5"


@pytest.mark.anyio
async def test_a_child_that_nobody_awaits_is_logged(caplog):
    clock, app, left = StillClock(), App(), []

    @app.task("odd")
    async def odd() -> None:
        left.append(asyncio.create_task(leave()))

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue()
        await until(lambda: worker.outcomes.total())
        assert (await engine.get(receipt.id)).state == "completed"
        await until(left[0].done)
        assert isinstance(left.pop().exception(), ChildExitError)
        assert not worker.finished.is_set()
    (told,) = [r for r in caplog.records if getattr(r, "event", "") == "run_ends_loop"]
    assert told.getMessage().endswith("a child task of it raised SystemExit: 2")


@pytest.mark.anyio
async def test_an_interrupt_of_a_child_counts_where_the_app_receives_the_signals():
    clock, app = StillClock(), App()
    app._owns_signals = True  # as ``App.run`` says, in a main thread

    @app.task("odd", max_attempts=1)
    async def odd() -> None:
        await asyncio.gather(interrupted())

    @app.batch("index", size=2, wait=0)
    async def index(items: list[str]) -> None:
        raise KeyboardInterrupt

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue()
        await until(lambda: worker.outcomes["failed"])
        assert "KeyboardInterrupt" in (await engine.get(receipt.id)).reason
        await index.enqueue("x")
        await until(lambda: worker.outcomes["failed"] == 2)
        assert not worker.finished.is_set()


@pytest.mark.anyio
async def test_drain_counts_the_exit_of_a_child():
    clock, app = StillClock(), App()

    @app.task("odd", max_attempts=1)
    async def odd() -> None:
        await asyncio.gather(leave())

    async with in_memory(clock) as engine, app.use(engine):
        await odd.enqueue()
        assert (await app.drain(errors="keep")).dead == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_on_trio_the_exit_of_a_child_comes_to_the_function(anyio_backend):
    clock, app = StillClock(), App()

    @app.task("odd", max_attempts=2, retry=SOON)
    async def odd() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(leave)
            await anyio.sleep_forever()

    async with in_memory(clock) as engine, app.use(engine), app.work() as worker:
        receipt = await odd.enqueue()
        for failed in (1, 2):
            while worker.outcomes["failed"] < failed or worker.running:
                await anyio.lowlevel.checkpoint()
            clock.jump(1)
        task = await engine.get(receipt.id)
        assert (task.state, task.attempts, worker.finished.is_set()) == ("dead", 2, False)
        assert "SystemExit: 2" in task.reason


@pytest.mark.anyio
@pytest.mark.parametrize("later", [False, True], ids=["at once", "by a callback"])
async def test_a_run_cannot_stop_the_loop(later, caplog):
    clock, app = StillClock(), App()
    loop = asyncio.get_running_loop()
    failed = []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))

    @app.task("odd", max_attempts=1)
    async def odd() -> None:
        if later:
            loop.call_soon(loop.stop)
            await settle()
        else:
            loop.stop()

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue()
        await until(lambda: worker.outcomes.total() and not worker.running)
        task = await engine.get(receipt.id)
        if later:
            assert task.state == "completed"
            assert isinstance(failed[0], lodeq.UsageError)
        else:
            assert task.state == "dead"
            assert "call worker.stop()" in task.reason
        assert not worker.finished.is_set()
    assert [r.levelname for r in caplog.records if getattr(r, "event", "") == "run_ends_loop"] == [
        "ERROR"
    ]


def test_others_stop_the_loop_as_before():
    app = App()
    app.task("odd")(by_gather)
    loop = asyncio.new_event_loop()

    async def main():
        async with in_memory() as engine, app.use(engine), app.work():
            loop.stop()
            await asyncio.sleep(1)

    task = loop.create_task(main())
    loop.run_forever()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


@pytest.mark.anyio
async def test_what_was_there_comes_back_when_the_last_worker_ends():
    loop, made = asyncio.get_running_loop(), []

    def factory(loop, coro, **options):
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **options)

    loop.set_task_factory(factory)
    try:
        with guarded_loop():
            with guarded_loop():
                assert loop.get_task_factory() is not factory
            assert loop.get_task_factory() is not factory
            await asyncio.create_task(asyncio.sleep(0), name="one")
        assert loop.get_task_factory() is factory
        assert len(made) == 1
        with guarded_loop():
            loop.set_task_factory(None)  # by somebody else
        assert loop.get_task_factory() is None
    finally:
        loop.set_task_factory(None)


@pytest.mark.anyio
async def test_an_eager_factory_is_left_alone(monkeypatch):
    """anyio knows it by its code, and has to start its tasks in another way."""
    loop = asyncio.get_running_loop()

    def eager(loop, coro, **options):
        return asyncio.Task(coro, loop=loop, **options)

    monkeypatch.setattr(loop_guard, "_EAGER", eager.__code__)
    loop.set_task_factory(eager)
    try:
        with guarded_loop():
            assert loop.get_task_factory() is eager
        assert loop.get_task_factory() is eager
    finally:
        loop.set_task_factory(None)


@pytest.mark.anyio
async def test_a_child_shows_the_names_and_frames_of_its_coroutine():
    clock, app, shown = StillClock(), App(), []

    async def child():
        await asyncio.sleep(0)
        return asyncio.current_task().get_stack()[-1].f_code.co_name

    @app.task("odd")
    async def odd() -> str:
        task = asyncio.create_task(child(), name="mine")
        coro = task.get_coro()
        shown.extend([task.get_name(), coro.__name__, asyncio.iscoroutine(coro), repr(task)])
        never = asyncio.create_task(child())  # is closed before it starts, without a warning
        never.cancel()
        return await task

    async with working(app, clock) as (engine, worker):
        receipt = await odd.enqueue()
        await until(lambda: worker.outcomes["completed"])
        assert (await engine.result(receipt.id)).value == "child"
    assert shown[:3] == ["mine", "child", True]
    assert "<locals>.child() running at" in shown[3]


def ended_by(app, start, *, loop=None):
    """Run the app on a loop of its own until it ends; what ended it, and the tasks afterwards."""
    found = []

    async def main():
        async with in_memory() as engine, app.use(engine):
            receipts = await start()
            try:
                async with app.work() as worker:
                    await worker.finished.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    found.extend([await engine.get(one.id) for one in receipts])

    try:
        anyio.run(main, backend_options={"loop_factory": loop})
    except asyncio.CancelledError:
        found.append("cancelled")
    return found


# anyio's, of a loop task that is cancelled before its first step
@pytest.mark.filterwarnings("ignore:coroutine 'Worker._run' was never awaited")
@pytest.mark.parametrize("itself", [True, False], ids=["all", "all others"])
def test_a_run_that_cancels_all_tasks_has_failed_and_the_others_have_not(itself, caplog):
    app = App()

    @app.task("odd", max_attempts=2)
    async def odd() -> None:
        others = asyncio.all_tasks() - (set() if itself else {asyncio.current_task()})
        for task in others:
            task.cancel()
        await anyio.sleep_forever()

    @app.task("odd", max_attempts=2)
    async def waits() -> None:
        await anyio.sleep_forever()

    async def start():
        return [await waits.enqueue(), await odd.enqueue(), await waits.enqueue()]

    before, culprit, after, end = ended_by(app, start)
    gc.collect()
    assert end == "cancelled"
    assert (culprit.state, culprit.attempts) == ("delayed", 1)
    assert culprit.reason == "it cancelled the tasks of its worker"
    assert [(one.state, one.attempts) for one in (before, after)] == [("ready", 0)] * 2
    (told,) = [r for r in caplog.records if getattr(r, "event", "") == "run_ends_loop"]
    assert (told.levelname, told.function) == ("CRITICAL", "odd")


@pytest.mark.filterwarnings("ignore:coroutine 'Worker._run' was never awaited")
def test_a_lease_that_is_slow_to_end_keeps_no_other_where_all_tasks_are_cancelled(monkeypatch):
    """As where one node of a cluster is silent: each try to reach it takes its time."""
    app, asked, meanwhile, release = App(), [], [], Lease.release

    @app.task("odd")
    async def odd() -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await anyio.sleep_forever()

    @app.task("odd")
    async def waits() -> None:
        await anyio.sleep_forever()

    async def release_slowly(lease, **options):
        asked.append(lease)
        await settle()
        meanwhile.append(len(asked))
        await release(lease, **options)

    async def start():
        return [await odd.enqueue(), await waits.enqueue(), await waits.enqueue()]

    monkeypatch.setattr(Lease, "release", release_slowly)
    ended_by(app, start)
    gc.collect()
    assert meanwhile == [2, 2]


@pytest.mark.anyio
async def test_a_run_that_stops_its_worker_is_released(caplog):
    """As by a signal: to stop a worker is no failure of whoever asks for it."""
    clock, app, workers = StillClock(), App(grace=0), []

    @app.task("odd")
    async def odd() -> None:
        workers[0].stop()
        await anyio.sleep_forever()

    async with in_memory(clock) as engine, app.use(engine):
        async with app.work() as worker:
            workers.append(worker)
            receipt = await odd.enqueue()
            await worker.finished.wait()
        task = await engine.get(receipt.id)
        assert (task.state, task.attempts) == ("ready", 0)
    assert not [r for r in caplog.records if getattr(r, "event", "") == "run_ends_loop"]


@pytest.mark.parametrize("is_over", [False, True], ids=["while it runs", "after its end"])
def test_a_callback_that_exits_fails_its_run_on_a_loop_of_ours(is_over, caplog):
    app = App()
    app._owns_signals = True

    @app.task("odd", max_attempts=1)
    async def odd() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0, loop.call_soon, sys.exit, 3)
        if not is_over:
            await anyio.sleep_forever()

    seen = []

    async def main():
        async with in_memory() as engine, app.use(engine), app.work() as worker:
            receipt = await odd.enqueue()
            await until(lambda: worker.outcomes.total() and not worker.running)
            await until(lambda: [r for r in caplog.records if r.levelname == "CRITICAL"])
            seen.append(await engine.get(receipt.id))
            assert not worker.finished.is_set()

    anyio.run(main, backend_options={"loop_factory": lasting_loop})
    (told,) = [r for r in caplog.records if r.levelname == "CRITICAL"]
    assert (told.event, told.function, told.exc_info[0]) == ("run_ends_loop", "odd", SystemExit)
    assert seen[0].state == ("completed" if is_over else "dead")
    if not is_over:
        assert seen[0].reason.startswith("a callback of it raised SystemExit: 3")


@pytest.mark.parametrize("whose", ["main", "callback"])
def test_an_exit_that_no_run_is_behind_ends_a_loop_of_ours(whose):
    async def main():
        if whose == "callback":
            asyncio.get_running_loop().call_soon(sys.exit, 7)
            await asyncio.sleep(1)
        await leave(7)

    with pytest.raises(SystemExit) as caught:
        anyio.run(main, backend_options={"loop_factory": lasting_loop})
    assert caught.value.code == 7


WAYS_OF_A_PROCESS = {
    "gathers": ({"argv": ["--n=x"]}, 0, "a child task of it raised SystemExit: 2"),
    "calls_back": ({}, 0, "a callback of it raised SystemExit: 3"),
    "stops": ({}, 0, "it calls loop.stop(), which is refused"),
    "cancels": ({}, 2, "it cancels the tasks of its worker"),
    "cancels_others": ({}, 2, "it cancels the tasks of its worker"),
}
TWICE = {"max_attempts": 2, "backoff": lodeq.Backoff("fixed", base=0.001)}


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.parametrize("form", ["embedded", "served"])
@pytest.mark.parametrize("name", WAYS_OF_A_PROCESS)
async def test_a_task_that_ends_the_loop_dies_with_its_last_attempt(tmp_path, form, name):
    """Workers start one after another, as under a supervisor, until one outlives the task."""
    payload, deaths, told = WAYS_OF_A_PROCESS[name]
    with socket_path() as path:
        url = f"unix://{path}"
        store = url if form == "served" else str(tmp_path / "store")
        opened = partial(lodeq.connect, url) if form == "served" else partial(lodeq.open, store)
        with processes(tmp_path, store) as crew:
            if form == "served":
                server = crew.start("server", "serve", tmp_path / "store", "--uds", path)
                assert "serving" in await run_sync(server.line)
            async with opened() as engine:
                queue = engine.queue("work", **TWICE)
                bad = await queue.enqueue(payload, headers={"lodeq.task": name})
                watched, headers = {"of": str(bad.id)}, {"lodeq.task": "watches"}
                behind = await engine.queue("watch").enqueue(watched, headers=headers)
            for n in range(deaths):
                worker = crew.start(f"w{n}", "worker", "poison_app:app")
                assert await run_sync(worker.wait) != 0
                assert told in worker.log
                async with opened() as engine:
                    assert (await engine.get(bad.id)).attempts == n + 1
            worker = crew.start("last", "worker", "poison_app:app")
            assert await run_sync(worker.line) == "dead"
            worker.signal(signal.SIGTERM)
            assert await run_sync(worker.wait) == 0
            assert deaths or told in worker.log
            async with opened() as engine:
                task = await engine.get(bad.id)
                assert (task.state, task.attempts) == ("dead", 2)
                end = await engine.result(behind.id)
                # A claim of a dying worker that waits at a served store may take it once more.
                assert (end.status, end.attempts <= 1 + (form == "served")) == ("completed", True)
                assert (await engine.stats()).leased == 0
