"""Listing: every page goes on where the last one ended, over any number of shards."""

import pytest
from support_loop import on_loop

from lodeq import ALL_TENANTS, Engine, NewTask, Task, TaskId, TaskNotFoundError, UsageError
from lodeq.repository.listing import LIST_STATES
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
