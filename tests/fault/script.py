"""A life of a store that touches every kind of file, told step by step to whoever judges it.

Records: ``["i", op, kind, params]`` before a call, then ``["a", op, answer]``,
``["e", op, [class names], text, receipts]`` or ``["hang", op]``; ``["health", ok, reasons]`` after
every error, ``["stalled", reasons]`` when a call waits on a store that says so.
Each task's number is in its payload.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import lodeq

PATIENCE_S = 600.0  # of the loop's quick seconds: longer than any store takes to heal
LOOK_S = 0.25
BACKOFF = lodeq.Backoff("fixed", base=3600.0)
Tell = Callable[..., None]


def names(error: BaseException) -> list[str]:
    """The classes of an error, most special first."""
    return [cls.__name__ for cls in type(error).__mro__]


class Script:
    """The calls. Every call is made whatever became of those before it, where that makes sense."""

    def __init__(self, engine: lodeq.Engine, tell: Tell, heal: Callable[[], bool]) -> None:
        self.engine = engine
        self.tell = tell
        self.heal = heal  # make room on the disk; False: it is not to be
        self.queue = engine.queue("q", backoff=BACKOFF, lease=3600.0)
        self.ops = 0
        self.number = 0
        self.ids: dict[int, lodeq.TaskId] = {}
        self.left: list[asyncio.Task[Any]] = []  # calls that wait for a disk that stays full

    # -- one call ----------------------------------------------------------------------------

    async def call(self, kind: str, params: Any, make: Any, show: Any = None) -> Any:
        """Make it, tell it, survive it. None if it raised or did not end."""
        self.ops += 1
        op = self.ops
        self.tell("i", op, kind, params)
        doing = asyncio.ensure_future(self._told(op, make, show))
        return await self._wait(op, doing)

    async def _told(self, op: int, make: Any, show: Any) -> Any:
        try:
            answer = await make()
        except Exception as error:  # noqa: BLE001 - the judge decides what may come
            receipts = [None if r is None else r.id.hex() for r in getattr(error, "receipts", ())]
            self.tell("e", op, names(error), str(error)[:300], receipts)
            try:
                health = await self.engine.health()
                self.tell("health", health.ok, list(health.reasons))
            except lodeq.ClosedError:
                pass
            return None
        self.tell("a", op, show(answer) if show else None)
        return answer

    async def _wait(self, op: int, doing: asyncio.Task[Any]) -> Any:
        waited = 0.0
        while waited < PATIENCE_S:
            done, _ = await asyncio.wait({doing}, timeout=LOOK_S)
            if done:
                return doing.result()
            waited += LOOK_S
            health = await self.engine.health()
            if waited >= 4 * LOOK_S and any("is stalled" in reason for reason in health.reasons):
                self.tell("stalled", list(health.reasons))
                if not self.heal():
                    self.left.append(doing)
                    return None
        self.tell("hang", op)
        return None

    # -- the calls ---------------------------------------------------------------------------

    def new(self, **options: Any) -> tuple[int, dict[str, Any]]:
        self.number += 1
        return self.number, {"payload": b"%d:" % self.number + b"x" * 600, **options}

    async def enqueue(self, **options: Any) -> None:
        number, new = self.new(**options)
        payload = new.pop("payload")
        place = "delayed" if "delay" in new else "ready"

        def show(receipt: lodeq.Receipt) -> list[str]:
            self.ids[number] = receipt.id
            return [receipt.id.hex()]

        await self.call(
            "enqueue", [[number, place]], lambda: self.queue.enqueue(payload, **new), show
        )

    async def enqueue_many(self, count: int) -> None:
        made = [self.new() for _ in range(count)]

        def show(receipts: list[lodeq.Receipt]) -> list[str]:
            self.ids.update((n, r.id) for (n, _), r in zip(made, receipts, strict=True))
            return [r.id.hex() for r in receipts]

        await self.call(
            "enqueue_whole",
            [[n, "ready"] for n, _ in made],
            lambda: self.queue.enqueue_many([lodeq.NewTask(new["payload"]) for _, new in made]),
            show,
        )

    async def claim(self, limit: int) -> list[lodeq.Lease]:
        def show(leases: list[lodeq.Lease]) -> list[list[Any]]:
            return [[number_of(x), x.task_id.hex(), x.attempt] for x in leases]

        return await self.call("claim", limit, lambda: self.queue.claim(limit=limit), show) or []

    async def settle(self, leases: list[lodeq.Lease]) -> None:
        hows = ("complete", "nack", "release", "bury")
        for lease, how in zip(leases, hows, strict=False):
            number = number_of(lease)
            if how == "complete":
                then, new = self.new()
                await self.call(
                    "complete",
                    [number, then],
                    lambda x=lease, p=new["payload"]: x.complete(b"ok", then=[lodeq.NewTask(p)]),
                )
            elif how == "nack":
                await self.call("nack", number, lambda x=lease: x.nack(delay=0))
            else:
                await self.call(how, number, getattr(lease, how))

    async def cancel(self, number: int) -> None:
        if number in self.ids:
            await self.call("cancel", number, lambda: self.engine.cancel(self.ids[number]), bool)

    async def read(self) -> None:
        for number in (1, 4):
            if number in self.ids:
                await self.call("get", number, lambda n=number: self.engine.get(self.ids[n]))

    async def pass_time(self) -> None:
        """Longer than a sync interval: what is durable gets into the watermark."""
        await asyncio.sleep(2.0)

    async def run(self, folder: str) -> None:
        """All of it, but for the close."""
        await self.enqueue(dedup_key="a")
        await self.enqueue(delay=3600.0)
        await self.enqueue(priority=9)
        await asyncio.gather(*(self.enqueue(shard_key=f"k{i}") for i in range(6)))
        await self.enqueue_many(5)
        first = await self.claim(5)
        await self.settle(first)
        await self.pass_time()
        await self.call("fsync", None, self.engine.fsync)
        copy = os.path.join(folder, "copy")
        await self.call("checkpoint", copy, lambda: self.engine.checkpoint(copy))
        await self.enqueue(durable=True)
        await asyncio.gather(*(self.enqueue(shard_key=f"m{i}") for i in range(4)))
        await self.settle(await self.claim(4))
        await self.cancel(1)
        await self.read()
        await self.call("fsync", None, self.engine.fsync)
        await self.pass_time()
        await self.enqueue()

    async def run_briefly(self) -> None:
        """Enough to see that the store works."""
        await self.enqueue()
        await self.settle(await self.claim(4))
        await self.call("fsync", None, self.engine.fsync)
        await self.pass_time()


def number_of(lease: lodeq.Lease) -> int:
    return int(lease.payload.partition(b":")[0])
