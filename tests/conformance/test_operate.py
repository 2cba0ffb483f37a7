"""What operators and holders ask of every form of an engine: leases by fact, acts by id, copies."""

from datetime import UTC, datetime

import pytest
from conformance import test_engine as suite

import lodeq
from lodeq import NewTask

pytestmark = pytest.mark.anyio
store, shards, opening = suite.store, suite.shards, suite.opening
form = suite.form
engine, queue = suite.engine, suite.queue


async def test_what_a_lease_says_of_itself(queue):
    await queue.enqueue_many([NewTask(b"a"), NewTask(b"b")])
    one, two = await queue.claim(limit=2, lease=600)
    assert one.lease_s == 600
    assert 500 < (one.deadline - datetime.now(UTC)).total_seconds() <= 601
    assert one.epoch != two.epoch
    assert one.token != two.token
    assert one.is_live
    before = one.deadline
    assert await one.heartbeat(1200) > before
    await one.complete()
    assert not one.is_live


async def test_an_engine_says_how_durable_it_is(engine, shards):
    assert (engine.durability, engine.shards) == ("nosync", shards)


async def test_workflows_are_sealed_cancelled_and_redriven_by_id(engine):
    first = await engine.workflow(NewTask(b"join", "joins"))
    await first.add([NewTask(b"x", "parts", max_attempts=1)])
    assert await engine.seal_workflow(first.id)
    assert not await engine.seal_workflow(first.id)
    (lease,) = await engine.queue("parts").claim()
    await lease.bury("bad")
    (join,) = await engine.queue("joins").claim()
    await join.complete()
    assert await engine.redrive_workflow(first.id) == 1
    (lease,) = await engine.queue("parts").claim()
    await lease.complete()
    second = await engine.workflow(NewTask(b"join", "joins"))
    await second.add([NewTask(b"y", "parts"), NewTask(b"z", "parts")])
    assert await engine.cancel_workflow(second.id) == 2
    with pytest.raises(lodeq.LodeqError):
        await engine.cancel_workflow(b"x" * 16)


async def test_snapshots_are_made_listed_and_released(engine, store):
    if store == "memory":
        with pytest.raises(lodeq.UsageError):
            await engine.snapshot(keep=60)
        return
    await engine.queue("mail").enqueue(b"x")
    made = await engine.snapshot(keep=60)
    assert [one.id for one in await engine.snapshots()] == [made.id]
    await engine.release_snapshot(made.id)
    assert await engine.snapshots() == []


async def test_bodies_of_todays_format_need_no_migration(engine, queue):
    await queue.enqueue(b"x" * 200_000)
    report = await engine.migrate_bodies()
    assert (report.files, report.records, report.bytes, report.files_left) == (0, 0, 0, 0)
    assert (await queue.claim_one()).payload == b"x" * 200_000
