"""``engine.sync``: threads beside a running engine, on asyncio and on trio."""

import asyncio
import functools
import threading
import uuid

import anyio
import pytest
from anyio.lowlevel import checkpoint

import lodeq
import lodeq.testing
from lodeq.repository.api.engine import ThreadEngine
from lodeq.repository.api.threads.thread_queue import ThreadQueue

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine(anyio_backend):
    async with lodeq.testing.open(shards=2) as engine:
        yield engine


@pytest.fixture
def in_thread(engine):
    """Run a function of the facade on another thread."""

    async def in_thread(fn, *args):
        return await anyio.to_thread.run_sync(functools.partial(fn, engine.sync, *args))

    return in_thread


async def until(condition):
    while not condition():
        await checkpoint()


async def test_a_life_in_a_thread(engine, in_thread):
    def life(sync):
        queue = sync.queue("mail", max_attempts=1)
        receipt = queue.enqueue({"n": 1}, priority=7, headers={"h": 1})
        lease = queue.claim_one(worker="thread", lease=60)
        assert (lease.task_id, lease.payload, lease.headers) == (receipt.id, {"n": 1}, {"h": 1})
        assert (lease.priority, lease.attempt) == (7, 1)
        assert (lease.queue, lease.tenant) == ("mail", "")
        assert lease.deadline > lease.enqueued_at
        assert len(lease.token) == 16
        assert lease.epoch > 0
        before = lease.deadline
        assert lease.heartbeat(600) > before
        lease.complete("done", then=[lodeq.NewTask(b"next")])
        lease.complete("done")
        assert sync.result(receipt.id).value == "done"
        return queue.claim_one().payload

    assert await in_thread(life) == b"next"


async def test_every_call_of_a_queue(in_thread):
    def use(sync):
        queue = sync.queue("mail")
        assert (queue.name, queue.tenant) == ("mail", "")
        first, *_ = queue.enqueue_many([lodeq.NewTask(n) for n in range(4)])
        queue.enqueue(b"later", delay=60)
        assert [task.payload for task in queue.peek()] == [0, 1, 2, 3]
        assert len(queue.list("delayed")) == 1
        one, two = queue.claim(limit=2)
        one.bury("bad")
        two.release()
        (dead,) = queue.dead_letters()
        assert (dead.id, dead.reason) == (first.id, "bad")
        assert queue.redrive([str(first.id)]) == 1
        queue.pause()
        assert queue.stats().is_paused
        assert queue.claim() == []
        queue.resume()
        assert queue.purge() == 5
        queue.enqueue(b"last")
        last = queue.claim_one()
        last.cancel()
        assert not last.is_live
        return queue.stats().pending

    assert await in_thread(use) == 0


async def test_every_call_of_an_engine(in_thread, tmp_path):
    def use(sync):
        assert (sync.shards, sync.durability, sync.path) == (2, "nosync", None)
        receipts = sync.enqueue_many([lodeq.NewTask(n, queue="a") for n in range(3)])
        leases = sync.claim(["b", sync.queue("a")], limit=2)
        assert sync.heartbeat_many(leases, 60) == [None, None]
        assert sync.complete_many([(leases[0], 1), (leases[1], 2)]) == [None, None]
        assert sync.result(receipts[1].id).value == 2
        assert sync.cancel(uuid.UUID(str(receipts[2].id)))
        assert sync.get(receipts[2].id).state == "cancelled"
        assert sync.stats().completed_total == 2
        assert sync.health().ok
        assert sync.verify().ok
        sync.fsync()
        with pytest.raises(lodeq.UsageError):
            sync.checkpoint(tmp_path / "copy")
        with pytest.raises(lodeq.UsageError):
            sync.claim("a")
        with pytest.raises(lodeq.TaskNotFoundError):
            sync.result(bytes(16))

    await in_thread(use)


async def test_a_lease_ends_with_its_block(in_thread):
    def use(sync):
        queue = sync.queue("mail", backoff=lodeq.Backoff("fixed", base=0))
        receipts = queue.enqueue_many([lodeq.NewTask(n) for n in range(3)])
        one, two, three = queue.claim(limit=3)
        with one:
            pass
        with pytest.raises(KeyError), two:
            raise KeyError("k")
        with pytest.raises(KeyboardInterrupt), three:
            raise KeyboardInterrupt
        assert sync.get(receipts[0].id).state == "completed"
        assert sync.get(receipts[1].id).reason == "KeyError('k')"
        return [(lease.payload, lease.attempt) for lease in queue.claim(limit=3)]

    assert await in_thread(use) == [(2, 1), (1, 2)]


@pytest.mark.parametrize("block", [True, False])
async def test_a_stream_of_leases(in_thread, block):
    def work(leases, seen):
        for lease in leases:
            with lease:
                seen.append(lease.payload)
            if len(seen) == 3:
                break

    def use(sync):
        queue = sync.queue("mail")
        queue.enqueue_many([lodeq.NewTask(n) for n in range(5)])
        seen = []
        if block:
            with queue.leases(limit=4) as stream:
                work(stream, seen)
        else:
            work(queue.leases(limit=4), seen)
        assert seen == [0, 1, 2]
        return queue.stats().ready

    assert await in_thread(use) == 2


async def test_a_waiting_claim_is_woken_by_another_thread(engine, in_thread):
    def wait(sync):
        (lease,) = sync.queue("mail").claim(wait=60)
        return lease.payload

    async with anyio.create_task_group() as group:
        found = []

        async def waiter():
            found.append(await in_thread(wait))

        group.start_soon(waiter)
        await until(lambda: engine._state.waiters.by_tenant_queue)
        await in_thread(lambda sync: sync.queue("mail").enqueue(b"x"))
    assert found == [b"x"]


async def test_many_threads(engine, in_thread):
    def use(sync, n):
        queue = sync.queue("mail")
        for _ in range(5):
            queue.enqueue(n)
            with queue.claim_one(wait=10):
                pass

    async with anyio.create_task_group() as group:
        for n in range(10):
            group.start_soon(in_thread, use, n)
    assert (await engine.stats()).completed_total == 50


async def test_on_the_loops_own_thread_it_would_wait_for_itself(engine):
    queue = engine.sync.queue("mail")
    assert isinstance(queue, ThreadQueue)
    assert isinstance(engine.sync, ThreadEngine)
    for call in (lambda: queue.enqueue(b"x"), engine.sync.stats, engine.sync.close):
        with pytest.raises(lodeq.UsageError, match="event loop"):
            call()


async def test_use_of_the_engine_itself_from_a_thread_raises(engine, in_thread):
    def use(_):
        with pytest.raises(lodeq.UsageError):
            engine.queue("mail").enqueue(b"x").send(None)

    await in_thread(use)


async def test_closing_ends_the_calls_that_wait(engine, in_thread):
    found = []

    def wait(sync, call):
        with pytest.raises(lodeq.ClosedError) as raised:
            call(sync)
        found.append(str(raised.value))

    receipt = await engine.queue("other").enqueue(b"x")
    async with anyio.create_task_group() as group:
        group.start_soon(in_thread, wait, lambda sync: sync.queue("mail").claim(wait=60))
        group.start_soon(in_thread, wait, lambda sync: sync.result(receipt.id, wait=60))
        group.start_soon(in_thread, wait, lambda sync: list(sync.queue("mail").leases(wait=60)))
        state = engine._state
        await until(
            lambda: (
                state.result_waiters and sum(map(len, state.waiters.by_tenant_queue.values())) == 2
            )
        )
        await engine.close()
    assert len(found) == 3
    await in_thread(wait, lambda sync: sync.stats())


async def test_a_thread_may_close_the_engine(engine, in_thread):
    def use(sync):
        with sync:
            sync.queue("mail").enqueue(b"x")
        sync.close()
        with pytest.raises(lodeq.ClosedError):
            sync.stats()

    await in_thread(use)
    with pytest.raises(lodeq.ClosedError):
        await engine.stats()


async def test_an_interrupted_wait_is_cancelled_on_the_loop(engine, in_thread, monkeypatch):
    real = threading.Event.wait
    state = engine._state

    def interrupted(self, timeout=None):
        if threading.current_thread() is thread:
            thread_waits.set()
            real(go_on, 10)
            raise KeyboardInterrupt
        return real(self, timeout)

    def use():
        with pytest.raises(KeyboardInterrupt):
            engine.sync.queue("mail").claim(wait=60)

    thread_waits, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=use)
    monkeypatch.setattr(threading.Event, "wait", interrupted)
    thread.start()
    await until(lambda: state.waiters.by_tenant_queue)
    go_on.set()
    await until(lambda: not state.waiters.by_tenant_queue)
    monkeypatch.undo()
    await anyio.to_thread.run_sync(thread.join)
    assert (await engine.stats()).leased == 0


async def test_leases_that_came_too_late_go_back(engine, in_thread, monkeypatch):
    await engine.queue("mail").enqueue(b"x")
    real = threading.Event.wait

    def interrupted(self, timeout=None):
        if threading.current_thread() is not thread:
            return real(self, timeout)
        real(self, 10)  # the answer is there
        raise KeyboardInterrupt

    def use():
        with pytest.raises(KeyboardInterrupt):
            engine.sync.queue("mail").claim()

    thread = threading.Thread(target=use)
    monkeypatch.setattr(threading.Event, "wait", interrupted)
    thread.start()
    await until(lambda: engine._state.totals.claimed)
    await until(lambda: not engine._state.leases)
    monkeypatch.undo()
    await anyio.to_thread.run_sync(thread.join)
    assert (await engine.queue("mail").claim_one()).attempt == 1


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("lodeq.repository.api.threads.thread_calls.LOOK_S", 0.01)


def abandoned(call):
    """The error of a thread's call on an engine whose loop ends without closing it."""
    kept, found = [], []

    def use():
        try:
            call(kept[0].sync)
        except lodeq.LodeqError as error:
            found.append(error)

    async def main():
        kept.append(await lodeq.testing.open())
        thread.start()
        await until(lambda: kept[0]._state.waiters.by_tenant_queue)

    thread = threading.Thread(target=use)
    asyncio.run(main())
    thread.join(10)
    assert not thread.is_alive()
    return kept[0], found


def test_a_loop_that_ends_without_closing(quick):
    engine, (error,) = abandoned(lambda sync: sync.queue("mail").claim(wait=60))
    assert isinstance(error, lodeq.ClosedError)
    found = []

    def late():
        try:
            engine.sync.stats()
        except lodeq.LodeqError as error:
            found.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    thread.join(10)
    assert [type(error) for error in found] == [lodeq.ClosedError]
