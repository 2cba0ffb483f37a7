"""The public API, on every loop, over every store, on one shard and on four."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

import lodeq
import lodeq.testing

pytestmark = pytest.mark.anyio
CACHE_BYTES = 8 << 20


FORMS = [  # store and shards; the other two of the four are in the longer run
    pytest.param(("memory", 4), id="memory-4"),
    pytest.param(("rocks", 1), id="rocks-1"),
    pytest.param(("memory", 1), id="memory-1", marks=pytest.mark.slow),
    pytest.param(("rocks", 4), id="rocks-4", marks=pytest.mark.slow),
]


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


@pytest.fixture
def store(form):
    return form[0]


@pytest.fixture
def shards(form):
    return form[1]


@pytest.fixture(params=[1, 4])
def served_shards(request):
    """``shards`` of the suites that run this one over a socket."""
    return request.param


@pytest.fixture
def opening(store, shards, tmp_path):
    """Open the engine under test; a second time, over a disk, what the first one left."""

    def opening(**options):
        if store == "memory":
            return lodeq.testing.open(shards=shards, **options)
        return lodeq.open(tmp_path / "s", shards=shards, block_cache_bytes=CACHE_BYTES, **options)

    return opening


@pytest.fixture
async def engine(anyio_backend, opening):
    async with opening() as engine:
        yield engine
        report = await engine.verify()
        assert report.ok, report.findings
        assert (await engine.stats()).anomalies == ()


@pytest.fixture
def queue(engine):
    return engine.queue("mail")


class Call:
    """A call in a task of its own."""

    def __init__(self, group, fn, *args, **options):
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()
        self.value = self.error = None
        group.start_soon(self._run, fn, args, options)

    async def _run(self, fn, args, options):
        with self.scope:
            try:
                self.value = await fn(*args, **options)
            except lodeq.LodeqError as error:
                self.error = error
        self.over.set()

    async def result(self):
        await self.over.wait()
        return self.value


async def settle(n=5):
    """Let every task that can run get to where it waits."""
    for _ in range(n):
        await checkpoint()


async def counts(queue):
    stats = await queue.stats()
    return {
        name: n
        for name in ("ready", "delayed", "leased", "dead", "results")
        if (n := getattr(stats, name))
    }


# --- a life -------------------------------------------------------------------------------------


async def test_a_task_is_claimed_and_completed(engine, queue):
    receipt = await queue.enqueue({"to": "a"}, headers={"trace": "1"}, priority=7)
    (lease,) = await queue.claim(worker="w1")
    assert (lease.task_id, lease.payload, lease.headers) == (
        receipt.id,
        {"to": "a"},
        {"trace": "1"},
    )
    assert (lease.priority, lease.attempt, lease.queue) == (7, 1, "mail")
    assert await counts(queue) == {"leased": 1}
    await lease.complete({"ok": True})
    result = await engine.result(receipt.id)
    assert (result.status, result.value, result.worker) == ("completed", {"ok": True}, "w1")
    assert await counts(queue) == {"results": 1}
    assert (await engine.get(receipt.id)).state == "completed"


async def test_a_payload_of_any_size_is_read_whole_or_in_slices(engine, queue):
    data = bytes(range(256)) * 300
    for given, packed in ((data, data), (b"", b""), ({"a": 1}, b"\x81\xa1a\x01")):
        receipt = await queue.enqueue(given)
        assert await engine.read_payload(receipt.id) == given
        async with await engine.open_payload(receipt.id) as reader:
            assert reader.size == len(packed)
            assert await reader.read(3) + await reader.read() == packed
        lease = await queue.claim_one()
        assert lease.payload_bytes == len(packed)
        assert await lease.read_payload() == given
        slices = [some async for some in await lease.open_payload(slice_bytes=50_000)]
        assert b"".join(slices) == packed
        assert all(len(some) == 50_000 for some in slices[:-1])
        await lease.complete()
        for read in (engine.read_payload, engine.open_payload):
            with pytest.raises(lodeq.TaskNotFoundError):
                await read(receipt.id)
    with pytest.raises(lodeq.UsageError, match="slice_bytes"):
        await engine.open_payload(receipt.id, slice_bytes=0)


async def test_a_negative_number_reads_all_that_is_left_of_a_payload(engine, queue):
    receipt = await queue.enqueue(b"payload")
    async with await engine.open_payload(receipt.id) as reader:
        assert await reader.read(3) + await reader.read(-1) == b"payload"


async def test_options_of_a_queue_hold_for_tasks_of_its_other_tenants(engine):
    retry = lodeq.Backoff("fixed", base=7.0)
    mail = engine.queue("mail", max_attempts=2, retention=9, dead_retention=8, backoff=retry)
    tasks = [lodeq.NewTask(b"x", tenant=tenant) for tenant in ("a", "b", "a", None)]
    await mail.enqueue_many([*tasks, lodeq.NewTask(b"x", tenant="c", queue="mail")])
    await mail.enqueue_many([lodeq.NewTask(b"x", queue="other"), lodeq.NewTask(b"x", tenant="d")])
    found = await engine.queue("mail", tenant=lodeq.ALL_TENANTS).claim(limit=10)
    assert sorted(lease.tenant for lease in found) == ["", "a", "a", "b", "c", "d"]
    for lease in found:
        policy = lease.policy
        assert (policy.max_attempts, policy.backoff_base_ms) == (2, 7_000)
        assert policy[5:] == (9_000, 8_000)
    (other,) = await engine.queue("other").claim()
    assert other.policy.max_attempts == 5


async def test_completing_again_succeeds_again(queue):
    await queue.enqueue(b"x")
    lease = await queue.claim_one()
    await lease.complete(1)
    await lease.complete(1)
    with pytest.raises(lodeq.LeaseLostError):
        await lease.nack()


async def test_follow_ups_are_enqueued_with_the_completion(engine, queue):
    await queue.enqueue(b"parent")
    lease = await queue.claim_one()
    await lease.complete(then=[lodeq.NewTask(b"a", queue="audit"), lodeq.NewTask(b"b")])
    assert [x.payload for x in await engine.queue("audit").claim()] == [b"a"]
    assert [x.payload for x in await queue.claim()] == [b"b"]


async def test_tasks_come_by_priority_then_in_order(queue):
    for n, priority in enumerate([5, 1, 9, 5, 9]):
        await queue.enqueue(n, priority=priority)
    leases = await queue.claim(limit=10)
    assert [lease.payload for lease in leases] == [2, 4, 0, 3, 1]


POLICIES = [{}, {"priority": 7}, {"dedup_key": "k"}, {"function": "send"}, {"delay": 0.0}]


@pytest.mark.parametrize("options", POLICIES, ids=str)
async def test_a_task_may_carry_a_policy_of_its_own(queue, options):
    retry = lodeq.Backoff("fixed", base=5.0)
    await queue.enqueue(b"x", retry=retry, retention=60, dead_retention=90.0, **options)
    (lease,) = await queue.claim()
    policy = lease.policy
    assert policy[5:] == (60_000, 90_000)
    assert policy.backoff_base_ms == 5_000
    assert policy.max_attempts == 5  # the queue's: it has none of its own
    await lease.nack()
    assert (await counts(queue)) == {"delayed": 1}


@pytest.mark.parametrize("name", ["retry", "retention", "dead_retention"])
async def test_each_part_of_a_policy_holds_by_itself(queue, name):
    given = {"retry": lodeq.Backoff(cap=7.0), "retention": 0, "dead_retention": 90}[name]
    await queue.enqueue(b"x", **{name: given})
    policy = (await queue.claim_one()).policy
    default = lodeq.Backoff()
    own = policy.backoff_cap_ms, policy.retention_ms, policy.dead_retention_ms
    changed = {"retry": 0, "retention": 1, "dead_retention": 2}[name]
    usual = (round(default.cap * 1000), 3_600_000, 604_800_000)
    assert own[changed] == (7_000, 0, 90_000)[changed]
    assert own[:changed] + own[changed + 1 :] == usual[:changed] + usual[changed + 1 :]


@pytest.mark.parametrize(
    "wrong", [{"retry": "often"}, {"retention": -1}, {"dead_retention": "long"}], ids=str
)
async def test_a_policy_that_cannot_be_is_refused(queue, wrong):
    with pytest.raises(lodeq.UsageError):
        await queue.enqueue(b"x", **wrong)
    assert await counts(queue) == {}


async def test_many_at_once(engine, queue):
    receipts = await queue.enqueue_many(
        [lodeq.NewTask(n, shard_key=str(n)) for n in range(50)] + [lodeq.NewTask(50)]
    )
    assert len({receipt.id for receipt in receipts}) == 51
    leases = await queue.claim(limit=64)
    assert sorted(lease.payload for lease in leases) == list(range(51))
    assert await engine.heartbeat_many(leases, 60) == [None] * 51
    assert await engine.complete_many([(x, x.payload * 2) for x in leases]) == [None] * 51
    assert (await engine.result(receipts[7].id)).value == 14


async def test_a_claim_over_several_queues(engine):
    await engine.enqueue_many(
        [lodeq.NewTask(1, queue="a"), lodeq.NewTask(2, queue="b", priority=9)]
    )
    leases = await engine.claim(["a", engine.queue("b")], limit=5)
    assert [lease.payload for lease in leases] == [2, 1]


async def test_a_dedup_key_is_held_once(queue):
    first = await queue.enqueue(b"1", dedup_key="k")
    again = await queue.enqueue(b"2", dedup_key="k")
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(lodeq.DuplicateTaskError):
        await queue.enqueue(b"3", dedup_key="k", on_conflict="raise")
    other = await queue.enqueue(b"4", dedup_key="k", on_conflict="replace")
    assert other.replaced == first.id
    assert [lease.payload for lease in await queue.claim(limit=5)] == [b"4"]


# --- waiting ------------------------------------------------------------------------------------


async def test_a_waiting_claim_is_woken(queue):
    async with anyio.create_task_group() as group:
        call = Call(group, queue.claim, wait=60)
        await settle()
        await queue.enqueue(b"x")
        (lease,) = await call.result()
    assert lease.payload == b"x"


async def test_a_waiting_claim_times_out(queue):
    assert await queue.claim(wait=0.001) == []


async def test_waiting_claims_are_served_in_turn(queue):
    async with anyio.create_task_group() as group:
        calls = []
        for _ in range(3):
            calls.append(Call(group, queue.claim, wait=60))
            await settle()
        for n in range(3):
            await queue.enqueue(n)
        assert [(await call.result())[0].payload for call in calls] == [0, 1, 2]


async def test_a_cancelled_claim_gives_its_task_back(queue):
    async with anyio.create_task_group() as group:
        call = Call(group, queue.claim, wait=60)
        await settle()
        call.scope.cancel()
        await call.over.wait()
        await queue.enqueue(b"x")
    lease = await queue.claim_one()
    assert lease.attempt == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_a_claim_cancelled_while_it_is_served_loses_nothing(queue, turns):
    async with anyio.create_task_group() as group:
        call = Call(group, queue.claim, wait=60)
        await settle()
        group.start_soon(queue.enqueue, b"x")
        await settle(turns)
        call.scope.cancel()
        await call.over.wait()
    if call.value is None:
        lease = await queue.claim_one(wait=1)
    else:
        (lease,) = call.value
    assert (lease.payload, lease.attempt) == (b"x", 1)


async def test_a_cancelled_claim_passes_its_wake_on(queue):
    async with anyio.create_task_group() as group:
        first = Call(group, queue.claim, wait=60)
        await settle()
        second = Call(group, queue.claim, wait=60)
        await settle()
        group.start_soon(queue.enqueue, b"x")
        first.scope.cancel()
        (lease,) = await second.result() if first.value is None else first.value
        second.scope.cancel()
    assert lease.payload == b"x"


async def test_waiting_for_a_result(engine, queue):
    receipt = await queue.enqueue(b"x")
    assert await engine.result(receipt.id) is None
    assert await engine.result(receipt.id, wait=0.001) is None
    async with anyio.create_task_group() as group:
        calls = [Call(group, engine.result, receipt.id, wait=60) for _ in range(2)]
        await settle()
        lease = await queue.claim_one()
        await lease.complete(5)
        assert [(await call.result()).value for call in calls] == [5, 5]
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.result(lodeq.TaskId(bytes(16)), wait=60)


async def test_a_stream_of_leases(queue):
    await queue.enqueue_many([lodeq.NewTask(n) for n in range(5)])
    seen = []
    async with queue.leases(limit=4) as stream:
        async for lease in stream:
            async with lease:
                seen.append(lease.payload)
            if len(seen) == 3:
                break
    assert seen == [0, 1, 2]
    assert [lease.payload for lease in await queue.claim(limit=5)] == [3, 4]


# --- back, dead, gone ---------------------------------------------------------------------------


async def test_nack_sends_to_the_tail_and_counts(queue):
    await queue.enqueue(b"first")
    await queue.enqueue(b"second")
    lease = await queue.claim_one()
    await lease.nack(delay=0, reason="no luck")
    leases = await queue.claim(limit=2)
    assert [(x.payload, x.attempt) for x in leases] == [(b"second", 1), (b"first", 2)]


async def test_release_keeps_the_place_and_the_count(queue):
    await queue.enqueue(b"first")
    await queue.enqueue(b"second")
    lease = await queue.claim_one()
    await lease.release()
    leases = await queue.claim(limit=2)
    assert [(x.payload, x.attempt) for x in leases] == [(b"first", 1), (b"second", 1)]


async def test_the_last_attempt_buries(engine, queue):
    receipt = await queue.enqueue(b"x", max_attempts=1)
    lease = await queue.claim_one()
    await lease.nack(reason="broken")
    (dead,) = await queue.dead_letters()
    assert (dead.id, dead.reason) == (receipt.id, "broken")
    assert (await engine.result(receipt.id)).status == "dead"


async def test_bury_and_redrive(queue):
    receipt = await queue.enqueue(b"x")
    await (await queue.claim_one()).bury("poison")
    assert await counts(queue) == {"dead": 1, "results": 1}
    assert await queue.redrive([receipt.id]) == 1
    assert (await queue.claim_one()).attempt == 1
    assert await queue.redrive() == 0


async def test_a_dead_letter_under_a_lease(engine, queue):
    for payload in (b"done", b"again", b"left", b"gone"):
        await queue.enqueue(payload, max_attempts=1)
        await (await queue.claim_one()).nack(reason=payload.decode())
    dead = {task.payload: task for task in await queue.dead_letters()}
    found = await queue.claim(dead=True, limit=3)
    found.append(await queue.claim_one(dead=True, worker="w"))
    leases = {lease.payload: lease for lease in found}
    for payload, lease in leases.items():
        assert lease.task_id == dead[payload].id
        assert (lease.reason, lease.attempt) == (payload.decode(), 1)
        assert lease.dead_at == dead[payload].finished_at
    assert not await queue.claim(dead=True, wait=0.01)
    assert await counts(queue) == {"leased": 4, "results": 4}
    await leases[b"gone"].cancel()
    done, again, left = (leases[payload] for payload in (b"done", b"again", b"left"))
    await done.heartbeat()
    await done.complete({"seen": True})
    assert (await engine.result(done.task_id)).value == {"seen": True}
    await again.redrive()
    with pytest.raises(lodeq.LeaseLostError):
        await again.redrive()
    with pytest.raises(lodeq.UsageError):
        await left.nack(delay=1)
    await left.nack(reason="not kept")
    assert await queue.dead_letters() == [dead[b"left"]]
    run = await queue.claim_one()
    assert (run.payload, run.attempt, run.reason, run.dead_at) == (b"again", 1, "", None)
    with pytest.raises(lodeq.UsageError):
        await run.redrive()
    with pytest.raises(lodeq.UsageError):
        await engine.queue("mail", tenant=lodeq.ALL_TENANTS).claim(dead=True)


@pytest.mark.parametrize("state", ["ready", "delayed", "leased"])
async def test_cancel(engine, queue, state):
    receipt = await queue.enqueue(b"x", delay=60 if state == "delayed" else None)
    lease = await queue.claim_one() if state == "leased" else None
    assert await engine.cancel(receipt.id)
    assert not await engine.cancel(receipt.id)
    assert (await engine.result(receipt.id)).status == "cancelled"
    assert await counts(queue) == {"results": 1}
    if lease is not None:
        with pytest.raises(lodeq.LeaseLostError):
            await lease.complete()


async def test_a_lease_ends_with_its_block(engine):
    queue = engine.queue("mail", backoff=lodeq.Backoff("fixed", base=600))
    receipts = await queue.enqueue_many([lodeq.NewTask(n) for n in range(3)])
    one, two, three = await queue.claim(limit=3)
    async with one:
        pass
    with pytest.raises(KeyError):
        async with two:
            raise KeyError("k")
    with anyio.CancelScope() as scope:
        async with three:
            scope.cancel()
            await checkpoint()
    assert (await engine.get(receipts[0].id)).state == "completed"
    assert (await engine.get(receipts[1].id)).reason == "KeyError('k')"
    (again,) = await queue.claim(limit=3)
    assert (again.payload, again.attempt) == (2, 1)


# --- operating ----------------------------------------------------------------------------------


async def test_pause_and_resume(queue):
    await queue.enqueue(b"x")
    await queue.pause()
    assert (await queue.stats()).is_paused
    async with anyio.create_task_group() as group:
        call = Call(group, queue.claim, wait=60)
        await settle()
        assert call.value is None
        await queue.resume()
        (lease,) = await call.result()
    assert lease.payload == b"x"


async def test_a_resume_without_a_tenant_undoes_both_pauses(engine, queue):
    every = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
    await queue.enqueue(b"x")
    await queue.pause()
    assert not (await queue.stats()).is_queue_paused
    await every.pause()
    assert (await queue.stats()).is_queue_paused
    assert (await engine.queues())["mail", ""].is_queue_paused
    assert await queue.resume() is True
    assert not (await queue.stats()).is_paused
    assert len(await queue.claim()) == 1


async def test_a_tenant_resumes_its_own_pause_and_learns_of_the_other(engine):
    acme, beta = (engine.queue("mail", tenant=name) for name in ("acme", "beta"))
    every = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
    for one in (acme, beta):
        await one.enqueue(b"x")
        await one.pause()
    await every.pause()
    assert await acme.resume() is False
    assert await acme.claim() == []
    assert await engine.queue("mail").resume() is True  # the whole queue; beta has its own
    assert len(await acme.claim()) == 1
    assert await beta.claim() == []
    assert await every.resume() is True
    assert len(await beta.claim()) == 1


async def test_purge(engine, queue):
    receipt = await queue.enqueue(b"ready")
    await queue.enqueue(b"delayed", delay=60)
    await queue.enqueue(b"dead")
    leases = await queue.claim(limit=2)
    await leases[1].bury()
    await leases[0].release()
    assert await queue.purge("dead") == 1
    assert await queue.purge() == 2
    assert (await engine.result(receipt.id)).status == "cancelled"
    assert not {"ready", "delayed", "dead"} & set(await counts(queue))


async def test_lists(queue):
    await queue.enqueue_many([lodeq.NewTask(n, shard_key=str(n)) for n in range(7)])
    page = await queue.list("ready", limit=4)
    rest = await queue.list("ready", limit=4, after=page[-1])
    assert [task.payload for task in page + rest] == list(range(7))
    assert [task.payload for task in await queue.peek(2)] == [0, 1]


async def test_health_and_statistics(engine, queue):
    await queue.enqueue(b"x", durable=True)
    await engine.fsync()
    assert (await engine.health()).ok
    stats = await engine.stats()
    assert (stats.ready, stats.enqueued_total) == (1, 1)
    assert sum(shard.commits for shard in stats.shards) >= 1


async def test_queues(engine):
    assert await engine.queues() == {}
    await engine.queue("mail", tenant="b").enqueue(b"x")
    await engine.queue("mail", tenant="a").enqueue(b"x", delay=60)
    await engine.queue("audit").pause()
    found = await engine.queues()
    assert list(found) == [("audit", ""), ("mail", "a"), ("mail", "b")]
    assert found["audit", ""].is_paused
    assert (found["mail", "a"].delayed, found["mail", "a"].oldest_ready_age) == (1, None)
    assert found["mail", "b"].ready == 1
    assert found["mail", "b"].oldest_ready_age >= 0
    assert {queue for queue, _ in await engine.queues()} == {"audit", "mail"}
    await engine.queue("audit").resume()
    assert ("audit", "") not in await engine.queues()
    await engine.queue("nobody").claim()
    assert len(await engine.queues()) == 2  # looking creates nothing


async def test_fenced_off_from_other_threads(engine, queue):
    def use():
        with pytest.raises(lodeq.UsageError):
            engine.sync.queue("mail").twin._state.check()
        engine.sync.queue("mail").enqueue(b"x")

    await anyio.to_thread.run_sync(use)
    assert (await queue.stats()).ready == 1


# --- closing ------------------------------------------------------------------------------------


async def test_closing_under_load_leaves_nobody_waiting(opening):
    async def enqueue(queue):
        while True:
            await queue.enqueue(b"x")

    async def work(engine, queue):
        while True:
            for lease in await queue.claim(limit=4, wait=60):
                await lease.complete()
                await engine.result(lease.task_id, wait=60)

    opened = opening(submit_queue_max=4, commit_batch_max=2)
    engine = await opened
    queue = engine.queue("mail")
    async with anyio.create_task_group() as group:
        calls = [Call(group, enqueue, queue) for _ in range(20)]
        calls += [Call(group, work, engine, queue) for _ in range(20)]
        calls += [Call(group, engine.queue("none").claim, wait=60) for _ in range(5)]
        await settle(20)
        await engine.close()
    assert {type(call.error) for call in calls} == {lodeq.ClosedError}
    with pytest.raises(lodeq.ClosedError):
        await queue.enqueue(b"x")
    await engine.close()


async def test_closing_from_several_tasks(opening):
    engine = await opening()
    async with anyio.create_task_group() as group:
        calls = [Call(group, engine.close) for _ in range(3)]
        await settle(1)
        calls[0].scope.cancel()
        calls[1].scope.cancel()
    assert [call.error for call in calls] == [None] * 3
    with pytest.raises(lodeq.ClosedError):
        await engine.stats()


async def test_leaving_while_cancelled_closes_all_the_same(opening, store):
    with anyio.CancelScope() as scope:
        async with opening() as engine:
            await engine.queue("mail").enqueue(b"x")
            scope.cancel()
            await checkpoint()
    assert scope.cancelled_caught
    with pytest.raises(lodeq.ClosedError):
        await engine.stats()
    async with opening() as engine:  # nothing holds the folder any more
        assert (await engine.stats()).ready == (1 if store == "rocks" else 0)
