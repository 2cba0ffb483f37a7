"""A mixed day, and a life of an hour: nothing by itself, everything at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from backlog import resident_mib
from cases.backlogs import disk_bytes
from day import MEAN_BYTES, Day
from results import Bench, Goal, Result
from settling import settled
from watch import Ceiling, Watch, add_turns, beside

import lodeq

STEADY = Goal("ratio", least=0.9)
BOUNDED = Goal("ratio", most=1.05)
HOUR_S = 3600.0
MINUTE_S = 60.0


async def mixed_day(bench: Bench) -> None:
    """Priorities, delays, keys, retries, heartbeats, TTLs, large payloads: every task counted."""
    seconds, watch = max(0.3, 4.0 * bench.scale), Watch()
    with Ceiling(bench.folder / "raw-day", seconds, payload_bytes=MEAN_BYTES) as ceiling:
        async with lodeq.open(bench.folder / "day") as engine:
            day = Day(engine)
            runs = await bench.rounds(
                {"raw": ceiling, "own": partial(day.run, seconds, watch)},
                before=partial(settled, [engine], [ceiling.db]),
            )
    bench.add(
        beside(
            "a mixed day",
            {"callers": "32 + 128", "mean_payload_bytes": MEAN_BYTES, "durability": "nosync"},
            "cycles/s",
            runs["own"],
            watch,
            runs["raw"],
            ceiling,
            **day.outcomes(),
        )
    )
    add_turns(bench, {"a mixed day": watch})


class Samples:
    """The figures of a life that can be seen from outside, an interval at a time."""

    def __init__(self, day: Day, folder: str) -> None:
        self.day = day
        self.folder = folder
        self.rates: list[float] = []
        self.resident_mib: list[float] = []
        self.descriptors: list[float] = []  # but for those of tables
        self.tables: list[float] = []
        self.threads: list[float] = []
        self.store_mib: list[float] = []

    async def take(self, every_s: float) -> None:
        """Take samples until it is cancelled."""
        done, at = self.day.counts["completed"], time.perf_counter()
        # A thread of its own: the loop's pool would have one more once it met another's work.
        with ThreadPoolExecutor(1) as own:
            await self._take(every_s, own, done, at)

    async def _take(self, every_s: float, own: ThreadPoolExecutor, done: int, at: float) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(own, int)  # it is there from the first sample on
        while True:
            await asyncio.sleep(max(0.0, at + every_s - time.perf_counter()))
            now, then = self.day.counts["completed"], time.perf_counter()
            self.rates.append((now - done) / (then - at))
            done, at = now, then
            self.resident_mib.append(resident_mib())
            tables, others = _open_files()
            self.tables.append(tables)
            self.descriptors.append(others)
            self.threads.append(len(os.listdir("/proc/self/task")))
            size = await loop.run_in_executor(own, disk_bytes, self.folder)
            self.store_mib.append(size / 2**20)


def _open_files() -> tuple[int, int]:
    """Open tables of RocksDB, whose number is that of the tree, and all other descriptors."""
    tables = others = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            is_table = os.readlink(f"/proc/self/fd/{name}").endswith(".sst")
        except FileNotFoundError:  # that of the listing itself
            continue
        tables += is_table
        others += not is_table
    return tables, others


async def life(bench: Bench) -> None:
    """One life of an hour (a minute in the quick run): rate, memory, files, disk as it goes on."""
    seconds = HOUR_S if bench.scale >= 1 else max(2.0, 200.0 * bench.scale)
    every_s = min(MINUTE_S, seconds / 20)
    watch, folder = Watch(), bench.folder / "life"
    raws: list[float] = []
    with Ceiling(bench.folder / "raw-life", 1.0, payload_bytes=MEAN_BYTES) as ceiling:
        raws.append(await ceiling())
        async with lodeq.open(folder) as engine:
            day = Day(engine)
            samples = Samples(day, str(folder))
            sampling = asyncio.create_task(samples.take(every_s))
            rate = await day.run(seconds, watch)
            sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampling
            await settled([engine], [ceiling.db])
            raws.append(await ceiling())
    params = {"seconds": round(seconds), "callers": "32 + 128"}
    bench.add(
        beside(
            "a life",
            params,
            "cycles/s",
            [rate],
            watch,
            [statistics.mean(raws)],
            ceiling,
            **day.outcomes(),
        )
    )
    is_whole = seconds >= HOUR_S
    for what, unit, values, goal in (
        ("rate", "cycles/s", samples.rates, STEADY),
        ("store", "MiB", samples.store_mib, None),
        ("open tables", "files", samples.tables, None),
    ):
        few = len(values) // 4
        bench.add(
            Result(
                "quarters of a life",
                {"seconds": round(seconds), "what": what, "unit": unit},
                "in the last quarter",
                values[-few:],
                "the first quarter",
                values[:few],
                goal=goal if is_whole else None,
                more={"least": round(min(values), 1), "most": round(max(values), 1)},
            )
        )
    for what, unit, values in (
        ("resident memory", "MiB", samples.resident_mib),
        ("descriptors but tables", "files", samples.descriptors),
        ("threads", "threads", samples.threads),
    ):
        few = max(1, len(values) // 12)  # five minutes of an hour
        bench.add(
            Result(
                "end of a life",
                {"seconds": round(seconds), "what": what, "unit": unit},
                "at its end",
                values[-few:],
                "after five minutes" if is_whole else "after a twelfth",
                values[few : 2 * few],
                goal=BOUNDED if is_whole else None,
                more={"least": round(min(values), 1), "most": round(max(values), 1)},
            )
        )
    add_turns(bench, {f"a life of {round(seconds):,} s": watch})
