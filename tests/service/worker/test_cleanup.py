"""A run that is to stop: one cancellation, a bounded time for its cleanup, then the hard end."""

import asyncio
import logging
from contextlib import asynccontextmanager

import anyio
import pytest
from support_behaviour import StillClock, in_memory, settle, sound, until

import lodeq
from lodeq.errors import UsageError
from lodeq.worker import App

pytestmark = pytest.mark.anyio
CAUSES = ["timeout", "lost", "grace", "host"]


class Connection:
    """What an asynchronous driver has to undo; each step takes turns of the loop."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.inside = 0

    async def _step(self, what: str) -> None:
        await settle(3)
        self.log.append(what)

    @asynccontextmanager
    async def transaction(self):
        self.inside += 1
        try:
            yield
        except BaseException:
            await self._step("rolled back")
            raise
        finally:
            await self._step("given back")


@pytest.fixture
def clock():
    return StillClock()


class Case:
    """A worker whose function runs, and is to stop for one of four causes."""

    def __init__(self, body, clock, cause, **options):
        self.clock, self.cause, self.begun = clock, cause, asyncio.Event()
        self.app = App(grace=5, **options)
        timeout = 10 if cause == "timeout" else None

        @self.app.task("q", timeout=timeout, max_attempts=2)
        async def work() -> str | None:
            self.begun.set()
            return await body()

        self.function = work

    async def run(self, then=None):
        """The task's (state, attempts); ``then`` is awaited once the run is to stop."""
        app, clock = self.app, self.clock
        async with in_memory(clock) as engine, app.use(engine):
            host = asyncio.create_task(self._work(app))
            receipt = await self.function.enqueue()
            await self.begun.wait()
            await settle()
            if self.cause == "timeout":
                await clock.advance(11)
            elif self.cause == "lost":
                await engine.cancel(receipt.id)
                await clock.advance(2)
            elif self.cause == "grace":
                self.worker.stop()
                await settle()
                await clock.advance(6)
            else:
                host.cancel()
            if then is not None:
                await then()
            await until(lambda: not self.worker.running)
            if self.cause in ("timeout", "lost"):
                self.worker.stop()
            await asyncio.wait([host])
            task = await engine.get(receipt.id)
            await sound(engine)
            return None if task is None else (task.state, task.attempts)

    async def _work(self, app):
        async with app.work() as self.worker:
            await self.worker.finished.wait()


ENDS = {"timeout": ("delayed", 1), "lost": ("cancelled", 1), "grace": ("ready", 0)}


@pytest.mark.parametrize("cause", CAUSES)
async def test_each_await_of_a_cleanup_is_made(clock, cause):
    connection = Connection()

    async def body():
        async with connection.transaction():
            await asyncio.Event().wait()

    found = await Case(body, clock, cause).run()
    assert connection.log == ["rolled back", "given back"]
    assert found[0] == ENDS.get(cause, ("ready", 0))[0]
    assert found[1] == ENDS.get(cause, ("ready", 0))[1] or cause == "lost"


@pytest.mark.parametrize("cause", CAUSES)
async def test_a_cleanup_that_takes_longer_is_cut_off_and_logged(clock, cause, caplog):
    caplog.set_level(logging.INFO, "lodeq.worker")
    seen = []

    async def body():
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cut off")
                raise

    async def then():
        await settle(20)
        await clock.advance(2.9)
        assert seen == []
        await clock.advance(0.2)

    found = await Case(body, clock, cause, cleanup=3).run(then)
    assert seen == ["cut off"]
    assert found[0] == ENDS.get(cause, ("ready", 0))[0]
    events = [record.event for record in caplog.records if hasattr(record, "event")]
    assert events.index("run_cancelled") < events.index("cleanup_cut_off")


async def test_without_time_for_cleanup_every_await_is_cancelled(clock):
    connection = Connection()

    async def body():
        async with connection.transaction():
            await asyncio.Event().wait()

    await Case(body, clock, "timeout", cleanup=0).run()
    assert connection.log == []


async def test_children_of_a_task_group_clean_up(clock):
    connection = Connection()

    async def child():
        async with connection.transaction():
            await asyncio.Event().wait()

    async def body():
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())

    await Case(body, clock, "timeout").run()
    assert sorted(connection.log) == ["given back"] * 2 + ["rolled back"] * 2


async def test_what_a_function_has_shielded_is_not_cut_and_what_follows_is_cleaned_up(clock):
    connection, go = Connection(), asyncio.Event()

    async def body():
        async with connection.transaction():
            with anyio.CancelScope(shield=True):
                await go.wait()
                connection.log.append("sent")
            await asyncio.Event().wait()

    async def then():
        await settle(20)
        assert connection.log == []
        go.set()
        await settle(20)
        await clock.advance(0.1)

    await Case(body, clock, "timeout").run(then)
    assert connection.log == ["sent", "rolled back", "given back"]


async def test_a_lease_that_is_lost_meanwhile_ends_the_cleanup(clock):
    seen = []

    async def body():
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cut off")
                raise

    case = Case(body, clock, "timeout", cleanup=60)

    async def then():
        await case.app.engine.cancel((await case.app.engine.queue("q").list("leased"))[0].id)
        await clock.advance(2)

    assert (await case.run(then)) is not None
    assert seen == ["cut off"]


@pytest.mark.parametrize("cause", CAUSES)
async def test_a_batch_cleans_up_before_its_tasks_go(clock, cause):
    connection, begun = Connection(), asyncio.Event()
    app = App(grace=5)

    @app.batch("q", size=2, max_attempts=2, timeout=10 if cause == "timeout" else None)
    async def work(items: list[int]) -> None:
        begun.set()
        async with connection.transaction():
            await asyncio.Event().wait()

    async with in_memory(clock) as engine, app.use(engine):

        async def working():
            nonlocal worker
            async with app.work() as worker:
                await worker.finished.wait()

        worker = None
        host = asyncio.create_task(working())
        receipts = await work.enqueue_many([work.new(1), work.new(2)])
        await begun.wait()
        if cause == "timeout":
            await clock.advance(11)
        elif cause == "lost":
            for one in receipts:
                await engine.cancel(one.id)
            await clock.advance(2)
        elif cause == "grace":
            worker.stop()
            await settle()
            await clock.advance(6)
        else:
            host.cancel()
        await until(lambda: not worker.running)
        assert connection.log == ["rolled back", "given back"]
        worker.stop()
        await asyncio.wait([host])


@pytest.mark.parametrize(
    ("ends", "state"), [("returns", "completed"), ("raises", "delayed"), ("waits on", "completed")]
)
async def test_a_function_that_catches_its_timeout(clock, ends, state):
    """What it returns counts; what it raises does not hide that its time was over."""
    connection = Connection()

    async def body():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends == "raises":
                raise ValueError("while undoing") from None
            if ends == "waits on":
                async with connection.transaction():
                    await settle(3)
        return "done"

    assert (await Case(body, clock, "timeout").run())[0] == state


async def test_a_function_that_holds_the_loop_past_its_timeout_and_returns_has_completed(clock):
    app = App()

    @app.task("q", timeout=10, max_attempts=1)
    async def work() -> str:
        clock.jump(60)
        return "late"

    async with in_memory(clock) as engine, app.use(engine), app.work():
        receipt = await work.enqueue()
        assert (await engine.result(receipt.id, wait=9)).value == "late"


@pytest.mark.parametrize("wrong", [-1, "x", float("nan")])
def test_a_wrong_time_for_cleanup_is_refused(wrong):
    with pytest.raises(UsageError, match="cleanup"):
        App(cleanup=wrong)


async def test_drain_gives_time_for_cleanup_as_well(clock):
    connection = Connection()
    app = App()

    @app.task("q", timeout=10, max_attempts=1)
    async def work() -> None:
        async with connection.transaction():
            await clock.advance(11)
            await asyncio.Event().wait()

    async with in_memory(clock) as engine, app.use(engine):
        await work.enqueue()
        report = await app.drain(errors="keep")
        assert isinstance(report, lodeq.worker.DrainReport)
        assert report.dead == 1
    assert connection.log == ["rolled back", "given back"]


def test_on_trio_what_is_shielded_is_waited_for():
    """trio cancels by level: a cleanup that waits has to be shielded, as everywhere in trio."""
    log, app = [], App()

    @app.task("q", timeout=10, max_attempts=1)
    async def work() -> None:
        try:
            clock.jump(11)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                log.append("shielded")
            await anyio.lowlevel.checkpoint()
            log.append("never")

    clock = StillClock()

    async def main():
        async with in_memory(clock) as engine, app.use(engine):
            receipt = await work.enqueue()
            await app.drain(errors="keep")
            return (await engine.get(receipt.id)).reason

    assert anyio.run(main, backend="trio").startswith("timed out")
    assert log == ["shielded"]
