"""What a leader may answer from memory: nothing, once another replica may have been elected."""

import asyncio

import pytest
from support_behaviour import drain, settle, sound
from support_replication import Cluster, rows

import lodeq
from lodeq.errors import ClosedError, LeaseLostError, NotLeaderError, TaskNotFoundError
from lodeq.repository.api.direct_calls import DirectCalls
from lodeq.repository.api.lease_proof import LeaseProof, complete
from lodeq.repository.api.open import open_in_memory

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pair(clock):
    """(cluster, a, b): a leads the one shard, b follows."""
    cluster = Cluster()
    async with cluster.open("a", clock=clock) as a, cluster.open("b", clock=clock) as b:
        await cluster.elect("a")
        yield cluster, a, b


async def outcome(call):
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - whatever it was
        return error


async def test_a_deposed_leader_extends_no_lease_that_the_new_one_has_ended(pair):
    """It did: a heartbeat changes memory alone, so no fence of the log meets it."""
    cluster, a, b = pair
    await a.queue("mail").enqueue(b"x")
    (lease,) = await a.queue("mail").claim(lease=30, exported=True)
    await lease.heartbeat()
    cluster.nodes["a"].cut()  # and does not know it
    await cluster.elect("b")
    assert await b.cancel(lease.task_id)
    deadline = lease.deadline
    calls = [lease.heartbeat(), lease.heartbeat(60), a.heartbeat_many([lease]), lease.progress(0.5)]
    for call in calls:
        error = await outcome(call)
        assert isinstance(error, NotLeaderError), error
        assert error.leader is None
    assert lease.deadline == deadline
    cluster.nodes["a"].heal()
    assert isinstance(await outcome(lease.heartbeat()), LeaseLostError)
    await sound(a)
    assert rows(a) == rows(b)


async def test_a_heartbeat_that_is_refused_loses_no_lease(pair, clock):
    cluster, a, _ = pair
    await a.queue("mail").enqueue(b"x")
    (lease,) = await a.queue("mail").claim(lease=30)
    node = cluster.nodes["a"]
    node.has_session = False
    assert isinstance(await outcome(lease.heartbeat()), NotLeaderError)
    await clock.advance(20)
    node.has_session = True
    await lease.heartbeat()
    await clock.advance(20)
    await lease.complete(b"done")
    assert (await a.result(lease.task_id)).value == b"done"


async def test_without_a_session_nothing_is_done_that_nobody_asked_for(pair, clock):
    """It proposed one entry after another that its log could not take."""
    cluster, a, _ = pair
    queue, node = a.queue("mail"), cluster.nodes["a"]
    await queue.enqueue(b"done")
    (lease,) = await queue.claim()
    await lease.complete(b"v")
    await queue.enqueue(b"late", delay=5)
    await queue.enqueue(b"held")
    (held,) = await queue.claim(lease=5)
    node.has_session = False
    await settle()
    proposed, cluster.is_held = len(cluster.logs[0]), True
    waiting = asyncio.ensure_future(a.queue("mail").claim(wait=60))
    for _ in range(20):
        await clock.advance(1)
    assert not cluster.waiting
    assert len(cluster.logs[0]) == proposed
    assert not waiting.done()
    node.has_session, cluster.is_held = True, False
    await clock.advance(2)
    await settle()
    (first,) = await waiting
    (second,) = await queue.claim()
    assert sorted((one.payload, one.attempt) for one in (first, second)) == [
        (b"held", 2),
        (b"late", 1),
    ]
    assert isinstance(await outcome(held.complete()), LeaseLostError)
    await sound(a)


async def test_heartbeats_of_shards_with_a_session_go_through(clock):
    cluster = Cluster()
    async with cluster.open("a", clock=clock, shards=2) as a:
        for shard in (0, 1):
            await cluster.elect("a", shard)
        tasks = [lodeq.NewTask(n, shard_key=str(n)) for n in range(8)]
        await a.queue("mail").enqueue_many(tasks)
        leases = await a.queue("mail").claim(limit=8, lease=30)
        cluster.nodes["a"].holds_session = lambda shard: shard == 0
        before = [lease.deadline for lease in leases]
        await clock.advance(5)
        assert isinstance(await outcome(a.heartbeat_many(leases)), NotLeaderError)
        for lease, deadline in zip(leases, before, strict=True):
            extended = lease.deadline > deadline
            assert extended == (a._state.shard_of(lease.task_id).index == 0)
        assert await a.queue("other").claim() == []  # of the shard that it leads


async def test_nothing_is_answered_from_memory_without_a_session(pair):
    cluster, a, _ = pair
    queue = a.queue("mail")
    done = await queue.enqueue(b"done")
    (lease,) = await queue.claim()
    await lease.complete(b"v")
    ready = await queue.enqueue(b"x")
    cluster.nodes["a"].has_session = False
    proof = LeaseProof(lease.task_id, lease.epoch, lease.token)
    calls = [
        lambda: a.queue("empty").claim(),
        lambda: a.queue("empty").claim(limit=9),
        lambda: a.claim(["empty", "none"]),
        lambda: a.get(ready.id),
        lambda: a.get(done.id),
        lambda: a.result(done.id),
        lambda: a.result(ready.id),
        lambda: a.result("00000000-0000-7000-8000-000000000000"),
        lambda: a.cancel("00000000-0000-7000-8000-000000000000"),
        lambda: queue.list("ready"),
        lambda: queue.list("completed"),
        lambda: queue.purge("dead"),
        lambda: queue.redrive(),
        lambda: lease.complete(b"v"),  # once more
        lambda: lease.nack(),
    ]
    for call in calls:
        error = await outcome(call())
        assert isinstance(error, NotLeaderError), error
        assert "session" in str(error)
    with pytest.raises(NotLeaderError):
        DirectCalls(a._state).claim(a.queue("empty"), 1, None, 0.0, "w", _Outcome())
    cluster.nodes["a"].has_session = True
    assert await a.queue("empty").claim() == []
    assert (await a.result(done.id)).value == b"v"
    with pytest.raises(TaskNotFoundError):
        await a.result("00000000-0000-7000-8000-000000000000")
    await lease.complete(b"v")
    assert proof.task_id == lease.task_id


class _Outcome:
    """A caller of the link."""

    poll = None

    def done(self):
        return False

    def set_result(self, value):
        raise AssertionError(f"it was answered: {value}")


async def test_what_the_log_has_confirmed_needs_no_session(pair):
    """A write is proof enough: its entry comes after everything its caller has seen."""
    cluster, a, b = pair
    cluster.nodes["a"].has_session = False
    queue = a.queue("mail")
    receipt = await queue.enqueue(b"x", dedup_key="k")
    again = await queue.enqueue(b"x", dedup_key="k")
    assert (again.duplicate, again.id) == (True, receipt.id)
    (lease,) = await queue.claim()
    await lease.complete(b"v")
    await queue.pause()
    for engine in (a, b):  # what is only about this store
        await engine.fsync()
        await sound(engine)
    assert (await b.result(receipt.id)).value == b"v"  # a follower says what it has applied


async def test_an_answer_that_is_on_its_way_is_no_proof_for_what_is_read_meanwhile(pair):
    """It may be older than the election of another leader."""
    cluster, a, _ = pair
    receipt = await a.queue("mail").enqueue(b"x")
    cluster.is_held = True
    write = asyncio.ensure_future(a.queue("mail").enqueue(b"y"))
    await settle()
    cluster.nodes["a"].has_session = False
    assert isinstance(await outcome(a.get(receipt.id)), NotLeaderError)
    late = asyncio.ensure_future(a.queue("mail").enqueue(b"z"))
    await settle()
    read = asyncio.ensure_future(outcome(a.get(receipt.id)))  # behind what is yet to be proposed
    await settle()
    assert not read.done()
    cluster.release()
    await asyncio.gather(write, late)
    assert (await read).payload == b"x"


async def test_a_wait_that_ends_empty_needs_a_session(pair, clock):
    cluster, a, _ = pair
    queue = a.queue("mail")
    receipt = await a.queue("slow").enqueue(b"x")
    for has_session in (True, False):
        cluster.nodes["a"].has_session = True
        waits = [
            asyncio.ensure_future(outcome(call))
            for call in (queue.claim(wait=5), a.result(receipt.id, wait=5))
        ]
        await settle()
        cluster.nodes["a"].has_session = has_session
        await clock.advance(6)
        claimed, result = [await wait for wait in waits]
        if has_session:
            assert (claimed, result) == ([], None)
        else:
            assert isinstance(claimed, NotLeaderError)
            assert isinstance(result, NotLeaderError)


async def test_no_lease_is_reaped_or_kept_alive_in_memory_without_a_session(pair, clock):
    cluster, a, b = pair
    await a.queue("mail").enqueue(b"x")
    (lease,) = await a.queue("mail").claim(lease=10)
    node = cluster.nodes["a"]
    node.has_session = False
    before = len(cluster.logs[0])
    await clock.advance(30)
    assert len(cluster.logs[0]) == before
    node.has_session = True
    await clock.advance(30)
    assert len(cluster.logs[0]) > before
    assert isinstance(await outcome(lease.complete()), LeaseLostError)
    assert await drain(a.queue("mail")) == [b"x"]
    assert rows(a) == rows(b)


async def test_a_leader_that_closes_without_a_session_comes_to_an_end(clock):
    cluster = Cluster()
    a = await cluster.open("a", clock=clock)
    await cluster.elect("a")
    await a.queue("mail").enqueue(b"x")
    cluster.nodes["a"].has_session = False
    await a.close()
    with pytest.raises(ClosedError):
        await a.health()


# -- leases of the leader before, while its answers may still arrive ---------------------


@pytest.fixture
async def early(clock):
    """As ``pair``; b is elected while a has a session for 20 more seconds. A lease of each kind."""
    cluster = Cluster()
    async with cluster.open("a", clock=clock) as a, cluster.open("b", clock=clock) as b:
        until = clock.mono() + 20
        cluster.nodes["b"].inherits_at = lambda shard: until
        await cluster.elect("a")
        await a.queue("mail").enqueue_many([lodeq.NewTask(b"own"), lodeq.NewTask(b"exported")])
        (own,) = await a.queue("mail").claim(lease=5)
        (exported,) = await a.queue("mail").claim(lease=5, exported=True)
        cluster.nodes["a"].cut()
        cluster.nodes["a"].holds_session = lambda shard: clock.mono() < until
        await cluster.elect("b")
        yield cluster, a, b, own, exported


async def test_inherited_leases_are_not_ended_while_their_holders_may_be_told_otherwise(
    early, clock
):
    cluster, a, b, own, exported = early
    await clock.advance(3)
    for lease in (own, exported):
        await lease.heartbeat()  # the leader before says so, and may
        error = await outcome(b.cancel(lease.task_id))
        assert isinstance(error, lodeq.BusyError)
        assert 16_000 < error.retry_after_ms <= 17_000
    assert isinstance(await outcome(b.queue("mail").cancel_all(leased=True)), lodeq.BusyError)
    for seconds in (0, 16):
        await clock.advance(seconds)
        assert await b.queue("mail").claim(limit=9) == []
        assert (await b.queue("mail").stats()).leased == 2
    await clock.advance(2)
    again = await b.queue("mail").claim(limit=9)
    assert sorted((lease.payload, lease.attempt) for lease in again) == [
        (b"exported", 2),
        (b"own", 2),
    ]
    cluster.nodes["a"].heal()
    for lease in (own, exported):
        assert isinstance(await outcome(lease.heartbeat()), LeaseLostError)
    await sound(b)
    assert rows(a) == rows(b)


async def test_a_holder_ends_an_inherited_lease_and_own_leases_are_as_ever(early):
    _, _, b, _, exported = early
    proof = LeaseProof(exported.task_id, exported.epoch, exported.token)
    await complete(b._state, proof, b"v", then=(), keep=True, durable=None)
    assert (await b.result(exported.task_id)).value == b"v"
    await b.queue("mail").enqueue(b"new")
    (new,) = await b.queue("mail").claim()
    assert await b.cancel(new.task_id)
    await sound(b)


# -- entries that the log takes ----------------------------------------------------------


async def test_nothing_makes_an_entry_larger_than_the_log_takes(clock):
    """What might is refused before anything changes; what can be split is."""
    cluster = Cluster()
    node = cluster.node("a")
    node.entry_bytes_max = 1 << 20
    async with open_in_memory(replicator=node, clock=clock) as a:
        await cluster.elect("a")
        queue = a.queue("mail")
        for call in (
            lambda: queue.enqueue(bytes(1 << 19)),
            lambda: queue.enqueue_many([lodeq.NewTask(bytes(1 << 19))]),
        ):
            assert isinstance(await outcome(call()), lodeq.PayloadTooLargeError)
        many = [lodeq.NewTask(bytes(40_000)) for _ in range(20)]
        assert isinstance(await outcome(queue.enqueue_many(many, atomic=True)), lodeq.LimitError)
        assert (await queue.stats()).ready == 0
        calls = [queue.enqueue(bytes(400_000)) for _ in range(6)]
        await asyncio.gather(*calls)
        leases = await queue.claim(limit=6)
        with pytest.raises(lodeq.PayloadTooLargeError):
            await leases[0].complete(bytes(1 << 19))
        too_much = [lodeq.NewTask(bytes(200_000)) for _ in range(4)]
        with pytest.raises(lodeq.LimitError):
            await leases[0].complete(None, then=too_much)
        assert await a.complete_many([(lease, bytes(400_000)) for lease in leases]) == [None] * 6
        await sound(a)
        sizes = [
            sum(len(key) + len(value or b"") for key, value in entry.ops)
            for entry in cluster.logs[0]
        ]
        assert max(sizes) < node.entry_bytes_max
        assert len([size for size in sizes if size > 400_000]) == 12
        # More than one submission may have, and not atomic: it is split, on every path.
        split = [lodeq.NewTask(bytes(40_000)) for _ in range(20)]
        with_options = [lodeq.NewTask(bytes(40_000), dedup_key=str(n)) for n in range(20)]
        for tasks in (split, with_options):
            assert len(await a.queue("split").enqueue_many(tasks)) == 20
        await a.queue("small").enqueue_many([lodeq.NewTask(b"x")] * 2000)
        assert len(await a.queue("small").claim(limit=2000)) == 2000
        for _ in range(2):
            await clock.advance(3600, turns=80)  # and they are reaped, in slices
        assert (await a.queue("small").stats()).ready == 2000
        await sound(a)


async def test_a_log_that_takes_too_little_is_refused(tmp_path, clock):
    node = Cluster().node("a")
    node.entry_bytes_max = (1 << 20) - 1
    with pytest.raises(lodeq.UsageError, match="1,048,576 bytes at least"):
        await lodeq.open(tmp_path / "a", replicator=node)
    assert node.life == []


@pytest.mark.parametrize("how", ["redrive", "named", "bulk"])
async def test_operators_slices_are_bounded_by_bytes(clock, how):
    """A policy that is written anew writes the whole record: of 256 tasks it was one entry."""
    cluster = Cluster()
    node = cluster.node("a")
    node.entry_bytes_max = 1 << 20
    async with open_in_memory(replicator=node, clock=clock) as a:
        await cluster.elect("a")
        await a.publish_functions([lodeq.PublishedFunction("mail", "send", max_attempts=7)])
        queue = a.queue("mail", max_attempts=1)
        payload, sending = bytes(100_000), {"lodeq.task": "send"}
        ids = [(await queue.enqueue(payload, headers=sending)).id for _ in range(40)]
        while leases := await queue.claim(limit=10):
            for lease in leases:
                await lease.bury("no")
        before = len(cluster.logs[0])
        if how == "redrive":
            assert await queue.redrive(policy="current") == 40
        elif how == "named":
            calls = [queue.redrive([one], policy="current") for one in ids]
            assert await asyncio.gather(*calls) == [1] * 40
        else:
            meant = lodeq.TaskFilter(queue="mail", state="dead")
            assert (await a.act("redrive", meant, policy="current")).done == 40
        sizes = [
            sum(len(key) + len(value or b"") for key, value in entry.ops)
            for entry in cluster.logs[0][before:]
        ]
        assert max(sizes) < node.entry_bytes_max
        assert (await queue.stats()).ready == 40
        await sound(a)
