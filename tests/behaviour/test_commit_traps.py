"""Group commit under a store that stalls, fails, or takes its time: who is told what, and when."""

import asyncio

import pytest
from support_behaviour import payloads, settle, sound, until
from support_faults import faulty

import lodeq
from lodeq import (
    ClosedError,
    CommitUnknownError,
    NewTask,
    StorageFullError,
    StoragePoisonedError,
    StoreStalledError,
)
from lodeq.coalescer import coalescer, syncing

pytestmark = pytest.mark.anyio


def stalls(n):
    return [StoreStalledError("stalled") for _ in range(n)]


async def start(*calls):
    """Start the calls and let them get as far as they can."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await settle()
    return tasks


@pytest.mark.parametrize("error", [StoreStalledError("x"), StorageFullError("x")])
async def test_a_refused_group_is_retried_with_the_same_operations_and_not_overtaken(error):
    async with faulty(merge_max=2) as rig:
        rig.store.attempts.clear()
        rig.store.refusals.extend([error] * 3)
        tasks = await start(*(rig.queue.enqueue(i) for i in range(6)))
        assert not any(task.done() for task in tasks)
        tasks += await start(rig.queue.enqueue(6))
        assert len(rig.store.attempts) == 1
        for _ in range(3):
            assert rig.timers.fire(0.5) == 1
            await settle()
        assert [r.duplicate for r in await asyncio.gather(*tasks)] == [False] * 7
        first, *rest = rig.store.attempts
        assert rest[:3] == [first] * 3
        assert rig.store.applied == rig.store.attempts[3:]
        assert (await rig.engine.stats()).shards[0].stalls == 3
        assert payloads(await rig.queue.claim(limit=9)) == list(range(7))
        await sound(rig.engine)


async def test_a_stall_shows_in_health_and_heals():
    async with faulty() as rig:
        rig.store.refusals.extend(stalls(1))
        (task,) = await start(rig.queue.enqueue(b"x"))
        assert "stalled" in (await rig.engine.health()).reasons[0]
        rig.timers.fire(0.5)
        await task
        assert (await rig.engine.health()).ok


async def test_a_failed_commit_tells_each_caller_what_is_known():
    """Of the failing group: unknown. Behind it: nothing was written. Waiting claims: told too."""
    async with faulty(merge_max=2) as rig:
        idle = await start(rig.engine.queue("idle").claim(wait=1000))
        rig.store.refusals.append(CommitUnknownError("disk on fire"))
        tasks = await start(*(rig.queue.enqueue(i) for i in range(5)))
        kinds = [type(task.exception()) for task in tasks]
        assert kinds == [CommitUnknownError] * 2 + [StoragePoisonedError] * 3
        assert isinstance(idle[0].exception(), StoragePoisonedError)
        with pytest.raises(StoragePoisonedError):
            await rig.queue.enqueue(b"later")
        with pytest.raises(StoragePoisonedError):
            await rig.queue.claim()
        with pytest.raises(StoragePoisonedError):
            await rig.queue.claim(wait=1000)
        assert not (await rig.engine.health()).ok
        assert rig.store.attempts[-1] not in rig.store.applied


async def test_reads_go_on_and_leases_stay_when_a_shard_is_poisoned():
    async with faulty() as rig:
        a, b = [(await rig.queue.enqueue(x)).id for x in (b"a", b"b")]
        lease = await rig.queue.claim_one()
        await lease.complete(b"r")
        held = await rig.queue.claim_one()
        rig.store.refusals.append(CommitUnknownError("gone"))
        with pytest.raises(CommitUnknownError):
            await rig.queue.enqueue(b"c")
        assert (await rig.engine.result(a)).value == b"r"
        assert (await rig.engine.get(b)).state == "leased"
        with pytest.raises(StoragePoisonedError):
            await held.complete()
        with pytest.raises(StoragePoisonedError):
            await rig.engine.cancel(b)
        assert (await rig.queue.peek()) == []


async def test_fsync_does_not_lie_about_a_poisoned_shard():
    async with faulty() as rig:
        await rig.queue.enqueue(b"a")
        rig.store.refusals.append(CommitUnknownError("gone"))
        with pytest.raises(CommitUnknownError):
            await rig.queue.enqueue(b"b")
        with pytest.raises(lodeq.StorageError):
            await rig.engine.fsync()


async def test_other_shards_go_on_when_one_is_poisoned():
    async with faulty(shards=2) as rig:
        keys = {0: "", 1: ""}
        for i in range(20):
            receipt = await rig.queue.enqueue(i, shard_key=str(i))
            keys[rig.core.shard_of(receipt.id).index] = str(i)
        rig.stores[0].refusals.append(CommitUnknownError("gone"))
        with pytest.raises(CommitUnknownError):
            await rig.queue.enqueue(b"x", shard_key=keys[0])
        with pytest.raises(StoragePoisonedError):
            await rig.queue.enqueue(b"x", shard_key=keys[0])
        for _ in range(20):
            receipt = await rig.queue.enqueue(b"new")
            assert rig.core.shard_of(receipt.id).index == 1
        leases = await rig.queue.claim(limit=100)
        assert {lease.bucket.shard.index for lease in leases} == {1}
        assert payloads(leases).count(b"new") == 20
        for lease in leases:
            await lease.complete()
        (waiting,) = await start(rig.queue.claim(wait=100))
        await rig.queue.enqueue(b"last")
        assert payloads(await waiting) == [b"last"]


async def test_a_claim_over_shards_keeps_what_the_healthy_ones_gave():
    async with faulty(shards=2) as rig:
        await rig.queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(20)])
        rig.stores[0].refusals.append(CommitUnknownError("gone"))
        leases = await rig.queue.claim(limit=20)
        assert leases
        assert {lease.bucket.shard.index for lease in leases} == {1}
        assert len(rig.core.leases) == len(leases)


async def test_enqueue_many_tells_what_succeeded_when_a_shard_fails():
    async with faulty(shards=2) as rig:
        rig.stores[0].refusals.append(CommitUnknownError("gone"))
        with pytest.raises(CommitUnknownError) as caught:
            await rig.queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(20)])
        receipts = caught.value.receipts
        assert len(receipts) == 20
        good = [r for r in receipts if r is not None]
        assert 0 < len(good) < 20
        for receipt in good:
            assert (await rig.engine.get(receipt.id)).state == "ready"


@pytest.mark.parametrize("durable", [False, True])
async def test_an_answer_never_rests_on_an_unfinished_commit(durable):
    """A duplicate, a get, a result, a cancel → False: all wait for the commit they saw."""
    mode = "fsync" if durable else "nosync"
    async with faulty(durability=mode) as rig:
        queue = rig.queue
        await queue.enqueue(b"old", dedup_key="old")
        lease = await queue.claim_one()
        if durable:
            rig.store.is_sync_held = True
        else:
            rig.store.refusals.extend(stalls(1))
        new, done = await start(queue.enqueue(b"x", dedup_key="k"), lease.complete(b"r"))
        gone = lease.task_id
        answers = await start(
            queue.enqueue(b"y", dedup_key="k"),
            rig.engine.get(gone),
            rig.engine.result(gone),
            rig.engine.cancel(gone),
            queue.list("completed"),
        )
        assert not any(task.done() for task in [new, done, *answers])
        if durable:
            while rig.store.syncs:
                rig.store.release_sync()
                await settle()
        else:
            rig.timers.fire(0.5)
            await settle()
        receipt, task, result, cancelled, listed = await asyncio.gather(*answers)
        assert receipt == (new.result().id, True, None)
        assert (task.state, result.value, cancelled) == ("completed", b"r", False)
        assert [t.id for t in listed] == [gone]


async def test_an_answer_that_rested_on_a_failed_commit_is_not_given():
    async with faulty() as rig:
        rig.store.refusals.extend([*stalls(1), CommitUnknownError("gone")])
        first, second, third = await start(
            rig.queue.enqueue(b"x", dedup_key="k"),
            rig.queue.enqueue(b"x", dedup_key="k"),
            rig.queue.claim(),
        )
        rig.timers.fire(0.5)
        await settle()
        for task in (first, second, third):
            assert isinstance(task.exception(), CommitUnknownError)
        assert not rig.core.leases


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
    monkeypatch.setattr(coalescer, "CLOSE_STALLED_S_MAX", 0.0)
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


async def test_the_sync_interval_covers_idle_writes_and_the_watermark_follows(monkeypatch):
    now = 100.0
    monkeypatch.setattr(syncing, "perf_s", lambda: now)
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
        now += 0.5
        await rig.queue.enqueue(2, durable=True)
        now += 0.6
        rig.timers.fire()
        await settle()
        rig.timers.fire()
        await settle()
        applied = (await rig.engine.stats()).shards[0].applied_commit
        assert marks[-1] == applied
        now += 0.5
        await rig.queue.enqueue(3)
        now += 0.3
        await rig.queue.enqueue(4, durable=True)
        for _ in range(3):  # idle from here on
            now += 1
            rig.timers.fire()
            await settle()
        assert marks[-1] == (await rig.engine.stats()).shards[0].applied_commit
        assert marks == sorted(set(marks))
