"""Long polls: first come, first served, and no wake is lost."""

import asyncio
from typing import Any

import pytest
from support_loop import on_loop, settle

from lodeq import ALL_TENANTS, Lease, Queue, RecordCorruptError
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing


def poll(queue: Queue, **options: Any) -> "asyncio.Task[list[Lease]]":
    return asyncio.ensure_future(queue.claim(wait=60, **options))


@on_loop
async def test_those_who_wait_are_served_in_the_order_they_came() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        mail = engine.queue("mail")
        every = engine.queue("mail", tenant=ALL_TENANTS)
        polls = []
        for queue in (mail, every, mail):
            polls.append(poll(queue))
            await settle()
        for n in range(3):
            await mail.enqueue(b"%d" % n)
        assert [(await one)[0].payload for one in polls] == [b"0", b"1", b"2"]


@on_loop
async def test_the_enqueue_that_feeds_a_poll_shares_its_commit() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        mail = engine.queue("mail")
        waiting = poll(mail)
        await settle()
        before = (await engine.stats()).shards[0].commits
        await mail.enqueue(b"")
        await waiting
        assert (await engine.stats()).shards[0].commits == before + 1


@on_loop
async def test_a_cancelled_poll_gives_its_task_to_the_next() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        mail = engine.queue("mail")
        gone, waiting = poll(mail), poll(mail)
        await settle()
        enqueued = asyncio.ensure_future(mail.enqueue(b"x"))
        await asyncio.sleep(0)
        gone.cancel()
        await enqueued
        (lease,) = await waiting
        assert (lease.payload, lease.attempt) == (b"x", 1)


@on_loop
async def test_a_poll_times_out_empty_and_leaves_nothing_behind() -> None:
    clock = ManualClock()
    async with open_testing(clock=clock) as engine:
        waiting = poll(engine.queue("mail"))
        await settle()
        clock.advance(61)
        assert await waiting == []
        assert not engine._core.waiters.by_lane
        assert not engine._core.topics, "asking for a queue does not make it"


@pytest.mark.interpreted
@on_loop
async def test_a_poll_hears_why_what_is_ready_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_testing(clock=ManualClock()) as engine:
        mail = engine.queue("mail")
        waiting = poll(mail)
        await settle()

        def broken(*_: object) -> None:
            raise RecordCorruptError("damaged")

        monkeypatch.setattr("lodeq.repository.waiters.serve_waiter", broken)
        await mail.enqueue(b"")
        with pytest.raises(RecordCorruptError):
            await waiting
        await mail.enqueue(b"the shard goes on")


@on_loop
async def test_one_who_waits_for_long_does_not_keep_those_who_were_served() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        idle = poll(engine.queue("idle"))
        mail = engine.queue("mail")
        await settle()
        for _ in range(100):
            waiting = poll(mail)
            await settle(2)
            await mail.enqueue(b"")
            await (await waiting)[0].complete()
        lines = engine._core.waiters._lines
        assert sum(map(len, lines.values())) == 1
        idle.cancel()
