"""Rows arrive as they stood in their files; what cannot be a task's is said of each."""

import csv
import json
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from support_jobs import job, live

import lodeq
from lodeq.engine.recovery.dedup_secret import Secrets
from lodeq.errors import UsageError
from lodeq.pipeline.datasource.encoder import Policy
from lodeq.pipeline.jobs.frame.files import FILE, RAW, read_rows
from lodeq.pipeline.jobs.frame.intake import ERRORS, checked_rows, typed

PAYLOADS: list[Any] = [
    {"n": 1, "ok": True}, {"name": "bob", "n": None}, {}, [], [1, "1", [None, {"a": []}]],
    "text", "", "17", '{"n": 1}', "null", 17, -(2**63), 2**64 - 1, 1.0, 1e300, -0.0, 0.1, True,
    False, "Zoë 😀", {"z": 1, "a": {"z": "2026-01-01", "a": 1.50}},
]  # fmt: skip


SECRETS = partial(Secrets, (bytes(32),))


def read(spark: SparkSession, path: Path, text: str, form: str, *columns: str) -> DataFrame:
    path.write_bytes(text.encode())
    return read_rows(spark, [str(path)], form, columns)


def said(frame: DataFrame, **more: bool) -> list[tuple]:
    """What is wrong with each row, in the order of the file."""
    rows = checked_rows(typed(frame, **more), Policy("mail"), SECRETS).collect()
    return [tuple(row[ERRORS]) for row in rows]


def test_a_payload_of_json_is_the_value_that_stood_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = [json.dumps({"payload": value, "priority": 9}) for value in PAYLOADS]
    (tmp_path / "in.json").write_text("\n".join(lines) + "\n\n", "utf-8")
    with lodeq.sync.open(tmp_path / "store", shards=2):
        pass
    report = job(
        spark,
        "backfill",
        store=tmp_path / "store",
        input=(str(tmp_path / "in.json"),),
        format="json",
        job="b",
        queue="mail",
        out=tmp_path / "bad",
    )
    assert (report.is_ok, report.loaded) == (True, len(PAYLOADS)), report

    async def claim(engine: lodeq.Engine) -> list[str]:
        return [repr(lease.payload) for lease in await engine.queue("mail").claim(limit=100)]

    assert sorted(live(tmp_path / "store", claim)) == sorted(map(repr, PAYLOADS))


def test_a_line_that_is_no_object_or_no_task_is_set_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = [
        '{"body": 1, "a.b": 1}',
        '{"body": null}',
        '{"a.b": 1}',
        '{"body": 1} {"body": 2}',
        '[{"body": 1}]',
        '{"body": 1, "queue": "\\ud800"}',
        '{"body": 18446744073709551616}',
        '{"body": "\\ud800"}',
        '{"body": 1, "headers": {"a": 1, "b": {"c": []}}}',
        '{"body": 1, "headers": ["a"]}',
        '{"body": "{}", "payload_kind": "json"}',
    ]
    frame = read(spark, tmp_path / "in.json", "\n".join(lines), "json", "body=payload")
    found = typed(frame, ignore_others=True)
    assert [row[RAW] for row in found.collect()] == lines
    words = said(frame, ignore_others=True)
    assert [one[:1] for one in words[:3]] == [
        (),
        *[("a task needs a payload; it may be empty",)] * 2,
    ]
    assert words[3:6] == [("the line is malformed",)] * 3
    assert "payload cannot be packed" in words[6][0]
    assert "payload cannot be packed" in words[7][0]
    assert words[8:] == [(), ('headers is not map<string,string>: ["a"]',), ()]
    rows = found.collect()
    assert rows[8]["headers"] == {"a": "1", "b": '{"c":[]}'}
    assert (rows[10]["payload"], rows[10]["payload_kind"]) == ("{}", "json")
    with pytest.raises(UsageError, match=r"tasks have no column 'a\.b'"):
        typed(frame)


def test_a_csv_is_read_as_python_writes_it(spark: SparkSession, tmp_path: Path) -> None:
    payloads = ['{"n": 1}', 'say "hi"', "1\n2", "1\r\n2\r3\n", "a,b", "c:\\", '\\"', '"', "ü"]
    for name, end in (("unix", "\n"), ("windows", "\r\n"), ("old", "\r")):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator=end)
            rows.writerows([["payload", "queue"], *([one, name] for one in payloads)])
    paths = [str(tmp_path / name) for name in ("unix", "windows", "old")]
    found = typed(read_rows(spark, paths, "csv")).collect()
    for name in ("unix", "windows", "old"):
        got = [row["payload"] for row in found if row["queue"] == name and not row[ERRORS]]
        assert got == payloads, name
    assert len(found) == 3 * len(payloads)
    text = 'payload,priority\n"a ""b""",1\nshort\nc,2,long\n\n"d\ne",3\n'
    frame = read(spark, tmp_path / "bad.csv", text, "csv")
    bad = ("the line is malformed",)
    assert said(frame) == [(), bad, bad, ()]
    assert [row[RAW] for row in typed(frame).collect()][1:3] == ["short", "c,2,long"]


LATIN_1 = "caf\u00e9".encode("latin-1")


def test_bytes_that_are_no_text_are_said_of_their_row(spark: SparkSession, tmp_path: Path) -> None:
    """A replaced character would be another payload than the one that was handed in."""
    (tmp_path / "in.json").write_bytes(
        b'{"payload": "%b"}\n{"payload": "ok"}\n{"payload": 1, "%b": 1}\n' % (LATIN_1, LATIN_1)
    )
    malformed = ("the line is malformed",)
    assert said(read_rows(spark, [str(tmp_path / "in.json")], "json")) == [
        malformed,
        (),
        malformed,
    ]
    (tmp_path / "in.csv").write_bytes(
        b"payload,headers\n%b,\nok,\nZo\xc3\xab,\nok,%b\n%b\n" % (LATIN_1, LATIN_1, LATIN_1)
    )
    frame = read_rows(spark, [str(tmp_path / "in.csv")], "csv")
    found = said(frame)
    assert [one == () for one in found] == [False, True, True, False, False]
    assert "payload cannot be read" in found[0][0]
    assert found[4] == malformed
    rows = typed(frame).collect()
    assert (rows[2]["payload"], json.loads(rows[0][RAW])["payload"]) == ("Zo\u00eb", "caf\ufffd")
    text = pa.array([LATIN_1, b"ok"]).view(pa.string())
    parquet.write_table(pa.table({"payload": text}), tmp_path / "in.parquet")
    found = said(read_rows(spark, [str(tmp_path / "in.parquet")], "parquet"))
    assert [one == () for one in found] == [False, True]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_mark_of_utf_8_is_no_part_of_a_file(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    texts = {"json": '{"payload": "Zo\u00eb"}', "csv": "payload\nZo\u00eb"}
    frame = read(spark, tmp_path / "in", f"\ufeff{texts[form]}\n", form)
    assert said(frame) == [()]
    (row,) = typed(frame).collect()
    assert (json.loads(row["payload"]) if form == "json" else row["payload"]) == "Zo\u00eb"


def test_headers_and_names_with_dots_in_a_csv(spark: SparkSession, tmp_path: Path) -> None:
    text = 'payload,headers,a.b,,x`y\np,"{""a"": ""1""}",1,2,3\nq,a=1,,,\nr,,,,\n'
    frame = read(spark, tmp_path / "in.csv", text, "csv", "x`y=shard_key")
    assert frame.columns[:5] == ["payload", "headers", "a.b", "_c3", "shard_key"]
    assert said(frame, ignore_others=True) == [(), ("headers is not map<string,string>: a=1",), ()]
    rows = typed(frame, ignore_others=True).collect()
    assert [row["headers"] for row in rows] == [{"a": "1"}, None, None]
    assert json.loads(rows[0][RAW])["a.b"] == "1"
    with pytest.raises(UsageError, match="two columns have the name 'payload'"):
        read_rows(spark, [str(tmp_path / "in.csv")], "csv", ["headers=payload"])


def test_every_csv_has_its_own_header(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in put"
    folder.mkdir()
    files = {
        "a.csv": "queue,payload\nmail,a1\nmail,a2\n",
        "b b.csv": "payload,queue\nb1,mail\n",
        "c.csv": "\ufeffpayload,queue,priority\nc1,mail,7\n",
        "d.csv": "",
        "e.csv": "queue,payload\n",
        "f.csv": "payload,queue\nf1,mail\nf2\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    rows = typed(read_rows(spark, [str(folder)], "csv")).collect()
    found = [(r["payload"], r["queue"], r["priority"], *r[ERRORS]) for r in rows]
    assert sorted(found, key=lambda row: row[0]) == [
        ("a1", "mail", None),
        ("a2", "mail", None),
        ("b1", "mail", None),
        ("c1", "mail", 7),
        ("f1", "mail", None),
        ("f2", None, None, "the line is malformed"),
    ]
    assert {r["payload"]: os.path.basename(r[FILE]) for r in rows}["b1"] == "b%20b.csv"
    with pytest.raises(UsageError, match="the name of a column has a line break in it"):
        read(spark, tmp_path / "long.csv", '"pay\nload"\nx\n', "csv")


def test_columns_of_every_parquet_file_count(spark: SparkSession, tmp_path: Path) -> None:
    one, two = str(tmp_path / "p1"), str(tmp_path / "p2")
    spark.createDataFrame([("a",)], "payload string").write.parquet(one)
    more = "payload string, priority int, dedup_key string"
    spark.createDataFrame([("b", 9, "k")], more).write.parquet(two)
    rows = typed(read_rows(spark, [one, two], "parquet")).collect()
    assert sorted((row["payload"], row["priority"], row["dedup_key"]) for row in rows) == [
        ("a", None, None),
        ("b", 9, "k"),
    ]


def test_a_time_that_is_none_is_said_of_its_row(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        "payload,run_at\nx,99999-01-01\nx,-0005-01-01\nx,soon\nx,9999-12-31T23:59:59.999999\nx,\n"
    )
    words = said(read(spark, tmp_path / "in.csv", text, "csv"))
    assert words[:3] == [
        ("run_at is not in the years 1 to 9999: 99999-01-01",),
        ("run_at is not in the years 1 to 9999: -0005-01-01",),
        ("run_at is not timestamp: soon",),
    ]
    assert "run_at" in words[3][0]  # the engine's own limit
    assert words[4] == ()
    frame = spark.createDataFrame(
        [("x", 1_700_000_000_000), ("y", 1_700_000_000)], "payload string, expires_at bigint"
    )
    rows = checked_rows(typed(frame), Policy("mail"), SECRETS).collect()
    assert rows[0][ERRORS] == ["expires_at is not in the years 1 to 9999: 1700000000000"]
    assert (rows[0]["expires_at"], rows[1][ERRORS]) == (None, [])
    assert rows[1]["expires_at"].astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    nested = frame.selectExpr("struct(timestamp_seconds(expires_at) AS at) AS payload")
    words = checked_rows(typed(nested), Policy("mail"), SECRETS).select(ERRORS).collect()
    (first,), good = (one[ERRORS] for one in words)
    assert first.startswith("payload cannot be read: ")
    assert good == []


def test_a_payload_of_a_frame_is_the_value_it_is(spark: SparkSession) -> None:
    rows = checked_rows(
        typed(
            spark.sql("""
            SELECT named_struct('a', 1, 'b', CAST(NULL AS STRING), 'c', array(map('k', 2.5D)))
            AS payload""")
        ),
        Policy("mail"),
        SECRETS,
    ).collect()
    assert rows[0][ERRORS] == []
    assert rows[0]["payload"].asDict(recursive=True) == {"a": 1, "b": None, "c": [{"k": 2.5}]}
    for made in ("parse_json('1')", "named_struct('a', array(parse_json('1')))"):
        with pytest.raises(UsageError, match=r"cannot be a variant: pass to_json\(payload\)"):
            typed(spark.sql(f"SELECT {made} AS payload"))
