"""The limits of a queue: leases at once, and starts in any window, whatever way a claim goes."""

import asyncio
import contextlib
import itertools
import random
import shutil

import pytest
from support_live import copy_live

import lodeq
import lodeq.testing
from lodeq import ALL_TENANTS
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio
KEEPS = 3600.0


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=[1, 4])
async def engine(request, clock, anyio_backend):
    async with lodeq.testing.open(clock=clock, shards=request.param) as engine:
        yield engine
        assert (await engine.verify()).ok
        assert (await engine.stats()).anomalies == ()
        for queue, limit in engine._state.queue_limits.by_queue.items():
            leased = sum(
                lease.shard_queue.tenant_queue.queue == queue
                for lease in engine._state.leases.values()
            )
            assert (limit.live, limit.picked) == (leased, 0)


async def fill(engine, *names, n=8, tenant=""):
    for name in names:
        await engine.queue(name, tenant=tenant).enqueue_many([lodeq.NewTask(b"x")] * n)


async def turns(n=10):
    for _ in range(n):
        await asyncio.sleep(0)


def waiting(call):
    return asyncio.get_running_loop().create_task(call)


# --- concurrency --------------------------------------------------------------------------------


def ways(engine):
    """Every way to claim from ``mail``, with another queue beside it where it takes several."""
    mail = engine.queue("mail", lease=KEEPS)
    every = engine.queue("mail", tenant=ALL_TENANTS, lease=KEEPS)
    boosted = engine.queue("mail", boost_after=0.001, lease=KEEPS)
    return {
        "one": lambda: mail.claim(),
        "many": lambda: mail.claim(limit=8),
        "more than a turn": lambda: mail.claim(limit=2000),
        "all tenants": lambda: every.claim(limit=8),
        "boosted": lambda: boosted.claim(limit=8),
        "several, one": lambda: engine.claim([mail, "other"]),
        "several, many": lambda: engine.claim([mail, "other"], limit=8),
        "several of all tenants": lambda: engine.claim([every, "other"], limit=8),
        "several, boosted": lambda: engine.claim([boosted, "other"], limit=8),
        "exported": lambda: mail.claim(limit=8, exported=True),
    }


NAMES = [
    "one",
    "many",
    "more than a turn",
    "all tenants",
    "boosted",
    "several, one",
    "several, many",
    "several of all tenants",
    "several, boosted",
    "exported",
]


@pytest.mark.parametrize("way", NAMES)
async def test_no_way_to_claim_gets_past_a_concurrency(engine, clock, way):
    await engine.configure("mail", concurrency=3)
    await fill(engine, "mail", n=12)
    clock.advance(1)
    claim = ways(engine)[way]
    for _ in range(3):  # the third time a set of queues is kept
        held = []
        for _ in range(6):
            held += await claim()
        assert len(held) == 3
        assert (await engine.queue("mail").stats()).leased == 3
        await held[0].complete()
        await held[1].nack()
        await held[2].release()
        clock.advance(3600)


@pytest.mark.parametrize("way", NAMES)
async def test_other_queues_go_on_beside_one_at_its_limit(engine, way):
    await engine.configure("mail", concurrency=1)
    await fill(engine, "mail", "other", n=4)
    claim = ways(engine)[way]
    held = []
    for _ in range(8):
        held += await claim()
    found = [lease.queue for lease in held]
    assert found.count("mail") == 1
    assert found.count("other") == (4 if way.startswith("several") else 0)


async def test_tenants_share_the_limit_of_their_queue(engine):
    await engine.configure("mail", concurrency=4)
    for tenant in ("a", "b", "c"):
        await fill(engine, "mail", tenant=tenant)
    every = engine.queue("mail", tenant=ALL_TENANTS)
    leases = await every.claim(limit=8)
    assert sorted(lease.tenant for lease in leases) == ["a", "a", "b", "c"]
    assert await engine.queue("mail", tenant="b").claim(limit=8) == []
    await leases[0].complete()
    assert len(await engine.queue("mail", tenant="c").claim(limit=8)) == 1


async def test_a_lease_that_ends_wakes_who_waits(engine, clock):
    await engine.configure("mail", concurrency=2)
    await fill(engine, "mail", n=6)
    mail = engine.queue("mail", lease=10)
    one, two = await mail.claim(limit=2)
    calls = [waiting(mail.claim(wait=100)) for _ in range(3)]
    calls.append(waiting(engine.claim(["mail", "other"], wait=100)))
    every = engine.queue("mail", tenant=ALL_TENANTS, lease=10)
    calls.append(waiting(every.claim(wait=100)))
    await turns()
    assert not any(call.done() for call in calls)
    await one.complete()
    (three,) = await calls[0]
    await turns()
    assert not any(call.done() for call in calls[1:])
    await engine.cancel(two.task_id)
    (four,) = await calls[1]
    await three.nack(delay=1000)
    (five,) = await calls[2]
    await four.bury("no")
    (six,) = await calls[3]
    assert not calls[4].done()
    clock.advance(10)  # five is reaped
    (seven,) = await calls[4]
    assert seven.task_id not in (four.task_id, six.task_id)
    assert not five._is_live if hasattr(five, "_is_live") else not five.is_live


async def test_a_waiter_of_each_tenant_is_served_as_leases_end(engine):
    await engine.configure("mail", concurrency=1)
    tenants = [f"t{n}" for n in range(6)]
    for tenant in tenants:
        await fill(engine, "mail", n=2, tenant=tenant)
    held = await engine.queue("mail", tenant=ALL_TENANTS).claim()
    calls = {t: waiting(engine.queue("mail", tenant=t).claim(wait=100)) for t in tenants}
    await turns()
    for _ in tenants:
        assert not [t for t, call in calls.items() if call.done()]
        await held[0].complete()
        await turns()
        (done,) = [t for t, call in calls.items() if call.done()]
        held = await calls.pop(done)
    assert not calls


async def test_who_skips_tenants_is_served_by_another(engine):
    await engine.configure("mail", concurrency=1)
    for tenant in ("a", "b", "c"):
        await fill(engine, "mail", n=3, tenant=tenant)
    every = engine.queue("mail", tenant=ALL_TENANTS)
    (lease,) = await every.claim()
    call = waiting(every.claim(wait=100, skip_tenants=["a", "b"]))
    await turns()
    await lease.complete()
    assert [one.tenant for one in await call] == ["c"]


async def test_many_waiters_are_served_when_a_limit_is_raised_or_taken_back(engine):
    await engine.configure("mail", concurrency=1)
    for n in range(6):
        await fill(engine, "mail", n=1, tenant=f"t{n}")
    every = engine.queue("mail", tenant=ALL_TENANTS)
    calls = [waiting(every.claim(wait=100)) for _ in range(6)]
    await turns()
    assert sum(call.done() for call in calls) == 1
    await engine.configure("mail", concurrency=3)
    await turns()
    assert sum(call.done() for call in calls) == 3
    await engine.configure("mail", concurrency=None)
    await turns()
    assert all(call.done() for call in calls)


async def test_leases_that_live_count_when_a_limit_is_set(engine):
    await fill(engine, "mail")
    held = await engine.queue("mail").claim(limit=5)
    await engine.configure("mail", concurrency=4)
    assert await engine.queue("mail").claim() == []
    await held[0].complete()
    assert await engine.queue("mail").claim() == []
    await held[1].complete()
    assert len(await engine.queue("mail").claim(limit=8)) == 1


async def test_a_task_that_has_expired_takes_no_place(engine, clock):
    await engine.configure("mail", concurrency=1)
    mail = engine.queue("mail")
    for _ in range(4):
        await mail.enqueue(b"old", ttl=5)
    last = await mail.enqueue(b"new")
    state = engine._state
    clock._wall_us += 10_000_000  # its reaper has not looked yet
    (lease,) = await mail.claim(limit=8)
    assert lease.task_id == last.id
    assert state.queue_limits.by_queue[b"mail"].live == 1


async def test_a_pause_and_a_limit_do_not_undo_each_other(engine):
    await engine.configure("mail", concurrency=1)
    await fill(engine, "mail")
    mail = engine.queue("mail", tenant=ALL_TENANTS)
    (lease,) = await mail.claim()
    await mail.pause()
    await lease.complete()
    assert await mail.claim() == []
    await mail.resume()
    (lease,) = await mail.claim()
    await mail.pause()
    await mail.resume()
    assert await mail.claim() == []
    await lease.complete()
    assert len(await mail.claim()) == 1


async def test_a_claim_that_is_cancelled_gives_its_place_back(engine):
    await engine.configure("mail", concurrency=1)
    await fill(engine, "mail")
    call = waiting(engine.queue("mail").claim(wait=100))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(await engine.queue("mail").claim(limit=8)) == 1


# --- rate ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", NAMES)
async def test_no_way_to_claim_gets_past_a_rate(engine, clock, way):
    await engine.configure("mail", rate="3/10s")
    await fill(engine, "mail", n=40)
    claim = ways(engine)[way]
    starts = []
    for _ in range(25):
        for _ in range(5):
            for lease in await claim():
                starts.append(clock.mono())
                await lease.release()  # what is released is not given back
        clock.advance(1)
    assert len(starts) == 9
    for first, last in zip(starts, starts[3:], strict=False):
        assert last - first >= 10


@pytest.mark.parametrize("way", NAMES)
async def test_a_window_opens_by_itself_whichever_way_it_was_filled(engine, clock, way):
    await engine.configure("mail", rate="3/10s")
    await fill(engine, "mail", n=12)
    clock.advance(1)
    claim = ways(engine)[way]
    for _ in range(3):
        got = 0
        for _ in range(4):
            got += len(await claim())
        assert got == 3
        clock.advance(9.999)
        assert await claim() == []
        clock.advance(0.001)


async def test_a_smooth_rate_has_no_bursts_and_a_clock_set_back_changes_nothing(engine, clock):
    await engine.configure("mail", rate="5/s smooth")
    assert (await engine.settings("mail")).rate == "1/200ms"
    await fill(engine, "mail", n=40)
    starts = []
    for _ in range(300):
        starts += [clock.mono() for _ in await engine.queue("mail").claim(limit=8)]
        clock.advance(0.01)
        if len(starts) == 7:
            clock.step_wall(-3600)
    assert len(starts) == 15
    spans = [last - first for first, last in itertools.pairwise(starts)]
    assert min(spans) > 0.1999


async def test_who_waits_is_served_when_the_window_opens(engine, clock):
    await engine.configure("mail", rate="2/10s")
    await fill(engine, "mail")
    mail = engine.queue("mail")
    calls = [waiting(mail.claim(wait=100)) for _ in range(5)]
    await turns()
    assert [call.done() for call in calls] == [True, True, False, False, False]
    clock.advance(9.999)
    await turns()
    assert [call.done() for call in calls] == [True, True, False, False, False]
    clock.advance(0.001)
    await turns()
    assert [call.done() for call in calls] == [True, True, True, True, False]
    clock.advance(50)
    await calls[4]


async def test_a_window_that_opens_serves_before_a_wait_is_over(engine, clock):
    await engine.configure("mail", rate="1/s")
    await fill(engine, "mail", n=3)
    mail = engine.queue("mail")
    await mail.claim()
    call = waiting(mail.claim(wait=1.5))
    await turns()
    clock.advance(5)
    assert len(await call) == 1


async def test_nothing_runs_while_the_window_is_shut(engine, clock):
    await engine.configure("mail", rate="1/10s")
    await fill(engine, "mail")
    mail = engine.queue("mail")
    await mail.claim()
    call = waiting(mail.claim(wait=100))
    await turns()
    before = sum(shard.commits for shard in (await engine.stats()).shards)
    for _ in range(9):
        clock.advance(1)
        await turns()
    assert sum(shard.commits for shard in (await engine.stats()).shards) == before
    clock.advance(1)
    assert len(await call) == 1


async def test_rate_and_concurrency_hold_together(engine, clock):
    await engine.configure("mail", rate="5/10s", concurrency=2)
    await fill(engine, "mail", n=20)
    mail = engine.queue("mail", lease=KEEPS)
    got = 0
    for _ in range(5):
        leases = await mail.claim(limit=8)
        assert len(leases) <= 2
        got += len(leases)
        for lease in leases:
            await lease.complete()
    assert got == 5
    clock.advance(10)
    assert len(await mail.claim(limit=8)) == 2


async def test_a_rate_is_changed_and_what_has_started_counts(engine, clock):
    await engine.configure("mail", rate="5/10s")
    await fill(engine, "mail", n=20)
    mail = engine.queue("mail")
    assert len(await mail.claim(limit=8)) == 5
    await engine.configure("mail", rate="7/10s")
    assert len(await mail.claim(limit=8)) == 2
    await engine.configure("mail", rate="2/10s")
    clock.advance(9.9)
    assert await mail.claim() == []
    clock.advance(0.1)
    assert len(await mail.claim(limit=8)) == 2
    await engine.configure("mail", rate=None)
    assert len(await mail.claim(limit=8)) == 8


# --- restarts -----------------------------------------------------------------------------------


@pytest.fixture
def opening(tmp_path, clock):
    return lambda: lodeq.open(tmp_path / "s", shards=2, clock=clock, block_cache_bytes=8 << 20)


async def killed(engine, tmp_path):
    """Leave what the death of the process would: the folder as it is now."""
    await engine.fsync()
    copy_live(tmp_path / "s", tmp_path / "image", symlinks=True)
    await engine.close()
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "image").chmod(0o700)
    (tmp_path / "image").rename(tmp_path / "s")


async def test_after_a_close_what_has_started_is_known(opening, clock, anyio_backend):
    async with opening() as engine:
        await engine.configure("mail", rate="3/10s")
        await fill(engine, "mail", n=20)
        mail = engine.queue("mail")
        await (await mail.claim())[0].complete()
        clock.advance(4)
        await (await mail.claim())[0].complete()
    async with opening() as engine:
        mail = engine.queue("mail")
        assert len(await mail.claim(limit=8)) == 1
        clock.advance(5.9)
        assert await mail.claim(limit=8) == []
        clock.advance(0.1)
        assert len(await mail.claim(limit=8)) == 1
        clock.advance(4)
        assert len(await mail.claim(limit=8)) == 2
        assert (await engine.settings("mail")).by == {"rate": "operator"}


async def test_what_a_close_has_left_holds_for_the_next_process_alone(
    opening, clock, anyio_backend, tmp_path
):
    async with opening() as engine:
        await engine.configure("mail", rate="3/10s")
        await fill(engine, "mail", n=20)
    engine = await opening()
    assert len(await engine.queue("mail").claim(limit=8)) == 3
    await killed(engine, tmp_path)
    async with opening() as engine:
        clock.advance(9.9)
        assert await engine.queue("mail").claim(limit=8) == []
        clock.advance(0.1)
        assert len(await engine.queue("mail").claim(limit=8)) == 3


async def test_after_a_kill_the_window_counts_as_full(opening, clock, anyio_backend, tmp_path):
    engine = await opening()
    await engine.configure("mail", rate="3/10s")
    await fill(engine, "mail", n=20)
    await killed(engine, tmp_path)
    async with opening() as engine:
        mail = engine.queue("mail")
        clock.advance(9.9)
        assert await mail.claim() == []
        clock.advance(0.1)
        assert len(await mail.claim(limit=8)) == 3


async def test_starts_that_leases_know_count_when_they_were(
    opening, clock, anyio_backend, tmp_path
):
    engine = await opening()
    await engine.configure("mail", rate="3/10s", concurrency=4)
    await fill(engine, "mail", n=20)
    mail = engine.queue("mail", lease=KEEPS)
    for _ in range(3):
        assert len(await mail.claim(exported=True)) == 1
        clock.advance(2)
    await killed(engine, tmp_path)
    async with opening() as engine:
        mail = engine.queue("mail")
        clock.advance(3.9)
        assert await mail.claim() == []
        clock.advance(0.1)
        assert len(await mail.claim(limit=8)) == 1  # four are leased: three of them exported
        clock.advance(10)
        assert await mail.claim(limit=8) == []


# --- windows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_no_window_has_more_starts_than_the_rate(engine, clock, seed):
    rng = random.Random(seed)
    n, period = rng.randrange(1, 6), rng.choice((1, 2, 7))
    await engine.configure("mail", rate=f"{n}/{period}s", concurrency=rng.choice((2, 5, 50)))
    await fill(engine, "mail", "other", n=40)
    starts, held = [], []
    claims = list(ways(engine).values())
    for _ in range(200):
        act = rng.random()
        if act < 0.5:
            got = [one for one in await rng.choice(claims)() if one.queue == "mail"]
            starts += [clock.mono()] * len(got)
            held += got
        elif act < 0.8 and held:
            lease = held.pop(rng.randrange(len(held)))
            with contextlib.suppress(lodeq.LeaseLostError):  # of a claim with "other": 30 s
                await rng.choice((lease.complete, lease.nack, lease.release, lease.bury))()
        else:
            clock.advance(rng.choice((0.001, 0.3, 1, 2)))
    for first, last in zip(starts, starts[n:], strict=False):
        assert last - first >= period - 1e-9
    # Nothing is lost, either: a window that is open, with a place and a task, gives one.
    for lease in held:
        with contextlib.suppress(lodeq.LeaseLostError):
            await lease.complete()
    clock.advance(1000)
    await fill(engine, "mail", n=1)
    assert await engine.queue("mail").claim()
