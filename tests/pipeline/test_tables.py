"""The tables of a store as Spark reads them: what the columns say, whatever is filtered or cut."""

import asyncio
import datetime
import json
import tarfile
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

import lodeq
from lodeq.engine.bulk.arrow.columns import read_columns
from lodeq.engine.bulk.ranges import key_ranges
from lodeq.engine.bulk.reader import open_shard
from lodeq.engine.bulk.tables import COLUMNS

SHARDS = 2
GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks in every state, of two queues and tenants, one with its payload in a body file."""
    path = tmp_path_factory.mktemp("tables") / "store"

    async def live() -> None:
        async with lodeq.open(path, shards=SHARDS) as engine:
            for tenant in ("acme", "other"):
                mail = engine.queue("mail", tenant=tenant, max_attempts=1)
                for n in range(40):
                    await mail.enqueue({"n": n}, dedup_key=f"{tenant}{n}", dedup_window=3600)
                leases = await mail.claim(limit=10, worker="w1")
                for lease in leases[:4]:
                    await lease.complete({"ok": True})
                for lease in leases[4:8]:
                    await lease.bury("broken")
            audit = engine.queue("audit")
            await audit.enqueue(b"x" * 200_000, headers={"trace": "17"})
            await audit.enqueue_many([lodeq.NewTask(b"later", delay=3600) for _ in range(9)])
            await engine.snapshot(keep=3600)
            await engine.queue("new").enqueue(b"after the snapshot")

    asyncio.run(live())
    return path


def load(spark: SparkSession, store: Path, table: str, **options: object) -> DataFrame:
    given = {"table": table, "snapshot": "latest"} | options
    return spark.read.format("lodeq").options(**given).load(str(store))


def plainly(root: Path, table: str) -> list[str]:
    """The same without Spark."""
    rows = []
    for shard in range(SHARDS):
        with open_shard(str(root), shard) as reader:
            for one in key_ranges(reader, table):
                for batch in read_columns(reader, one, table, bodies=lambda *_: b"x" * 200_000):
                    rows += map(_text, batch.to_pylist())
    return sorted(rows)


def _text(row: dict) -> str:
    def plain(value: object) -> object:
        if isinstance(value, datetime.datetime):
            return value.astimezone(datetime.UTC).isoformat()
        return bytes(value).hex() if isinstance(value, bytes | bytearray) else dict(value)

    return json.dumps(
        {k: dict(v) if isinstance(v, list) else v for k, v in row.items()},
        default=plain,
        sort_keys=True,
    )


@pytest.mark.parametrize("table", COLUMNS)
def test_a_table_is_what_its_columns_are(spark: SparkSession, store: Path, table: str) -> None:
    (snapshot,) = (store / "snapshots").iterdir()
    found = load(spark, store, table, batchRows=7)
    expected = plainly(snapshot, table)
    assert len(expected) > 0
    assert sorted(_text(row.asDict()) for row in found.collect()) == expected


def test_columns_and_their_order_are_the_users(spark: SparkSession, store: Path) -> None:
    tasks = load(spark, store, "tasks", columns="queue, state")
    assert tasks.columns == ["queue", "state"]
    counts = {tuple(row) for row in tasks.groupBy("queue", "state").count().collect()}
    assert counts >= {("mail", "ready", 60), ("mail", "dead", 8), ("audit", "delayed", 9)}
    some = spark.read.format("lodeq").option("table", "results").schema("outcome string")
    assert some.load(str(store)).where("outcome = 'completed'").count() == 8


@pytest.mark.smoke
def test_the_folder_itself_is_read_as_it_is_now(spark: SparkSession, store: Path) -> None:
    now = spark.read.format("lodeq").option("columns", "queue").load(str(store))
    assert now.where("queue = 'new'").count() == 1
    assert load(spark, store, "tasks", columns="queue").where("queue = 'new'").count() == 0


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_leave_what_they_say(spark: SparkSession, store: Path, pushdown: str) -> None:
    ready = load(spark, store, "ready", pushdown=pushdown)
    whole = [row.asDict() for row in ready.collect()]
    middle = sorted(row["ready_at"] for row in whole)[len(whole) // 2]
    at = lit(middle)
    one = whole[5]
    filters = [
        (col("queue") == "mail", lambda row: row["queue"] == "mail"),
        (col("queue") == "No Name", lambda row: False),
        (col("tenant").isin("acme", ""), lambda row: row["tenant"] in ("acme", "")),
        (col("shard") == 1, lambda row: row["shard"] == 1),
        (col("task_id") == one["task_id"], lambda row: row["task_id"] == one["task_id"]),
        (col("ready_at") < at, lambda row: row["ready_at"] < middle),
        (col("ready_at") >= at, lambda row: row["ready_at"] >= middle),
        (col("ready_at") == at, lambda row: row["ready_at"] == middle),
        (
            (col("ready_at") <= at) & (col("tenant") == "acme"),
            lambda row: row["ready_at"] <= middle and row["tenant"] == "acme",
        ),
    ]
    for condition, keep in filters:
        expected = sorted(row["task_id"] for row in whole if keep(row))
        assert sorted(row.task_id for row in ready.where(condition).collect()) == expected


def test_a_task_is_found_by_its_id(spark: SparkSession, store: Path) -> None:
    tasks = load(spark, store, "tasks", columns="id,task_id,state")
    row = tasks.where("state = 'dead'").first()
    assert row is not None
    same = tasks.where(col("id") == lit(bytes(row.id))).collect()
    assert [found.task_id for found in same] == [row.task_id]


def test_what_is_not_there_is_said(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    for path, options, words in [
        (store, {"snapshot": "20200101T000000000Z"}, "has no snapshot"),
        (tmp_path, {"snapshot": ""}, "is not the folder of a store"),
        (store, {"table": "ready", "columns": "payload"}, "has no column 'payload'"),
    ]:
        given = {"table": "tasks", "snapshot": "latest"} | options
        with pytest.raises(PySparkException, match=words):
            spark.read.format("lodeq").options(**given).load(str(path)).count()
    assert not list(tmp_path.iterdir())
    stream = spark.readStream.format("lodeq").load(str(store)).writeStream.format("noop")
    with pytest.raises(PySparkException, match="is not a stream"):
        stream.start().awaitTermination()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_rows_of_an_older_format_have_no_face(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    """A store that was upgraded: null beside the face of a task that came afterwards."""
    with tarfile.open(GOLDEN / version / "closed-1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")

    async def live() -> None:
        async with lodeq.open(tmp_path / "store") as engine:
            later = engine.queue("later")
            face = {"function": "send", "preview": "n=3", "labels": {"customer": "7"}}
            for _ in range(2):
                await later.enqueue(b"x", **face)
            await (await later.claim_one()).complete(b"ok")
            await engine.snapshot(keep=3600)

    asyncio.run(live())
    for table in ("tasks", "results"):
        frame = load(spark, tmp_path / "store", table)
        assert {tuple(row) for row in frame.select("function", "preview").distinct().collect()} == {
            (None, None),
            ("send", "n=3"),
        }
        (row,) = frame.where(col("function") == "send").select("labels").collect()
        assert row["labels"] == {"customer": "7"}
        assert frame.where(col("labels").isNull()).count() == frame.count() - 1 > 50
