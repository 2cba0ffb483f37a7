"""Calls of several parts that are refused: whole, and not a byte written."""

import asyncio

import pytest
from support_behaviour import in_memory, sound, unchanged, until
from support_faults import faulty

from lodeq import (
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    DuplicateTaskError,
    LimitError,
    Limits,
    NewTask,
    PayloadTooLargeError,
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


@pytest.mark.parametrize("end", ["complete", "bury"])
async def test_an_atomic_call_that_takes_over_a_key_needs_room_for_it(clock, end):
    async with in_memory(clock, limits=Limits(pending_max=1)) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x", dedup_key="k", dedup_window=3600)
        lease = await queue.claim_one()
        await getattr(lease, end)()
        keyed = NewTask(b"z", dedup_key="k", dedup_window=3600, on_conflict="replace")
        async with unchanged(engine):
            with pytest.raises(QueueFullError):
                await queue.enqueue_many([NewTask(b"y"), keyed], atomic=True)
        await queue.enqueue_many([keyed, keyed], atomic=True)  # the second replaces the first
        assert (await queue.stats()).ready == 1
        await queue.enqueue_many([keyed], atomic=True)
        await sound(engine)


async def test_an_atomic_call_whose_replaced_task_cannot_be_read_enqueues_none_of_it():
    async with faulty() as rig:
        held = await rig.queue.enqueue(b"x", dedup_key="k", dedup_window=3600)
        get = rig.store.get

        def unreadable(key):
            if key.startswith(b"q/"):
                raise CorruptionError("a block of it is damaged")
            return get(key)

        keyed = NewTask(b"z", dedup_key="k", on_conflict="replace")
        async with unchanged(rig.engine):
            rig.store.get = unreadable
            with pytest.raises(CorruptionError):
                await rig.queue.enqueue_many([NewTask(b"y"), keyed], atomic=True)
            rig.store.get = get
        _, receipt = await rig.queue.enqueue_many([NewTask(b"y"), keyed], atomic=True)
        assert receipt.replaced == held.id


async def test_an_enqueue_many_that_meets_close_tells_what_it_enqueued(clock):
    async with in_memory(clock) as engine:
        tasks = [NewTask(b"x", priority=1)] * 1025
        call = asyncio.ensure_future(engine.queue("mail").enqueue_many(tasks))
        await until(lambda: engine._state.totals.enqueued)
        await engine.close()
        with pytest.raises(ClosedError) as caught:
            await call
        assert [r is not None for r in caught.value.receipts] == [True] * 1024 + [False]


async def test_a_refused_enqueue_many_has_a_receipt_of_none_for_each(clock):
    async with in_memory(clock, limits=Limits(pending_max=1)) as engine:
        queue = engine.queue("mail")
        for options, error in (({}, QueueFullError), ({"atomic": True}, LimitError)):
            tasks = [NewTask(b"x" * 600_000)] * 5
            if options:
                engine._state.limits = Limits()
            with pytest.raises(error) as caught:
                await queue.enqueue_many(tasks, **options)
            assert caught.value.receipts == [None] * 5


@pytest.mark.parametrize("options", [{}, {"priority": 1}], ids=["plain", "general"])
async def test_every_failure_of_an_enqueue_many_has_an_entry_for_each_task(options):
    async with faulty() as rig:
        tasks = [NewTask(b"x", **options)] * 3
        for wrong, error in ((object(), UsageError), (b"x" * (17 << 20), PayloadTooLargeError)):
            for call in (rig.queue.enqueue_many, rig.engine.enqueue_many):
                given = [task._replace(queue="mail") for task in (*tasks, NewTask(wrong))]
                with pytest.raises(error) as caught:
                    await call(given)
                assert caught.value.receipts == [None] * 4
        with pytest.raises(UsageError) as caught:
            await rig.queue.enqueue_many(tasks, durable="yes")
        assert caught.value.receipts == [None] * 3
        rig.store.refusals.append(CommitUnknownError("EIO"))
        with pytest.raises(CommitUnknownError) as caught:
            await rig.queue.enqueue_many(tasks)
        assert caught.value.receipts == [None] * 3
    for call in (rig.queue.enqueue_many, rig.engine.enqueue_many):
        with pytest.raises(ClosedError) as caught:
            await call(tasks)
        assert caught.value.receipts == [None] * 3


@pytest.mark.parametrize("options", [{}, {"priority": 1}], ids=["plain", "general"])
async def test_an_enqueue_many_takes_any_iterable(clock, options):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")

        def made():
            return (NewTask(i, queue="mail", **options) for i in range(5))

        for call in (queue.enqueue_many, engine.enqueue_many):
            assert len(await call(made())) == 5
            assert len(await call(made(), atomic=True)) == 5
            assert await call(iter(())) == []
            for wrong in (5, None, NewTask(b"x", queue="mail"), "text"):
                with pytest.raises(UsageError):
                    await call(wrong)
        assert (await queue.stats()).ready == 20


async def test_a_result_and_follow_ups_that_do_not_fit_one_submission_are_refused(clock):
    async with in_memory(clock, limits=Limits(result_bytes_max=3 << 20)) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
        then = [NewTask(b"x" * 1_000_000)] * 3
        async with unchanged(engine):
            with pytest.raises(LimitError, match="4 MiB"):
                await lease.complete(b"x" * (3 << 20), then=then)
        assert lease.is_live
        await lease.complete(b"x" * 1_000_000, then=then)
        assert (await queue.stats()).ready == 3
