"""Spark routes as Python does, and builds the same keys."""

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from lodeq.engine.records import keyspace as ks
from lodeq.engine.runtime.ids import IdSource, SeededRng, seeded, shard_of, slot_of
from lodeq.pipeline.datasource import sql

KEYS = 100_000
SHARDS = 7


def rows() -> pa.Table:
    """Keys of any bytes and any text; ids; numbers of every size."""
    dice, ids = seeded("sql"), IdSource(SeededRng(7))
    count = range(KEYS)
    texts = ["".join(dice.choices("aß€𝄞\0 Z9", k=dice.randrange(12))) for _ in count]
    return pa.table(
        {
            "n": pa.array(count, pa.int32()),
            "raw": pa.array([dice.randbytes(dice.randrange(40)) for _ in count], pa.binary()),
            "text": pa.array(texts, pa.string()),
            "queue": pa.array([dice.choice(["mail", "a", "q.1-x_"]) for _ in count], pa.string()),
            "tenant": pa.array([dice.choice(["", "acme", "z"]) for _ in count], pa.string()),
            "id": pa.array([ids.new(dice.getrandbits(41), ids.slot()) for _ in count], pa.binary()),
            "priority": pa.array([dice.randrange(10) for _ in count], pa.int32()),
            "seq": pa.array([dice.getrandbits(dice.randrange(1, 63)) for _ in count], pa.int64()),
            "ms": pa.array([dice.getrandbits(dice.randrange(1, 47)) for _ in count], pa.int64()),
        }
    )


def test_routes_and_keys_are_those_of_the_engine(spark: SparkSession) -> None:
    table = rows()
    prefix = sql.shard_queue_prefix(col("queue"), col("tenant"))
    found = (
        spark.createDataFrame(table)
        .select(
            "n",
            sql.slot_of(col("raw")).alias("slot"),
            sql.slot_of(col("text")).alias("text_slot"),
            sql.slot_of(sql.routing_key(col("queue"), col("tenant"), col("raw"))).alias("dedup"),
            sql.shard_of(col("id"), SHARDS).alias("shard"),
            sql.ready_key(prefix, col("priority"), col("seq"), col("id")).alias("ready"),
            sql.delayed_key(prefix, col("ms"), col("seq"), col("id")).alias("delayed"),
            sql.dead_key(prefix, col("ms"), col("id")).alias("dead"),
            sql.task_key(col("id")).alias("task"),
        )
        .toArrow()
        .to_pylist()
    )
    assert len(found) == KEYS
    for row, have in zip(table.to_pylist(), sorted(found, key=lambda row: row["n"]), strict=True):
        queue, tenant = row["queue"].encode(), row["tenant"].encode()
        own = ks.shard_queue_prefix(queue, tenant)
        assert have == {
            "n": row["n"],
            "slot": slot_of(row["raw"]),
            "text_slot": slot_of(row["text"].encode()),
            "dedup": slot_of(b"%b\0%b\0%b" % (queue, tenant, row["raw"])),
            "shard": shard_of(row["id"], SHARDS),
            "ready": ks.ready_key(own, row["priority"], row["seq"], row["id"]),
            "delayed": ks.delayed_key(own, row["ms"], row["seq"], row["id"]),
            "dead": ks.dead_key(own, row["ms"], row["id"]),
            "task": ks.TASK + row["id"],
        }


def test_the_order_of_keys_is_the_stores(spark: SparkSession) -> None:
    table = rows().slice(0, 500)
    key = sql.ready_key(
        sql.shard_queue_prefix(col("queue"), col("tenant")), col("priority"), col("seq"), col("id")
    )
    ordered = spark.createDataFrame(table).select(key.alias("key")).orderBy("key").collect()
    keys = [bytes(row.key) for row in ordered]
    assert keys == sorted(keys)
