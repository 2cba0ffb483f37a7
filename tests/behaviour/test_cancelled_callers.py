"""A caller that is cancelled, at every await there is: what happened, happened whole."""

import asyncio

import pytest
from support_behaviour import drain, in_memory, payloads, settle, sound
from support_faults import faulty

import lodeq
from lodeq import Backoff, NewTask

pytestmark = pytest.mark.anyio


async def cancelled(*calls):
    """Start the calls, cancel them in their last wait, and let the dust settle."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await settle()
    assert all(task.cancelled() for task in tasks)


@pytest.fixture
async def rig():
    """A store that is stalled whenever the test says so, so that every call has a last wait."""
    async with faulty(submit_queue_max=8) as rig:
        yield rig
        rig.timers.fire(0.5)
        await settle()
        await sound(rig.engine)


def stall(rig):
    rig.store.refusals.append(lodeq.StoreStalledError("x"))


def heal(rig):
    rig.timers.fire(0.5)


async def test_in_the_last_wait_an_enqueue_happens(rig):
    stall(rig)
    await cancelled(
        rig.queue.enqueue(1),
        rig.queue.enqueue(2, dedup_key="k"),
        rig.queue.enqueue_many([NewTask(3), NewTask(4)]),
    )
    heal(rig)
    assert await drain(rig.queue) == [1, 2, 3, 4]


async def test_a_cancelled_claim_gives_its_tasks_back_at_their_old_places(rig):
    await rig.queue.enqueue_many([NewTask(i) for i in range(6)])
    stall(rig)
    await cancelled(rig.queue.claim(limit=4))
    heal(rig)
    await settle()
    assert not rig.state.leases
    leases = await rig.queue.claim(limit=9)
    assert payloads(leases) == list(range(6))
    assert {lease.attempt for lease in leases} == {1}


async def test_a_claim_cancelled_while_it_waits_takes_nothing(rig):
    await cancelled(rig.queue.claim(wait=10), rig.queue.claim(limit=5, wait=10))
    assert not rig.state.waiters.by_tenant_queue
    await rig.queue.enqueue(b"x")
    assert payloads(await rig.queue.claim()) == [b"x"]


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_claim_cancelled_in_the_tick_it_is_served_passes_its_tasks_on(shards):
    async with faulty(shards=shards) as rig:
        queue = rig.queue
        first = asyncio.ensure_future(queue.claim(limit=3, wait=50))
        await settle()
        second = asyncio.ensure_future(queue.claim(limit=3, wait=50))
        await settle()
        loop = asyncio.get_running_loop()
        for store in rig.stores:  # behind the write, before the waiter's next step
            store.after_write = lambda: loop.call_soon(first.cancel)
        await queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(3)])
        await settle()
        assert first.cancelled()
        leases = await second
        rest = await queue.claim(limit=3)  # what the other shards gave back one by one
        assert sorted(payloads([*leases, *rest])) == [0, 1, 2]
        assert {lease.attempt for lease in [*leases, *rest]} == {1}
        assert len(rig.state.leases) == 3
        assert not rig.state.waiters.by_tenant_queue
        await sound(rig.engine)


async def test_a_waiter_cancelled_before_it_is_served_wakes_the_next(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        first, second = (asyncio.ensure_future(queue.claim(wait=50)) for _ in range(2))
        await settle()
        enqueue = asyncio.ensure_future(queue.enqueue(b"x"))
        await asyncio.sleep(0)
        first.cancel()
        await settle()
        assert payloads(await second) == [b"x"]
        await enqueue


@pytest.mark.parametrize("how", ["complete", "nack", "release", "bury", "drop", "cancel"])
async def test_in_the_last_wait_the_end_of_a_lease_happens(rig, how):
    queue = rig.engine.queue("mail", backoff=Backoff(base=0))
    task = await queue.enqueue(b"x")
    lease = await queue.claim_one()
    stall(rig)
    calls = {
        "complete": lambda: lease.complete(b"r", then=[NewTask(b"next")]),
        "nack": lease.nack,
        "release": lease.release,
        "bury": lease.bury,
        "drop": lease.cancel,
        "cancel": lambda: rig.engine.cancel(task.id),
    }
    await cancelled(calls[how]())
    heal(rig)
    await settle()
    state = (await rig.engine.get(task.id)).state
    wanted = {"complete": "completed", "bury": "dead"} | dict.fromkeys(
        ("drop", "cancel"), "cancelled"
    )
    assert state == wanted.get(how, "ready")
    assert not lease.is_live
    assert (await queue.stats()).ready == (how in ("complete", "nack", "release"))


async def test_while_waiting_for_room_nothing_has_happened():
    async with faulty(submit_queue_max=1) as rig:
        queue = rig.engine.queue("mail")
        await queue.enqueue_many([NewTask(i) for i in range(4)])
        leases = await queue.claim(limit=3)
        rig.store.refusals.append(lodeq.StoreStalledError("x"))
        holds = asyncio.ensure_future(queue.enqueue(b"holds the only place"))
        await asyncio.sleep(0)
        await cancelled(
            queue.enqueue(b"no"),
            queue.enqueue(b"no", dedup_key="k"),
            queue.enqueue_many([NewTask(b"no")]),
            queue.claim(),
            queue.claim(wait=10),
            leases[0].complete(),
            leases[1].nack(),
            leases[2].release(),
            rig.engine.cancel(leases[0].task_id),
            rig.engine.complete_many([(leases[0], None)]),
            queue.pause(),
        )
        rig.timers.fire(0.5)
        await holds
        assert all(lease.is_live for lease in leases)
        stats = await queue.stats()
        assert (stats.ready, stats.leased, stats.results) == (2, 3, 0)
        assert not stats.is_paused
        await leases[0].complete()  # and there is room again
        await sound(rig.engine)


async def test_a_cancelled_wait_for_a_result_leaves_nothing_behind(clock):
    async with in_memory(clock) as engine:
        task = await engine.queue("mail").enqueue(b"x")
        await cancelled(engine.result(task.id, wait=50), engine.result(task.id, wait=50))
        assert not engine._state.result_waiters
        await engine.cancel(task.id)
        assert (await engine.result(task.id)).status == "cancelled"


async def test_a_cancelled_block_releases_its_lease(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")

        async def work():
            async with await queue.claim_one():
                await asyncio.get_running_loop().create_future()

        await cancelled_later(work())
        lease = await queue.claim_one()
        assert lease.attempt == 1
        await sound(engine)


async def cancelled_later(call):
    task = asyncio.ensure_future(call)
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()


async def test_a_cancelled_stream_gives_everything_back(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(i) for i in range(5)])

        async def work():
            async with queue.leases(limit=4) as stream:
                async for lease in stream:
                    async with lease:
                        await asyncio.get_running_loop().create_future()

        await cancelled_later(work())
        assert not engine._state.leases
        assert await drain(queue) == list(range(5))
        await sound(engine)


async def test_a_cancelled_close_is_finished_by_the_next(tmp_path):
    engine = await lodeq.open(tmp_path / "s").__aenter__()
    await engine.queue("mail").enqueue(b"x")
    closing = asyncio.ensure_future(engine.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await engine.close()
    async with lodeq.open(tmp_path / "s") as again:
        assert await drain(again.queue("mail")) == [b"x"]
