"""What happens on deploy: signals, kills and freezes of real worker processes."""

import itertools
import signal
from contextlib import closing

import anyio
import pytest
from anyio.to_thread import run_sync
from support_http import socket_path
from support_worker import processes

import lodeq
from lodeq import NewTask

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STEPS = {"CLAIMED": 1, "COMPLETED": -1, "NACKED": -1, "RELEASED": -1}
HELD = {"lodeq.task": "hold"}


@pytest.fixture
async def served(tmp_path):
    """A served store, a client of it, and what starts workers."""
    with socket_path() as path, processes(tmp_path, f"unix://{path}") as crew:
        server = crew.start("server", "serve", tmp_path / "store", "--uds", path)
        assert "serving" in await run_sync(server.line)
        async with lodeq.connect(crew.store) as engine:
            yield engine, crew
        server.signal(signal.SIGTERM)
        assert await run_sync(server.wait) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_burns_no_attempt_embedded(tmp_path, number):
    store = tmp_path / "store"
    async with lodeq.open(store) as engine:
        receipt = await engine.queue("hold").enqueue({"name": "a"}, headers=HELD)
    with processes(tmp_path, str(store)) as crew:
        worker = crew.worker("w", "--grace", "0")
        assert await run_sync(worker.line) == "hold 1"
        worker.signal(number)
        assert await run_sync(worker.wait) == 0
        assert "Traceback" not in worker.log
    async with lodeq.open(store) as engine:
        task = await engine.get(receipt.id)
        assert (task.state, task.attempts) == ("ready", 0)
        assert (await engine.verify()).ok


async def test_a_thread_that_does_not_end_is_left_behind(tmp_path):
    store = tmp_path / "store"
    async with lodeq.open(store) as engine:
        receipt = await engine.queue("stuck").enqueue({})
    with processes(tmp_path, str(store)) as crew:
        worker = crew.worker("w", "--grace", "0")
        assert await run_sync(worker.line) == "stuck 1"
        worker.signal(signal.SIGTERM)
        assert await run_sync(worker.wait) == 1
    async with lodeq.open(store) as engine:
        task = await engine.get(receipt.id)
        assert (task.state, task.attempts) == ("ready", 0)


@pytest.mark.parametrize("what", ["executor", "generator", "task", "thread"])
async def test_what_an_ended_run_has_left_does_not_keep_the_process(tmp_path, what):
    store = tmp_path / "store"
    async with lodeq.open(store) as engine:
        receipt = await engine.queue("leaving").enqueue({"what": what})
    with processes(tmp_path, str(store)) as crew:
        worker = crew.worker("w")
        assert await run_sync(worker.line) == "leave 1"
        worker.signal(signal.SIGTERM)
        assert await run_sync(worker.wait) == 1
        assert "a task function has left something that goes on" in worker.log
        assert "Traceback" not in worker.log
    async with lodeq.open(store) as engine:
        assert (await engine.get(receipt.id)).state == "completed"


async def test_a_rate_holds_over_two_processes(served):
    """And so does a concurrency: both are counted in the store."""
    engine, crew = served
    for name in ("one", "two"):
        crew.worker(name)
    here: set[str] = set()
    with anyio.fail_after(60):
        while len(here) < 2:  # both work
            tasks = [NewTask({"n": n}) for n in range(16)]
            for one in await engine.queue("work").enqueue_many(tasks):
                here.add((await engine.result(one.id, wait=60)).worker)
    found = await engine.settings("paced")
    assert (found.rate, found.concurrency) == ("10/s", 4)
    assert found.by == {"rate": "function paced", "concurrency": "function paced"}
    tasks = [NewTask({"n": n}) for n in range(25)]
    receipts = await engine.queue("paced").enqueue_many(tasks)
    results = [await engine.result(one.id, wait=60) for one in receipts]
    assert {result.status for result in results} == {"completed"}
    starts = sorted(result.leased_at for result in results)
    spans = [last - first for first, last in zip(starts, starts[10:], strict=False)]
    # By the wall clock; windows are by the monotonic one.
    assert min(spans).total_seconds() > 0.99, spans


def starts_and_ends(store, queue):
    """Starts and ends in a queue by the lifecycle journal: (seconds, +1 or -1, id), in order."""
    with closing(lodeq.lifecycle.open_tailer(store, "tasks", name="test")) as tailer:
        reader, events = lodeq.lifecycle.Reader(), []
        while records := tailer.read_now(1000):
            events += [event for record in records for event in reader.read(record)]
    return sorted(
        (event.time_us / 1e6, STEPS[event.kind.name], bytes(event.task_id))
        for event in events
        if event.queue == queue and event.kind.name in STEPS
    )


@pytest.mark.parametrize("number", [1, 2, 4])
async def test_limits_hold_while_one_of_several_processes_is_killed(tmp_path, number):
    """Checked on the store's own record: every window of it, and every moment."""
    store = tmp_path / "store"
    with socket_path() as path, processes(tmp_path, f"unix://{path}") as crew:
        server = crew.start("server", "serve", store, "--uds", path, "--journal", "tasks")
        assert "serving" in await run_sync(server.line)
        async with lodeq.connect(crew.store) as engine:
            workers = [crew.worker(f"w{i}") for i in range(number)]
            tasks = [
                NewTask({"n": n}, max_attempts=50, labels={"customer": str(n % 3)})
                for n in range(100)
            ]
            receipts = await engine.queue("limited").enqueue_many(tasks)
            for _ in range(10):
                assert (await run_sync(workers[0].line)).startswith("limited")
            workers[0].signal(signal.SIGKILL)
            await run_sync(workers[0].wait)
            crew.worker("heir")
            results = [await engine.result(one.id, wait=60) for one in receipts]
            assert {result.status for result in results} == {"completed"}
            assert (await engine.stats()).dead_total == 0
            assert not (await engine.stats()).leased  # nothing has leaked
        server.signal(signal.SIGTERM)
        assert await run_sync(server.wait) == 0
    steps = starts_and_ends(store, "limited")
    starts = [at for at, step, _ in steps if step == 1]
    assert len(starts) >= 100
    spans = [last - first for first, last in zip(starts, starts[20:], strict=False)]
    assert min(spans) > 0.99, min(spans)  # by the wall clock; windows are by the monotonic one
    assert max(itertools.accumulate(step for _, step, _ in steps)) <= 4
    assert sum(step for _, step, _ in steps) == 0
    customers = {bytes(receipt.id): n % 3 for n, receipt in enumerate(receipts)}
    for customer in range(3):
        of_it = [step for _, step, id in steps if customers[id] == customer]
        assert max(itertools.accumulate(of_it)) == 1, customer


class Load:
    """A hundred tasks at a time, all of which have to complete before the next."""

    def __init__(self, engine) -> None:
        self._engine = engine
        self._round = anyio.Event()
        self.attempts: list[int] = []

    async def run(self) -> None:
        queue = self._engine.queue("work")
        while True:
            first = len(self.attempts)
            receipts = await queue.enqueue_many([NewTask({"n": first + i}) for i in range(100)])
            for i, receipt in enumerate(receipts):
                result = await self._engine.result(receipt.id, wait=60)
                assert (result.status, result.value) == ("completed", first + i)
                self.attempts.append(result.attempts)
            self._round.set()

    async def rounds(self, n: int) -> None:
        for _ in range(n):
            self._round = anyio.Event()
            await self._round.wait()


async def watch(worker, told) -> None:
    """Pass on that a worker has begun something, as often as it does."""
    while await run_sync(worker.line):
        await told.send(worker.name)


async def test_a_rolling_deploy_under_load(served):
    """Three workers are replaced one by one, then one is killed: every task completes once."""
    engine, crew = served
    load = Load(engine)
    told, begun = anyio.create_memory_object_stream[str](100)
    hold = engine.queue("hold")
    async with told, begun, anyio.create_task_group() as group:
        old = [crew.worker(f"old{i}") for i in range(3)]
        group.start_soon(load.run)
        held, holders = [], set()
        for worker in old:
            group.start_soon(watch, worker, told)
        while len(holders) < 3:  # each gets something that will not end in time
            held.append(await hold.enqueue({"name": ""}))
            holders.add(await begun.receive())
        await load.rounds(2)
        new = []
        for worker in old:
            new.append(crew.worker(worker.name.replace("old", "new")))
            worker.signal(signal.SIGTERM)
            await load.rounds(1)
            worker.signal(signal.SIGTERM)  # what has not ended yet, will not
            assert await run_sync(worker.wait) == 0
            assert "Traceback" not in worker.log
        for receipt in held:
            result = await engine.result(receipt.id, wait=60)
            assert (result.attempts, result.worker[:3]) == (1, "new")
        await load.rounds(2)
        assert set(load.attempts) == {1}
        new[0].signal(signal.SIGKILL)
        await run_sync(new[0].wait)
        await load.rounds(3)
        assert max(load.attempts) <= 2
        group.cancel_scope.cancel()
    stats = await engine.stats()
    assert stats.dead_total == 0
    assert stats.completed_total - len(load.attempts) - len(held) in range(101)


async def test_a_server_that_is_deployed_does_not_stop_its_workers(tmp_path):
    with socket_path() as path, processes(tmp_path, f"unix://{path}") as crew:
        args = ("serve", tmp_path / "store", "--uds", path)
        server = crew.start("server", *args)
        assert "serving" in await run_sync(server.line)
        worker = crew.worker("one")
        async with lodeq.connect(crew.store) as engine:
            for n in range(3):
                receipt = await engine.queue("work").enqueue({"n": n})
                assert (await engine.result(receipt.id, wait=60)).value == n
                server.signal(signal.SIGTERM)
                assert await run_sync(server.wait) == 0
                server = crew.start("server", *args)
                assert "serving" in await run_sync(server.line)
        worker.signal(signal.SIGTERM)
        assert await run_sync(worker.wait) == 0


async def test_a_function_that_blocks_the_loop_keeps_its_lease_served(served):
    """For three times its lease; another worker stands by to take it."""
    engine, crew = served
    receipt = await engine.queue("compute").enqueue({})
    worker = crew.worker("one")
    assert await run_sync(worker.line) == "compute 1"
    crew.worker("two")
    assert await engine.result(receipt.id, wait=6.5) is None
    await run_sync(crew.open_fifo)
    result = await engine.result(receipt.id, wait=30)
    assert (result.status, result.value, result.attempts, result.worker) == (
        "completed",
        1,
        1,
        "one",
    )


async def test_a_frozen_worker_loses_its_lease_and_is_fenced(served):
    engine, crew = served
    receipt = await engine.queue("hold").enqueue({"name": "f"})
    frozen = crew.worker("frozen", "--grace", "0")
    assert await run_sync(frozen.line) == "hold 1"
    frozen.signal(signal.SIGSTOP)
    await run_sync(frozen.stopped)
    crew.worker("new")
    result = await engine.result(receipt.id, wait=30)
    # A claim of the frozen one that waited at the store may have taken it once more.
    assert (result.worker, result.attempts in (2, 3)) == ("new", True)
    frozen.signal(signal.SIGCONT)
    again = await engine.queue("hold").enqueue({"name": "g"})
    await engine.result(again.id, wait=30)
    frozen.signal(signal.SIGTERM)
    assert await run_sync(frozen.wait) == 0
    assert await engine.result(receipt.id) == result


async def test_a_fan_out_of_a_thousand_outlives_the_kill_of_a_worker(served):
    """Killed in the middle: the callback runs once, and sees every part."""
    engine, crew = served
    count = 1000
    receipt = await engine.queue("reports").enqueue(
        {"count": count}, headers={"lodeq.task": "report"}
    )
    victim = crew.worker("victim")
    for _ in range(4):  # of ten lines of parts that it would say
        assert (await run_sync(victim.line)).startswith("part ")
    victim.signal(signal.SIGKILL)
    await run_sync(victim.wait)
    (before,) = await engine.workflows()
    flow = before.id
    assert 0 < before.ended < count
    crew.worker("heir")
    result = await engine.result(before.callback, wait=90)
    assert result.value == sum(n * n for n in range(count))
    assert (await engine.result(receipt.id, wait=30)).value == str(flow)
    after = await engine.workflow_info(flow)
    assert (after.state, after.ended, after.failed) == ("over", count, 0)
    statuses = [part.status async for part in engine.parts(flow)]
    assert statuses == ["completed"] * count
    totals = await engine.history(queue="totals")
    assert [one.attempts for one in totals] == [1]
