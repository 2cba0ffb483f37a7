"""Tasks are found by when they ended, however they ended: one of each way every two hours."""

from itertools import chain
from pathlib import Path

import pytest
from support_behaviour import StillClock

import lodeq
import lodeq.testing
from lodeq import NewTask, Task, TaskFilter
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def everything(engine: lodeq.Engine, meant: TaskFilter) -> list[Task]:
    found, cursor, is_over = list[Task](), None, False
    while not is_over:
        page = await engine.find(meant, limit=5, cursor=cursor)
        found, cursor = [*found, *page], page.cursor
        is_over = cursor is None
    return found


@pytest.mark.parametrize("shards", [1, 3])
async def test_what_ended_last_night_is_found_by_when_it_ended(
    tmp_path: Path, clock: StillClock, shards: int
) -> None:
    limits = lodeq.Limits(history_s=2 * 86400)
    ended: list[list[lodeq.TaskId]] = []
    async with lodeq.open(tmp_path / "s", shards=shards, clock=clock, limits=limits) as engine:
        queue = engine.queue("mail")
        late = [await engine.queue("sms").enqueue(b"x", ttl=7200 * n) for n in range(1, 7)]
        many = [NewTask(b"%d" % n, max_attempts=1) for n in range(18)]
        await queue.enqueue_many(many)
        for n in range(6):
            await clock.advance(7200)
            done, dead, gone = await queue.claim(limit=3)
            await done.complete()
            await dead.bury("bad")
            await engine.cancel(gone.task_id)
            ended.append([late[n].id, done.task_id, dead.task_id, gone.task_id])
        await queue.enqueue(b"waits")
        await clock.advance(3600)

        async def found(**ages: float) -> list[lodeq.TaskId]:
            meant = TaskFilter(**ages)
            ids = sorted(task.id for task in await everything(engine, meant))
            assert await engine.count(meant) == lodeq.FoundCount(len(ids), is_exact=True)
            return ids

        for first in range(7):
            for last in range(first, 7):
                expected = sorted(chain(*ended[first:last]))
                since, until = 7200 * (6 - first), 7200 * (6 - last)
                ages = {"finished_newer_than": since, "finished_older_than": until}
                assert await found(**ages) == expected
        assert await found(finished_newer_than=3600 * 4) == sorted(chain(*ended[4:]))
        assert await found(finished_older_than=3600 * 4) == sorted(chain(*ended[:4]))
        pending = TaskFilter(state="ready", finished_newer_than=86400)
        assert await everything(engine, pending) == []
        hours = {"finished_newer_than": 3600 * 4, "finished_older_than": 3600 * 2}
        report = await engine.act("redrive", TaskFilter(state="dead", **hours))
        assert (report.done, (await engine.get(ended[4][2])).state) == (1, "ready")


async def by_bury(engine: lodeq.Engine) -> None:
    await (await engine.queue("mail").claim_one()).bury("bad")


async def by_complete(engine: lodeq.Engine) -> None:
    await (await engine.queue("mail").claim_one()).complete()


async def by_claim(engine: lodeq.Engine) -> None:
    await engine.queue("mail").claim(lease=7200)


AHEAD = {"dead": by_bury, "completed": by_complete, "leased": by_claim}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("state", AHEAD)
async def test_what_came_before_the_clock_was_set_back_is_found(state: str, named: bool) -> None:
    clock = ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        receipt = await engine.queue("mail").enqueue(b"x")
        clock.advance(3600)
        await AHEAD[state](engine)
        clock.step_wall(-3600)
        meant = TaskFilter(state=state, ids=[receipt.id] if named else None)
        assert [task.id for task in await engine.find(meant)] == [receipt.id]


async def test_what_died_since_an_act_began_is_not_met_after_the_clock_was_set_back() -> None:
    clock = ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        queue = engine.queue("mail", max_attempts=1)
        await queue.enqueue_many([NewTask(b"1"), NewTask(b"2")])
        clock.advance(3600)
        for lease in await queue.claim(limit=2):
            await lease.bury("bad")
        clock.step_wall(-3600)
        report = await engine.act("redrive", TaskFilter(), limit=1)
        clock.advance(1)
        await by_bury(engine)
        report = await engine.act("redrive", TaskFilter(), cursor=report.cursor)
        assert (report.done, report.cursor) == (1, None)
