"""Searches over many tasks: each call looks at a bounded number of rows, in short turns.

The work is counted, not timed: rows and records that the store hands out, and parts of scans that
met deleted rows only. The clock moves with it, ten microseconds a row, so that turns end.
"""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

import lodeq
from lodeq import NewTask, TaskFilter
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.tasks.operators import task_search
from lodeq.testing import ManualClock

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ROW_US, EMPTY_US = 10, 2_000
N = 24_000  # more than two calls look at
SHARDS = 4
# A task is a record and a row, which is read once a shard at most; and a page over.
CALL_ROWS = (SHARDS + 1) * task_search.LOOKS_MAX + 5000
TURN_US = 20_000


class Work(ManualClock):
    """A clock that moves with the work, and how much there was."""

    def __init__(self):
        super().__init__()
        self.thread = threading.get_ident()
        self.rows = self.us = self.turn_us = self.longest_us = 0

    def mono(self):
        return super().mono() + self.us / 1e6

    def add(self, rows, us):
        self.rows += rows
        self.us += us
        if threading.get_ident() != self.thread:  # beside the loop
            return
        self.turn_us += us
        self.longest_us = max(self.longest_us, self.turn_us)

    async def watch(self):
        while True:
            self.turn_us = 0
            await asyncio.sleep(0)

    @asynccontextmanager
    async def of_a_call(self):
        """Within it: one call."""
        self.rows = self.longest_us = self.turn_us = 0
        watching = asyncio.create_task(self.watch())
        try:
            yield
        finally:
            watching.cancel()
        assert self.rows <= CALL_ROWS
        assert self.longest_us <= TURN_US


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def work(monkeypatch):
    work = Work()
    scan_part, get = RocksStore.scan_part, RocksStore.get

    def counted_scan(self, lower, upper, limit):
        rows, resume = scan_part(self, lower, upper, limit)
        work.add(len(rows), len(rows) * ROW_US + (EMPTY_US if not rows and resume else 0))
        return rows, resume

    def counted_get(self, key):
        work.add(1, ROW_US)
        return get(self, key)

    monkeypatch.setattr(RocksStore, "scan_part", counted_scan)
    monkeypatch.setattr(RocksStore, "get", counted_get)
    return work


@pytest.fixture
async def engine(tmp_path, work):
    limits = lodeq.Limits(history_s=3600)
    async with lodeq.open(tmp_path / "jobs", shards=SHARDS, clock=work, limits=limits) as engine:
        yield engine


async def everything(engine, work, meant):
    """All that is found, and in how many calls; each is bounded."""
    found, calls, cursor = [], 0, None
    while True:
        async with work.of_a_call():
            page = await engine.find(meant, limit=1000, cursor=cursor, payloads=False)
        found += page
        calls += 1
        cursor = page.cursor
        if cursor is None:
            return found, calls


async def enqueue(queue, n, **face):
    for start in range(0, n, 1000):
        await queue.enqueue_many([NewTask(b"x", **face) for _ in range(min(1000, n - start))])


async def test_few_of_many_ready_tasks(engine, work):
    mail = engine.queue("mail")
    await enqueue(mail, N, function="send")
    await mail.enqueue(b"x", function="rare", labels={"customer": "7"})
    for meant in (TaskFilter(function="rare"), TaskFilter(labels={"customer": "7"}, state="ready")):
        found, calls = await everything(engine, work, meant)
        assert [task.function for task in found] == ["rare"]
        assert 2 <= calls <= 6
    async with work.of_a_call():
        cut = await engine.count(TaskFilter(function="send"), looks=5000)
    assert 4000 < cut.count < 6000
    assert not cut.is_exact
    async with work.of_a_call():
        report = await engine.act("cancel", TaskFilter(function="rare"))
    assert (report.done, report.cursor is None) == (0, False)  # it had looked at enough


async def test_few_of_many_ended_tasks_in_many_queues(engine, work):
    """One pass over the results, however many queues and states are meant."""
    queues = [engine.queue(f"q{n}") for n in range(256)]
    for queue in queues:
        await enqueue(queue, 100, function="send")
    rare = await queues[7].enqueue(b"x", function="rare")
    for queue in queues:
        leases = await queue.claim(limit=1000)
        await engine.complete_many([(lease, None) for lease in leases])
    ended = TaskFilter(state=["completed", "cancelled", "expired"], function="rare")
    found, calls = await everything(engine, work, ended)
    assert [task.id for task in found] == [rare.id]
    assert calls <= 8  # 25,600 rows, of one millisecond
    by_id = TaskFilter(state="completed", id_prefix=str(rare.id))
    async with work.of_a_call():
        (one,) = await engine.find(by_id)
    assert one.id == rare.id
    assert work.rows < 100
    async with work.of_a_call():
        cut = await engine.count(TaskFilter(state="completed"), looks=5000)
    assert not cut.is_exact


async def test_rows_that_were_just_deleted(engine, work):
    mail = engine.queue("mail")
    await enqueue(mail, N)
    while leases := await mail.claim(limit=1000):
        await engine.complete_many([(lease, None) for lease in leases])
    kept = await mail.enqueue(b"kept")
    cursor, done = None, 0
    while True:
        async with work.of_a_call():
            report = await engine.act("delete", TaskFilter(queue="mail"), cursor=cursor)
        done, cursor = done + report.done, report.cursor
        if cursor is None:
            break
    assert done == N
    found, calls = await everything(engine, work, TaskFilter())
    assert [task.id for task in found] == [kept.id]
    assert calls <= 6


async def read_on(engine, work, meant, limit, after=None):
    """All ids, the oldest first, and in how many calls; each is bounded."""
    found, calls, cursor = [], 0, None
    while True:
        async with work.of_a_call():
            page = await engine.find(
                meant, limit=limit, cursor=cursor, oldest_first=True, after=after
            )
        found += [task.id for task in page]
        calls += 1
        cursor = page.cursor
        if cursor is None:
            return found, calls


async def complete_all(engine, *names):
    for name in names:
        while leases := await engine.queue(name).claim(limit=1000):
            await engine.complete_many([(lease, None) for lease in leases])


async def test_a_page_from_an_id_on_costs_what_it_shows(engine, work):
    mail = engine.queue("mail")
    for _ in range(N // 1000):
        await enqueue(mail, 1000)
        work.advance(1)
    await complete_all(engine, "mail")
    meant = TaskFilter(queue="mail", state="completed")
    found, calls = await read_on(engine, work, meant, 1000)
    assert found == sorted(found)
    assert (len(found), calls) == (N, N // 1000 + 1)
    for at in (0, N // 2, N - 101):
        async with work.of_a_call():
            page = await engine.find(meant, limit=100, oldest_first=True, after=found[at])
        assert [task.id for task in page] == found[at + 1 : at + 101]
        assert work.rows < 100 * 2 * SHARDS + 1000
    rest, calls = await read_on(engine, work, meant, 1000, after=found[-2500])
    assert (rest, calls) == (found[-2499:], 3)


async def test_reading_on_over_rows_that_were_just_deleted(engine, work):
    mail = engine.queue("mail")
    first = await mail.enqueue(b"first")
    work.advance(1)
    await enqueue(mail, N)
    work.advance(1)
    last = await mail.enqueue(b"last")
    await complete_all(engine, "mail")
    kept = {first.id, last.id}
    cursor = None
    while True:
        page = await engine.find(TaskFilter(queue="mail"), limit=1000, cursor=cursor)
        gone = [task.id for task in page if task.id not in kept]
        if gone:
            await engine.act("delete", TaskFilter(ids=gone, state="completed"))
        cursor = page.cursor
        if cursor is None:
            break
    meant = TaskFilter(queue="mail", state="completed")
    found, calls = await read_on(engine, work, meant, 1000)
    assert found == [first.id, last.id]
    assert calls <= 6
    found, calls = await read_on(engine, work, meant, 1000, after=first.id)
    assert found == [last.id]
    assert calls <= 6


async def test_tenants_without_rows_are_passed_in_turns(engine, work):
    """A hundred thousand of them, and a call comes back although nothing was found."""
    mail = engine.queue("mail")
    state = mail._state
    for n in range(100_000):
        state.tenant_queue(b"mail", b"t%d" % n).shard_queue(state.shards[n % SHARDS])
    for n in (5, 70_000):
        await engine.queue("mail", tenant=f"t{n}").enqueue(b"x")
    found, calls = await everything(engine, work, TaskFilter(state=["ready", "dead"]))
    assert sorted(task.tenant for task in found) == ["t5", "t70000"]
    assert 2 <= calls <= 4
    assert work.rows < 1000


async def test_many_tenants_with_a_task_each(engine, work):
    """Found, and acted on, as many at a time as those of one tenant."""
    for n in range(1500):
        await engine.queue("mail", tenant=f"t{n}").enqueue(b"x")
    found, calls = await everything(engine, work, TaskFilter(queue="mail"))
    assert len({task.id for task in found}) == 1500
    assert calls == 2
    await engine.queue("alone").enqueue_many([NewTask(b"x") for _ in range(1500)])
    commits = []
    for queue in ("alone", "mail"):
        before = engine_commits(await engine.stats())
        report = await engine.act("reprioritise", TaskFilter(queue=queue), priority=9)
        assert report.done == 1000
        commits.append(engine_commits(await engine.stats()) - before)
    assert commits[0] < 250  # several tasks each
    assert commits[1] <= 1.25 * commits[0]
    rest = await engine.act("cancel", TaskFilter(queue="mail"), cursor=report.cursor)
    assert (rest.done, rest.cursor) == (500, None)


def engine_commits(stats):
    return sum(shard.commits for shard in stats.shards)


async def test_rows_of_ended_tasks_are_read_and_decoded_beside_the_loop(engine, work, monkeypatch):
    """Whatever a filter asks for; on the loop are only the tasks that it means."""
    mail = engine.queue("mail")
    await enqueue(mail, 3000, function="send", labels={"customer": "7"})
    leases = await mail.claim(limit=1000) + await mail.claim(limit=1000)
    await engine.complete_many([(lease, None) for lease in leases])
    threads = {name: set() for name in ("scan", "decode")}
    scan, decode = RocksStore.scan_part, task_search.decode_result

    def watched_scan(self, lower, upper, limit):
        threads["scan"].add(threading.get_ident())
        return scan(self, lower, upper, limit)

    def watched_decode(raw):
        threads["decode"].add(threading.get_ident())
        return decode(raw)

    monkeypatch.setattr(RocksStore, "scan_part", watched_scan)
    monkeypatch.setattr(task_search, "decode_result", watched_decode)
    for meant in (
        TaskFilter(state="completed", older_than=3600),
        TaskFilter(state="completed", text="customer=7"),
        TaskFilter(state="completed", labels={"customer": "7"}, reason="timeout"),
    ):
        await engine.find(meant, limit=10)
    assert threads["scan"]
    assert threads["decode"]
    assert threading.get_ident() not in threads["scan"] | threads["decode"]


async def test_a_close_in_the_middle_of_a_search_ends_it_and_lets_the_store_go(
    tmp_path, monkeypatch
):
    """The searches are held in their thread until the engine is closing."""
    reads, goes_on = threading.Event(), threading.Event()
    scan = RocksStore.scan_part

    def held_scan(self, lower, upper, limit):
        reads.set()
        assert goes_on.wait(60)
        return scan(self, lower, upper, limit)

    engine = await lodeq.open(tmp_path / "jobs", limits=lodeq.Limits(history_s=3600))
    mail = engine.queue("mail")
    await enqueue(mail, 5000, function="send")
    while leases := await mail.claim(limit=1000):
        await engine.complete_many([(lease, None) for lease in leases])
    monkeypatch.setattr(RocksStore, "scan_part", held_scan)
    searches = [
        asyncio.create_task(engine.count(TaskFilter(state="completed", text="nothing")))
        for _ in range(4)
    ]
    assert await asyncio.to_thread(reads.wait, 60)
    closing = asyncio.create_task(engine.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert "closed" in repr(engine)
    goes_on.set()
    for search in searches:
        with pytest.raises(lodeq.ClosedError):
            await search
    await closing
    async with lodeq.open(tmp_path / "jobs") as engine:  # nothing of them holds its lock
        assert (await engine.count(TaskFilter(state="completed"))).count == 5000
