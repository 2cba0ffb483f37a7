"""Progress of runs, and a queue cancelled whole: embedded and served."""

import contextlib
import math
from datetime import UTC, datetime

import anyio.lowlevel
import pytest

import lodeq
import lodeq.testing
from lodeq import Backoff, LeaseLostError, Progress, UsageError

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "rocksdb"])
def store(request):
    return request.param


@pytest.fixture
def shards():
    return 2


@pytest.fixture
def opening(store, shards, tmp_path):
    def opening(**options):
        if store == "memory":
            return lodeq.testing.open(shards=shards, **options)
        return lodeq.open(tmp_path / "store", shards=shards, **options)

    return opening


@pytest.fixture
async def engine(opening):
    async with opening() as engine:
        yield engine


async def test_a_report_is_shown_until_the_next(engine):
    queue = engine.queue("jobs")
    receipt = await queue.enqueue(b"x")
    assert (await engine.get(receipt.id)).progress is None
    (lease,) = await queue.claim()
    assert (await engine.get(receipt.id)).progress is None
    before = datetime.now(UTC)
    assert await lease.progress(0.25, "a quarter") is None
    shown = (await engine.get(receipt.id)).progress
    assert isinstance(shown, Progress)
    assert (shown.fraction, shown.note) == (0.25, "a quarter")
    assert abs((shown.at - before).total_seconds()) < 60
    await lease.progress(note="nearly")
    (task,) = await queue.list("leased")
    assert task.progress[:2] == (None, "nearly")
    await lease.complete()
    assert (await engine.get(receipt.id)).progress is None


@pytest.mark.parametrize("end", ["nack", "release", "bury", "cancel", "engine", "expire", "many"])
async def test_it_is_gone_with_the_lease(engine, end):
    queue = engine.queue("jobs", backoff=Backoff("fixed", base=0))
    receipt = await queue.enqueue(b"x")
    (lease,) = await queue.claim(lease=3600)
    await lease.progress(1, "done")
    if end == "engine":
        await engine.cancel(receipt.id)
    elif end == "many":
        await engine.complete_many([(lease, b"y")])
    elif end == "expire":
        await lease.heartbeat(0)
        with contextlib.suppress(LeaseLostError):
            await lease.nack(delay=0)
    else:
        await getattr(lease, end)()
    assert (await engine.get(receipt.id)).progress is None
    for again in await queue.claim():
        assert (await engine.get(again.task_id)).progress is None
    with pytest.raises(LeaseLostError):
        await lease.progress(0.5)
    assert not (await engine.verify()).findings


@pytest.mark.parametrize(
    ("fraction", "note"), [(2, ""), (-0.1, ""), (math.nan, ""), (True, ""), ("x", ""), (0.1, 7)]
)
async def test_what_is_no_progress_is_refused(engine, fraction, note):
    await engine.queue("jobs").enqueue(b"x")
    (lease,) = await engine.queue("jobs").claim()
    with pytest.raises(UsageError):
        await lease.progress(fraction, note)
    assert (await engine.get(lease.task_id)).progress is None


async def test_a_sum_of_parts_ends_at_one(engine):
    await engine.queue("jobs").enqueue(b"x")
    (lease,) = await engine.queue("jobs").claim()
    for parts in range(1, 50):
        done = 0.0
        for _ in range(parts):
            done += 1 / parts
        await lease.progress(done)
        assert (await engine.get(lease.task_id)).progress.fraction == pytest.approx(1)
        assert (await engine.get(lease.task_id)).progress.fraction <= 1
        for _ in range(parts):
            done -= 1 / parts
        await lease.progress(done)
        assert (await engine.get(lease.task_id)).progress.fraction >= 0


async def test_a_long_note_is_cut_at_a_character(engine):
    await engine.queue("jobs").enqueue(b"x")
    (lease,) = await engine.queue("jobs").claim()
    await lease.progress(0, "ä" * 200)
    assert (await engine.get(lease.task_id)).progress.note == "ä" * 128


async def test_many_run_at_once(engine):
    queue = engine.queue("jobs")
    await queue.enqueue_many([lodeq.NewTask(b"x") for _ in range(20)])
    leases = await queue.claim(limit=20)
    for i, lease in enumerate(leases):
        await lease.progress(i / 20, str(i))
    await engine.complete_many([(lease, None) for lease in leases[::2]])
    shown = {task.id: task.progress for task in await queue.list("leased")}
    assert {i: p.note for i, p in shown.items()} == {
        lease.task_id: str(i) for i, lease in enumerate(leases) if i % 2
    }
    await anyio.lowlevel.checkpoint()


async def test_a_queue_is_cancelled_whole(engine):
    queue, other = engine.queue("jobs"), engine.queue("others")
    kept = await other.enqueue(b"x")
    await queue.enqueue_many([lodeq.NewTask(b"x") for _ in range(300)])
    await queue.enqueue_many([lodeq.NewTask(b"x", delay=60) for _ in range(5)])
    leases = await queue.claim(limit=50)
    await leases[0].bury("no")
    assert await queue.cancel_all() == 304
    stats = await queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 1)
    with pytest.raises(LeaseLostError):
        await leases[1].complete()
    assert (await engine.result(leases[1].task_id)).status == "cancelled"
    assert (await engine.get(kept.id)).state == "ready"
    assert await queue.cancel_all() == 0
    assert not (await engine.verify()).findings


async def test_leased_tasks_are_left_if_asked(engine):
    queue = engine.queue("jobs")
    await queue.enqueue_many([lodeq.NewTask(b"x") for _ in range(3)])
    (lease,) = await queue.claim()
    assert await queue.cancel_all(leased=False) == 2
    await lease.complete()
    with pytest.raises(UsageError):
        await queue.cancel_all(leased="no")


async def test_tenants_are_cancelled_alone_or_together(engine):
    one, two = engine.queue("jobs", tenant="one"), engine.queue("jobs", tenant="two")
    for queue in (one, two, two):
        await queue.enqueue(b"x")
    assert await two.cancel_all() == 2
    assert (await one.stats()).ready == 1
    assert await engine.queue("jobs", tenant=lodeq.ALL_TENANTS).cancel_all() == 1
