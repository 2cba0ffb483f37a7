"""What falls due does so in the moment it falls due, inside ``advance``."""

import asyncio
import functools
import math
from datetime import UTC, datetime, timedelta

import pytest

import lodeq
import lodeq.testing
from lodeq.testing import ManualClock


def timed(**options):
    """Run a test with an engine in memory and its clock."""

    def wrap(test):
        @functools.wraps(test)
        def run(*, shards):
            async def main():
                clock = ManualClock()
                async with lodeq.testing.open(clock=clock, shards=shards, **options) as engine:
                    await test(engine, engine.queue("mail"), clock)
                    report = await engine.verify()
                    assert report.ok, report.findings

            asyncio.run(main())

        del run.__wrapped__  # pytest reads the signature: only ``shards`` is a fixture
        return pytest.mark.parametrize("shards", [1, 4])(run)

    return wrap


async def waiting(call):
    """A call in a task of its own, up to where it waits."""
    task = asyncio.create_task(call)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


# --- due tasks ----------------------------------------------------------------------------------


@timed()
async def test_a_delayed_task_is_ready_when_it_is_due(engine, queue, clock):
    await queue.enqueue(b"x", delay=60)
    clock.advance(59.999)
    assert await queue.claim() == []
    clock.advance(0.001)
    assert (await queue.stats()).ready == 1
    assert (await queue.claim_one()).payload == b"x"


@timed()
async def test_run_at(engine, queue, clock):
    await queue.enqueue(b"x", run_at=clock.now + timedelta(hours=1))
    clock.advance(timedelta(minutes=59))
    assert await queue.claim() == []
    clock.advance(timedelta(minutes=1))
    assert await queue.claim_one() is not None


@timed()
async def test_thousands_fall_due_together(engine, queue, clock):
    await queue.enqueue_many([lodeq.NewTask(n, delay=60) for n in range(1000)])
    clock.advance(60)
    stats = await queue.stats()
    assert (stats.ready, stats.delayed) == (1000, 0)
    assert [lease.payload for lease in await queue.claim(limit=1000)] == list(range(1000))


@timed()
async def test_a_backoff_counts_from_the_nack(engine, queue, clock):
    mail = engine.queue("mail", backoff=lodeq.Backoff("fixed", base=10))
    await mail.enqueue(b"x")
    await (await mail.claim_one()).nack()
    clock.advance(9.9)
    assert await mail.claim_one() is None
    clock.advance(0.2)
    assert (await mail.claim_one()).attempt == 2


@timed()
async def test_tasks_become_ready_in_the_order_of_their_times(engine, queue, clock):
    for seconds in (30, 10, 20):
        await queue.enqueue(seconds, delay=seconds)
    clock.advance(3600)
    assert [lease.payload for lease in await queue.claim(limit=9)] == [10, 20, 30]


# --- leases -------------------------------------------------------------------------------------


@timed()
async def test_a_lease_is_reaped_when_it_expires(engine, queue, clock):
    await queue.enqueue(b"x")
    lease = await queue.claim_one(lease=30)
    assert lease.deadline == clock.now + timedelta(seconds=30)
    clock.advance(29.999)
    assert lease.is_live
    clock.advance(0.001)
    assert (await queue.stats()).ready == 1
    with pytest.raises(lodeq.LeaseLostError):
        await lease.complete()
    assert (await queue.claim_one()).attempt == 2


@timed()
async def test_a_heartbeat_extends(engine, queue, clock):
    await queue.enqueue(b"x")
    lease = await queue.claim_one(lease=30)
    for _ in range(5):
        clock.advance(20)
        assert await lease.heartbeat() == clock.now + timedelta(seconds=30)
    await lease.complete()


@timed()
async def test_a_shorter_heartbeat_shortens(engine, queue, clock):
    await queue.enqueue(b"x")
    lease = await queue.claim_one(lease=3600)
    await lease.heartbeat(5)
    clock.advance(5)
    assert not lease.is_live


@timed()
async def test_a_stream_keeps_its_leases_alive(engine, queue, clock):
    await queue.enqueue_many([lodeq.NewTask(n) for n in range(3)])
    async with queue.leases(lease=30) as stream:
        lease = await anext(stream)
        clock.advance(3600)
        await lease.complete()
    assert (await queue.stats()).ready == 2


@timed()
async def test_expired_leases_use_up_the_attempts(engine, queue, clock):
    receipt = await queue.enqueue(b"x", max_attempts=3)
    for n in (1, 2, 3):
        assert (await queue.claim_one(lease=30)).attempt == n
        clock.advance(30)
    (dead,) = await queue.dead_letters()
    assert (dead.id, dead.attempts, dead.reason) == (receipt.id, 3, "lease expired")
    assert (await engine.stats()).reaped_total == 3


@timed()
async def test_a_thousand_leases_expire_together(engine, queue, clock):
    await queue.enqueue_many([lodeq.NewTask(n) for n in range(1000)])
    await queue.claim(limit=1000)
    clock.advance(30)
    assert (await queue.stats()).ready == 1000


# --- what is forgotten --------------------------------------------------------------------------


@timed()
async def test_a_ttl_ends_a_task(engine, queue, clock):
    receipt = await queue.enqueue(b"x", ttl=10)
    clock.advance(9.9)
    assert await engine.result(receipt.id) is None
    clock.advance(0.1)
    assert await queue.claim() == []
    clock.advance(1)  # the sweep goes by whole seconds
    assert (await engine.result(receipt.id)).status == "expired"
    assert (await engine.stats()).expired_total == 1


@timed()
async def test_a_ttl_counts_from_when_the_task_is_due(engine, queue, clock):
    await queue.enqueue(b"x", delay=60, ttl=10)
    clock.advance(69)
    assert await queue.claim_one() is not None


@timed()
async def test_a_ttl_leaves_a_leased_task_alone(engine, queue, clock):
    receipt = await queue.enqueue(b"x", ttl=10)
    lease = await queue.claim_one(lease=60)
    clock.advance(30)
    assert lease.is_live
    await lease.release()
    assert (await engine.result(receipt.id)).status == "expired"


@pytest.mark.usefixtures("no_history")
@timed()
async def test_a_result_is_kept_for_its_retention(engine, queue, clock):
    mail = engine.queue("mail", retention=100)
    receipt = await mail.enqueue(b"x")
    await (await mail.claim_one()).complete(1)
    clock.advance(99)
    assert (await engine.result(receipt.id)).value == 1
    clock.advance(2)
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.result(receipt.id)
    assert (await queue.stats()).results == 0


@timed()
async def test_a_window_outlives_its_task(engine, queue, clock):
    first = await queue.enqueue(b"x", dedup_key="k", dedup_window=100)
    await (await queue.claim_one()).complete()
    clock.advance(99)
    assert (await queue.enqueue(b"y", dedup_key="k")).id == first.id
    clock.advance(2)
    assert not (await queue.enqueue(b"y", dedup_key="k")).duplicate


@timed()
async def test_a_window_is_never_shorter_than_its_task(engine, queue, clock):
    first = await queue.enqueue(b"x", dedup_key="k", dedup_window=10)
    clock.advance(60)
    assert (await queue.enqueue(b"y", dedup_key="k")).id == first.id


@timed()
async def test_a_dead_letter_is_kept_for_its_retention(engine, queue, clock):
    mail = engine.queue("mail", dead_retention=100)
    await mail.enqueue(b"x")
    await (await mail.claim_one()).bury()
    clock.advance(99)
    assert (await mail.stats()).dead == 1
    clock.advance(2)
    assert (await mail.stats()).dead == 0
    assert await mail.redrive() == 0


@timed(limits=lodeq.Limits(results_max=40))
async def test_results_are_bounded(engine, queue, clock):
    await queue.enqueue_many([lodeq.NewTask(n) for n in range(100)])
    leases = await queue.claim(limit=100)
    await engine.complete_many([(lease, None) for lease in leases])
    clock.advance(1)
    assert (await queue.stats()).results <= 40


# --- waits --------------------------------------------------------------------------------------


@timed()
async def test_a_claim_waits_until_its_time_is_up(engine, queue, clock):
    call = await waiting(queue.claim(wait=10))
    clock.advance(9.999)
    assert not call.done()
    clock.advance(0.001)
    assert await call == []
    await queue.enqueue(b"x")
    assert (await queue.stats()).ready == 1


@pytest.mark.parametrize("delay", [1, 9.999, 10])
def test_a_claim_gets_what_falls_due_while_it_waits(delay):
    @timed()
    async def test(engine, queue, clock):
        await queue.enqueue(b"x", delay=delay)
        call = await waiting(queue.claim(wait=10, lease=600))
        clock.advance(60)
        (lease,) = await call
        assert (lease.payload, lease.attempt) == (b"x", 1)
        assert lease.deadline == clock.now + timedelta(seconds=600 - 60 + delay)

    for shards in (1, 4):
        test(shards=shards)


@timed()
async def test_a_claim_gets_what_another_worker_lost_while_it_waits(engine, queue, clock):
    await queue.enqueue(b"x")
    await queue.claim(lease=30)
    call = await waiting(queue.claim(wait=31))
    clock.advance(40)
    (lease,) = await call
    assert lease.attempt == 2


@timed()
async def test_waiting_for_a_result_ends(engine, queue, clock):
    receipt = await queue.enqueue(b"x")
    call = await waiting(engine.result(receipt.id, wait=10))
    clock.advance(10)
    assert await call is None


@timed()
async def test_a_result_that_time_brings_is_seen_by_who_waits(engine, queue, clock):
    receipt = await queue.enqueue(b"x", ttl=5)
    call = await waiting(engine.result(receipt.id, wait=10))
    clock.advance(60)
    assert (await call).status == "expired"


@timed()
async def test_starvation(engine, queue, clock):
    mail = engine.queue("mail", boost_after=60)
    await mail.enqueue("old", priority=0)
    clock.advance(61)
    await mail.enqueue_many([lodeq.NewTask(n, priority=9) for n in range(20)])
    first = [(await mail.claim_one()).payload for _ in range(8)]
    assert first.count("old") == 1
    stats = await mail.stats()
    assert stats.oldest_ready_age == pytest.approx(0, abs=0.01)


# --- the clock ----------------------------------------------------------------------------------


@timed()
async def test_a_step_of_the_wall_clock_moves_due_times_but_no_leases(engine, queue, clock):
    await queue.enqueue(b"leased")
    lease = await queue.claim_one(lease=30)
    await queue.enqueue(b"due", delay=3600)
    clock.step_wall(3600)
    clock.advance(1)
    assert (await queue.stats()).ready == 1
    assert lease.is_live
    clock.step_wall(timedelta(hours=-2))
    clock.advance(1)
    assert lease.is_live
    await queue.enqueue(b"new")
    assert [x.payload for x in await queue.claim(limit=5)] == [b"due", b"new"]


@timed()
async def test_after_a_step_back_tasks_wait_longer(engine, queue, clock):
    await queue.enqueue(b"x", delay=10)
    clock.step_wall(-100)
    clock.advance(100)
    assert await queue.claim() == []
    clock.advance(10)
    assert await queue.claim_one() is not None


def test_time_stands_still():
    clock = ManualClock(datetime(2031, 5, 1, tzinfo=UTC))
    assert clock.now == datetime(2031, 5, 1, tzinfo=UTC)
    assert (clock.wall_us(), clock.mono()) == (clock.wall_us(), clock.mono())
    mono = clock.mono()
    clock.advance(0.5)
    assert clock.now == datetime(2031, 5, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    assert clock.mono() == mono + 0.5
    clock.step_wall(-0.5)
    assert clock.now == datetime(2031, 5, 1, tzinfo=UTC)
    assert clock.mono() == mono + 0.5


def test_timers_run_at_their_time_and_in_order():
    clock, seen = ManualClock(), []
    start = clock.mono()

    def note(name):
        return lambda: seen.append((name, round(clock.mono() - start, 6)))

    clock.call_at(None, start + 3, note("b"))
    clock.call_at(None, start + 1.1, note("a"))
    clock.call_at(None, start + 3, note("c"))
    clock.call_at(None, start + 2, note("cancelled")).cancel()
    clock.call_at(None, start + 4, lambda: clock.call_at(None, start + 5, note("nested")))
    clock.call_at(None, start + 61, note("beyond"))
    clock.advance(60)
    assert seen == [("a", 1.1), ("b", 3.0), ("c", 3.0), ("nested", 5.0)]


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, "60", None])
def test_nonsense_is_refused(seconds):
    clock = ManualClock()
    before = clock.now
    with pytest.raises(lodeq.UsageError):
        clock.advance(seconds)
    if seconds != -1:
        with pytest.raises(lodeq.UsageError):
            clock.step_wall(seconds)
    assert clock.now == before


def test_a_start_without_a_zone_is_refused():
    with pytest.raises(lodeq.UsageError):
        ManualClock(datetime(2030, 1, 1))  # noqa: DTZ001


def test_it_is_not_advanced_from_within():
    clock, seen = ManualClock(), []

    def again():
        with pytest.raises(lodeq.UsageError):
            clock.advance(1)
        seen.append(1)

    clock.call_at(None, clock.mono() + 1, again)
    clock.advance(2)
    assert seen == [1]


@timed()
async def test_it_is_advanced_on_the_loop_only(engine, queue, clock):
    with pytest.raises(lodeq.UsageError):
        await asyncio.to_thread(clock.advance, 1)


def test_one_clock_for_several_engines_and_a_store_on_disk(tmp_path):
    async def main():
        clock = ManualClock()
        async with (
            lodeq.testing.open(clock=clock) as one,
            lodeq.open(tmp_path / "s", clock=clock, block_cache_bytes=8 << 20) as two,
        ):
            for engine in (one, two):
                await engine.queue("mail").enqueue(b"x", delay=60)
            clock.advance(60)
            for engine in (one, two):
                assert (await engine.queue("mail").stats()).ready == 1
            await one.close()
            clock.advance(60)
        clock.advance(60)

    asyncio.run(main())


@timed()
async def test_what_falls_due_at_the_end_of_an_advance_has_fallen_due(engine, queue, clock):
    for n in range(1, 200):
        await queue.enqueue(b"x", delay=n / 10)
        clock.advance(n / 10)
        (lease,) = await queue.claim()
        await lease.complete()
