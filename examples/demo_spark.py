"""A million tasks through Spark and a live service, and an account of every one of them.

    python examples/demo_spark.py [--tasks 1000000] [--folder build/demo-spark]

Parquet is loaded into a store that a service has open, which works on; its workers do half. What
happens is streamed from the lifecycle journal into Parquet by a process that is killed in the
middle, and streamed on. What has ended is archived, and purged from the live store. Then comes a
report, four shards become six, and an audit. At the end every task is asked for: is it there, once?
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import lodeq
from lodeq.errors import LodeqError
from lodeq.pipeline import build_session
from lodeq.pipeline.cli import run_job
from lodeq.pipeline.jobs.frame.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES = ("mail", "billing", "reports")
LIVE = "live"  # what the service does for itself meanwhile
BURIED = 50  # one of so many does not complete
BAD = 7  # rows that cannot be tasks
CLAIM = 512
EVENT = ["shard", "incarnation", "number", "task_id", "kind", "queue", "tenant"]


# -- a process: the service ---------------------------------------------------------------------


async def serve(path: str) -> None:
    """Do what each line of stdin says, and tell of it on stdout; work for itself all the time."""
    done, gap = 0, 0.0
    over = asyncio.Event()

    async def live() -> None:
        nonlocal done, gap
        queue = engine.queue(LIVE)
        while not over.is_set():
            await queue.enqueue(b"")
            for lease in await queue.claim(worker="self"):
                await lease.complete()
                done += 1
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            gap = max(gap, time.perf_counter() - began - 0.01)

    async with lodeq.open(path, shards=4, journal="tasks") as engine:
        work = asyncio.create_task(live())
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, *given = json.loads(line)
            if what == "drain":
                said = await drain(engine, given[0])
            elif what == "snapshot":
                over.set()
                await work
                said = {"id": (await engine.snapshot(keep=86_400)).id, "live": done, "gap_s": gap}
            elif what == "purge":
                report = await engine.purge_archived(given[0])
                said = {"results": report.results, "dead": report.dead, "absent": report.absent}
            else:
                break
            print(json.dumps(said), flush=True)
        over.set()
        await work


async def drain(engine: lodeq.Engine, tasks: int) -> dict[str, int]:
    """Work on the queues until so many are done."""
    queues = [engine.queue(name, tenant=lodeq.ALL_TENANTS) for name in QUEUES]
    seen = dead = 0
    while seen < tasks:
        leases = await engine.claim(queues, limit=min(CLAIM, tasks - seen), worker="w1", wait=30)
        if not leases:
            raise LodeqError("nothing is left to do")
        good = []
        for lease in leases:
            seen += 1
            if seen % BURIED:
                good.append((lease, lease.payload))
            else:
                await lease.bury("it cannot be done")
                dead += 1
        if any(await engine.complete_many(good)):
            raise LodeqError("a lease was lost")
    return {"completed": seen - dead, "dead": dead}


class Service:
    """The process that has the store open."""

    def __init__(self, store: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def _answer(self) -> dict[str, Any]:
        line = self._pipe(self._process.stdout).readline()
        if not line:
            raise LodeqError("the service has ended")
        return dict(json.loads(line))

    def do(self, *what: object) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        stdin = self._pipe(self._process.stdin)
        stdin.write(json.dumps(what) + "\n")
        stdin.flush()
        return self._answer()

    def close(self) -> int:
        """End of input: it closes the store."""
        self._pipe(self._process.stdin).close()
        end = self._process.wait(timeout=120)
        self._pipe(self._process.stdout).close()
        return end


# -- a process: the stream that is killed --------------------------------------------------------


def stream(spark: SparkSession, store: str, out: str, *, die_at: int | None = None) -> None:
    """What the journal tells by now, into Parquet; ``die_at`` that record Java is killed."""
    process = spark.sparkContext._gateway.proc.pid if die_at is not None else 0

    def passing(batches: Any) -> Any:
        import os  # noqa: PLC0415 - in Spark's worker
        import signal  # noqa: PLC0415

        for batch in batches:
            if die_at is not None and max(batch["sequence"].to_pylist(), default=0) >= die_at:
                os.kill(process, signal.SIGKILL)
            yield batch

    read = spark.readStream.format("lodeq").option("table", "journal").option("tailer", "parquet")
    frame = read.option("maxRowsPerTrigger", 100_000).load(store)
    if die_at is not None:
        frame = frame.mapInArrow(passing, frame.schema)
    write = frame.writeStream.format("parquet").option("path", out)
    write = write.option("checkpointLocation", f"{out}.checkpoint").trigger(availableNow=True)
    write.start().awaitTermination()


def killed_stream(store: Path, out: Path) -> int:
    """Run it in a process of its own, and lose it in the middle of its second record or later."""
    told = [sys.executable, __file__, "--stream", str(store), str(out)]
    return subprocess.run(told, capture_output=True, timeout=600, check=False).returncode


# -- the account ---------------------------------------------------------------------------------


def write_input(spark: SparkSession, folder: Path, tasks: int) -> None:
    """Good rows, and a few that cannot be tasks."""
    rows = spark.range(tasks).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS payload",
        f"elt(CAST(id % 3 AS INT) + 1, {', '.join(map(repr, QUEUES))}) AS queue",
        "concat('t', id % 5) AS tenant",
        "CAST(id % 10 AS INT) AS priority",
        "CASE WHEN id % 4 = 0 THEN concat('key', id) END AS dedup_key",
    )
    bad = spark.range(BAD).selectExpr(
        "CAST('x' AS BINARY) AS payload",
        "'No Such Name!' AS queue",
        "'' AS tenant",
        "CAST(5 AS INT) AS priority",
        "CAST(NULL AS STRING) AS dedup_key",
    )
    rows.unionByName(bad).write.mode("overwrite").parquet(str(folder))


def numbers(frame: DataFrame, column: str) -> DataFrame:
    """The tasks' own numbers, of payloads or of results."""
    return frame.where(f"queue <> '{LIVE}'").selectExpr(
        f"CAST(CAST({column} AS STRING) AS BIGINT) AS n"
    )


def main(spark: SparkSession, folder: Path, tasks: int, progress: Progress) -> dict[str, Any]:
    """All of it; what was counted, by who counted it."""
    store, out = folder / "store", folder / "out"

    def job(name: str, **config: Any) -> Any:
        from importlib import import_module  # noqa: PLC0415 - jobs are found by their names

        made = import_module(f"lodeq.pipeline.jobs.{name}").Config(store=str(store), **config)
        report = run_job(name, spark, made, progress)
        if not report.is_ok:
            raise LodeqError(f"{name}: {[check for check in report.checks if not check.is_ok]}")
        return report

    with progress.step("input"):
        write_input(spark, folder / "input", tasks)
    service = Service(store)
    loaded = job("backfill", input=(str(folder / "input"),), job="load", out=str(out / "aside"))
    with progress.step("drain"):
        drained = service.do("drain", tasks // 2)
    with progress.step("stream, and kill it"):
        killed = killed_stream(store, out / "events")
    with progress.step("snapshot"):
        snapshot = service.do("snapshot")
    archive = job("archive", snapshot=snapshot["id"], out=str(out / "archive"), purge=True)
    with progress.step("purge"):
        purged = service.do("purge", archive.purge_plan)
    analytics = job(
        "analytics",
        snapshot=snapshot["id"],
        out=str(out / "report"),
        archive=str(out / "archive"),
        sla=("3600",),
    )
    if service.close():
        raise LodeqError("the service has failed")
    with progress.step("stream on"):
        stream(spark, str(store), str(out / "events"))
    resharded = job("reshard", shards=6)
    audited = job("audit", snapshot="new")
    with progress.step("account"):
        account = _account(spark, store, out)
    return {
        "input": {"rows": tasks + BAD},
        "backfill": {"loaded": loaded.loaded, "aside": loaded.quarantined},
        "drain": drained,
        "live": snapshot["live"],
        "killed": killed != 0,
        "archive": {"ended": archive.ended, "written": archive.written},
        "purge": purged,
        "analytics": analytics.ended,
        "page": analytics.page,
        "reshard": [resharded.old_shards, resharded.shards],
        "audit": {"rows": audited.total_rows, "found": len(audited.found)},
        "gap_ms": round(snapshot["gap_s"] * 1000, 1),
        **account,
    }


def _account(spark: SparkSession, store: Path, out: Path) -> dict[str, Any]:
    """Every task, wherever it is now; and every event, of those that the journal told."""
    from lodeq.pipeline.jobs.frame.ended import read_archive  # noqa: PLC0415 - imports Spark

    ended = read_archive(spark, str(out / "archive"))
    left = spark.read.format("lodeq").option("snapshot", "latest")
    left = left.option("columns", "queue,payload").load(str(store))
    places = {
        "completed": numbers(ended.where("outcome = 'completed'"), "value"),
        "dead": numbers(ended.where("outcome = 'dead'"), "payload"),
        "left": numbers(left, "payload"),
    }
    found: DataFrame | None = None
    for frame in places.values():
        found = frame if found is None else found.unionByName(frame)
    assert found is not None
    rows = found.selectExpr("count(*)", "count(DISTINCT n)", "min(n)", "max(n)").collect()[0]
    events = spark.read.parquet(str(out / "events"))
    kinds = events.where(f"queue <> '{LIVE}'").groupBy("kind").count().collect()
    return {
        "account": {name: frame.count() for name, frame in places.items()},
        "numbers": list(rows),
        "events": {row["kind"]: row["count"] for row in kinds},
        "events_twice": events.count() - events.dropDuplicates(EVENT).count(),
    }


def problems(said: dict[str, Any], tasks: int) -> list[str]:
    """What does not add up; nothing, if nobody lost anything or has it twice."""
    drained, account, events = said["drain"], said["account"], said["events"]
    half = tasks // 2
    ended = half + said["live"]
    claims = {
        "all rows are tasks or set aside": said["backfill"] == {"loaded": tasks, "aside": BAD},
        "half is done": drained["completed"] + drained["dead"] == half,
        "all that ended is archived": said["archive"] == {"ended": ended, "written": ended},
        "the store forgot just that": said["purge"]
        == {"results": ended, "dead": drained["dead"], "absent": 0},
        "the report is about all of it": said["analytics"] == ended,
        "every task is somewhere": account == {**drained, "left": tasks - half},
        "every task is there once": said["numbers"] == [tasks, tasks, 0, tasks - 1],
        "the stream was killed": said["killed"],
        "the stream tells every end": (events.get("completed"), events.get("died"))
        == (drained["completed"], drained["dead"]),
        "the stream tells every claim": events.get("claimed") == half,
        "the stream tells nothing twice": said["events_twice"] == 0,
        "four shards became six": said["reshard"] == [4, 6],
        "the audit is clean": said["audit"]["found"] == 0,
    }
    return [claim for claim, holds in claims.items() if not holds]


def run(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--folder", help="kept afterwards; a temporary one otherwise")
    parser.add_argument("--serve", metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--stream", nargs=2, help=argparse.SUPPRESS)
    told = parser.parse_args(given)
    if told.serve:
        asyncio.run(serve(told.serve))
        return 0
    if told.stream:
        spark = build_session("local[1]", **{"spark.driver.memory": "1g"})
        stream(spark, *told.stream, die_at=2)
        return 0
    spark = build_session("local[2]", **{"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory(prefix="lodeq-demo-") as folder:
        place = Path(told.folder or folder)
        os.makedirs(place, exist_ok=True)
        said = main(spark, place, told.tasks, Progress(sys.stderr, spark))
        spark.stop()
    print(json.dumps(said, indent=2))
    wrong = problems(said, told.tasks)
    print("\n".join(f"WRONG: {claim}" for claim in wrong) or "every count agrees")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run())
