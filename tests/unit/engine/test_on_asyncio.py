"""What is asyncio's own: how a failed task is reported, and what a closed loop takes."""

import asyncio
import gc

import pytest

from lodeq.engine.on_asyncio import AsyncioSpawner
from lodeq.errors import UsageError


def test_a_failed_task_reaches_the_exception_handler_at_once():
    async def main():
        loop = asyncio.get_running_loop()
        reports = []
        loop.set_exception_handler(lambda _, context: reports.append(context))

        async def fail():
            raise KeyError("k")

        task = AsyncioSpawner(loop).spawn(fail, "lodeq-test")
        await task.join()  # raises nothing: it has been reported
        return reports

    (report,) = asyncio.run(main())
    assert isinstance(report["exception"], KeyError)
    assert "lodeq-test" in report["message"]


def test_a_task_nobody_holds_is_kept():
    """The loop itself holds tasks weakly only."""

    async def main():
        spawner = AsyncioSpawner(asyncio.get_running_loop())
        over = asyncio.Event()

        async def wait():
            gc.collect()
            await asyncio.sleep(0)
            over.set()

        spawner.spawn(wait, "lodeq-test")
        gc.collect()
        await over.wait()

    asyncio.run(main())


def test_calls_after_the_loop_was_closed_are_ignored():
    async def main():
        return AsyncioSpawner(asyncio.get_running_loop())

    spawner = asyncio.run(main())
    assert spawner.call_soon_threadsafe(pytest.fail, "ran") is None
    with pytest.raises(UsageError):
        spawner.check()
