"""Several shards cost what one costs: groups and fsyncs of a turn, and the order of claims."""

import asyncio
import random
from collections import Counter

import pytest
from support_behaviour import drain, in_memory, sound

from lodeq import NewTask
from lodeq.coalescer.shard_status import SERVING, STALLED
from lodeq.engine.runtime.ids import shard_of
from lodeq.repository.state.long_polls import ClaimRequest
from lodeq.repository.tasks import claim_order, lease_grant

pytestmark = pytest.mark.anyio
CALLERS = 64
TURNS = 40


def syncs(engine):
    return sum(shard.coalescer.stats.syncs for shard in engine._state.shards)


def commits(engine):
    return sum(shard.coalescer.stats.commits for shard in engine._state.shards)


async def test_a_turn_of_enqueues_is_one_group_and_one_fsync(clock):
    async with in_memory(clock, shards=8, durability="fsync") as engine:
        queue = engine.queue("mail")
        synced, written = syncs(engine), commits(engine)
        for _ in range(TURNS):
            await asyncio.gather(*(queue.enqueue(b"x") for _ in range(CALLERS)))
        assert syncs(engine) - synced <= 1.2 * TURNS
        assert commits(engine) - written == TURNS
        assert (
            len({shard.coalescer.stats.commits for shard in engine._state.shards}) == 1
        )  # all alike


@pytest.mark.parametrize("waiting", [0, 1000])
async def test_a_turn_of_each_call_is_one_fsync_beside_any_backlog(clock, waiting):
    async with in_memory(clock, shards=8, durability="fsync") as engine:
        queue = engine.queue("mail")
        for _ in range(waiting // 50):
            await asyncio.gather(*(queue.enqueue(b"old") for _ in range(50)))
        synced = syncs(engine)

        async def call():
            for _ in range(TURNS):
                await queue.enqueue(b"x")
                (lease,) = await queue.claim()
                await lease.complete(b"ok")

        await asyncio.gather(*(call() for _ in range(CALLERS)))
        # A turn of claims may reach over the end of what lies on one shard.
        spread = 1.2 if not waiting else 2.2
        assert syncs(engine) - synced <= (1.2 + 2 * spread) * TURNS
        await drain(queue)
        await sound(engine)


async def test_producers_and_workers_share_groups(clock):
    """Workers that keep up: what is enqueued, claimed and completed in a turn is one group."""

    async def life(shards):
        async with in_memory(clock, shards=shards, durability="fsync") as engine:
            queue = engine.queue("mail")
            is_over = False

            async def work():
                while not is_over:
                    for lease in await queue.claim(wait=5.0):
                        await lease.complete(b"ok")

            async def produce():
                for _ in range(TURNS):
                    await queue.enqueue(b"x")

            workers = [asyncio.ensure_future(work()) for _ in range(CALLERS)]
            await asyncio.gather(*(produce() for _ in range(16)))
            is_over = True
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            return syncs(engine)

    one, eight = await life(1), await life(8)
    assert eight <= 1.2 * one


@pytest.mark.parametrize("seed", range(6))
async def test_claims_of_any_size_keep_one_order_over_all_shards(clock, seed):
    """Whichever way they go: of one, which is flat, or of several, which merges runs."""
    dice = random.Random(seed)
    async with in_memory(clock, shards=8) as engine:
        queue = engine.queue("mail")
        waiting, number = [], 0
        for _ in range(150):
            if dice.random() < 0.6:
                count = dice.choice((1, 1, 5, 40))
                priority = dice.choice((5, 5, 5, 2, 9))
                tasks = [NewTask(n, priority=priority) for n in range(number, number + count)]
                if count == 1:
                    await queue.enqueue(number, priority=priority)
                else:
                    await queue.enqueue_many(tasks)
                waiting += [(-priority, n) for n in range(number, number + count)]
                number += count
                clock.jump(dice.choice((0.0, 0.001)))
            else:
                waiting.sort()
                limit = dice.choice((1, 1, 2, 7, 64))
                leases = await queue.claim(limit=limit)
                got = [lease.payload for lease in leases]
                assert got == [n for _, n in waiting[:limit]]
                if dice.random() < 0.2:
                    await asyncio.gather(*(lease.release() for lease in leases))
                    continue
                del waiting[:limit]
                await engine.complete_many([(lease, None) for lease in leases])
        assert await drain(queue, limit=9) == [n for _, n in sorted(waiting)]
        await sound(engine)


async def test_a_claim_of_one_takes_the_flat_way_over_any_number_of_shards(clock, monkeypatch):
    monkeypatch.setattr(claim_order, "pick", lambda *_: pytest.fail("the general way"))
    async with in_memory(clock, shards=8) as engine:
        queue = engine.queue("mail")
        for n in range(32):
            await queue.enqueue(n)
        shard_queues = engine._state.find_tenant_queue(b"mail", b"").shard_queues
        assert {shard_queue.ready for shard_queue in shard_queues} == {4}
        got = []
        for _ in range(32):
            (lease,) = await queue.claim()
            got.append(lease.payload)
        assert got == list(range(32))


async def test_a_claim_waits_for_the_shard_of_its_task_and_for_no_other(clock):
    async with in_memory(clock, shards=8, submit_queue_max=4) as engine:
        state, queue = engine._state, engine.queue("mail")
        await queue.enqueue(b"x")
        (shard_queue,) = (
            b for b in state.find_tenant_queue(b"mail", b"").shard_queues if b is not None
        )
        own = shard_queue.shard.coalescer
        other = state.shards[shard_queue.shard.index - 1].coalescer
        request = ClaimRequest([(b"mail", b"")], limit=1, lease_s=30.0, worker=b"")
        own.waiting = 4
        assert lease_grant.take_one(state, request, is_caller=True) is None
        own.waiting, other.waiting = 0, 4
        taken = lease_grant.take_one(state, request, is_caller=True)
        assert taken is not None
        other.waiting = 0
        await own.wait(taken[1])


async def test_a_stalled_shard_gets_no_unkeyed_work_and_its_tasks_are_claimed(clock):
    async with in_memory(clock, shards=8) as engine:
        state, queue = engine._state, engine.queue("mail")
        for n in range(8):
            await queue.enqueue(n)
        state.shards[3].coalescer.enter(STALLED)
        found = Counter()
        for n in range(8, 78, 2):
            receipts = await asyncio.gather(queue.enqueue(n), queue.enqueue(n + 1))
            found.update(shard_of(receipt.id, 8) for receipt in receipts)
        assert found == {shard: 10 for shard in range(8) if shard != 3}
        state.shards[3].coalescer.enter(SERVING)
        assert await drain(queue, limit=5) == list(range(78))


async def test_more_callers_than_a_shard_takes_go_to_the_next_in_the_same_turn(clock):
    async with in_memory(clock, shards=4, submit_queue_max=8) as engine:
        queue = engine.queue("mail")
        receipts = await asyncio.gather(*(queue.enqueue(n) for n in range(100)))
        found = Counter(shard_of(receipt.id, 4) for receipt in receipts)
        assert set(found) == {0, 1, 2, 3}
        assert sorted(await drain(queue, limit=64)) == list(range(100))
