"""What is asyncio's own: how a failed task is reported, and what a closed loop takes."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

import pytest

from lodeq.engine.runtime.on_asyncio import AsyncioSpawner
from lodeq.engine.runtime.shielded import await_shielded
from lodeq.errors import UsageError


@asynccontextmanager
async def busy_thread(pool):
    """A spawner of a loop whose executor is ``pool``; one thread of it works until the end."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(pool)
    spawner, is_busy, may_end = AsyncioSpawner(loop), threading.Event(), threading.Event()

    def block():
        is_busy.set()
        assert may_end.wait(30)

    working = asyncio.create_task(spawner.run_in_thread(block))
    await asyncio.sleep(0)
    assert is_busy.wait(30)
    try:
        yield spawner
    finally:
        may_end.set()
        await working


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


def test_a_thread_that_has_not_begun_when_its_caller_is_cancelled_never_does():
    async def main():
        ran = []
        with ThreadPoolExecutor(1) as pool:
            async with busy_thread(pool) as spawner:
                second = asyncio.create_task(spawner.run_in_thread(lambda: ran.append("ran")))
                await asyncio.sleep(0)
                second.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await second
        return ran

    assert asyncio.run(main()) == []


def test_where_no_thread_can_be_started_work_is_done_once():
    """An executor has queued the work already when it finds that there is no thread for it."""

    class Exhausted(ThreadPoolExecutor):
        is_exhausted = False

        def _adjust_thread_count(self):
            if self.is_exhausted:
                raise RuntimeError("can't start new thread")
            super()._adjust_thread_count()

    async def main():
        ran = []
        with Exhausted(2) as pool:
            async with busy_thread(pool) as spawner:
                pool.is_exhausted = True
                assert await spawner.run_in_thread(lambda: ran.append("ran") or "done") == "done"
        return ran

    assert asyncio.run(main()) == ["ran"]


def test_a_file_is_not_removed_by_a_thread_that_was_left_behind():
    """A caller who begins anew, as ``insist`` does, comes back when both calls are through."""

    async def main():
        spawner = AsyncioSpawner(asyncio.get_running_loop())
        has_begun, may_end = threading.Event(), threading.Event()
        begun, ended = [], []

        def work():
            begun.append(len(begun))
            has_begun.set()
            if begun == [0]:
                assert may_end.wait(30)
            ended.append("ended")

        task = asyncio.create_task(_insisting(spawner, work))
        await asyncio.sleep(0)
        assert has_begun.wait(30)
        task.cancel()
        await asyncio.sleep(0)
        may_end.set()
        assert isinstance(await task, asyncio.CancelledError)
        return len(begun), len(ended)

    assert asyncio.run(main()) == (2, 2)


async def _insisting(spawner, fn):
    return await await_shielded(partial(spawner.run_in_thread, fn))
