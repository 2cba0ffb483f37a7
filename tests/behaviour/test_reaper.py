"""The reaper: in slices, on time, late, and never where it has no business."""

import asyncio

import pytest
from support_behaviour import in_memory, payloads, settle, sound, until
from support_faults import faulty

import lodeq
import lodeq.testing
from lodeq import ALL_TENANTS, Backoff, CommitUnknownError, Limits, NewTask
from lodeq.repository.background import reaper as reaper_module
from lodeq.repository.background.reaper import Reaper

pytestmark = pytest.mark.anyio


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 4])
async def test_5000_leases_that_expire_together_go_back_in_slices(shards):
    """In slices, so that the loop breathes; others get their turn in between."""
    n = 5000
    async with faulty(shards=shards) as rig:
        for start in range(0, n, 500):
            await rig.queue.enqueue_many(
                [NewTask(i, shard_key=str(i)) for i in range(start, start + 500)]
            )
        while await rig.queue.claim(limit=1000, lease=10):
            pass
        assert (await rig.queue.stats()).leased == n
        for store in rig.stores:
            store.applied.clear()
        turns = 0

        async def somebody_else():
            nonlocal turns
            while (await rig.queue.stats()).leased:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(somebody_else())
        await rig.clock.advance(11)
        await until(other.done)
        assert (await rig.queue.stats()).ready == n
        sizes = [sum(key[:2] == b"l/" for key, _ in ops) for s in rig.stores for ops in s.applied]
        assert max(sizes) <= reaper_module.SLICE
        assert turns >= n // reaper_module.SLICE
        assert (await rig.engine.stats()).reaped_total == n
        assert (await rig.engine.stats()).reaper_lag == 0
        await sound(rig.engine)


async def test_a_reaper_that_finds_itself_late_skips_a_pass(clock):
    """The holders were frozen too: their heartbeats come first."""
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=10)
        await queue.enqueue_many([NewTask(i) for i in range(2)])
        kept, lost = await queue.claim(limit=2)
        clock.jump(60)  # frozen
        assert kept.is_live
        await kept.heartbeat()
        await settle()
        assert kept.is_live
        assert not lost.is_live
        await kept.complete()
        with pytest.raises(lodeq.LeaseLostError):
            await lost.complete()


@pytest.mark.parametrize("size", [1, 128])  # within a pass, and between two of them
async def test_a_reaper_that_froze_while_it_waited_for_a_commit_is_late_too(monkeypatch, size):
    monkeypatch.setattr(reaper_module, "SLICE", size)
    async with faulty(durability="fsync") as rig:
        await rig.queue.enqueue_many([NewTask(i) for i in range(3)])
        early = await rig.queue.claim_one(lease=5)
        kept, lost = await rig.queue.claim(limit=2, lease=10)
        rig.store.is_sync_held = True
        rig.clock.jump(6)
        await until(lambda: rig.store.syncs)
        assert not early.is_live
        rig.clock.jump(60)  # frozen
        rig.store.is_sync_held = False
        rig.store.release_sync()
        await settle(7)
        await kept.heartbeat()
        await settle()
        assert kept.is_live
        assert not lost.is_live
        await kept.complete()


async def test_an_expired_lease_that_was_not_reaped_yet_still_completes(clock):
    async with in_memory(clock, reaper=False) as engine:
        queue = engine.queue("mail", lease=10)
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
        await clock.advance(100)
        await lease.heartbeat()
        await lease.complete()
        await sound(engine)


async def test_a_lease_shortened_and_extended_again_is_reaped_once(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=30)
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
        await lease.heartbeat(5)
        await clock.advance(4)
        await lease.heartbeat(60)
        await clock.advance(40)
        await lease.heartbeat(5)
        await lease.heartbeat(4)
        assert lease.is_live
        for _ in range(3):
            await clock.advance(2.1)
        assert not lease.is_live
        assert (await engine.stats()).reaped_total == 1
        again = await queue.claim_one()
        assert again.attempt == 2
        await clock.advance(31)
        assert not again.is_live  # the reaper is still there
        await sound(engine)


async def test_the_ttl_of_a_leased_task_is_left_alone_and_ends_it_on_return(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=1000, backoff=Backoff(base=0), max_attempts=1)
        ways = ["complete", "nack", "release", "expire", "retry"]
        ids = {}
        for way in ways:
            most = 5 if way == "retry" else 1
            ids[way] = (await queue.enqueue(way, ttl=10, max_attempts=most)).id
        leases = {x.payload: x for x in await queue.claim(limit=9)}
        await clock.advance(20)
        assert (await queue.stats()).leased == 5
        await leases["complete"].complete(b"r")
        await leases["nack"].nack()
        await leases["release"].release()
        await leases["retry"].nack()
        await leases["expire"].heartbeat(1)
        await clock.advance(2)
        ends = {way: (await engine.result(ids[way])).status for way in ways}
        assert ends == {"complete": "completed"} | dict.fromkeys(ways[1:], "expired")
        assert (await engine.stats()).expired_total == 4
        assert await queue.claim() == []
        await sound(engine)


@pytest.mark.parametrize("delay", [None, 100])
async def test_a_ttl_ends_a_task_that_waits(clock, delay):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        task = await queue.enqueue(b"x", ttl=10, delay=delay)
        waiting = asyncio.ensure_future(engine.result(task.id, wait=1000))
        await clock.advance(9.5 + (delay or 0))
        assert not waiting.done()
        await clock.advance(2)
        assert (await waiting).status == "expired"
        assert await engine.get(task.id) == await engine.get(str(task.id))
        assert (await engine.get(task.id)).state == "expired"
        await sound(engine)


async def test_the_ttl_is_checked_at_claim_when_the_reaper_has_not_come(clock):
    async with in_memory(clock, reaper=False) as engine:
        queue = engine.queue("mail")
        task = await queue.enqueue(b"x", ttl=10)
        await queue.enqueue(b"y")
        clock.jump(11)
        assert payloads(await queue.claim(limit=5)) == [b"y"]
        assert (await engine.result(task.id)).status == "expired"
        await sound(engine)


async def test_the_lag_is_a_metric_and_a_matter_of_health(clock):
    async with faulty(reaper=True) as rig:
        await rig.queue.enqueue(b"x")
        await rig.queue.claim(lease=10)
        assert (await rig.engine.stats()).reaper_lag == 0
        rig.clock._mono += 25  # time passes and nobody comes
        rig.clock._wall_us += 25_000_000
        assert (await rig.engine.stats()).reaper_lag == pytest.approx(15)
        assert "late" in (await rig.engine.health()).reasons[0]
        await rig.clock.advance(0.1)
        assert (await rig.engine.stats()).reaper_lag == 0
        assert (await rig.engine.health()).ok


async def test_the_reaper_outlives_a_poisoned_shard():
    async with faulty(shards=2) as rig:
        await rig.queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(20)])
        leases = await rig.queue.claim(limit=20, lease=10)
        rig.stores[0].refusals.append(CommitUnknownError("gone"))
        await rig.clock.advance(11)
        await rig.clock.advance(11)
        back = [x for x in leases if x.shard_queue.shard.index == 1]
        assert len(await rig.queue.claim(limit=20, lease=10)) == len(back)
        await rig.clock.advance(11)
        assert len(await rig.queue.claim(limit=20, lease=10)) == len(back)


async def full_of_results(engine, clock, count):
    """A queue with so many results, in expiry rows of many moments."""
    queue = engine.queue("mail")
    for _ in range(count // 64):
        await ended(engine, queue)
        await clock.advance(1)
    return queue


async def ended(engine, queue):
    """A batch of tasks ends."""
    await queue.enqueue_many([NewTask(b"x")] * 64)
    await engine.complete_many([(lease, None) for lease in await queue.claim(limit=64)])


async def test_a_pass_removes_what_was_too_much_when_it_began(clock):
    """Results that come meanwhile are the next pass's: others are due, too."""
    async with in_memory(clock, limits=Limits(results_max=6400), reaper=False) as engine:
        queue = await full_of_results(engine, clock, 9600)
        reaper = Reaper(engine._state)
        slices = 0
        for _ in reaper._slices():
            slices += 1
            assert slices < 20
            await ended(engine, queue)
        assert engine._state.shards[0].results == 6400 + 64 * slices
        await sound(engine)


@pytest.mark.slow
async def test_a_store_at_results_max_looks_for_the_oldest_now_and_then(clock, monkeypatch):
    """Not for each batch of ends: to look costs more than what is removed."""
    looked = []
    real = reaper_module.sweep

    def sweep(*given):
        looked.append(given[4])
        return real(*given)

    monkeypatch.setattr(reaper_module, "sweep", sweep)
    async with in_memory(clock, limits=Limits(results_max=64_000), reaper=False) as engine:
        queue = await full_of_results(engine, clock, 64_000)
        reaper, shard = Reaper(engine._state), engine._state.shards[0]
        for _ in range(100):
            await ended(engine, queue)
            for _ in reaper._slices():
                pass
            await settle()
            assert shard.results <= 64_000 + 1000 + 64  # a 64th of the bound may wait
        assert len([over for over in looked if over > 0]) < 20
        await clock.advance(1.1)
        for _ in reaper._slices():
            pass
        assert shard.results == 64_000


@pytest.mark.parametrize("shards", [1, 2])
async def test_results_beyond_results_max_go_oldest_first(clock, shards):
    async with in_memory(clock, limits=Limits(results_max=20), shards=shards) as engine:
        queue = engine.queue("mail")
        ids = []
        for i in range(60):
            ids.append((await queue.enqueue(i, shard_key=str(i))).id)
            await (await queue.claim_one()).complete()
            if i % 20 == 19:
                await clock.advance(1.1)
        for _ in range(3):
            await clock.advance(1.1)
        stats = await queue.stats()
        assert stats.results <= 20
        if shards == 1:
            kept = [t.id for t in await queue.list("completed")]
            assert kept == ids[-len(kept) :]
            assert kept
        await sound(engine)


async def test_due_tasks_of_many_queues_and_slices_are_promoted(clock):
    async with in_memory(clock, shards=2) as engine:
        queues = [engine.queue(f"q{i}") for i in range(5)]
        for queue in queues:
            await queue.enqueue_many([NewTask(i, delay=1 + i % 3) for i in range(300)])
        waiting = asyncio.ensure_future(queues[0].claim(limit=300, wait=50))
        await settle()
        await clock.advance(1.1, turns=200)
        assert len(await waiting) == 100
        await clock.advance(5, turns=200)
        for queue in queues:
            stats = await queue.stats()
            assert (stats.ready + stats.leased, stats.delayed) == (300, 0)
        await sound(engine)


@pytest.mark.usefixtures("no_history")
async def test_a_redriven_task_is_counted_once_when_results_are_too_many(clock):
    """Its first end has left a hint behind that names the result of its second."""
    async with in_memory(clock, limits=Limits(results_max=2)) as engine:
        queue = engine.queue("mail", max_attempts=1)
        task = await queue.enqueue(b"x")
        await (await queue.claim_one()).nack()
        clock.jump(5)
        await queue.redrive([task.id])
        await (await queue.claim_one()).complete()
        for i in range(5):
            await queue.enqueue(i)
            await (await queue.claim_one()).complete()
            await clock.advance(1.1)
        for _ in range(3):
            await clock.advance(4000)
        assert (await queue.stats()).results == 0
        await sound(engine)


async def test_what_is_filed_behind_a_sweep_is_swept_all_the_same(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"a", ttl=50)
        await clock.advance(52)
        clock.step_wall(-40)
        late = await queue.enqueue(b"b", ttl=5)
        await clock.advance(7)
        assert (await engine.result(late.id)).status == "expired"
        await sound(engine)


@pytest.mark.usefixtures("no_history")
async def test_a_hint_that_fired_too_early_is_filed_again(clock):
    """A leased task's TTL and a live task's ghost are left alone; then the clock steps back."""
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=100, retention=1)
        held = await queue.enqueue(b"a", dedup_key="k", dedup_window=20, ttl=20)
        other = await queue.enqueue(b"b", dedup_key="l", dedup_window=20)
        a, b = await queue.claim(limit=2)
        clock.step_wall(30)
        await clock.advance(2)
        clock.step_wall(-30)
        await a.release()
        await b.complete()
        await sound(engine)
        assert (await engine.get(held.id)).state == "ready"
        for _ in range(3):
            await clock.advance(20)
        assert await engine.get(held.id) is None
        assert await engine.get(other.id) is None
        assert engine._state.shards[0].store.scan(b"g/", b"g0", 9) == []
        await sound(engine)


@pytest.mark.usefixtures("no_history")
async def test_tenant_queues_are_forgotten_in_turns_and_none_that_is_needed_again(
    clock, monkeypatch
):
    monkeypatch.setattr(reaper_module, "TENANT_QUEUES", 4)
    async with in_memory(clock) as engine:
        state = engine._state
        names = [f"t{n:02}" for n in range(20)]
        await engine.enqueue_many([NewTask(b"", queue="mail", tenant=name) for name in names])
        for name in names:
            (lease,) = await engine.queue("mail", tenant=name).claim()
            await lease.complete(keep=False)
        turns = 0
        for _ in reaper_module.forget_idle_tenant_queues(state):
            turns += 1
            if turns == 1:
                assert len(state.queue_states[b"mail"].tenant_queues) == 17
                receipt = await engine.queue("mail", tenant="t19").enqueue(b"more")
        assert turns == 5
        assert list(state.queue_states[b"mail"].tenant_queues) == [b"t19"]
        (lease,) = await engine.queue("mail", tenant="t19").claim()
        assert lease.task_id == receipt.id
        await lease.complete(keep=False)
        for _ in reaper_module.forget_idle_tenant_queues(state):
            pass
        assert not state.queue_states


async def test_resuming_one_tenant_looks_at_no_other(clock):
    """There may be a hundred thousand."""

    looked, own = set(), {b"t01", b""}  # a pause of all is kept by the tenant without a name

    class TenantQueues(dict):
        def get(self, name, default=None):
            looked.add(name)
            return super().get(name, default)

        def values(self):
            looked.update(self)
            return super().values()

    async with in_memory(clock) as engine:
        names = [f"t{n:02}" for n in range(20)]
        await engine.enqueue_many([NewTask(b"", queue="mail", tenant=name) for name in names])
        one, every = engine.queue("mail", tenant="t01"), engine.queue("mail", tenant=ALL_TENANTS)
        queue_state = engine._state.queue_states[b"mail"]
        queue_state.tenant_queues = TenantQueues(queue_state.tenant_queues)
        for queue in (one, every):  # nobody waits
            await queue.pause()
            await queue.resume()
        assert looked <= own
        await one.pause()
        waiting = asyncio.ensure_future(one.claim(wait=60))
        await settle()
        await one.resume()
        assert len(await waiting) == 1
        assert looked <= own
        await every.pause()
        waiting = asyncio.ensure_future(every.claim(wait=60))
        await settle()
        await every.resume()
        assert len(await waiting) == 1
        assert looked >= {name.encode() for name in names}


async def test_what_falls_due_during_a_pass_does_not_prolong_it():
    """Else a steady stream of delayed tasks keeps it from leases, results and workflows."""
    clock = lodeq.testing.ManualClock()
    async with lodeq.testing.open(clock=clock, reaper=False) as engine:
        mail = engine.queue("mail")
        for delay in (1, 2, 3):
            await mail.enqueue(b"x", delay=delay)
        clock.advance(1.5)
        promoting = Reaper(engine._state)._promote()
        steps = 0
        for _ in promoting:
            steps += 1
            clock.advance(1)
        assert steps == 1
