"""Every row of the table in ``docs/state_machine.md`` is walked; the drawing shows the same."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support_loop import on_loop, settle

from lodeq import Backoff, Engine, Queue, TaskId
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing

PAGE = Path(__file__).resolve().parent.parent / "docs" / "state_machine.md"
NONE = "–"
Row = tuple[str, str, str, str, str]


def table() -> list[Row]:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in rows[1:]]  # type: ignore[misc]


def edges_drawn() -> set[tuple[str, str]]:
    found = re.findall(r"^    (\S+) --> (\S+):", PAGE.read_text("utf-8"), re.MULTILINE)
    ends = {"[*]": NONE}
    return {(ends.get(a, a), ends.get(b, b)) for a, b in found}


class Walk:
    """One task in the state a row starts from, and the moves."""

    def __init__(self, engine: Engine, clock: ManualClock, retention: float) -> None:
        self.engine, self.clock = engine, clock
        self.mail: Queue = engine.queue(
            "mail", max_attempts=2, lease=30, retention=retention, dead_retention=1000,
            backoff=Backoff("fixed", 5),
        )  # fmt: skip
        self.id = TaskId(bytes(16))

    async def enqueue(self, **options: float) -> None:
        options = {"dedup_window": 500, "ttl": 100, **options}
        self.id = (await self.mail.enqueue(b"", dedup_key="k", **options)).id  # type: ignore[arg-type]

    async def claim(self) -> None:
        (self.lease,) = await self.mail.claim()

    async def last_attempt(self) -> None:
        await self.lease.nack(delay=0)
        await self.claim()

    async def bring_to(self, state: str, by: str) -> None:
        if state == NONE:
            return
        if (state, by) == ("delayed", "TTL"):  # one that was only delayed expires after it is due
            await self.enqueue()
            await self.claim()
            await self.lease.nack(delay=500)
            return
        await self.enqueue(**({"delay": 20} if state == "delayed" else {}))
        if state in {"leased", "dead", "completed"}:
            await self.claim()
        if "last attempt" in by:
            await self.last_attempt()
        ends: dict[str, Callable[[], Awaitable[object]]] = {
            "dead": lambda: self.lease.bury("no"),
            "completed": lambda: self.lease.complete(),
            "cancelled": lambda: self.engine.cancel(self.id),
            "expired": lambda: self.advance(101),
        }
        if state in ends:
            await ends[state]()

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await settle()

    async def nack_past_ttl(self) -> None:
        await self.lease.heartbeat(1000)
        await self.advance(101)
        await self.lease.nack()

    async def claim_damaged(self) -> None:
        await self.claim()
        await self.lease.release()  # its record is not in memory any more
        (shard,) = self.engine._core.shards
        shard.store.write([(b"t/" + self.id, None)])
        assert await self.mail.claim() == []

    async def replace(self) -> None:
        await self.mail.enqueue(b"", dedup_key="k", on_conflict="replace")

    async def move(self, by: str) -> None:
        moves: dict[str, Callable[[], Awaitable[object]]] = {
            "enqueue": self.enqueue,
            "enqueue with delay": lambda: self.enqueue(delay=20),
            "promote": lambda: self.advance(21),
            "claim": self.claim,
            "claim of a damaged record": self.claim_damaged,
            "complete": lambda: self.lease.complete(),
            "nack with delay 0": lambda: self.lease.nack(delay=0),
            "nack with delay": lambda: self.lease.nack(delay=5),
            "nack of the last attempt": lambda: self.lease.nack(),
            "nack past its TTL": self.nack_past_ttl,
            "release": lambda: self.lease.release(),
            "release with delay": lambda: self.lease.release(delay=5),
            "bury": lambda: self.lease.bury(),
            "reap": lambda: self.advance(31),
            "reap of the last attempt": lambda: self.advance(31),
            "cancel": lambda: self.engine.cancel(self.id),
            "cancel of the lease": lambda: self.lease.cancel(),
            "purge": lambda: self.mail.purge(),
            "replace": self.replace,
            "TTL": lambda: self.advance(121),
            "redrive": lambda: self.mail.redrive([self.id]),
            "dead retention": lambda: self.advance(1002),
            "retention": lambda: self.advance(1002),
        }
        await moves[by]()


@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row[0]}, {row[1]}")
@on_loop
async def test_the_row_is_true(row: Row) -> None:
    start, by, end, attempts, place = row
    clock = ManualClock()
    async with open_testing(clock=clock) as engine:
        # The result of a dead letter outlives it, and `get` would still tell of it.
        is_gone = start == "dead" and end == NONE
        walk = Walk(engine, clock, retention=0 if is_gone else 1000)
        await walk.bring_to(start, by)
        before = await engine.get(walk.id)
        assert (before.state if before else NONE) == start
        other = (await walk.mail.enqueue(b"", dedup_key="other")).id if place else None
        await walk.move(by)
        task = await engine.get(walk.id)
        assert (task.state if task else NONE) == end
        if task is None:
            return
        had = before.attempts if before else 0
        assert task.attempts == {"same": had, "+1": had + 1, "−1": had - 1, "0": 0}[attempts]
        if end == "ready":
            order = [found.id for found in await walk.mail.list("ready")]
            ids = [walk.id, other] if place == "its old place" else [other, walk.id]
            assert order == ids
        if end in {"completed", "dead", "expired", "cancelled"}:
            result = await engine.result(walk.id)
            assert result is not None
            assert result.status == end
        if by != "claim of a damaged record":  # which stays where it is
            assert (await engine.verify()).ok


def test_the_drawing_shows_the_same_edges() -> None:
    assert edges_drawn() == {(start, end) for start, _, end, _, _ in table()}
