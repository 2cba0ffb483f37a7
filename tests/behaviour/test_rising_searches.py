"""Ended tasks read on from an id, against a sorted list: other queues, gaps, deleted rows."""

import random
from pathlib import Path

import pytest
from support_behaviour import StillClock

import lodeq
from lodeq import NewTask, Task, TaskFilter, TaskId
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.tasks.operators import id_search

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MAIL = TaskFilter(queue="mail", state="completed")


async def pages(
    engine: lodeq.Engine, meant: TaskFilter, limit: int, after: TaskId | None = None
) -> list[list[Task]]:
    found, cursor = list[list[Task]](), None
    while True:
        page = await engine.find(
            meant, limit=limit, cursor=cursor, oldest_first=True, after=after, payloads=False
        )
        found.append(list(page))
        cursor = page.cursor
        if cursor is None:
            return found


async def ids(
    engine: lodeq.Engine, meant: TaskFilter, limit: int, after: TaskId | None = None
) -> list[TaskId]:
    return [task.id for page in await pages(engine, meant, limit, after) for task in page]


async def complete(engine: lodeq.Engine, name: str, n: int) -> None:
    leases = await engine.queue(name).claim(limit=n)
    await engine.complete_many([(lease, None) for lease in leases])


async def fill(engine: lodeq.Engine, clock: StillClock, rng: random.Random) -> list[TaskId]:
    """Bursts, gaps, other queues, and tasks that end long after later ones; the ids of ``mail``."""
    mail: list[TaskId] = []
    for _ in range(30):
        for name in ("mail", "sms"):
            many = [NewTask(b"x", priority=rng.randrange(10)) for _ in range(rng.randrange(40))]
            receipts = await engine.queue(name).enqueue_many(many)
            if name == "mail":
                mail += [one.id for one in receipts]
            await complete(engine, name, rng.randrange(1, 40))
        await clock.advance(rng.choice([0, 0, 0.001, 1, 3600]))
    for name in ("mail", "sms"):
        for _ in range(40):
            await complete(engine, name, 1000)
    assert not (await engine.stats()).ready
    return sorted(mail)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shards", [1, 4])
async def test_pages_are_a_sorted_list_cut_in_pieces(
    tmp_path: Path, clock: StillClock, shards: int, seed: int
) -> None:
    rng = random.Random(seed)
    limits = lodeq.Limits(history_s=30 * 86_400)
    async with lodeq.open(tmp_path / "s", shards=shards, clock=clock, limits=limits) as engine:
        mail = await fill(engine, clock, rng)
        for limit in (1000, 64, 7):
            assert await ids(engine, MAIL, limit) == mail
        gone = set(rng.sample(mail, len(mail) // 3)) | set(mail[20:60])
        await engine.act("delete", TaskFilter(ids=list(gone), state="completed"))
        left = [one for one in mail if one not in gone]
        for after in rng.sample(mail, 8):  # gone or not
            expected = [one for one in left if one > after]
            assert await ids(engine, MAIL, rng.choice([1000, 50]), after) == expected
        newer = TaskFilter(queue="mail", state="completed", newer_than=3600)
        expected = sorted([task.id async for task in engine.find_all(newer)])
        assert await ids(engine, newer, 50) == expected
        some = TaskFilter(queue="mail", state="completed", id_prefix=str(left[0])[:12])
        expected = sorted([task.id async for task in engine.find_all(some)])
        assert expected
        assert await ids(engine, some, 50) == expected


async def test_what_ends_while_pages_are_read_is_left_to_the_next_search(
    tmp_path: Path, clock: StillClock
) -> None:
    async with lodeq.open(tmp_path / "s", shards=3, clock=clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(b"x") for _ in range(60)])
        await complete(engine, "mail", 30)
        before = await ids(engine, MAIL, 1000)
        page = await engine.find(MAIL, limit=10, oldest_first=True)
        seen = [task.id for task in page]
        await clock.advance(1)
        await complete(engine, "mail", 30)
        while page.cursor is not None:
            page = await engine.find(MAIL, limit=10, oldest_first=True, cursor=page.cursor)
            seen += [task.id for task in page]
        assert seen == before
        assert len(await ids(engine, MAIL, 1000)) == 60


async def test_a_page_of_few_reads_few(
    tmp_path: Path, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is kept before and behind, and in how many shards."""
    async with lodeq.open(tmp_path / "s", shards=8, clock=clock) as engine:
        queue = engine.queue("mail")
        for _ in range(4):
            await queue.enqueue_many([NewTask(b"x") for _ in range(1000)])
        for _ in range(4):
            await complete(engine, "mail", 1000)
        mail = await ids(engine, MAIL, 1000)
        assert len(mail) == 4000
        rows = 0
        scan_part = RocksStore.scan_part

        def counted(
            self: RocksStore, lower: bytes, upper: bytes, limit: int
        ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
            nonlocal rows
            found, resume = scan_part(self, lower, upper, limit)
            rows += len(found)
            return found, resume

        monkeypatch.setattr(RocksStore, "scan_part", counted)
        for after in (mail[0], mail[2000], mail[3900]):
            rows = 0
            page = await engine.find(MAIL, limit=10, oldest_first=True, after=after)
            at = mail.index(after) + 1
            assert [task.id for task in page] == mail[at : at + 10]
            assert rows <= 8 * 2 * id_search._SCAN_ROWS
