"""Workflows in a worker: an app fans out and fans in, a task fans out, steps hand results on."""

import pytest
from anyio.lowlevel import checkpoint

import lodeq.testing
from lodeq import UsageError
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio


@pytest.fixture
def app():
    app = App()
    app.seen = []

    @app.task("parts", max_attempts=1)
    async def render(page: int) -> int:
        if page == 3:
            raise ValueError("page 3 is torn")
        return page * page

    @app.task("joins")
    async def bind(title: str) -> int:
        parts = [part async for part in current().parts()]
        failed = [part async for part in current().parts(failed=True)]
        app.seen.append((title, [p.value for p in parts], [(p.number, p.error) for p in failed]))
        return len(parts)

    @app.task("reports", max_attempts=3)
    async def report(pages: int) -> None:
        async with await current().workflow(bind.new("from a task")) as flow:
            await flow.add([render.new(page) for page in range(pages)])
            if current().attempt == 1:
                raise RuntimeError("the producer falls over")

    @app.task("steps")
    async def step(name: str) -> str:
        before = "" if name == "a" else (await anext(current().parts())).value
        return before + name

    app.render, app.bind, app.report, app.step = render, bind, report, step
    return app


async def test_an_app_fans_out_and_fans_in(app):
    async with lodeq.testing.worker(app) as bench:
        async with await app.workflow(app.bind.new("whole"), key="report-1") as flow:
            await flow.add([app.render.new(page) for page in range(5)])
        done = await app.drain(errors="keep")
        assert done.completed == 5
        ((title, values, failed),) = app.seen
        assert (title, values) == ("whole", [0, 1, 4, None, 16])
        assert failed[0][0] == 3
        assert "page 3 is torn" in failed[0][1]
        assert (await bench.engine.workflow_info(flow.id)).state == "over"


async def test_a_task_that_runs_again_fills_the_same_workflow(app):
    async with lodeq.testing.worker(app) as bench:
        await app.report.enqueue(3)
        await app.drain(errors="keep")
        bench.clock.advance(60)
        await checkpoint()
        await app.drain(errors="keep")
        assert app.seen == [("from a task", [0, 1, 4], [])]


async def test_a_chain_hands_results_on(app):
    async with lodeq.testing.worker(app) as bench:
        async with await app.workflow() as flow:
            ids = await flow.add([app.step.new(name) for name in "abc"], chain=True)
        await app.drain(errors="keep")
        assert (await bench.engine.result(ids[-1])).value == "abc"


async def test_a_plain_function_goes_through_all_parts_in_its_thread(app):
    @app.task("sums")
    def total() -> int:
        assert next(current().parts_sync(failed=True), None) is None
        return sum(part.value for part in current().parts_sync())

    async with lodeq.testing.worker(app) as bench:
        async with await app.workflow(total.new()) as flow:
            await flow.add([app.render.new(0), app.render.new(2), *[app.render.new(1)] * 300])
        await app.drain()
        assert (await bench.engine.result(flow.callback)).value == 304


async def test_parts_sync_is_refused_on_the_loop(app):
    @app.task("sums")
    async def total() -> None:
        current().parts_sync()

    async with lodeq.testing.worker(app):
        async with await app.workflow(total.new()) as flow:
            await flow.add([app.render.new(0)])
        with pytest.raises(UsageError, match="async for"):
            await app.drain()


async def test_calls_wait_for_calls(app):
    async with lodeq.testing.worker(app) as bench:
        first = await app.step.enqueue("a")
        second = await app.step.options(after=[first.id], on_failure="cancel").enqueue("b")
        third = app.step.options(after=[second.id]).new("c")
        (third,) = await app.step.enqueue_many([third])
        assert (await bench.engine.get(second.id)).state == "waiting"
        await app.drain(errors="keep")
        assert (await bench.engine.result(third.id)).value == "abc"
        with pytest.raises(lodeq.UsageError, match="list of task ids"):
            await app.step.options(after=second.id).enqueue("d")
