"""What has ended goes into Parquet, once; and only then out of the store."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support_jobs import DEAD, DONE, READY, job, live, make_worked, work

import lodeq
from lodeq.errors import CorruptionError, SnapshotNotFoundError, UsageError
from lodeq.pipeline.jobs import archive
from lodeq.pipeline.jobs.frame.ended import read_archive


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_worked(tmp_path_factory.mktemp("archive") / "store")


def test_everything_that_ended_is_there_with_its_times(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    report = job(spark, "archive", store=store, out=tmp_path / "a")
    assert report.is_ok, report
    assert (report.ended, report.written, report.known) == (DONE + DEAD, DONE + DEAD, 0)
    rows = read_archive(spark, str(tmp_path / "a")).collect()
    assert Counter((row.tenant, row.queue, row.outcome) for row in rows) == {
        ("acme", "mail", "completed"): 30,
        ("", "other", "completed"): 10,
        ("", "other", "dead"): 6,
    }
    for row in rows:
        assert row.created_at <= row.ready_at <= row.leased_at <= row.finished_at
        assert row.day == row.finished_at.date()
        assert row.run_s == pytest.approx((row.finished_at - row.leased_at).total_seconds())
        assert row.wait_s == pytest.approx((row.leased_at - row.ready_at).total_seconds())
        assert row.total_s >= row.run_s
    assert {row.attempts for row in rows if row.queue == "mail"} == {1, 2}
    for row in rows:
        if row.outcome == "dead":
            assert (row.reason, row.max_attempts) == ("boom", 1)
            assert row.headers == {"n": bytes(row.payload).decode()}
        else:
            assert (row.payload, row.headers, row.reason) == (None, None, "")
    assert {bytes(row.value) for row in rows if row.queue == "mail"} == {b"done"}


def test_again_changes_nothing_and_another_run_adds_what_is_new(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, out = make_worked(tmp_path / "store"), tmp_path / "a"
    first = job(spark, "archive", store=store, out=out, queue=("mail",))
    again = job(spark, "archive", store=store, out=out, queue=("mail",))
    assert (again.run, again.ended, again.written) == (first.run, 30, 30)
    assert read_archive(spark, str(out)).count() == 30
    whole = job(spark, "archive", store=store, out=out)
    assert (whole.ended, whole.written, whole.known) == (46, 16, 30)
    live(store, work)
    third = job(spark, "archive", store=store, out=out)
    assert third.is_ok
    assert third.written == third.ended - 46
    assert read_archive(spark, str(out)).count() == third.ended


def test_a_day_is_the_same_day_in_every_time_zone(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    name = "spark.sql.session.timeZone"
    job(spark, "archive", store=store, out=tmp_path / "a")
    rows = read_archive(spark, str(tmp_path / "a")).collect()
    zone = "-12:00" if rows[0].finished_at.hour < 12 else "+14:00"  # where it is another day
    spark.conf.set(name, zone)
    try:
        job(spark, "archive", store=store, out=tmp_path / "a")
        job(spark, "archive", store=store, out=tmp_path / "b")
        assert spark.conf.get(name) == zone
        for out in ("a", "b"):
            days = read_archive(spark, str(tmp_path / out)).select("day").collect()
            assert Counter(days) == Counter((row.day,) for row in rows)
    finally:
        spark.conf.set(name, "UTC")


def test_what_is_purged_is_what_is_archived(spark: SparkSession, tmp_path: Path) -> None:
    store, out = make_worked(tmp_path / "store"), tmp_path / "a"

    async def redrive(engine: lodeq.Engine) -> None:
        other = engine.queue("other")
        (dead, *_) = await other.dead_letters()
        assert await other.redrive([dead.id]) == 1
        for lease in await other.claim(limit=100):
            is_it = lease.task_id == dead.id
            await (lease.complete(b"at last") if is_it else lease.release())

    live(store, redrive)  # after the snapshot
    report = job(spark, "archive", store=store, out=out, purge=True)
    assert report.is_ok
    assert report.purge_plan is not None

    async def counts(engine: lodeq.Engine) -> list[tuple[int, int, int]]:
        assert (await engine.verify()).findings == ()
        queues = (engine.queue("mail", tenant="acme"), engine.queue("other"))
        found = [await queue.stats() for queue in queues]
        return [(stats.ready, stats.dead, stats.results) for stats in found]

    async def purge(engine: lodeq.Engine) -> tuple:
        before = await counts(engine)
        purged = await engine.purge_archived(report.purge_plan)
        again = await engine.purge_archived(report.purge_plan)
        assert (again.results, again.dead) == (0, 0)
        return purged, before, await counts(engine)

    purged, before, after = live(store, purge)
    assert before == [(0, 0, 30), (READY, DEAD - 1, DONE + DEAD - 30)]
    assert (purged.results, purged.dead, purged.absent) == (DONE + DEAD - 1, DEAD - 1, 2)
    assert after == [(0, 0, 0), (READY, 0, 1)]
    assert live(store, counts) == after


def test_what_is_planned_to_be_purged_survives_a_power_cut(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark syncs nothing, and the purge is durable: the archive must be so before."""
    out, synced, before = tmp_path / "a", set[str](), set[str]()
    for name in ("fsync_file", "fsync_dir"):
        real = getattr(archive, name)
        monkeypatch.setattr(archive, name, lambda path, real=real: (real(path), synced.add(path)))
    plan = archive._plan

    def planned(*args: Any) -> str:
        before.update(synced)
        return plan(*args)

    monkeypatch.setattr(archive, "_plan", planned)
    job(spark, "archive", store=store, out=out, queue=("mail",))
    assert not synced
    assert job(spark, "archive", store=store, out=out, purge=True).purge_plan is not None
    files = {str(path) for path in out.rglob("*.parquet")}
    folders = {str(path.parent) for path in out.rglob("*.parquet")}
    assert len(folders) > 1  # of both runs
    assert files | folders | {str(out), str(tmp_path)} <= before


def test_plans_that_do_not_fit_are_refused(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    report = job(spark, "archive", store=store, out=tmp_path / "a", purge=True)
    plan = Path(report.purge_plan)

    async def purge(engine: lodeq.Engine) -> None:
        await engine.purge_archived(plan)

    with pytest.raises(UsageError, match="of another store"):
        live(tmp_path / "other", purge)
    damaged = next(path for path in plan.parent.iterdir() if path.suffix == ".rows")
    raw = bytearray(damaged.read_bytes())
    raw[3] ^= 1
    damaged.write_bytes(raw)
    with pytest.raises(CorruptionError, match="is damaged"):
        live(store, purge)


def test_without_a_snapshot_it_says_how_one_is_taken(spark: SparkSession, tmp_path: Path) -> None:
    async def nothing(engine: lodeq.Engine) -> None:
        await engine.queue("mail").enqueue(b"x")

    live(tmp_path / "store", nothing)
    with pytest.raises(SnapshotNotFoundError, match=r"engine\.snapshot"):
        job(spark, "archive", store=tmp_path / "store", out=tmp_path / "a")
    report = job(spark, "archive", store=tmp_path / "store", out=tmp_path / "a", snapshot="new")
    assert (report.is_ok, report.ended) == (True, 0)
    assert os.listdir(tmp_path / "store" / "snapshots") == [report.snapshot]


def test_an_archive_that_lost_a_file_is_not_purged_by(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the write and the check a file goes; nothing is planned."""
    from lodeq.pipeline.jobs import archive

    write = archive._write

    def lossy(frame: object, out: str, name: str) -> dict:
        said = write(frame, out, name)
        next(Path(out).rglob("*.parquet")).unlink()
        return said

    monkeypatch.setattr(archive, "_write", lossy)
    report = job(spark, "archive", store=store, out=tmp_path / "a", purge=True)
    assert (report.is_ok, report.purge_plan) == (False, None)
    assert {check.name for check in report.checks if not check.is_ok} >= {
        "rows read back",
        "every end is archived",
    }
