"""Group commit under a store that stalls, fails, or takes its time: who is told what, and when."""

import asyncio

import pytest
from support_behaviour import payloads, settle, sound
from support_faults import faulty

import lodeq
from lodeq import (
    CommitUnknownError,
    NewTask,
    StorageFullError,
    StoragePoisonedError,
    StoreStalledError,
)

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
    async with faulty(commit_batch_max=2) as rig:
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
    async with faulty(commit_batch_max=2) as rig:
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
            keys[rig.state.shard_of(receipt.id).index] = str(i)
        rig.stores[0].refusals.append(CommitUnknownError("gone"))
        with pytest.raises(CommitUnknownError):
            await rig.queue.enqueue(b"x", shard_key=keys[0])
        with pytest.raises(StoragePoisonedError):
            await rig.queue.enqueue(b"x", shard_key=keys[0])
        for _ in range(20):
            receipt = await rig.queue.enqueue(b"new")
            assert rig.state.shard_of(receipt.id).index == 1
        leases = await rig.queue.claim(limit=100)
        assert {lease.shard_queue.shard.index for lease in leases} == {1}
        assert payloads(leases).count(b"new") == 20
        for lease in leases:
            await lease.complete()
        (waiting,) = await start(rig.queue.claim(wait=100))
        await rig.queue.enqueue(b"last")
        assert payloads(await waiting) == [b"last"]


async def test_complete_many_completes_on_the_shards_that_take_writes():
    async with faulty(shards=2) as rig:
        await rig.queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(20)])
        leases = await rig.queue.claim(limit=20)
        leases.sort(key=lambda lease: lease.shard_queue.shard.index, reverse=True)
        leases.append(leases.pop(0))  # before and behind those of the poisoned shard
        healthy = [lease for lease in leases if lease.shard_queue.shard.index == 1]
        rig.state.shards[0].coalescer.fail(OSError("EIO"))
        with pytest.raises(StoragePoisonedError):
            await rig.engine.complete_many([(lease, b"done") for lease in leases])
        assert {lease.is_live for lease in healthy} == {False}
        for lease in healthy:
            assert (await rig.engine.result(lease.task_id)).value == b"done"
        assert (await rig.engine.stats()).completed_total == len(healthy)


async def test_a_claim_over_shards_keeps_what_the_healthy_ones_gave():
    async with faulty(shards=2) as rig:
        await rig.queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(20)])
        rig.stores[0].refusals.append(CommitUnknownError("gone"))
        leases = await rig.queue.claim(limit=20)
        assert leases
        assert {lease.shard_queue.shard.index for lease in leases} == {1}
        assert len(rig.state.leases) == len(leases)


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
        assert not rig.state.leases


async def given_back(rig, n):
    """n ready tasks whose bodies a claim has to read from the store."""
    await rig.queue.enqueue_many([NewTask(i) for i in range(n)])
    for lease in await rig.queue.claim(limit=n):
        await lease.release()


async def test_a_claim_that_cannot_read_loses_nothing():
    async with faulty(shards=2) as rig:
        await given_back(rig, 5)
        for store in rig.stores:
            store.read_error = lodeq.StorageError("the disk said no")
        for _ in range(2):
            with pytest.raises(lodeq.StorageError):
                await rig.queue.claim(limit=3)
        assert (await rig.queue.stats()).ready == 5
        for store in rig.stores:
            store.read_error = None
        assert payloads(await rig.queue.claim(limit=9)) == list(range(5))
        await sound(rig.engine)


async def test_a_waiting_claim_that_cannot_read_hangs_nobody():
    async with faulty() as rig:
        await given_back(rig, 2)
        await rig.queue.pause()
        (waiting,) = await start(rig.queue.claim(limit=2, wait=100))
        rig.store.read_error = lodeq.StorageError("the disk said no")
        resume, enqueue = await start(rig.queue.resume(), rig.engine.queue("other").enqueue(b"x"))
        assert resume.done()
        assert enqueue.done()
        assert isinstance(waiting.exception(), lodeq.StorageError)
        rig.store.read_error = None
        assert payloads(await rig.queue.claim(limit=2)) == [0, 1]
        await sound(rig.engine)
