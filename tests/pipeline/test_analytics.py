"""Figures of what has ended and of what has not, against those computed here row by row."""

import csv
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support_jobs import DEAD, DONE, READY, job, live, make_worked

import lodeq
from lodeq.engine.runtime.ids import shard_of
from lodeq.errors import UsageError
from lodeq.pipeline.jobs.frame.ended import read_archive
from lodeq.pipeline.jobs.frame.report import to_json, to_text


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_worked(tmp_path_factory.mktemp("analytics") / "store", journal="tasks")


@pytest.fixture(scope="module")
def made(spark: SparkSession, store: Path) -> dict:
    """Everything in one run: tables by name, the report, the rows it is about."""
    out, archive = store.parent / "out", store.parent / "archive"
    assert job(spark, "archive", store=store, out=archive).is_ok
    rows = read_archive(spark, str(archive))
    report = job(
        spark,
        "analytics",
        store=store,
        out=out,
        archive=archive,
        journal="tasks",
        format="json",
        sla=("0.000001", "mail=3600"),
        shards=("1", "3"),
    )
    tables = {
        name: [
            json.loads(line)
            for file in (out / name).glob("*.json")
            for line in file.read_text("utf-8").splitlines()
        ]
        for name in report.tables
    }
    return {"report": report, "rows": rows.collect(), "page": out / "report.html", **tables}


def test_percentiles_are_those_of_the_rows(made: dict) -> None:
    assert made["report"].is_ok
    assert made["report"].ended == DONE + DEAD
    for lane in made["lanes"]:
        rows = [r for r in made["rows"] if (r.queue, r.tenant) == (lane["queue"], lane["tenant"])]
        assert lane["ended"] == len(rows)
        for name in ("wait_s", "run_s", "total_s"):
            values = sorted(getattr(row, name) for row in rows)
            for share, column in ((50, "p50"), (95, "p95"), (99, "p99")):
                rank = -(-len(values) * share // 100)
                assert lane[f"{name}_{column}"] == values[rank - 1]
            assert lane[f"{name}_max"] == values[-1]


def test_counts_by_outcome_reason_attempts_and_state(made: dict) -> None:
    by_queue = {lane["queue"]: lane for lane in made["lanes"]}
    assert (by_queue["mail"]["completed"], by_queue["mail"]["attempts_max"]) == (30, 2)
    assert (by_queue["other"]["completed"], by_queue["other"]["dead"]) == (10, DEAD)
    (failure,) = made["failures"]
    assert (failure["queue"], failure["outcome"], failure["reason"]) == ("other", "dead", "boom")
    assert failure["ended"] == DEAD
    tried = {(row["queue"], row["attempts"]): row["ended"] for row in made["retries"]}
    assert tried == {("mail", 1): 20, ("mail", 2): 10, ("other", 1): 16}
    waiting = {(row["queue"], row["state"]): row["tasks"] for row in made["backlog"]}
    assert waiting == {("other", "ready"): READY, ("other", "dead"): DEAD}
    assert all(row["oldest_s"] > 0 for row in made["backlog"])
    assert sum(row["completed"] for row in made["throughput"]) == DONE


def test_what_is_late_and_what_runs_were_in_vain(made: dict) -> None:
    late = {row["queue"]: (row["ended"], row["breached"]) for row in made["sla"]}
    assert late == {"mail": (30, 0), "other": (16, 16)}
    runs = {row["queue"]: (row["runs"], row["nacked"], row["died"]) for row in made["runs"]}
    assert runs == {"mail": (40, 10, 0), "other": (16, 0, 6)}
    assert all(row["vain_s"] > 0 for row in made["runs"])


def test_skew_and_its_projection(made: dict) -> None:
    ids = [bytes(row.id) for row in made["rows"]]
    now = {row["shard"]: row["ended"] for row in made["shards"]}
    assert now == {n: sum(shard_of(id, 2) == n for id in ids) for n in range(2)}
    assert sum(row["share"] for row in made["shards"]) == pytest.approx(1)
    projected = {row["shards"]: row for row in made["projection"]}
    assert set(projected) == {1, 2, 3}
    assert [number for number, row in projected.items() if row["is_now"]] == [2]
    assert projected[1]["rows_max"] == DONE + DEAD + READY + DEAD  # dead letters are tasks, too
    assert projected[1]["fullest"] == 1


class _Text(HTMLParser):
    """All tags are closed, nothing is fetched from anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.seen.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta",):
            self.tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.tags.pop() == tag


def test_the_page_stands_alone(made: dict) -> None:
    text = made["page"].read_text("utf-8")
    parsed = _Text()
    parsed.feed(text)
    assert (parsed.tags, parsed.links) == ([], [])
    assert parsed.seen.count("svg") >= 6
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    for title in ("Queues", "Throughput", "Late", "Failures", "Retries", "Every run", "Shards"):
        assert f">{title}</h2>" in text


def test_a_report_is_for_people_and_for_programs(made: dict) -> None:
    told = json.loads(to_json(made["report"]))
    assert (told["ok"], told["job"], told["ended"]) == (True, "analytics", DONE + DEAD)
    assert told["lanes"][0]["queue"] == "mail"
    text = to_text(made["report"])
    assert "ok      every end is in each figure: ends 46" in text
    assert "queue  tenant  ended  completed" in text


def test_nothing_has_ended_yet_as_csv(spark: SparkSession, tmp_path: Path) -> None:
    async def one(engine: lodeq.Engine) -> None:
        await engine.queue("q").enqueue(b"x")

    live(tmp_path / "store", one)
    report = job(
        spark,
        "analytics",
        store=tmp_path / "store",
        snapshot="new",
        out=tmp_path / "o",
        format="csv",
    )
    assert (report.is_ok, report.ended) == (True, 0)
    (file,) = (tmp_path / "o" / "backlog").glob("*.csv")
    assert next(csv.DictReader(file.read_text("utf-8").splitlines()))["state"] == "ready"


REASON = 'Error: "no",\n  line 2\r\n'


def test_a_reason_of_several_lines_as_csv(spark: SparkSession, tmp_path: Path) -> None:
    async def fail(engine: lodeq.Engine) -> None:
        for reason in (REASON, ""):
            await engine.queue("q", max_attempts=1).enqueue(b"x")
            await (await engine.queue("q").claim())[0].nack(reason=reason)

    live(tmp_path / "store", fail)
    report = job(
        spark,
        "analytics",
        store=tmp_path / "store",
        snapshot="new",
        out=tmp_path / "o",
        format="csv",
    )
    assert report.is_ok, report
    assert [lane.tenant for lane in report.lanes] == [""]
    rows = {}
    for name in ("failures", "lanes", "throughput"):
        (path,) = (tmp_path / "o" / name).glob("*.csv")
        with path.open("r", encoding="utf-8", newline="") as file:
            rows[name] = list(csv.DictReader(file))
    assert REASON in [row["reason"] for row in rows["failures"]]
    assert [row["ended"] for row in rows["failures"]] == ["1", "1"]
    assert [row["tenant"] for row in rows["lanes"]] == [""]
    page = (tmp_path / "o" / "report.html").read_text("utf-8")
    assert "Error: &quot;no&quot;" in page


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"sla": ("mail=soon",)}, "SECONDS or QUEUE=SECONDS"),
        ({"shards": ("many",)}, "whole numbers"),
        ({"format": "xls"}, "is not one of parquet, csv, json"),
    ],
)
def test_what_it_is_told_is_checked_at_once(
    spark: SparkSession, store: Path, config: dict, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        job(spark, "analytics", store=store, out=store, **config)
