"""The process that is killed every few minutes, and comes back to the same store.

It tells every step of every task through a pipe, before and after; whoever kills it has the book.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from soak.load import Load

import lodeq

MIB = 1 << 20


async def life(config: dict[str, Any]) -> None:
    def tell(what: str, number: int) -> None:
        os.write(1, b"%b %d\n" % (what.encode(), number))

    start = time.monotonic()
    engine = lodeq.open(
        config["path"], shards=2, durability=config["mode"], block_cache_bytes=32 * MIB
    )
    async with engine as opened:
        took_ms = round((time.monotonic() - start) * 1000)
        load = Load(opened, tell, seed=config["seed"], first=config["first"], pace=config["pace"])
        report = await opened.verify()
        found = await load.numbers()
        findings = [repr(finding) for finding in report.findings[:5]]
        os.write(1, f"look {json.dumps([took_ms, found, findings])}\n".encode())
        if report.ok:
            await load.run(burst_s=config["burst_s"])


if __name__ == "__main__":
    asyncio.run(life(json.loads(sys.argv[1])))
