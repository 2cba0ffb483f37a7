"""Searches that read in a thread find what going through every list by hand finds.

The lists are read on the loop, row by row: what they say of each state is what a search has to say,
task for task and in the same order.
"""

import asyncio
import random
import threading

import pytest

import lodeq
from lodeq import CorruptionError, NewTask, TaskFilter
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.model.filters import FILTER_STATES, FINAL
from lodeq.repository.tasks.operators import lease_search, row_search, task_search

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
QUEUES, TENANTS = ("mail", "sms", "pdf"), ("", "acme", "zeta")
REASONS = ("smtp timeout", "no such user", "")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=[1, 4])
async def engine(request, tmp_path):
    limits = lodeq.Limits(history_s=3600)
    async with lodeq.open(tmp_path / "s", shards=request.param, limits=limits) as engine:
        yield engine
        report = await engine.verify()
        assert report.ok, report.findings


def any_task(rng, n):
    if rng.random() < 0.2:
        return NewTask(b"%d" % n)
    return NewTask(
        b"%d" % n * rng.choice([1, 30]),
        priority=rng.choice([0, 5, 9]),
        delay=rng.choice([0, 0, 3600]),
        max_attempts=1,
        function=f"f{n % 3}",
        preview=f"n={n}" + ", text=" * (n % 7 == 0) + "x" * 300 * (n % 7 == 0),
        labels={"customer": str(n % 5)} if n % 2 else None,
    )


async def fill(engine, rng, n=40):
    """Tasks in every state, of three queues and tenants."""
    waited = (await engine.queue("pdf").enqueue(b"first", delay=3600)).id
    await engine.queue("pdf").enqueue(b"waits", after=[waited])
    for name in QUEUES:
        for tenant in TENANTS:
            queue = engine.queue(name, tenant=tenant)
            await queue.enqueue_many([any_task(rng, i) for i in range(rng.randrange(n))])
            for lease in await queue.claim(limit=rng.randrange(1, n // 2)):
                match rng.randrange(4):
                    case 0:
                        await lease.complete(b"ok")
                    case 1:
                        await lease.bury(rng.choice(REASONS))
                    case 2:
                        await lease.release()
                    case _:
                        await lease.progress(0.5, note="half")
    everyone = await by_lists(engine, TaskFilter(state="ready"))
    for task in everyone[:: rng.randrange(3, 7)]:
        await engine.cancel(task.id)


def any_filter(rng, tasks):
    """A filter for what some task has, in some of the fields."""
    task = rng.choice(tasks)
    given = {}
    if rng.random() < 0.3:
        given["queue"] = rng.choice(QUEUES)
    if rng.random() < 0.3:
        given["tenant"] = rng.choice(TENANTS)
    if rng.random() < 0.5:
        given["state"] = rng.sample(FILTER_STATES, rng.randrange(1, 4))
    if rng.random() < 0.3 and task.function:
        given["function"] = task.function
    if rng.random() < 0.3 and task.labels:
        given["labels"] = dict(task.labels)
    if rng.random() < 0.2 and task.reason:
        given["reason"] = task.reason[2:8].upper()
    if rng.random() < 0.2:
        given["text"] = rng.choice(["N=1", "customer=3", "timeout", "f2", "yyy"])
    if rng.random() < 0.2:
        given["id_prefix"] = str(task.id)[: rng.choice([4, 13, 30, 36])]
    if rng.random() < 0.2:
        given[rng.choice(["older_than", "newer_than"])] = rng.choice([0, 3600])
    if rng.random() < 0.2:
        name = rng.choice(["finished_older_than", "finished_newer_than"])
        given[name] = rng.choice([0, 3600])
    return TaskFilter(**given)


async def by_lists(engine, meant):
    """Every list of every queue, on the loop; ended tasks newest first."""
    names = (
        [meant.queue]
        if meant.queue
        else sorted(name.decode() for name in engine._state.queue_states)
    )
    tenant = lodeq.ALL_TENANTS if meant.tenant is None else meant.tenant
    now = lodeq.repository.model.encoded_tasks.to_datetime(engine._state.clock.wall_us())
    pending, ended = [], []
    for name in names:
        for state in meant.states:
            page = None
            while page is None or len(page) == 7:
                after = page[-1] if page else None
                page = await engine.queue(name, tenant=tenant).list(state, limit=7, after=after)
                found = [task for task in page if meant.matches(task, now)]
                (ended if state in FINAL else pending).extend(found)
    return pending + sorted(ended, key=lambda task: task.id, reverse=True)


async def by_search(engine, meant, limit):
    found, cursor = [], None
    while True:
        page = await engine.find(meant, limit=limit, cursor=cursor)
        assert len(page) <= limit
        found += page
        cursor = page.cursor
        if cursor is None:
            return found


def shown(tasks):
    """All fields, payloads decoded, but the place in a list: ended tasks have another."""
    fields = ("id", "state", "queue", "tenant", "priority", "attempts", "enqueued_at", "payload")
    fields += ("headers", "due_at", "expires_at", "finished_at", "max_attempts", "worker")
    fields += ("reason", "function", "preview", "labels", "progress")
    return [[getattr(task, name) for name in fields] for task in tasks]


@pytest.mark.parametrize("seed", range(3))
async def test_a_search_finds_what_the_lists_have(engine, seed):
    rng = random.Random(seed)
    await fill(engine, rng)
    tasks = await by_lists(engine, TaskFilter())
    assert {task.state for task in tasks} >= {"ready", "delayed", "waiting", "leased", "dead"}
    for _ in range(25):
        meant = any_filter(rng, tasks)
        expected = await by_lists(engine, meant)
        for limit in (1000, rng.randrange(1, 9)):
            assert shown(await by_search(engine, meant, limit)) == shown(expected), meant
        assert await engine.count(meant) == lodeq.FoundCount(
            len(expected),
            is_exact=True,
            has_cut_previews=(await engine.count(meant)).has_cut_previews,
        )


async def test_what_is_not_touched_is_found_once_whatever_others_do(engine):
    rng = random.Random(7)
    still = [
        receipt.id
        for tenant in TENANTS
        for receipt in await engine.queue("mail", tenant=tenant).enqueue_many(
            [NewTask(b"%d" % n, function="still", delay=3600 * (n % 2)) for n in range(150)]
        )
    ]
    held = await engine.queue("mail").claim(limit=40)
    await engine.queue("mail").enqueue_many([NewTask(b"x") for _ in range(300)])
    is_over = False

    async def move():
        queue = engine.queue("mail", tenant="other")
        while not is_over:
            await queue.enqueue_many([NewTask(b"x") for _ in range(20)])
            for lease in await queue.claim(limit=rng.randrange(1, 30)):
                await rng.choice([lease.complete, lease.bury, lease.release])()

    moving = asyncio.create_task(move())
    try:
        for limit in (7, 100, 1000):
            found = await by_search(engine, TaskFilter(function="still"), limit)
            assert sorted(task.id for task in found) == sorted(still)
            assert [task.state for task in found].count("leased") == len(held)
    finally:
        is_over = True
        await moving


async def test_an_act_in_slices_reaches_all_of_them_once(engine):
    rng = random.Random(3)
    await fill(engine, rng)
    meant = TaskFilter(queue="mail", state=["ready", "delayed", "leased"])
    n, cursor, done = (await engine.count(meant)).count, None, 0
    while True:
        report = await engine.act("cancel", meant, limit=9, cursor=cursor)
        done, cursor = done + report.done, report.cursor
        if cursor is None:
            break
    assert (done, report.skipped) == (n, 0)
    assert (await engine.count(meant)).count == 0


async def test_nothing_is_read_or_decoded_on_the_loop(engine, monkeypatch):
    """Rows and records of tasks that have not ended; what was found is put together on the loop."""
    queue = engine.queue("mail", max_attempts=1)
    await queue.enqueue_many([NewTask(b"x", function="send") for _ in range(600)])
    await queue.enqueue_many([NewTask(b"x", function="send", delay=3600) for _ in range(300)])
    for lease in await queue.claim(limit=300):
        if lease.task_id[-1] % 2:
            await lease.bury("no")
    on_loop, beside, loop = [], set(), threading.get_ident()

    def watch(owner, name):
        real = getattr(owner, name)

        def watched(*args):
            if threading.get_ident() == loop:
                on_loop.append(name)
            else:
                beside.add(name)
            return real(*args)

        monkeypatch.setattr(owner, name, watched)

    watch(RocksStore, "scan_part")
    watch(RocksStore, "get")
    watch(row_search, "decode_task")
    watch(lease_search, "decode_task")
    watch(row_search, "decode_index_row")
    for meant in (
        TaskFilter(text="nothing"),
        TaskFilter(function="send", labels={"customer": "7"}),
        TaskFilter(state=["ready", "delayed", "leased", "dead"], older_than=3600),
    ):
        assert len(await engine.find(meant)) == 0
        assert (await engine.count(meant)).count == 0
    assert (await engine.count(TaskFilter(function="send"))).count == 900
    assert beside == {"scan_part", "get", "decode_task", "decode_index_row"}
    assert not on_loop


async def test_a_record_that_cannot_be_read_hides_no_other(engine, monkeypatch):
    queue = engine.queue("mail", max_attempts=1)
    receipts = await queue.enqueue_many([NewTask(b"%d" % n, function="send") for n in range(90)])
    for lease in (await queue.claim(limit=40))[::2]:
        await lease.bury("no")
    torn = {one.id for one in receipts[::7]}
    get = RocksStore.get

    def damaged(self, key):
        if key.startswith(b"t/") and key[2:] in torn:
            raise CorruptionError("block checksum mismatch")
        return get(self, key)

    monkeypatch.setattr(RocksStore, "get", damaged)
    for meant in (TaskFilter(), TaskFilter(function="send"), TaskFilter(reason="damaged")):
        expected = await by_lists(engine, meant)
        assert shown(await by_search(engine, meant, 11)) == shown(expected)
    assert (await engine.count(TaskFilter(function="send"))).count < 90
    assert (await engine.count(TaskFilter())).count == 90
    monkeypatch.setattr(RocksStore, "get", get)


async def test_what_ends_between_its_row_and_its_record_is_not_shown(engine, monkeypatch):
    """The thread has read the row; then the task is cancelled; then its record is looked for."""
    queue = engine.queue("mail")
    (gone, kept) = await queue.enqueue_many([NewTask(b"gone"), NewTask(b"kept")])
    loop, get = asyncio.get_running_loop(), RocksStore.get
    cancelled = threading.Event()

    def late(self, key):
        if key == b"t/" + gone.id and not cancelled.is_set():
            cancelled.set()
            asyncio.run_coroutine_threadsafe(engine.cancel(gone.id), loop).result(30)
        return get(self, key)

    monkeypatch.setattr(RocksStore, "get", late)
    assert [task.id for task in await engine.find(TaskFilter(state="ready"))] == [kept.id]
    assert cancelled.is_set()


async def test_large_payloads_come_a_few_at_a_time(engine, monkeypatch):
    monkeypatch.setattr(task_search, "_PAGE_BYTES", 40_000)
    queue = engine.queue("mail")
    await queue.enqueue_many([NewTask(b"x" * 15_000) for _ in range(30)])
    search = task_search.TaskSearch(
        engine._state, TaskFilter(), None, "decoded", 1000, looks_again=True
    )
    pages = [page async for page in search.pages()]
    assert sum(map(len, pages)) == 30
    assert max(map(len, pages)) == 3
    assert len({task.id for page in pages for task in page}) == 30
