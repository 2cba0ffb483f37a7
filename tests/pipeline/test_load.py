"""Tasks written by Spark: as the engine would have enqueued them, all or nothing, once."""

import asyncio
import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit, when

import lodeq
from lodeq.engine.bulk.inbox import pending
from lodeq.pipeline import batch_loader, load_tasks

SHARDS = 3


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with lodeq.sync.open(tmp_path / "store", shards=SHARDS):
        return tmp_path / "store"


def many(spark: SparkSession, rows: int) -> DataFrame:
    """Half of them with a dedup key, a tenth delayed, of three priorities and two tenants."""
    n = col("id")
    return spark.range(rows, numPartitions=4).select(
        lit("mail").alias("queue"),
        when(n % 2 == 0, "acme").otherwise("").alias("tenant"),
        concat(lit("payload "), n.cast("string")).alias("payload"),
        (n % 3 + 4).alias("priority"),
        when(n % 10 == 0, lit(3600)).alias("delay"),
        when(n % 2 == 1, concat(lit("key"), n.cast("string"))).alias("dedup_key"),
    )


def taken_in(store: Path) -> dict[str, list[lodeq.Lease]]:
    async def live() -> dict[str, list[lodeq.Lease]]:
        async with lodeq.open(store, shards=SHARDS) as engine:
            assert (await engine.ingest()).ok
            assert (await engine.verify()).ok
            return {
                tenant: await engine.queue("mail", tenant=tenant).claim(limit=4096)
                for tenant in ("", "acme")
            }

    return asyncio.run(live())


@pytest.mark.smoke
def test_a_load_is_what_an_enqueue_would_have_made(spark: SparkSession, store: Path) -> None:
    assert load_tasks(many(spark, 1000), store, job="load-1") is True
    assert load_tasks(many(spark, 1000), store, job="load-1") is False
    leases = taken_in(store)
    assert load_tasks(many(spark, 1000), store, job="load-1") is False
    for tenant, remainder in (("acme", 0), ("", 1)):
        found = [(lease.priority, lease.payload) for lease in leases[tenant]]
        expected = [n for n in range(1000) if n % 2 == remainder and n % 10]
        assert [priority for priority, _ in found] == sorted((p for p, _ in found), reverse=True)
        assert sorted(found) == sorted((n % 3 + 4, f"payload {n}") for n in expected)
    delayed = spark.read.format("lodeq").option("table", "delayed").load(str(store))
    assert delayed.count() == 100


def test_no_rows_publish_nothing(spark: SparkSession, store: Path) -> None:
    """Their name is free, and whoever asked can tell."""
    assert load_tasks(many(spark, 0), store, job="later") is False
    assert pending(str(store)) == []
    assert load_tasks(many(spark, 10), store, job="later") is True
    assert pending(str(store)) == ["later"]


def test_keys_that_are_held_stay_out(spark: SparkSession, store: Path) -> None:
    with lodeq.sync.open(store, shards=SHARDS) as engine:
        engine.queue("mail").enqueue("before", dedup_key="key1")
    frame = many(spark, 20)
    load_tasks(frame.union(frame), store, job="twice", on_conflict="skip")
    payloads = sorted(lease.payload for lease in taken_in(store)[""])
    assert payloads == sorted(["before", *(f"payload {n}" for n in range(3, 20, 2))])


def test_a_bad_row_fails_the_load_and_leaves_nothing(spark: SparkSession, store: Path) -> None:
    frame = many(spark, 40).coalesce(1).withColumn("priority", when(col("delay").isNotNull(), 17))
    write = frame.write.format("lodeq").mode("append").option("commitId", "bad")
    with pytest.raises(PySparkException, match="row 0 of partition 0: priority 17"):
        write.save(str(store))
    assert pending(str(store)) == []
    assert not list((store / "inbox" / "staged").iterdir())
    with pytest.raises(PySparkException, match="tasks have no column 'colour'"):
        frame.withColumn("colour", lit(1)).write.format("lodeq").mode("append").save(str(store))
    with pytest.raises(PySparkException, match="a store takes appends only"):
        frame.write.format("lodeq").mode("overwrite").save(str(store))


def test_rows_with_a_position_are_claimed_in_its_order(spark: SparkSession, store: Path) -> None:
    backwards = (lit(999) - col("id")).alias("position")
    frame = spark.range(1000, numPartitions=7).select(
        lit("mail").alias("queue"), col("id").cast("string").alias("payload"), backwards
    )
    assert load_tasks(frame, store, job="ordered", parts_per_shard=2)
    payloads = [lease.payload for lease in taken_in(store)[""]]
    assert payloads == [str(n) for n in reversed(range(1000))]
    for position in (-1, 1 << 33):
        wrong = frame.withColumn("position", lit(position))
        with pytest.raises(PySparkException, match="expected a position of 0 to"):
            load_tasks(wrong, store, job="wrong")


@pytest.mark.parametrize("sink", ["writeStream", "foreachBatch"])
def test_a_batch_that_runs_again_is_not_loaded_again(
    spark: SparkSession, store: Path, tmp_path: Path, sink: str
) -> None:
    many(spark, 100).write.parquet(str(tmp_path / "in"))

    def run() -> None:
        schema = spark.read.parquet(str(tmp_path / "in")).schema
        stream = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
        write = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        if sink == "foreachBatch":
            write = write.foreachBatch(batch_loader(store, "app"))
        else:
            write = write.format("lodeq").option("appId", "app").option("path", str(store))
        write.trigger(availableNow=True).start().awaitTermination()

    run()
    assert pending(str(store)) == ["app-0"]
    shutil.rmtree(tmp_path / "checkpoint" / "commits")  # as if killed before it was noted
    run()
    assert pending(str(store)) == ["app-0"]
    assert sum(map(len, taken_in(store).values())) == 90
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    run()
    assert pending(str(store)) == []
