"""Calls of several parts that are refused: whole, and not a byte written."""

import pytest
from support_behaviour import in_memory, sound, unchanged

from lodeq import (
    DuplicateTaskError,
    LimitError,
    Limits,
    NewTask,
    QueueFullError,
    UsageError,
)

pytestmark = pytest.mark.anyio


async def test_durable_false_is_refused_in_fsync_mode(clock):
    async with in_memory(clock, durability="fsync") as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
        async with unchanged(engine):
            for call in (
                lambda: queue.enqueue(b"x", durable=False),
                lambda: queue.enqueue_many([NewTask(b"x")], durable=False),
                lambda: engine.enqueue_many([NewTask(b"x", queue="a")], durable=False),
                lambda: lease.complete(durable=False),
                lambda: engine.complete_many([(lease, None)], durable=False),
            ):
                with pytest.raises(UsageError):
                    await call()


async def test_what_does_not_fit_one_batch_is_no_atomic_call(clock):
    async with in_memory(clock, shards=2) as engine:
        queue = engine.queue("mail")
        held = await queue.enqueue(b"x", dedup_key="k")
        async with unchanged(engine):
            with pytest.raises(LimitError):
                await queue.enqueue_many([NewTask(b"x")] * 4097, atomic=True)
            with pytest.raises(LimitError):
                await queue.enqueue_many([NewTask(b"x" * 1_000_000)] * 3, atomic=True)
            with pytest.raises(LimitError):
                await queue.enqueue_many(
                    [NewTask(i, shard_key=str(i)) for i in range(20)], atomic=True
                )
        keyed = NewTask(b"z", dedup_key="k", on_conflict="raise")
        with pytest.raises(DuplicateTaskError) as caught:
            await queue.enqueue_many([keyed, keyed], atomic=True)
        assert caught.value.task_id == held.id
        assert (await queue.stats()).ready == 1
        assert len(await queue.enqueue_many([NewTask(b"y")] * 100, atomic=True)) == 100


async def test_an_atomic_call_with_a_held_key_enqueues_none_of_it(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        held = await queue.enqueue(b"x", dedup_key="k")
        keyed = NewTask(b"z", dedup_key="k", on_conflict="raise")
        for tasks in (
            [NewTask(b"y"), keyed],
            [NewTask(b"y", dedup_key="n"), keyed],
            [NewTask(b"y", dedup_key="n", on_conflict="raise")] * 2,
        ):
            with pytest.raises(DuplicateTaskError):
                await queue.enqueue_many(tasks, atomic=True)
            assert (await queue.stats()).ready == 1
        lease = await queue.claim_one()
        with pytest.raises(DuplicateTaskError) as caught:
            await queue.enqueue_many(
                [NewTask(b"y"), keyed._replace(on_conflict="replace")], atomic=True
            )
        assert caught.value.task_id == held.id == lease.task_id
        assert (await queue.stats()).ready == 0
        await sound(engine)


async def test_pending_max_refuses_whole_calls(clock):
    async with in_memory(clock, limits=Limits(pending_max=5)) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(i, delay=i % 2) for i in range(4)])
        async with unchanged(engine):
            with pytest.raises(QueueFullError) as caught:
                await queue.enqueue_many([NewTask(b"x")] * 2)
            assert caught.value.retry_after_ms > 0
        await queue.enqueue(b"x")
        async with unchanged(engine):
            with pytest.raises(QueueFullError):
                await queue.enqueue(b"x")
        await engine.queue("other").enqueue(b"x")
        await queue.claim_one()
        await queue.enqueue(b"x")
