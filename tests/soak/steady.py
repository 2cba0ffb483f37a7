"""The process that lives as long as the soak does: what it leaks would show in its samples.

Its faults are those a process survives: syncs that take long, its engine closed and opened again,
calls cancelled by that. ``main`` prints one JSON line a sample; a line with ``broken`` is the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import random
import shutil
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from soak.book import Book, BrokenError
from soak.load import Load, number_of

import lodeq
from lodeq.engine.store.rocks import RocksStore

PAGE = os.sysconf("SC_PAGE_SIZE")
SLOW_SYNCS = 0.02
DRAIN_S_MAX = 120.0
MIB = 1 << 20
WARM_TIMES = 8.0  # so much more work while warming up, in a tenth of the time a life


def slow_down(seed: int) -> None:
    """Some syncs take as long as those of a busy disk."""
    draw, sync = random.Random(seed), RocksStore._sync

    def slowed(store: RocksStore) -> None:
        if draw.random() < SLOW_SYNCS:
            threading.Event().wait(draw.uniform(0.02, 0.3))
        sync(store)

    RocksStore._sync = slowed  # type: ignore[method-assign]


def disk_bytes(top: Path) -> int:
    """The bytes of a folder. Files that go meanwhile take nothing."""
    total = 0
    for folder, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def live_bytes(engine: lodeq.Engine) -> int:
    """Keys and values that are there now."""
    total = 0
    for shard in engine._state.shards:
        view = shard.store.snapshot()
        lower = b""
        while rows := view.scan(lower, b"\xff", 2000):
            total += sum(len(key) + len(value) for key, value in rows)
            lower = rows[-1][0] + b"\0"
        view.close()
    return total


class Steady:
    """One process, one store, many engines one after another."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.path = Path(config["path"])
        self.book = Book()
        self.next = 1
        self.started = time.monotonic()
        self.ends = self.started + config["seconds"]
        self.counts = {"opens": 0, "verified": 0, "copies": 0}
        self.copied = self.started

    def left_s(self) -> float:
        return self.ends - time.monotonic()

    def pace(self) -> dict[str, Any]:
        """How often what is done. Faster at first, over several lives.

        The allocator keeps what it once needed, in an arena for each thread: at the usual pace it
        takes hours to reach what it needs at most, and till then RSS grows without a leak.
        """
        warm_s = self.config.get("warm_s", 0.0)
        if time.monotonic() - self.started >= warm_s:
            return self.config
        often = {name: self.config[name] / 10 for name in ("burst_s", "verify_s", "copy_s")}
        return {
            **self.config,
            **often,
            "pace": WARM_TIMES * self.config["pace"],
            "reopen_s": warm_s / 10,
        }

    async def run(self) -> None:
        while self.left_s() > 0:
            await self.life()
        await self.drain()
        self.tell(
            final=True,
            acked=self.book.acked,
            ended=self.book.ended,
            delivered=self.book.delivered,
            looks=self.book.looks,
            **self.counts,
        )

    def open(self) -> Any:
        self.counts["opens"] += 1
        # A cache that is full within minutes: one that still fills looks like a leak.
        return lodeq.open(self.path, shards=2, block_cache_bytes=16 * MIB, sync_interval=0.5)

    def load(self, engine: lodeq.Engine) -> Load:
        return Load(
            engine,
            self.book.take,
            seed=self.config["seed"] + self.counts["opens"],
            first=self.next,
            pace=self.pace()["pace"],
        )

    async def life(self) -> None:
        """Open, compare with the book, work, look at it meanwhile."""
        async with self.open() as engine:
            load = self.load(engine)
            self.book.look(await load.numbers())
            every = self.pace()
            jobs = [
                load.run(burst_s=every["burst_s"]),
                self.sampling(engine, load),
                self.verifying(engine, every["verify_s"]),
                self.copying(engine, every["copy_s"]),
            ]
            work = asyncio.gather(*jobs)
            try:
                async with asyncio.timeout(max(0.1, min(every["reopen_s"], self.left_s()))):
                    await work
            except TimeoutError:
                pass
            self.next = load.next

    async def drain(self) -> None:
        """Every task that must be there is delivered, and no other."""
        async with self.open() as engine:
            load = self.load(engine)
            self.book.look(await load.numbers())
            due = set(self.book.state)
            until = time.monotonic() + DRAIN_S_MAX
            load.tell = lambda what, number: due.discard(number) if what == "ending" else None
            while any(
                s.pending or s.leased or s.dead for s in [await q.stats() for q in load.queues]
            ):
                if time.monotonic() > until:
                    raise BrokenError(f"not empty after {DRAIN_S_MAX:g} s: {len(due)} are left")
                for queue in load.queues:
                    await load.revive(queue)
                    for lease in await queue.claim(limit=64, wait=0.05):
                        number = number_of(lease.payload)
                        if number is not None and number not in due:
                            raise BrokenError(f"task {number} was delivered at the end")
                        due.discard(number)
                        await lease.complete(keep=False)
            if due:
                raise BrokenError(f"never delivered: {sorted(due)[:5]}")
            await self.verify(engine)

    # -- meanwhile -------------------------------------------------------------------------

    async def sampling(self, engine: lodeq.Engine, load: Load) -> None:
        while True:
            load.took_s.clear()
            await asyncio.sleep(self.config["sample_s"])
            stats = await engine.stats()
            if stats.anomalies:
                raise BrokenError(f"anomalies: {stats.anomalies}")
            took = sorted(load.took_s)
            self.tell(
                at=round(time.monotonic() - self.started, 2),
                rss=rss_bytes(),
                held=held_bytes(),
                blocks=sys.getallocatedblocks(),
                fds=fds(),
                threads=threading.active_count(),
                disk=disk_bytes(self.path),
                live=live_bytes(engine),
                ops=len(took),
                p50_ms=round(statistics.median(took) * 1e3, 3) if took else 0.0,
                p99_ms=round(took[len(took) * 99 // 100] * 1e3, 3) if took else 0.0,
                ready=stats.ready,
                delayed=stats.delayed,
                leased=stats.leased,
                dead=stats.dead,
                results=stats.results,
                lag_s=round(stats.reaper_lag, 3),
                waiting=sum(shard.waiting for shard in stats.shards),
                poisoned=sum(not s.coalescer.takes_writes for s in engine._state.shards),
            )

    async def verifying(self, engine: lodeq.Engine, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.verify(engine)

    async def verify(self, engine: lodeq.Engine) -> None:
        report = await engine.verify()
        self.counts["verified"] += 1
        if not report.ok:
            raise BrokenError(f"verify: {report.findings[:5]}")

    async def copying(self, engine: lodeq.Engine, every_s: float) -> None:
        """Backups are taken while work goes on, not in every life, and are restored."""
        while True:
            await asyncio.sleep(max(0.0, self.copied + every_s - time.monotonic()))
            self.copied = time.monotonic()
            copy, again = (self.path.with_suffix(end) for end in (".copy", ".again"))
            for folder in (copy, again):  # of a life that ended meanwhile
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            await engine.checkpoint(copy)
            await asyncio.to_thread(lodeq.restore, copy, again)
            self.counts["copies"] += 1
            for folder in (copy, again):
                await asyncio.to_thread(shutil.rmtree, folder)

    def tell(self, **sample: Any) -> None:
        sys.stdout.write(json.dumps(sample) + "\n")
        sys.stdout.flush()


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE


def held_bytes() -> int:
    """RSS without what the allocator keeps only for later: that varies by more than leaks grow."""
    _trim(0)
    return rss_bytes()


_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)  # glibc has it


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def main(config: dict[str, Any]) -> None:
    slow_down(config["seed"])
    steady = Steady(config)
    try:
        asyncio.run(steady.run())
    except BaseExceptionGroup as group:
        steady.tell(broken="; ".join(repr(error) for error in group.exceptions))
        raise
    except Exception as error:
        steady.tell(broken=repr(error))
        raise


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
