"""Promises at their edges: bounds under concurrency, options that cannot hold, a closed engine."""

import asyncio

import pytest
from support_behaviour import in_memory, settle, sound

import lodeq
from lodeq import ClosedError, Limits, NewTask, QueueFullError

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("shards", [1, 4])
async def test_pending_max_holds_for_concurrent_and_chunked_calls(clock, shards):
    async with in_memory(clock, shards=shards, limits=Limits(pending_max=6000)) as engine:
        queue = engine.queue("mail")
        found = await asyncio.gather(
            queue.enqueue_many([NewTask(b"x")] * 5000),
            queue.enqueue_many([NewTask(b"x")] * 1900),
            return_exceptions=True,
        )
        ready = (await queue.stats()).ready
        assert ready <= 6000
        refused = [error for error in found if isinstance(error, QueueFullError)]
        assert len(refused) == 1
        placed = sum(receipt is not None for receipt in refused[0].receipts)
        assert ready == placed + sum(len(one) for one in found if isinstance(one, list))
        await sound(engine)


async def test_a_duplicate_adds_nothing_and_is_answered_at_the_bound(clock):
    async with in_memory(clock, limits=Limits(pending_max=2)) as engine:
        queue = engine.queue("mail")
        first = await queue.enqueue(b"x", dedup_key="k")
        both = [NewTask(b"x", dedup_key="k"), NewTask(b"y", dedup_key="l")]
        receipts = await queue.enqueue_many([*both, *both])
        assert [receipt.duplicate for receipt in receipts] == [True, False, True, True]
        assert (await queue.enqueue(b"x", dedup_key="k")).id == first.id
        assert (await queue.enqueue(b"z", dedup_key="k", on_conflict="replace")).replaced
        for call in (
            lambda: queue.enqueue(b"x", dedup_key="m"),
            lambda: queue.enqueue(b"x"),
            lambda: queue.enqueue_many([*both, NewTask(b"x", dedup_key="m")]),
        ):
            with pytest.raises(QueueFullError):
                await call()
        assert (await queue.stats()).ready == 2
        await sound(engine)


async def test_a_dead_holder_that_is_replaced_makes_no_room(clock):
    async with in_memory(clock, limits=Limits(pending_max=1)) as engine:
        queue = engine.queue("mail")
        held = (await queue.enqueue(b"x", dedup_key="k", dedup_window=900)).id
        await (await queue.claim_one()).bury("no")
        await queue.enqueue(b"fills it")
        with pytest.raises(QueueFullError):
            await queue.enqueue(b"z", dedup_key="k", on_conflict="replace")
        stats = await queue.stats()
        assert (stats.ready, stats.dead) == (1, 1)
        assert (await engine.get(held)).state == "dead"
        await sound(engine)


async def test_a_claim_over_queues_uses_the_least_of_their_leases(clock):
    async with in_memory(clock) as engine:
        long, longer = engine.queue("a", lease=300), engine.queue("b", tenant="t", lease=400)
        await long.enqueue_many([NewTask(b"x")] * 5)
        for queues, options, lease_s in (
            ([long], {}, 300.0),
            ([longer, long], {}, 300.0),
            ([longer, "a"], {}, 30.0),
            (["a"], {}, 30.0),
            ([long], {"lease": 7}, 7.0),
        ):
            (lease,) = await engine.claim(queues, **options)
            assert lease.lease_s == lease_s


@pytest.mark.parametrize("is_waiting", [False, True], ids=["before", "meanwhile"])
async def test_a_lease_stream_of_a_closed_engine_says_so(clock, is_waiting):
    async with in_memory(clock) as engine, engine.queue("mail").leases(wait=60) as stream:
        if is_waiting:
            waiting = asyncio.create_task(anext(stream))
            await settle(5)
        await engine.close()
        with pytest.raises(ClosedError):
            await (waiting if is_waiting else anext(stream))


async def test_a_lease_stream_hands_out_nothing_once_the_engine_is_closed(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(b"x")] * 3)
        async with queue.leases() as stream:
            assert isinstance(await anext(stream), lodeq.Lease)
            await engine.close()
            with pytest.raises(ClosedError):
                await anext(stream)
