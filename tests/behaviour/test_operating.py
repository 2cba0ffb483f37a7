"""What operators do: look, pause, purge, redrive, check, copy."""

import asyncio

import pytest
from support_behaviour import StillClock, drain, in_memory, payloads, settle, sound
from support_live import copy_live

import lodeq
from lodeq import ALL_TENANTS, Backoff, LeaseLostError, NewTask

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[1, 4], ids=["1 shard", "4 shards"])
async def engine(clock, request):
    async with in_memory(clock, shards=request.param) as engine:
        yield engine
        await sound(engine)


async def one_of_each(engine, clock, queue, n=5):
    """n tasks in every state there is; their ids by state."""
    ids = {}

    async def put(state, **options):
        ids[state] = [
            (await queue.enqueue([state, i], shard_key=str(i), **options)).id for i in range(n)
        ]

    await put("expired", ttl=1)
    await clock.advance(3)
    for state in ("completed", "dead", "leased"):
        await put(state)
        for _ in range(n):
            lease = await queue.claim_one(lease=9999)
            if state == "completed":
                await lease.complete()
            elif state == "dead":
                await lease.bury("why")
            clock.jump(0.01)
    await put("cancelled")
    for task_id in ids["cancelled"]:
        await engine.cancel(task_id)
    await put("ready")
    await put("delayed", delay=500)
    return ids


async def test_tasks_are_listed_by_state_and_page(engine, clock):
    queue = engine.queue("mail", tenant="a")
    await engine.queue("mail", tenant="b").enqueue(b"another tenant's")
    await engine.queue("mail2", tenant="a").enqueue(b"another queue's")
    ids = await one_of_each(engine, clock, queue)
    finished = ("completed", "expired", "cancelled")
    for state, wanted in ids.items():
        whole = await queue.list(state)
        assert {task.state for task in whole} == {state}
        got = [task.id for task in whole]
        assert got == wanted if state not in finished else sorted(got) == sorted(wanted)
        pages, after = [], None
        while page := await queue.list(state, limit=2, after=after):
            assert len(page) <= 2
            pages += [task.id for task in page]
            after = page[-1]
        assert pages == got
    assert [t.id for t in await queue.peek(3)] == ids["ready"][:3]
    assert [t.id for t in await queue.dead_letters()] == ids["dead"]
    every = engine.queue("mail", tenant=ALL_TENANTS)
    assert len(await every.list("ready")) == 6
    assert {t.reason for t in await queue.list("dead")} == {"why"}


async def test_a_redriven_and_completed_task_is_listed_once(engine, clock):
    queue = engine.queue("mail", max_attempts=1)
    task = await queue.enqueue(b"x")
    await (await queue.claim_one()).nack()
    await clock.advance(5)
    assert await queue.redrive() == 1
    assert await engine.result(task.id) is None
    lease = await queue.claim_one()
    assert lease.attempt == 1
    await lease.complete()
    other = await queue.enqueue(b"y")
    await (await queue.claim_one()).complete()
    first = await queue.list("completed", limit=1)
    rest = await queue.list("completed", after=first[0])
    assert sorted(t.id for t in [*first, *rest]) == sorted([task.id, other.id])
    assert (await queue.stats()).results == 2


async def test_stats_are_exact_and_agree_with_a_recount(engine, clock):
    queue = engine.queue("mail", tenant="a")
    await one_of_each(engine, clock, queue, n=7)
    await engine.queue("mail", tenant="b").enqueue_many([NewTask(i) for i in range(3)])
    stats = await queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (7, 7, 7, 7)
    assert stats.results == 28  # completed, expired, cancelled, and one for each dead letter
    assert stats.pending == 14
    assert not stats.is_paused
    clock.jump(10)
    assert round((await queue.stats()).oldest_ready_age) == 10
    every = await engine.queue("mail", tenant=ALL_TENANTS).stats()
    assert (every.ready, every.leased) == (10, 7)
    whole = await engine.stats()
    assert (whole.ready, whole.delayed, whole.leased, whole.dead, whole.results) == (
        10,
        7,
        7,
        7,
        28,
    )
    assert (whole.enqueued_total, whole.claimed_total, whole.completed_total) == (52, 21, 7)
    assert (whole.dead_total, whole.expired_total) == (7, 7)
    assert whole.oldest_lease_age > 10
    assert sum(s.commits for s in whole.shards) > 0
    assert all(s.applied_commit >= s.durable_commit for s in whole.shards)
    assert (await engine.queue("none").stats()).oldest_ready_age is None
    assert (await engine.health()).ok


async def test_a_pause_holds_claims_and_waits_until_it_is_over(engine):
    queue, every = engine.queue("mail"), engine.queue("mail", tenant=ALL_TENANTS)
    for paused, other in ((queue, every), (every, queue)):
        await paused.pause()
        assert (await queue.stats()).is_paused
        await queue.enqueue(b"x")
        assert await queue.claim() == []
        assert await every.claim() == []
        assert await engine.claim(["mail", "other"]) == []
        waiting = [asyncio.ensure_future(q.claim(wait=50)) for q in (other, paused)]
        await settle()
        assert not any(task.done() for task in waiting)
        await queue.enqueue(b"y")
        await settle()
        assert not any(task.done() for task in waiting)
        await paused.resume()
        got = await asyncio.gather(*waiting)
        assert sorted(p for leases in got for p in payloads(leases)) == [b"x", b"y"]


async def test_a_pause_survives_a_restart(tmp_path):
    async with lodeq.open(tmp_path / "s") as engine:
        await engine.queue("a").pause()
        await engine.queue("b", tenant=ALL_TENANTS).pause()
        await engine.queue("c").pause()
        await engine.queue("c").resume()
        for name in "abc":
            await engine.queue(name).enqueue(name)
    async with lodeq.open(tmp_path / "s") as engine:
        assert payloads(await engine.claim(["a", "b", "c"], limit=9)) == ["c"]
        await engine.queue("a").resume()
        await engine.queue("b", tenant=ALL_TENANTS).resume()
        assert payloads(await engine.claim(["a", "b"], limit=9)) == ["a", "b"]
        await sound(engine)


@pytest.mark.parametrize("state", [None, "ready", "delayed", "dead"])
async def test_a_purge_deletes_what_it_names_and_leaves_the_leased(engine, clock, state):
    queue = engine.queue("mail")
    ids = await one_of_each(engine, clock, queue, n=6)
    await engine.queue("other").enqueue(b"not mine")
    before = await queue.stats()
    named = ("ready", "delayed", "dead") if state is None else (state,)
    assert await queue.purge(state) == 6 * len(named)
    after = await queue.stats()
    for name in ("ready", "delayed", "dead", "leased"):
        gone = name in named
        assert getattr(after, name) == (0 if gone else getattr(before, name))
        for task_id in ids[name]:
            got = (await engine.get(task_id)).state
            assert got == ({"dead": "dead"}.get(name, "cancelled") if gone else name)
    assert (await engine.queue("other").stats()).ready == 1


async def test_a_purge_of_a_long_queue_lets_others_run(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", retention=0)
        await queue.enqueue_many([NewTask(i) for i in range(1000)])
        purging = asyncio.ensure_future(queue.purge())
        await settle(2)
        assert 0 < (await queue.stats()).ready < 1000
        lease = await queue.claim_one()
        assert await purging == 999
        await lease.complete()
        assert (await engine.stats()).ready == 0
        await sound(engine)


async def test_redrive_gives_a_fresh_set_of_attempts_at_the_tail(engine, clock):
    queue = engine.queue("mail", max_attempts=2, backoff=Backoff(base=0))
    ids = [(await queue.enqueue(i, ttl=100)).id for i in range(4)]
    for _ in range(2):
        for lease in await queue.claim(limit=4):
            await lease.nack()
    assert (await queue.stats()).dead == 4
    await queue.enqueue("fresh")
    await clock.advance(200)
    assert await queue.redrive([ids[2]]) == 1
    assert await queue.redrive() == 3
    assert await queue.redrive() == 0
    leases = await queue.claim(limit=9)
    assert payloads(leases)[:2] == ["fresh", 2]
    assert {lease.attempt for lease in leases} == {1}
    for lease in leases[1:]:
        await lease.nack()
    assert (await queue.stats()).dead == 0


async def test_a_stream_keeps_its_leases_alive_and_gives_back_the_rest(engine, clock):
    queue = engine.queue("mail")
    await queue.enqueue_many([NewTask(i) for i in range(10)])
    seen = []
    async with queue.leases(limit=5, lease=9) as stream:
        async for lease in stream:
            async with lease:
                for _ in range(5):
                    await clock.advance(4)
                assert lease.is_live
                seen.append(lease.payload)
            if len(seen) == 3:
                break
    assert (await queue.stats()).leased == 0
    assert seen == [0, 1, 2]
    assert [t.attempts for t in await queue.peek(9)] == [0] * 7
    assert await drain(queue) == list(range(3, 10))


async def test_a_stream_waits_for_more_and_passes_over_what_was_reaped(engine, clock):
    queue = engine.queue("mail", max_attempts=9)
    n = 1500
    await queue.enqueue_many([NewTask(i) for i in range(n)])
    async with queue.leases(limit=4000, lease=9, keepalive=False, wait=5) as stream:
        first = await anext(stream)
        await clock.advance(10, turns=500)
        assert not first.is_live
        with pytest.raises(LeaseLostError):
            await first.complete()
        again = await anext(stream)
        assert (again.attempt, again.payload) == (2, 0)
    await again.release()
    assert await drain(queue) == list(range(n))
    async with queue.leases(wait=5) as stream:
        nothing = asyncio.ensure_future(anext(stream))
        for _ in range(3):
            await clock.advance(6)
        assert not nothing.done()
        await queue.enqueue(b"at last")
        assert (await nothing).payload == b"at last"


async def test_a_checkpoint_is_a_store_of_its_own(tmp_path):
    clock = StillClock()
    async with lodeq.open(tmp_path / "s", shards=2, clock=clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(20)])
        held = await queue.claim(limit=5)
        await held[0].complete(b"r")
        await engine.checkpoint(tmp_path / "c")
        await queue.enqueue(b"after")
        with pytest.raises(lodeq.LodeqError):
            await engine.checkpoint(tmp_path / "c")
    lodeq.restore(tmp_path / "c", tmp_path / "r")
    async with lodeq.open(tmp_path / "r", clock=clock) as engine:
        assert engine.shards == 2
        queue = engine.queue("mail")
        assert (await engine.result(held[0].task_id)).value == b"r"
        got = await drain(queue)
        assert sorted(got) == sorted(set(range(20)) - {held[0].payload})
        await sound(engine)


async def test_fsync_makes_everything_durable(tmp_path):
    async with lodeq.open(tmp_path / "s", shards=2, sync_interval=1000) as engine:
        await engine.queue("mail").enqueue_many([NewTask(i, shard_key=str(i)) for i in range(9)])
        assert any(s.durable_commit < s.applied_commit for s in (await engine.stats()).shards)
        await engine.fsync()
        for shard in (await engine.stats()).shards:
            assert shard.durable_commit == shard.applied_commit
            assert shard.syncs > 0


@pytest.mark.parametrize("many", [False, True])
async def test_an_exported_lease_restarts_with_the_longest_length_it_was_given(tmp_path, many):
    path, image = tmp_path / "s", tmp_path / "killed"
    clock = StillClock()
    async with lodeq.open(path, clock=clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x", dedup_key="k", headers={"h": 1})
        (lease,) = await queue.claim(lease=30, exported=True, worker="http")
        commits = (await engine.stats()).shards[0].commits
        for seconds in (None, 20, 600, 600, 400):
            if many:
                assert await engine.heartbeat_many([lease], seconds) == [None]
            else:
                await lease.heartbeat(seconds)
        await engine.fsync()
        assert (await engine.stats()).shards[0].commits == commits + 1
        copy_live(path, image)
        image.chmod(0o700)
    async with lodeq.open(image, clock=clock) as engine:
        queue = engine.queue("mail")
        await clock.advance(599)
        (task,) = await queue.list("leased")
        assert (task.worker, task.attempts, task.payload) == ("http", 1, b"x")
        await clock.advance(2)
        assert (await queue.stats()).ready == 1
        await sound(engine)


async def test_exported_leases_outlive_the_process_and_others_go_back(tmp_path):
    clock = StillClock()
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(i) for i in range(2)])
        await queue.claim(lease=30)
        (exported,) = await queue.claim(lease=30, exported=True, worker="http")
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        queue = engine.queue("mail")
        stats = await queue.stats()
        assert (stats.ready, stats.leased) == (1, 1)
        (again,) = await queue.claim()
        assert (again.payload, again.attempt) == (0, 2)
        assert again.epoch > exported.epoch
        assert sorted(t.worker for t in await queue.list("leased")) == ["", "http"]
        await clock.advance(29)
        assert (await queue.stats()).leased == 2
        await again.complete()
        await clock.advance(2)
        assert [(t.payload, t.attempts) for t in await queue.peek()] == [(1, 1)]
        await sound(engine)
