"""The child of ``test_kill_workflow``: dies by its own hand after the k-th write.

Each write is one batch: an open, a slice, a seal, an end of a member, a slice of a redrive. So
dying after each of them is a kill between each pair of steps.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import nullcontext, suppress

from crash.tick_child import Fuse

import lodeq
from lodeq import NewTask
from lodeq.repository.workflows import acts

PARTS, CHAIN = 5, 3


async def fill(engine: lodeq.Engine) -> lodeq.Workflow:
    """The producer: the same each time."""
    flow = await engine.workflow(NewTask(b"join", "joins", max_attempts=50), key="the one")
    await flow.add([NewTask(b"p", "parts", max_attempts=50) for _ in range(PARTS)])
    tasks = [NewTask(b"c", "parts", max_attempts=50) for _ in range(CHAIN)]
    ids = await flow.add(tasks, chain=True)
    await flow.add([NewTask(b"a", "parts", max_attempts=50)], after=ids[:2])
    await flow.seal()
    return flow


async def run_all(
    engine: lodeq.Engine, *, fails: bool, revokes: bool = False
) -> list[tuple[str, int]]:
    """Workers: every task there is. ``fails``: the first two parts die. What joins were seen.

    ``revokes``: a cancel of the process before may go on meanwhile, and take leases back.
    """
    seen = []
    dead = 2 if fails else 0
    while leases := await engine.claim(["parts", "joins"], limit=2):
        for lease in leases:
            if lease.queue == "joins":
                parts = await engine.parts_page(lease.task_id)
                assert all(part.status is not None for part in parts), parts
                assert len(parts) == PARTS + CHAIN + 1
                seen.append((str(lease.task_id), lease.attempt))
            with suppress(lodeq.LeaseLostError) if revokes else nullcontext():
                if dead and lease.payload == b"p":
                    dead -= 1
                    await lease.bury("no")
                else:
                    await lease.complete(b"v")
    return seen


async def life(fd: int, config: dict) -> None:
    def tell(record: list) -> None:
        os.write(fd, json.dumps(record).encode() + b"\n")

    acts.SLICE = 2
    fuse = Fuse()
    fuse.fit()
    async with lodeq.open(
        config["path"], shards=2, durability=config["mode"], reaper=config["reaper"]
    ) as engine:
        fuse.writes.clear()
        fuse.kills_after = config["kills_after"]
        flow = await fill(engine)
        revokes = config["act"] == "cancel" and not config["kills_after"]
        tell(["joins", await run_all(engine, fails=config["act"] != "run", revokes=revokes)])
        if config["act"] == "redrive":
            tell(["redriven", await flow.redrive()])
        elif config["act"] == "cancel":
            await flow.redrive()
            tell(["cancelled", await flow.cancel()])
        tell(["joins", await run_all(engine, fails=False)])
        if not config["kills_after"]:
            if config["act"] == "redrive":  # once more: a kill may have left anything dead
                await flow.redrive()
                tell(["joins", await run_all(engine, fails=False)])
            if config["act"] == "cancel":
                await flow.cancel()
            info = await flow.info()
            report = await engine.verify()
            found = [repr(one) for one in report.findings]
            tell(["over", info.state, info.members, info.ended, info.failed, found])


def main(fd: int, config: dict) -> None:
    """See ``nursery``."""
    asyncio.run(life(fd, config))
