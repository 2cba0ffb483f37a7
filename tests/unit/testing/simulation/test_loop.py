"""The simulated event loop: asyncio runs on it as on its own, in the order of a seed."""

import asyncio
import itertools

import pytest

from lodeq.engine.runtime.ids import seeded
from lodeq.testing.simulation.loop import DeadlockError, EndlessError, SimLoop, SimTime
from lodeq.testing.simulation.processes import GoneError, SimProcess


def loop_of(seed="1", **options):
    return SimLoop(SimTime(), seeded(seed), **options)


def test_it_runs_what_asyncio_offers():
    async def main():
        async with asyncio.timeout(5):
            async with asyncio.TaskGroup() as group:
                one = group.create_task(asyncio.sleep(2, "one"))
                two = group.create_task(asyncio.sleep(1, "two"))
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(3, event.set)
        await event.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        return one.result(), two.result()

    loop = loop_of()
    before = loop.time()
    assert loop.run(main()) == ("one", "two")
    assert 6 <= loop.time() - before < 6.1
    assert loop.complaints == []


def test_work_for_a_thread_is_done_at_a_later_step():
    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return await loop.run_in_executor(None, divmod, 7, 2)

    assert loop_of().run(main()) == (3, 1)


def order_of(seed, order):
    async def main():
        told = []
        for i in range(8):
            asyncio.get_running_loop().call_soon(told.append, i)
        await asyncio.sleep(1)
        return told

    return loop_of(seed, order=order).run(main())


def test_the_order_is_the_seeds():
    assert order_of("1", "fifo") == list(range(8)) == order_of("2", "fifo")
    assert order_of("1", "random") == order_of("1", "random")
    orders = {tuple(order_of(str(seed), "random")) for seed in range(20)}
    assert len(orders) > 15


def test_timers_run_at_their_time_and_not_when_they_were_taken_back():
    async def main():
        loop = asyncio.get_running_loop()
        told = []
        for delay in (3, 1, 2):
            loop.call_later(delay, lambda d=delay: told.append((d, round(loop.time() - start))))
        gone = loop.call_later(1.5, told.append, "never")
        assert gone.when() == pytest.approx(start + 1.5, abs=1e-3)
        gone.cancel()
        assert gone.cancelled()
        await asyncio.sleep(4)
        return told

    loop = loop_of()
    start = loop.time()
    assert loop.run(main()) == [(1, 1), (2, 2), (3, 3)]


def test_who_waits_for_nothing_is_told():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match="task-"):
        loop_of().run(main())


def test_who_never_ends_is_told(monkeypatch):
    monkeypatch.setattr("lodeq.testing.simulation.loop.STEPS_MAX", 100)

    async def main():
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(EndlessError, match="100 steps"):
        loop_of().run(main())


def test_an_error_in_a_callback_is_noted_and_one_in_main_is_raised():
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)
        raise LookupError("main")

    loop = loop_of()
    with pytest.raises(LookupError, match="main"):
        loop.run(main())
    assert len(loop.complaints) == 1
    assert "ZeroDivisionError" in loop.complaints[0]


def test_after_a_death_nothing_runs_but_the_way_out():
    told = []

    async def other():
        try:
            await asyncio.sleep(1)
        finally:
            told.append("finally")
            await asyncio.sleep(0)
            told.append("never")

    async def main():
        task = asyncio.ensure_future(other())
        await asyncio.sleep(0.5)
        loop.die()
        await asyncio.sleep(0)
        told.append(task)

    loop = loop_of()
    assert loop.run(main()) is None
    assert told == ["finally"]
    assert loop.complaints == []
    loop.close()
    assert loop.is_closed()


def test_a_pause_makes_timers_late():
    async def main():
        loop.pause(10)
        await asyncio.sleep(1)
        return loop.time()

    loop = loop_of()
    start = loop.time()
    assert loop.run(main()) - start == pytest.approx(11, abs=1e-3)


def test_who_asked_a_process_that_dies_hears_of_it_in_the_order_of_asking():
    loop, heard = loop_of(order="fifo"), []

    async def main():
        process = SimProcess(loop, "a")
        asked = [process.ask(lambda: asyncio.sleep(100)) for _ in range(64)]
        for n, answer in enumerate(asked):
            answer.add_done_callback(lambda _, n=n: heard.append(n))
        await asyncio.sleep(1)
        process.die()
        return await asyncio.gather(*asked, return_exceptions=True)

    assert {type(answer) for answer in loop.run(main())} == {GoneError}
    assert heard == [*range(64)]
