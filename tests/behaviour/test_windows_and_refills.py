"""Windows of dedup keys, refills of the line in memory, and room under back-pressure."""

import asyncio

import pytest
from support_behaviour import StillClock, drain, in_memory, payloads, settle, sound
from support_faults import faulty

import lodeq
import lodeq.testing
from lodeq import Backoff, DuplicateTaskError, LeaseLostError, NewTask
from lodeq.repository.state.caches.ready_cache import READY_ROWS
from lodeq.repository.tasks import claim as claim_module

pytestmark = pytest.mark.anyio


async def test_two_enqueues_of_one_dedup_key_in_one_tick(clock):
    async with in_memory(clock, shards=4) as engine:
        queue = engine.queue("mail")
        a, b, c = await asyncio.gather(
            queue.enqueue(b"a", dedup_key="k"),
            queue.enqueue(b"b", dedup_key="k"),
            queue.enqueue(b"c", dedup_key="k", on_conflict="replace"),
        )
        assert b == (a.id, True, None)
        assert c.replaced == a.id
        many = await queue.enqueue_many([NewTask(b"d", dedup_key="m")] * 3)
        assert [r.duplicate for r in many] == [False, True, True]
        assert len({r.id for r in many}) == 1
        assert sorted(await drain(queue)) == [b"c", b"d"]
        await sound(engine)


@pytest.mark.parametrize("commit_batch_max", [1, 2, 3, 64])
@pytest.mark.parametrize("shards", [1, 2])
async def test_every_single_commit_leaves_counters_that_agree_with_the_rows(
    commit_batch_max, shards
):
    """What SIGKILL between two writes of one tick would leave behind."""
    async with faulty(commit_batch_max=commit_batch_max, shards=shards) as rig:
        findings = rig.verify_every_commit()
        queue = rig.engine.queue("mail", lease=30, backoff=Backoff(base=0), retention=60)

        async def worker(i):
            await queue.enqueue(i, priority=i % 10, dedup_key=str(i % 5) if i % 3 else None)
            for lease in await queue.claim(limit=1 + i % 3):
                if i % 4 == 0:
                    await lease.complete(i, then=[NewTask(b"next", queue="audit")])
                elif i % 4 == 1:
                    await lease.nack(delay=i % 2)
                elif i % 4 == 2:
                    await lease.release()

        for _ in range(2):
            await asyncio.gather(*(worker(i) for i in range(16)))
            await rig.clock.advance(31)
        waiters = [asyncio.ensure_future(queue.claim(limit=2, wait=5)) for _ in range(3)]
        await queue.enqueue_many([NewTask(i, ttl=1, shard_key=str(i)) for i in range(6)])
        await rig.clock.advance(70)
        await asyncio.gather(*waiters)
        await queue.purge()
        await rig.clock.advance(70)
        assert findings == []
        await sound(rig.engine)


async def test_refill_while_claims_are_queued(clock):
    """A window is refilled through what is queued: no row twice, none skipped."""
    n = 3 * READY_ROWS
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(i) for i in range(n)])
        claims = await asyncio.gather(*(queue.claim(limit=97) for _ in range(40)))
        got = [x for leases in claims for x in payloads(leases)]
        assert got == list(range(n))
        await asyncio.gather(
            *(lease.release() for leases in claims for lease in leases),
            *(queue.enqueue(n + i) for i in range(10)),
        )
        assert await drain(queue, limit=500) == list(range(n + 10))
        await sound(engine)


async def test_refill_while_a_stalled_store_holds_the_claims():
    async with faulty() as rig:
        n = READY_ROWS + 600
        await rig.queue.enqueue_many([NewTask(i) for i in range(n)])
        rig.store.refusals.append(lodeq.StoreStalledError("x"))
        tasks = [asyncio.ensure_future(rig.queue.claim(limit=400)) for _ in range(6)]
        tasks.append(asyncio.ensure_future(rig.queue.enqueue(n)))
        await settle()
        rig.timers.fire(0.5)
        got = [x for leases in await asyncio.gather(*tasks[:6]) for x in payloads(leases)]
        await tasks[6]
        assert sorted(got + payloads(await rig.queue.claim(limit=4096))) == list(range(n + 1))
        assert got[:n] == list(range(n))


async def test_the_ghost_of_a_live_task_outlives_its_window(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        task = await queue.enqueue(b"x", dedup_key="k", dedup_window=10)
        lease = await queue.claim_one(lease=100)
        await clock.advance(50)
        assert (await queue.enqueue(b"y", dedup_key="k")).id == task.id
        await sound(engine)
        await lease.complete()
        again = await queue.enqueue(b"y", dedup_key="k")
        assert not again.duplicate
        await sound(engine)


async def test_a_ghost_whose_window_was_over_goes_although_the_clock_stepped_back_over_a_restart(
    tmp_path,
):
    """The row that would look after it has been used up; only memory knew."""
    clock = lodeq.testing.ManualClock()
    async with lodeq.open(tmp_path / "store", clock=clock) as engine:
        await engine.queue("mail").enqueue(b"x", dedup_key="k", dedup_window=10)
        clock.advance(20)
        await settle()
    clock.step_wall(-3600)
    async with lodeq.open(tmp_path / "store", clock=clock) as engine:
        queue = engine.queue("mail")
        await (await queue.claim_one()).complete()
        await sound(engine)
        clock.advance(3600)
        await settle()
        assert not (await queue.enqueue(b"y", dedup_key="k")).duplicate


async def test_a_window_outlives_its_task(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        task = await queue.enqueue(b"x", dedup_key="k", dedup_window=100)
        await (await queue.claim_one()).complete()
        assert await queue.enqueue(b"y", dedup_key="k") == (task.id, True, None)
        with pytest.raises(DuplicateTaskError) as caught:
            await queue.enqueue(b"y", dedup_key="k", on_conflict="raise")
        assert caught.value.task_id == task.id
        replacing = await queue.enqueue(b"y", dedup_key="k", on_conflict="replace")
        assert replacing.replaced is None
        assert not replacing.duplicate
        await sound(engine)


@pytest.mark.parametrize("window", [None, 10])
async def test_a_dead_task_holds_its_key_no_longer_than_the_window(clock, window):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", max_attempts=1)
        dead = await queue.enqueue(b"x", dedup_key="k", dedup_window=window)
        await (await queue.claim_one()).nack()
        await clock.advance(11)
        newer = await queue.enqueue(b"y", dedup_key="k", dedup_window=window)
        assert not newer.duplicate
        assert (await engine.get(dead.id)).state == "dead"
        await sound(engine)


async def test_redrive_against_a_newer_holder(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", max_attempts=1)
        dead = await queue.enqueue(b"old", dedup_key="k")
        other = await queue.enqueue(b"other")
        for lease in await queue.claim(limit=2):
            await lease.bury("no")
        newer = await queue.enqueue(b"new", dedup_key="k")
        with pytest.raises(DuplicateTaskError) as caught:
            await queue.redrive([dead.id, other.id])
        assert caught.value.task_id == newer.id
        assert (await engine.get(other.id)).state == "ready"
        assert await queue.redrive() == 0
        assert sorted(await drain(queue)) == [b"new", b"other"]
        assert await queue.redrive() == 1
        assert (await queue.enqueue(b"z", dedup_key="k")).id == dead.id
        await sound(engine)
        assert await drain(queue) == [b"old"]
        assert not (await queue.enqueue(b"z", dedup_key="k")).duplicate
        await sound(engine)


async def test_the_wall_clock_steps_forward_and_back(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=30)
        await queue.enqueue(b"first")
        await queue.enqueue(b"later", delay=3600)
        lease = await queue.claim_one()
        clock.step_wall(7200)
        await clock.advance(1.1)
        assert lease.is_live
        assert (await queue.stats()).ready == 1
        clock.step_wall(-86_400)
        await clock.advance(1.1)
        await queue.enqueue(b"last")
        assert lease.is_live
        await lease.heartbeat()
        assert await drain(queue) == [b"later", b"last"]
        await lease.complete()
        await queue.enqueue(b"soon", delay=5)
        await clock.advance(5.1)
        assert await drain(queue) == [b"soon"]
        await sound(engine)


@pytest.mark.parametrize("is_many", [False, True])
async def test_a_task_numbered_before_those_in_line_is_found_again(clock, is_many):
    """A salvage that finds no ring, under a clock that stepped back, starts with lower numbers."""
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(b"a"), NewTask(b"b")])
        clock.step_wall(-100)
        engine._state.seq = 0
        if is_many:
            (new,) = await queue.enqueue_many([NewTask(b"new")])
        else:
            new = await queue.enqueue(b"new")
        assert [task.payload for task in await queue.peek()] == [b"new", b"a", b"b"]
        assert await engine.cancel(new.id)
        await queue.enqueue(b"c")
        assert payloads(await queue.claim(limit=9)) == [b"c", b"a", b"b"]
        await sound(engine)


async def test_a_task_can_be_delayed_after_the_only_delayed_one_was_cancelled(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        first = await queue.enqueue(b"a", delay=10)
        assert await engine.cancel(first.id)
        await clock.advance(1.1)
        await queue.enqueue(b"b", delay=20)
        await clock.advance(21)
        assert await drain(queue) == [b"b"]


@pytest.mark.usefixtures("no_history")
async def test_a_restart_obeys_the_policies_that_only_the_task_records_know(tmp_path):
    clock = StillClock()
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        queue = engine.queue(
            "mail", max_attempts=2, retention=7, dead_retention=77, backoff=Backoff("fixed", 50)
        )
        await queue.enqueue(b"a", priority=3, dedup_key="k", dedup_window=500, ttl=400)
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        queue = engine.queue("mail")  # knows none of it
        lease = await queue.claim_one()
        assert (lease.priority, lease.policy.max_attempts) == (3, 2)
        await lease.nack()
        (waiting,) = await queue.list("delayed")
        assert round((waiting.due_at.timestamp() * 1e6 - clock.wall_us()) / 1e6) == 50
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        queue = engine.queue("mail")
        await clock.advance(51)
        await (await queue.claim_one()).nack()
        (dead,) = await queue.dead_letters()
        assert dead.attempts == 2
        assert (await queue.enqueue(b"b", dedup_key="k")).id == dead.id
        await clock.advance(8)
        with pytest.raises(lodeq.TaskNotFoundError):
            await engine.result(dead.id)
        await clock.advance(78)
        assert await engine.get(dead.id) is None
        assert (await queue.enqueue(b"b", dedup_key="k")).duplicate
        await sound(engine)


async def test_back_pressure_admits_waiters_in_order_past_cancelled_ones():
    async with faulty(submit_queue_max=2) as rig:
        tasks = [asyncio.ensure_future(rig.queue.enqueue(i)) for i in range(12)]
        await asyncio.sleep(0)
        for task in tasks[3:9]:
            task.cancel()
        await settle()
        assert [task.cancelled() for task in tasks] == [False] * 3 + [True] * 6 + [False] * 3
        await asyncio.gather(*tasks[:3], *tasks[9:])
        assert await drain(rig.queue) == [0, 1, 2, 9, 10, 11]
        await rig.queue.enqueue(b"goes on")


async def test_back_pressure_goes_on_when_a_turn_is_not_used():
    """The first in line may be cancelled in the very tick of its turn, or find its lease lost."""
    async with faulty(submit_queue_max=1) as rig:
        await rig.queue.enqueue(b"x")
        lease = await rig.queue.claim_one()
        tasks = [asyncio.ensure_future(lease.complete()) for _ in range(2)]
        tasks += [asyncio.ensure_future(lease.nack()) for _ in range(3)]
        tasks += [asyncio.ensure_future(rig.queue.enqueue(i)) for i in range(3)]
        await settle()
        assert all(task.done() for task in tasks)
        assert [type(t.exception()) for t in tasks[2:5]] == [LeaseLostError] * 3
        tasks = [asyncio.ensure_future(rig.queue.enqueue(i)) for i in range(4)]
        await asyncio.sleep(0)
        room = rig.state.shards[0].coalescer.submit_line
        first = next(iter(room.futures))
        first.add_done_callback(lambda _: tasks[1].cancel())
        await settle()
        assert tasks[1].cancelled()
        assert all(task.done() for task in tasks)


async def test_pending_max_holds_under_back_pressure():
    async with faulty(submit_queue_max=2, limits=lodeq.Limits(pending_max=5)) as rig:
        tasks = [asyncio.ensure_future(rig.queue.enqueue(i)) for i in range(20)]
        await settle(100)
        full = [t for t in tasks if isinstance(t.exception(), lodeq.QueueFullError)]
        assert len(full) == 15
        assert (await rig.queue.stats()).ready == 5


async def test_a_wait_that_is_fed_by_several_shards_at_once(clock):
    async with in_memory(clock, shards=4) as engine:
        queue = engine.queue("mail")
        waiting = asyncio.ensure_future(queue.claim(limit=50, wait=10))
        await settle()
        await queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(20)])
        await settle()
        assert waiting.done()
        assert sorted(payloads(await waiting)) == list(range(20))
        await sound(engine)


async def test_a_damaged_record_never_blocks_the_head_of_the_queue(clock, monkeypatch):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        engine._state.held_bytes_max = 0  # bodies from the store
        bad = await queue.enqueue(b"bad")
        await queue.enqueue(b"good")
        store = engine._state.shards[0].store
        raw = store.get(b"t/" + bad.id)
        store.write([(b"t/" + bad.id, raw[:-1] + bytes([raw[-1] ^ 1]))])
        assert payloads(await queue.claim(limit=5)) == [b"good"]
        assert "damaged" in (await engine.health()).reasons[0]
        assert (await queue.stats()).dead == 1
        found = await engine.get(bad.id)
        assert (found.state, found.payload) == ("dead", None)
        assert "damaged" in found.reason


async def test_a_claim_of_many_expired_tasks_goes_on_to_the_live_one(clock):
    n = claim_module.EXPIRED_ROUNDS_MAX * 2 + 5
    async with in_memory(clock, reaper=False) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(i, ttl=1) for i in range(n)])
        await queue.enqueue(b"live")
        clock.jump(2)
        assert payloads(await queue.claim()) == [b"live"]
        assert (await queue.stats()).results == n
        await sound(engine)
