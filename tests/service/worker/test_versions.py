"""Rolling deploys: functions and parameters that only some of the workers have."""

import pytest
from support_behaviour import settle

from lodeq.repository.model.workers import notes_on_versions
from lodeq.testing import ManualClock, worker
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio


def release(ran, *, is_new):
    """An app of one of two releases: the new one has a parameter and a function more."""
    app = App(name="new" if is_new else "old")
    if is_new:

        @app.task("mail", max_attempts=2)
        async def send(to: str, copies: int = 1) -> None:
            ran.append(("new", to, copies, current().attempt))

        @app.task("mail")
        async def added(n: int) -> None:
            ran.append(("added", n, current().attempt))

    else:

        @app.task("mail", max_attempts=2)
        async def send(to: str) -> None:
            ran.append(("old", to, current().attempt))

        @app.task("mail")
        async def removed(n: int) -> None:
            ran.append(("removed", n, current().attempt))

    return app


async def waits_of(app, bench, receipt, clock, n):
    waits = []
    for _ in range(n):
        report = await app.drain(errors="keep")
        assert (report.released, report.runs) == (1, 1)
        task = await bench.engine.get(receipt.id)
        assert task.attempts == 0
        wait_s = (task.due_at - clock.now).total_seconds()
        waits.append(round(wait_s, 1))
        clock.advance(wait_s)
    return waits


async def test_arguments_for_another_version_wait_for_it_uncounted(caplog):
    clock, ran = ManualClock(), []
    old, new = release(ran, is_new=False), release(ran, is_new=True)
    async with worker(old, clock=clock) as bench, new.use(bench.engine):
        await bench.engine.publish_functions(new.published())  # a new worker has been there
        receipt = await new.function("mail", "send").enqueue("a", copies=2)
        assert await waits_of(old, bench, receipt, clock, 5) == [0.1, 0.1, 0.1, 0.1, 0.1]
        assert "another version of it is published: send(to: str)" in caplog.text
        assert (await new.drain()).completed == 1
        # What fits both runs in both, whoever has published last.
        await new.function("mail", "send").enqueue("b")
        assert (await old.drain()).completed == 1
    assert ran == [("new", "a", 2, 1), ("old", "b", 1)]


async def test_functions_of_either_release_wait_for_it_in_both_orders():
    clock, ran = ManualClock(), []
    old, new = release(ran, is_new=False), release(ran, is_new=True)
    async with worker(old, clock=clock) as bench, new.use(bench.engine):
        receipt = await new.function("mail", "added").enqueue(1)  # producers first
        assert await waits_of(old, bench, receipt, clock, 3) == [0.1, 0.1, 0.1]
        assert (await new.drain()).completed == 1
        receipt = await old.function("mail", "removed").enqueue(2)  # workers first
        assert await waits_of(new, bench, receipt, clock, 3) == [0.1, 0.1, 0.1]
        assert (await old.drain()).completed == 1
        assert (await bench.engine.stats()).dead_total == 0
    assert ran == [("added", 1, 1), ("removed", 2, 1)]


async def test_arguments_that_were_checked_wait_before_their_version_is_published(caplog):
    """Producers may be deployed first: no worker of the new release has started yet."""
    clock, ran = ManualClock(), []
    old, new = release(ran, is_new=False), release(ran, is_new=True)
    async with worker(old, clock=clock) as bench, new.use(bench.engine):
        await bench.engine.publish_functions(old.published())
        receipt = await new.function("mail", "send").enqueue("a", copies=2)
        assert await waits_of(old, bench, receipt, clock, 3) == [0.1, 0.1, 0.1]
        assert "they fitted another version of it: send(to: str)" in caplog.text
        assert (await new.drain()).completed == 1
        await new.function("mail", "send").enqueue("b", copies=3)
        clock.advance(3601)
        assert (await old.drain(errors="keep")).failed == 1
    assert ran == [("new", "a", 2, 1)]


async def test_wrong_arguments_of_the_published_version_fail_as_ever():
    clock, ran = ManualClock(), []
    old = release(ran, is_new=False)
    async with worker(old, clock=clock) as bench:
        await bench.engine.publish_functions(old.published())
        headers = {"lodeq.task": "send"}
        await bench.engine.queue("mail").enqueue({"nobody": 1}, headers=headers, max_attempts=1)
        assert (await old.drain(errors="keep")).dead == 1


async def test_after_an_hour_nobody_has_taken_it_and_it_fails():
    clock, ran = ManualClock(), []
    old, new = release(ran, is_new=False), release(ran, is_new=True)
    async with worker(old, clock=clock) as bench, new.use(bench.engine):
        await bench.engine.publish_functions(new.published())
        await new.function("mail", "send").enqueue("a", copies=2)
        clock.advance(3601)
        assert (await old.drain(errors="keep")).failed == 1


async def test_a_task_is_stranded_after_ten_minutes_and_shown_with_who_knows_it(caplog):
    clock, ran = ManualClock(), []
    old, new = release(ran, is_new=False), release(ran, is_new=True)
    handlers = old._handlers()
    old._handlers = lambda: handlers
    async with worker(old, clock=clock) as bench, new.use(bench.engine):
        engine = bench.engine
        receipt = await new.function("mail", "added").enqueue(1)
        stranded = []
        for _ in range(60):
            await old.drain(errors="keep")
            (one,) = handlers.elsewhere.unknown(clock)
            assert (one.queue, one.function, one.tasks) == ("mail", "added", 1)
            task = await engine.get(receipt.id)
            assert one.oldest_at == task.enqueued_at
            stranded.append(one.stranded)
            clock.advance((task.due_at - clock.now).total_seconds())
        assert stranded == sorted(stranded)
        assert (stranded[0], stranded[-1]) == (0, 1)
        assert "task_stranded" in {getattr(one, "event", "") for one in caplog.records}
        # The same in the beats of a worker, and what people read of them.
        async with old.work() as working:
            report = working.beats._report()
            await engine.beat(report)
            found = await engine.workers()
        (note,) = notes_on_versions(found, {})
        assert note == (
            "1 stranded of 1 task of queue 'mail' for 'added', which old cannot run: no worker "
            "listed has it, and it is not published"
        )
        async with new.work() as working:
            await engine.beat(report)
            await engine.beat(working.beats._report())
            notes = notes_on_versions(await engine.workers(), {})
        assert "which old cannot run: version " in notes[0]
        assert notes[0].endswith(" is in new")
        assert notes[1].startswith("'send' of queue 'mail' has several versions: ")
        clock.advance(200)
        assert handlers.elsewhere.unknown(clock) == []  # somebody has taken it


async def test_a_function_that_is_not_known_is_met_once_and_then_left_to_others():
    """Its tasks stay in line, undelayed, and who knows it gets them at once."""
    clock, ran = ManualClock(), []
    old, new = release(ran, is_new=False), release(ran, is_new=True)
    async with worker(old, clock=clock) as bench, new.use(bench.engine):
        mail, added = bench.engine.queue("mail"), new.function("mail", "added")

        async def claimed():
            for _ in range(20):
                await settle()
            return (await bench.engine.stats()).claimed_total

        async with old.work():
            first = await added.enqueue(0)
            assert await claimed() == 1
            await added.enqueue_many([added.new(n) for n in range(1, 20)])
            await old.function("mail", "removed").enqueue(20)
            assert await claimed() == 2
            stats = await mail.stats()
            assert (stats.ready, stats.delayed) == (19, 1)
            async with new.work():
                assert await claimed() == 21
            clock.advance(0.1)
            assert (await bench.engine.get(first.id)).attempts == 0
            # After a minute it asks again: a worker with that function is not missed for long.
            clock.advance(60)
            assert await claimed() == 22
    assert ran == [("removed", 20, 1), *(("added", n, 1) for n in range(1, 20))]


async def test_a_task_whose_face_says_something_else_is_no_reason_to_leave_others():
    clock, ran = ManualClock(), []
    old = release(ran, is_new=False)
    handlers = old._handlers()
    old._handlers = lambda: handlers
    async with worker(old, clock=clock) as bench:
        headers = {"lodeq.task": "added"}
        await bench.engine.queue("mail").enqueue({}, headers=headers, function="removed")
        await bench.engine.queue("mail").enqueue({}, headers=headers)
        await old.drain(errors="keep")
        assert handlers.elsewhere.to_skip(clock, "mail") == frozenset()
        await bench.engine.queue("mail").enqueue({}, headers=headers, function="added")
        await old.drain(errors="keep")
        assert handlers.elsewhere.to_skip(clock, "mail") == {"added"}
        clock.advance(60)
        assert handlers.elsewhere.to_skip(clock, "mail") == frozenset()


async def test_a_task_that_is_left_to_others_is_stranded_as_well_if_nobody_takes_it():
    clock, ran = ManualClock(), []
    old, new = release(ran, is_new=False), release(ran, is_new=True)
    async with worker(old, clock=clock) as bench, new.use(bench.engine):
        receipt = await new.function("mail", "added").enqueue(1)
        async with old.work() as working:
            stranded = []
            for _ in range(100):
                clock.advance(10)
                for _ in range(5):
                    await settle(20)
                (one,) = working.beats._report().unknown
                assert (one.function, one.tasks) == ("added", 1)
                stranded.append(one.stranded)
            assert stranded == sorted(stranded)
            assert stranded[70:] == [1] * 30
        assert (await bench.engine.get(receipt.id)).attempts == 0
