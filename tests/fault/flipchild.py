"""The child of the flip tests: makes a store, or opens one flipped copy after another.

``make`` tells what was acknowledged: numbers of tasks that are *covered* (durable, and the
watermark knows it), those that came *later*, and those *completed* (covered, too).
``flips`` tells of each copy what became of it; nothing is judged here.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from typing import Any

from fault import quick
from fault.script import names, number_of

import lodeq
from lodeq.testing import contents

COVERED, LATER, COMPLETED = 24, 12, 4


def open_at(path: str, config: dict[str, Any], **options: Any) -> Any:
    return lodeq.open(
        path,
        shards=config["shards"],
        durability=config["mode"],
        sync_interval=1.0,
        block_cache_bytes=16 << 20,
        **options,
    )


def payload(number: int) -> bytes:
    return b"%d:" % number + b"x" * 200


async def make(tell: Any, config: dict[str, Any]) -> None:
    """Three lives: two that are closed, so that there are tables, and one as asked for."""
    path = config["path"]
    numbers = iter(range(1, COVERED + LATER + 1))
    for _ in range(2):
        async with open_at(path, config) as engine:
            for _ in range(COVERED // 3):
                await engine.queue("q").enqueue(payload(next(numbers)))
    engine = await open_at(path, config)
    queue = engine.queue("q")
    for lease in await queue.claim(limit=COMPLETED):
        await lease.complete(b"")
    for _ in range(COVERED // 3):
        await queue.enqueue(payload(next(numbers)))
    await engine.fsync()
    await asyncio.sleep(3.0)  # the watermark follows
    later = list(numbers)
    for number in later:
        await queue.enqueue(payload(number))
    tell(
        "made",
        [n for n in range(1, COVERED + 1) if n > COMPLETED],
        later,
        list(range(1, COMPLETED + 1)),
    )
    if config["ends"] == "kill":
        os._exit(0)
    await engine.close()


async def look(path: str, config: dict[str, Any]) -> dict[str, Any]:
    """Open it and use it: all that a user could learn of it."""
    told: dict[str, Any] = {"errors": [], "numbers": [], "drained": [], "reports": []}
    try:
        engine = await open_at(path, config)
    except Exception as error:  # noqa: BLE001 - the judge decides what may come
        told["refused"] = [*names(error), str(error)[:200]]
        return told

    async def attempt(what: str, call: Any) -> Any:
        try:
            return await call()
        except Exception as error:  # noqa: BLE001 - the judge decides what may come
            told["errors"].append([what, *names(error), str(error)[:200]])
            return None

    async def rows() -> None:
        found = contents(engine)
        told["numbers"] = [number for _, number, _ in found["tasks"]]
        told["completed"] = len(found["results"])

    async def drain() -> None:
        queue = engine.queue("q")
        while leases := await queue.claim(limit=8):
            for lease in leases:
                if lease.payload == payload(number_of(lease)):
                    told["drained"].append(number_of(lease))
            await engine.complete_many([(lease, b"") for lease in leases])
        dead = await queue.dead_letters(8)
        told["reports"] += [f"dead letter: {task.reason}" for task in dead]

    told["reports"] += (await engine.stats()).recoveries
    report = await attempt("verify", engine.verify)
    told["reports"] += [repr(finding) for finding in report.findings] if report else []
    await attempt("rows", rows)
    await attempt("drain", drain)
    told["reports"] += (await engine.health()).reasons
    await attempt("close", engine.close)
    return told


def flip(path: str, offset: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


async def flips(tell: Any, config: dict[str, Any]) -> None:
    for at, (name, offset, bit) in enumerate(config["flips"]):
        copy = config["scratch"]
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(config["base"], copy)
        flip(os.path.join(copy, name), offset, bit)
        tell("begun", at)
        async with asyncio.timeout(500):
            told = await look(copy, config)
            told["left"] = sorted(n for n in os.listdir(copy) if ".copy" in n)
            if "refused" in told:  # nothing was changed: with the bit turned back, all is there
                flip(os.path.join(copy, name), offset, bit)
                told["healed"] = await look(copy, config)
        tell("told", at, told)


def main(fd: int, config: dict[str, Any]) -> None:
    """See ``crash.nursery``."""
    import logging

    logging.getLogger("lodeq").setLevel(logging.ERROR)

    def tell(*record: Any) -> None:
        data = json.dumps(record).encode() + b"\n"
        while data:
            data = data[os.write(fd, data) :]

    quick.run((make if "path" in config else flips)(tell, config))
