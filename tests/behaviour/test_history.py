"""The life of what is known of ended tasks: values go with the retention, rows with the history."""

import pytest
from support_behaviour import StillClock, settle
from support_live import copy_live
from support_replication import Cluster

import lodeq
import lodeq.testing
from lodeq.engine.records.attempts import decode_attempts
from lodeq.engine.records.keyspace import ATTEMPTS, EXPIRY, EXPIRY_END, RESULT, RESULT_END
from lodeq.engine.records.result import HAS_VALUE, decode_result
from lodeq.engine.records.rows import decode_expiry
from lodeq.engine.runtime.ids import slot_of
from lodeq.repository.background import history_trim
from lodeq.repository.background.history_trim import HistoryTrim

pytestmark = pytest.mark.anyio
DAY = 86_400.0


def rows(engine, lower=RESULT, upper=RESULT_END):
    return [
        row for shard in engine._state.shards for row in shard.store.scan(lower, upper, 1 << 20)
    ]


def kinds(engine):
    """Kinds of expiry entries of results, in the order of their times."""
    entries = [decode_expiry(raw) for _, raw in rows(engine, EXPIRY, EXPIRY_END)]
    return [chr(kind) for row in entries for kind, _ in row if chr(kind) in "rcvh"]


async def run(queue, result=None, keep=True):
    await queue.enqueue(b"x")
    (lease,) = await queue.claim()
    await lease.complete(result, keep=keep)
    return lease.task_id


async def fail(queue, reason="boom", delay=0):
    (lease,) = await queue.claim()
    await lease.nack(delay=delay, reason=reason)
    return lease.task_id


async def is_sound(engine):
    report = await engine.verify()
    assert report.ok, report.findings
    assert (await engine.stats()).anomalies == ()


@pytest.fixture
async def engine(clock):
    async with lodeq.testing.open(clock=clock) as engine:
        yield engine
        await is_sound(engine)


async def passes(clock, seconds):
    await clock.advance(seconds, turns=100)
    await clock.advance(1, turns=60)


async def test_the_value_goes_with_the_retention_and_the_row_with_the_history(engine, clock):
    queue = engine.queue("mail", retention=60)
    task = await run(queue, {"sent": 1})
    assert kinds(engine) == ["v"]
    await passes(clock, 61)
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.result(task)
    (one,) = await engine.history("mail")
    assert (one.task_id, one.status, one.value) == (task, "completed", None)
    assert one.ran is not None
    (row,) = rows(engine)
    record = decode_result(row[1])
    assert (record.flags & HAS_VALUE, record.value, record.retention_ms) == (0, b"", 0)
    assert kinds(engine) == ["c"]
    assert (await queue.stats()).results == 1
    await is_sound(engine)
    await passes(clock, 7 * DAY)
    assert len(await engine.history()) == 0
    assert rows(engine) == []
    assert (await engine.stats()).results == 0


async def test_a_dead_letter_without_a_result_says_how_it_ended(engine, clock):
    queue = engine.queue("mail", retention=60, max_attempts=1)
    await queue.enqueue(b"x")
    (lease,) = await queue.claim()
    await lease.nack(reason="no such mailbox")
    await passes(clock, 61)
    wanted = r"no longer kept.*: the task ended as dead at \S+Z \(no such mailbox\)$"
    with pytest.raises(lodeq.TaskNotFoundError, match=wanted) as caught:
        await engine.result(lease.task_id)
    assert (caught.value.state, caught.value.reason) == ("dead", "no such mailbox")
    assert await queue.redrive([lease.task_id]) == 1
    assert await engine.result(lease.task_id) is None


async def test_a_row_without_a_value_is_filed_once(engine, clock):
    queue = engine.queue("mail", retention=60)
    task = await run(queue)
    assert kinds(engine) == ["c"]
    (before,) = rows(engine)
    assert (await engine.result(task)).status == "completed"
    await passes(clock, 61)
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.result(task)
    assert rows(engine) == [before]
    await passes(clock, 7 * DAY)
    assert rows(engine) == []


async def test_without_history_all_goes_with_the_retention(engine, clock):
    await engine.configure("mail", history=0)
    queue = engine.queue("mail", retention=60)
    await run(queue, b"value")
    await run(queue, b"value", keep=False)
    (row,) = rows(engine)
    assert decode_result(row[1]).history_s == 0
    await passes(clock, 61)
    assert rows(engine) == []
    assert len(await engine.history()) == 0


async def test_a_retention_beyond_the_history_keeps_value_and_row(engine, clock):
    await engine.configure("mail", history=60)
    task = await run(engine.queue("mail", retention=3600), b"value")
    await passes(clock, 1800)
    assert (await engine.result(task)).value == b"value"
    await passes(clock, 1801)
    assert rows(engine) == []


async def test_settings_hold_for_tasks_that_end_from_then_on(engine, clock):
    await engine.configure("mail", history=3600)
    queue = engine.queue("mail", retention=0)
    early = await run(queue)
    await engine.configure("mail", history=60)
    await run(queue)
    await passes(clock, 61)
    assert [one.task_id for one in await engine.history("mail")] == [early]


async def test_attempts_go_with_the_history(engine, clock):
    queue = engine.queue("mail", retention=60)
    await queue.enqueue(b"x")
    task = await fail(queue)
    (lease,) = await queue.claim()
    await lease.complete(b"value")
    assert kinds(engine) == ["h"]
    await passes(clock, 61)
    assert kinds(engine) == ["h"]
    assert len(await engine.attempts(task)) == 2
    await passes(clock, 7 * DAY)
    assert rows(engine, ATTEMPTS, b"a0") == []
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.attempts(task)


async def test_attempts_go_with_the_task_where_nothing_is_kept(engine):
    await engine.configure("mail", history=0)
    queue = engine.queue("mail", retention=0, max_attempts=2)
    for end in ("complete", "cancel", "purge"):
        receipt = await queue.enqueue(b"x")
        await fail(queue)
        assert len(rows(engine, ATTEMPTS, b"a0")) == 1
        if end == "complete":
            (lease,) = await queue.claim()
            await lease.complete()
        elif end == "cancel":
            await engine.cancel(receipt.id)
        else:
            await fail(queue)
            assert await queue.purge("dead") == 1
        assert rows(engine, ATTEMPTS, b"a0") == []


async def test_the_attempts_of_a_dead_letter_outlive_its_history(engine, clock):
    await engine.configure("mail", history=60)
    queue = engine.queue("mail", retention=0, max_attempts=1, dead_retention=3600)
    await queue.enqueue(b"x")
    task = await fail(queue)
    await passes(clock, 61)
    assert rows(engine) == []
    assert [one.reason for one in await engine.attempts(task)] == ["boom"]
    await is_sound(engine)
    await passes(clock, 3600)
    assert rows(engine, ATTEMPTS, b"a0") == []


async def test_a_redriven_task_that_had_an_older_end(engine, clock):
    queue = engine.queue("mail", retention=60, max_attempts=1)
    await queue.enqueue(b"x")
    task = await fail(queue)
    await passes(clock, DAY)
    assert await queue.redrive([task]) == 1
    (lease,) = await queue.claim()
    await lease.complete(b"value")
    assert (await engine.result(task)).value == b"value"
    assert [one.outcome for one in await engine.attempts(task)] == ["nacked", "completed"]
    await passes(clock, 6.5 * DAY)  # beyond the end of the history of its first end
    (one,) = await engine.history("mail")
    assert one.status == "completed"
    await passes(clock, DAY)
    assert rows(engine) == []


async def test_a_lease_that_runs_out_is_an_attempt(engine, clock):
    queue = engine.queue("mail", lease=30)
    await queue.enqueue(b"x")
    (lease,) = await queue.claim(worker="w1")
    await passes(clock, 31)
    (one,) = await engine.attempts(lease.task_id)
    assert (one.number, one.outcome, one.worker) == (1, "lease_expired", "w1")
    assert one.ran == pytest.approx(31, abs=1.5)


async def test_a_released_task_has_made_no_attempt(engine):
    queue = engine.queue("mail")
    receipt = await queue.enqueue(b"x")
    (lease,) = await queue.claim()
    await lease.release()
    assert await engine.attempts(receipt.id) == []
    assert rows(engine, ATTEMPTS, b"a0") == []


# -- bounds -----------------------------------------------------------------------------------


async def test_the_oldest_rows_beyond_the_bound_go(engine, clock):
    await engine.configure("mail", history_rows=10)
    queue = engine.queue("mail", retention=1)
    ids = []
    for _ in range(25):
        ids.append(await run(queue))
        await passes(clock, 2)
    other = await run(engine.queue("else", retention=1))
    await passes(clock, 2)
    kept = [one.task_id for one in await engine.history("mail")]
    assert sorted(kept) == sorted(ids[-10:])
    assert [one.task_id for one in await engine.history("else")] == [other]


async def test_results_in_their_retention_are_never_trimmed(engine, clock):
    await engine.configure("mail", history_rows=2)
    queue = engine.queue("mail", retention=600)
    ids = [await run(queue, value) for value in (None, b"x", None, b"y", None)]
    await passes(clock, 60)
    for task in ids:
        assert (await engine.result(task)).status == "completed"
    await passes(clock, 600)
    await run(queue)
    await passes(clock, 5)
    assert (await queue.stats()).results <= 3


async def trimmed(engine, trim, then=lambda step: None):
    """One pass of a trim, each step committed before the next."""
    for step, groups in enumerate(trim.slices(engine._state.shards[1], 0)):
        for future in [shard.coalescer.wait(group) for shard, group in groups.items()]:
            await future
        then(step)


@pytest.mark.parametrize("is_again_at_once", [True, False])
@pytest.mark.parametrize("step", range(-1, 5))
async def test_a_shard_that_is_lost_meanwhile_is_trimmed_by_whoever_leads_it_next(
    clock, monkeypatch, step, is_again_at_once
):
    """Whatever was found while it was lost, or led before, says nothing of its history now."""
    monkeypatch.setattr(history_trim, "SLICE", 4)
    cluster = Cluster()
    async with (
        cluster.open("a", clock=clock, shards=2, reaper=False) as a,
        cluster.open("b", clock=clock, shards=2, reaper=False) as b,
    ):
        await cluster.elect("a", 0)
        await cluster.elect("a", 1)
        queue = a.queue("mail", retention=1)
        keys = (f"k{n}" for n in range(999) if slot_of(b"k%d" % n) >= 1 << 11)
        for _ in range(40):
            await queue.enqueue(b"x", shard_key=next(keys))
            await (await queue.claim_one()).complete()
            await clock.advance(1)
        await a.configure("mail", history_rows=10)
        await clock.advance(2)
        trims = [HistoryTrim(a._state), HistoryTrim(b._state)]

        def lose(at):
            if at == step:
                cluster.nodes["a"].replica.follow(1)

        lose(-1)

        await trimmed(a, trims[0], lose)
        await settle()  # it counts what it follows
        await trimmed(a, trims[0])
        await trimmed(b, trims[1])  # it follows, too
        following = "a" if is_again_at_once else "b"
        await cluster.elect(following, 1)
        for engine, trim in zip((a, b), trims, strict=True):
            await trimmed(engine, trim)
        leader = a if is_again_at_once else b
        assert len(rows(leader)) == 5  # its half of them
        await is_sound(leader)


async def test_bytes_bound_the_history_too(engine, clock):
    await engine.configure("mail", history_bytes=4000)
    queue = engine.queue("mail", retention=1, max_attempts=1)
    for _ in range(40):
        await queue.enqueue(b"x")
        await fail(queue, "r" * 900)
        await passes(clock, 2)
    total = sum(len(raw) for _, raw in rows(engine))
    assert 0 < total <= 6000


async def test_history_goes_before_results_where_results_are_too_many(clock):
    limits = lodeq.Limits(results_max=10)
    async with lodeq.testing.open(clock=clock, limits=limits) as engine:
        short = engine.queue("short", retention=1)
        for _ in range(10):
            await run(short)
        await passes(clock, 5)
        kept = [await run(engine.queue("long", retention=3600), b"value") for _ in range(6)]
        await passes(clock, 5)
        for task in kept:
            assert (await engine.result(task)).value == b"value"
        assert (await engine.stats()).results == 10
        await is_sound(engine)


async def test_a_damaged_row_does_not_hold_up_the_trim(clock):
    async with lodeq.testing.open(clock=clock) as engine:
        await engine.configure("mail", history_rows=3)
        queue = engine.queue("mail", retention=1)
        first = await run(queue)
        engine._state.shards[0].store.write([(RESULT + first, b"damage")])
        for _ in range(8):
            await run(queue)
            await passes(clock, 2)
        assert len(await engine.history("mail")) == 2  # and the damaged one, until its time
        await passes(clock, 8 * DAY)
        assert rows(engine) == []


async def test_a_damaged_value_is_dropped_with_its_row(clock):
    async with lodeq.testing.open(clock=clock) as engine:
        queue = engine.queue("mail", retention=1)
        task = await run(queue, b"value")
        engine._state.shards[0].store.write([(RESULT + task, b"damage")])
        await passes(clock, 3)
        assert rows(engine) == []
        assert (await engine.stats()).results == 0
        assert (await engine.verify()).ok


async def test_many_values_lapse_at_once(clock):
    async with lodeq.testing.open(clock=clock) as engine:
        queue = engine.queue("mail", retention=60)
        for _ in range(8):
            await queue.enqueue_many([lodeq.NewTask(b"x")] * 250)
            leases = await queue.claim(limit=250)
            await engine.complete_many([(lease, b"v" * 100) for lease in leases])
        await passes(clock, 61)
        assert {decode_result(raw).value for _, raw in rows(engine)} == {b""}
        assert len(rows(engine)) == 2000
        await is_sound(engine)


# -- pages ------------------------------------------------------------------------------------


async def test_a_bounded_search_comes_back_short_and_says_so(engine, monkeypatch):
    from lodeq.repository.tasks.operators import history

    monkeypatch.setattr(history, "LOOKS_MAX", 50)
    queue = engine.queue("mail")
    await queue.enqueue_many([lodeq.NewTask(b"x")] * 400)
    leases = await queue.claim(limit=400)
    await engine.complete_many([(lease, None) for lease in leases])
    page = await engine.history("none", limit=10)
    assert page.is_short
    assert len(page) == 0
    seen, cursor, pages = set(), None, 0
    while True:
        page = await engine.history("mail", limit=1000, cursor=cursor)
        pages += 1
        seen |= {one.task_id for one in page}
        cursor = page.cursor
        if cursor is None:
            break
    assert len(seen) == 400
    assert pages > 1


async def test_large_values_do_not_make_large_turns(engine):
    queue = engine.queue("mail")
    for _ in range(12):
        await run(queue, b"v" * 900_000)
    found, cursor = [], None
    while True:
        page = await engine.history("mail", cursor=cursor)
        found += page
        cursor = page.cursor
        if cursor is None:
            break
    assert len(found) == 12
    assert all(len(one.value) == 900_000 for one in found)


async def test_attempts_are_read_back_after_a_restart(tmp_path):
    clock = StillClock()
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        task = await fail(queue, "one")
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        await fail(engine.queue("mail"), "two")
        assert [one.reason for one in await engine.attempts(task)] == ["one", "two"]
        (row,) = rows(engine, ATTEMPTS, b"a0")
        assert len(decode_attempts(row[1])) == 2
        await is_sound(engine)


@pytest.mark.parametrize("turns", range(0, 12, 2))
async def test_a_drop_of_values_that_a_kill_interrupts_goes_on(tmp_path, turns):
    """The folder as it is after so many turns of the sweep is what a killed process leaves."""
    clock = StillClock()
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        queue = engine.queue("mail", retention=60)
        await queue.enqueue_many([lodeq.NewTask(b"x")] * 600)
        leases = await queue.claim(limit=600)
        await engine.complete_many([(lease, b"value") for lease in leases])
        await engine.fsync()
        await clock.advance(61, turns=turns)
        copy_live(tmp_path / "s", tmp_path / "image", symlinks=True)
    (tmp_path / "image").chmod(0o700)
    async with lodeq.open(tmp_path / "image", clock=clock) as engine:
        assert (await engine.queue("mail").stats()).results == 600
        await is_sound(engine)
        await passes(clock, 5)
        await passes(clock, 5)
        records = [decode_result(raw) for _, raw in rows(engine)]
        assert len(records) == 600
        assert {record.value for record in records} == {b""}
        await is_sound(engine)
        await passes(clock, 8 * DAY)
        await passes(clock, 5)
        assert rows(engine) == []
        assert (await engine.stats()).results == 0


async def test_pages_have_indices_and_slices(engine):
    queue = engine.queue("mail")
    ids = [await run(queue, keep=False) for _ in range(3)]
    for page in (await engine.history("mail"), await engine.find(lodeq.TaskFilter(queue="mail"))):
        found = [getattr(one, "task_id", None) or one.id for one in page]
        assert set(found) == set(ids)
        assert page[0] is next(iter(page))
        assert list(page[1:]) == list(page)[1:]
        with pytest.raises(IndexError):
            page[3]
    assert list((await engine.workflows())[:1]) == []
