"""The workload that is recorded: a store's whole life, told mark by mark.

``["i", op, kind, params]`` stands in the trace before a call is made, ``["a", op, answer]`` after
it returned, ``["found", …]`` after an open: what was in the store. A task has one owner at a time,
so its operations follow one another; everything else goes on at once.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from functools import partial
from typing import Any

from power.bugs import BUGS

import lodeq
from lodeq.coalescer import fsync
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records.result import decode_result
from lodeq.engine.records.task import decode_task
from lodeq.repository.api.view import view_of
from lodeq.repository.background import body_gc, event_publisher
from lodeq.segments.bodies import files
from lodeq.testing.history.capture.contents import HEADER, at_rest, contents

TENANT_QUEUES = (("alpha", ""), ("beta", "t"))
BACKOFF = lodeq.Backoff("fixed", base=0.002)
FAR_S = 3600.0
BACKLOG_MAX = 40
FLOWS = "flows"  # tasks that wait for tasks, and those they wait for; judged by themselves
FLOWS_AT = 10**9  # their numbers
ROLL = lodeq.journal.Roll(records=20)  # of the lifecycle journal: its files are left, too


def payload_of(number: int, sizes: tuple[int, ...]) -> bytes:
    """The payload of a task follows from its number."""
    return b"%d:" % number + b"%x" % (number * 0x9E3779B1) * (sizes[number % len(sizes)] // 9)


class Work:
    """Producers, workers and an operator, until enough operations were made."""

    def __init__(self, engine: lodeq.Engine, shim: Any, config: dict) -> None:
        self.engine = engine
        self.shim = shim
        self.random = random.Random(config["seed"])
        self.sizes = tuple(config["sizes"])
        self.next = config["first"]
        self.ops = config["first_op"]
        self.until = self.ops + config["ops"]
        self.copies_left = config["copies"]
        self.root = config["root"]
        self.flows = 0
        self.queues = [
            engine.queue(n, tenant=t, lease=FAR_S, backoff=BACKOFF) for n, t in TENANT_QUEUES
        ]
        self.parked: list[tuple[int, int, Any]] = []  # number, queue, id: delayed for ever
        self.dead: list[tuple[int, int, Any]] = []

    async def call(self, kind: str, params: dict, doing: Any, show: Any = None) -> Any:
        self.ops += 1
        op = self.ops
        self.shim.mark("i", op, kind, params)
        answer = await doing
        self.shim.mark("a", op, show(answer) if show else None)
        return answer

    def task(self, queue: int) -> tuple[list, lodeq.NewTask]:
        draw = self.random
        self.next += 1
        attempts = draw.choice((1, 2, 5))
        name, tenant = TENANT_QUEUES[queue]
        new = lodeq.NewTask(
            payload_of(self.next, self.sizes),
            name,
            tenant,
            priority=draw.randrange(10),
            delay=draw.choice((0.001, 0.004)) if draw.random() < 0.2 else None,
            max_attempts=attempts,
            headers={HEADER: self.next},
        )
        return [self.next, queue, attempts], new

    def is_durable(self) -> bool | None:
        return True if self.random.random() < 0.05 else None

    # -- producers ---------------------------------------------------------------------------

    async def offer(self) -> None:
        if (
            sum(tenant_queue.ready for tenant_queue in [await q.stats() for q in self.queues])
            > BACKLOG_MAX
        ):
            await asyncio.sleep(0.0005)
            return
        await self.produce()
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def produce(self) -> None:
        draw = self.random
        queue = draw.randrange(2)
        durable = self.is_durable()
        count = draw.choice((1, 1, 1, 2, 5, 12))
        made = [self.task(queue) for _ in range(count)]
        params = {"tasks": [told for told, _ in made], "durable": durable}
        news = [new for _, new in made]
        await self.call(
            "enqueue",
            params,
            self.engine.enqueue_many(news, durable=durable),
            lambda receipts: [receipt.id.hex() for receipt in receipts],
        )

    async def park(self) -> None:
        """A keyed task that is never due; sometimes it replaces the one before."""
        draw = self.random
        queue = draw.randrange(2)
        old = self.parked.pop(0) if len(self.parked) > 3 and draw.random() < 0.5 else None
        if old:
            queue = old[1]
        told, new = self.task(queue)
        key = f"k{old[0] if old else told[0]}"
        params: dict = {"tasks": [told], "durable": None}
        if old:
            params["numbers"] = [old[0]]
        receipt = await self.call(
            "replaced" if old else "enqueue",
            params,
            self.queues[queue].enqueue(
                new.payload,
                delay=FAR_S,
                dedup_key=key,
                on_conflict="replace",
                max_attempts=new.max_attempts,
                headers=new.headers,
            ),
            lambda receipt: [receipt.id.hex()],
        )
        if not old:
            self.parked.append((told[0], queue, receipt.id))

    # -- workers -----------------------------------------------------------------------------

    async def work(self) -> None:
        draw = self.random
        use = draw.choice(([0], [1], [0, 1]))
        is_exported = draw.random() < 0.1
        leases = await self.call(
            "claim",
            {"queues": use, "exported": is_exported},
            self.engine.claim(
                [self.queues[i] for i in use],
                limit=draw.choice((1, 1, 4, 12)),
                lease=FAR_S,
                wait=0.004,
                worker="w",
                exported=is_exported,
            ),
            lambda got: [[number_of(x), x.task_id.hex(), x.attempt, x.epoch] for x in got],
        )
        if len(leases) > 1 and draw.random() < 0.4:
            numbers = [number_of(lease) for lease in leases]
            await self.call(
                "complete",
                {"numbers": numbers, "parts": True},
                self.engine.complete_many(list(zip(leases, numbers, strict=True))),
                lambda lost: [repr(error) for error in lost if error],
            )
            return
        for lease in leases:
            await self.settle(lease)

    async def settle(self, lease: lodeq.Lease) -> None:
        draw = self.random
        number = number_of(lease)
        params: dict = {"numbers": [number], "durable": self.is_durable()}
        hows = ("complete", "then", "nack", "release", "bury", "cancel", "keep")
        how = draw.choices(hows, (40, 20, 12, 10, 8, 5, 5))[0]
        show = None
        if how == "keep":
            return
        if how == "then":
            made = [self.task(draw.randrange(2)) for _ in range(draw.randint(1, 4))]
            params["tasks"] = [told for told, _ in made]
            doing: Any = lease.complete(
                number, then=[new for _, new in made], durable=params["durable"]
            )
            how = "complete"
        elif how == "complete":
            doing = lease.complete(number, durable=params["durable"])
        else:
            params["durable"] = None
            doing = {
                "nack": lambda: lease.nack(delay=draw.choice((0, 0.002)), reason="no"),
                "release": lease.release,
                "bury": lambda: lease.bury("bad"),
                "cancel": lambda: self.engine.cancel(lease.task_id),
            }[how]()
        await self.call(how, params, doing, show)
        queue = [name for name, _ in TENANT_QUEUES].index(lease.queue)
        if how == "bury":
            self.dead.append((number, queue, lease.task_id))

    # -- the operator ------------------------------------------------------------------------

    async def operate(self) -> None:
        draw = self.random
        how = draw.choice(("fsync", "park", "park", "cancel", "redrive", "dead", "copy", "rest"))
        if how == "fsync" and draw.random() < 0.5:
            await self.call("fsync", {}, self.engine.fsync())
        elif how == "park":
            await self.park()
        elif how == "cancel" and self.parked:
            number, _, task_id = self.parked.pop()
            await self.call("cancel", {"numbers": [number]}, self.engine.cancel(task_id))
        elif how == "redrive" and self.dead:
            number, queue, task_id = self.dead.pop()
            doing = self.queues[queue].redrive([task_id])
            await self.call("redrive", {"numbers": [number]}, doing)
        elif how == "dead":
            await self.consume_dead()
        elif how == "copy" and self.copies_left and draw.random() < 0.3:
            self.copies_left -= 1
            name = f"copy{self.ops}"
            doing = self.engine.checkpoint(f"{self.root}/{name}")
            await self.call("checkpoint", {"path": name}, doing)

    async def consume_dead(self) -> None:
        """Dead letters under a lease: done, sent back, let go, or left leased."""
        draw = self.random
        queue, is_exported = draw.randrange(2), draw.random() < 0.3
        leases = await self.call(
            "claim_dead",
            {"queue": queue, "exported": is_exported},
            self.queues[queue].claim(
                limit=draw.choice((1, 2)), lease=FAR_S, exported=is_exported, dead=True
            ),
            lambda got: [[number_of(x), x.task_id.hex(), x.attempt, x.epoch] for x in got],
        )
        for lease in leases:
            number = number_of(lease)
            self.dead = [one for one in self.dead if one[0] != number]
            how = draw.choice(("complete", "redrive_lease", "nack", "keep"))
            if how == "keep":
                continue
            doing = {
                "complete": partial(lease.complete, number),
                "redrive_lease": lease.redrive,
                "nack": lease.nack,
            }[how]()
            await self.call(how, {"numbers": [number]}, doing)

    # -- tasks that wait for tasks -----------------------------------------------------------

    async def flow(self) -> None:
        """A task that waits for one of another shard, and workers of both."""
        draw, queue = self.random, self.engine.queue(FLOWS, lease=FAR_S)
        self.flows += 1
        task = {"payload": b"source", "headers": {HEADER: FLOWS_AT + 2 * self.flows}}
        source = await queue.enqueue(**task, shard_key=f"s{draw.randrange(40)}")
        late = lodeq.NewTask(
            b"late",
            FLOWS,
            headers={HEADER: FLOWS_AT + 2 * self.flows + 1},
            shard_key=f"l{draw.randrange(40)}",
        )
        await self.engine.enqueue_after(late, [source.id], on_failure=draw.choice(("run", "wait")))
        for lease in await queue.claim(limit=4):
            await (lease.bury("no") if draw.random() < 0.2 else lease.complete(b"v"))
        if draw.random() < 0.3:
            await queue.redrive()
        await asyncio.sleep(draw.choice((0, 0.001, 0.004)))

    # -- all of it ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Everything at once."""

        async def operator() -> None:
            await self.operate()
            await asyncio.sleep(self.random.choice((0, 0.001, 0.003)))

        async def again(do: Any) -> None:
            while self.ops < self.until:
                await do()

        async with asyncio.TaskGroup() as group:
            for do in (
                self.offer,
                self.offer,
                self.offer,
                self.work,
                self.work,
                self.work,
                self.flow,
                operator,
            ):
                group.create_task(again(do))

    async def run_in_order(self) -> None:
        """One thing after another: as good as the same calls every time."""
        while self.ops < self.until:
            await self.random.choice((self.produce, self.work, self.operate))()


def number_of(lease: lodeq.Lease) -> int:
    return int(bytes(lease.payload).partition(b":")[0])


async def look(engine: lodeq.Engine) -> dict:
    """Everything that is in the store.

    A payload that is lost is in ``lost``, and is judged as that: in nosync mode it may be.
    """
    report = await engine.verify()
    await at_rest(engine)
    found = contents(engine)
    lost = {bytes.fromhex(one) for one, number, _ in found["tasks"] if number in found["lost"]}
    findings = [one for one in report.findings if one.kind != "body" or one.task_id not in lost]
    own = flow_ids(engine)
    found["tasks"] = [one for one in found["tasks"] if one[0] not in own]
    found["results"] = [one for one in found["results"] if one[0] not in own]
    return {**found, "findings": [repr(finding) for finding in findings]}


def flow_ids(engine: lodeq.Engine) -> set[str]:
    """Ids of the tasks and results of ``FLOWS``, in hexadecimal."""
    found = set()
    for _, store in view_of(engine).stores():
        for lower, upper, decode in (
            (ks.TASK, ks.TASK_END, decode_task),
            (ks.RESULT, ks.RESULT_END, decode_result),
        ):
            for key, raw in store.scan(lower, upper, 1 << 20):
                if decode(raw).queue == FLOWS.encode():
                    found.add(key[2:].hex())
    return found


async def life(shim: Any, config: dict) -> None:
    """Open, look, work; then close, or vanish."""
    fsync.SYNC_COMMITS_MAX, fsync.FLUSH_COMMITS_MAX = config["sync_max"], config["flush_max"]
    # Lives of milliseconds: body files fill, and are copied together, within them; events move.
    files.FILE_BYTES, body_gc.LOOK_S, body_gc.QUIET_S = 5000, 0.002, 0.004
    event_publisher.PAUSE_S = 0.003
    if config.get("bug"):
        BUGS[config["bug"]]()
    shim.start(config["root"], config["trace"], life=config["life"], sync_us=config["sync_us"])
    if config["kill_at"]:
        shim.kill_at(config["kill_at"], is_torn=config["is_torn"])
    engine = await lodeq.open(
        f"{config['root']}/store",
        shards=config["shards"],
        durability=config["mode"],
        sync_interval=config["interval"],
        commit_batch_max=config["commit_batch_max"],
        block_cache_bytes=8 << 20,
        body_bytes_min=config["body_bytes_min"],
        journal=config["journal"],
        journal_roll=ROLL if config["journal"] else None,
    )
    shim.mark("found", await look(engine))
    work = Work(engine, shim, config)
    await (work.run_in_order() if config.get("in_order") else work.run())
    if config["end"] == "close":
        await work.call("close", {}, engine.close())


def main(shim: Any, config: dict) -> int:
    """In a forked child, which then vanishes: nothing is closed that was not closed in here."""
    try:
        asyncio.new_event_loop().run_until_complete(life(shim, config))
    except BaseException:  # noqa: BLE001 - told to the parent, whatever it is
        shim.mark("failed", traceback.format_exc())
        return 1
    return 0
