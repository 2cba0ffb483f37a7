"""Operators at work on a store with damaged rows, and while others go on enqueueing and dying."""

import asyncio

import pytest
from support_behaviour import drain, in_memory, settle, sound
from support_faults import faulty

import lodeq
from lodeq import NewTask
from lodeq.engine.records.keyspace import MOVED, RESULT, TASK

pytestmark = pytest.mark.anyio
JUNK = pytest.mark.parametrize("junk", [b"junk", None], ids=["damaged", "missing"])


def spoil(engine, key, junk):
    for shard in engine._state.shards:
        if shard.store.get(key) is not None:
            shard.store.write([(key, junk)])


async def counted(engine, queue):
    """The counters of the queue, which must be what a recount gives."""
    report = await engine.verify()
    assert "counters" not in {finding.kind for finding in report.findings}, report.findings
    stats = await queue.stats()
    return stats.ready, stats.delayed, stats.leased, stats.dead


async def buried_damaged(engine, clock, queue, junk, **options):
    """The id of a task whose record was spoiled while it was delayed, met by a claim and buried."""
    engine._state.held_bytes_max = 0  # records from the store
    task_id = (await queue.enqueue(b"x", delay=1, **options)).id
    spoil(engine, TASK + task_id, junk)
    await clock.advance(2)
    assert await queue.claim() == []
    assert (await queue.stats()).dead == 1
    clock.jump(1)
    return task_id


async def test_a_redrive_survives_a_damaged_result(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        task_id = (await queue.enqueue(b"x")).id
        await (await queue.claim_one()).bury("no")
        spoil(engine, RESULT + task_id, b"junk")
        assert await queue.redrive([task_id]) == 1
        assert await counted(engine, queue) == (1, 0, 0, 0)
        assert await drain(queue) == [b"x"]
        await sound(engine)


@pytest.mark.parametrize("state", ["ready", "delayed"])
async def test_a_purge_ends_while_others_enqueue_and_spares_what_they_add(clock, state):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        delay = 60 if state == "delayed" else None
        await queue.enqueue_many(
            [NewTask(b"old", delay=delay, priority=i % 10) for i in range(600)]
        )
        added = 0

        async def produce():
            nonlocal added
            for _ in range(30):
                clock.step_wall(0.01)
                await queue.enqueue_many([NewTask(b"new", delay=delay)] * 200)
                added += 200

        purging = asyncio.create_task(queue.purge(state))
        await asyncio.sleep(0)
        await asyncio.gather(produce())
        assert await purging == 600
        assert getattr(await queue.stats(), state) == added
        await sound(engine)


@pytest.mark.parametrize("is_purge", [False, True], ids=["redrive", "purge"])
async def test_dead_letters_that_die_after_the_call_are_left_alone(clock, is_purge):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(b"x")] * 600)
        for lease in await queue.claim(limit=600):
            await lease.bury("bad")
        if is_purge:
            await queue.enqueue_many([NewTask(b"x")] * 600)

        async def work():
            buried = 0
            while buried < 600:
                for lease in await queue.claim(limit=256, wait=1):
                    clock.step_wall(0.002)
                    await lease.bury("bad again")
                    buried += 1

        working = asyncio.create_task(work())
        assert await (queue.purge("dead") if is_purge else queue.redrive()) == 600
        await working
        letters = await queue.dead_letters(limit=1000)
        assert [task.reason for task in letters] == ["bad again"] * 600
        assert await queue.claim() == []


@JUNK
async def test_a_damaged_dead_letter_is_listed_and_answered_for(clock, junk):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        task_id = await buried_damaged(engine, clock, queue, junk)
        sound_id = (await queue.enqueue(b"fine")).id
        await (await queue.claim_one()).bury("by hand")
        for task in ((await queue.dead_letters())[0], await engine.get(task_id)):
            assert (task.id, task.state, task.queue, task.tenant) == (task_id, "dead", "mail", "")
            assert task.reason == "record missing or damaged"
            assert (task.payload, task.headers, task.max_attempts) == (None, {}, None)
        assert [task.id for task in await queue.dead_letters()] == [task_id, sound_id]
        after = (await queue.dead_letters(limit=1))[0]
        assert [task.id for task in await queue.dead_letters(after=after)] == [sound_id]
        result = await engine.result(task_id)
        assert (result.status, result.error) == ("dead", "record missing or damaged")
        assert not await engine.cancel(task_id)


@JUNK
async def test_a_damaged_dead_letter_is_not_redriven_nor_counted(clock, junk):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        task_id = await buried_damaged(engine, clock, queue, junk)
        await queue.enqueue(b"fine")
        await (await queue.claim_one()).bury("by hand")
        assert await queue.redrive() == 1
        with pytest.raises(lodeq.RecordCorruptError, match="record"):
            await queue.redrive([task_id])
        assert await counted(engine, queue) == (1, 0, 0, 1)
        assert await drain(queue) == [b"fine"]


@JUNK
@pytest.mark.parametrize("how", ["purge", "retention"])
async def test_a_damaged_dead_letter_goes_by_its_row_alone(clock, junk, how):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        task_id = await buried_damaged(engine, clock, queue, junk)
        if how == "purge":
            assert await queue.purge("dead") == 1
        else:
            await clock.advance(604_801)
            await clock.advance(2)
        assert await counted(engine, queue) == (0, 0, 0, 0)
        assert await queue.dead_letters() == []
        store = engine._state.shards[0].store
        assert store.get(TASK + task_id) is None
        assert store.get(MOVED + task_id) is None
        assert (await engine.verify()).ok


@JUNK
@pytest.mark.parametrize("state", ["ready", "delayed"])
async def test_a_damaged_task_that_nobody_has_met_yet_is_listed_and_purged(clock, junk, state):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        delay = 60 if state == "delayed" else None
        task_id = (await queue.enqueue(b"x", delay=delay, priority=7)).id
        await queue.enqueue(b"fine", delay=delay)
        spoil(engine, TASK + task_id, junk)
        first, second = await queue.list(state)
        assert (first.id, first.priority, first.payload) == (task_id, 7, None)
        assert first.reason == "record missing or damaged"
        assert second.payload == b"fine"
        assert await queue.purge(state) == 2
        assert await counted(engine, queue) == (0, 0, 0, 0)
        assert (await engine.result(task_id)).status == "cancelled"
        assert (await engine.verify()).ok


@JUNK
async def test_a_damaged_dead_letter_holds_no_dedup_key(clock, junk):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        task_id = await buried_damaged(engine, clock, queue, junk, dedup_key="k")
        receipt = await queue.enqueue(b"again", dedup_key="k")
        assert not receipt.duplicate
        assert receipt.id != task_id
        assert (await queue.enqueue(b"third", dedup_key="k")).id == receipt.id
        assert await queue.purge("dead") == 1
        assert (await queue.enqueue(b"fourth", dedup_key="k")).id == receipt.id


@JUNK
async def test_a_damaged_task_keeps_its_dedup_key_until_it_is_met(clock, junk):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        task_id = (await queue.enqueue(b"x", dedup_key="k")).id
        spoil(engine, TASK + task_id, junk)
        receipt = await queue.enqueue(b"again", dedup_key="k")
        assert receipt.duplicate is (junk is not None)


# -- redrive ---------------------------------------------------------------------------


async def dead(queue, payload, **options):
    """The id of a task that was buried by hand."""
    task_id = (await queue.enqueue(payload, **options)).id
    await (await queue.claim_one()).bury("by hand")
    return task_id


async def test_a_damaged_id_does_not_keep_the_others_from_being_redriven(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        good = await dead(queue, b"good")
        bad = (await queue.enqueue(b"bad", delay=60)).id
        spoil(engine, TASK + bad, b"junk")
        with pytest.raises(lodeq.RecordCorruptError):
            await queue.redrive([bad, good])
        assert (await engine.get(good)).state == "ready"
        assert await counted(engine, queue) == (1, 1, 0, 0)


async def test_a_redrive_takes_a_key_back_that_a_damaged_dead_letter_left_behind(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        first = await dead(queue, b"first", dedup_key="k")
        engine._state.held_bytes_max = 0  # records from the store
        second = (await queue.enqueue(b"second", delay=1, dedup_key="k")).id
        spoil(engine, TASK + second, b"junk")
        await clock.advance(2)
        assert await queue.claim() == []
        assert await queue.redrive([first]) == 1
        assert (await queue.enqueue(b"third", dedup_key="k")).id == first
        assert (await engine.get(second)).state == "dead"
        assert await drain(queue) == [b"first"]


async def test_a_redrive_respects_a_damaged_holder_that_nobody_has_met(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        first = await dead(queue, b"first", dedup_key="k")
        window = {"dedup_key": "k", "dedup_window": 5}
        second = (await queue.enqueue(b"second", delay=60, **window)).id
        spoil(engine, TASK + second, b"junk")
        await clock.advance(10)
        with pytest.raises(lodeq.DuplicateTaskError) as caught:
            await queue.redrive([first])
        assert caught.value.task_id == second
        assert await counted(engine, queue) == (0, 1, 0, 1)


async def test_a_purge_means_dead_letters_whose_commit_still_waits_for_the_store():
    async with faulty() as rig:
        await rig.queue.enqueue_many([NewTask(i) for i in range(3)])
        leases = await rig.queue.claim(limit=3)
        rig.store.refusals += [lodeq.StoreStalledError("stalled")] * 2
        calls = [asyncio.ensure_future(lease.bury("no")) for lease in leases]
        await settle()
        assert (await rig.queue.stats()).dead == 3
        rig.clock.step_wall(-3600)
        calls.append(asyncio.ensure_future(rig.queue.purge("dead")))
        for _ in range(3):
            await settle()
            rig.timers.fire(0.1)
        *_, purged = await asyncio.gather(*calls)
        assert purged == 3
        await sound(rig.engine)
