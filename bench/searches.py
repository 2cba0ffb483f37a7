"""Searches over N finished jobs: the time of six filters, memory and disk a job.

``python bench/searches.py N [--folder FOLDER] [--shards N] [--queues N]`` fills a store with jobs
as a worker's are (function, preview, one label), of which every thousandth is dead, and keeps all
of them. A second process opens it and searches: so its memory is what a service has that finds
such a store, not what filling it left behind. It prints a line a filter: how many it found, how
long all of it took, the CPU time of the loop's thread and of the whole process, and the longest
turn of the loop meanwhile. ``--json`` prints the same as an object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from looplag import LoopLag

import lodeq
from lodeq import NewTask, TaskFilter

BATCH: Final = 1000
FUNCTIONS: Final = 100
CUSTOMERS: Final = 1000
DEAD_EVERY: Final = 1000
RECENT_S: Final = 5.0
DAY_S: Final = 86_400


def limits(n: int) -> lodeq.Limits:
    """Bounds that keep all of ``n`` jobs: by default 100,000 rows of a queue are kept."""
    return lodeq.Limits(
        history_s=7 * DAY_S, history_rows=4 * n, history_bytes=n * 4096, results_max=4 * n
    )


def status_bytes(name: str) -> int:
    """A figure of this process, as Linux keeps it: ``VmRSS`` now, ``VmHWM`` at its highest."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def disk_bytes(folder: Path) -> int:
    """Bytes that the files of a store take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def job(n: int) -> NewTask:
    return NewTask(
        b"x" * 100,
        max_attempts=1,
        function=f"function_{n % FUNCTIONS}",
        preview=f"n={n}",
        labels={"customer": str(n % CUSTOMERS)},
    )


async def fill(engine: lodeq.Engine, n: int, queues: int) -> None:
    """``n`` jobs, all of them over."""
    for start in range(0, n, BATCH):
        queue = engine.queue(f"q{start // BATCH % queues}")
        jobs = [job(i) for i in range(start, min(n, start + BATCH))]
        await queue.enqueue_many(jobs)
        leases = await queue.claim(limit=len(jobs))
        dead = leases[::DEAD_EVERY]
        for lease in dead:
            await lease.bury("smtp timeout after 5 s")
        gone = {lease.task_id for lease in dead}
        await engine.complete_many([(one, None) for one in leases if one.task_id not in gone])


async def fill_store(folder: Path, n: int, shards: int, queues: int) -> dict[str, Any]:
    """Make the store. Its disk is counted after the close, when its log is in tables."""
    begun = time.perf_counter()
    async with lodeq.open(folder, shards=shards, limits=limits(n)) as engine:
        await fill(engine, n, queues)
        took = time.perf_counter() - begun
        kept = (await engine.stats()).results
    return {
        "jobs": n,
        "shards": shards,
        "queues": queues,
        "kept": kept,
        "fill_s": took,
        "disk_bytes_a_job": disk_bytes(folder) / n,
    }


def filters(last: lodeq.Task) -> dict[str, TaskFilter]:
    """The six filters, by what they search for."""
    now = datetime.now(UTC)
    age_s = (now - last.enqueued_at).total_seconds()
    over_s = (now - (last.finished_at or now)).total_seconds()
    return {
        "completed, by function": TaskFilter(state="completed", function="function_7"),
        "dead, by reason": TaskFilter(state="dead", reason="TIMEOUT"),
        "by label": TaskFilter(labels={"customer": "7"}),
        "by age": TaskFilter(newer_than=age_s + RECENT_S),
        "by end": TaskFilter(finished_newer_than=over_s + RECENT_S),
        "by id prefix": TaskFilter(id_prefix=str(last.id)[:13]),
    }


async def search(engine: lodeq.Engine, meant: TaskFilter) -> dict[str, Any]:
    """All that one filter finds, call by call."""
    begun, loop_s, process_s = time.perf_counter(), time.thread_time(), time.process_time()
    found, calls, cursor, longest_call = 0, 0, None, 0.0
    with LoopLag(is_whole=False) as lag:
        while True:
            at = time.perf_counter()
            page = await engine.find(meant, limit=1000, cursor=cursor, payloads=False)
            longest_call = max(longest_call, time.perf_counter() - at)
            found, calls, cursor = found + len(page), calls + 1, page.cursor
            if cursor is None:
                break
        await asyncio.sleep(0)  # the last turn counts as well
    return {
        "found": found,
        "calls": calls,
        "seconds": time.perf_counter() - begun,
        "loop_cpu_s": time.thread_time() - loop_s,
        "process_cpu_s": time.process_time() - process_s,
        "longest_call_s": longest_call,
        "longest_turn_cpu_ms": lag.cpu_max_ms,
        "longest_turn_wall_ms": lag.wall_max_ms,
    }


async def search_store(folder: Path, n: int) -> dict[str, Any]:
    """Open the store, and search it."""
    before = status_bytes("VmRSS")
    begun = time.perf_counter()
    async with lodeq.open(folder, limits=limits(n)) as engine:
        report: dict[str, Any] = {
            "open_s": time.perf_counter() - begun,
            "memory_before_open": before,
            "memory_opened": status_bytes("VmRSS"),
        }
        (last,) = await engine.find(TaskFilter(state="completed"), limit=1)
        report["filters"] = {
            name: await search(engine, filters(last)[name])  # made now: ages count from now
            for name in filters(last)
        }
        report["memory_highest"] = status_bytes("VmHWM")
        report["count"] = str(await engine.count(TaskFilter(state="completed")))
    report["memory_bytes_a_job"] = (report["memory_opened"] - before) / n
    return report


def measure(folder: Path, n: int, shards: int, queues: int) -> dict[str, Any]:
    """Fill a store and search it, each in a process of its own; blocks."""
    report: dict[str, Any] = {}
    for step in ("fill", "search"):
        given = [str(n), "--folder", str(folder), "--shards", str(shards), "--queues", str(queues)]
        done = subprocess.run(
            [sys.executable, __file__, *given, "--step", step], stdout=subprocess.PIPE, check=True
        )
        report |= json.loads(done.stdout)
    return report


def print_report(report: dict[str, Any]) -> None:
    print(
        f"{report['jobs']:,} jobs, {report['kept']:,} kept, {report['shards']} shards, "
        f"{report['queues']} queues: {report['disk_bytes_a_job']:.0f} bytes of disk a job, "
        f"{report['memory_bytes_a_job']:.1f} of memory once open, "
        f"{report['memory_highest'] / 2**20:.0f} MiB at the highest; "
        f"filled in {report['fill_s']:.1f} s, opened in {report['open_s']:.2f} s"
    )
    for name, one in report["filters"].items():
        print(
            f"{name:24} {one['found']:>10,} found  {one['seconds']:9.3f} s in {one['calls']:,} "
            f"calls, {one['loop_cpu_s']:.3f} s on the loop, {one['process_cpu_s']:.3f} of CPU  "
            f"longest {one['longest_call_s'] * 1e3:.0f} ms, "
            f"turn {one['longest_turn_cpu_ms']:.1f} ms of CPU, "
            f"{one['longest_turn_wall_ms']:.1f} of time"
        )
    print(f"count of completed jobs: {report['count']}")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", type=int)
    parser.add_argument("--folder", type=Path, help="where the store is made; a temporary one")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", choices=["fill", "search"], help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    n, shards, queues = args.jobs, args.shards, args.queues
    if args.step == "fill":
        print(json.dumps(asyncio.run(fill_store(args.folder, n, shards, queues))))
        return 0
    if args.step == "search":
        print(json.dumps(asyncio.run(search_store(args.folder, n))))
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        report = measure(Path(folder, "store"), n, shards, queues)
    if args.json:
        print(json.dumps(report))
    else:
        print_report(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
