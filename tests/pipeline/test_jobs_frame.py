"""What all jobs share: options, reports, steps that are done once, and the command."""

import importlib
import io
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from support_jobs import DEAD, DONE, make_worked

from lodeq.errors import CorruptionError, UsageError
from lodeq.pipeline import cli
from lodeq.pipeline.jobs import JOBS
from lodeq.pipeline.jobs.frame.progress import Progress
from lodeq.pipeline.jobs.frame.report import Check, Report, equal, to_json, to_text
from lodeq.pipeline.jobs.frame.state import Steps, local_folder
from lodeq.pipeline.session import text_of_spark


class Row(NamedTuple):
    name: str
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Told(Report):
    rows_read: int
    tables: tuple[Row, ...]


@pytest.mark.parametrize("name", JOBS)
def test_every_job_has_a_config_whose_options_say_what_they_are(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"lodeq.pipeline.jobs.{name}")
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for field in fields(module.Config):
        assert field.metadata["help"]
        option = field.name.upper() if field.metadata["positional"] else field.name
        assert option.replace("_", "-") in text.replace("_", "-")


def test_a_report_is_text_and_json() -> None:
    told = Told(
        job="some",
        store="s",
        seconds=1.5,
        rows_read=12_345,
        checks=(equal("counts", a=3, b=4), Check("x", True, "y")),
        notes=("what now",),
        tables=(Row("mail", 0.25), Row("other", None)),
    )
    assert not told.is_ok
    assert to_text(told).splitlines() == [
        "job        some",
        "store      s",
        "seconds    1.500",
        "rows read  12,345",
        "",
        "tables:",
        "  name   seconds",
        "  mail   0.250",
        "  other  -",
        "",
        "FAILED  counts: a 3, b 4",
        "ok      x: y",
        "what now",
    ]
    parsed = json.loads(to_json(told))
    assert (parsed["ok"], parsed["rows_read"], parsed["snapshot"]) == (False, 12_345, None)
    assert parsed["tables"][1] == {"name": "other", "seconds": None}
    assert parsed["checks"][0] == {"name": "counts", "is_ok": False, "detail": "a 3, b 4"}


def test_steps_are_kept_for_the_same_words_only(tmp_path: Path) -> None:
    first = Steps(str(tmp_path), "job", "a")
    assert first.done("write") is None
    first.note("write", {"rows": 3})
    assert Steps(str(tmp_path), "job", "a").done("write") == {"rows": 3}
    assert Steps(str(tmp_path), "job", "b").done("write") is None
    state = tmp_path / "_lodeq" / "job.json"
    state.write_text(state.read_text().replace("3", "4"))
    with pytest.raises(CorruptionError, match="is damaged"):
        Steps(str(tmp_path), "job", "a")
    first.forget()
    assert Steps(str(tmp_path), "job", "a").done("write") is None
    assert local_folder("file:///a/b") == "/a/b"
    with pytest.raises(UsageError, match="all machines see"):
        local_folder("s3://bucket/a")


def test_progress_says_each_step_once(spark: SparkSession) -> None:
    out = io.StringIO()
    progress = Progress(out, spark)
    with progress.step("read"):
        pass
    progress.skip("write")
    with pytest.raises(KeyError), progress.step("check"):
        raise KeyError
    lines = out.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == ["read", "write", "check"]
    assert lines[1] == "write: done before"
    assert "failed after" in lines[2]


@pytest.fixture
def kept(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """The command makes no session of its own, and does not stop the tests'."""
    asked: list[tuple] = []

    class Kept:
        def __getattr__(self, name: str) -> object:
            return getattr(spark, name)

        def stop(self) -> None:
            asked.append(("stop",))

    def session(master: str | None, app: str = "lodeq", **conf: str) -> object:
        asked.append((master, app, conf))
        return Kept()

    monkeypatch.setattr(cli, "build_session", session)
    return asked


def test_the_command(kept: list[tuple], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_worked(tmp_path / "store")
    out = str(tmp_path / "a")
    told = [
        "archive",
        str(store),
        "--out",
        out,
        "--queue",
        "mail",
        "--queue",
        "other",
        "--json",
        "--master",
        "local[3]",
        "--conf",
        "spark.x=1",
    ]
    assert cli.main(told) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["ended"] == DONE + DEAD
    assert [line.split(":")[0] for line in said.err.splitlines()] == ["write", "read back"]
    assert kept == [("local[3]", "lodeq archive", {"spark.x": "1"}), ("stop",)]
    far = ["archive", str(tmp_path), "--out", out, "--master", "spark://m:7077"]
    assert cli.main(far) == 2
    assert "is not the folder of a store" in capsys.readouterr().err
    assert kept[2][0] == "spark://m:7077"
    assert cli.main(["replay", str(store), "--archive", out, "--since", "soon", "--quiet"]) == 2
    assert "error: Invalid isoformat" in capsys.readouterr().err
    for conf in ("x", "spark.x", "master=local", "app=x"):
        assert cli.main(["archive", str(store), "--out", out, "--conf", conf]) == 2
        assert "NAME=VALUE" in capsys.readouterr().err
    assert len(kept) == 4  # a session is made for none of those


def test_a_file_that_is_no_parquet_is_an_error_in_one_line(
    kept: list[tuple], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a traceback, whose exit code would say that a check does not hold."""
    store = make_worked(tmp_path / "store")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    given = ["backfill", str(store), "--input", str(tmp_path / "cut.parquet"), "--job", "cut"]
    assert cli.main([*given, "--out", str(tmp_path / "out"), "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Spark failed: ")
    assert "cut.parquet" in line
    assert kept


def test_what_its_java_process_says_is_taken_without_the_number_of_a_call() -> None:
    failed = Exception(
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
        ": org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'\n\tat …"
    )
    assert text_of_spark(failed).startswith("org.apache.spark.SparkException: Could not parse")
    assert text_of_spark(ValueError("said\n: so")) == "said\n: so"


def test_the_command_that_spark_submit_runs(
    kept: list[tuple], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Master and settings are its own: the command has no such options, and says none."""
    told = ["archive", str(tmp_path), "--out", str(tmp_path / "a")]
    assert cli.main(told, is_submitted=True) == 2
    assert "is not the folder of a store" in capsys.readouterr().err
    assert kept == [(None, "lodeq", {}), ("stop",)]
    for more in (["--master", "local"], ["--conf", "spark.x=1"]):
        with pytest.raises(SystemExit) as end:
            cli.main([*told, *more], is_submitted=True)
        assert end.value.code == 2
        assert f"unrecognized arguments: {more[0]}" in capsys.readouterr().err
    assert len(kept) == 2


_TOLD = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 1, in f
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x.py", line 2, in f
    g()
    ^^^
ValueError: year 99999 is out of range

JVM stacktrace:
org.apache.spark.SparkException
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_TOLD, "Spark failed: ValueError: year 99999 is out of range"),
        ("[PATH_NOT_FOUND] No path x.\nat org.x", "Spark failed: [PATH_NOT_FOUND] No path x."),
        ("Traceback (most recent call last):\n  File\nlodeq.errors.UsageError: no\n", "no"),
        ("", "Spark failed: RuntimeError"),
    ],
)
def test_what_spark_says_is_said_in_a_line(text: str, words: str) -> None:
    assert str(cli._translated(RuntimeError(text))) == words


def test_errors_of_the_workers_are_ours(spark: SparkSession, tmp_path: Path) -> None:
    """A damaged block is met by a worker: the kind of error and its words come through."""
    from support_jobs import job

    store = make_worked(tmp_path / "store")
    for table in (store / "snapshots").rglob("*.sst"):
        raw = bytearray(table.read_bytes())
        raw[8] ^= 0xFF
        copy = table.with_suffix(".new")  # a link: the store's own file stays as it is
        copy.write_bytes(raw)
        copy.replace(table)
    with pytest.raises(CorruptionError, match="shard"):
        job(spark, "archive", store=store, out=tmp_path / "a")
