"""One suite for every event loop adapter: what it says holds on asyncio and trio alike."""

import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint

from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.engine.runtime.shielded import ShieldedTask
from lodeq.errors import UsageError

pytestmark = pytest.mark.anyio


@pytest.fixture
async def spawner():
    spawner = current_spawner()
    yield spawner
    await spawner.aclose()


class Waiter:
    """A task that awaits a future and keeps what came of it."""

    def __init__(self, group, future):
        self.scope = anyio.CancelScope()
        self.value = self.error = None
        self.is_cancelled = False
        self.over = anyio.Event()
        group.start_soon(self._run, future)

    async def _run(self, future):
        with self.scope:
            try:
                self.value = await future
            except KeyError as error:
                self.error = error
            except anyio.get_cancelled_exc_class():
                self.is_cancelled = True
                raise
        self.over.set()


async def rounds(n=3):
    for _ in range(n):
        await checkpoint()


# --- futures ------------------------------------------------------------------------------------


async def test_a_future_is_not_done_at_first(spawner):
    assert not spawner.future().done()


async def test_a_future_that_has_its_result_gives_it_at_once(spawner):
    future = spawner.future()
    future.set_result(5)
    assert future.done()
    assert await future == 5


async def test_a_future_that_has_its_error_raises_it(spawner):
    future = spawner.future()
    future.set_exception(KeyError("k"))
    with pytest.raises(KeyError):
        await future


async def test_a_waiter_gets_the_result(spawner):
    future = spawner.future()
    async with anyio.create_task_group() as group:
        waiter = Waiter(group, future)
        await rounds()
        assert waiter.value is None
        future.set_result("told")
        assert future.done()
    assert waiter.value == "told"


async def test_a_waiter_gets_the_error(spawner):
    future = spawner.future()
    async with anyio.create_task_group() as group:
        waiter = Waiter(group, future)
        await rounds()
        future.set_exception(KeyError("k"))
    assert isinstance(waiter.error, KeyError)


async def test_several_waiters_get_the_same_result(spawner):
    future = spawner.future()
    async with anyio.create_task_group() as group:
        waiters = [Waiter(group, future) for _ in range(3)]
        await rounds()
        future.set_result(7)
    assert [waiter.value for waiter in waiters] == [7, 7, 7]


async def test_a_cancelled_waiter_leaves_its_future_done(spawner):
    future = spawner.future()
    async with anyio.create_task_group() as group:
        waiter = Waiter(group, future)
        await rounds()
        waiter.scope.cancel()
        await waiter.over.wait()
    assert waiter.is_cancelled
    assert future.done()


async def test_a_future_is_told_once(spawner):
    future = spawner.future()
    future.set_result(1)
    with pytest.raises(Exception):  # noqa: B017, PT011 - each loop has its own
        future.set_result(2)
    assert await future == 1


# --- callbacks ----------------------------------------------------------------------------------


async def test_callbacks_run_later_and_in_order(spawner):
    seen = []
    spawner.call_soon(seen.append, 1)
    spawner.call_soon(seen.append, 2)
    assert seen == []
    await rounds()
    assert seen == [1, 2]


async def test_a_callback_runs_behind_everything_that_is_runnable(spawner):
    """The tick: all that run in one turn of the loop get their operations in before it."""
    seen, started = [], spawner.future()

    async def submit(n):
        await started
        if not seen:
            spawner.call_soon(seen.append, "tick")
        seen.append(n)

    for _ in range(5):  # trio shuffles
        seen.clear()
        started = spawner.future()
        async with anyio.create_task_group() as group:
            for n in range(20):
                group.start_soon(submit, n)
            await rounds()
            started.set_result(None)
        await rounds()
        assert len(seen) == 21
        assert seen[-1] == "tick"


async def test_what_a_callback_asks_for_runs_a_turn_later(spawner):
    seen = []

    def first():
        spawner.call_soon(seen.append, "third")
        seen.append("first")

    spawner.call_soon(first)
    spawner.call_soon(seen.append, "second")
    await rounds(5)
    assert seen == ["first", "second", "third"]


async def test_a_callback_may_wake_a_waiter(spawner):
    future = spawner.future()
    spawner.call_soon(future.set_result, "woken")
    assert await future == "woken"


async def test_callbacks_from_another_thread(spawner):
    future = spawner.future()
    thread = threading.Thread(target=spawner.call_soon_threadsafe, args=(future.set_result, 3))
    thread.start()
    assert await future == 3
    thread.join()


# --- timers -------------------------------------------------------------------------------------


async def test_timers_run_in_the_order_of_their_times(spawner):
    is_set_in_time = False
    while not is_set_in_time:  # each delay begins with its own call
        seen, over = [], spawner.future()
        began = anyio.current_time()
        timers = [
            spawner.call_later(0.004, lambda over=over: over.set_result(None)),
            spawner.call_later(0.002, lambda seen=seen: seen.append("later")),
            spawner.call_later(0.0, lambda seen=seen: seen.append("at once")),
        ]
        is_set_in_time = anyio.current_time() - began < 0.002
        if not is_set_in_time:
            for timer in timers:
                timer.cancel()
    await over
    assert seen == ["at once", "later"]


async def test_a_cancelled_timer_does_not_run(spawner):
    seen, over = [], spawner.future()
    timer = spawner.call_later(0.001, lambda: seen.append("cancelled"))
    spawner.call_later(0.002, lambda: over.set_result(None))
    timer.cancel()
    timer.cancel()
    await over
    assert seen == []


async def test_an_earlier_timer_is_not_held_up_by_a_later_one(spawner):
    far = spawner.call_later(3600, lambda: None)
    await rounds()  # something may be asleep until then
    future = spawner.future()
    spawner.call_later(0.001, lambda: future.set_result(None))
    await future
    far.cancel()


async def test_a_timer_may_set_a_timer(spawner):
    future = spawner.future()
    spawner.call_later(0.0, lambda: spawner.call_later(0.0, lambda: future.set_result("second")))
    assert await future == "second"


async def test_many_cancelled_timers_are_forgotten(spawner):
    for _ in range(1000):
        spawner.call_later(3600, lambda: None).cancel()
    future = spawner.future()
    spawner.call_later(0.0, lambda: future.set_result(None))
    await future


async def test_a_timer_cancelled_after_it_ran(spawner):
    future = spawner.future()
    timer = spawner.call_later(0.0, lambda: future.set_result(None))
    await future
    timer.cancel()


# --- background tasks ---------------------------------------------------------------------------


async def test_a_task_runs_and_can_be_joined(spawner):
    seen = []

    async def main():
        await checkpoint()
        seen.append("ran")

    await spawner.spawn(main, "lodeq-test").join()
    assert seen == ["ran"]


async def test_a_cancelled_task_can_be_joined(spawner):
    seen = []

    async def main():
        try:
            await spawner.future()
        finally:
            seen.append("stopped")

    task = spawner.spawn(main, "lodeq-test")
    await rounds()
    task.cancel()
    await task.join()
    await task.join()
    assert seen == ["stopped"]


async def test_a_task_outlives_the_scope_that_started_it(spawner):
    future, seen = spawner.future(), []

    async def main():
        await future
        seen.append("went on")

    with anyio.CancelScope() as scope:
        task = spawner.spawn(main, "lodeq-test")
        scope.cancel()
        await checkpoint()
    future.set_result(None)
    await task.join()
    assert seen == ["went on"]


# --- the rest -----------------------------------------------------------------------------------


async def test_a_checkpoint_lets_others_run(spawner):
    seen = []

    async def other():
        seen.append("ran")

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await spawner.checkpoint()
        await spawner.checkpoint()
        assert seen == ["ran"]


async def test_blocking_work_runs_on_another_thread(spawner):
    assert await spawner.run_in_thread(threading.get_ident) != threading.get_ident()


async def test_errors_of_blocking_work_arrive(spawner):
    def fail():
        raise KeyError("k")

    with pytest.raises(KeyError):
        await spawner.run_in_thread(fail)


async def test_a_thread_that_has_begun_is_waited_for(spawner):
    """Whoever is cancelled meanwhile: what it does to a folder must not come after a close."""
    begun, may_end, seen = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        assert may_end.wait(30)
        seen.append("done")

    async def call():
        try:
            await spawner.run_in_thread(work)
        finally:
            seen.append("over")

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        assert await anyio.to_thread.run_sync(begun.wait, 30)
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await rounds()
            assert seen == []
            may_end.set()
    assert seen == ["done", "over"]


async def test_the_loop_it_belongs_to_is_checked(spawner):
    spawner.check()
    with pytest.raises(UsageError):
        await spawner.run_in_thread(spawner.check)


async def test_callbacks_may_come_late(spawner):
    """After ``aclose``: a thread of the store that still had something to tell."""
    spawner.call_soon(lambda: None)
    await spawner.aclose()
    spawner.call_soon_threadsafe(lambda: None)
    await rounds()


# --- what goes on although the run is over ------------------------------------------------------


def test_callbacks_and_timers_run_for_shielded_work_when_the_main_task_is_over(anyio_backend_name):
    """On asyncio they are the loop's; on trio they are system tasks, which the run cancels."""
    seen = []

    async def main():
        spawner = current_spawner()
        spawner.call_soon(seen.append, "before")
        timer = spawner.call_later(60, list)
        await rounds()

        async def close():
            future = spawner.future()
            spawner.call_soon(future.set_result, "callback")
            seen.append(await future)
            future = spawner.future()
            spawner.call_later(0, lambda: future.set_result("timer"))
            seen.append(await future)
            timer.cancel()
            await spawner.aclose()

        work = ShieldedTask(spawner, close, "test")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await work.wait()
        if anyio_backend_name == "asyncio":
            await work.wait()  # a loop that stops runs nothing more

    anyio.run(main, backend=anyio_backend_name)
    assert seen == ["before", "callback", "timer"]


async def test_shielded_work_that_fails_can_be_tried_again(spawner):
    errors = [OSError("once")]

    async def main():
        await checkpoint()
        if errors:
            raise errors.pop()

    work = ShieldedTask(spawner, main, "test")
    with pytest.raises(OSError, match="once"):
        await work.wait()
    assert not work.is_over
    await work.wait()
    assert work.is_over
    await work.wait()
