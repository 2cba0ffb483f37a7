"""``KeyboardInterrupt`` and ``SystemExit`` out of a handler: a failure, and no lease is left."""

import anyio
import pytest
from support_behaviour import until
from support_http import ServedOpening, socket_path
from support_worker import processes

import lodeq
import lodeq.testing
from lodeq.testing import ManualClock
from lodeq.worker import App

ODD = [KeyboardInterrupt("odd"), SystemExit(130)]
of_each = pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
of_kinds = pytest.mark.parametrize("kind", ["async", "thread"])


def app_that_raises(error, **options):
    app = App()

    @app.task("odd", name="async", **options)
    async def odd() -> None:
        raise error

    @app.task("odd", name="thread", **options)
    def odd_too() -> None:
        raise error

    @app.task("good")
    async def good() -> str:
        return "good"

    return app, {"async": odd, "thread": odd_too}, good


def opening(form, clock):
    opened = lodeq.testing.open(clock=clock)
    return ServedOpening(opened) if form == "served" else opened


@pytest.mark.anyio
@of_each
@of_kinds
@pytest.mark.parametrize("form", ["embedded", pytest.param("served", marks=pytest.mark.slow)])
async def test_it_fails_in_a_worker_that_receives_the_signals(form, kind, error):
    app, odd, good = app_that_raises(error, max_attempts=1)
    async with opening(form, ManualClock()) as engine, app.use(engine):
        receipt, after = await odd[kind].enqueue(), await good.enqueue()
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                app._owns_signals = True  # as ``App.run`` says, in a main thread
                group.start_soon(work_until, app, scope.cancel)
                await anyio.sleep_forever()
        assert (await engine.get(receipt.id)).state == "dead"
        assert type(error).__name__ in (await engine.get(receipt.id)).reason
        assert (await engine.result(after.id)).value == "good"


async def work_until(app, done):
    async with app.work() as worker:
        await until(lambda: worker.outcomes["failed"] and worker.outcomes["completed"])
        assert (worker.finished.is_set(), worker.error) == (False, None)
    done()


def test_what_a_thread_of_a_batch_raises_cannot_be_ctrl_c():
    app = App()

    @app.batch("odd", size=2, wait=0, max_attempts=1)
    def odd(items: list[int]) -> None:
        raise KeyboardInterrupt("odd")

    async def main() -> None:
        async with lodeq.testing.open() as engine, app.use(engine), app.work() as worker:
            receipt = await odd.enqueue(1)
            await until(lambda: worker.outcomes["failed"])
            assert (await engine.get(receipt.id)).reason.startswith("KeyboardInterrupt: odd")

    anyio.run(main)


@of_kinds
@pytest.mark.parametrize("form", ["embedded", "served"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_may_be_ctrl_c_goes_on_to_the_host_when_the_lease_has_ended(form, kind, backend):
    """Without ``App.run`` nobody receives SIGINT: the host stops, and the attempt has counted."""
    app, odd, _ = app_that_raises(KeyboardInterrupt("odd"), max_attempts=3)
    seen = []

    async def main():
        async with opening(form, ManualClock()) as engine, app.use(engine):
            receipt = await odd[kind].enqueue()
            try:
                await app.drain()
            except KeyboardInterrupt:
                seen.append("interrupt")
            task = await engine.get(receipt.id)
            seen.append((task.state, task.attempts, task.reason.split("\n")[0]))

    anyio.run(main, backend=backend)
    assert seen == ["interrupt", ("delayed", 1, "KeyboardInterrupt: odd")]


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.parametrize("form", ["embedded", "served"])
async def test_a_worker_process_goes_on(tmp_path, form):
    with socket_path() as path:
        url = f"unix://{path}"
        store = url if form == "served" else str(tmp_path / "store")
        with processes(tmp_path, store) as crew:
            if form == "served":
                server = crew.start("server", "serve", tmp_path / "store", "--uds", path)
                assert "serving" in await anyio.to_thread.run_sync(server.line)
            async with opened(form, url, store) as engine:
                queue = engine.queue("interrupted", max_attempts=1)
                ids = [(await queue.enqueue({"thread": t}, headers=named(t))).id for t in (0, 1)]
            worker = crew.worker("w")
            for _ in ids:
                assert (await anyio.to_thread.run_sync(worker.line)).startswith("interrupt")
            worker.signal(15)
            assert await anyio.to_thread.run_sync(worker.wait) == 0
            async with opened(form, url, store) as engine:
                assert [(await engine.get(one)).state for one in ids] == ["dead", "dead"]
                assert (await engine.stats()).leased == 0


def opened(form, url, store):
    return lodeq.connect(url) if form == "served" else lodeq.open(store)


def named(in_thread):
    return {"lodeq.task": "interrupt_thread" if in_thread else "interrupt"}
