"""The audit and the reshard as jobs; what they find and keep is tested without Spark."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from support_jobs import job, live, make_worked

import lodeq
from lodeq import NewTask
from lodeq.engine.records import keyspace as ks
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import SnapshotNotFoundError, UsageError
from lodeq.pipeline.jobs import audit
from lodeq.pipeline.jobs.frame.progress import Progress
from lodeq.service.cli.app import lodeq as command


def test_a_sound_store_is_told_to_be_one(spark: SparkSession, tmp_path: Path) -> None:
    store = make_worked(tmp_path / "store", journal="tasks")
    report = job(spark, "audit", store=store, plan=tmp_path / "plan.json")
    assert report.is_ok, report
    assert (report.found, report.plan) == ((), None)
    assert report.rows["results"] == 46
    assert report.total_rows > 100
    assert not (tmp_path / "plan.json").exists()


def test_a_plan_that_could_not_be_written_is_refused_first(tmp_path: Path) -> None:
    for plan in (tmp_path / "none" / "plan.json", tmp_path):
        with pytest.raises(UsageError, match="an existing folder"):
            audit.run(None, audit.Config(store=str(tmp_path / "no"), plan=str(plan)), Progress())


def test_what_is_wrong_is_told_planned_and_repaired(spark: SparkSession, tmp_path: Path) -> None:
    root = make_worked(tmp_path / "store")

    async def to_both(engine: lodeq.Engine) -> None:  # what was worked on may lie in one shard
        await engine.queue("mail").enqueue_many([NewTask(b"", shard_key=k) for k in "abcdefgh"])

    live(root, to_both)
    store = RocksStore.open(root / "shard1", shared=SharedMemory(8 << 20), shards=2, create=False)
    rows = store.scan(ks.INDEX, ks.INDEX_END, 1000)
    store.write([(rows[0][0], None)])
    store.close()
    plan = tmp_path / "plan.json"
    report = job(spark, "audit", store=root, snapshot="new", plan=plan)
    assert not report.is_ok
    assert {(one.shard, one.kind) for one in report.found} == {(1, "no_place"), (1, "counters")}
    assert str(plan) in report.notes[0]
    done = CliRunner().invoke(command, ["repair", str(root), "--plan", str(plan), "--yes"])
    assert done.exit_code == 0, done.output
    assert "1 tasks requeued" in done.output
    assert job(spark, "audit", store=root, snapshot="new").is_ok


def test_a_snapshot_is_resharded_beside_the_store_that_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, other = make_worked(tmp_path / "store", journal="tasks"), tmp_path / "other"
    report = job(spark, "reshard", store=store, out=other, shards=3)
    assert (report.is_ok, report.old_shards, report.shards) == (True, 2, 3)
    assert report.rows["r"] == 46

    async def look(engine: lodeq.Engine) -> tuple[bool, int]:
        return (await engine.verify()).ok, (await engine.queue("other").stats()).ready

    assert live(other, look, shards=3) == live(store, look)
    assert job(spark, "audit", store=other, snapshot="new").is_ok


def test_in_place_and_back(spark: SparkSession, tmp_path: Path) -> None:
    store = make_worked(tmp_path / "store", journal="tasks")
    there = job(spark, "reshard", store=store, shards=5)
    back = job(spark, "reshard", store=store, shards=2)
    assert there.rows == back.rows
    assert [one.detail for one in there.checks] == [one.detail for one in back.checks]
    assert Path(there.kept).is_dir()
    with pytest.raises(SnapshotNotFoundError):  # those stay with the store as it was
        job(spark, "audit", store=store)
