"""The table of ``docs/state_machine.md``, and the walk of a task along its rows."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from support_loop import settle

from lodeq import Backoff, Engine, NewTask, Queue, TaskFilter, TaskId
from lodeq.repository.model.flows.workflows import OnFailure
from lodeq.testing import ManualClock

__all__ = ["NONE", "Row", "Walk", "edges_drawn", "table"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "state_machine.md"
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
            "mail",
            max_attempts=2,
            lease=30,
            retention=retention,
            dead_retention=1000,
            backoff=Backoff("fixed", 5),
        )
        self.id = TaskId(bytes(16))

    async def enqueue(self, **options: float) -> None:
        options = {"dedup_window": 500, "ttl": 100, **options}
        self.id = (await self.mail.enqueue(b"", dedup_key="k", **options)).id  # type: ignore[arg-type]

    async def claim(self) -> None:
        (self.lease,) = await self.mail.claim()

    async def claim_dead(self) -> None:
        (self.lease,) = await self.mail.claim(dead=True)

    async def last_attempt(self) -> None:
        await self.lease.nack(delay=0)
        await self.claim()

    async def bring_to(self, state: str, by: str) -> None:
        if state == NONE:
            return
        if state == "waiting" or "workflow" in by:
            await self.open_workflow("cancel" if "failure" in by else "run")
            if state == "dead":
                await self.flow.add([NewTask(b"", "members")])
                await self.flow.seal()
                await (await self.engine.queue("members").claim())[0].bury("no")
                await self.claim()
                await self.lease.bury("no")
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
        if state == "leased" and by.endswith("dead letter"):
            await self.lease.bury("no")
            await self.claim_dead()

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
        (shard,) = self.engine._state.shards
        shard.store.write([(b"t/" + self.id, None)])
        assert await self.mail.claim() == []

    async def open_workflow(self, on_failure: OnFailure = "run") -> None:
        callback = NewTask(b"", "mail", ttl=100, max_attempts=2)
        self.flow = await self.engine.workflow(callback, on_failure=on_failure)
        assert self.flow.callback is not None
        self.id = self.flow.callback

    async def fire(self, *, fails: bool) -> None:
        if fails:
            (member,) = await self.flow.add([NewTask(b"", "members")])
            await self.engine.cancel(member)
        await self.flow.seal()

    async def replace(self) -> None:
        await self.mail.enqueue(b"", dedup_key="k", on_conflict="replace")

    async def reprioritise(self) -> None:
        """All of the queue: their order among each other is the same."""
        report = await self.engine.act("reprioritise", TaskFilter(queue="mail"), priority=9)
        assert report.done
        assert (await self.engine.act("reprioritise", TaskFilter(), priority=9)).done == 0

    async def delete(self) -> None:
        assert (await self.engine.act("delete", TaskFilter(queue="mail"))).done == 1
        assert (await self.engine.history()).results == ()

    async def move(self, by: str) -> None:
        moves: dict[str, Callable[[], Awaitable[object]]] = {
            "enqueue": self.enqueue,
            "enqueue with delay": lambda: self.enqueue(delay=20),
            "open a workflow": self.open_workflow,
            "fire": lambda: self.fire(fails=False),
            "fire after a failure": lambda: self.fire(fails=True),
            "redrive of its workflow": lambda: self.flow.redrive(),
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
            "claim of a dead letter": self.claim_dead,
            "complete of a dead letter": lambda: self.lease.complete(),
            "redrive of a dead letter": lambda: self.lease.redrive(),
            "cancel of a dead letter": lambda: self.engine.cancel(self.id),
            "nack of a dead letter": lambda: self.lease.nack(),
            "reap of a dead letter": lambda: self.advance(31),
            "redrive": lambda: self.mail.redrive([self.id]),
            "reprioritise": self.reprioritise,
            "delete": self.delete,
            "dead retention": lambda: self.advance(1002),
            "retention": lambda: self.advance(1002),
        }
        await moves[by]()
