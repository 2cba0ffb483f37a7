"""Features of ended tasks against each other: deletes, pins, bounds, redrives, and the sweep."""

import asyncio

import pytest
from support_behaviour import in_memory

import lodeq
from lodeq import Limits, NewTask, TaskFilter
from lodeq.engine.records.keyspace import TASK
from lodeq.engine.store.memory import MemoryStore
from lodeq.repository.state.rows.task_location import leave, task_location

pytestmark = pytest.mark.anyio
DAY = 86_400.0


def rows_of(engine, prefix):
    upper = prefix[:-1] + bytes((prefix[-1] + 1,))
    return [row for s in engine._state.shards for row in s.store.scan(prefix, upper, 1 << 20)]


async def is_sound(engine):
    report = await engine.verify()
    assert report.ok, report.findings
    assert (await engine.stats()).anomalies == ()


async def passes(clock, seconds):
    await clock.advance(seconds, turns=100)
    await clock.advance(1, turns=60)


async def run(queue, count=1, value=None, **options):
    await queue.enqueue_many([NewTask(b"x", **options)] * count)
    leases = await queue.claim(limit=count)
    for lease in leases:
        await lease.complete(value)
    return [lease.task_id for lease in leases]


async def delete(engine, meant=None):
    done, refused, cursor = 0, {}, None
    while True:
        report = await engine.act("delete", meant or TaskFilter(), cursor=cursor)
        done += report.done
        refused |= report.refused
        cursor = report.cursor
        if cursor is None:
            assert refused == {}
            return done


# -- deleted results ---------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, b"value"])
@pytest.mark.parametrize("history", [0, 100, 7200])
@pytest.mark.parametrize("after_s", [0, 30, 3700])
async def test_a_deleted_result_is_counted_out_once(clock, value, history, after_s):
    async with in_memory(clock, limits=Limits(history_s=history), shards=2) as engine:
        queue = engine.queue("jobs", retention=3600)
        for _ in range(5):
            await run(queue, 3, value)
            await clock.advance(2)
        await passes(clock, after_s)
        there = (await queue.stats()).results
        assert await delete(engine) == there
        assert (await queue.stats()).results == 0
        assert rows_of(engine, b"r/") == []
        await is_sound(engine)
        for _ in range(4):
            await passes(clock, 7200)
        assert (await queue.stats()).results == 0
        await run(queue)  # a counter below 0 would end the writes of the shard
        await is_sound(engine)


async def test_a_delete_leaves_the_results_beside_it(clock):
    async with in_memory(clock) as engine:
        for _ in range(40):  # one second, many groups
            await run(engine.queue("one"), 2)
            await run(engine.queue("two"), 2)
        assert await delete(engine, TaskFilter(queue="one")) == 80
        assert (await engine.queue("two").stats()).results == 80
        await is_sound(engine)
        for _ in range(3):
            await passes(clock, 4 * DAY)
        assert (await engine.queue("two").stats()).results == 0
        await is_sound(engine)


async def test_a_task_that_ends_in_the_turn_of_the_delete_goes_with_its_entry(clock):
    async with in_memory(clock, limits=Limits(history_s=0)) as engine:
        queue = engine.queue("jobs", retention=10)
        await queue.enqueue_many([NewTask(b"x")] * 6)
        leases = await queue.claim(limit=6)
        ends = asyncio.gather(*(lease.complete(b"v") for lease in leases[:3]))
        deleted = await asyncio.gather(delete(engine), ends)
        for lease in leases[3:]:
            await lease.complete()
        assert (await queue.stats()).results == 6 - deleted[0]
        await is_sound(engine)
        await passes(clock, 100)
        assert (await queue.stats()).results == 0
        await is_sound(engine)


async def test_two_deletes_at_once_and_a_sweep_between_them(clock):
    async with in_memory(clock, limits=Limits(history_s=0)) as engine:
        queue = engine.queue("jobs", retention=10)
        await run(queue, 200)

        async def sweep():
            await clock.advance(30, turns=3)

        one, two, _ = await asyncio.gather(delete(engine), delete(engine), sweep())
        assert one + two <= 200
        await passes(clock, 100)
        assert (await queue.stats()).results == 0
        await is_sound(engine)


# -- results that workflows pin --------------------------------------------------------------


@pytest.mark.parametrize("history", [0, 7 * 86_400])
async def test_pinned_results_are_sound_and_listed(clock, history):
    async with in_memory(clock, limits=Limits(history_s=history)) as engine:
        flow = await engine.workflow(NewTask(b"join", "joins"))
        ids = await flow.add([NewTask(b"p", "parts", retention=60)] * 4)
        leases = await engine.queue("parts").claim(limit=3)
        await leases[0].complete(b"early")
        await leases[1].complete()
        await leases[2].bury("no")
        for _ in range(12):
            await passes(clock, DAY)
            await is_sound(engine)
        values = [part.value for part in await flow.parts_page()]
        assert values[0] == b"early"
        listed = {task.id for task in await engine.queue("parts").list("completed")}
        assert ids[0] in listed
        await engine.cancel_workflow(flow.id)
        for _ in range(40):
            await passes(clock, DAY)
        assert rows_of(engine, b"r/") == rows_of(engine, b"w/") == rows_of(engine, b"e/") == []


async def test_a_pinned_result_is_seldom_written(clock):
    async with in_memory(clock) as engine:
        flow = await engine.workflow(NewTask(b"join", "joins"))
        await flow.add([NewTask(b"p", "parts", retention=60)] * 2)
        (lease,) = await engine.queue("parts").claim()
        await lease.complete(b"x" * 100_000)
        before = (await engine.stats()).shards[0].bytes
        for _ in range(30 * 24):
            await clock.advance(3600)
        assert (await flow.parts_page())[0].value == b"x" * 100_000
        assert (await engine.stats()).shards[0].bytes - before < 25 * 100_000


async def test_a_redriven_workflow_leaves_nothing_of_its_old_callback(clock):
    async with in_memory(clock) as engine:
        flow = await engine.workflow(NewTask(b"join", "joins"))
        await flow.add([NewTask(b"p", "parts", max_attempts=1)])
        await flow.seal()
        for _ in range(3):
            (lease,) = await engine.queue("parts").claim()
            await lease.bury("no")
            (callback,) = await engine.queue("joins").claim()
            await callback.complete()
            assert await flow.redrive() == 1
        assert await flow.cancel() == 1
        for _ in range(60):
            await passes(clock, DAY)
        assert rows_of(engine, b"w/") == []


async def test_a_task_that_waits_for_one_that_has_ended_is_sound(clock):
    async with in_memory(clock, shards=2) as engine:
        (first,) = await run(engine.queue("jobs"))
        other = await engine.queue("jobs").enqueue(b"x")
        await engine.enqueue_after(NewTask(b"then", "later"), [first, other.id])
        await engine.enqueue_after(NewTask(b"then", "later"), [first])
        await is_sound(engine)


# -- bounds of the history ----------------------------------------------------------------------


async def test_a_retried_task_with_a_value_does_not_lift_the_bound(clock):
    async with in_memory(clock, limits=Limits(history_rows=20)) as engine:
        queue = engine.queue("jobs", retention=60)
        slow = engine.queue("jobs", retention=3600)
        await slow.enqueue(b"retried")
        (lease,) = await slow.claim()
        await lease.nack(delay=0)
        (lease,) = await queue.claim()
        await lease.complete(b"value")  # a result for an hour, and first in line
        await passes(clock, 1)
        for _ in range(5):
            await run(queue, 200)
            await passes(clock, 1)
            await passes(clock, 70)
        await run(queue, 5)
        await passes(clock, 1)
        await is_sound(engine)
        assert (await queue.stats()).results <= 27


async def test_a_queue_that_is_idle_is_trimmed_when_its_retention_is_over(clock):
    async with in_memory(clock, limits=Limits(history_rows=20)) as engine:
        queue = engine.queue("jobs", retention=60)
        await run(queue, 200)
        await passes(clock, 1)
        assert (await queue.stats()).results == 200
        for _ in range(3):
            await passes(clock, 3700)
        assert (await queue.stats()).results <= 21
        await is_sound(engine)


# -- members that end in the batch that adds them ------------------------------------------------


@pytest.mark.parametrize("slices", [(4,), (1, 3), (2, 2)])
async def test_a_chain_behind_a_failed_member_is_cancelled_to_its_end(clock, slices):
    async with in_memory(clock) as engine:
        flow = await engine.workflow(NewTask(b"join", "joins"), on_failure="cancel")
        first = await flow.add([NewTask(b"p", "parts")])
        (lease,) = await engine.queue("parts").claim()
        await lease.bury("no")
        after = first
        for count in slices:
            after = (await flow.add([NewTask(b"p", "parts")] * count, after=after, chain=True))[-1:]
        await flow.seal()
        assert [p.status for p in await flow.parts_page()] == ["dead", *["cancelled"] * 4]
        await is_sound(engine)
        assert (await flow.info()).state == "over"


async def test_a_workflow_whose_callback_a_hole_has_taken_is_over_and_forgotten(clock):
    async with in_memory(clock) as engine:
        flow = await engine.workflow(NewTask(b"join", "joins"), key="k")
        await flow.add([NewTask(b"p", "parts")])
        await flow.seal()
        state, shard = engine._state, engine._state.shards[0]
        location = task_location(state, shard, flow.callback)
        group = shard.coalescer.begin()
        with group:
            leave(state, group, location)
            group.ops.append((TASK + flow.callback, None))
        await shard.coalescer.wait(group)
        (lease,) = await engine.queue("parts").claim()
        await lease.complete()
        assert (await flow.info()).state == "over"
        await is_sound(engine)
        for _ in range(15):
            await passes(clock, DAY)
        assert (await engine.workflow(key="k")).is_new


# -- many tenants ------------------------------------------------------------------------------


@pytest.mark.interpreted  # a stand-in counts
async def test_a_limit_that_is_taken_back_notes_many_tenants_in_several_turns(clock, monkeypatch):
    async with in_memory(clock) as engine:
        tenants = [f"t{i}" for i in range(5000)]
        await engine.enqueue_many([NewTask(b"x", "jobs", tenant) for tenant in tenants])
        jobs = engine.queue("jobs", tenant=lodeq.ALL_TENANTS)
        await engine.configure("jobs", concurrency=1)
        assert len(await jobs.claim(limit=2)) == 1
        waits = asyncio.ensure_future(jobs.claim(limit=1, wait=60))
        await asyncio.sleep(0)
        polls = engine._state.waiters
        noted, most = [], 0
        real = type(polls).note
        monkeypatch.setattr(
            type(polls), "note", lambda self, *args: noted.append(1) or real(self, *args)
        )
        setting = asyncio.ensure_future(engine.configure("jobs", concurrency=None))
        for _ in range(10):
            await asyncio.sleep(0)
            most, noted[:] = max(most, len(noted)), []
        await setting
        assert len(await waits) == 1
        assert 0 < most <= 2048 + 1
        assert len(await jobs.claim(limit=1024)) == 1024


async def test_pinned_results_beyond_the_limit_are_not_read_again_and_again(clock, monkeypatch):
    async with in_memory(clock, limits=Limits(results_max=5, history_s=0)) as engine:
        flow = await engine.workflow(NewTask(b"join", "joins"))
        await flow.add([NewTask(b"p", "parts")] * 60)
        for lease in await engine.queue("parts").claim(limit=50):
            await lease.complete(b"v")
        await passes(clock, 30)
        reads, real = [], MemoryStore.get
        monkeypatch.setattr(
            MemoryStore, "get", lambda s, key: reads.append(key[:2]) or real(s, key)
        )
        for _ in range(60):
            await clock.advance(1)
        assert reads.count(b"r/") <= 7 * 50
        monkeypatch.undo()
        await run(engine.queue("other"), 20)
        await passes(clock, 30)
        assert (await engine.queue("other").stats()).results == 0
        await flow.cancel()
        await engine.act("delete", TaskFilter(queue="joins"))
        for _ in range(3):
            await passes(clock, 30)
        assert (await engine.queue("parts").stats()).results <= 5
        await is_sound(engine)
