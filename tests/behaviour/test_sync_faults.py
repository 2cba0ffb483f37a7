"""Syncs and the close: what is durable, who waits for it, and that it always ends."""

import asyncio

import pytest
from support_behaviour import settle, until
from support_faults import faulty

from lodeq import (
    ClosedError,
    CommitUnknownError,
    NewTask,
    StoragePoisonedError,
    StoreStalledError,
)
from lodeq.coalescer import commit_loop, fsync

pytestmark = pytest.mark.anyio


def stalls(n):
    return [StoreStalledError("stalled") for _ in range(n)]


async def start(*calls):
    """Start the calls and let them get as far as they can."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await settle()
    return tasks


async def test_close_waits_for_a_sync_in_flight():
    async with faulty(durability="fsync") as rig:
        rig.store.is_sync_held = True
        (call,) = await start(rig.queue.enqueue(b"x"))
        closing = asyncio.ensure_future(rig.engine.close())
        await settle()
        assert not closing.done()
        assert not call.done()
        with pytest.raises(ClosedError):
            await rig.queue.enqueue(b"y")
        rig.store.is_sync_held = False
        rig.store.release_sync()
        await until(closing.done)
        assert not call.result().duplicate
        await rig.engine.close()


async def test_close_of_a_store_that_refuses_every_write_ends(monkeypatch):
    """A stall that begins only when the last groups are written must not hold up the close."""
    monkeypatch.setattr(commit_loop, "CLOSE_STALLED_S_MAX", 0.0)
    async with faulty() as rig:
        rig.store.refusals.extend(stalls(1000))
        call = asyncio.ensure_future(rig.queue.enqueue(b"x"))
        closing = asyncio.ensure_future(rig.engine.close())
        for _ in range(200):
            await settle(5)
            rig.timers.fire(0.5)
            if closing.done():
                break
        await until(closing.done, turns=2000)
        assert isinstance(call.exception(), ClosedError)


async def test_close_does_not_wait_for_a_reaper_that_waits_for_a_stalled_store(monkeypatch):
    monkeypatch.setattr(commit_loop, "CLOSE_STALLED_S_MAX", 0.0)
    async with faulty() as rig:
        await rig.queue.enqueue(b"x")
        await rig.queue.claim(lease=5)
        rig.store.refusals.extend(stalls(1000))
        await rig.clock.advance(6)
        assert rig.state.shards[0].coalescer.refused_write is not None
        closing = asyncio.ensure_future(rig.engine.close())
        for _ in range(200):
            await settle(5)
            rig.timers.fire(0.5)
            if closing.done():
                break
        await until(closing.done, turns=2000)


async def test_close_over_a_failing_commit_still_closes():
    async with faulty() as rig:
        rig.store.refusals.append(CommitUnknownError("gone"))
        call = asyncio.ensure_future(rig.queue.enqueue(b"x"))
        await asyncio.sleep(0)
        await rig.engine.close()
        assert isinstance(call.exception(), CommitUnknownError)
        with pytest.raises(ClosedError):
            await rig.queue.enqueue(b"y")
        with pytest.raises(ClosedError):
            rig.store.inner.get(b"x")


async def test_durable_true_waits_for_a_sync_in_nosync_mode():
    async with faulty() as rig:
        rig.store.is_sync_held = True
        plain, durable = await start(rig.queue.enqueue(1), rig.queue.enqueue(2, durable=True))
        assert plain.done()
        assert not durable.done()
        rig.store.release_sync()
        await settle()
        assert not durable.result().duplicate
        lease = await rig.queue.claim_one()
        (done,) = await start(lease.complete(durable=True))
        assert not done.done()
        (again,) = await start(rig.engine.fsync())
        assert not again.done()
        rig.store.release_sync()
        await settle()
        assert done.done()
        while rig.store.syncs:
            rig.store.release_sync()
            await settle()
        await again


async def test_a_sync_covers_only_what_was_written_before_it_started():
    async with faulty(durability="fsync") as rig:
        rig.store.is_sync_held = True
        (first,) = await start(rig.queue.enqueue(1))
        (second,) = await start(rig.queue.enqueue(2))
        rig.store.release_sync()
        await settle()
        assert first.done()
        assert not second.done()
        assert len(rig.store.syncs) == 1
        rig.store.release_sync()
        await settle()
        assert second.done()


async def test_a_failed_sync_is_never_retried_and_poisons():
    async with faulty(durability="fsync") as rig:
        rig.store.is_sync_held = True
        (first,) = await start(rig.queue.enqueue(1))
        (second,) = await start(rig.queue.enqueue(2))
        calls = rig.store.sync_calls
        rig.store.release_sync(CommitUnknownError("EIO"))
        await settle()
        for task in (first, second):
            assert isinstance(task.exception(), CommitUnknownError)
        rig.timers.fire()
        await settle()
        assert rig.store.sync_calls == calls


@pytest.mark.parametrize("durability", ["fsync", "nosync"])
async def test_a_repeated_complete_does_not_lie_about_a_failed_sync(durability):
    async with faulty(durability=durability) as rig:
        await rig.queue.enqueue_many([NewTask(i) for i in range(2)])
        leases = await rig.queue.claim(limit=2)
        rig.store.is_sync_held = True
        (call,) = await start(leases[0].complete(durable=True))
        rig.store.release_sync(CommitUnknownError("EIO"))
        with pytest.raises(CommitUnknownError):
            await call
        with pytest.raises(StoragePoisonedError):
            await leases[0].complete(durable=True)
        if durability == "fsync":
            with pytest.raises(StoragePoisonedError):
                await rig.engine.complete_many([(leases[0], None)])
        else:
            await leases[0].complete()  # it was applied, and that is all this asks for


async def test_the_sync_interval_covers_idle_writes_and_the_watermark_follows(monkeypatch):
    now = 100.0
    monkeypatch.setattr(fsync, "perf_s", lambda: now)
    async with faulty() as rig:
        marks = rig.marks[0]
        await rig.queue.enqueue(1)
        assert rig.store.sync_calls == 0
        now += 1
        rig.timers.fire()
        await settle()
        assert rig.store.sync_calls == 1
        shard = (await rig.engine.stats()).shards[0]
        assert marks == [shard.applied_commit] == [shard.durable_commit]
        # A durable call publishes, the next write is synced with no time passed since: what is
        # idle afterwards must still be promised.
        now += 0.2
        await rig.queue.enqueue(2)
        now += 0.9
        await rig.queue.enqueue(3, durable=True)
        await rig.queue.enqueue(4)
        rig.timers.fire()
        await settle()
        for _ in range(3):
            now += 1
            rig.timers.fire()
            await settle()
        assert marks[-1] == (await rig.engine.stats()).shards[0].applied_commit
        assert marks == sorted(set(marks))
