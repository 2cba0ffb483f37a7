"""Ten million finished jobs that are all kept: disk and memory a job, and the time of six filters.

``searches.py`` does the work, in processes of its own. There is one run: filling takes minutes, and
a scan of so many rows is its own average.
"""

from __future__ import annotations

import asyncio

import searches
from results import Bench, Goal, Result

JOBS = 10_000_000
QUEUES = 4
CASE = "searches over finished jobs"
KEPT = "what finished jobs take"
TURN_MS = Goal("median", most=20.0)


async def finished(bench: Bench) -> None:
    """Searches over finished jobs, all of which are kept: six filters, disk and memory a job."""
    n = max(1000, int(JOBS * bench.scale))
    folder = bench.folder / "finished"
    report = await asyncio.to_thread(searches.measure, folder, n, 1, QUEUES)
    if report["kept"] != n:
        raise RuntimeError(f"{report['kept']:,} of {n:,} jobs are kept")
    params = {"jobs": n, "queues": QUEUES, "shards": 1}
    for name, unit, value in (
        ("disk", "bytes/job", report["disk_bytes_a_job"]),
        ("memory of a process that has opened it", "bytes/job", report["memory_bytes_a_job"]),
        ("the same, in all", "MiB", report["memory_opened"] / 2**20),
        ("the same, at the highest while it searches", "MiB", report["memory_highest"] / 2**20),
        ("time to open it", "s", report["open_s"]),
        ("time to fill it", "s", report["fill_s"]),
    ):
        bench.add(Result(KEPT, {**params, "of": name, "in": unit}, "figure", [value]))
    for name, one in report["filters"].items():
        more = {
            "found": one["found"],
            "calls": one["calls"],
            "us of CPU a job": f"{one['process_cpu_s'] / n * 1e6:.2f}",
            "of it on the loop": f"{one['loop_cpu_s'] / n * 1e6:.2f}",
            "longest call, ms": one["longest_call_s"] * 1e3,
        }
        bench.add(Result(CASE, {"filter": name}, "s", [one["seconds"]], more=more))
    for name, one in report["filters"].items():
        bench.add(
            Result(
                f"longest turn of the loop under {CASE}",
                {"filter": name},
                "ms of CPU",
                [one["longest_turn_cpu_ms"]],
                more={"ms of time": one["longest_turn_wall_ms"]},
                goal=TURN_MS,
            )
        )
