"""Every operation on one task, end to end, and what is left of it."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from support_behaviour import START_US, in_memory, payloads, settle, sound

from lodeq import Backoff, LeaseLostError, Limits, NewTask, TaskId, TaskNotFoundError

pytestmark = pytest.mark.anyio

START = datetime.fromtimestamp(START_US / 1e6, UTC)


@pytest.fixture(params=[1, 4], ids=["1 shard", "4 shards"])
async def engine(clock, request):
    async with in_memory(clock, shards=request.param) as engine:
        yield engine
        await sound(engine)


async def test_a_whole_life(engine, clock):
    queue = engine.queue("mail", tenant="acme")
    receipt = await queue.enqueue(
        {"to": "a@example.org"},
        priority=7,
        delay=2.5,
        ttl=3600,
        max_attempts=5,
        headers={"trace": "abc", "n": 1},
    )
    assert receipt == (receipt.id, False, None)
    assert receipt.id.uuid.version == 7
    task = await engine.get(receipt.id)
    assert (task.state, task.queue, task.tenant, task.priority) == ("delayed", "mail", "acme", 7)
    assert (task.attempts, task.max_attempts) == (0, 5)
    assert task.payload == {"to": "a@example.org"}
    assert task.headers == {"trace": "abc", "n": 1}
    assert task.enqueued_at == START
    assert task.due_at == START + timedelta(seconds=2.5)
    assert task.expires_at == START + timedelta(seconds=3602.5)
    assert await queue.claim() == []
    await clock.advance(2.6)
    (lease,) = await queue.claim(lease=30, worker="w1")
    assert (lease.queue, lease.tenant, lease.priority, lease.attempt) == ("mail", "acme", 7, 1)
    assert lease.task_id == receipt.id
    assert lease.payload == {"to": "a@example.org"}
    assert lease.headers == {"trace": "abc", "n": 1}
    assert lease.enqueued_at == START
    assert abs(lease.deadline - (START + timedelta(seconds=32.6))) < timedelta(milliseconds=1)
    assert len(lease.token) == 16
    task = await engine.get(receipt.id.uuid)
    assert (task.state, task.worker, task.attempts) == ("leased", "w1", 1)
    assert await engine.result(receipt.id) is None
    await clock.advance(4)
    await lease.complete({"ok": True})
    result = await engine.result(str(receipt.id))
    assert (result.status, result.value, result.error) == ("completed", {"ok": True}, "")
    assert (result.queue, result.tenant, result.worker) == ("mail", "acme", "w1")
    assert (result.attempts, result.priority) == (1, 7)
    assert result.enqueued_at == START
    times = [result.enqueued_at, result.ready_at, result.leased_at, result.finished_at]
    assert times == sorted(times)
    assert result.finished_at == START + timedelta(seconds=6.6)
    done = await engine.get(receipt.id)
    assert (done.state, done.payload, done.headers) == ("completed", None, {})


HOWS = ["completed", "nacked", "buried", "expired", "cancelled", "given up", "ttl"]


@pytest.mark.parametrize("how", HOWS)
async def test_every_end_writes_a_result_and_wakes_who_waits(engine, clock, how):
    queue = engine.queue("mail", max_attempts=1, lease=10)
    task = await queue.enqueue(b"x", ttl=5 if how == "ttl" else None)
    waiting = [asyncio.ensure_future(engine.result(task.id, wait=1000)) for _ in range(3)]
    await settle()
    lease = None if how in ("cancelled", "ttl") else await queue.claim_one(worker="w")
    if how == "completed":
        await lease.complete(b"r")
    elif how == "nacked":
        await lease.nack(reason="no good")
    elif how == "buried":
        await lease.bury("no good")
    elif how == "cancelled":
        assert await engine.cancel(task.id)
    elif how == "given up":
        await lease.cancel()
    else:
        await clock.advance(11)
    results = await asyncio.gather(*waiting)
    assert results == [await engine.result(task.id)] * 3
    status, error, attempts, worker = {
        "completed": ("completed", "", 1, "w"),
        "nacked": ("dead", "no good", 1, "w"),
        "buried": ("dead", "no good", 1, "w"),
        "expired": ("dead", "lease expired", 1, "w"),
        "cancelled": ("cancelled", "cancelled", 0, ""),
        "given up": ("cancelled", "cancelled", 1, "w"),
        "ttl": ("expired", "ttl", 0, ""),
    }[how]
    result = results[0]
    assert (result.status, result.error) == (status, error)
    assert (result.attempts, result.worker) == (attempts, worker)
    assert (await queue.stats()).results == 1


async def test_a_result_that_does_not_come_in_time_is_none(engine, clock):
    task = await engine.queue("mail").enqueue(b"x")
    waiting = asyncio.ensure_future(engine.result(task.id, wait=5))
    await settle()
    await clock.advance(6)
    assert await waiting is None
    with pytest.raises(TaskNotFoundError) as caught:
        await engine.result(UUID(int=7))
    assert caught.value.task_id == TaskId(UUID(int=7))


async def test_completing_twice_succeeds_twice_and_changes_nothing(engine):
    queue = engine.queue("mail")
    task = await queue.enqueue(b"x")
    lease = await queue.claim_one()
    await lease.complete(1)
    await lease.complete(2)
    assert await engine.complete_many([(lease, 3), (lease, 4)]) == [None, None]
    assert (await engine.result(task.id)).value == 1
    with pytest.raises(LeaseLostError):
        await lease.nack()
    assert (await engine.stats()).completed_total == 1


async def test_a_lease_that_was_lost_cancels_nobody(engine, clock):
    queue = engine.queue("mail", lease=10)
    task = await queue.enqueue(b"x", dedup_key="k")
    late = await queue.claim_one()
    await clock.advance(11)
    other = await queue.claim_one()
    with pytest.raises(LeaseLostError):
        await late.cancel()
    assert other.is_live
    assert (await engine.get(task.id)).state == "leased"
    await other.cancel()
    assert not other.is_live
    assert (await engine.result(task.id)).status == "cancelled"
    assert not (await queue.enqueue(b"y", dedup_key="k")).duplicate


@pytest.mark.usefixtures("no_history")
async def test_keep_false_and_retention_zero_leave_nothing(engine):
    for queue, keep in ((engine.queue("a"), False), (engine.queue("b", retention=0), True)):
        task = await queue.enqueue(b"x")
        await (await queue.claim_one()).complete(b"r", keep=keep)
        with pytest.raises(TaskNotFoundError):
            await engine.result(task.id)
        assert await engine.get(task.id) is None
        gone = await engine.queue("b", retention=0).enqueue(b"x")
        await engine.cancel(gone.id)
        assert await engine.get(gone.id) is None
        assert (await queue.stats()).results == 0


async def test_results_max_zero_keeps_none(clock):
    async with in_memory(clock, limits=Limits(results_max=0)) as engine:
        queue = engine.queue("mail", max_attempts=1)
        await queue.enqueue_many([NewTask(b"a"), NewTask(b"b"), NewTask(b"c", ttl=1)])
        await (await queue.claim_one()).complete()
        task = (await queue.peek())[0]
        await engine.cancel(task.id)
        await clock.advance(3)
        assert (await queue.stats()).results == 0
        await sound(engine)


async def test_follow_ups_are_enqueued_with_the_result_or_not_at_all(engine):
    queue = engine.queue("mail", tenant="acme")
    await queue.enqueue(b"parent")
    lease = await queue.claim_one()
    await lease.complete(
        then=[
            NewTask(b"same queue", headers={"h": 1}),
            NewTask(b"other queue", queue="audit", priority=9),
            NewTask(b"other tenant", tenant="zeta"),
            NewTask(b"later", delay=60),
        ]
    )
    shard = engine._state.shard_of(lease.task_id)
    same = await queue.peek()
    audit = await engine.queue("audit", tenant="acme").peek()
    zeta = await engine.queue("mail", tenant="zeta").peek()
    assert [t.payload for t in (*same, *audit, *zeta)] == [
        b"same queue",
        b"other queue",
        b"other tenant",
    ]
    assert same[0].headers == {"h": 1}
    assert audit[0].priority == 9
    assert (await queue.stats()).delayed == 1
    for task in (*same, *audit, *zeta):
        assert engine._state.shard_of(task.id) is shard
    await lease.complete(then=[NewTask(b"again")])  # repeated: nothing is enqueued twice
    assert (await queue.stats()).ready == 1


async def test_a_block_completes_nacks_or_leaves_alone(engine):
    queue = engine.queue("mail", backoff=Backoff(base=0))
    await queue.enqueue(b"x")
    with pytest.raises(ValueError, match="broken"):
        async with await queue.claim_one():
            raise ValueError("broken")
    (task,) = await queue.peek()
    assert (task.attempts, task.reason) == (1, "ValueError('broken')")
    async with await queue.claim_one() as lease:
        await lease.release()
    async with await queue.claim_one() as lease:
        assert lease.attempt == 2
    assert (await engine.result(lease.task_id)).status == "completed"


async def test_heartbeats_move_the_deadline_from_now(engine, clock):
    queue = engine.queue("mail", lease=10)
    await queue.enqueue_many([NewTask(i) for i in range(3)])
    a, b, c = await queue.claim(limit=3)
    for _ in range(5):
        await clock.advance(8)
        deadline = await a.heartbeat()
        assert round((deadline - START).total_seconds() - clock.mono() + 1000, 3) == 10
        answers = await engine.heartbeat_many([a, b])
        assert answers[0] is None
    assert not b.is_live or not c.is_live
    assert not c.is_live
    lost = (await engine.heartbeat_many([c], 60))[0]
    assert isinstance(lost, LeaseLostError)
    await a.heartbeat(timedelta(minutes=5))
    await clock.advance(200)
    await a.complete()


async def test_complete_many_reports_each(engine, clock):
    queue = engine.queue("mail", lease=10)
    receipts = await queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(12)])
    leases = await queue.claim(limit=12)
    await leases[3].release()
    await engine.cancel(leases[5].task_id)
    answers = await engine.complete_many([(lease, lease.payload) for lease in leases])
    assert [i for i, answer in enumerate(answers) if answer is not None] == [3, 5]
    assert all(isinstance(answers[i], LeaseLostError) for i in (3, 5))
    statuses = {(await engine.result(r.id)).status for r in receipts if r.id != leases[3].task_id}
    assert statuses == {"completed", "cancelled"}
    assert await engine.complete_many([]) == []


async def test_complete_many_completes_a_lease_once_however_often_it_is_named(engine):
    queue = engine.queue("mail")
    await queue.enqueue_many([NewTask(i) for i in range(3)])
    a, b, c = await queue.claim(limit=3)
    answers = await engine.complete_many([(a, 1), (b, 2), (a, 3), (c, 4), (b, 5)])
    assert answers == [None] * 5
    assert [(await engine.result(x.task_id)).value for x in (a, b, c)] == [1, 2, 4]
    assert (await engine.stats()).completed_total == 3


async def test_complete_many_of_more_than_fits_one_group(engine):
    queue = engine.queue("mail")
    await queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(30)])
    leases = await queue.claim(limit=30)
    values = [bytes([i]) * 300_000 for i in range(30)]
    assert await engine.complete_many(list(zip(leases, values, strict=True))) == [None] * 30
    assert [(await engine.result(x.task_id)).value for x in leases] == values


async def test_cancelling_revokes_a_lease_and_leaves_the_finished_alone(engine):
    queue = engine.queue("mail", max_attempts=1)
    receipts = await queue.enqueue_many([NewTask(i) for i in range(4)])
    leased, done, dead = await queue.claim(limit=3)
    await done.complete()
    await dead.nack()
    assert [await engine.cancel(r.id) for r in receipts] == [True, False, False, True]
    assert [await engine.cancel(r.id) for r in receipts] == [False] * 4
    with pytest.raises(LeaseLostError):
        await leased.complete()
    assert (await engine.result(leased.task_id)).status == "cancelled"
    later = await queue.enqueue(b"x", delay=50, dedup_key="k")
    assert await engine.cancel(later.id)
    assert not (await queue.enqueue(b"x", dedup_key="k")).duplicate


@pytest.mark.parametrize("compression", [None, "zlib", "zstd"])
async def test_values_come_back_as_they_were(clock, compression):
    values = [
        b"",
        b"raw",
        b"r" * 5000,
        bytearray(b"b"),
        None,
        True,
        5,
        -1.5,
        "text",
        "t" * 9000,
        [1, [2]],
        {"a": {"b": None}},
        {1: 2},
        START,
        ["ü" * 3000, START],
    ]
    async with in_memory(clock, compression=compression) as engine:
        queue = engine.queue("mail")
        ids = [(await queue.enqueue(value)).id for value in values]
        many = await queue.enqueue_many([NewTask(value, priority=4) for value in values])
        leases = await queue.claim(limit=99)
        assert payloads(leases) == values * 2
        for lease in leases:
            await lease.complete(lease.payload)
        for task_id, value in zip([*ids, *(r.id for r in many)], values * 2, strict=True):
            got = (await engine.result(task_id)).value
            assert got == (value or None if value is None else value)
        await sound(engine)


class Json:
    def encode(self, value):
        return json.dumps(value).encode()

    def decode(self, data):
        return json.loads(data)


class Broken(Json):
    def encode(self, value):
        raise ZeroDivisionError


async def test_a_queue_has_its_own_codec(engine):
    queue = engine.queue("mail", codec=Json())
    task = await queue.enqueue({"a": [1]}, headers={"h": 1})
    assert (await queue.peek())[0].payload == {"a": [1]}
    lease = await queue.claim_one()
    assert lease.payload == {"a": [1]}
    await lease.complete({"done": 1}, then=[NewTask({"next": 1})])
    assert (await engine.result(task.id)).value == {"done": 1}
    assert payloads(await queue.claim()) == [{"next": 1}]
    for bad in (engine.queue("other", codec=Broken()), queue):
        with pytest.raises((ZeroDivisionError, TypeError)):
            await bad.enqueue({1, 2})
    assert (await engine.stats()).ready == 0
    await queue.enqueue(b"bytes stay bytes")
    assert payloads(await queue.claim()) == [b"bytes stay bytes"]


class Tagged(Json):
    def encode(self, value):
        return super().encode(sorted(value))

    def decode(self, data):
        return set(super().decode(data))


async def test_a_follow_up_is_packed_by_the_codec_of_its_queue(engine):
    sets = engine.queue("sets", codec=Tagged())
    mail = engine.queue("mail")
    await mail.enqueue(b"x")
    lease = await mail.claim_one()
    await lease.complete(then=[NewTask({1, 2}, queue="sets"), NewTask({"a": 1})])
    assert payloads(await sets.claim()) == [{1, 2}]
    assert payloads(await mail.claim()) == [{"a": 1}]


async def test_backoff_delays_by_attempt(engine, clock):
    for kind, wanted in (
        ("fixed", [5, 5, 5, 5]),
        ("linear", [5, 10, 15, 20]),
        ("exponential", [5, 10, 20, 24]),
    ):
        queue = engine.queue(kind, max_attempts=9, backoff=Backoff(kind, base=5, cap=24))
        task = await queue.enqueue(b"x")
        got = []
        for _ in range(4):
            await (await queue.claim_one()).nack()
            due = (await engine.get(task.id)).due_at
            got.append(round(due.timestamp() - clock.wall_us() / 1e6))
            await clock.advance(25)
        assert got == wanted


@pytest.mark.parametrize("kind", ["full_jitter", "equal_jitter"])
async def test_jitter_is_really_random(engine, clock, kind):
    """The original drew the same number every time."""
    queue = engine.queue("mail", backoff=Backoff(kind, base=100, cap=100))
    await queue.enqueue_many([NewTask(i) for i in range(50)])
    for lease in await queue.claim(limit=50):
        await lease.nack()
    delays = [t.due_at.timestamp() - clock.wall_us() / 1e6 for t in await queue.list("delayed")]
    assert len({round(d, 2) for d in delays}) > 40
    least = 50 if kind == "equal_jitter" else 0
    assert all(least <= d <= 100.01 for d in delays)
    assert max(delays) - min(delays) > 25
