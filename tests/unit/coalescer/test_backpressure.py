"""Back-pressure: a place in the line that is not taken goes to the next one."""

import asyncio
from functools import partial

import anyio
import pytest

import lodeq.testing
from lodeq.coalescer import backpressure
from lodeq.coalescer.backpressure import SubmitLine
from lodeq.coalescer.write_pause import writes_paused
from lodeq.engine.runtime.ids import slot_of


def run(main, **options):
    async def inside():
        async with lodeq.testing.open(**options) as engine:
            await asyncio.wait_for(main(engine, engine.queue("mail")), 10)

    asyncio.run(inside())


async def turns(n=3):
    for _ in range(n):
        await asyncio.sleep(0)


def test_cancelled_callers_do_not_use_up_the_places():
    async def main(engine, queue):
        first = asyncio.create_task(queue.enqueue(0))
        line = [asyncio.create_task(queue.enqueue(n)) for n in range(1, 6)]
        await asyncio.sleep(0)
        for task in line[:4]:
            task.cancel()
        await first
        await line[4]
        assert [lease.payload for lease in await queue.claim(limit=9)] == [0, 5]

    run(main, submit_queue_max=1)


@pytest.mark.parametrize("wait_turns", range(4))
def test_a_caller_cancelled_when_its_turn_came_passes_it_on(wait_turns):
    async def main(engine, queue):
        line = [asyncio.create_task(queue.enqueue(n)) for n in range(4)]
        await turns(wait_turns)
        line[1].cancel()
        line[2].cancel()
        await line[0]
        await line[3]
        await queue.enqueue("later")

    run(main, submit_queue_max=1)


def test_a_call_that_fails_when_its_turn_came_passes_it_on():
    async def main(engine, queue):
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
        calls = [lease.nack(), lease.nack(), lease.nack(), queue.enqueue(b"y")]
        lost = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(x) for x in lost[:3]] == [type(None), *[lodeq.LeaseLostError] * 2]
        await queue.enqueue("later")

    run(main, submit_queue_max=1)


def test_callers_in_line_learn_that_the_engine_closes():
    async def main(engine, queue):
        line = [asyncio.create_task(queue.enqueue(n)) for n in range(9)]
        await asyncio.sleep(0)
        await engine.close()
        found = await asyncio.gather(*line, return_exceptions=True)
        assert {type(x) for x in found[1:]} == {lodeq.ClosedError}

    run(main, submit_queue_max=1)


def test_callers_who_give_up_leave_the_line():
    async def main():
        engine = await lodeq.testing.open(submit_queue_max=1)
        queue, coalescer = engine.queue("mail"), engine._state.shards[0].coalescer
        coalescer.waiting = 1  # as over a store that refuses writes for an hour
        first, *others = [asyncio.create_task(queue.enqueue(n)) for n in range(9)]
        await turns()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert len(coalescer.submit_line) == 1
        coalescer.waiting = 0
        coalescer._admit()
        await first
        await engine.close()

    asyncio.run(main())


# -- a herd ----------------------------------------------------------------------------


@pytest.fixture
def stands(monkeypatch):
    """How many times somebody stood in a line."""
    counted = [0]
    wait = SubmitLine.wait

    async def counting(self):
        counted[0] += 1
        await wait(self)

    monkeypatch.setattr(SubmitLine, "wait", counting)
    return counted


def herd(count, backend, **options):
    """So many enqueues at once. Returns what was claimed, in order, and the most that waited."""
    most = [0]

    async def main():
        async with lodeq.testing.open(submit_queue_max=16, **options) as engine:
            queue = engine.queue("mail")
            for shard in engine._state.shards:

                def watch(_, coalescer=shard.coalescer):
                    most[0] = max(most[0], coalescer.waiting)

                shard.coalescer.watch = watch
            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    for n in range(count):
                        group.start_soon(queue.enqueue, n)
                claimed = await queue.claim(limit=count)
            for shard in engine._state.shards:
                line = shard.coalescer.submit_line
                assert (len(line), line.queued, line.reserved) == (0, 0, 0)
            return [lease.payload for lease in claimed], most[0]

    return anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_everybody_stands_in_line_once_and_no_more_are_admitted_than_there_is_room_for(
    stands, backend
):
    claimed, most = herd(400, backend)
    assert sorted(claimed) == list(range(400))
    assert stands[0] == 400 - 16
    assert most == 16


def test_a_herd_is_served_in_the_order_it_came():
    claimed, _ = herd(400, "asyncio")
    assert claimed == list(range(400))


def test_a_herd_over_several_shards_stands_in_each_line_at_most_once(stands):
    claimed, most = herd(400, "asyncio", shards=4)
    assert sorted(claimed) == list(range(400))
    assert stands[0] <= 400
    assert most <= 16


@pytest.mark.parametrize("call", ["enqueue", "claim", "complete"])
def test_the_steps_of_a_caller_do_not_grow_with_the_herd(call):
    """Callbacks of the event loop, counted."""

    async def steps(count):
        async with lodeq.testing.open(submit_queue_max=16) as engine:
            queue = engine.queue("mail")
            leases = []
            if call != "enqueue":
                await queue.enqueue_many([lodeq.NewTask(n) for n in range(count)])
            if call == "complete":
                leases = await queue.claim(limit=count)
            calls = {
                "enqueue": [partial(queue.enqueue, b"")] * count,
                "claim": [queue.claim] * count,
                "complete": [lease.complete for lease in leases],
            }[call]
            loop, counted = asyncio.get_running_loop(), [0]
            call_soon = loop.call_soon

            def counting(*args, **kwargs):
                counted[0] += 1
                return call_soon(*args, **kwargs)

            loop.call_soon = counting
            try:
                await asyncio.gather(*(one() for one in calls))
            finally:
                loop.call_soon = call_soon
            return counted[0] / count

    few, many = asyncio.run(steps(100)), asyncio.run(steps(1600))
    assert many < few * 1.1


def test_a_call_over_several_shards_reserves_nothing_while_it_waits():
    """One stalled shard must not use up the room of the others."""

    async def main(engine, queue):
        well, stalled = (shard.coalescer for shard in engine._state.shards)
        keys = [str(n) for n in range(99)]
        here, there = ([k for k in keys if slot_of(k.encode()) >> 11 == i] for i in range(2))
        for key in (*here[:5], *there[:5]):
            await queue.enqueue(key, shard_key=key)
        with writes_paused(stalled):
            tasks = [asyncio.create_task(queue.enqueue(b"", shard_key=k)) for k in there[:2]]
            await turns()
            assert stalled.waiting == 2
            claims = [asyncio.create_task(queue.claim(limit=2)) for _ in range(5)]
            await turns(9)
            assert (len(stalled.submit_line), len(well.submit_line)) == (5, 0)
            assert (well.submit_line.reserved, well.waiting) == (0, 0)
            await asyncio.gather(*(queue.enqueue(b"", shard_key=key) for key in here))
        claimed = await asyncio.gather(*tasks, *claims)
        assert sum(len(leases) for leases in claimed[2:]) == 10

    run(main, submit_queue_max=2, shards=2)


def test_a_large_submission_in_line_is_not_overtaken_by_small_ones():
    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        order = []

        async def put(name, *payloads):
            await queue.enqueue_many([lodeq.NewTask(payload) for payload in payloads])
            order.append(name)

        large = [bytes(190 << 10)] * 8  # nearly a group
        calls = [put(n, b"") for n in range(8)]
        calls.insert(4, put("large", *large))
        calls += [put(n, b"") for n in range(8, 32)]
        await asyncio.gather(*calls)
        assert order == [0, 1, 2, 3, "large", *range(4, 32)]
        assert coalescer.submit_line.queued == 0

    run(main, submit_queue_max=2, clock=lodeq.testing.ManualClock())  # no turn is ever over


def test_a_reservation_of_somebody_cancelled_goes_to_the_next():
    """In every turn of the herd, one of those who were woken and have not run yet is cancelled."""

    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        tasks = [asyncio.create_task(queue.enqueue(n)) for n in range(200)]
        gone, at = set(), 0
        while at < 190:
            await turns(1)
            at = max(at, 200 - len(coalescer.submit_line))
            if coalescer.submit_line.reserved and at not in gone:
                tasks[at - 1].cancel()  # the last that was admitted
                gone.add(at)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = [n for n, x in enumerate(done) if isinstance(x, asyncio.CancelledError)]
        assert len(cancelled) > 10
        leases = await queue.claim(limit=200)
        assert [lease.payload for lease in leases] == [n for n in range(200) if n not in cancelled]
        assert (
            coalescer.submit_line.queued,
            coalescer.submit_line.reserved,
            coalescer.waiting,
        ) == (0, 0, 0)

    run(main, submit_queue_max=4)


def test_the_release_tenant_queue_is_not_held_up_by_a_line():
    """A cancelled claim gives its tasks back although callers stand in line."""

    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        await queue.enqueue("task")
        with writes_paused(coalescer):
            claim = asyncio.create_task(queue.claim())
            await turns()
            line = [asyncio.create_task(queue.enqueue(n)) for n in range(9)]
            await turns()
            claim.cancel()
            await turns()
            assert claim.cancelled()
            assert (coalescer.waiting, len(coalescer.submit_line)) == (
                2,
                9,
            )  # the claim, and its way back
        await asyncio.gather(*line)
        leases = await queue.claim(limit=10)
        assert [lease.payload for lease in leases] == ["task", *range(9)]

    run(main, submit_queue_max=1)


def test_a_poisoned_shard_answers_everybody_in_line():
    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        with writes_paused(coalescer):
            line = [asyncio.create_task(queue.enqueue(n)) for n in range(50)]
            await turns()
            coalescer.fail(OSError("EIO"))
            found = await asyncio.gather(*line, return_exceptions=True)
        assert {type(x) for x in found} == {lodeq.StoragePoisonedError}
        assert (coalescer.submit_line.queued, coalescer.submit_line.reserved) == (0, 0)

    run(main, submit_queue_max=4)


# -- callers who leave their call in the line --------------------------------------------


def payloads_of(leases):
    return [lease.payload for lease in leases]


def is_empty(line):
    return (len(line), line.queued, line.reserved) == (0, 0, 0)


@pytest.mark.parametrize("every", [1, 2, 7])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_calls_and_callers_in_person_are_served_in_the_order_they_came(every, backend):
    """Payloads of bytes stand in line by a call, others in person."""

    async def main():
        async with lodeq.testing.open(submit_queue_max=8) as engine:
            queue, coalescer = engine.queue("mail"), engine._state.shards[0].coalescer
            given = [b"%d" % n if n % every == 0 else n for n in range(200)]
            came, most = [], [0]

            def watch(_):
                most[0] = max(most[0], coalescer.waiting)

            coalescer.watch = watch

            async def put(payload):
                came.append(payload)
                await queue.enqueue(payload)

            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    for payload in given:
                        group.start_soon(put, payload)
            claimed = payloads_of(await queue.claim(limit=200))
            if backend == "asyncio" or every == 1:
                assert claimed == came
            else:  # Trio wakes those who come in person, several at a time, in any order
                assert sorted(map(str, claimed)) == sorted(map(str, came))
            assert sorted(map(str, came)) == sorted(map(str, given))
            assert is_empty(coalescer.submit_line)
            assert most[0] <= 8

    anyio.run(main, backend=backend)


def test_a_caller_in_line_by_a_call_takes_one_step():
    """One future: it goes on when its submission is committed."""

    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        with writes_paused(coalescer):
            first = asyncio.create_task(queue.enqueue(b"first"))
            await turns()
            second = asyncio.create_task(queue.enqueue(b"second"))
            await turns()
            (future,) = coalescer.submit_line.futures
            assert not first.done()
        await turns(1)
        assert not coalescer.submit_line.futures
        assert not future.done()  # submitted, and not committed yet
        assert (await second) is future.result()
        await first

    run(main, submit_queue_max=1)


@pytest.mark.parametrize("call", ["enqueue", "claim", "complete"])
def test_a_call_cancelled_in_line_has_done_nothing(call):
    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        await queue.enqueue(b"task")
        lease = (await queue.claim())[0] if call == "complete" else None
        make = {
            "enqueue": partial(queue.enqueue, b"more"),
            "claim": queue.claim,
            "complete": lease.complete if lease else None,
        }[call]
        with writes_paused(coalescer):
            first = asyncio.create_task(queue.enqueue(b"first"))
            await turns()
            line = [asyncio.create_task(make()) for _ in range(3)]
            last = asyncio.create_task(queue.enqueue(b"last"))
            await turns()
            assert len(coalescer.submit_line) == 4
            for one in line:
                one.cancel()
            await turns()
            assert [one.cancelled() for one in line] == [True] * 3
            assert (len(coalescer.submit_line), coalescer.submit_line.queued) == (1, 1)
        await asyncio.gather(first, last)
        assert is_empty(coalescer.submit_line)
        if lease is not None:
            await lease.complete()
        left = [b"first", b"last"] if call == "complete" else [b"task", b"first", b"last"]
        assert payloads_of(await queue.claim(limit=9)) == left

    run(main, submit_queue_max=1)


def test_a_call_cancelled_in_the_turn_in_which_it_would_be_made_is_passed_over():
    """Its future is done, its task has not run yet."""

    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        with writes_paused(coalescer):
            tasks = [asyncio.create_task(queue.enqueue(b"%d" % n)) for n in range(4)]
            await turns()
        tasks[1].cancel()  # the first is committed, and the line is about to go on
        tasks[2].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(x, asyncio.CancelledError) for x in done] == [False, True, True, False]
        assert is_empty(coalescer.submit_line)
        assert payloads_of(await queue.claim(limit=9)) == [b"0", b"3"]

    run(main, submit_queue_max=1)


@pytest.mark.parametrize("call", ["enqueue", "claim", "complete"])
def test_a_call_cancelled_once_it_was_made_happens_and_a_claim_gives_back(call):
    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        for payload in (b"a", b"b"):
            await queue.enqueue(payload)
        lease = (await queue.claim())[0]
        make = {
            "enqueue": partial(queue.enqueue, b"more"),
            "claim": queue.claim,
            "complete": lease.complete,
        }[call]
        with writes_paused(coalescer):
            first = asyncio.create_task(queue.enqueue(b"first"))
            await turns()
            second = asyncio.create_task(make())
            await turns()
            assert coalescer.submit_line.futures
            coalescer.waiting -= 1  # as if the first were committed
            coalescer._admit()
            await turns()
            assert not coalescer.submit_line.futures
            second.cancel()
            await turns()
            assert second.cancelled()
            coalescer.waiting += 1
        await first
        await turns()
        assert is_empty(coalescer.submit_line)
        found = payloads_of(await queue.claim(limit=9))
        assert found == [b"b", b"first", b"more"] if call == "enqueue" else [b"b", b"first"]
        stats = await engine.stats()
        assert stats.completed_total == (call == "complete")

    run(main, submit_queue_max=1)


def test_claims_in_line_that_find_nothing_are_all_answered():
    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        await queue.enqueue(b"one")
        with writes_paused(coalescer):
            first = asyncio.create_task(queue.enqueue(b"two"))
            await turns()
            claims = [asyncio.create_task(queue.claim()) for _ in range(50)]
            await turns()
            assert len(coalescer.submit_line) == 50
        found = await asyncio.gather(*claims)
        await first
        assert [payloads_of(leases) for leases in found] == [[b"one"], [b"two"], *[[]] * 48]
        assert is_empty(coalescer.submit_line)

    run(main, submit_queue_max=1)


def test_a_turn_makes_so_many_calls_and_no_more(monkeypatch):
    monkeypatch.setattr(backpressure, "TURN_CALLS", 10)
    made = []

    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        with writes_paused(coalescer):
            tasks = [asyncio.create_task(queue.enqueue(b"%d" % n)) for n in range(200)]
            await turns()
            before = coalescer.waiting
        while not all(task.done() for task in tasks):
            in_line = len(coalescer.submit_line)
            await turns(1)
            made.append(in_line - len(coalescer.submit_line))
        assert before == 100
        assert (sum(made), max(made)) == (100, 10)

    run(main, submit_queue_max=100)


def test_a_turn_makes_calls_of_so_many_bytes_and_no_more():
    async def main(engine, queue):
        coalescer, size = engine._state.shards[0].coalescer, 30 << 10
        with writes_paused(coalescer):
            tasks = [asyncio.create_task(queue.enqueue(bytes(size))) for _ in range(400)]
            await turns()
        made = []
        while not all(task.done() for task in tasks):
            in_line = len(coalescer.submit_line)
            await turns(1)
            made.append(in_line - len(coalescer.submit_line))
        assert sum(made) == 200
        assert 1 < max(made) <= (backpressure.TURN_BYTES // size) + 1

    run(main, submit_queue_max=200)


@pytest.mark.parametrize("call", ["enqueue", "claim", "complete"])
@pytest.mark.parametrize("end", ["closed", "poisoned"])
def test_calls_in_line_learn_that_there_is_an_end(call, end):
    async def main():
        engine = await lodeq.testing.open(submit_queue_max=2)
        queue, coalescer = engine.queue("mail"), engine._state.shards[0].coalescer
        for _ in range(5):
            await queue.enqueue(b"x")
        leases = [(await queue.claim())[0] for _ in range(4)] if call == "complete" else []
        calls = [lease.complete for lease in leases] or {
            "enqueue": [partial(queue.enqueue, b"y")] * 4,
            "claim": [queue.claim] * 4,
        }[call]
        with writes_paused(coalescer):
            first = [asyncio.create_task(queue.enqueue(b"first")) for _ in range(2)]
            await turns()
            line = [asyncio.create_task(one()) for one in calls]
            await turns()
            assert len(coalescer.submit_line) == 4
            if end == "poisoned":
                coalescer.fail(OSError("EIO"))
                await turns()
                await asyncio.gather(*first, return_exceptions=True)
        await engine.close()
        found = await asyncio.gather(*line, return_exceptions=True)
        kind = lodeq.ClosedError if end == "closed" else lodeq.StoragePoisonedError
        assert {type(x) for x in found} == {kind}
        assert (len(coalescer.submit_line), coalescer.submit_line.reserved) == (0, 0)

    asyncio.run(main())


def test_a_call_that_raises_fails_its_caller_alone():
    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        with writes_paused(coalescer):
            first = asyncio.create_task(queue.enqueue(b"first"))
            await turns()
            wrong = engine._state.future()

            def fail():
                raise lodeq.PayloadTooLargeError("wrong")

            coalescer.submit_line.enter(wrong, 1, fail, ())
            last = asyncio.create_task(queue.enqueue(b"last"))
            await turns()
        await asyncio.gather(first, last)
        with pytest.raises(lodeq.PayloadTooLargeError):
            await wrong
        assert is_empty(coalescer.submit_line)

    run(main, submit_queue_max=1)


def test_an_interrupt_in_a_call_is_its_callers_too_and_the_line_goes_on():
    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        coalescer.waiting = 2
        wrong, well = engine._state.future(), engine._state.future()

        def interrupt():
            raise KeyboardInterrupt

        coalescer.submit_line.enter(wrong, 1, interrupt, ())
        coalescer.submit_line.enter(well, 1, lambda: (None, "well"), ())
        coalescer.waiting = 0
        with pytest.raises(KeyboardInterrupt):
            coalescer.submit_line._make_calls()
        assert isinstance(wrong.exception(), KeyboardInterrupt)
        assert await well == "well"
        assert is_empty(coalescer.submit_line)

    run(main, submit_queue_max=2)


@pytest.mark.parametrize("call", ["enqueue", "claim", "complete"])
def test_a_failed_commit_reaches_who_stood_in_line(call):
    async def main():
        engine = await lodeq.testing.open(submit_queue_max=1)
        queue, coalescer = engine.queue("mail"), engine._state.shards[0].coalescer
        for _ in range(2):
            await queue.enqueue(b"x")
        lease = (await queue.claim())[0]
        make = {
            "enqueue": partial(queue.enqueue, b"y"),
            "claim": queue.claim,
            "complete": lease.complete,
        }[call]
        with writes_paused(coalescer):
            first = asyncio.create_task(queue.enqueue(b"first"))
            await turns()
            second = asyncio.create_task(make())
            await turns()
            coalescer.waiting -= 1
            coalescer._admit()
            await turns()
            assert not second.done()
            assert not coalescer.submit_line.futures  # it has submitted
            coalescer.fail(OSError("EIO"))
        found = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(found[1], (lodeq.StoragePoisonedError, lodeq.CommitUnknownError))
        if call == "claim":
            assert set(engine._state.leases) == {lease.task_id}
        await engine.close()

    asyncio.run(main())


def test_durable_callers_stand_in_line_and_are_answered_after_a_sync():
    async def main(engine, queue):
        coalescer = engine._state.shards[0].coalescer
        with writes_paused(coalescer):
            tasks = [asyncio.create_task(queue.enqueue(b"%d" % n, durable=True)) for n in range(9)]
            await turns()
        for task in tasks:
            await task
            assert coalescer.durable_number > 0
        leases = [(await queue.claim())[0] for _ in range(9)]
        assert payloads_of(leases) == [b"%d" % n for n in range(9)]
        await asyncio.gather(*(lease.complete(durable=True) for lease in leases))
        assert coalescer.durable_number == coalescer.applied_number
        assert is_empty(coalescer.submit_line)

    run(main, submit_queue_max=2)
