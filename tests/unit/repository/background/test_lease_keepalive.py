"""A lease that is held here is not reaped here, however long the loop was blocked."""

import pytest
from support_behaviour import StillClock, in_memory, settle, sound
from support_loop import on_loop

from lodeq.repository.background.lease_keepalive import LeaseKeepalive


def block(clock: StillClock, seconds: float) -> None:
    """Time goes by and no timer runs: what a handler does that computes."""
    clock._mono += seconds
    clock._wall_us += round(seconds * 1e6)


@on_loop
async def test_a_loop_that_is_held_longer_than_a_lease_is_logged_once(caplog) -> None:
    clock = StillClock()
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=30.0)
        keeper = LeaseKeepalive(engine._state, look_s=1.0)
        await queue.enqueue(b"")
        (lease,) = await queue.claim()
        keeper.hold([lease])
        for _ in range(100):
            await clock.advance(1)
        block(clock, 29.0)
        await clock.advance(0.3)
        assert not held_records(caplog)
        block(clock, 40.0)
        await settle()
        await clock.advance(0.1)
        await clock.advance(1)
        (record,) = held_records(caplog)
        assert "the event loop was held for 40" in record.getMessage()
        assert "a lease of 30 s" in record.getMessage()
        assert record.levelname == "WARNING"
        assert lease.is_live
        await lease.complete()


@on_loop
async def test_a_short_lease_beside_a_long_one_is_no_held_loop(caplog) -> None:
    clock = StillClock()
    async with in_memory(clock) as engine:
        keeper = LeaseKeepalive(engine._state)
        leases = []
        for lease_s in (30.0, 0.5):
            queue = engine.queue(f"mail-{lease_s}", lease=lease_s)
            await queue.enqueue(b"")
            leases += await queue.claim()
            keeper.hold(leases[-1:])
            if lease_s == 30.0:
                for _ in range(18):
                    await clock.advance(0.5)
        await clock.advance(0.4)
        assert not held_records(caplog)
        for lease in leases:
            await lease.complete()


def held_records(caplog):
    return [one for one in caplog.records if getattr(one, "event", "") == "loop_late"]


@pytest.mark.parametrize("lease_s", [0.5, 1.0, 1.5, 2.9, 3.0, 10.0, 30.0])
@pytest.mark.parametrize("blocked", [1.01, 1.5, 3.0, 20.0])
@on_loop
async def test_a_blocked_loop_reaps_nothing_that_is_held(lease_s: float, blocked: float) -> None:
    """Short leases are the hard ones: the reaper finds itself too little late to skip a pass."""
    for before in (0.0, 0.2, 0.34, 0.9):
        clock = StillClock()
        async with in_memory(clock) as engine:
            queue = engine.queue("mail", lease=lease_s)
            keeper = LeaseKeepalive(engine._state)
            await queue.enqueue(b"")
            (lease,) = await queue.claim()
            keeper.hold([lease])
            for _ in range(3):
                clock.jump(lease_s * before)  # the reaper may be awake, but has not had its turn
                block(clock, lease_s * blocked)
                await settle()
                await clock.advance(0.3)
            assert lease.is_live
            assert (await engine.stats()).reaped_total == 0
            await lease.complete()
            await sound(engine)


@on_loop
async def test_what_is_dropped_or_not_held_is_reaped() -> None:
    clock = StillClock()
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=10)
        keeper = LeaseKeepalive(engine._state)
        for _ in range(3):
            await queue.enqueue(b"")
        held, dropped, other = await queue.claim(limit=3)
        keeper.hold([held, dropped])
        keeper.drop(dropped)
        for _ in range(12):
            await clock.advance(1)
        assert [lease.is_live for lease in (held, dropped, other)] == [True, False, False]
        keeper.close()
        for _ in range(12):
            await clock.advance(1)
        assert not held.is_live
        assert engine._state.keepalives == {}


@on_loop
async def test_it_tells_of_a_lease_that_was_lost() -> None:
    clock = StillClock()
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=30)
        lost = []
        keeper = LeaseKeepalive(engine._state, on_lost=lost.append, look_s=1)
        receipt = await queue.enqueue(b"")
        (lease,) = await queue.claim()
        keeper.hold([lease])
        await engine.cancel(receipt.id)
        assert lost == []
        await clock.advance(1)
        assert lost == [lease]
        assert engine._state.keepalives == {}
