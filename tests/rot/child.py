"""The child of the rot tests: makes a store, or looks at damaged copies of it.

``make`` writes a closed store and tells what is in it. ``cases`` damages one copy after another and
tells of each what an ordinary open gave back, and what a salvage did. Nothing is judged here.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import shutil
from datetime import UTC, datetime
from typing import Any

import lodeq
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.store.upkeep import compact
from lodeq.testing import ManualClock

START = datetime(2026, 11, 23, 12, tzinfo=UTC)
WEEK = 7 * 86_400
BODY_BYTES_MIN = 2048
LIVES = 3
HANG_S = 20.0
ENDS = {"completed": 20, "dead": 10, "delayed": 15, "moved": 10, "keyed": 10, "body": 8}
READY = 60  # a life
FLOWS = 6


def open_at(path: str, clock: ManualClock, **how: Any) -> Any:
    return lodeq.open(
        path,
        clock=clock,
        block_cache_bytes=16 << 20,
        body_bytes_min=BODY_BYTES_MIN,
        inbox=False,
        **how,
    )


def payload(n: int, kind: str) -> bytes:
    return (b"%d:" % n).ljust(BODY_BYTES_MIN + 100 if kind == "body" else 300, b"%d" % (n % 10))


async def life(engine: lodeq.Engine, first: int, facts: dict[str, Any]) -> None:
    """Tasks in every state. ``facts``: by id, its kind and number."""
    queue, returned = engine.queue("q", retention=WEEK), engine.queue("returned")

    async def add(count: int, kind: str, into: lodeq.Queue = queue, **how: Any) -> None:
        for _ in range(count):
            n = first + len(added)
            key = {"dedup_key": f"k{n}", "dedup_window": WEEK} if kind == "keyed" else {}
            receipt = await into.enqueue(payload(n, kind), **how, **key)
            facts[receipt.id.hex()] = [kind, n]
            added.append(n)

    added: list[int] = []
    await add(ENDS["completed"], "completed", priority=9)
    await engine.complete_many(
        [(lease, int(lease.payload.partition(b":")[0])) for lease in await queue.claim(limit=20)]
    )
    await add(ENDS["dead"], "dead", priority=9)
    for lease in await queue.claim(limit=10):
        await lease.bury("no use")
    await add(ENDS["moved"], "moved", returned)
    for lease in await returned.claim(limit=10):
        await lease.nack(delay=0)
    await add(ENDS["delayed"], "delayed", delay=3600)
    await add(ENDS["keyed"], "keyed")
    await add(ENDS["body"], "body")
    await add(READY, "ready")
    await flows(engine)


async def flows(engine: lodeq.Engine) -> None:
    """Workflows in queues of their own, and outbox rows that wait for the reaper."""
    for n in range(FLOWS):
        flow = await engine.workflow(lodeq.NewTask(b"callback", "totals"), on_failure="wait")
        ids = await flow.add([lodeq.NewTask(b"member", "parts") for _ in range(4)])
        await flow.seal()
        key = {"shard_key": f"k{n}"}
        await engine.enqueue_after(lodeq.NewTask(b"late", "totals", **key), ids[:2])
        (lease,) = await engine.queue("parts").claim()
        await (lease.bury("no") if n % 2 else lease.complete(b"v"))


async def make(tell: Any, config: dict[str, Any]) -> None:
    """A life a table, over the default queue; tables as they fell, or merged into one."""
    facts: dict[str, Any] = {}
    path, clock = config["path"], ManualClock(START)
    how = {"shards": config["shards"], "durability": config["mode"]}
    for n in range(LIVES):
        # The same ids each time, so that a case is found again by its number.
        async with open_at(path, clock, rng=SeededRng(n), **how) as engine:
            await life(engine, 1000 * n, facts)
    async with open_at(path, clock, **how) as engine:  # what the log held is a table now
        if config["is_merged"]:
            for shard in engine._state.shards:
                compact(shard.store)
    tell("made", facts)


async def look(path: str, *, is_salvage: bool) -> dict[str, Any]:
    """Open it and use it: all that a user could learn of it."""
    seen: dict[str, Any] = {"errors": [], "claimed": {}, "dead": [], "results": {}, "reports": []}
    clock = ManualClock(START)
    how: dict[str, Any] = {"recovery": "salvage"} if is_salvage else {}
    try:
        engine = await open_at(path, clock, **how)
    except Exception as error:  # noqa: BLE001 - the judge decides what may come
        seen["refused"] = names(error)
        return seen
    seen["recoveries"] = (await engine.stats()).recoveries

    async def attempt(what: str, call: Any) -> Any:
        try:
            return await call()
        except lodeq.TaskNotFoundError:
            return None  # the judge sees that it is not there
        except Exception as error:  # noqa: BLE001 - the judge decides what may come
            seen["errors"].append([what, *names(error)])
            return None

    async def drain() -> None:
        for queue in (engine.queue("q"), engine.queue("returned")):
            while leases := await queue.claim(limit=16):
                for lease in leases:
                    n, _, _ = lease.payload.partition(b":")
                    is_whole = lease.payload in (payload(int(n), "ready"), payload(int(n), "body"))
                    seen["claimed"][lease.task_id.hex()] = is_whole
                await engine.complete_many([(lease, None) for lease in leases])

    async def finished() -> None:
        for task_id in config_ids:
            result = await attempt("result", lambda task_id=task_id: engine.result(task_id))
            if result is not None and result.status == "completed":
                seen["results"][task_id] = result.value

    async def dead() -> None:
        seen["dead"] = [task.id.hex() for task in await engine.queue("q").dead_letters(1000)]

    config_ids = CONFIG["completed"]
    report = await attempt("verify", engine.verify)
    seen["findings"] = [repr(finding) for finding in report.findings] if report else []
    await attempt("results", finished)
    await attempt("drain", drain)
    clock.advance(7200)
    await attempt("drain", drain)
    await attempt("dead", dead)
    health = await attempt("health", engine.health)
    seen["reasons"] = list(health.reasons) if health else []
    if is_salvage:

        async def merge() -> None:
            for shard in engine._state.shards:
                compact(shard.store)

        await attempt("compact", merge)
    await attempt("close", engine.close)
    return seen


def names(error: BaseException) -> list[str]:
    """Its classes, up to ours, and what it says."""
    mro = [kind.__name__ for kind in type(error).__mro__ if kind not in (object, BaseException)]
    return [*mro, str(error)[:300]]


def damage(root: str, how: str, name: str, at: int, bit: int) -> None:
    """Flip a bit, cut the file, empty it or drop it."""
    path = os.path.join(root, name)
    if how == "drop":
        os.unlink(path)
    elif how in ("cut", "empty"):
        os.truncate(path, at if how == "cut" else 0)
    else:
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit]))


CONFIG: dict[str, Any] = {}


async def cases(tell: Any, config: dict[str, Any]) -> None:
    CONFIG.update(config)
    copy = config["scratch"]
    for number, case in enumerate(config["cases"]):
        tell("begun", number)
        faulthandler.dump_traceback_later(HANG_S)  # where, if it does not come back
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(config["base"], copy)
        damage(copy, *case)
        async with asyncio.timeout(60):
            ordinary = await look(copy, is_salvage=False)
        shutil.rmtree(copy)
        shutil.copytree(config["base"], copy)
        damage(copy, *case)
        async with asyncio.timeout(60):
            salvaged = await look(copy, is_salvage=True)
            again = await look(copy, is_salvage=False)
        tell("seen", number, ordinary, salvaged, again)
    faulthandler.cancel_dump_traceback_later()


def main(fd: int, config: dict[str, Any]) -> None:
    """See ``crash.nursery``."""
    import logging

    logging.getLogger("lodeq").setLevel(logging.CRITICAL)

    def tell(*record: Any) -> None:
        data = json.dumps(record).encode() + b"\n"
        while data:
            data = data[os.write(fd, data) :]

    asyncio.run((make if "path" in config else cases)(tell, config))
