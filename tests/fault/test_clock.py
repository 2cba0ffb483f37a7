"""The wall clock is stepped back a day, or forward a year: while running, and across a restart.

Leases follow the monotonic clock and do not notice. What follows the wall clock (due, TTL,
retention) moves with it, as docs/guarantees.md says, and no more than that.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support_behaviour import settle, sound

import lodeq
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio
DAY_S, YEAR_S = 86_400.0, 366 * 86_400.0
STEPS = pytest.mark.parametrize("step_s", [-DAY_S, YEAR_S], ids=["back a day", "forward a year"])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def names(queue: lodeq.Queue) -> list[bytes]:
    leases = await queue.claim(limit=64)
    for lease in leases:
        await lease.release()
    return [lease.payload for lease in leases]


@STEPS
@pytest.mark.parametrize("shards", [1, 4])
async def test_leases_do_not_notice(tmp_path: Path, step_s: float, shards: int) -> None:
    clock = ManualClock()
    async with lodeq.open(tmp_path / "store", shards=shards, clock=clock) as engine:
        queue = engine.queue("q", lease=30.0, backoff=lodeq.Backoff("fixed", base=0.0))
        for n in range(8):
            await queue.enqueue(b"%d" % n, ttl=60.0 if n % 2 else None)
        leases = await queue.claim(limit=8)
        clock.advance(10)
        clock.step_wall(step_s)
        clock.advance(19)
        await settle()
        stats = await engine.stats()
        assert (stats.leased, stats.ready, stats.expired_total) == (8, 0, 0)  # none ends early,
        assert stats.oldest_lease_age == (0.0 if step_s < 0 else 29 + step_s)
        await leases[0].heartbeat()
        await leases[1].complete(b"")
        clock.advance(2)
        await settle()
        stats = await engine.stats()
        assert stats.leased == 1  # and all the others end when they should
        expired = 3 if step_s > 0 else 0  # a TTL follows the wall clock, but not under a lease
        assert (stats.ready + stats.delayed, stats.expired_total) == (6 - expired, expired)
        await sound(engine)


@STEPS
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "across a restart"])
async def test_nothing_is_lost_and_promotion_goes_on(
    tmp_path: Path, step_s: float, restarts: bool
) -> None:
    clock = ManualClock()
    path = tmp_path / "store"
    engine = await lodeq.open(path, clock=clock)
    queue = engine.queue("q")
    await queue.enqueue(b"before", dedup_key="k")
    await queue.enqueue(b"due", delay=3600.0)
    await engine.queue("dead").enqueue(b"dead")
    (lease,) = await engine.queue("dead").claim()
    await lease.bury("bad")
    if restarts:
        await engine.close()
    clock.step_wall(step_s)
    if restarts:
        engine = await lodeq.open(path, clock=clock)
        queue = engine.queue("q")
    clock.advance(1)  # it looks again every second
    await settle()
    if step_s > 0:
        assert sorted(await names(queue)) == [b"before", b"due"]
        assert (await engine.stats()).dead == 0  # its week is over
    else:
        assert await names(queue) == [b"before"]
        assert (await engine.stats()).dead == 1
        assert (await queue.enqueue(b"again", dedup_key="k")).duplicate
    await queue.enqueue(b"after")
    clock.advance(3600 + max(0.0, -step_s))  # due when the clock says so again
    await settle()
    assert sorted(await names(queue)) == [b"after", b"before", b"due"]
    await sound(engine)
    await engine.close()
    async with lodeq.open(path, clock=clock) as again:
        assert not (await again.stats()).recoveries
        assert sorted(await names(again.queue("q"))) == [b"after", b"before", b"due"]


@STEPS
async def test_order_is_that_of_enqueueing(tmp_path: Path, step_s: float) -> None:
    clock = ManualClock()
    for life in range(3):
        async with lodeq.open(tmp_path / "store", clock=clock) as engine:
            queue = engine.queue("q")
            await queue.enqueue(b"%d" % (2 * life))
            clock.step_wall(step_s)
            await queue.enqueue(b"%d" % (2 * life + 1))
            assert await names(queue) == [b"%d" % n for n in range(2 * life + 2)]
