"""The child of the fault tests: lives the script with a fault, then reopens and says what is there.

One process may do both (what a service does that closes and opens again), or the first may end
without closing and a second one look (``looks_only``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from typing import Any

from fault import planted, quick
from fault.injector import ERRNOS, KINDS, STICKY, Injector
from fault.script import Script, names

import lodeq
from lodeq.coalescer import fsync
from lodeq.engine.store import full_disk_watchdog
from lodeq.testing import contents

OPEN_S = 100.0  # of the loop's quick seconds


class Child:
    """See the module's docstring."""

    def __init__(self, fd: int, config: dict[str, Any]) -> None:
        self.fd = fd
        self.config = config
        self.path = os.path.join(config["folder"], "store")
        self.injector = Injector(config["library"])
        self.is_healed = False

    def tell(self, *record: Any) -> None:
        data = json.dumps(record).encode() + b"\n"
        while data:
            data = data[os.write(self.fd, data) :]

    def open(self) -> Any:
        return lodeq.open(
            self.path,
            shards=self.config["shards"],
            durability=self.config["mode"],
            sync_interval=1.0,
            block_cache_bytes=16 << 20,
        )

    def heal(self) -> bool:
        """Space on the disk again, if that is how this one goes on."""
        if not self.config.get("heals", True) and not self.is_healed:
            return False
        self.is_healed = True
        self.injector.disarm()
        return True

    def arm(self) -> None:
        fault = self.config.get("fault")
        self.injector.watch(self.config["folder"])
        if fault is not None:
            self.injector.arm(
                fault["op"],
                KINDS[fault["kind"]],
                nth=fault["nth"],
                error=ERRNOS[fault["error"]],
                times=STICKY if fault["sticky"] else 1,
                torn=fault.get("torn", False),
            )

    async def opened(self) -> lodeq.Engine:
        """Leases that are to go back wait for room on the disk, and the open with them."""

        async def opening() -> lodeq.Engine:
            return await self.open()

        doing = asyncio.ensure_future(opening())
        done, _ = await asyncio.wait({doing}, timeout=OPEN_S)
        if not done and (self.config.get("fault") or {}).get("error") == "ENOSPC":
            self.is_healed = True
            self.injector.disarm()
        return await doing

    async def live(self) -> None:
        """The script, under the fault."""
        try:
            engine = await self.opened()
        except Exception as error:  # noqa: BLE001 - the judge decides what may come
            self.tell("refused", names(error), str(error)[:300])
            return
        self.tell("opened", list((await engine.stats()).recoveries))
        script = Script(engine, self.tell, self.heal)
        script.number = self.config.get("first", 0)
        if self.config.get("is_brief"):
            await script.run_briefly()
        else:
            await script.run(self.config["folder"])
        health = await engine.health()
        self.tell("last", health.ok, list(health.reasons))
        if self.config["ends"] == "kill":
            return
        try:
            async with asyncio.timeout(600):
                await engine.close()
                for doing in script.left:
                    await doing
            self.tell("closed")
        except Exception as error:  # noqa: BLE001 - the judge decides what may come
            self.tell("close_failed", names(error), str(error)[:300])

    async def look(self) -> None:
        """Without a fault: what is there, is it sound, and does it drain."""
        async with self.open() as engine:
            found = contents(engine)
            found["recoveries"] = list((await engine.stats()).recoveries)
            found["findings"] = [repr(f) for f in (await engine.verify()).findings]
            self.tell("found", found)
            queue = engine.queue("q", lease=3600.0)
            drained = []
            while leases := await queue.claim(limit=7):
                drained += [int(lease.payload.partition(b":")[0]) for lease in leases]
                await engine.complete_many([(lease, b"") for lease in leases])
            findings = [repr(f) for f in (await engine.verify()).findings]
            health = await engine.health()
            self.tell("drained", drained, findings, list(health.reasons))

    async def run(self) -> None:
        if not self.config.get("looks_only"):
            self.arm()
            await self.live()
            self.tell("hits", self.injector.hits)
            self.tell("events", [list(e) for e in self.injector.events()])
            self.injector.disarm()
            self.injector.watch("")
        if self.config["ends"] != "kill" or self.config.get("looks_only"):
            await self.look()


def main(fd: int, config: dict[str, Any]) -> None:
    """See ``crash.nursery``."""
    logging.getLogger("lodeq").setLevel(logging.ERROR)  # what a close could not do is expected
    fsync.FLUSH_COMMITS_MAX = 12  # so that the background flush has its turn in a short life
    if config.get("plant"):
        planted.PLANTS[config["plant"]]()
    full_disk_watchdog.STUCK_S = 8.0  # real seconds; RocksDB looks for room every five
    quick.run(Child(fd, config).run())
