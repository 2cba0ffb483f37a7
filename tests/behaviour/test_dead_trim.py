"""Bounds of dead letters: the oldest go, over all tenants, and what somebody waits for stays."""

import logging

import pytest
from support_behaviour import in_memory, sound
from support_replication import Cluster

from lodeq import NewTask, TaskFilter
from lodeq.repository.background import dead_trim
from lodeq.repository.background.dead_trim import DeadTrim

pytestmark = pytest.mark.anyio


async def kill(engine, clock, numbers, *, tenants=("",), payload=b""):
    """Dead letters of ``mail``, a millisecond and more apart; their tenants take turns."""
    for n in numbers:
        queue = engine.queue("mail", tenant=tenants[n % len(tenants)], max_attempts=1)
        await queue.enqueue({"n": n, "payload": payload})
        (lease,) = await queue.claim()
        await lease.bury(f"no {n}")
        await clock.advance(0.005)


async def left(engine):
    found = await engine.find(TaskFilter(state="dead"), limit=1000)
    return sorted(task.payload["n"] for task in found)


async def passes(clock, seconds=5):
    for _ in range(seconds):
        await clock.advance(1.0)


@pytest.mark.parametrize("tenants", [("",), ("", "a", "b")], ids=["one", "three"])
async def test_the_oldest_go_beyond_the_bound(clock, caplog, tenants):
    caplog.set_level(logging.INFO, "lodeq.engine")
    async with in_memory(clock) as engine:
        await kill(engine, clock, range(30), tenants=tenants)
        await passes(clock)
        assert await left(engine) == [*range(30)]  # no bound is set
        await engine.configure("mail", dead_max=10)
        await passes(clock)
        assert await left(engine) == [*range(20, 30)]
        assert (await engine.stats()).dead_dropped_total == 20
        (line,) = [one for one in caplog.records if one.event == "dead_letters_dropped"]
        assert (line.queue, line.n) == ("mail", 20)
        await kill(engine, clock, range(30, 35), tenants=tenants)
        await passes(clock)
        assert await left(engine) == [*range(25, 35)]
        await engine.configure("mail", dead_max=None)
        await kill(engine, clock, range(35, 60), tenants=tenants)
        await passes(clock)
        assert await left(engine) == [*range(25, 60)]
        await engine.configure("mail", dead_max=0)
        await passes(clock)
        assert await left(engine) == []
        await sound(engine)


@pytest.mark.parametrize("shards", [1, 3])
async def test_the_bound_is_of_all_shards_and_of_this_queue_alone(clock, shards):
    async with in_memory(clock, shards=shards) as engine:
        await kill(engine, clock, range(200))
        other = engine.queue("other", max_attempts=1)
        await other.enqueue_many([NewTask({"n": -1})] * 20)
        for lease in await other.claim(limit=20):
            await lease.bury("no")
        await engine.configure("mail", dead_max=60)
        await passes(clock)
        assert await left(engine) == [-1] * 20 + [*range(140, 200)]
        assert (await other.stats()).dead == 20
        await sound(engine)


async def test_bytes_bound_them_too(clock):
    async with in_memory(clock) as engine:
        await kill(engine, clock, range(40), payload=bytes(10_000))
        await engine.configure("mail", dead_bytes=100_000)
        await passes(clock)
        assert 8 <= len(await left(engine)) <= 11
        assert (await left(engine))[-1] == 39
        await sound(engine)


async def test_what_an_unfinished_workflow_waits_for_stays(clock):
    async with in_memory(clock) as engine:
        flow = await engine.workflow(NewTask(b"end", queue="ends"), on_failure="wait")
        await flow.add([NewTask({"n": -1}, queue="mail", max_attempts=1)])
        await flow.seal()
        (lease,) = await engine.queue("mail").claim()
        await lease.bury("no")
        await clock.advance(0.005)
        await kill(engine, clock, range(9))
        await engine.configure("mail", dead_max=3)
        await passes(clock)
        assert await left(engine) == [-1, 7, 8]
        await kill(engine, clock, range(9, 12))
        await passes(clock)
        assert await left(engine) == [-1, 10, 11]
        await sound(engine)


async def test_its_dedup_key_is_free_and_a_redrive_takes_it_out_of_the_count(clock):
    async with in_memory(clock) as engine:
        mail = engine.queue("mail", max_attempts=1)
        for n in range(4):
            await mail.enqueue({"n": n}, dedup_key=f"k{n}")
            await (await mail.claim_one()).bury("no")
            await clock.advance(0.005)
        dead = await engine.find(TaskFilter(state="dead"))
        (first,) = [task.id for task in dead if task.payload["n"] == 0]
        assert await mail.redrive([first]) == 1
        await engine.configure("mail", dead_max=3)
        await passes(clock)
        assert await left(engine) == [1, 2, 3]
        await engine.configure("mail", dead_max=2)
        await passes(clock)
        assert await left(engine) == [2, 3]
        assert not (await mail.enqueue(b"x", dedup_key="k1")).duplicate
        await sound(engine)


@pytest.mark.parametrize("step", range(5))
async def test_a_shard_that_is_lost_meanwhile_is_trimmed_once_it_is_back(clock, monkeypatch, step):
    """Whatever was found of it by then: nothing that could not go makes its queue a stuck one."""
    monkeypatch.setattr(dead_trim, "SLICE", 4)
    cluster = Cluster()
    async with cluster.open("a", clock=clock, reaper=False) as engine:
        await cluster.elect("a")
        await kill(engine, clock, range(30))
        await engine.configure("mail", dead_max=10)
        trim = DeadTrim(engine._state)
        for n, groups in enumerate(trim.slices()):
            for future in [shard.coalescer.wait(group) for shard, group in groups.items()]:
                await future
            if n == step:
                cluster.nodes["a"].replica.follow(0)
        await cluster.elect("a")
        await passes(clock)
        for groups in trim.slices():
            for future in [shard.coalescer.wait(group) for shard, group in groups.items()]:
                await future
        assert await left(engine) == [*range(20, 30)]
        assert (await engine.health()).ok
        await sound(engine)


async def test_what_a_lost_shard_has_too_much_is_not_taken_from_another(clock, monkeypatch):
    monkeypatch.setattr(dead_trim, "SLICE", 4)
    cluster = Cluster()
    async with cluster.open("a", clock=clock, shards=2, reaper=False) as engine:
        for shard in (0, 1):
            await cluster.elect("a", shard)
        await kill(engine, clock, range(60))
        await engine.configure("mail", dead_max=20)
        for n, groups in enumerate(DeadTrim(engine._state).slices()):
            for future in [shard.coalescer.wait(group) for shard, group in groups.items()]:
                await future
            if n == 1:
                cluster.nodes["a"].replica.follow(1)
        await cluster.elect("a", 1)
        assert len(await left(engine)) == 52
        await sound(engine)
