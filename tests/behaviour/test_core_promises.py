"""What a queue must hold whatever happens: attempts, expiry, dedup, memory, close."""

import asyncio
import gc

import pytest
from support_behaviour import StillClock, drain, in_memory, settle, sound, until

import lodeq
from lodeq import Backoff, InvalidNameError, NewTask, ShardCountError

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_a_backlog_over_100_000_is_claimable_and_reopenable(tmp_path):
    """The original kept 100,000 in a channel, lost the rest, and could not start with more."""
    n = 100_500
    async with lodeq.open(tmp_path / "s") as engine:
        queue = engine.queue("mail")
        for start in range(0, n, 4096):
            await queue.enqueue_many([NewTask(i) for i in range(start, min(n, start + 4096))])
        assert (await queue.stats()).ready == n
        first = await queue.claim(limit=500)
        assert [lease.payload for lease in first] == list(range(500))
        await engine.complete_many([(lease, None) for lease in first])
    async with lodeq.open(tmp_path / "s") as engine:
        queue = engine.queue("mail")
        assert (await queue.stats()).ready == n - 500
        seen = []
        while leases := await queue.claim(limit=4096):
            seen += [lease.payload for lease in leases]
            await engine.complete_many([(lease, None) for lease in leases])
        assert seen == list(range(500, n))
        stats = await queue.stats()
        assert (stats.ready, stats.leased, stats.results) == (0, 0, n)


async def test_reaped_tasks_are_claimable_at_once(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=10)
        await queue.enqueue_many([NewTask(i) for i in range(10)])
        assert len(await queue.claim(limit=10)) == 10
        await clock.advance(11)
        assert (await queue.stats()).ready == 10
        again = await queue.claim(limit=10)
        assert [lease.payload for lease in again] == list(range(10))
        assert {lease.attempt for lease in again} == {2}
        await sound(engine)


async def test_a_reaped_task_wakes_the_claim_that_waits_for_it(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=10)
        await queue.enqueue(b"x")
        await queue.claim()
        waiting = asyncio.create_task(queue.claim(wait=60))
        await settle()
        await clock.advance(11)
        (lease,) = await waiting
        assert lease.attempt == 2


async def test_ttl_and_retention_never_touch_live_tasks(clock):
    """The original erased delayed and heart-beaten tasks a day after their enqueue."""
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", retention=60, dead_retention=60)
        delayed = await queue.enqueue(b"later", delay=48 * 3600)
        leased = await queue.enqueue(b"now", ttl=60)
        (lease,) = await queue.claim(lease=3600)
        for _ in range(50):
            await clock.advance(3500)
            await lease.heartbeat(3600)
        assert (await engine.get(leased.id)).state == "leased"
        assert (await engine.get(delayed.id)).payload == b"later"
        await lease.complete(b"done")
        assert (await engine.result(leased.id)).value == b"done"
        (late,) = await queue.claim()
        assert late.task_id == delayed.id
        await sound(engine)


@pytest.mark.usefixtures("no_history")
async def test_results_ghosts_and_dead_letters_expire(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", retention=100, dead_retention=1000, max_attempts=1)
        done = await queue.enqueue(b"a", dedup_key="k", dedup_window=50)
        await (await queue.claim_one()).complete(b"r")
        dead = await queue.enqueue(b"b")
        await (await queue.claim_one()).nack()
        assert (await queue.enqueue(b"c", dedup_key="k")).duplicate
        await clock.advance(51)
        again = await queue.enqueue(b"c", dedup_key="k")
        assert not again.duplicate
        await engine.cancel(again.id)
        assert (await engine.result(done.id)).value == b"r"
        await clock.advance(101)
        for one in (done.id, dead.id):
            with pytest.raises(lodeq.TaskNotFoundError):
                await engine.result(one)
        assert (await engine.get(dead.id)).state == "dead"
        await clock.advance(1000)
        assert await engine.get(dead.id) is None
        stats = await engine.stats()
        assert (stats.ready, stats.dead, stats.results) == (0, 0, 0)
        store = engine._state.shards[0].store
        for family in (b"t/", b"q/", b"s/", b"l/", b"r/", b"g/", b"e/", b"m/c/"):
            assert store.scan(family, family[:-1] + b"0", 9) == [], family
        await sound(engine)


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
async def test_dedup_holds_under_64_concurrent_callers(tmp_path, shards):
    """And per tenant, and across a restart: every key one task, whoever asks and whenever."""
    keys = [f"k{i}" for i in range(8)]

    async def storm(engine, tenant):
        queue = engine.queue("mail", tenant=tenant)
        found = await asyncio.gather(
            *(queue.enqueue(b"x", dedup_key=keys[i % 8]) for i in range(64))
        )
        return {k: {r.id for r in found[i::8]} for i, k in enumerate(keys)}, found

    async with lodeq.open(tmp_path / "s", shards=shards) as engine:
        ids, found = await storm(engine, "a")
        assert all(len(one) == 1 for one in ids.values())
        assert sum(not r.duplicate for r in found) == 8
        other, _ = await storm(engine, "b")
        assert not {x for one in ids.values() for x in one} & {
            x for one in other.values() for x in one
        }
    async with lodeq.open(tmp_path / "s") as engine:
        again, found = await storm(engine, "a")
        assert again == ids
        assert all(r.duplicate for r in found)
        assert (await engine.stats()).ready == 16
        await sound(engine)


async def test_completed_is_never_claimed_again_however_the_reaper_races(clock):
    """Completes queued before, with, and after the reaper's pass over the same leases."""
    async with in_memory(clock, shards=2) as engine:
        queue = engine.queue("mail", lease=10, max_attempts=50)
        await queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(60)])
        leases = await queue.claim(limit=60)
        done: set[int] = set()

        async def finish(lease, turns):
            await settle(turns)
            try:
                await lease.complete()
            except lodeq.LeaseLostError:
                return
            done.add(lease.payload)

        tasks = [asyncio.create_task(finish(x, i % 12)) for i, x in enumerate(leases)]
        await settle(2)
        await clock.advance(11)
        await asyncio.gather(*tasks)
        assert done
        rest = await drain(queue)
        assert sorted([*done, *rest]) == list(range(60))
        await sound(engine)


@pytest.mark.parametrize("how", ["nack", "expiry"])
@pytest.mark.parametrize("most", range(1, 11))
async def test_attempts_are_exact(clock, how, most):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", max_attempts=most, lease=5, backoff=Backoff(base=0))
        task = await queue.enqueue(b"x")
        runs = 0
        while lease := await queue.claim_one():
            runs += 1
            assert lease.attempt == runs
            if how == "nack":
                await lease.nack(reason="no")
            else:
                await clock.advance(6)
        assert runs == most
        (dead,) = await queue.dead_letters()
        assert (dead.id, dead.attempts) == (task.id, most)
        result = await engine.result(task.id)
        assert (result.status, result.attempts) == ("dead", most)
        await sound(engine)


@pytest.mark.parametrize("most", [1, 2, pytest.param(10, marks=pytest.mark.slow)])
async def test_attempts_are_exact_when_the_process_dies(tmp_path, most):
    """A closed engine leaves its leases on disk, exactly as a killed one does."""
    async with lodeq.open(tmp_path / "s") as engine:
        await engine.queue("mail", max_attempts=most).enqueue(b"x")
    runs = 0
    while True:
        async with lodeq.open(tmp_path / "s") as engine:
            queue = engine.queue("mail")
            lease = await queue.claim_one()
            if lease is None:
                (dead,) = await queue.dead_letters()
                assert (dead.attempts, dead.reason) == (most, "process died")
                await sound(engine)
                break
            runs += 1
            assert lease.attempt == runs
    assert runs == most


@pytest.mark.parametrize("shards", [1, 4])
async def test_close_under_load_leaves_no_caller_hanging(tmp_path, shards):
    """Half of the original's callers stayed blocked when it closed."""
    async with lodeq.open(
        tmp_path / "s", shards=shards, submit_queue_max=4, commit_batch_max=2
    ) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(i) for i in range(50)])
        leases = await queue.claim(limit=20)
        slow = engine.queue("empty")
        calls = [
            *(queue.enqueue(i) for i in range(100)),
            *(queue.enqueue(i, dedup_key=str(i)) for i in range(20)),
            *(lease.complete() for lease in leases[:10]),
            *(lease.nack() for lease in leases[10:]),
            *(queue.claim() for _ in range(20)),
            *(slow.claim(wait=1000) for _ in range(10)),
            engine.result(leases[0].task_id, wait=1000),
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await settle(2)
        await engine.close()
        await until(lambda: all(task.done() for task in tasks), turns=1000)
        errors = [e for t in tasks if (e := t.exception()) is not None]
        assert all(isinstance(e, lodeq.ClosedError) for e in errors), errors
        accepted = sum(t.exception() is None for t in tasks[:120])
    async with lodeq.open(tmp_path / "s") as engine:
        await sound(engine)
        stats = await engine.stats()
        assert stats.ready + stats.delayed + stats.results == 50 + accepted


async def test_memory_does_not_grow_with_the_queues_polled(clock):
    """The original allocated 23 MiB for every name that was ever polled."""
    async with in_memory(clock, shards=2) as engine:
        state = engine._state
        for i in range(200):
            queue = engine.queue(f"q{i}", tenant=f"t{i}")
            assert await queue.claim() == []
            assert (await queue.stats()).ready == 0
            assert await queue.list("ready") == []
        waiting = [asyncio.create_task(engine.queue(f"w{i}").claim(wait=5)) for i in range(50)]
        await settle()
        await clock.advance(6)
        assert await asyncio.gather(*waiting) == [[]] * 50
        assert not state.queue_states
        assert not state.waiters.by_tenant_queue
        assert not state.leases


@pytest.mark.usefixtures("no_history")
async def test_memory_does_not_grow_with_the_queues_used(clock):
    async with in_memory(clock) as engine:
        for i in range(100):
            queue = engine.queue(f"q{i}", retention=0)
            await queue.enqueue(b"x")
            await (await queue.claim_one()).complete()
        for _ in range(40):
            await clock.advance(1.5)
        assert not engine._state.queue_states
        gc.collect()
        store = engine._state.shards[0].store
        assert store.scan(b"m/c/", b"m/c0", 9) == []
        await sound(engine)


async def test_another_shard_count_is_refused(tmp_path):
    async with lodeq.open(tmp_path / "s", shards=2) as engine:
        await engine.queue("mail").enqueue(b"x")
    for other in (1, 3, 4):
        with pytest.raises(ShardCountError) as caught:
            async with lodeq.open(tmp_path / "s", shards=other):
                pass
        assert (caught.value.stored, caught.value.requested) == (2, other)
        assert "2" in str(caught.value)
        assert str(other) in str(caught.value)
    async with lodeq.open(tmp_path / "s") as engine:
        assert engine.shards == 2
        assert await drain(engine.queue("mail")) == [b"x"]


BAD_NAMES = ["img/resize", "a\0b", "..", ".a", "Upper", "a" * 300, "", " a", "é", "-a", "a b", 7]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:12])
async def test_bad_names_are_refused_before_anything_is_written(name):
    async with in_memory(StillClock()) as engine:
        before = (await engine.stats()).shards[0].applied_commit
        with pytest.raises(InvalidNameError):
            engine.queue(name)
        if name != "":
            with pytest.raises(InvalidNameError):
                engine.queue("ok", tenant=name)
            with pytest.raises(InvalidNameError):
                await engine.enqueue_many([NewTask(b"x", queue="ok", tenant=name)])
        with pytest.raises(InvalidNameError):
            await engine.enqueue_many([NewTask(b"x", queue="ok"), NewTask(b"x", queue=name)])
        with pytest.raises(InvalidNameError):
            await engine.claim([name])
        assert (await engine.stats()).shards[0].applied_commit == before
        assert not engine._state.queue_states
