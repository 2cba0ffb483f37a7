"""Wrong calls: a typed error each, and not a byte written."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from support_behaviour import in_memory, unchanged

import lodeq
from lodeq import (
    ALL_TENANTS,
    Backoff,
    LeaseLostError,
    Limits,
    NewTask,
    PayloadTooLargeError,
    TaskNotFoundError,
    UsageError,
)

pytestmark = pytest.mark.anyio

NAN, INF = float("nan"), float("inf")
HUGE = 10**5000  # str() and repr() of it are a ValueError
small = Limits(payload_bytes_max=100, headers_bytes_max=50, result_bytes_max=100)


class Unpackable:
    """msgpack knows nothing of it."""


def endless():
    loop = []
    loop.append(loop)
    return loop


WRONG_ENQUEUES = {
    "payload too large": (PayloadTooLargeError, {"payload": b"x" * 101}),
    "packed payload too large": (PayloadTooLargeError, {"payload": ["x" * 100]}),
    "unpackable payload": (UsageError, {"payload": Unpackable()}),
    "a payload in itself": (UsageError, {"payload": endless()}),
    "an int too big": (UsageError, {"payload": 1 << 70}),
    "headers too large": (PayloadTooLargeError, {"headers": {"a": "x" * 60}}),
    "headers of another type": (UsageError, {"headers": ["a"]}),
    "header keys": (UsageError, {"headers": {1: "a"}}),
    "unpackable headers": (UsageError, {"headers": {"a": Unpackable()}}),
    "negative delay": (UsageError, {"delay": -1}),
    "negative timedelta": (UsageError, {"delay": timedelta(seconds=-1)}),
    "NaN delay": (UsageError, {"delay": NAN}),
    "endless delay": (UsageError, {"delay": INF}),
    "a century": (UsageError, {"delay": timedelta(days=36_500)}),
    "delay of another type": (UsageError, {"delay": "5"}),
    "delay True": (UsageError, {"delay": True}),
    "delay with run_at": (UsageError, {"delay": 1, "run_at": datetime.now(UTC)}),
    "naive run_at": (UsageError, {"run_at": datetime(2030, 1, 1)}),  # noqa: DTZ001
    "run_at of another type": (UsageError, {"run_at": 5}),
    "run_at out of range": (UsageError, {"run_at": datetime(1900, 1, 1, tzinfo=UTC)}),
    "NaN ttl": (UsageError, {"ttl": NAN}),
    "negative ttl": (UsageError, {"ttl": -1}),
    "priority 10": (UsageError, {"priority": 10}),
    "priority -1": (UsageError, {"priority": -1}),
    "priority 1.5": (UsageError, {"priority": 1.5}),
    "priority True": (UsageError, {"priority": True}),
    "no attempts": (UsageError, {"max_attempts": 0}),
    "too many attempts": (UsageError, {"max_attempts": 65_536}),
    "dedup_key with shard_key": (UsageError, {"dedup_key": "a", "shard_key": "b"}),
    "empty dedup_key": (UsageError, {"dedup_key": ""}),
    "long dedup_key": (UsageError, {"dedup_key": "x" * 5000}),
    "dedup_key of another type": (UsageError, {"dedup_key": 5}),
    "shard_key of another type": (UsageError, {"shard_key": 5}),
    "window without a key": (UsageError, {"dedup_window": 5}),
    "NaN window": (UsageError, {"dedup_key": "a", "dedup_window": NAN}),
    "conflict without a key": (UsageError, {"on_conflict": "raise"}),
    "unknown on_conflict": (UsageError, {"dedup_key": "a", "on_conflict": "maybe"}),
}


@pytest.mark.parametrize("case", WRONG_ENQUEUES)
async def test_a_wrong_enqueue_writes_nothing(clock, case):
    error, options = WRONG_ENQUEUES[case]
    options = {"payload": b"x", **options}
    payload = options.pop("payload")
    async with in_memory(clock, limits=small, shards=2) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"good")
        lease = await queue.claim_one()
        task = NewTask(payload, **options)
        async with unchanged(engine):
            with pytest.raises(error):
                await queue.enqueue(payload, **options)
            with pytest.raises(error):
                await queue.enqueue_many([NewTask(b"good"), task])
            with pytest.raises(error):
                await engine.enqueue_many([NewTask(b"good", queue="a"), task._replace(queue="b")])
            if case != "dedup_key with shard_key":
                with pytest.raises(UsageError):
                    await lease.complete(then=[NewTask(b"good"), task])
        await lease.complete()


async def test_a_follow_up_takes_no_keys_of_its_own(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
        async with unchanged(engine):
            for task in (NewTask(b"y", dedup_key="k"), NewTask(b"y", shard_key="k"), b"y"):
                with pytest.raises(UsageError):
                    await lease.complete(then=[task])
            with pytest.raises(UsageError):
                await lease.complete(then=[NewTask(b"y")] * 300)
            with pytest.raises(lodeq.InvalidNameError):
                await lease.complete(then=[NewTask(b"y", queue="../b")])


async def test_a_wrong_claim_takes_nothing(clock):
    async with in_memory(clock) as engine:
        queue, empty = engine.queue("mail"), engine.queue("empty")
        await queue.enqueue(b"x")
        async with unchanged(engine):
            for options in (
                {"limit": 0},
                {"limit": 4097},
                {"limit": 1.5},
                {"limit": True},
                {"limit": [1]},
                {"lease": 0},
                {"lease": NAN},
                {"lease": -1},
                {"wait": NAN},
                {"wait": -1},
                {"worker": "x" * 257},
                {"worker": b"x"},
                {"wait": "1"},
            ):
                for right in ({"limit": 1}, {"limit": 1, "lease": 1.0, "wait": 0.0, "worker": "x"}):
                    await empty.claim(**right)  # what is remembered of it lets nothing wrong in
                    with pytest.raises(UsageError):
                        await empty.claim(**{**right, **options})
                with pytest.raises(UsageError):
                    await queue.claim(**options)
            for queues in ("mail", [], queue, ["../x"], [None]):
                with pytest.raises(UsageError):
                    await engine.claim(queues)


async def test_a_wrong_end_of_a_lease_leaves_it_live(clock):
    async with in_memory(clock, limits=small) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
        async with unchanged(engine):
            for call, error in (
                (lambda: lease.complete(b"x" * 101), PayloadTooLargeError),
                (lambda: lease.complete(Unpackable()), UsageError),
                (lambda: engine.complete_many([(lease, b"x" * 101)]), PayloadTooLargeError),
                (lambda: engine.complete_many([(lease, None), ("x", None)]), UsageError),
                (lambda: lease.nack(delay=NAN), UsageError),
                (lambda: lease.nack(delay=-1), UsageError),
                (lambda: lease.nack(reason=5), UsageError),
                (lambda: lease.release(delay=-1), UsageError),
                (lambda: lease.bury(reason=b"x"), UsageError),
                (lambda: lease.heartbeat(NAN), UsageError),
                (lambda: engine.heartbeat_many([lease], -1), UsageError),
                (lambda: lease.complete(durable="yes"), UsageError),
            ):
                with pytest.raises(error):
                    await call()
        assert lease.is_live
        await lease.nack(reason="é" * 5000, delay=0)
        (task,) = await queue.peek()
        assert task.reason == "é" * 512


async def test_a_stale_lease_changes_nothing(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=10)
        await queue.enqueue(b"x")
        stale = await queue.claim_one()
        await clock.advance(11)
        fresh = await queue.claim_one()
        assert fresh.epoch > stale.epoch
        async with unchanged(engine):
            for call in (
                stale.complete,
                stale.nack,
                stale.release,
                stale.bury,
                stale.heartbeat,
            ):
                with pytest.raises(LeaseLostError) as caught:
                    await call()
                assert caught.value.task_id == stale.task_id
            (lost,) = await engine.complete_many([(stale, None)])
            assert isinstance(lost, LeaseLostError)
            (lost,) = await engine.heartbeat_many([stale])
            assert isinstance(lost, LeaseLostError)
        await fresh.complete()
        async with unchanged(engine):
            with pytest.raises(LeaseLostError):
                await stale.complete()


async def test_a_foreign_lease_changes_nothing(clock):
    async with in_memory(clock) as ours, in_memory(clock) as theirs:
        for engine in (ours, theirs):
            await engine.queue("mail").enqueue(b"x")
        own = await ours.queue("mail").claim_one()
        foreign = await theirs.queue("mail").claim_one()
        assert own.task_id == foreign.task_id  # the same source of randomness
        async with unchanged(ours), unchanged(theirs):
            (lost,) = await ours.complete_many([(foreign, None)])
            assert isinstance(lost, LeaseLostError)
            (lost,) = await ours.heartbeat_many([foreign])
            assert isinstance(lost, LeaseLostError)
        assert await ours.complete_many([(own, None)]) == [None]


async def test_wrong_names_states_and_ids(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        task = await queue.enqueue(b"x")
        async with unchanged(engine):
            for state in ("none", "", None, "Ready"):
                with pytest.raises(UsageError):
                    await queue.list(state)
            for state in ("leased", "completed", 5):
                with pytest.raises(UsageError):
                    await queue.purge(state)
            for limit in (0, 10_001, True, None):
                with pytest.raises(UsageError):
                    await queue.list("ready", limit=limit)
            with pytest.raises(UsageError):
                await queue.list("ready", after=task)
            for bad in ("x", b"x", 5, None, "00000000-0000-0000-0000-00000000000g"):
                for call in (engine.get, engine.result, engine.cancel):
                    with pytest.raises(UsageError):
                        await call(bad)
                with pytest.raises(UsageError):
                    await queue.redrive([bad])
            unknown = UUID(int=5)
            assert await engine.get(unknown) is None
            assert await engine.cancel(unknown) is False
            with pytest.raises(TaskNotFoundError):
                await engine.result(unknown, wait=5)
            with pytest.raises(TaskNotFoundError):
                await queue.redrive([unknown, task.id])
            with pytest.raises(UsageError):
                engine.queue("mail", tenant=None)
            with pytest.raises(UsageError):
                await engine.queue("mail", tenant=ALL_TENANTS).enqueue(b"x")
            with pytest.raises(UsageError):
                await engine.queue("mail", tenant=ALL_TENANTS).enqueue_many([NewTask(b"x")])
            with pytest.raises(UsageError):
                await engine.enqueue_many([NewTask(b"x")])
            with pytest.raises(UsageError):
                await engine.enqueue_many([NewTask(b"x", queue="a", tenant=ALL_TENANTS)])
            with pytest.raises(UsageError):
                await queue.enqueue_many([b"x"])


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.queue("mail").enqueue(b"x", priority=HUGE),
        lambda engine: engine.queue("mail").enqueue(b"x", delay=HUGE),
        lambda engine: engine.queue("mail").enqueue(b"x", max_attempts=HUGE),
        lambda engine: engine.queue("mail").enqueue(b"x", durable=HUGE),
        lambda engine: engine.queue("mail").claim(limit=HUGE),
        lambda engine: engine.queue("mail").claim(wait=HUGE),
        lambda engine: engine.queue("mail").list(HUGE),
        lambda engine: engine.queue("mail").list("ready", limit=HUGE),
        lambda engine: engine.queue("mail").purge(HUGE),
        lambda engine: engine.queue(HUGE).enqueue(b"x"),
        lambda engine: engine.find(lodeq.TaskFilter(), limit=HUGE),
        lambda engine: engine.count(lodeq.TaskFilter(), looks=HUGE),
        lambda engine: engine.history(limit=HUGE),
        lambda engine: engine.history(cursor=HUGE),
        lambda engine: engine.workflows(limit=HUGE),
        lambda engine: engine.snapshot(keep=HUGE),
        lambda engine: engine.forget_loads(older_than=HUGE),
    ],
)
async def test_a_number_of_more_digits_than_python_writes_is_refused_as_any_other(clock, call):
    async with in_memory(clock) as engine, unchanged(engine):
        with pytest.raises(UsageError):
            await call(engine)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"lease": 0},
        {"lease": NAN},
        {"retention": -1},
        {"dead_retention": NAN},
        {"backoff": 5},
        {"boost_after": -1},
        {"max_attempts": "5"},
    ],
)
async def test_wrong_queue_options(clock, options):
    async with in_memory(clock) as engine:
        with pytest.raises(UsageError):
            engine.queue("mail", **options)


def test_wrong_values():
    for options in ({"kind": "none"}, {"base": -1}, {"base": NAN}, {"factor": INF}, {"cap": -1}):
        with pytest.raises(UsageError):
            Backoff(**options)
    for options in (
        {"payload_bytes_max": 65 << 20},
        {"payload_bytes_max": -1},
        {"pending_max": 0},
        {"results_max": -1},
        {"reason_bytes_max": 1 << 20},
    ):
        with pytest.raises(UsageError):
            Limits(**options)


async def test_a_lease_longer_than_its_record_can_say_is_refused(clock):
    days = timedelta(days=50)
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        async with unchanged(engine):
            for call in (
                lambda: queue.claim(lease=days),
                lambda: queue.claim_one(lease=days.total_seconds()),
                lambda: engine.claim([queue], lease=days),
            ):
                with pytest.raises(UsageError, match="lease"):
                    await call()
            for make in (lambda: queue.leases(lease=days), lambda: engine.queue("a", lease=days)):
                with pytest.raises(UsageError, match="lease"):
                    make()
        lease = await queue.claim_one(lease=timedelta(days=49))
        await lease.heartbeat(days)
        await lease.complete()


async def test_a_refused_queue_leaves_no_codec_behind(clock):
    class Loud:
        def encode(self, value):
            return b"loud"

        def decode(self, data):
            return data

    async with in_memory(clock) as engine:
        with pytest.raises(UsageError):
            engine.queue("mail", codec=Loud(), lease=-1)
        await engine.enqueue_many([NewTask({"a": 1}, queue="mail")])
        assert (await engine.queue("mail").claim_one()).payload == {"a": 1}
