"""Each tenant queue is counted: the same whichever way a call goes."""

import anyio
import pytest

import lodeq
import lodeq.testing
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def engine(clock):
    async with lodeq.testing.open(clock=clock) as engine:
        yield engine


def flow(engine, queue="mail", tenant=""):
    found = engine._state.find_tenant_queue(queue.encode(), tenant.encode()).flow
    return (
        found.enqueued,
        found.claimed,
        found.completed,
        found.failed,
        round(found.waited_us, -3) // 1000,
        found.ran_us // 1000,
    )


@pytest.mark.parametrize("options", [{}, {"priority": 3, "ttl": 60}], ids=["plain", "general"])
@pytest.mark.parametrize("limit", [1, 8])
async def test_a_life_is_counted_once(engine, clock, options, limit):
    mail = engine.queue("mail")
    await mail.enqueue(b"1", **options)
    clock.advance(2)
    (lease,) = await mail.claim(limit=limit)
    clock.advance(0.25)
    await lease.complete()
    assert flow(engine) == (1, 1, 1, 0, 2000, 250)
    stats = await engine.stats()
    assert (stats.enqueued_total, stats.claimed_total, stats.completed_total) == (1, 1, 1)
    await lease.complete()
    assert flow(engine)[2] == 1


@pytest.mark.parametrize("limit", [1, 8])
async def test_a_claim_that_waited_is_counted(engine, limit):
    mail = engine.queue("mail")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: mail.claim(limit=limit, wait=30))
        await anyio.wait_all_tasks_blocked()
        await mail.enqueue(b"x")
    assert flow(engine)[:2] == (1, 1)
    assert (await engine.stats()).claimed_total == 1


async def test_many_are_counted_each(engine, clock):
    mail = engine.queue("mail")
    await mail.enqueue_many([lodeq.NewTask(b"x") for _ in range(5)])
    clock.advance(1)
    leases = await mail.claim(limit=5)
    clock.advance(1)
    await engine.complete_many([(lease, None) for lease in leases])
    assert flow(engine) == (5, 5, 5, 0, 5000, 5000)


async def test_what_fails_is_a_run_that_counts(engine, clock):
    mail = engine.queue("mail", max_attempts=2)
    await mail.enqueue(b"x")
    await (await mail.claim_one()).release()
    assert flow(engine)[3] == 0
    await (await mail.claim_one()).nack(delay=0)
    assert flow(engine)[3] == 1
    await (await mail.claim_one()).nack()
    assert flow(engine)[3] == 2
    await mail.enqueue(b"y")
    await (await mail.claim_one()).bury("no")
    assert flow(engine)[3] == 3
    await mail.enqueue(b"z")
    await mail.claim_one(lease=5)
    clock.advance(10)
    assert flow(engine)[3] == 4


async def test_a_duplicate_is_not_enqueued_and_what_is_cancelled_not_completed(engine):
    mail = engine.queue("mail")
    receipt = await mail.enqueue(b"x", dedup_key="a")
    await mail.enqueue(b"x", dedup_key="a")
    await engine.cancel(receipt.id)
    assert flow(engine)[:3] == (1, 0, 0)


async def test_tenants_are_counted_apart(engine):
    await engine.queue("mail", tenant="acme").enqueue(b"x")
    await engine.queue("mail", tenant="beta").enqueue_many([lodeq.NewTask(b"x")] * 2)
    assert flow(engine, tenant="acme")[0] == 1
    assert flow(engine, tenant="beta")[0] == 2
