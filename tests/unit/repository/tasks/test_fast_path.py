"""The flattened calls queue the rows the general code queues, byte for byte."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from lodeq import Backoff, NewTask
from lodeq.engine.runtime.ids import SeededRng, shard_of
from lodeq.repository.api import direct_calls, queue
from lodeq.repository.api.open import open_in_memory
from lodeq.repository.state.engine_state import EngineState
from lodeq.repository.state.lease_state import LeaseState
from lodeq.repository.tasks import fast_path, lease, option_path
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio
PLAIN_FIELDS = {name for name in vars(LeaseState) if name[0] != "_"} - {"shard_queue", "state"}
assert {"task_id", "times", "token"} < PLAIN_FIELDS
PAYLOADS = (b"", b"x" * 100, {"a": [1, 2]}, "text", b"y" * 5000)


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def rows_after_a_life(shards):
    """Every row a few lives leave, and what the engine counted."""
    rows = []
    async with open_in_memory(
        clock=ManualClock(), rng=SeededRng(7), shards=shards, reaper=False
    ) as engine:
        mail = engine.queue("mail", tenant="acme", retention=60)
        stores = [shard.store for shard in engine._state.shards]

        def look():
            rows.append([store.scan(b"", b"\xff", 10_000) for store in stores])

        receipts = [await mail.enqueue(payload) for payload in PAYLOADS]
        receipts += await mail.enqueue_many([NewTask(payload) for payload in PAYLOADS])
        assert len({shard_of(receipt.id, shards) for receipt in receipts}) == min(shards, 6)
        look()
        for n in range(len(receipts)):
            (one,) = await mail.claim(worker="w" if n % 2 else "", exported=n % 5 == 0)
            look()
            rows.append({name: getattr(one, name, None) for name in PLAIN_FIELDS})
            await one.complete(None if n % 3 else {"n": n}, keep=n != 4)
            look()
        stats = await engine.stats()
        assert (stats.enqueued_total, stats.claimed_total, stats.completed_total) == (10, 10, 10)
        assert (await engine.verify()).ok
    return receipts, rows


@pytest.mark.parametrize("shards", [1, 3, 8])
async def test_same_rows_as_the_general_code(monkeypatch, shards):
    flat = await rows_after_a_life(shards)
    monkeypatch.setattr(queue, "submit_plain", lambda *_: None)
    monkeypatch.setattr(queue, "submit_plain_many", lambda *_: None)
    monkeypatch.setattr(queue, "submit_claim", lambda *_: None)
    monkeypatch.setattr(lease.fast_path, "submit_complete", lambda *_: None)
    assert await rows_after_a_life(shards) == flat


OPTIONS = (
    {"priority": 9},
    {"priority": 0, "ttl": 40},
    {"delay": 2.5},
    {"delay": 0.004, "priority": 7, "ttl": 30.0},
    {"delay": 70_000, "dedup_key": "later"},
    {"dedup_key": b"a"},
    {"dedup_key": "ä", "dedup_window": 5},
    {"dedup_key": b"a", "dedup_window": 600.0},
    {"dedup_key": "w", "dedup_window": 20, "delay": 1.0, "ttl": 3},
    {"dedup_key": "w", "priority": 6},
    {"dedup_window": 0, "dedup_key": "z"},
    {"delay": 0},
    {"headers": {"trace": "x" * 40}},
    {"headers": {}, "dedup_key": "h", "delay": 1},
    {"headers": {"n": 1}, "priority": 3, "ttl": 50, "dedup_key": "i"},
    {"function": "send", "preview": "to='a@example.org', n=3", "labels": {"customer": "7"}},
    {"labels": {"a": "ä=", "b": ""}, "headers": {"n": 1}, "priority": 9},
    {"preview": "x" * 300, "delay": 1, "dedup_key": "f"},
    {"function": "", "labels": {}},
    {},
)


async def passed(clock, seconds):
    """Let time pass, and what fell due be committed."""
    clock.advance(seconds)
    for _ in range(3):
        await asyncio.sleep(0)


async def rows_of_options(shards, *, batches):
    """Every row that tasks with options leave: enqueued, promoted, retried, expired, completed."""
    rows, clock = [], ManualClock()
    async with open_in_memory(clock=clock, rng=SeededRng(8), shards=shards) as engine:
        mail = engine.queue("mail", tenant="acme", retention=60)
        stores = [shard.store for shard in engine._state.shards]

        def look():
            rows.append([store.scan(b"", b"\xff", 10_000) for store in stores])
            state = engine._state
            rows.append((state.totals.enqueued, state.totals.duplicates, state.held_bytes >= 0))

        receipts = []
        for turn in range(3):
            for n, options in enumerate(OPTIONS):
                payload = PAYLOADS[n % len(PAYLOADS)]
                if not batches:
                    receipts.append(await mail.enqueue(payload, **options))
                    look()
            if batches:
                tasks = [NewTask(PAYLOADS[n % 5], **one) for n, one in enumerate(OPTIONS)]
                receipts += await mail.enqueue_many(tasks, atomic=turn == 2 and shards == 1)
                look()
            leases = await mail.claim(limit=4)
            for n, one in enumerate(leases):
                await (one.nack(delay=1.5) if n % 2 else one.complete(b"ok"))
                look()
            await passed(clock, 4.0)
            look()
        while leases := await mail.claim(limit=64):
            await engine.complete_many([(one, None) for one in leases])
            await passed(clock, 70.0)
            look()
        assert (await engine.verify()).ok
        await passed(clock, 70_000.0)
        assert len(await mail.claim(limit=64)) == 1
        look()
        (leases,) = ([*engine._state.leases.values()],)
        await engine.complete_many([(one, None) for one in leases])
        assert engine._state.held_bytes == 0
        assert (await engine.verify()).ok
    return receipts, rows


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("shards", [1, 4])
async def test_same_rows_as_the_general_code_with_options(monkeypatch, shards, batches):
    flat = await rows_of_options(shards, batches=batches)
    monkeypatch.setattr(queue, "submit_keyed", lambda *_: None)
    monkeypatch.setattr(queue, "submit_task", lambda *_: None)
    monkeypatch.setattr(queue, "submit_tasks", lambda *_: None)
    monkeypatch.setattr(queue, "submit_plain", lambda *_: None)
    monkeypatch.setattr(EngineState, "put_delayed", put_unheld(EngineState.put_delayed))
    assert await rows_of_options(shards, batches=batches) == flat


NAMED = (
    {"headers": {"lodeq.task": "send"}, "function": "send", "preview": "n=1"},
    {"headers": {"lodeq.task": "send", "ä": [1]}, "function": "send", "labels": {"a": "ä"}},
    {"headers": {"trace": "x" * 300}, "function": "s" * 32},
    {"headers": {"x": "ä"}, "labels": {"a": "b"}},
    {"headers": {}},
)


async def rows_of_named_tasks(shards):
    """Every row of tasks with headers and faces, from the enqueue to the end."""
    rows, clock = [], ManualClock()
    async with open_in_memory(clock=clock, rng=SeededRng(8), shards=shards) as engine:
        mail = engine.queue("mail")
        stores = [shard.store for shard in engine._state.shards]
        for payload in PAYLOADS:
            for options in NAMED:
                await mail.enqueue(payload, **options)
                rows.append([store.scan(b"", b"\xff", 10_000) for store in stores])
        for _ in range(len(PAYLOADS) * len(NAMED)):
            (lease,) = await mail.claim()
            await lease.complete(b"ok")
            rows.append([store.scan(b"", b"\xff", 10_000) for store in stores])
        assert (await engine.verify()).ok
    return rows


@pytest.mark.parametrize("shards", [1, 4])
async def test_same_rows_as_the_general_code_with_headers_and_face(monkeypatch, shards):
    flat = await rows_of_named_tasks(shards)
    monkeypatch.setattr(queue, "submit_plain", lambda *_: None)
    monkeypatch.setattr(queue, "submit_claim", lambda *_: None)
    monkeypatch.setattr(lease.fast_path, "submit_complete", lambda *_: None)
    assert await rows_of_named_tasks(shards) == flat


POLICIES = (
    {"max_attempts": 9},
    {"retry": Backoff("fixed", base=2.0), "dedup_key": "p"},
    {"retention": 5, "dead_retention": 50, "delay": 1, "headers": {"n": 1}},
    {"run_at": datetime(2031, 1, 1, tzinfo=UTC)},
    {"shard_key": "s"},
    {"dedup_key": "a", "on_conflict": "replace"},
)


class Told(direct_calls.Outcome):
    """Tells a future."""

    def __init__(self):
        super().__init__()
        self.future = asyncio.get_running_loop().create_future()

    def set_result(self, value):
        self.future.set_result(value)

    def set_exception(self, error):
        self.future.set_exception(error)


async def rows_of_direct_calls(*, is_direct):
    """Every row that tasks with options leave that are enqueued directly, or the general way."""
    rows, clock, receipts, direct = [], ManualClock(), [], 0
    async with open_in_memory(clock=clock, rng=SeededRng(8)) as engine:
        mail = engine.queue("mail", tenant="acme", retention=60)
        calls = direct_calls.DirectCalls(engine._state)
        for _ in range(2):
            for n, options in enumerate((*OPTIONS, *POLICIES)):
                payload = PAYLOADS[n % len(PAYLOADS)]
                task, told = NewTask(payload, **options), Told()
                if is_direct and calls.enqueue_with(mail, task, told):
                    direct += 1
                    receipts.append(await told.future)
                else:
                    receipts.append(await mail.enqueue(payload, **options))
                rows.append(engine._state.shards[0].store.scan(b"", b"\xff", 10_000))
                rows.append((engine._state.totals.enqueued, engine._state.totals.duplicates))
        await passed(clock, 4.0)
        leases = await mail.claim(limit=64)
        rows.append([(one.task_id, one.policy, one.headers, one.function) for one in leases])
        assert (await engine.verify()).ok
    assert direct == (2 * (len(OPTIONS) + len(POLICIES) - 3) if is_direct else 0)
    return receipts, rows


async def test_same_rows_as_the_general_code_of_direct_calls(monkeypatch):
    direct = await rows_of_direct_calls(is_direct=True)
    for name in ("submit_keyed", "submit_task", "submit_plain"):
        monkeypatch.setattr(queue, name, lambda *_: None)
    assert await rows_of_direct_calls(is_direct=False) == direct


async def rows_of_direct_batches(*, is_direct):
    """The same in batches, which are duplicates the second time."""
    rows, receipts, direct = [], [], 0
    async with open_in_memory(clock=ManualClock(), rng=SeededRng(8)) as engine:
        mail = engine.queue("mail", tenant="acme", retention=60)
        calls = direct_calls.DirectCalls(engine._state)
        batches = (
            [NewTask(one, **options) for one, options in zip(PAYLOADS * 9, OPTIONS, strict=False)],
            [NewTask(b"x"), NewTask({"n": 1}), NewTask(b"y")],
            [NewTask(b"x", dedup_key="twice"), NewTask(b"y", dedup_key="twice")],
            [NewTask(b"x"), NewTask(b"y", max_attempts=9)],
        )
        for tasks in batches * 2:
            told = Told()
            if is_direct and calls.enqueue_tasks(mail, tasks, told):
                direct += 1
                receipts.append(await told.future)
            else:
                receipts.append(await mail.enqueue_many(tasks))
            rows.append(engine._state.shards[0].store.scan(b"", b"\xff", 10_000))
            rows.append((engine._state.totals.enqueued, engine._state.totals.duplicates))
        assert (await engine.verify()).ok
    assert direct == (6 if is_direct else 0)
    return receipts, rows


async def test_same_rows_as_the_general_code_of_direct_batches(monkeypatch):
    direct = await rows_of_direct_batches(is_direct=True)
    for name in ("submit_plain_many", "submit_tasks"):
        monkeypatch.setattr(queue, name, lambda *_: None)
    assert await rows_of_direct_batches(is_direct=False) == direct


def put_unheld(put_delayed):
    """``put_delayed`` without anything to hold in memory: rows are read when they are due."""

    def put(state, group, shard_queue, key, due_ms, row, held=None):
        put_delayed(state, group, shard_queue, key, due_ms, row)

    return put


@pytest.mark.parametrize("shards", [1, 8])
async def test_the_flat_calls_are_used(monkeypatch, shards):
    """Or the test above would compare the general code with itself."""
    used = []
    for name in (
        "submit_plain",
        "submit_plain_many",
        "submit_claim",
        "submit_keyed",
        "submit_task",
        "submit_tasks",
    ):
        real = getattr(option_path if name in option_path.__all__ else fast_path, name)

        def spy(*args, real=real, name=name):
            out = real(*args)
            if out is not None:
                used.append(name)
            return out

        monkeypatch.setattr(queue, name, spy)
    real_complete = fast_path.submit_complete
    monkeypatch.setattr(
        lease.fast_path, "submit_complete", lambda *a: used.append("complete") or real_complete(*a)
    )
    await rows_after_a_life(shards)
    assert used.count("submit_claim") == 10
    assert set(used) == {"submit_plain", "submit_plain_many", "submit_claim", "complete"}
    used.clear()
    await rows_of_options(1, batches=False)
    assert used.count("submit_plain") == 3 * 4
    assert used.count("submit_task") == 3 * (len(OPTIONS) - 5 - 4)
    assert used.count("submit_keyed") == 3 * 5
    used.clear()
    await rows_of_options(1, batches=True)
    assert used.count("submit_tasks") == 3
