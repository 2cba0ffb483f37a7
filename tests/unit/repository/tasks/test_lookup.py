"""Listing: every page goes on where the last one ended, over any number of shards."""

import asyncio

import pytest
from support_loop import on_loop

from lodeq import (
    ALL_TENANTS,
    Engine,
    Limits,
    NewTask,
    RecordCorruptError,
    Task,
    TaskId,
    TaskNotFoundError,
    UsageError,
)
from lodeq.engine.records.keyspace import EXPIRY, EXPIRY_END, RESULT, TASK
from lodeq.repository.tasks.task_list import LIST_STATES
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing


async def pages(engine: Engine, state: str, limit: int, tenant: object = "") -> list[Task]:
    """All of a state, page by page."""
    queue = engine.queue("mail", tenant=tenant)  # type: ignore[arg-type]
    out: list[Task] = []
    after: Task | None = None
    while page := await queue.list(state, limit=limit, after=after):
        assert len(page) <= limit
        out += page
        after = page[-1]
    return out


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("limit", [1, 4, 100])
@on_loop
async def test_pages_add_up_in_every_state(shards: int, limit: int) -> None:
    clock = ManualClock()
    async with open_testing(clock=clock, shards=shards, seed=1) as engine:
        mail = engine.queue("mail")
        expected: dict[str, set[TaskId]] = {state: set() for state in LIST_STATES}
        for n in range(7):
            for state in ("dead", "completed", "expired", "cancelled", "leased"):
                ttl = 5 if state == "expired" else None
                receipt = await mail.enqueue(b"%d" % n, ttl=ttl)
                expected[state].add(receipt.id)
                clock.advance(0.001)
                if state == "cancelled":
                    await engine.cancel(receipt.id)
                elif state != "expired":
                    (lease,) = await mail.claim(lease=1000)
                    assert lease.task_id == receipt.id
                    if state == "dead":
                        await lease.bury("no")
                    elif state == "completed":
                        await lease.complete()
                else:
                    clock.advance(6)
        for n in range(7):
            expected["ready"].add((await mail.enqueue(b"", priority=n)).id)
            expected["delayed"].add((await mail.enqueue(b"", delay=100 - n)).id)
            other = (await engine.queue("other").enqueue(b"")).id
            expected["waiting"].add(await engine.enqueue_after(NewTask(b"", "mail"), [other]))
        for state in LIST_STATES:
            found = await pages(engine, state, limit)
            assert len(found) == 7, state
            assert {task.id for task in found} == expected[state]
            assert {task.state for task in found} == {state}
        assert [t.priority for t in await pages(engine, "ready", limit)] == [6, 5, 4, 3, 2, 1, 0]
        due = [task.due_at for task in await pages(engine, "delayed", limit)]
        assert due == sorted(due, key=str)


@on_loop
async def test_finished_tasks_are_listed_over_more_than_256_shards() -> None:
    async with open_testing(clock=ManualClock(), shards=300, seed=1) as engine:
        mail = engine.queue("mail")
        ids = set()
        for n in range(20):
            ids.add((await mail.enqueue(b"", shard_key=f"key-{n}")).id)
        for lease in await mail.claim(limit=20):
            await lease.complete()
        assert {task.id for task in await pages(engine, "completed", 3)} == ids


@on_loop
async def test_all_tenants_are_listed_tenant_by_tenant() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        await engine.enqueue_many(
            [NewTask(b"", queue="mail", tenant=t) for t in ("b", "a", "a-b", "b", "a")]
        )
        found = await pages(engine, "ready", 2, ALL_TENANTS)
        assert [task.tenant for task in found] == ["a", "a", "a-b", "b", "b"]


@on_loop
async def test_bad_pages_are_refused() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        mail = engine.queue("mail")
        for options in ({"limit": 0}, {"limit": 10_001}, {"limit": True}, {"after": "x"}):
            with pytest.raises(UsageError):
                await mail.list("ready", **options)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="sleeping"):
            await mail.list("sleeping")


@on_loop
async def test_an_unknown_id_is_none_or_an_error() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        nobody = TaskId(bytes(6) + b"\x70" + bytes(9))
        assert await engine.get(nobody) is None
        with pytest.raises(TaskNotFoundError):
            await engine.result(nobody, wait=5)


async def completed(engine: Engine, n: int) -> list[TaskId]:
    """So many tasks that end in one commit."""
    mail = engine.queue("mail")
    await mail.enqueue_many([NewTask(b"")] * n)
    leases = await mail.claim(limit=n)
    await engine.complete_many([(lease, None) for lease in leases])
    return [lease.task_id for lease in leases]


@on_loop
async def test_a_page_of_finished_tasks_goes_on_although_older_ones_went() -> None:
    clock = ManualClock()
    async with open_testing(clock=clock, limits=Limits(results_max=6)) as engine:
        mail = engine.queue("mail")
        first = await completed(engine, 6)
        page = await mail.list("completed", limit=2)
        assert [task.id for task in page] == first[:2]
        second = await completed(engine, 3)
        clock.advance(1)
        assert (await mail.stats()).results == 6
        rest = await mail.list("completed", after=page[-1])
        assert [task.id for task in rest] == first[3:] + second


@pytest.mark.interpreted
@on_loop
async def test_listing_finished_tasks_lets_the_loop_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_testing(clock=ManualClock()) as engine:
        mail = engine.queue("mail")
        for _ in range(4):
            await completed(engine, 500)
        state = engine._state
        overlay, checkpoint = state.shards[0].overlay, state.spawner.checkpoint
        reads = [0]

        def get(key: bytes) -> bytes | None:
            reads[-1] += 1
            return type(overlay).get(overlay, key)

        async def noted() -> None:
            reads.append(0)
            await checkpoint()

        monkeypatch.setattr(overlay, "get", get)
        monkeypatch.setattr(state.spawner, "checkpoint", noted)
        assert len(await mail.list("completed", limit=5000)) == 2000
        assert max(reads) <= 256
        reads[:] = [0]
        assert len(await mail.list("completed", limit=3)) == 3
        assert sum(reads) <= 3


@pytest.mark.interpreted
@on_loop
async def test_listing_leased_tasks_lets_the_loop_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_testing(clock=ManualClock()) as engine:
        mail = engine.queue("mail")
        await mail.enqueue_many([NewTask(b"x")] * 500)
        leases = await mail.claim(limit=500)
        state = engine._state
        overlay, checkpoint = state.shards[0].overlay, state.spawner.checkpoint
        reads = [0]

        def get(key: bytes) -> bytes | None:
            reads[-1] += 1
            return type(overlay).get(overlay, key)

        async def noted() -> None:
            reads.append(0)
            if len(reads) == 2:
                await leases[-1].complete()
            await checkpoint()

        monkeypatch.setattr(overlay, "get", get)
        monkeypatch.setattr(state.spawner, "checkpoint", noted)
        found = await mail.list("leased", limit=1000)
        assert max(reads) <= 128
        assert {task.id for task in found} == {lease.task_id for lease in leases[:-1]}
        assert {task.payload for task in found} == {b"x"}


@on_loop
async def test_a_damaged_result_or_expiry_row_does_not_hide_the_others() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        mail = engine.queue("mail")
        first, second = await completed(engine, 3), await completed(engine, 2)
        store = engine._state.shards[0].store
        store.write([(RESULT + first[1], b"junk")])
        found = await mail.list("completed")
        assert [task.id for task in found] == [first[0], first[2], *second]
        rows = store.scan(EXPIRY, EXPIRY_END, 10)
        store.write([(rows[0][0], b"junk")])
        assert [task.id for task in await mail.list("completed")] == second


@on_loop
async def test_a_damaged_task_that_nobody_has_met_has_not_ended() -> None:
    clock = ManualClock()
    async with open_testing(clock=clock) as engine:
        engine._state.held_bytes_max = 0  # records from the store
        mail = engine.queue("mail")
        task_id = (await mail.enqueue(b"x", delay=10)).id
        engine._state.shards[0].store.write([(TASK + task_id, b"junk")])
        assert await engine.result(task_id) is None
        for call in (engine.get, engine.cancel):
            with pytest.raises(RecordCorruptError):
                await call(task_id)
        waiting = asyncio.ensure_future(engine.result(task_id, wait=60))
        await asyncio.sleep(0)
        clock.advance(11)
        assert await mail.claim() == []
        result = await waiting
        assert result is not None
        assert result.status == "dead"
