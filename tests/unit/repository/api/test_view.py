"""The view answers the same of every kind of engine, and never keeps one alive."""

import gc
import weakref

import pytest

import lodeq
from lodeq.repository.api.queue import options_of
from lodeq.repository.api.read_only import open_read_only
from lodeq.repository.api.statistics import Sums
from lodeq.repository.api.view import Flows, view_of

pytestmark = pytest.mark.anyio


async def fill(engine: lodeq.Engine) -> None:
    mail = engine.queue("mail")
    await mail.enqueue(b"a", priority=9)
    await mail.enqueue(b"b", delay=60)
    await engine.queue("mail", tenant="acme").enqueue(b"c")
    await engine.queue("images").enqueue(b"d")


async def test_an_engine_in_memory() -> None:
    clock = lodeq.testing.ManualClock()
    async with lodeq.testing.open(clock=clock, shards=2) as engine:
        await fill(engine)
        view = view_of(engine)
        assert (view.path, view.journal_name, view.disk_free_bytes()) == (None, None, None)
        assert [view.figures(shard) for shard in range(view.shard_count)] == [None, None]
        assert not view.is_closed
        assert view.is_on_loop_thread
        assert not view.is_disk_low
        assert view.health().ok
        assert view.anomalies == []
        assert view.queue_names() == ["images", "mail"]
        assert view.has_queue("mail")
        assert not view.has_queue("No Name")
        assert view.has_tenant_queue(b"mail", b"acme")
        assert not view.has_tenant_queue(b"mail", b"none")
        assert not await view.spawner.run_in_thread(lambda: view.is_on_loop_thread)
    assert view.is_closed
    with pytest.raises(lodeq.ClosedError):
        view.check()


async def test_queues_and_their_counts() -> None:
    async with lodeq.testing.open(clock=lodeq.testing.ManualClock(), shards=2) as engine:
        await fill(engine)
        view = view_of(engine)
        rows = list(view.tenant_queues())
        assert [(one.queue, one.tenant) for one in rows] == [
            (b"images", b""),
            (b"mail", b""),
            (b"mail", b"acme"),
        ]
        assert [sum(count for _, count in one.tasks) for one in rows] == [1, 2, 1]
        assert [one.flows.enqueued for one in rows] == [1, 2, 1]
        assert rows[1].stats == await engine.queue("mail").stats()
        counters = {(queue, tenant): sums for queue, tenant, sums in view.counters()}
        assert counters[b"mail", b""] == Sums(ready=1, delayed=1)
        assert (view.stats(counters[b"mail", b""]).ready, view.stats(Sums()).ready) == (1, 0)
        await engine.queue("mail", tenant="acme").pause()


async def test_flows_are_subtracted_and_added() -> None:
    early, late = Flows(enqueued=3, ran_us=10), Flows(enqueued=5, ran_us=30)
    assert late.since(early) == Flows(enqueued=2, ran_us=20)
    assert early.since(late) == early  # made anew meanwhile
    assert early.plus(late) == Flows(enqueued=8, ran_us=40)


async def test_shards_and_their_failures() -> None:
    async with lodeq.testing.open(shards=2) as engine:
        await fill(engine)
        await engine.fsync()
        view = view_of(engine)
        assert [(one.shard, one.waiting, one.not_durable) for one in view.shards()] == [
            (0, 0, 0),
            (1, 0, 0),
        ]
        assert sum(one.stats.commits for one in view.shards()) > 0
        assert view.refusing_shards() == 0
        engine._state.shards[1].coalescer.fail(OSError("the disk is gone"))
        assert [one.is_poisoned for one in view.shards()] == [False, True]
        assert view.refusing_shards() == 1


async def test_tasks_with_their_stored_bytes() -> None:
    clock = lodeq.testing.ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        mail = engine.queue("mail", tenant="acme")
        receipt = await mail.enqueue({"to": "ann"})
        view = view_of(engine)
        task = await view.task(receipt.id)
        assert task is not None
        assert task.payload == {"to": "ann"}
        stored = await view.task(receipt.id, "stored")
        assert stored is not None
        assert isinstance(stored.payload, bytes)
        bare = await view.task(receipt.id, "none")
        assert bare is not None
        assert bare.payload is None
        ((found,), is_full) = await view.page(mail, "ready", 10, payloads="none")
        assert (found.id, is_full) == (receipt.id, False)
        everybody = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
        assert len((await view.page(everybody, "ready", 10))[0]) == 1
        assert view.lease_times(receipt.id) is None
        lease = await mail.claim_one(lease=30)
        assert lease is not None
        clock.advance(10)
        times = view.lease_times(receipt.id)
        assert times is not None
        assert times.left_s == pytest.approx(20)
        assert clock.wall_us() - times.leased_us == 10_000_000
        await lease.complete("done")
        result = await view.result(receipt.id)
        assert result is not None
        assert result.value == "done"


async def test_rows_and_rest() -> None:
    async with lodeq.testing.open(shards=2) as engine:
        await fill(engine)
        view = view_of(engine)
        await view.quiesce()
        assert [index for index, _ in view.stores()] == [0, 1]
        assert sum(1 for _, store in view.stores() for _ in store.scan(b"", b"\xff", 10)) > 4
        exported = list(view.exported(b"mail", b"", dead=True))
        assert [getattr(one, "payload", None) for one in exported] == [b"a", b"b"]


async def test_the_options_of_a_queue_object() -> None:
    async with lodeq.testing.open() as engine:
        mail = engine.queue("mail", tenant="acme", lease=7, boost_after=60, max_attempts=3)
        assert options_of(mail) == (b"mail", b"acme", 3, 3600.0, 604_800.0, 7.0, 60.0)
        assert options_of(engine.queue("mail", tenant=lodeq.ALL_TENANTS)).tenant is None


async def test_an_engine_on_disk_and_one_that_only_reads(tmp_path) -> None:
    path = tmp_path / "jobs"
    async with lodeq.open(path, shards=2) as engine:
        await fill(engine)
        view = view_of(engine)
        assert view.path == str(path)
        assert (view.disk_free_bytes() or 0) > 0
        figures = view.figures(0)
        assert figures is not None
        assert figures.wal_bytes > 0
        async with open_read_only(path) as seen:
            other = view_of(seen)
            assert other.queue_names() == view.queue_names()
            assert other.refusing_shards() == 2
            assert not any(one.is_poisoned for one in other.shards())
    assert view.figures(0) is None  # closed


@pytest.mark.slow
async def test_a_view_does_not_keep_its_engine() -> None:
    async with lodeq.testing.open() as engine:
        view = view_of(engine)
        ref = weakref.ref(engine)
    del engine
    gc.collect()
    assert ref() is None
    assert view.is_closed
