"""Open an image with the real engine and hold what is there against what is known."""

from __future__ import annotations

import asyncio
import shutil
import traceback

from power.knowledge import Knowledge, LostError
from power.work import FLOWS, ROLL, TENANT_QUEUES, look, payload_of
from support_lifecycle import judge_told

import lodeq
from lodeq import RecoveryRefusedError

OUTCOMES = ("plain", "copy", "repaired", "refused", "lost")
FAILED = OUTCOMES[3:]


async def examine(root: str, knowledge: Knowledge, config: dict, *, drains: bool) -> dict:
    """Open, look, compare; with ``drains`` also run every task, close, look again; and restore
    the checkpoints."""
    path = f"{root}/store"
    try:
        engine = await lodeq.open(
            path,
            shards=config["shards"],
            durability=config["mode"],
            block_cache_bytes=8 << 20,
            sync_interval=3600.0,
            journal=config["journal"],
            journal_roll=ROLL if config["journal"] else None,
        )
    except RecoveryRefusedError as error:
        return {"outcome": "refused", "why": str(error)}
    reports = (await engine.stats()).recoveries
    text = "; ".join(reports)
    outcome = "plain"
    if "nothing known to be durable is missing" in text:
        outcome = "copy"
    elif "a power cut took" in text or "repaired" in text:
        outcome = "repaired"
    found = await look(engine)
    knowledge.check(found)
    if drains:
        await drain(engine, knowledge, config)
        await drain_flows(engine)
        await engine.close()
        async with lodeq.open(path, journal=config["journal"]) as again:
            found = await look(again)
            reports = (await again.stats()).recoveries
            if found["findings"] or found["rows"] != found["counted"] or reports:
                wrong = {name: found[name] for name in ("findings", "rows", "counted")}
                raise LostError(f"after a drain and a close: {reports}, {wrong}, {found}")
        if config["journal"]:
            task_ids = [task_id for task_id, *_ in found["tasks"]]
            await judge_told(path, task_ids, may_have_holes=True)
        for name in knowledge.copies:
            lodeq.restore(f"{root}/{name}", f"{root}/restored")
            async with lodeq.open(f"{root}/restored") as copy:
                found = await look(copy)
            shutil.rmtree(f"{root}/restored", ignore_errors=True)
            if found["findings"] or found["rows"] != found["counted"]:
                raise LostError(f"restored from {name}: {found['findings']}, {found}")
    return {"outcome": outcome, "why": text}


async def drain(engine: lodeq.Engine, knowledge: Knowledge, config: dict) -> None:
    """Every task that is due is delivered once, with its payload, under a new epoch."""
    queues = [engine.queue(name, tenant=tenant) for name, tenant in TENANT_QUEUES]
    delivered: set[int] = set()
    met = -1
    while ready := sum([(await q.stats()).ready for q in queues]):
        leases = await engine.claim(queues, limit=64)
        for lease in leases:
            payload = bytes(lease.payload)
            number = int(payload.partition(b":")[0])
            if payload != payload_of(number, tuple(config["sizes"])) or number in delivered:
                raise LostError(f"task {number} was delivered with {payload[:50]!r}")
            before = knowledge.epochs.get(lease.task_id.hex(), 0)
            if lease.epoch <= before:
                raise LostError(f"task {number}: epoch {lease.epoch} after {before}")
            delivered.add(number)
        lost = await engine.complete_many([(lease, None) for lease in leases])
        if any(lost) or (not leases and ready == met):  # lost payloads may be all a claim meets
            raise LostError("the store does not drain")
        met = ready


async def drain_flows(engine: lodeq.Engine) -> None:
    """What waits for tasks of other shards runs, and after these."""
    queue = engine.queue(FLOWS)
    for _ in range(2000):
        await queue.redrive()
        leases = await queue.claim(limit=64)
        for lease in leases:
            if lease.payload == b"late":
                statuses = [part.status for part in await engine.parts_page(lease.task_id)]
                if None in statuses:
                    raise LostError(f"{lease.task_id} runs before what it waits for: {statuses}")
            await lease.complete(b"v")
        waiting = await queue.list("waiting", limit=100)
        parts = [part for one in waiting for part in await engine.parts_page(one.id)]
        # One whose source a power cut took waits for a redrive that cannot come.
        if not leases and all(part.status == "cancelled" for part in parts):
            for one in waiting:
                await engine.cancel(one.id)
            return
        await asyncio.sleep(0.002)
    raise LostError(f"tasks wait for ever: {waiting}, {parts}")


async def verdict(root: str, knowledge: Knowledge, config: dict, *, drains: bool) -> dict:
    """The same, whatever happens. What was not drained stays open: the process is to vanish."""
    try:
        return await examine(root, knowledge, config, drains=drains)
    except LostError as error:
        return {"outcome": "lost", "why": str(error)}
    except BaseException:  # noqa: BLE001 - anything else that an image leads to is a failure
        return {"outcome": "lost", "why": traceback.format_exc()}
