"""What is trio's own: how a run ends, and what an error ends."""

import threading

import pytest
import trio
import trio.testing

from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.engine.runtime.on_trio import TrioSpawner
from lodeq.errors import InvariantError, StorageError, UsageError


def test_the_adapter_is_chosen_by_the_loop_that_runs():
    async def main():
        return type(current_spawner())

    assert trio.run(main) is TrioSpawner
    with pytest.raises(UsageError, match="no event loop"):
        current_spawner()


def test_calls_after_the_run_are_ignored():
    async def main():
        return TrioSpawner()

    spawner = trio.run(main)
    assert spawner.call_soon_threadsafe(pytest.fail, "ran") is None
    with pytest.raises(UsageError):
        spawner.check()


def test_a_run_ends_although_nothing_was_closed():
    async def main():
        spawner = TrioSpawner()
        spawner.call_soon(lambda: None)
        spawner.call_later(3600, lambda: None)
        spawner.spawn(trio.sleep_forever, "lodeq-test")
        await trio.lowlevel.checkpoint()

    trio.run(main)


@pytest.mark.parametrize("how", ["call_soon", "spawn"])
def test_an_error_ends_the_run(how):
    def fail():
        raise KeyError("k")

    async def fail_later():
        fail()

    async def main():
        spawner = TrioSpawner()
        if how == "spawn":
            spawner.spawn(fail_later, "lodeq-test")
        else:
            spawner.call_soon(fail)
        await trio.sleep_forever()

    with pytest.raises(trio.TrioInternalError):
        trio.run(main)


def test_a_future_lives_until_its_last_waiter_is_cancelled():
    async def main():
        future = TrioSpawner().future()
        got = []

        scope = trio.CancelScope()

        async def wait(scope):
            with scope:
                got.append(await future)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, scope)
            nursery.start_soon(wait, trio.CancelScope())
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert not future.done()
            future.set_result(1)
        return got

    assert trio.run(main) == [1]


def test_a_cancelled_future_is_not_awaited_again():
    async def main():
        future = TrioSpawner().future()
        with trio.CancelScope() as scope:
            scope.cancel()
            await future
        with pytest.raises(InvariantError):
            await future

    trio.run(main)


def test_timers_follow_a_mocked_clock():
    async def main():
        spawner = TrioSpawner()
        future = spawner.future()
        spawner.call_later(3600, lambda: future.set_result(None))
        await future
        return trio.current_time()

    clock = trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(main, clock=clock) >= 3600


@pytest.fixture
def no_threads(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(trio._core._thread_cache.THREAD_CACHE, "_idle_workers", {})


def test_where_no_thread_can_be_started_work_is_done_once(no_threads):
    """As on asyncio: what closes a store or removes a file is done here rather than not at all."""
    ran = []

    async def main():
        return await TrioSpawner().run_in_thread(lambda: ran.append("ran") or "done")

    assert trio.run(main) == "done"
    assert ran == ["ran"]


def test_where_no_thread_can_be_started_the_error_is_that_of_the_work(no_threads):
    def fail():
        raise StorageError("the disk")

    async def main():
        with pytest.raises(StorageError, match="the disk"):
            await TrioSpawner().run_in_thread(fail)

    trio.run(main)


def test_an_error_of_work_that_has_begun_does_not_begin_it_again():
    ran = []

    def fail():
        ran.append("ran")
        raise RuntimeError("can't start new thread")

    async def main():
        with pytest.raises(RuntimeError):
            await TrioSpawner().run_in_thread(fail)

    trio.run(main)
    assert ran == ["ran"]
