"""Replicas whose store refuses writes for a while: elections and waits go on all the same."""

import asyncio

import pytest
from support_behaviour import drain, settle, sound, until
from support_faults import faulty
from support_replication import Cluster, rows

import lodeq
from lodeq.errors import StoreStalledError

pytestmark = pytest.mark.anyio


async def fire_until(rig, holds):
    """Retry, as time would."""

    def look():
        rig.timers.fire(0.5)
        return holds()

    await until(look, turns=1000)


async def test_a_leader_elected_before_its_store_took_the_last_incarnation(clock):
    cluster = Cluster()
    async with cluster.open("a", clock=clock) as a, faulty(replicator=cluster.node("b")) as rig:
        b = rig.engine
        await cluster.elect("a")
        await a.queue("mail").enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(3)])
        rig.store.refusals.extend(StoreStalledError("stalled") for _ in range(5))
        await cluster.elect("a")
        election = asyncio.ensure_future(cluster.elect("b"))
        await settle()
        await fire_until(rig, election.done)
        await election
        assert await drain(b.queue("mail")) == [b"0", b"1", b"2"]
        await sound(b)
        await sound(a)
        assert rows(a) == rows(b)


async def test_a_wait_for_a_result_that_its_store_takes_after_the_election(clock):
    cluster = Cluster()
    async with cluster.open("a", clock=clock) as a, faulty(replicator=cluster.node("b")) as rig:
        await cluster.elect("a")
        receipt = await a.queue("mail").enqueue(b"x")
        (lease,) = await a.queue("mail").claim()
        wait = asyncio.ensure_future(rig.engine.result(receipt.id, wait=60))
        await settle()
        rig.store.refusals.extend(StoreStalledError("stalled") for _ in range(5))
        await lease.complete(42)
        election = asyncio.ensure_future(cluster.elect("b"))
        await settle()
        await fire_until(rig, election.done)
        await election
        await settle()
        assert wait.done()
        assert (await wait).value == 42
