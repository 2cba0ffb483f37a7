"""Back-pressure: a place in the line that is not taken goes to the next one."""

import asyncio

import pytest

import lodeq.testing


def run(main, **options):
    async def inside():
        async with lodeq.testing.open(**options) as engine:
            await asyncio.wait_for(main(engine, engine.queue("mail")), 10)

    asyncio.run(inside())


async def turns(n=3):
    for _ in range(n):
        await asyncio.sleep(0)


def test_cancelled_callers_do_not_use_up_the_places():
    async def main(engine, queue):
        first = asyncio.create_task(queue.enqueue(0))
        line = [asyncio.create_task(queue.enqueue(n)) for n in range(1, 6)]
        await asyncio.sleep(0)
        for task in line[:4]:
            task.cancel()
        await first
        await line[4]
        assert [lease.payload for lease in await queue.claim(limit=9)] == [0, 5]

    run(main, queue_max=1)


@pytest.mark.parametrize("wait_turns", range(4))
def test_a_caller_cancelled_when_its_turn_came_passes_it_on(wait_turns):
    async def main(engine, queue):
        line = [asyncio.create_task(queue.enqueue(n)) for n in range(4)]
        await turns(wait_turns)
        line[1].cancel()
        line[2].cancel()
        await line[0]
        await line[3]
        await queue.enqueue("later")

    run(main, queue_max=1)


def test_a_call_that_fails_when_its_turn_came_passes_it_on():
    async def main(engine, queue):
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
        calls = [lease.nack(), lease.nack(), lease.nack(), queue.enqueue(b"y")]
        lost = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(x) for x in lost[:3]] == [type(None), *[lodeq.LeaseLostError] * 2]
        await queue.enqueue("later")

    run(main, queue_max=1)


def test_callers_in_line_learn_that_the_engine_closes():
    async def main(engine, queue):
        line = [asyncio.create_task(queue.enqueue(n)) for n in range(9)]
        await asyncio.sleep(0)
        await engine.close()
        found = await asyncio.gather(*line, return_exceptions=True)
        assert {type(x) for x in found[1:]} == {lodeq.ClosedError}

    run(main, queue_max=1)


def test_callers_who_give_up_leave_the_line():
    async def main():
        engine = await lodeq.testing.open(queue_max=1)
        queue, co = engine.queue("mail"), engine._core.shards[0].co
        co.waiting = 1  # as over a store that refuses writes for an hour
        first, *others = [asyncio.create_task(queue.enqueue(n)) for n in range(9)]
        await turns()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert len(co.room_line) == 1
        co.waiting = 0
        co._free_room()
        await first
        await engine.close()

    asyncio.run(main())
