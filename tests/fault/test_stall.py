"""Ten seconds in which the store takes no write: callers wait, in order, and the loop goes on.

The retries of those ten seconds are fired one by one; no time passes. The tests of the coalescer
have the single refusal and the drain that gives up.
"""

from __future__ import annotations

import asyncio

import pytest
from support_behaviour import settle, sound
from support_faults import Rig, faulty

import lodeq
from lodeq.coalescer.commit_loop import CLOSE_STALLED_S_MAX, RETRY_FULL_S, RETRY_STALLED_S
from lodeq.errors import StorageFullError, StoreStalledError
from lodeq.repository.api.engine import runtime_of

pytestmark = pytest.mark.anyio
STALL_S = 10.0
RETRIES = round(STALL_S / RETRY_STALLED_S)
CALLERS = 40


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def stall(rig: Rig, writes: int) -> None:
    rig.store.refusals.extend(StoreStalledError("Result incomplete") for _ in range(writes))


async def callers(rig: Rig, done: list[int]) -> list[asyncio.Task[None]]:
    """So many enqueues at once, more than the queue of the shard holds."""

    async def one(number: int) -> None:
        await rig.queue.enqueue(b"%d" % number)
        done.append(number)

    tasks = [asyncio.ensure_future(one(n)) for n in range(CALLERS)]
    await settle()
    return tasks


@pytest.mark.parametrize("durability", ["nosync", "fsync"])
async def test_callers_wait_and_go_on_in_order(durability: str) -> None:
    async with faulty(submit_queue_max=8, durability=durability) as rig:
        done: list[int] = []
        stall(rig, RETRIES)
        tasks = await callers(rig, done)
        for _ in range(RETRIES - 1):
            assert rig.timers.fire(RETRY_STALLED_S) == 1
        await settle()  # the loop is free all the while
        assert done == []
        health = await rig.engine.health()
        assert not health.ok
        assert "is stalled" in health.reasons[0]
        assert rig.state.shards[0].coalescer.waiting == 8  # the others wait for room
        rig.timers.fire(RETRY_STALLED_S)
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert done == list(range(CALLERS))
        assert (await rig.engine.health()).ok
        leases = await rig.queue.claim(limit=CALLERS)
        assert [int(lease.payload) for lease in leases] == list(range(CALLERS))
        await sound(rig.engine)


@pytest.mark.parametrize("durability", ["nosync", "fsync"])
async def test_nothing_is_synced_on_a_full_disk(durability: str) -> None:
    """RocksDB would refuse, and a sync that is refused cannot be told from one that failed."""
    async with faulty(durability=durability) as rig:
        await rig.queue.enqueue(b"0")
        rig.store.refusals.extend([StorageFullError("full")] * 2)
        second = asyncio.ensure_future(rig.queue.enqueue(b"1"))
        await settle()
        syncs = rig.store.sync_calls
        durable = asyncio.ensure_future(rig.engine.fsync())
        rig.timers.fire()  # the interval, and a retry in vain
        await settle()
        assert rig.store.sync_calls == syncs
        rig.timers.fire(RETRY_FULL_S)
        await asyncio.wait_for(asyncio.gather(second, durable), 10)
        assert rig.store.sync_calls > syncs
        assert (await rig.engine.health()).ok


async def test_a_sync_that_meets_the_full_disk_is_made_again() -> None:
    async with faulty(durability="fsync") as rig:
        rig.store.is_sync_held = True
        first = asyncio.ensure_future(rig.queue.enqueue(b"0"))
        await settle()
        rig.store.refusals.append(StorageFullError("full"))
        second = asyncio.ensure_future(rig.queue.enqueue(b"1"))
        await settle()
        rig.store.is_sync_held = False
        rig.store.release_sync(StorageFullError("Writer has previous error"))  # none was made
        await settle()
        assert not first.done()
        rig.timers.fire(RETRY_FULL_S)
        await asyncio.wait_for(asyncio.gather(first, second), 10)
        assert (await rig.engine.health()).ok


async def test_a_close_on_a_disk_that_stays_full_ends() -> None:
    async with faulty(durability="fsync") as rig:
        await rig.queue.enqueue(b"0")
        rig.store.refusals.extend([StorageFullError("full")] * 1000)
        second = asyncio.ensure_future(rig.queue.enqueue(b"1"))
        await settle()
        closing = asyncio.ensure_future(rig.engine.close())
        await settle()
        for _ in range(round(CLOSE_STALLED_S_MAX / RETRY_FULL_S) + 1):
            rig.timers.fire(RETRY_FULL_S)
            await asyncio.sleep(0)
        await asyncio.wait_for(closing, 10)
        with pytest.raises(lodeq.ClosedError):
            await second


async def test_the_shards_of_a_full_disk_are_given_up_together_at_a_close() -> None:
    """One after the other would take ten seconds each, and whoever stops the process kills it."""
    async with faulty(shards=4) as rig:
        for store in rig.stores:
            store.refusals.extend([StorageFullError("full")] * 1000)
        calls = [rig.queue.enqueue(b"%d" % n, dedup_key=f"k{n}") for n in range(32)]
        writes = [asyncio.ensure_future(call) for call in calls]
        await settle()
        assert all(shard.coalescer.refused_write for shard in rig.state.shards)
        closing = asyncio.ensure_future(rig.engine.close())
        await settle()
        for _ in range(round(CLOSE_STALLED_S_MAX / RETRY_FULL_S) + 1):
            rig.timers.fire(RETRY_FULL_S)
            await settle()
        assert closing.done()
        told = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(error) for error in told} == {lodeq.ClosedError}


async def test_a_close_that_could_not_write_all_is_no_clean_one() -> None:
    """The ends of exported leases are among it: after a clean close they would count as stored."""
    async with faulty() as rig:
        await rig.queue.enqueue(b"0")
        opened = runtime_of(rig.engine).opened
        await rig.engine.fsync()
        rig.store.refusals.extend([StorageFullError("full")] * 1000)
        second = asyncio.ensure_future(rig.queue.enqueue(b"1"))
        await settle()
        closing = asyncio.ensure_future(rig.engine.close())
        for _ in range(round(CLOSE_STALLED_S_MAX / RETRY_FULL_S) + 1):
            await settle()
            rig.timers.fire(RETRY_FULL_S)
        await asyncio.gather(closing, second, return_exceptions=True)
        assert not opened.is_sound


async def test_a_close_during_it_waits_for_its_end() -> None:
    async with faulty() as rig:
        done: list[int] = []
        stall(rig, RETRIES // 2)
        tasks = await callers(rig, done)
        closing = asyncio.ensure_future(rig.engine.close())
        await settle()
        for _ in range(RETRIES // 2):
            assert not closing.done()
            rig.timers.fire(RETRY_STALLED_S)
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(closing, *tasks), 10)
        assert done == list(range(CALLERS))


async def test_a_close_does_not_wait_for_ever_and_says_what_was_not_written() -> None:
    async with faulty() as rig:
        done: list[int] = []
        stall(rig, 4 * RETRIES)
        tasks = await callers(rig, done)
        closing = asyncio.ensure_future(rig.engine.close())
        await settle()
        for _ in range(round(CLOSE_STALLED_S_MAX / RETRY_STALLED_S) + 1):
            rig.timers.fire(RETRY_STALLED_S)
            await asyncio.sleep(0)
        await asyncio.wait_for(closing, 10)
        told = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in told} == {lodeq.ClosedError}
        assert done == []
        assert rig.store.applied == []
