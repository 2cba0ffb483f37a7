"""Files become tasks: the good rows once, the bad ones set aside with reasons."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support_jobs import job, live

import lodeq
from lodeq.errors import UsageError
from lodeq.pipeline.jobs.backfill import Config, backfill_frame
from lodeq.pipeline.jobs.frame.progress import Progress

GOOD = [{"queue": "mail", "payload": f"p{n}", "priority": n % 10} for n in range(20)]
BAD = [
    {"queue": "Mail", "payload": "x"},
    {"queue": "mail", "payload": "x", "priority": 11},
    {"queue": "mail", "payload": "x", "priority": "high"},
    {"queue": "mail"},
    {"queue": "mail", "payload": "x", "delay": -3},
    {"queue": "mail", "payload": "x" * (4 << 20)},
    {"queue": "mail", "payload": "x", "dedup_key": "k", "shard_key": "s"},
]
KEYED = [{"queue": "mail", "payload": f"k{n}", "dedup_key": f"key{n % 4}"} for n in range(8)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    async def begin(engine: lodeq.Engine) -> None:
        await engine.queue("mail").enqueue("before", dedup_key="key1")
        await engine.snapshot(keep=86_400)

    live(tmp_path / "store", begin)
    return tmp_path / "store"


def lines(path: Path, rows: list[dict], *more: str) -> Path:
    path.write_text("\n".join([*map(json.dumps, rows), *more]) + "\n", "utf-8")
    return path


def payloads(store: Path) -> list[str]:
    async def claim(engine: lodeq.Engine) -> list[str]:
        assert (await engine.verify()).ok
        found = await engine.queue("mail").claim(limit=4096)
        return sorted(str(lease.payload) for lease in found)

    return live(store, claim)


def test_good_rows_come_in_and_bad_ones_are_set_aside(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    source = lines(tmp_path / "in.json", GOOD + BAD + KEYED, '{"queue": "mail", "pay')
    report = job(
        spark,
        "backfill",
        store=store,
        input=(str(source),),
        format="json",
        job="b-1",
        out=tmp_path / "bad",
        on_conflict="skip",
    )
    assert report.is_ok, report
    staged = len(GOOD) + 3  # key1 is held, and each key is there twice
    assert (report.read, report.staged, report.loaded) == (36, staged, staged)
    assert report.quarantined == len(BAD) + 1 + 5
    assert payloads(store) == sorted(
        ["before", "k0", "k2", "k3", *(row["payload"] for row in GOOD)]
    )
    found = spark.read.json(report.quarantine).collect()
    assert {row["_source_file"].rpartition("/")[2] for row in found} == {"in.json"}
    reasons = " | ".join(sorted(row["_errors"][0] for row in found))
    for words in (
        "queue name 'Mail' is not valid",
        "priority 11",
        "priority is no",
        "payload; it may be empty",
        "delay",
        "dedup_key",
        "another row of the load",
        "a task of the store holds",
        "malformed",
    ):
        assert words in reasons, words
    assert any('"payload": "k1"' in (row["_raw"] or "") for row in found)  # the line as it was
    again = job(
        spark,
        "backfill",
        store=store,
        input=(str(source),),
        format="json",
        job="b-1",
        out=tmp_path / "bad",
        on_conflict="skip",
    )
    assert replace(again, seconds=0.0) == replace(report, seconds=0.0)


def test_again_loads_nothing_twice(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    spark.createDataFrame(
        [(row["payload"], row["priority"]) for row in GOOD], "payload string, priority int"
    ).write.parquet(str(tmp_path / "in"))
    given = {
        "store": store,
        "input": (str(tmp_path / "in"),),
        "job": "b-2",
        "queue": "mail",
        "out": tmp_path / "bad",
    }
    first, again = (job(spark, "backfill", **given) for _ in range(2))
    assert first.is_ok
    assert again.is_ok
    assert (first.loaded, again.loaded, again.quarantine) == (20, 20, None)
    assert len(payloads(store)) == 21


def test_a_csv_and_a_frame(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("body,priority,colour\na,3,red\nb,x,red\n", "utf-8")
    report = job(
        spark,
        "backfill",
        store=store,
        input=(str(tmp_path / "in.csv"),),
        format="csv",
        job="b-3",
        out=tmp_path / "bad",
        column=("body=payload",),
        queue="mail",
        ignore_others=True,
    )
    assert (report.is_ok, report.loaded, report.quarantined) == (True, 1, 1)
    assert report.reasons[0].reason == "priority is not bigint: x"
    config = Config(store=str(store), input=(), job="b-4", out=str(tmp_path / "bad"), queue="mail")
    frame = spark.createDataFrame([("c", {"n": "1"})], "payload string, headers map<string,string>")
    assert backfill_frame(frame, config, Progress()).loaded == 1
    assert payloads(store) == ["a", "before", "c"]


def test_a_service_that_has_the_store_open_takes_it_in(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    source = lines(tmp_path / "in.json", GOOD)
    is_open, is_over = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with lodeq.open(store, shards=2) as engine:
            is_open.set()
            await asyncio.to_thread(is_over.wait, 120)
            leases = await engine.queue("mail").claim(limit=100, wait=20)
            found.extend(str(lease.payload) for lease in leases)

    service = threading.Thread(target=asyncio.run, args=(serve(),))
    service.start()
    try:
        assert is_open.wait(60)
        report = job(
            spark,
            "backfill",
            store=store,
            input=(str(source),),
            format="json",
            job="b-5",
            out=tmp_path / "bad",
        )
    finally:
        is_over.set()
        service.join()
    assert (report.is_ok, report.loaded) == (True, 20)
    assert len(found) == 21


def test_a_key_that_is_taken_refuses_the_load_unless_told_otherwise(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    source = lines(tmp_path / "in.json", GOOD + KEYED)
    report = job(
        spark,
        "backfill",
        store=store,
        input=(str(source),),
        format="json",
        job="b-7",
        out=tmp_path / "bad",
    )
    assert (report.is_ok, report.staged, report.loaded) == (False, 0, 0)
    assert report.checks[0].detail.startswith("5 rows; --on-conflict skip")
    assert len(spark.read.json(report.quarantine).collect()) == 5
    assert payloads(store) == ["before"]


def test_a_load_that_the_store_refused_comes_in_once_it_can(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    given = {
        "store": store,
        "input": (str(lines(tmp_path / "in.json", GOOD + KEYED[:4])),),
        "format": "json",
        "job": "b-8",
        "out": tmp_path / "bad",
        "snapshot": "none",
    }
    refused = job(spark, "backfill", **given)
    assert (refused.is_ok, refused.staged, refused.loaded) == (False, 24, 0)
    assert refused.checks[1].detail.startswith("1 of its dedup keys are held")
    again = job(spark, "backfill", **given | {"on_conflict": "skip"})
    assert (again.is_ok, again.loaded, again.skipped) == (True, 23, 1)
    assert len(payloads(store)) == 24


def test_again_with_other_options_reports_what_became_of_it(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    source = lines(tmp_path / "in.json", GOOD + BAD[:2] + KEYED[:1])
    given = {
        "store": store,
        "input": (str(source),),
        "format": "json",
        "job": "b-9",
        "out": tmp_path / "bad",
    }
    first = job(spark, "backfill", **given)
    assert (first.is_ok, first.quarantined, first.loaded) == (True, 2, 21)
    live(store, lambda engine: engine.snapshot(keep=3600))  # in which its keys are held
    again = job(spark, "backfill", **given | {"wait": 30.0, "store": f"{store}/."})
    assert replace(again, seconds=0.0) == replace(first, seconds=0.0)
    elsewhere = job(spark, "backfill", **given | {"out": tmp_path / "other"})
    assert (elsewhere.is_ok, elsewhere.staged, elsewhere.loaded) == (True, 21, 21)
    assert "not in" in elsewhere.notes[0]
    assert len(payloads(store)) == 22


def test_what_it_cannot_do_it_says_before_it_begins(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    source = lines(tmp_path / "in.json", [{"queue": "mail", "payload": "x", "colour": "red"}])
    given = {"store": store, "input": (str(source),), "format": "json", "out": tmp_path / "bad"}
    with pytest.raises(UsageError, match="tasks have no column 'colour'"):
        job(spark, "backfill", job="b-6", **given)
    with pytest.raises(UsageError, match="THEIRS=OURS"):
        job(spark, "backfill", job="b-6", column=("hue=payload",), **given)
    with pytest.raises(UsageError, match="job 'b 6' is not valid"):
        job(spark, "backfill", job="b 6", ignore_others=True, **given)
    assert not (store / "inbox").exists()
