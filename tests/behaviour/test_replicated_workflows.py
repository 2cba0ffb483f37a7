"""Workflows whose leader changes: whoever leads next goes on, and nothing fires twice."""

import asyncio
import random

import pytest
from support_behaviour import settle, sound
from support_replication import Cluster, rows

import lodeq
from lodeq import NewTask
from lodeq.engine.records import workflow as records
from lodeq.engine.store.port import ops_bytes
from lodeq.repository.workflows import joins as joins_module

pytestmark = pytest.mark.anyio
SHARDS = 2


@pytest.fixture
async def pair(clock):
    """(cluster, a, b): a leads both shards, b follows. Reapers work when a test says so."""
    cluster = Cluster()
    options = {"clock": clock, "shards": SHARDS, "reaper": False}
    async with cluster.open("a", **options) as a, cluster.open("b", **options) as b:
        for shard in range(SHARDS):
            await cluster.elect("a", shard)
        yield cluster, a, b


async def reaped(engine):
    """What a reaper does for workflows, in three passes."""
    for _ in range(3):
        for groups in engine._state.flows.slices():
            for one in [shard.coalescer.wait(g) for shard, g in groups.items() if g.ops]:
                await one
        await settle()


def outbox(engine):
    return [key for pairs in rows(engine) for key in pairs if key.startswith(b"u/")]


def shard_of(engine, task_id):
    return engine._state.shard_of(task_id).index


async def fan_out(engine, count=3):
    workflow = await engine.workflow(NewTask(b"join", "joins"), key="k")
    await workflow.add([NewTask(b"p", "parts") for _ in range(count)])
    await workflow.seal()
    return workflow


async def complete_all(engine, queue="parts"):
    leases = await engine.queue(queue).claim(limit=64)
    await engine.complete_many([(lease, b"v") for lease in leases])
    return len(leases)


async def waits_elsewhere(engine):
    """Tasks of both shards, and one that waits for all of them; its id, and its shard."""
    ids = [(await engine.queue("parts").enqueue(b"p", shard_key=f"k{n}")).id for n in range(8)]
    waits = await engine.enqueue_after(NewTask(b"late", "joins", shard_key="here"), ids)
    home = shard_of(engine, waits)
    assert {shard_of(engine, one) for one in ids} == {0, 1}
    return waits, home


async def test_a_new_leader_goes_on_with_a_workflow(pair):
    cluster, a, b = pair
    await fan_out(a)
    (lease,) = await a.queue("parts").claim(limit=1)
    await lease.complete(b"v")
    for shard in range(SHARDS):
        await cluster.elect("b", shard)
    await reaped(b)
    assert await complete_all(b) == 2
    (join,) = await b.queue("joins").claim()
    assert [p.status for p in await b.parts_page(join.task_id)] == ["completed"] * 3
    await join.complete()
    await settle()
    for engine in (a, b):
        await sound(engine)
    assert rows(a) == rows(b)


@pytest.mark.parametrize("flags", [records.CANCELLED_FLAG, records.REDRIVING])
async def test_a_new_leader_ends_what_the_old_one_has_begun(pair, flags):
    """A leader that is lost between the mark of a cancel or redrive and its slices."""
    cluster, a, b = pair
    workflow = await fan_out(a)
    if flags == records.REDRIVING:
        for lease in await a.queue("parts").claim(limit=2):
            await lease.bury("no")
    shard = a._state.shard_of(workflow.id)
    record = joins_module.join_of(shard, workflow.id)
    group = shard.coalescer.begin()
    with group:
        joins_module.put_join(group, workflow.id, record._replace(flags=record.flags | flags))
    await shard.coalescer.wait(group)
    for index in range(SHARDS):
        await cluster.elect("b", index)
    await reaped(b)
    info = await b.workflow_info(workflow.id)
    if flags == records.REDRIVING:
        assert (info.state, info.ended) == ("running", 0)
        assert await complete_all(b) == 3
        assert len(await b.queue("joins").claim()) == 1
    else:
        assert (info.state, info.ended, info.failed) == ("cancelled", 3, 3)
        assert await b.queue("joins").claim() == []
    await sound(b)


async def test_an_end_that_the_old_leader_has_sent_to_nobody_is_counted_by_the_new_one(pair):
    cluster, a, b = pair

    waits, _ = await waits_elsewhere(a)
    await complete_all(a)
    assert outbox(a)
    for shard in range(SHARDS):
        await cluster.elect("b", shard)
    assert (await b.get(waits)).state == "waiting"
    await reaped(b)
    assert (await b.get(waits)).state == "ready"
    await b.fsync()
    await reaped(b)
    assert outbox(b) == []
    (lease,) = await b.queue("joins").claim(limit=4)
    assert lease.attempt == 1
    for engine in (a, b):
        await sound(engine)


async def test_an_end_waits_for_the_leader_of_the_shard_that_counts_it(pair):
    """Its row stays as long as that shard is led elsewhere."""
    cluster, a, b = pair
    waits, home = await waits_elsewhere(a)
    await cluster.elect("b", home)
    await complete_all(b)
    await complete_all(a)
    await reaped(a)
    await reaped(b)
    assert (await b.get(waits)).state == "waiting"
    assert outbox(a)
    await cluster.elect("a", home)
    await reaped(a)
    assert (await a.get(waits)).state == "ready"
    await a.fsync()
    await reaped(a)
    assert outbox(a) == []
    await sound(a)


async def test_a_row_that_was_sent_is_sent_again_when_the_receiver_comes_back(pair, monkeypatch):
    """Counted, and not synced, when its shard went to another leader: nobody forgets the row."""
    cluster, a, b = pair
    waits, home = await waits_elsewhere(a)
    receiver = a._state.shards[home]
    await complete_all(a)
    monkeypatch.setattr(type(receiver.coalescer), "durable_number", 0)
    await reaped(a)
    assert outbox(a)
    await cluster.elect("b", home)
    await reaped(a)
    monkeypatch.undo()
    await cluster.elect("a", home)
    await reaped(a)
    await a.fsync()
    await reaped(a)
    assert outbox(a) == []
    (lease,) = await a.queue("joins").claim(limit=4)
    assert (lease.task_id, lease.attempt) == (waits, 1)
    for engine in (a, b):
        await sound(engine)


async def test_joins_ask_again_when_a_leader_comes_back(pair):
    """Also for members on shards that are led here all the time."""
    cluster, a, _ = pair
    waits, home = await waits_elsewhere(a)
    await complete_all(a)
    for shard in a._state.shards:  # as a repair that had to drop them
        left = [key for key, _ in shard.store.scan(b"u/", b"u0", 100)]
        group = shard.coalescer.begin()
        group.ops += [(key, None) for key in left]
        await shard.coalescer.wait(group)
    await reaped(a)
    assert (await a.get(waits)).state == "waiting"
    await cluster.elect("b", home)
    await cluster.elect("a", home)
    await reaped(a)
    assert (await a.get(waits)).state == "ready"
    assert isinstance(await a.verify(), lodeq.VerifyReport)


async def test_health_names_ends_that_wait_for_a_foreign_leader(pair, clock):
    cluster, a, b = pair
    _, home = await waits_elsewhere(a)
    await cluster.elect("b", home)
    await complete_all(a)
    await reaped(a)
    assert outbox(a)
    assert (await a.health()).ok
    await clock.advance(joins_module.HELD_UP_S_MAX + 1)
    (reason,) = (await a.health()).reasons
    assert "wait for the leader of another shard" in reason
    assert (await b.health()).ok
    await cluster.elect("a", home)
    await reaped(a)
    assert (await a.health()).ok


async def test_workflows_that_are_redriven_at_once_share_no_entry_without_bound(clock):
    """A callback that is made anew comes with its payload."""
    cluster = Cluster()
    async with cluster.open("a", clock=clock) as a:
        await cluster.elect("a")
        flows = []
        for _ in range(8):
            callback = NewTask(random.Random(7).randbytes(1_500_000), "joins")
            async with await a.workflow(callback) as workflow:
                await workflow.add([NewTask(b"p", "parts", max_attempts=1)])
            flows.append(workflow)
        for lease in await a.queue("parts").claim(limit=64):
            await lease.bury("no")
        while await complete_all(a, "joins"):
            pass  # a claim has so many bytes
        begun = len(cluster.logs[0])
        assert await asyncio.gather(*[one.redrive() for one in flows]) == [1] * 8
        assert max(ops_bytes(one.ops) for one in cluster.logs[0][begun:]) < 4 << 20
