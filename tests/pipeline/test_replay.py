"""Archived tasks become new tasks that say what they were."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support_jobs import DEAD, READY, job, live, make_worked, refuse

import lodeq
from lodeq.errors import UsageError
from lodeq.pipeline.jobs import replay


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_worked(tmp_path_factory.mktemp("replay") / "store")


@pytest.fixture(scope="module")
def archive(spark: SparkSession, store: Path) -> Path:
    assert job(spark, "archive", store=store, out=store.parent / "archive").is_ok
    return store.parent / "archive"


def test_dead_letters_run_again(spark: SparkSession, store: Path, archive: Path) -> None:
    given = {"store": store, "archive": archive, "to_queue": "again", "to_tenant": "acme"}
    planned = job(spark, "replay", dry_run=True, **given)
    assert (planned.selected, planned.staged, planned.loaded) == (DEAD, DEAD, 0)
    report = job(spark, "replay", **given)
    assert report.is_ok
    assert (report.selected, report.without_payload, report.loaded) == (DEAD, 0, DEAD)

    async def look(engine: lodeq.Engine) -> None:
        died = {str(task.id): task for task in await engine.queue("other").dead_letters()}
        assert len(died) == DEAD
        seen = set()
        for lease in await engine.queue("again", tenant="acme").claim(limit=100):
            old = died[lease.headers["replayed_from"]]
            assert lease.payload == old.payload
            assert lease.headers == {**old.headers, "replayed_from": str(old.id)}
            assert lease.task_id != old.id
            assert lease.attempt == 1
            seen.add(old.id)
            await lease.release()
        assert len(seen) == DEAD
        assert (await engine.verify()).findings == ()

    live(store, look)
    again = job(spark, "replay", **given)  # the same selection: nothing new
    assert again.is_ok
    assert "was published before" in again.notes[0]

    async def count(engine: lodeq.Engine) -> tuple[int, int]:
        stats = await engine.queue("again", tenant="acme").stats()
        return stats.ready, (await engine.queue("other").stats()).ready

    assert live(store, count) == (DEAD, READY)


def test_an_archive_that_has_grown_brings_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"

    async def die(engine: lodeq.Engine) -> None:
        mail = engine.queue("mail", max_attempts=1)
        await mail.enqueue(b"x")
        await (await mail.claim())[0].nack(reason="no")
        await engine.snapshot(keep=3600)

    async def ready(engine: lodeq.Engine) -> int:
        return (await engine.queue("again").stats()).ready

    given = {"store": store, "archive": archive, "to_queue": "again"}
    loads = []
    for loaded, skipped in ((1, 0), (1, 1)):
        live(store, die, shards=1)
        assert job(spark, "archive", store=store, out=archive).is_ok
        report = job(spark, "replay", **given)
        assert report.is_ok, report
        assert (report.loaded, report.skipped) == (loaded, skipped)
        loads.append(report.load)
    assert live(store, ready, shards=1) == 2
    assert job(spark, "replay", **given).load == loads[1] != loads[0]
    once_more = job(spark, "replay", job="r-2", **given)
    assert (once_more.loaded, once_more.skipped) == (2, 0)
    assert live(store, ready, shards=1) == 4


def test_a_load_that_was_refused_comes_in_the_next_time(
    spark: SparkSession, store: Path, archive: Path
) -> None:
    refuse(store, "r-1")
    report = job(
        spark, "replay", store=store, archive=archive, job="r-1", to_queue="third", queue=("other",)
    )
    assert (report.is_ok, report.loaded) == (True, DEAD)


def test_filters_hold_together(spark: SparkSession, store: Path, archive: Path) -> None:
    def selected(**config: object) -> tuple[int, int]:
        report = job(spark, "replay", store=store, archive=archive, dry_run=True, **config)
        return report.selected, report.without_payload

    assert selected(outcome=()) == (46, 40)
    assert selected(outcome=("completed",), queue=("mail",)) == (30, 30)
    assert selected(tenant=("acme",)) == (0, 0)
    assert selected(where="headers['n'] > '12'") == (3, 0)
    assert selected(since="2000-01-01", until="2001-01-01") == (0, 0)
    assert selected(since="2000-01-01") == (DEAD, 0)
    with pytest.raises(UsageError, match="where 'colour"):
        selected(where="colour = 1")
    with pytest.raises(ValueError, match="isoformat"):
        selected(since="yesterday")
    with pytest.raises(UsageError, match="no archive in"):
        job(spark, "replay", store=store, archive=store)


def test_another_selection_is_another_load(store: Path, archive: Path) -> None:
    one = replay.Config(store=str(store), archive=str(archive))
    others = [
        dataclasses.replace(one, **{name: value})
        for name, value in (("queue", ("a",)), ("outcome", ()), ("where", "true"), ("priority", 3))
    ]
    assert max(Counter(config.load for config in (one, *others)).values()) == 1
    assert dataclasses.replace(one, wait=1.0, dry_run=True).load == one.load
