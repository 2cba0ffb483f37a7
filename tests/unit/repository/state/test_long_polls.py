"""Long polls: first come, first served, and no wake is lost."""

import asyncio
import gc
from collections import OrderedDict
from typing import Any

import anyio
import pytest
from support_loop import on_loop, settle

from lodeq import ALL_TENANTS, Lease, NewTask, Queue, RecordCorruptError
from lodeq.repository.state.long_polls import LINES_MAX, SERVED_MAX, STALE_MIN, LongPoll
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing


def poll(queue: Queue, **options: Any) -> "asyncio.Task[list[Lease]]":
    return asyncio.ensure_future(queue.claim(**{"wait": 60, **options}))


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
        assert not engine._state.waiters.by_tenant_queue
        assert not engine._state.queue_states, "asking for a queue does not make it"


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

        monkeypatch.setattr(engine._state.waiters, "serve_one", broken)
        await mail.enqueue(b"")
        with pytest.raises(RecordCorruptError):
            await waiting
        await mail.enqueue(b"the shard goes on")


@pytest.mark.slow
@on_loop
async def test_who_was_served_is_referred_to_by_nothing() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        idle = poll(engine.queue("idle"))
        mail, every = engine.queue("mail"), engine.queue("mail", tenant=ALL_TENANTS)
        odd = [poll(engine.queue("odd"), wait=61 + n) for n in range(150)]
        await settle()
        for n in range(60):
            waiting = asyncio.ensure_future((every if n % 2 else mail).claim(wait=60 + n % 90))
            await settle(2)
            await mail.enqueue(b"")
            await (await waiting)[0].complete()
        for gone in odd:
            gone.cancel()
        await settle()
        del waiting, odd, gone
        gc.collect()
        waiters = engine._state.waiters
        known = {w.number for line in waiters.by_tenant_queue.values() for w in line}
        assert known == {1}
        assert [w for w in gc.get_objects() if isinstance(w, LongPoll) and w.number != 1] == []
        assert len(waiters._lines) + len(waiters._heap) < 1 + 2 * STALE_MIN
        assert not waiters._by_skipped
        assert not waiters._odd
        idle.cancel()


# -- a herd ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_herd_of_polls_is_served_in_order_each_woken_once(backend: str) -> None:
    """Waiters who came first get what became ready first, whatever their number."""
    count, woken = 250, []

    async def main() -> None:
        async with open_testing(clock=ManualClock(), submit_queue_max=16) as engine:
            mail, waiters = engine.queue("mail"), engine._state.waiters
            got: dict[int, Any] = {}

            async def one(n: int) -> None:
                (lease,) = await mail.claim(wait=60)
                woken.append(n)
                got[n] = lease.payload

            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    for n in range(count):
                        before = waiters._n
                        group.start_soon(one, n)
                        while waiters._n == before:
                            await anyio.lowlevel.checkpoint()
                    kinds = {type(line) for line in waiters.by_tenant_queue.values()}
                    assert kinds == {OrderedDict}, "a plain dict's first entry is not O(1)"
                    for n in range(count):
                        group.start_soon(mail.enqueue, n)
            assert sorted(woken) == list(range(count))
            if backend == "asyncio":  # trio shuffles the enqueues of a turn
                assert got == {n: n for n in range(count)}
            assert not waiters.by_tenant_queue
            assert not waiters._lines

    anyio.run(main, backend=backend)


@on_loop
async def test_a_turn_serves_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lodeq.repository.state.long_polls.SERVED_MAX", 4)
    async with open_testing(clock=ManualClock()) as engine:
        mail, other = engine.queue("mail"), engine.queue("other")
        polls = [poll(mail) for _ in range(10)] + [poll(other) for _ in range(3)]
        await settle()
        tasks = [NewTask(n) for n in range(10)]
        tasks += [NewTask(n, queue="other") for n in range(3)]
        serving = asyncio.ensure_future(mail.enqueue_many(tasks))
        before = engine._state.totals.claimed
        most = 0
        while not all(one.done() for one in polls):
            await asyncio.sleep(0)
            most = max(most, engine._state.totals.claimed - before)
            before = engine._state.totals.claimed
        assert most == 4
        await serving
        assert [(await one)[0].payload for one in polls] == [*range(10), *range(3)]


@pytest.mark.interpreted
@on_loop
async def test_those_who_pass_a_tenant_over_are_not_asked_one_by_one() -> None:
    class Skipped(frozenset[bytes]):
        asked = 0

        def __contains__(self, tenant: object) -> bool:
            Skipped.asked += 1
            return super().__contains__(tenant)

    async with open_testing(clock=ManualClock()) as engine:
        every = engine.queue("mail", tenant=ALL_TENANTS)
        polls = [poll(every, skip_tenants=["acme"]) for _ in range(300)]
        await settle()
        waiters = engine._state.waiters
        ((key, groups),) = waiters._by_skipped.items()
        ((skipped, group),) = groups.items()
        waiters._by_skipped[key] = {(Skipped(skipped[0]), skipped[1]): group}
        for n in range(10):
            await engine.queue("mail", tenant="acme").enqueue(n)
        assert 0 < Skipped.asked <= 20
        await engine.queue("mail", tenant="umbrella").enqueue(b"for the first")
        assert (await polls[0])[0].payload == b"for the first"
        for one in polls[1:]:
            one.cancel()


@on_loop
async def test_polls_of_many_lengths_time_out_in_order_and_none_is_looked_at_twice() -> None:
    clock = ManualClock()
    async with open_testing(clock=clock) as engine:
        mail, waiters = engine.queue("mail"), engine._state.waiters
        over: list[int] = []

        async def one(n: int) -> None:
            assert await mail.claim(wait=10 + n / 100) == []
            over.append(n)

        polls = [asyncio.ensure_future(one(n)) for n in range(300)]
        await settle()
        assert len(waiters._lines) == LINES_MAX
        polls[170].cancel()
        clock.advance(11.0)
        await settle()
        assert over == list(range(101))
        assert len(waiters._lines) == 0
        assert len(waiters._odd) == 300 - 101 - 1
        clock.advance(2.0)
        await settle()
        assert sorted(over) == [n for n in range(300) if n != 170]
        assert not waiters.by_tenant_queue


@on_loop
async def test_one_turn_serves_so_many_tasks_and_so_many_bytes() -> None:
    """Not so many callers: each may take thousands of tasks, and megabytes."""
    async with open_testing(clock=ManualClock()) as engine:
        state = engine._state
        for limit, n_bytes, most in ((64, 1, SERVED_MAX + 64), (1, 900_000, 5)):
            queue = engine.queue(f"of-{limit}")
            await queue.pause()
            for _ in range(3 if limit > 1 else 1):
                await queue.enqueue_many([NewTask(bytes(n_bytes))] * (600 if limit > 1 else 12))
            polls = [poll(queue, limit=limit) for _ in range(40 if limit > 1 else 12)]
            await settle()
            before = len(state.leases)
            state.set_pause(f"of-{limit}".encode(), b"", is_paused=False)
            state.waiters.serve()
            assert 0 < len(state.leases) - before <= most
            await settle()
            total = sum([len(await one) for one in polls if one.done()])
            assert total == (1800 if limit > 1 else 12)  # the others were served in turns after it
            for one in polls:
                one.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
