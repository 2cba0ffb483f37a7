"""Replicas of one store: the same rows, one leader a shard, nothing stale after a failover."""

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from support_behaviour import drain, payloads, settle, sound, until
from support_replication import Cluster, rows
from xxhash import xxh3_64_digest

import lodeq
from lodeq.engine.records.keyspace import COUNTERS, LEASE, MOVED, TASK
from lodeq.engine.records.rows import Applied
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.store.memory import MemoryView
from lodeq.errors import (
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    InvariantError,
    LeaseLostError,
    NotLeaderError,
    OpenError,
    RecoveryRefusedError,
    TaskNotFoundError,
    UsageError,
)
from lodeq.repository.api.in_place_reshard import reshard
from lodeq.repository.api.open import open_in_memory
from lodeq.repository.api.read_only import open_read_only

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pair(clock):
    """(cluster, a, b): a leads the one shard, b follows."""
    cluster = Cluster()
    async with cluster.open("a", clock=clock) as a, cluster.open("b", clock=clock) as b:
        await cluster.elect("a")
        yield cluster, a, b


async def same(*engines: lodeq.Engine) -> None:
    """Sound, and alike down to the last row."""
    for engine in engines:
        await sound(engine)
    assert all(rows(engine) == rows(engines[0]) for engine in engines[1:])


async def lively(engine: lodeq.Engine, clock: Any) -> lodeq.Queue:
    """A queue with something in every state and every family."""
    queue = engine.queue("mail", max_attempts=2, backoff=lodeq.Backoff("fixed", base=60))
    await queue.enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(8)])
    await queue.enqueue(b"later", delay=30, ttl=600)
    await queue.enqueue(b"keyed", dedup_key="k", dedup_window=3600)
    done, bad, buried, *_ = await queue.claim(limit=5, worker="w")
    await done.complete({"ok": True}, then=[lodeq.NewTask(b"next", queue="audit")])
    await bad.nack(reason="no")
    await buried.bury("never")
    await engine.queue("audit").pause()
    return queue


async def outcome(call: Any) -> Any:
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - whatever it was
        return error


# -- the same rows ---------------------------------------------------------------------


async def test_replicas_have_identical_rows_in_every_family(pair, clock):
    _, a, b = pair
    await lively(a, clock)
    await same(a, b)
    (found,) = rows(b)
    families = {key[:2] for key in found}
    assert families == {b"a/", b"t/", b"q/", b"s/", b"l/", b"r/", b"g/", b"e/", b"m/"}
    assert {b"m/applied", b"m/open"} < set(found)
    await clock.advance(7200)
    await same(a, b)
    assert (await b.stats()).delayed == 0


async def test_shards_are_replicated_and_led_one_by_one(clock):
    cluster = Cluster()
    options = {"clock": clock, "shards": 4}
    async with cluster.open("a", **options) as a, cluster.open("b", **options) as b:
        for shard in range(4):
            await cluster.elect("ab"[shard % 2], shard)
        for engine in (a, b):
            queue = engine.queue("mail")
            await asyncio.gather(*(queue.enqueue(b"%d" % n) for n in range(20)))
            # Each engine enqueues and claims where it leads, and counts everything.
            assert len(await queue.claim(limit=64)) == 20
        await settle()
        assert (await a.stats()).leased == (await b.stats()).leased == 40
        await same(a, b)


async def test_replay_is_harmless_and_a_gap_is_refused(pair, clock):
    cluster, a, b = pair
    await lively(a, clock)
    before = rows(b)
    replica = cluster.nodes["b"].replica
    for entry in cluster.logs[0]:
        replica.apply(entry)
    cluster.nodes["b"].cut()
    await a.queue("mail").enqueue(b"1")
    await a.queue("mail").enqueue(b"2")
    with pytest.raises(InvariantError, match="last one taken"):
        replica.apply(cluster.logs[0][-1])
    assert rows(b) == before
    assert replica.applied(0) == Applied(1, len(cluster.logs[0]) - 2)
    cluster.nodes["b"].heal()
    await same(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_however_a_log_is_cut_into_deliveries_rows_and_counts_are_the_same(seed, clock):
    rng = random.Random(seed)
    cluster = Cluster()
    options = {"clock": clock, "reaper": True}
    async with AsyncExitStack() as stack:
        names = ["a", "one by one", "at once", "mixed"]
        a, *followers = [
            await stack.enter_async_context(cluster.open(name, **options)) for name in names
        ]
        for name in names[1:]:
            cluster.nodes[name].cut()
        await cluster.elect("a")
        for n in range(12):
            await lively(a, clock)
            await clock.advance(rng.randrange(40))
            if rng.random() < 0.3:
                await a.queue("mail").resume()
            await a.queue("audit").purge("ready")
            if n == 6:
                await cluster.elect("a")
        log = cluster.logs[0]
        for name, engine in zip(names[1:], followers, strict=True):
            replica, at = cluster.nodes[name].replica, 0
            while at < len(log):
                size = {"one by one": 1, "at once": len(log)}.get(name, rng.randrange(1, 9))
                if size == 1:
                    replica.apply(log[at])
                else:  # some of them again
                    replica.apply_many(log[max(0, at - rng.randrange(3)) : at + size])
                at += size
            assert replica.applied(0) == cluster.nodes["a"].replica.applied(0)
            assert rows(engine) == rows(a)
            for queue in ("mail", "audit"):
                assert counts(await engine.queue(queue).stats()) == counts(
                    await a.queue(queue).stats()
                )
            await sound(engine)


def counts(stats):
    return (
        stats.ready, stats.delayed, stats.leased, stats.dead, stats.results, stats.waiting,
        stats.is_paused,
    )  # fmt: skip


async def test_a_replica_says_how_far_it_is_durable(pair):
    cluster, a, b = pair
    await a.queue("mail").enqueue(b"x")
    for name, engine in (("a", a), ("b", b)):
        replica = cluster.nodes[name].replica
        await engine.fsync()
        assert replica.durable(0) == replica.applied(0).index == 3


# -- a follower ------------------------------------------------------------------------


async def test_a_follower_refuses_every_write_and_names_the_leader(pair, clock):
    _, a, b = pair
    queue = await lively(a, clock)
    before = rows(b)
    there = b.queue("mail")
    (task,) = await queue.list("ready", limit=1)
    (dead,) = await queue.dead_letters()
    calls = [
        there.enqueue(b"x"),
        there.enqueue(b"x", dedup_key="new"),
        there.enqueue(b"x", delay=5),
        there.enqueue(b"x", dedup_key="k"),
        there.enqueue_many([lodeq.NewTask(b"x")]),
        there.enqueue_many([lodeq.NewTask(b"x", dedup_key="y")]),
        there.claim(),
        there.claim(limit=9),
        there.claim(wait=60),
        b.claim(["mail"]),
        b.cancel(task.id),
        b.cancel(dead.id),
        there.pause(),
        there.resume(),
        there.redrive(),
        there.purge(),
        there.redrive([dead.id]),
    ]
    for call in calls:
        error = await outcome(call)
        assert isinstance(error, NotLeaderError), error
        assert error.leader == "a"
    assert rows(b) == before
    assert (await b.health()).ok
    await same(a, b)


async def test_a_follower_answers_every_read(pair, clock):
    _, a, b = pair
    queue = await lively(a, clock)
    there = b.queue("mail")
    for state in ("ready", "delayed", "leased", "dead", "completed"):
        here, copy = await queue.list(state), await there.list(state)
        assert copy == here
        assert here
        for task in here:
            assert await b.get(task.id) == await a.get(task.id)
    here, copy = await a.stats(), await b.stats()
    for count in ("ready", "delayed", "leased", "dead", "results"):
        assert getattr(copy, count) == getattr(here, count)
    (done,) = await queue.list("completed")
    assert (await b.result(done.id)).value == {"ok": True}
    (leased, *_) = await there.list("leased")
    assert await b.result(leased.id) is None
    assert (await b.queue("audit").stats()).is_paused
    await a.queue("audit").resume()
    assert not (await b.queue("audit").stats()).is_paused
    await b.fsync()
    await sound(b)


async def test_a_follower_says_of_nothing_that_it_is_not_there(pair):
    """It may only be behind: who asks is sent to the leader, which knows."""
    cluster, a, b = pair
    cluster.nodes["b"].cut()
    queue = a.queue("mail")
    done, receipt = await queue.enqueue(b"x"), await queue.enqueue(b"y")
    (lease,) = await queue.claim()
    await lease.complete(42)
    flow = await a.workflow(name="import")
    for task_id in (done.id, receipt.id, flow.id, "00000000-0000-7000-8000-000000000000"):
        for call in (
            b.get(task_id),
            b.result(task_id),
            b.result(task_id, wait=60),
            b.attempts(task_id),
            b.open_payload(task_id),
            b.read_payload(task_id),
            b.workflow_info(task_id),
            b.workflow_graph(task_id),
            b.parts_page(task_id),
        ):
            error = await outcome(call)
            assert isinstance(error, NotLeaderError), error
            assert error.leader == "a"
    cluster.nodes["b"].heal()
    assert (await b.result(done.id)).value == 42
    assert (await b.get(receipt.id)).state == "ready"
    assert await a.get("00000000-0000-7000-8000-000000000000") is None
    with pytest.raises(TaskNotFoundError):
        await a.result("00000000-0000-7000-8000-000000000000")


async def test_a_wait_for_a_result_is_woken_on_a_follower(pair):
    _, a, b = pair
    receipt = await a.queue("mail").enqueue(b"x")
    wait = asyncio.ensure_future(b.result(receipt.id, wait=60))
    await settle()
    (lease,) = await a.queue("mail").claim()
    await lease.complete(42)
    assert (await wait).value == 42


async def test_a_followers_reaper_leaves_the_shard_alone(pair, clock):
    cluster, a, b = pair
    queue = a.queue("mail")
    await queue.enqueue(b"x", delay=10)
    await queue.enqueue(b"y", ttl=10)
    cluster.nodes["b"].cut()
    before = rows(b)
    await clock.advance(60)
    assert rows(b) == before
    assert (await queue.stats()).ready == 1
    cluster.nodes["b"].heal()
    await same(a, b)


# -- failover --------------------------------------------------------------------------


async def test_a_new_leader_claims_everything_that_is_pending(pair):
    cluster, a, b = pair
    await a.queue("mail").enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(3000)])
    taken = await a.queue("mail").claim(limit=100)
    for lease in taken:
        await lease.complete()
    await cluster.elect("b")
    assert await drain(b.queue("mail")) == [b"%d" % n for n in range(100, 3000)]
    await same(a, b)


async def test_leases_of_the_old_leader_go_back_and_are_fenced(pair, clock):
    cluster, a, b = pair
    await a.queue("mail").enqueue_many([lodeq.NewTask(b"own"), lodeq.NewTask(b"exported")])
    (own,) = await a.queue("mail").claim(lease=30)
    (exported,) = await a.queue("mail").claim(lease=30, exported=True)
    await cluster.elect("b")
    for lease in (own, exported):
        for call in (lease.complete(), lease.nack(), lease.release(), lease.heartbeat()):
            assert isinstance(await outcome(call), LeaseLostError)
    (again,) = await b.queue("mail").claim(limit=9)
    assert (again.payload, again.attempt) == (b"own", 2)
    assert again.epoch > own.epoch
    assert again.token != own.token
    await clock.advance(31)
    both = await b.queue("mail").claim(limit=9)
    assert sorted(payloads(both)) == [b"exported", b"own"]
    assert min(lease.epoch for lease in both) > exported.epoch
    await same(a, b)


async def test_a_lease_that_runs_out_while_leadership_is_gained_is_reaped(pair, clock):
    cluster, a, b = pair
    await a.queue("mail").enqueue_many([lodeq.NewTask(b"own"), lodeq.NewTask(b"exported")])
    await a.queue("mail").claim(lease=30)
    await a.queue("mail").claim(lease=3, exported=True)
    cluster.is_held = True
    election = asyncio.ensure_future(cluster.elect("b"))
    await until(lambda: cluster.waiting)
    cluster.commit(cluster.waiting.pop())  # the incarnation; what goes back is held
    await until(lambda: cluster.waiting)
    await clock.advance(5)
    cluster.release()
    await election
    await clock.advance(5)
    assert sorted(payloads(await b.queue("mail").claim(limit=9))) == [b"exported", b"own"]
    await same(a, b)


async def test_epochs_of_a_shard_grow_whoever_leads_whatever_else(clock):
    cluster = Cluster()
    options = {"clock": clock, "shards": 2}
    async with cluster.open("a", **options) as a, cluster.open("b", **options) as b:
        engines = {"a": a, "b": b}
        for _ in range(5):  # a has seen many incarnations, but of the other shard
            await cluster.elect("b", 1)
            await cluster.elect("a", 1)
        epochs = []
        for name in ("a", "b", "a", "b"):
            await cluster.elect(name, 0)
            queue = engines[name].queue("mail", max_attempts=9)
            if not epochs:
                receipt = await queue.enqueue(b"x", shard_key="3")
                assert engines[name]._state.shard_of(receipt.id).index == 0
            (lease,) = await queue.claim()
            epochs.append(lease.epoch)
        assert epochs == sorted(set(epochs))


async def test_dedup_holds_across_a_failover(pair):
    cluster, a, b = pair
    first = await a.queue("mail").enqueue(b"x", dedup_key="k", dedup_window=3600)
    await drain(a.queue("mail"))
    live = await a.queue("mail").enqueue(b"y", dedup_key="live")
    await cluster.elect("b")
    for key, holder in (("k", first), ("live", live)):
        again = await b.queue("mail").enqueue(b"z", dedup_key=key)
        assert (again.duplicate, again.id) == (True, holder.id)
    await same(a, b)


async def test_leadership_that_comes_back_finds_nothing_stale(pair, clock):
    cluster, a, b = pair
    queues = {"a": a.queue("mail"), "b": b.queue("mail")}
    await queues["a"].enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(20)])
    seen: list[Any] = []
    for round_, name in enumerate("babababa"):
        await cluster.elect(name)
        for lease in await queues[name].claim(limit=3):
            await lease.complete()
            seen.append(lease.payload)
        await queues[name].enqueue(b"new %d" % round_, delay=5)
        await same(a, b)
    await clock.advance(10)
    seen += await drain(queues["a"])
    added = [b"new %d" % n for n in range(8)]
    assert sorted(seen) == sorted([*(b"%d" % n for n in range(20)), *added])
    await same(a, b)


async def test_a_queue_used_before_leadership_was_lost_works_after_it_came_back(pair):
    cluster, a, b = pair
    mail = a.queue("mail")
    await mail.enqueue(b"before")
    for name in "ba":
        await cluster.elect(name)
        await settle()
    await mail.enqueue(b"after")
    assert (await mail.stats()).ready == 2
    await same(a, b)
    assert await drain(mail) == [b"before", b"after"]


async def test_a_wait_times_out_although_leadership_was_lost_during_another(pair, clock):
    cluster, a, _ = pair
    mail = a.queue("mail")
    told = asyncio.create_task(outcome(mail.claim(wait=5)))
    await settle()
    for name in "ba":
        await cluster.elect(name)
        await settle()
    assert isinstance(await told, NotLeaderError)
    waiting = asyncio.create_task(mail.claim(wait=5))
    await settle()
    await clock.advance(6)
    assert waiting.done()
    assert waiting.result() == []


@pytest.mark.usefixtures("no_history")
async def test_what_time_asks_for_is_done_by_the_new_leader(pair, clock):
    cluster, a, b = pair
    queue = a.queue("mail", retention=100)
    await queue.enqueue(b"delayed", delay=10)
    await queue.enqueue(b"ttl", ttl=20)
    await queue.enqueue(b"ghost", dedup_key="k", dedup_window=50, priority=9)
    (lease,) = await queue.claim()
    await lease.complete()
    await cluster.elect("b")
    await clock.advance(25)
    assert await drain(b.queue("mail")) == [b"delayed"]
    await clock.advance(100)
    assert (await b.stats()).results == 0
    assert not (await b.queue("mail").enqueue(b"again", dedup_key="k")).duplicate
    await same(a, b)


@pytest.mark.parametrize("is_answered", [False, True])
async def test_who_waits_for_a_result_hears_of_the_end_that_counts(pair, clock, is_answered):
    """An end whose commit is lost with the leadership, or unknown, is no end of the wait."""
    cluster, a, b = pair
    receipt = await a.queue("mail").enqueue(b"x")
    waits = asyncio.create_task(a.result(receipt.id, wait=60))
    in_vain = asyncio.create_task(a.result(receipt.id, wait=10))
    (lease,) = await a.queue("mail").claim()
    cluster.is_held = True
    lost = asyncio.create_task(lease.complete("lost"))
    await settle()
    if is_answered:
        cluster.drop(NotLeaderError("not the leader"))
        await settle()
    cluster.is_held = False
    await cluster.elect("b")
    cluster.release()
    await settle()
    with pytest.raises(NotLeaderError if is_answered else CommitUnknownError):
        await lost
    assert not waits.done()
    await clock.advance(10)
    assert await in_vain is None
    (lease,) = await b.queue("mail").claim()
    await lease.complete("counts")
    assert (await waits).value == "counts"
    await same(a, b)


async def test_what_falls_due_in_a_long_election_is_done_by_the_new_leader(clock):
    """With many queues it takes turns of the loop, in which the reaper meets what is due."""
    cluster = Cluster()
    async with (
        cluster.open("a", clock=clock, reaper=False) as a,
        cluster.open("b", clock=clock) as b,
    ):
        await cluster.elect("a")
        names = [f"q{n}" for n in range(600)]
        for name in names:
            await a.queue(name).enqueue(b"later", delay=10)
        await clock.advance(20)
        await cluster.elect("b")
        for _ in range(60):  # passes: each promotes a few
            await clock.advance(5)
            await settle(40)
        stats = await b.stats()
        assert (stats.ready, stats.delayed) == (len(names), 0)


@pytest.mark.parametrize("batch_max", [1, 64])
async def test_calls_share_entries_while_one_is_on_its_way(clock, batch_max):
    cluster = Cluster()
    options = {"clock": clock, "commit_batch_max": batch_max}
    async with cluster.open("a", **options) as a, cluster.open("b", **options) as b:
        await cluster.elect("a")
        queue, log = a.queue("mail"), cluster.logs[0]
        before = len(log)
        cluster.is_held = True
        calls = [asyncio.ensure_future(queue.enqueue(b"first"))]
        await until(lambda: cluster.waiting)
        for n in range(40):
            calls.append(asyncio.ensure_future(queue.enqueue(b"%d" % n)))
            await settle(3)
        calls.append(asyncio.ensure_future(queue.claim(limit=5)))
        await settle()
        assert len(cluster.waiting) == (1 if batch_max == 64 else 42)
        cluster.release()
        *_, leases = await asyncio.gather(*calls)
        assert len(log) - before == (2 if batch_max == 64 else 42)
        assert payloads(leases) == [b"first", *(b"%d" % n for n in range(4))]
        await same(a, b)


# -- calls in flight -------------------------------------------------------------------


async def test_nobody_hangs_on_a_leader_that_was_cut_off(pair):
    cluster, a, b = pair
    queue = a.queue("mail")
    await queue.enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(4)])
    lease, other = await queue.claim(limit=2)
    cluster.nodes["a"].cut()
    calls = [
        asyncio.ensure_future(call)
        for call in (
            queue.enqueue(b"x"),
            queue.enqueue(b"y", dedup_key="k"),
            queue.claim(),
            queue.claim(limit=9),
            lease.complete(),
            other.nack(),
            queue.pause(),
            queue.claim(wait=3600),
        )
    ]
    await settle()
    assert not any(call.done() for call in calls)
    await cluster.elect("b")
    assert sorted(await drain(b.queue("mail"))) == [b"0", b"1", b"2", b"3"]
    cluster.nodes["a"].heal()
    await until(lambda: all(call.done() for call in calls))
    *known, waited = [await outcome(call) for call in calls]
    assert {type(error) for error in known} == {CommitUnknownError}
    assert isinstance(waited, CommitUnknownError | NotLeaderError)
    assert isinstance(await outcome(lease.complete()), LeaseLostError)
    await same(a, b)
    # What the old leader had proposed is refused by the log; once more at the new one is once.
    cluster.release()
    assert not (await b.queue("mail").enqueue(b"y", dedup_key="k")).duplicate
    await same(a, b)


async def test_a_claim_whose_commit_comes_with_the_loss_gives_dead_leases(pair):
    cluster, a, b = pair
    await a.queue("mail").enqueue(b"x")
    cluster.is_held = True
    claim = asyncio.ensure_future(a.queue("mail").claim())
    await until(lambda: cluster.waiting)
    cluster.nodes["a"].replica.follow(0)
    cluster.release()  # committed nevertheless
    (lease,) = await claim
    assert isinstance(await outcome(lease.complete()), LeaseLostError)
    await cluster.elect("b")
    (again,) = await b.queue("mail").claim()
    assert (again.attempt, again.epoch > lease.epoch) == (2, True)
    await same(a, b)


async def test_an_unknown_enqueue_that_was_committed_is_found_by_its_key(pair):
    cluster, a, b = pair
    cluster.is_held = True
    call = asyncio.ensure_future(a.queue("mail").enqueue(b"x", dedup_key="k"))
    await until(lambda: cluster.waiting)
    cluster.nodes["a"].replica.follow(0)
    assert isinstance(await outcome(call), CommitUnknownError)
    cluster.release()
    await cluster.elect("b")
    assert (await b.queue("mail").enqueue(b"x", dedup_key="k")).duplicate
    assert await drain(b.queue("mail")) == [b"x"]
    await same(a, b)


async def test_a_log_that_refuses_tells_where_to_go(pair):
    cluster, a, b = pair
    cluster.leaders[0] = "b"  # the log knows, and has told nobody
    errors = [await outcome(a.queue("mail").enqueue(b"x")) for _ in range(2)]
    assert [(type(e), e.leader) for e in errors] == [(NotLeaderError, "b")] * 2
    cluster.leaders[0] = "a"
    await cluster.elect("a")
    await a.queue("mail").enqueue(b"x")
    await same(a, b)


async def test_waiting_claims_go_on_while_any_shard_is_led(clock):
    cluster = Cluster()
    options = {"clock": clock, "shards": 2}
    async with cluster.open("a", **options) as a, cluster.open("b", **options) as b:
        for shard in (0, 1):
            await cluster.elect("a", shard)
        claim = asyncio.ensure_future(a.queue("mail").claim(wait=60))
        await settle()
        await cluster.elect("b", 0)
        await settle()
        assert not claim.done()
        await a.queue("mail").enqueue(b"x")
        assert payloads(await claim) == [b"x"]
        claim = asyncio.ensure_future(a.queue("mail").claim(wait=60))
        await settle()
        await cluster.elect("b", 1)
        assert isinstance(await outcome(claim), NotLeaderError)
        await same(a, b)


async def test_a_waiting_claim_gets_what_a_shard_that_is_gained_brings(clock):
    cluster = Cluster()
    options = {"clock": clock, "shards": 2}
    async with cluster.open("a", **options) as a, cluster.open("b", **options) as b:
        await cluster.elect("a", 0)
        await cluster.elect("b", 1)
        await a.queue("mail").enqueue(b"x")
        claim = asyncio.ensure_future(b.queue("mail").claim(wait=60))
        await settle()
        assert not claim.done()
        await cluster.elect("b", 0)
        assert payloads(await claim) == [b"x"]
        await same(a, b)


async def test_who_fills_a_group_has_come_once(clock):
    """A record waits for as many as were answered (``linger``); half of them are not all."""
    cluster = Cluster()
    async with cluster.open("a", clock=clock, commit_batch_max=1) as a:
        await cluster.elect("a")
        linger = a._state.shards[0].coalescer._linger
        before = linger.came
        await asyncio.gather(*[a.queue("mail").enqueue(b"x") for _ in range(10)])
        assert linger.came == before + 10


# -- gaining, in pieces ----------------------------------------------------------------


async def test_leadership_lost_while_memory_is_built(pair):
    cluster, a, b = pair
    await a.queue("mail").enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(600)])
    await a.queue("mail").claim(limit=600)
    cluster.is_held = True
    building = asyncio.ensure_future(cluster.elect("b"))
    for _ in range(2):  # its incarnation, and the first leases it gives back
        await until(lambda: cluster.waiting)
        cluster.commit(cluster.waiting.pop(0))
    await until(lambda: cluster.waiting)
    assert isinstance(await outcome(b.queue("mail").claim()), NotLeaderError)
    cluster.is_held = False
    await cluster.elect("a")
    assert isinstance(await outcome(building), CommitUnknownError)
    assert len(await a.queue("mail").claim(limit=1000)) == 600
    cluster.release()
    await same(a, b)


async def test_a_replica_that_leads_already_when_it_is_opened(clock):
    cluster = Cluster()
    cluster.leaders[0] = "solo"
    async with cluster.open("solo", clock=clock) as engine:
        await engine.queue("mail").enqueue(b"x")
        replica = cluster.nodes["solo"].replica
        await replica.lead(0)  # once more does nothing
        assert len(cluster.logs[0]) == 3  # its incarnation, the shard's secret, the task
        with pytest.raises(UsageError, match="no shard 7"):
            replica.applied(7)
        assert await drain(engine.queue("mail")) == [b"x"]
    with pytest.raises(ClosedError):
        replica.applied(0)
    with pytest.raises(ClosedError):
        await replica.lead(0)


async def test_close_of_a_leader_leaves_nobody_waiting(clock):
    cluster = Cluster()
    async with cluster.open("b", clock=clock) as b:
        a = await cluster.open("a", clock=clock)
        await cluster.elect("a")
        calls = [asyncio.ensure_future(a.queue("mail").enqueue(b"%d" % n)) for n in range(50)]
        wait = asyncio.ensure_future(a.queue("other").claim(wait=60))
        await asyncio.sleep(0)
        await a.close()
        assert isinstance(await outcome(wait), ClosedError)
        acked = [await outcome(call) for call in calls]
        assert all(isinstance(receipt, lodeq.Receipt) for receipt in acked)
        cluster.nodes["a"].replica = None
        await cluster.elect("b")
        assert len(await drain(b.queue("mail"))) == 50


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_the_layer_is_told_of_every_step_of_a_life(tmp_path, clock, is_on_disk):
    cluster = Cluster()
    node, path = cluster.node("a"), tmp_path / "store"
    seen = []

    async def prepare(path):
        seen.append((path, (tmp_path / "store").exists()))

    node.prepare = prepare
    if is_on_disk:
        engine = await lodeq.open(path, replicator=node, clock=clock)
        assert seen == [(str(path), False)]
    else:
        engine = await open_in_memory(replicator=node, clock=clock)
        assert seen == [(None, False)]
    await cluster.elect("a")
    await engine.queue("mail").enqueue(b"x")
    await engine.close()
    await engine.close()
    assert node.life == ["start", "closing", "closed"]


async def test_an_open_that_fails_lets_go_of_the_log(tmp_path, clock):
    node = Cluster().node("a")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OpenError):
        await lodeq.open(tmp_path / "file", replicator=node)
    assert node.life == ["prepare", "closed"]

    async def prepare(path):
        raise OSError("no checkpoint")

    node.prepare = prepare
    with pytest.raises(OSError, match="no checkpoint"):
        await lodeq.open(tmp_path / "new", replicator=node)
    with pytest.raises(OSError, match="no checkpoint"):
        await open_in_memory(replicator=node, clock=clock)
    assert node.life[2:] == ["closed"] * 2
    assert not (tmp_path / "new").exists()


async def test_nobody_is_elected_while_the_engine_closes(clock):
    """Found by a prototype: elections went on, and a shard was gained by what was half closed."""
    cluster = Cluster()
    async with cluster.open("b", clock=clock):
        a = await cluster.open("a", clock=clock)
        await cluster.elect("a")
        told = asyncio.ensure_future(outcome(a.queue("mail").enqueue(b"x")))
        node = cluster.nodes["a"]
        errors = []

        async def closing():
            errors.append(await outcome(node.replica.lead(0)))
            await told  # what is queued is still committed
            node.replica.follow(0)
            errors.append(await outcome(node.replica.lead(0)))
            raise RuntimeError("the log is gone")

        node.closing = closing
        await asyncio.sleep(0)
        await a.close()
        assert [type(error) for error in errors] == [ClosedError] * 2
        assert isinstance(told.result(), lodeq.Receipt)
        assert node.life == ["prepare", "start", "closed"]


# -- on disk ---------------------------------------------------------------------------


async def test_a_replica_on_disk_goes_on_where_its_rows_end(tmp_path, clock):
    cluster = Cluster()
    async with cluster.open("a", clock=clock) as a:
        await cluster.elect("a")
        before = 0
        for round_ in range(3):
            async with lodeq.open(tmp_path / "b", replicator=cluster.node("b"), clock=clock) as b:
                node = cluster.nodes["b"]
                assert node.replica.applied(0).index == before
                node.catch_up()
                await a.queue("mail").enqueue(b"%d" % round_)
                await same(a, b)
                before = len(cluster.logs[0])
            node.replica = None
            await a.queue("mail").enqueue(b"while it was away")
        async with lodeq.open(tmp_path / "b", replicator=cluster.node("b"), clock=clock) as b:
            await cluster.elect("b")
            assert len(await drain(b.queue("mail"))) == 6
            await same(a, b)


async def test_a_checkpoint_is_the_snapshot_a_new_replica_starts_from(tmp_path, clock):
    cluster = Cluster()
    path = {name: tmp_path / name for name in "abc"}
    async with lodeq.open(path["a"], replicator=cluster.node("a"), clock=clock) as a:
        await cluster.elect("a")
        await lively(a, clock)
        await a.checkpoint(tmp_path / "copy")
        await a.queue("mail").enqueue(b"after", priority=9)
        lodeq.restore(tmp_path / "copy", path["b"])
        async with lodeq.open(path["b"], replicator=cluster.node("b"), clock=clock) as b:
            assert cluster.nodes["b"].replica.applied(0).index == len(cluster.logs[0]) - 1
            await cluster.elect("b")
            assert payloads(await b.queue("mail").claim()) == [b"after"]
            await same(a, b)


async def test_a_replica_is_opened_without_its_log_only_after_a_detach(tmp_path, clock):
    cluster = Cluster()
    async with lodeq.open(tmp_path / "a", replicator=cluster.node("a"), clock=clock) as a:
        await cluster.elect("a")
        await a.queue("mail").enqueue(b"x")
        await a.checkpoint(tmp_path / "copy")
        rows_before = rows(a)
    lodeq.restore(tmp_path / "copy", tmp_path / "b")
    for name in "ab":
        with pytest.raises(lodeq.ReplicaStoreError, match=r"lodeq\.detach"):
            await lodeq.open(tmp_path / name)
        with pytest.raises(lodeq.ReplicaStoreError):
            reshard(tmp_path / name, 2)
        async with open_read_only(tmp_path / name) as seen:
            assert [task.payload for task in await seen.queue("mail").list("ready")] == [b"x"]
    async with lodeq.open(tmp_path / "a", replicator=cluster.node("a"), clock=clock) as a:
        assert rows(a) == rows_before  # refused and unchanged
        assert cluster.nodes["a"].replica.applied(0) == Applied(1, len(cluster.logs[0]))
    cluster.nodes["a"].replica = None
    for name in "ab":
        lodeq.detach(tmp_path / name)
        lodeq.detach(tmp_path / name)
        async with lodeq.open(tmp_path / name, clock=clock) as engine:
            assert await drain(engine.queue("mail")) == [b"x"]
            await sound(engine)
    async with lodeq.open(tmp_path / "a", replicator=cluster.node("a"), clock=clock):
        assert cluster.nodes["a"].replica.applied(0) == Applied()


def test_what_is_no_store_is_not_detached(tmp_path):
    with pytest.raises(lodeq.StorePathError, match="does not exist"):
        lodeq.detach(tmp_path / "none")
    assert not (tmp_path / "none").exists()


async def test_a_replica_is_never_repaired(tmp_path):
    with pytest.raises(RecoveryRefusedError, match="checkpoint of another replica"):
        await lodeq.open(tmp_path / "a", replicator=Cluster().node("a"), recovery="salvage")


# -- all together ----------------------------------------------------------------------


class Storm:
    """Random calls at random replicas while leaders come and go; what each call was told."""

    def __init__(self, seed: int, cluster: Cluster, engines: dict[str, lodeq.Engine]) -> None:
        self.rng = random.Random(seed)
        self.cluster = cluster
        self.engines = engines
        self.enqueues: dict[bytes, Any] = {}
        self.works: list[Any] = []  # and elections
        self.completed: list[bytes] = []
        self.unknown: set[bytes] = set()  # claimed, and nobody knows whether completed

    async def step(self, n: int) -> None:
        rng, cluster = self.rng, self.cluster
        what, name = rng.random(), rng.choice(list(self.engines))
        queue = self.engines[name].queue("mail", max_attempts=60_000)
        if what < 0.5:
            body = b"%d" % n
            call = queue.enqueue(body, dedup_key=body)
            self.enqueues[body] = asyncio.ensure_future(outcome(call))
        elif what < 0.8:
            self.works.append(asyncio.ensure_future(self._work(queue)))
        elif what < 0.88:
            node = cluster.nodes[name]
            node.heal() if node.is_cut else node.cut()
        elif what < 0.94:
            cluster.is_held = not cluster.is_held
        elif not cluster.nodes[name].is_cut:
            election = cluster.elect(name, rng.randrange(self.engines[name].shards))
            self.works.append(asyncio.ensure_future(outcome(election)))
        if not cluster.is_held:
            cluster.release()
        await settle(rng.randrange(4))

    async def _work(self, queue: lodeq.Queue) -> None:
        try:
            for lease in await queue.claim(limit=2):
                self.unknown.add(lease.payload)
                await lease.complete(keep=False)
                self.completed.append(lease.payload)
                self.unknown.discard(lease.payload)
        except (NotLeaderError, CommitUnknownError, LeaseLostError):
            pass

    async def calm(self) -> None:
        for node in self.cluster.nodes.values():
            node.heal()
        self.cluster.release()
        await settle()
        for shard in range(self.engines["a"].shards):
            await self.cluster.elect("a", shard)
        await asyncio.gather(*self.works)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_no_acknowledged_task_is_lost_or_done_twice(seed, clock):
    cluster = Cluster()
    async with AsyncExitStack() as stack:
        engines = {}
        for i, name in enumerate("abc"):
            opening = cluster.open(
                name, clock=clock, shards=1 + seed % 2, rng=SeededRng(seed * 9 + i)
            )
            engines[name] = await stack.enter_async_context(opening)
        for shard in range(1 + seed % 2):
            await cluster.elect("b", shard)
        storm = Storm(seed, cluster, engines)
        for n in range(600):
            await storm.step(n)
        await storm.calm()
        told = {body: await call for body, call in storm.enqueues.items()}
        left = await drain(engines["a"].queue("mail"))
        await same(*engines.values())
    acked = {body for body, answer in told.items() if isinstance(answer, lodeq.Receipt)}
    maybe = {body for body, answer in told.items() if isinstance(answer, CommitUnknownError)}
    refused = {body for body, answer in told.items() if isinstance(answer, NotLeaderError)}
    assert acked
    assert len(acked | maybe | refused) == len(told)
    found = [*storm.completed, *left]
    assert len(found) == len(set(found))
    assert set(found) <= acked | maybe
    assert acked <= set(found) | storm.unknown


# -- damage, and operators across an election --------------------------------------------


async def test_a_purge_across_an_election_counts_in_the_shard_queues_there_are_now(clock):
    cluster = Cluster()
    async with cluster.open("a", clock=clock, shards=2) as a:
        for shard in range(2):
            await cluster.elect("a", shard)
        queue = a.queue("mail")
        tasks = [lodeq.NewTask(n, shard_key=str(n)) for n in range(20)]
        receipts = await queue.enqueue_many(tasks)
        for lease in await queue.claim(limit=20):
            await lease.bury("no")
        state = a._state
        for receipt in receipts:  # so that only the row says where it is
            state.shard_of(receipt.id).store.write([(TASK + receipt.id, None)])
            state.shard_of(receipt.id).store.write([(MOVED + receipt.id, None)])
        checkpoint, elections = state.spawner.checkpoint, [1]

        async def elects():  # while the purge is at the first shard
            while elections:
                await cluster.elect("a", elections.pop())
            await checkpoint()

        state.spawner.checkpoint = elects
        assert await queue.purge("dead") == 20
        state.spawner.checkpoint = checkpoint
        assert not elections
        assert (await queue.stats()).dead == 0
        await sound(a)


async def test_a_damaged_lease_hides_no_others_from_a_follower(pair, clock):
    _, a, b = pair
    queue = a.queue("mail")
    await queue.enqueue_many([lodeq.NewTask(n) for n in range(3)])
    leases = await queue.claim(limit=3)
    store = b._state.shards[0].store
    store.write([(LEASE + leases[0].task_id, b"junk")])
    record = bytearray(store.get(TASK + leases[1].task_id))
    record[2] |= 2 << 2  # compressed, it says, and is not
    record[-8:] = xxh3_64_digest(bytes(record[:-8]))
    store.write([(TASK + leases[1].task_id, bytes(record))])
    found = await b.queue("mail").list("leased")
    assert [task.id for task in found] == [lease.task_id for lease in leases[1:]]
    assert [task.reason for task in found] == ["record missing or damaged", ""]
    assert found[1].payload == 2


async def test_a_damaged_counter_in_an_entry_is_told_and_hides_nothing_behind_it(pair):
    cluster, a, b = pair
    receipt = await a.queue("mail").enqueue(b"x")
    wait = asyncio.ensure_future(outcome(b.result(receipt.id, wait=9)))
    await settle()
    lease = await a.queue("mail").claim_one()
    cluster.nodes["b"].cut()
    await lease.complete(b"done")
    entry = cluster.logs[0].pop()
    spoilt = [(k, b"junk" if k.startswith(COUNTERS) else v) for k, v in entry.ops]
    spoilt.sort(key=lambda op: not op[0].startswith(COUNTERS))
    cluster.logs[0].append(replace(entry, ops=tuple(spoilt)))
    cluster.nodes["b"].heal()
    assert cluster.nodes["b"].replica.applied(0).index == entry.index
    assert (await wait).value == b"done"
    assert "counter row" in (await b.stats()).anomalies[0]
    assert not (await b.health()).ok


async def test_who_cannot_read_its_rows_does_not_lead_and_is_told_what_to_do(pair, monkeypatch):
    cluster, a, b = pair
    await a.queue("mail").enqueue(b"x")
    scan_part = MemoryView.scan_part

    def damaged(self, lower, upper, limit):
        if self is b._state.shards[0].store and lower.startswith(COUNTERS):
            raise CorruptionError("block checksum mismatch")
        return scan_part(self, lower, upper, limit)

    monkeypatch.setattr(MemoryView, "scan_part", damaged)
    with pytest.raises(CorruptionError, match=r"shard 0 cannot be led.*another replica lead"):
        await cluster.elect("b")
    with pytest.raises(NotLeaderError):
        await b.queue("mail").enqueue(b"y")
    await until(lambda: b._state.anomalies)  # they are read in turns
    assert "its counters cannot be read" in " ".join((await b.health()).reasons)
    monkeypatch.undo()
    await cluster.elect("a")
    assert len(await a.queue("mail").claim(limit=9)) == 1


def held(engine: lodeq.Engine) -> int:
    """The bytes of all records in ready caches, counted one by one."""
    tenant_queues = [
        tenant_queue
        for queue_state in engine._state.queue_states.values()
        for tenant_queue in queue_state.tenant_queues.values()
    ]
    shard_queues = [
        shard_queue
        for tenant_queue in tenant_queues
        for shard_queue in tenant_queue.shard_queues
        if shard_queue is not None
    ]
    windows = [
        window
        for shard_queue in shard_queues
        for window in shard_queue.ready_caches
        if window is not None
    ]
    return sum(row[5] for window in windows for row in window.rows if row[6] is not None)


async def test_records_that_were_read_ahead_go_with_the_leadership(pair):
    cluster, a, _ = pair
    state = a._state
    queues = [a.queue("mail"), a.queue("audit")]
    for queue in queues:
        await queue.enqueue_many([lodeq.NewTask(bytes(100)) for _ in range(100)])
    for name in ("b", "a"):  # records are on disk only now
        await cluster.elect(name)
    await queues[0].claim()
    assert state.held_bytes == held(a) > 0
    await cluster.elect("b")
    assert state.held_bytes == held(a) == 0
    assert not state.ahead
    await cluster.elect("a")
    state.held_bytes_max = 0  # each claim that reads ahead makes others give up what they hold
    for queue in queues:
        await queue.claim()
        assert state.held_bytes == held(a)


@pytest.mark.parametrize("turns", [0, 1, 40])
async def test_what_a_leader_has_set_in_vain_holds_no_more_when_it_leads_again(pair, turns):
    """However soon that is: what a follower looks through once more may not be done by then."""
    cluster, a, b = pair
    await a.configure("kept", dead_max=7)
    await a.queue("mail").enqueue(b"x")
    await a.queue("mail", tenant="acme").enqueue(b"x")
    cluster.is_held = True
    calls = [
        outcome(a.queue("mail").pause()),
        outcome(a.queue("audit", tenant="acme").pause()),
        outcome(a.configure("mail", concurrency=1)),
        outcome(a.configure("kept", dead_max=1)),
    ]
    asked = [asyncio.ensure_future(call) for call in calls]
    await settle()
    assert (await a.queue("mail").stats()).is_paused
    cluster.drop(NotLeaderError("not the leader"))
    cluster.is_held = False
    await settle(turns)
    await cluster.elect("a")
    assert {type(await one) for one in asked} == {NotLeaderError}
    assert not (await a.queue("mail").stats()).is_paused
    assert not (await a.queue("audit", tenant="acme").stats()).is_paused
    assert await a.settings("mail") == await b.settings("mail")
    assert await a.settings("kept") == await b.settings("kept")
    assert len(await a.queue("mail").claim(limit=2)) == 1
    assert len(await a.queue("mail", tenant="acme").claim(limit=2)) == 1
    await same(a, b)
