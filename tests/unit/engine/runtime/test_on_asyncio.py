"""What is asyncio's own: how a failed task is reported, and what a closed loop takes."""

import asyncio
import contextvars
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


@pytest.mark.slow
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


async def waiting(spawner, n, said):
    """So many tasks, each waiting for a future of its own."""
    futures = [spawner.future() for _ in range(n)]

    async def wait(i):
        said.append((i, await futures[i]))

    tasks = [asyncio.create_task(wait(i)) for i in range(n)]
    await asyncio.sleep(0)
    return futures, tasks


def test_all_who_wait_go_on_in_the_next_turn_in_order():
    async def main():
        loop = asyncio.get_running_loop()
        spawner, said = AsyncioSpawner(loop), []
        futures, tasks = await waiting(spawner, 4, said)
        second = asyncio.create_task(asyncio.wait([futures[2]]))  # one of them has two callbacks
        await asyncio.sleep(0)
        calls = []
        spawner.call_soon = lambda fn, *args: calls.append(fn) or loop.call_soon(fn, *args)
        spawner.answer([(future, n * 10) for n, future in enumerate(futures)])
        assert said == []
        assert len(calls) == 1
        loop.call_soon(said.append, "behind them")
        await asyncio.sleep(0)
        assert sorted(said[:-1]) == [(0, 0), (1, 10), (2, 20), (3, 30)]
        assert said[-1] == "behind them"
        await asyncio.gather(*tasks, second)

    asyncio.run(main())


def test_who_was_cancelled_before_or_after_the_answer_gets_none():
    async def main():
        spawner, said = AsyncioSpawner(asyncio.get_running_loop()), []
        futures, tasks = await waiting(spawner, 3, said)
        tasks[0].cancel()
        await asyncio.sleep(0)
        spawner.answer([(future, True) for future in futures])
        tasks[1].cancel()  # answered, and not yet awake
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [True, True, False]
        assert said == [(2, True)]

    asyncio.run(main())


def test_each_goes_on_in_its_own_context():
    name = contextvars.ContextVar("name", default="none")

    async def main():
        spawner = AsyncioSpawner(asyncio.get_running_loop())
        futures, said = [spawner.future() for _ in range(3)], []

        async def wait(i):
            name.set(i)
            await futures[i]
            said.append(name.get())

        tasks = [asyncio.create_task(wait(i)) for i in range(3)]
        await asyncio.sleep(0)
        spawner.answer([(future, None) for future in futures])
        await asyncio.gather(*tasks)
        assert said == [0, 1, 2]
        assert name.get() == "none"

    asyncio.run(main())


def test_an_interrupt_that_ends_the_loop_leaves_the_others_awake():
    loop = asyncio.new_event_loop()
    spawner, said = AsyncioSpawner(loop), []

    async def wait(future, error):
        await future
        said.append(error)
        if error is not None:
            raise error

    async def begin():
        futures = [spawner.future() for _ in range(3)]
        tasks = [
            loop.create_task(wait(future, error))
            for future, error in zip(futures, [None, KeyboardInterrupt(), None], strict=True)
        ]
        await asyncio.sleep(0)
        return futures, tasks

    try:
        futures, tasks = loop.run_until_complete(begin())
        loop.call_soon(spawner.answer, [(future, None) for future in futures])
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        assert len(said) == 2
        loop.run_until_complete(tasks[2])
        assert len(said) == 3
        assert isinstance(tasks[1].exception(), KeyboardInterrupt)
    finally:
        loop.close()


class Stubborn:
    """Stands where a future does, and raises what it must not."""

    def __init__(self, error):
        self.error = error

    def done(self):
        return False

    def set_result(self, value):
        raise self.error


@pytest.mark.parametrize("others", [0, 2])
def test_an_outcome_that_fails_is_reported_and_leaves_the_others_awake(others):
    async def main():
        loop, reported = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: reported.append(context))
        spawner, said = AsyncioSpawner(loop), []
        futures, tasks = await waiting(spawner, others, said)
        waiters = [(future, True) for future in futures]
        waiters.insert(others // 2, (Stubborn(ValueError("no")), True))
        spawner.answer(waiters)
        await asyncio.gather(*tasks)
        assert said == [(n, True) for n in range(others)]
        assert [str(context["exception"]) for context in reported] == ["no"]
        assert "Stubborn" in reported[0]["message"]

    asyncio.run(main())


def test_an_interrupt_between_two_answers_leaves_those_before_it_awake():
    async def main():
        spawner, said = AsyncioSpawner(asyncio.get_running_loop()), []
        futures, tasks = await waiting(spawner, 2, said)
        with pytest.raises(KeyboardInterrupt):
            spawner.answer([(future, True) for future in (*futures, Stubborn(KeyboardInterrupt()))])
        await asyncio.gather(*tasks)
        assert said == [(0, True), (1, True)]

    asyncio.run(main())
