"""Jobs on Spark, each in a process of its own: an audit, and a load with one and two workers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from results import Bench, Goal, Result

import lodeq

TASKS = 1_000_000  # an audit of 3,000,000 rows: each has a record, an index row, a dedup key
LOADED = 1_000_000
PAYLOAD = b"x" * 200
BATCH = 10_000
TIMEOUT_S = 3600
AUDIT = Goal("median", least=300_000)  # 3,000,000 rows in 10 seconds

DRIVER = """
import json, sys, time
from lodeq.pipeline import build_session, load_tasks
from lodeq.pipeline.cli import run_job
from lodeq.pipeline.jobs import audit
from pyspark.sql.functions import lit

def rate(work):
    work("warm")
    began = time.perf_counter()
    return work("timed") / (time.perf_counter() - began)

def audited(spark, store, name):
    report = run_job("audit", spark, audit.Config(store=store))
    assert report.is_ok, report
    return report.total_rows

def loaded(spark, store, count, name):
    frame = spark.range(count).select(lit("mail").alias("queue"), lit("x" * 200).alias("payload"))
    assert load_tasks(frame, store, job=f"{name}-{spark.sparkContext.applicationId}")
    return count

if __name__ == "__main__":
    case, workers, store, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    spark = build_session(f"local[{workers}]", **{"spark.sql.shuffle.partitions": 4})
    if case == "audit":
        found = rate(lambda name: audited(spark, store, name))
    else:
        found = rate(lambda name: loaded(spark, store, count, name))
    spark.stop()
    print(json.dumps(found))
"""


def _child(case: str, workers: int, store: Path, count: int) -> float:
    """Rows a second, the second time."""
    given = [case, str(workers), str(store), str(count)]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *given],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: float = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(case: str, workers: int, store: Path, count: int) -> Callable[[], Awaitable[float]]:
    async def measure() -> float:
        return _child(case, workers, store, count)

    return measure


async def auditing(bench: Bench) -> None:
    """Rows a second with two workers, beside ``verify`` of the same store."""
    tasks, store = max(1000, int(TASKS * bench.scale)), bench.folder / "audited"
    async with lodeq.open(store, shards=4) as engine:
        queue = engine.queue("mail")
        for at in range(0, tasks, BATCH):
            await queue.enqueue_many(
                [
                    lodeq.NewTask(PAYLOAD, dedup_key=str(n))
                    for n in range(at, min(at + BATCH, tasks))
                ]
            )
        await engine.snapshot(keep=86_400)

    async def verified() -> float:
        async with lodeq.open(store, reaper=False) as engine:
            began = time.perf_counter()
            assert (await engine.verify()).ok
            return 3 * tasks / (time.perf_counter() - began)

    runs = await bench.rounds({"audit": _measure("audit", 2, store, 0), "verify": verified}, 1)
    bench.add(
        Result(
            "an audit on Spark",
            {"rows": 3 * tasks, "workers": 2},
            "rows/s",
            runs["audit"],
            "verify",
            runs["verify"],
            goal=AUDIT,
        )
    )
    shutil.rmtree(store)


async def scaling(bench: Bench) -> None:
    """Tasks a second that two workers stage, beside one."""
    count, store = max(1000, int(LOADED * bench.scale)), bench.folder / "loaded"
    async with lodeq.open(store, shards=4):
        pass
    runs = await bench.rounds({str(n): _measure("load", n, store, count) for n in (1, 2)}, 1)
    bench.add(
        Result(
            "a load on Spark",
            {"tasks": count, "workers": 2},
            "tasks/s",
            runs["2"],
            "one worker",
            runs["1"],
        )
    )
    shutil.rmtree(store)
