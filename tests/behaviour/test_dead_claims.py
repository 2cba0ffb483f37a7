"""Dead letters are claimed under a lease: completed, sent back, or laid back as they were."""

import asyncio

import pytest
from support_behaviour import in_memory, settle, sound, until
from support_live import copy_live

import lodeq
from lodeq import ALL_TENANTS, Limits, NewTask, TaskFilter, UsageError
from lodeq.repository.tasks import dead_claim

pytestmark = pytest.mark.anyio
NO_HISTORY = Limits(history_s=0)


async def kill(engine, clock, payloads, *, tenant="", **options):
    """Dead letters of ``mail``, five milliseconds apart."""
    queue = engine.queue("mail", tenant=tenant)
    ids = []
    for payload in payloads:
        receipt = await queue.enqueue(payload, **{"max_attempts": 1} | options)
        (lease,) = await queue.claim(worker="w1")
        await lease.nack(reason=f"no {payload}")
        ids.append(receipt.id)
        await clock.advance(0.005)
    return queue, ids


async def facts(engine, task_id):
    """The facts of a dead letter that no claim may change."""
    task = await engine.get(task_id)
    attempts = await engine.attempts(task_id)
    return task, attempts, await engine.result(task_id)


async def counts(queue):
    stats = await queue.stats()
    return stats.ready, stats.leased, stats.dead


async def test_a_dead_letter_is_leased_with_what_is_known_of_its_death(clock):
    async with in_memory(clock) as engine:
        queue, (first, _) = await kill(engine, clock, [1, 2], headers={"h": 1})
        died = (await engine.get(first)).finished_at
        assert await queue.claim() == []
        lease = await queue.claim_one(dead=True, worker="w2", lease=5)
        assert (lease.task_id, lease.payload, lease.headers) == (first, 1, {"h": 1})
        assert (lease.reason, lease.dead_at, lease.attempt) == ("no 1", died, 1)
        task = await engine.get(first)
        assert (task.state, task.worker, task.attempts) == ("leased", "w2", 1)
        assert await counts(queue) == (0, 1, 1)
        assert [one.payload for one in await queue.dead_letters()] == [2]
        assert (await engine.result(first)).status == "dead"
        await sound(engine)


async def test_a_lease_of_a_ready_task_knows_of_no_death(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(1)
        (lease,) = await queue.claim()
        assert (lease.reason, lease.dead_at) == ("", None)
        with pytest.raises(UsageError, match="no dead letter"):
            await lease.redrive()
        await lease.complete()


async def test_completed_it_counts_as_done(clock):
    async with in_memory(clock, limits=NO_HISTORY) as engine:
        queue, (task_id,) = await kill(engine, clock, [1])
        (lease,) = await queue.claim(dead=True)
        await lease.complete(b"by hand", then=[NewTask(2)])
        result = await engine.result(task_id)
        assert (result.status, result.value, result.attempts) == ("completed", b"by hand", 1)
        assert [one.reason for one in await engine.attempts(task_id)] == ["no 1", ""]
        await lease.complete(b"by hand")  # again: the same lease has done so
        assert await counts(queue) == (1, 0, 0)
        stats = await engine.stats()
        assert (stats.completed_total, stats.dead, stats.results) == (1, 0, 1)
        await sound(engine)
        await clock.advance(3700)
        await clock.advance(2)
        assert (await engine.stats()).results == 0
        await sound(engine)


@pytest.mark.parametrize("keep", [True, False])
async def test_many_at_once(clock, keep):
    async with in_memory(clock, shards=3, limits=NO_HISTORY) as engine:
        queue, _ = await kill(engine, clock, range(20))
        leases = await queue.claim(dead=True, limit=12)
        assert [lease.payload for lease in leases] == [*range(12)]
        if keep:
            assert await engine.complete_many([(one, b"r") for one in leases]) == [None] * 12
        else:
            for lease in leases:
                await lease.complete(keep=False)
        assert (await engine.stats()).results == (20 if keep else 8)
        assert [one.payload for one in await queue.claim(dead=True, limit=100)] == [*range(12, 20)]
        assert await queue.claim(dead=True) == []
        await sound(engine)


@pytest.mark.parametrize("how", ["nack", "release", "bury", "expiry", "raise", "cancelled"])
async def test_without_an_answer_it_goes_back_as_it_was(clock, how):
    async with in_memory(clock) as engine:
        queue, (task_id, _) = await kill(engine, clock, [1, 2])
        before = await facts(engine, task_id)
        (lease,) = await queue.claim(dead=True, lease=5)
        if how in ("nack", "bury"):
            await getattr(lease, how)(reason="another")
        elif how == "release":
            await lease.release()
        elif how == "expiry":
            await clock.advance(3)
            await lease.heartbeat()
            await clock.advance(4)
            assert lease.is_live
            await clock.advance(2)
            assert not lease.is_live
        else:
            error = ValueError if how == "raise" else asyncio.CancelledError
            with pytest.raises(error):
                async with lease:
                    raise error
        await settle()
        assert await facts(engine, task_id) == before
        assert await counts(queue) == (0, 0, 2)
        with pytest.raises(lodeq.LeaseLostError):
            await lease.complete()
        (again,) = await queue.claim(dead=True)
        assert again.task_id == task_id
        assert again.epoch > lease.epoch
        await sound(engine)


async def test_a_delay_is_refused_and_the_lease_goes_on(clock):
    async with in_memory(clock) as engine:
        queue, _ = await kill(engine, clock, [1])
        (lease,) = await queue.claim(dead=True)
        for end in (lease.nack, lease.release):
            with pytest.raises(UsageError, match="know no delay"):
                await end(delay=3)
        await lease.nack(delay=0)
        await sound(engine)


async def test_redriven_it_starts_anew(clock):
    async with in_memory(clock) as engine:
        queue, (task_id,) = await kill(engine, clock, [1], max_attempts=1)
        (lease,) = await queue.claim(dead=True)
        await lease.redrive()
        assert not lease.is_live
        (run,) = await queue.claim()
        assert (run.task_id, run.attempt, run.reason) == (task_id, 1, "")
        await run.complete()
        assert await counts(queue) == (0, 0, 0)
        await sound(engine)


async def test_cancelled_it_is_over(clock):
    async with in_memory(clock) as engine:
        queue, (one, two) = await kill(engine, clock, [1, 2])
        lease, _ = await queue.claim(dead=True, limit=2)
        await lease.cancel()
        assert await engine.cancel(two)  # leased, it can be
        for task_id in (one, two):
            assert (await engine.result(task_id)).status == "cancelled"
        assert (await engine.stats()).results == 2
        await sound(engine)


async def test_redriven_against_a_newer_holder_of_its_key_it_stays_leased(clock):
    async with in_memory(clock) as engine:
        queue, _ = await kill(engine, clock, [1], dedup_key="k")
        (lease,) = await queue.claim(dead=True)
        rival = await queue.enqueue(2, dedup_key="k")
        assert not rival.duplicate  # a dead letter holds its key for its window only
        with pytest.raises(lodeq.DuplicateTaskError):
            await lease.redrive()
        assert lease.is_live
        await lease.complete()
        assert (await queue.enqueue(3, dedup_key="k")).duplicate
        await sound(engine)


async def test_in_its_window_the_key_is_held_and_nobody_replaces_what_is_leased(clock):
    async with in_memory(clock) as engine:
        queue, (task_id,) = await kill(engine, clock, [1], dedup_key="k", dedup_window=60)
        (lease,) = await queue.claim(dead=True, lease=600)
        assert (await queue.enqueue(2, dedup_key="k")).id == task_id
        with pytest.raises(lodeq.DuplicateTaskError, match="leased"):
            await queue.enqueue(2, dedup_key="k", on_conflict="replace")
        await clock.advance(70)
        assert not (await queue.enqueue(2, dedup_key="k")).duplicate
        await lease.nack()
        await sound(engine)


async def test_the_key_is_its_own_again_after_a_redrive(clock):
    async with in_memory(clock) as engine:
        queue, (task_id,) = await kill(engine, clock, [1], dedup_key="k")
        (lease,) = await queue.claim(dead=True)
        await lease.redrive()
        assert (await queue.enqueue(2, dedup_key="k")).id == task_id
        await sound(engine)


async def test_nobody_else_ends_a_leased_one(clock):
    async with in_memory(clock) as engine:
        queue, ids = await kill(engine, clock, [1, 2, 3])
        (lease,) = await queue.claim(dead=True, lease=3600)
        with pytest.raises(lodeq.TaskNotFoundError):
            await queue.redrive([lease.task_id])
        assert not await engine.discard(lease.task_id)
        await engine.configure("mail", dead_max=0)
        for _ in range(3):
            await clock.advance(1)
        assert await counts(queue) == (0, 1, 0)
        await engine.configure("mail", dead_max=None)
        assert await queue.redrive() == 0
        assert await queue.purge() == 0
        report = await engine.act("delete", TaskFilter(queue="mail"))
        assert report.done == 0
        assert lease.is_live
        await lease.complete(b"r")
        assert (await engine.result(ids[0])).value == b"r"
        await sound(engine)


async def test_those_beyond_a_bound_go_soon_after_they_came_back(clock):
    async with in_memory(clock) as engine:
        queue, ids = await kill(engine, clock, [1, 2, 3])
        leases = await queue.claim(dead=True, limit=3, lease=600)
        await engine.configure("mail", dead_max=1)
        for _ in range(3):
            await clock.advance(1)
        for lease in leases:
            await lease.nack()
        for _ in range(3):
            await clock.advance(1)
        assert [one.id for one in await queue.dead_letters()] == ids[2:]
        await sound(engine)


async def test_its_retention_ends_it_when_it_comes_back(clock):
    async with in_memory(clock) as engine:
        queue, _ = await kill(engine, clock, [1], dead_retention=60)
        (lease,) = await queue.claim(dead=True, lease=600)
        await clock.advance(90)
        assert lease.is_live
        await lease.nack()
        await clock.advance(2)
        assert (await queue.stats()).dead == 0
        await sound(engine)


async def test_a_pause_and_limits_hold_back_runs_only(clock):
    async with in_memory(clock) as engine:
        queue, _ = await kill(engine, clock, [1, 2])
        await engine.configure("mail", concurrency=1)
        await queue.enqueue(3)
        (run,) = await queue.claim()
        await queue.pause()
        leases = await queue.claim(dead=True, limit=5)
        assert len(leases) == 2
        await queue.resume()
        await run.complete()
        await queue.enqueue(4)
        assert len(await queue.claim()) == 1
        for lease in leases:
            await lease.nack()
        assert await queue.claim() == []
        await sound(engine)


async def test_of_each_tenant_by_itself(clock):
    async with in_memory(clock) as engine:
        plain, _ = await kill(engine, clock, [1])
        acme, _ = await kill(engine, clock, [2], tenant="acme")
        assert [one.payload for one in await acme.claim(dead=True, limit=9)] == [2]
        with pytest.raises(UsageError, match="one tenant"):
            await engine.queue("mail", tenant=ALL_TENANTS).claim(dead=True)
        with pytest.raises(UsageError, match="one tenant"):
            await plain.claim(dead=True, skip_tenants=["a"])
        with pytest.raises(UsageError, match="True or False"):
            await plain.claim(dead="yes")
        with pytest.raises(UsageError):
            await plain.claim(dead=True, limit=0)
        assert [one.payload for one in await plain.claim(dead=True, limit=9)] == [1]


async def test_a_claim_waits_for_the_next_death(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        first = asyncio.ensure_future(queue.claim(dead=True, wait=60))
        second = asyncio.ensure_future(queue.claim(dead=True, wait=60))
        await settle()
        await kill(engine, clock, [1])
        await until(first.done)
        (lease,) = first.result()
        assert lease.payload == 1
        await lease.release()
        await until(second.done)
        assert second.result()[0].payload == 1
        third = asyncio.ensure_future(queue.claim(dead=True, wait=5))
        await settle()
        await clock.advance(6)
        assert third.result() == []
        fourth = asyncio.ensure_future(queue.claim(dead=True, wait=600))
        await settle()
        fourth.cancel()
        await settle()
        assert not engine._state.dead_waiters
        last = asyncio.ensure_future(queue.claim(dead=True, wait=600))
        await settle()
    with pytest.raises(lodeq.ClosedError):
        await last


async def test_a_damaged_one_is_passed_over(clock):
    async with in_memory(clock) as engine:
        queue, (first, _) = await kill(engine, clock, [1, 2])
        store = engine._state.shards[0].store
        store.write([(b"t/" + first, b"damaged")])
        assert [one.payload for one in await queue.claim(dead=True, limit=5)] == [2]
        assert (await queue.stats()).dead == 1


async def test_a_lost_claim_is_of_the_call_that_was_cancelled(clock):
    async with in_memory(clock) as engine:
        queue, _ = await kill(engine, clock, [1, 2])
        call = asyncio.ensure_future(queue.claim(dead=True, limit=2))
        await until(lambda: engine._state.leases)
        call.cancel()
        await settle()
        if not call.cancelled():
            for lease in call.result():
                await lease.release()
        assert await counts(queue) == (0, 0, 2)
        await sound(engine)


async def test_a_member_that_is_completed_lets_go_who_waits_for_it(clock):
    async with in_memory(clock, shards=3) as engine:
        flow = await engine.workflow(NewTask(b"end", queue="ends"), on_failure="wait")
        await flow.add([NewTask(n, queue="mail", max_attempts=1) for n in range(2)])
        await flow.seal()
        queue, ends = engine.queue("mail"), engine.queue("ends")
        for lease in await queue.claim(limit=2):
            await lease.bury("no")
        late = await engine.enqueue_after(
            NewTask(b"late", "ends"), [lease.task_id], on_failure="wait"
        )
        first, second = await queue.claim(dead=True, limit=2)
        await first.complete(b"1")
        assert await ends.claim() == []
        assert await flow.redrive() == 0  # what is leased is not its to redrive
        await second.nack()
        assert await flow.redrive() == 1
        (run,) = await queue.claim()
        await run.complete(b"2")
        await settle(200)
        done = [one.payload for one in await ends.claim(limit=5)]
        assert sorted(done) == [b"end", b"late"]
        assert (await engine.get(late)).state == "leased"
        await sound(engine)


async def test_who_begins_to_wait_for_a_leased_one_hears_of_its_end(clock):
    async with in_memory(clock, shards=3) as engine:
        queue, (task_id,) = await kill(engine, clock, [1])
        (lease,) = await queue.claim(dead=True, lease=600)
        await engine.enqueue_after(NewTask(b"late", "ends"), [task_id], on_failure="wait")
        await settle(200)
        await sound(engine)
        await lease.nack()
        await sound(engine)
        (lease,) = await queue.claim(dead=True, lease=600)
        assert await engine.queue("ends").claim() == []
        await lease.complete()
        for _ in range(3):
            await clock.advance(1, turns=100)
        assert [one.payload for one in await engine.queue("ends").claim()] == [b"late"]
        await sound(engine)


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("end", ["close", "kill"])
async def test_after_a_restart(clock, tmp_path, end, exported):
    path = tmp_path / "s"
    async with lodeq.open(path, clock=clock) as engine:
        queue, (task_id, _) = await kill(engine, clock, [1, 2])
        before = await facts(engine, task_id)
        (lease,) = await queue.claim(dead=True, exported=exported, lease=60)
        await lease.heartbeat(90)
        if end == "kill":
            copy_live(path, tmp_path / "image")
            (tmp_path / "image").chmod(0o700)
    path = path if end == "close" else tmp_path / "image"
    async with lodeq.open(path, clock=clock) as engine:
        queue = engine.queue("mail")
        assert await counts(queue) == ((0, 1, 1) if exported else (0, 0, 2))
        await sound(engine)
        if exported:
            (again,) = engine._state.leases.values()
            assert (again.reason, again.dead_at) == ("no 1", before[0].finished_at)
            await again.heartbeat(200)
            await clock.advance(100)
            assert again.is_live
            await clock.advance(101)
        assert await facts(engine, task_id) == before
        await sound(engine)


async def test_no_more_records_are_read_than_are_claimed(clock, monkeypatch):
    read = []
    plain = dead_claim.checked_records

    def counted(shard, rows):
        read.extend(rows)
        return plain(shard, rows)

    monkeypatch.setattr(dead_claim, "checked_records", counted)
    async with in_memory(clock, shards=8) as engine:
        ids = [(await kill(engine, clock, [n], shard_key=str(n)))[1][0] for n in range(40)]
        queue = engine.queue("mail")
        assert len({engine._state.shard_of(one) for one in ids}) > 4
        found = []
        while leases := await queue.claim(dead=True, limit=6):
            found += [lease.task_id for lease in leases]
        assert found == ids
    assert len(read) == len(ids)
