"""The stream: every lease handed out is live, everything else goes back."""

import asyncio

import pytest
from support_loop import on_loop

from lodeq import NewTask, UsageError
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing


@on_loop
async def test_a_clean_block_completes_an_error_nacks() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        mail = engine.queue("mail")
        good, bad = [(await mail.enqueue(payload)).id for payload in (b"good", b"bad")]
        async with mail.leases(limit=2) as stream:
            async for lease in stream:
                try:
                    async with lease:
                        if lease.payload == b"bad":
                            raise ValueError("no")
                except ValueError:
                    break
        first, second = await engine.result(good), await engine.get(bad)
        assert first is not None
        assert first.status == "completed"
        assert second is not None
        assert (second.state, second.attempts, second.reason) == (
            "delayed",
            1,
            "ValueError('no')",
        )


@on_loop
async def test_what_was_not_started_goes_back_uncounted() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        mail = engine.queue("mail")
        for _ in range(3):
            await mail.enqueue(b"")
        async with mail.leases(limit=3) as stream:
            await (await anext(stream)).complete()
            assert (await mail.stats()).leased == 2
        assert [task.attempts for task in await mail.peek()] == [0, 0]
        assert (await mail.stats()).leased == 0


@on_loop
async def test_leases_are_kept_alive_while_they_wait_their_turn() -> None:
    clock = ManualClock()
    async with open_testing(clock=clock) as engine:
        mail = engine.queue("mail", lease=30)
        for _ in range(2):
            await mail.enqueue(b"")
        async with mail.leases(limit=2) as stream:
            first = await anext(stream)
            clock.advance(300)
            await first.complete()
            second = await anext(stream)
            assert second.attempt == 1
            await second.complete()
        assert (await engine.stats()).reaped_total == 0


@on_loop
async def test_leases_reaped_in_the_line_are_passed_over() -> None:
    """However many there are."""
    clock = ManualClock()
    async with open_testing(clock=clock) as engine:
        mail = engine.queue("mail", lease=30, max_attempts=1)
        for _ in range(1500):
            await mail.enqueue(b"old")
        async with mail.leases(limit=1500, keepalive=False) as stream:
            await (await anext(stream)).complete()
            clock.advance(31)
            await mail.enqueue(b"new")
            lease = await anext(stream)
            assert lease.payload == b"new"
            assert lease.is_live


@on_loop
async def test_it_is_iterated_inside_its_block() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        with pytest.raises(UsageError, match="async with"):
            await anext(engine.queue("mail").leases())


@on_loop
async def test_what_arrives_after_the_block_was_left_goes_back() -> None:
    clock = ManualClock()
    async with open_testing(clock=clock) as engine:
        mail = engine.queue("mail", lease=30)
        async with mail.leases(limit=2, wait=60) as stream:
            late = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
        await engine.enqueue_many([NewTask(b"", queue="mail")] * 2)
        with pytest.raises(UsageError, match="async with"):
            await late
        stats = await mail.stats()
        assert (stats.ready, stats.leased) == (2, 0)
