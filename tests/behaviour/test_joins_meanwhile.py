"""Joins between two steps: an end is not committed yet, or others are being asked."""

import asyncio

import pytest

import lodeq.testing
from lodeq import NewTask
from lodeq.engine.records.workflow import JOIN, JOIN_END
from lodeq.engine.runtime.ids import slot_of
from lodeq.errors import CorruptionError
from lodeq.repository.background.reaper import Reaper
from lodeq.repository.workflows import acts, joins

pytestmark = pytest.mark.anyio


async def turns(count=12):
    for _ in range(count):
        await asyncio.sleep(0)


def key_of(engine, shard):
    """A shard key that leads to a shard."""
    keys = (f"k{n}" for n in range(99))
    return next(
        one for one in keys if engine._state.shard_of_slot(slot_of(one.encode())).index == shard
    )


async def settled(flows):
    """All that joins have left to do, each step committed before the next."""
    for groups in flows.slices():
        for future in [shard.coalescer.wait(group) for shard, group in groups.items()]:
            await future
        yield


@pytest.mark.parametrize("homes", [(1, 2), (2, 1)])
async def test_a_dependency_that_ends_once_more_meanwhile_is_committed_first(homes):
    """It died, is redriven and ends again while another dependency's shard takes no writes."""
    async with lodeq.testing.open(shards=4, reaper=False) as engine:
        first, second = [
            (await engine.queue(f"p{n}").enqueue(b"p", shard_key=key_of(engine, home))).id
            for n, home in enumerate(homes)
        ]
        (dying,) = await engine.queue("p0").claim()
        (ending,) = await engine.queue("p1").claim()
        one, other = (engine._state.shards[home].coalescer for home in homes)
        pauses = [one.pause_writes(), other.pause_writes()]
        buried = asyncio.ensure_future(dying.bury("no"))
        ended = asyncio.ensure_future(ending.complete())
        await turns(2)
        task = NewTask(b"late", "tops", shard_key=key_of(engine, 0))
        waiting = asyncio.ensure_future(
            engine.enqueue_after(task, [first, second], on_failure="wait")
        )
        await turns()
        one.resume_writes(pauses[0])
        await turns()
        await buried
        assert await engine.queue("p0").redrive([first]) == 1
        (again,) = await engine.queue("p0").claim()
        await turns()
        pause = one.pause_writes()
        completed = asyncio.ensure_future(again.complete())
        await turns(2)
        other.resume_writes(pauses[1])
        await turns(40)
        assert not completed.done()
        assert await engine.queue("tops").claim() == []
        one.resume_writes(pause)
        await asyncio.gather(completed, waiting, ended)
        assert len(await engine.queue("tops").claim()) == 1


async def test_ends_count_while_a_clock_is_moved_by_hand():
    """A lease that runs out, and more ends than one step takes."""
    clock = lodeq.testing.ManualClock()
    async with lodeq.testing.open(clock=clock, shards=4) as engine:
        parts = engine.queue("parts")
        source = (await parts.enqueue(b"p", shard_key=key_of(engine, 1), max_attempts=1)).id
        task = NewTask(b"late", "tops", shard_key=key_of(engine, 0))
        waits = await engine.enqueue_after(task, [source])
        await parts.claim(lease=30)
        clock.advance(31)
        assert (await engine.get(waits)).state == "ready"
        sources = [(await parts.enqueue(b"p", shard_key=f"s{n}")).id for n in range(250)]
        tasks = [NewTask(b"late", "later", shard_key=f"y{n}") for n in range(5)]
        late = [await engine.enqueue_after(task, sources) for task in tasks]
        while leases := await parts.claim(limit=64):
            await engine.complete_many([(lease, b"v") for lease in leases])
        clock.advance(1)
        assert {(await engine.get(one)).state for one in late} == {"ready"}


async def test_a_workflow_that_is_redriven_while_joins_ask_is_not_let_go():
    clock = lodeq.testing.ManualClock()
    async with lodeq.testing.open(clock=clock, shards=1, reaper=False) as engine:
        source = (await engine.queue("parts").enqueue(b"p")).id
        await engine.enqueue_after(NewTask(b"x", "other"), [source])  # a join before it
        clock.advance(1)
        flow = await engine.workflow(NewTask(b"done", "tops", max_attempts=1))
        await flow.add([NewTask(b"a", "members", max_attempts=1)])
        await flow.seal()
        for queue in ("members", "tops"):
            (lease,) = await engine.queue(queue).claim()
            await lease.bury("no")
        (shard,), flows = engine._state.shards, engine._state.flows
        keys = [key for key, _ in shard.store.scan(JOIN, JOIN_END, 9)]
        assert keys[-1] == JOIN + flow.id
        flows.ask_again(shard)
        steps = settled(flows)
        await anext(steps)
        assert await flow.redrive() == 1
        async for _ in steps:
            pass
        assert (await flow.info()).state == "running"
        assert (await engine.get(flow.callback)).state == "waiting"


async def test_joins_that_ask_once_more_meanwhile_do_so():
    async with lodeq.testing.open(shards=1, reaper=False) as engine:
        source = (await engine.queue("parts").enqueue(b"p")).id
        for _ in range(3):
            await engine.enqueue_after(NewTask(b"x", "other"), [source])
        (shard,), flows = engine._state.shards, engine._state.flows
        flows.ask_again(shard)
        steps = settled(flows)
        await anext(steps)
        flows.ask_again(shard)
        async for _ in steps:
            pass
        assert shard in flows._asks
        async for _ in settled(flows):
            pass
        assert shard not in flows._asks


async def test_a_join_that_cannot_ask_holds_up_no_other(monkeypatch):
    """The row of a task that it waits for lies in a damaged block."""
    async with lodeq.testing.open(shards=4, reaper=False) as engine:
        parts = engine.queue("parts")
        sources = [(await parts.enqueue(b"p", shard_key=key_of(engine, 1))).id for _ in range(2)]
        waits = [
            await engine.enqueue_after(
                NewTask(b"x", "tops", shard_key=key_of(engine, shard)), [source]
            )
            for source in sources
            for shard in (0, 2)
        ]
        ends = joins.end_of

        def damaged(state, shard, task_id):
            if task_id == sources[0]:
                raise CorruptionError("row lies in a damaged block")
            return ends(state, shard, task_id)

        monkeypatch.setattr(joins, "end_of", damaged)
        for shard in engine._state.shards:
            engine._state.flows.ask_again(shard)
        for lease in await parts.claim(limit=2):
            await lease.complete()
        for _ in range(2):
            async for _ in settled(engine._state.flows):
                pass
        assert [(await engine.get(one)).state for one in waits] == ["ready"] * 4
        said = (await engine.stats()).anomalies
        assert len([text for text in said if "a damaged block" in text]) == 2


async def test_joins_that_have_nothing_to_count_write_nothing():
    """Waiting tasks that were cancelled while what they wait for runs on; and those that wait."""
    async with lodeq.testing.open(shards=1, reaper=False) as engine:
        source = (await engine.queue("parts").enqueue(b"p")).id
        waits = [await engine.enqueue_after(NewTask(b"x", "tops"), [source]) for _ in range(9)]
        for one in waits[:8]:
            assert await engine.cancel(one)
        (shard,), flows = engine._state.shards, engine._state.flows
        before = shard.coalescer.stats.commits
        flows.ask_again(shard)
        async for _ in settled(flows):
            pass
        assert shard.coalescer.stats.commits == before


async def test_ends_that_come_while_a_pass_is_under_way_are_not_left_for_later():
    async with lodeq.testing.open(shards=4, reaper=False) as engine:
        source = (await engine.queue("parts").enqueue(b"p", shard_key=key_of(engine, 1))).id
        task = NewTask(b"x", "tops", shard_key=key_of(engine, 0))
        await engine.enqueue_after(task, [source])
        (lease,) = await engine.queue("parts").claim()
        reaper, clock = Reaper(engine._state), engine._state.clock
        await reaper.step()
        await lease.complete()  # it is not asleep: nobody wakes it
        assert await asyncio.wait_for(reaper._sleep(), 0.5) <= clock.mono()
        await reaper.step()
        assert len(await engine.queue("tops").claim()) == 1


async def test_a_steady_stream_of_ends_does_not_keep_the_reaper():
    """Each step of the pass meets another end that is to be counted on another shard."""
    async with lodeq.testing.open(shards=4, reaper=False) as engine:
        parts, flows = engine.queue("parts"), engine._state.flows
        task = NewTask(b"x", "tops", shard_key=key_of(engine, 0))

        async def end_one():
            source = (await parts.enqueue(b"p", shard_key=key_of(engine, 1))).id
            await engine.enqueue_after(task, [source])
            (lease,) = await parts.claim()
            await lease.complete()

        await end_one()
        steps = 0
        async for _ in settled(flows):
            await end_one()
            steps += 1
            assert steps < 99
        assert flows.has_more


async def workflow_of(engine, members, dead, *, on_failure="run"):
    """A sealed one; the first ``dead`` of its members are dead letters."""
    flow = await engine.workflow(NewTask(b"end", queue="ends"), on_failure=on_failure)
    await flow.add([NewTask(n, queue="parts", max_attempts=1) for n in range(members)])
    await flow.seal()
    for lease in await engine.queue("parts").claim(limit=dead):
        await lease.bury("no")
    return flow


@pytest.mark.parametrize("begun", [1, 2, 5, 11])
async def test_a_redrive_while_its_workflow_is_being_cancelled_counts(begun, monkeypatch):
    """The rest of the cancel does not end what is redriven, nor the callback that waits for it."""
    monkeypatch.setattr(acts, "SLICE", 1)
    async with lodeq.testing.open(reaper=False) as engine:
        flow = await workflow_of(engine, 12, 6)
        cancelled = asyncio.ensure_future(flow.cancel())
        await turns(begun)
        assert not cancelled.done()
        assert await flow.redrive() == 6
        count = await cancelled
        info = await flow.info()
        assert (info.state, info.callback_state) == ("running", "waiting")
        left = await engine.queue("parts").claim(limit=12)
        assert len(left) == 12 - count
        for lease in left:
            await lease.complete()
        assert len(await engine.queue("ends").claim()) == 1
        assert (await engine.verify()).ok


async def test_a_redrive_that_is_overtaken_by_a_cancel_goes_no_further(monkeypatch):
    """A reaper goes on with it where a process has left it, a step at a time."""
    monkeypatch.setattr(acts, "SLICE", 1)
    async with lodeq.testing.open(reaper=False) as engine:
        flow = await workflow_of(engine, 12, 12, on_failure="wait")
        redriven = asyncio.ensure_future(flow.redrive())
        await turns(4)
        redriven.cancel()
        await asyncio.gather(redriven, return_exceptions=True)
        state = engine._state
        steps = acts.resume(state, state.shards[0], flow.id)
        next(steps)
        await flow.cancel()
        for _ in steps:
            await turns(2)
        assert (await engine.queue("parts").stats()).ready == 0
        info = await flow.info()
        assert (info.state, info.callback_state) == ("cancelled", "cancelled")
        assert (await engine.verify()).ok
