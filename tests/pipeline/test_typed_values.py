"""Typed arguments through Spark: read from one store, loaded into another, and run there."""

import asyncio
from pathlib import Path

import msgpack
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit
from support_typed import CASES, MORE, User

import lodeq
from lodeq.pipeline import load_tasks
from lodeq.worker import App


def app_of(cases: list[tuple], got: dict[int, object]) -> App:
    """A function for each of them."""
    app = App(name="typed")

    def register(number: int, annotation: object) -> None:
        async def take(value):
            got[number] = value

        take.__annotations__ = {"value": annotation, "return": None}
        app.task("typed", name=f"take{number}", max_attempts=1)(take)

    for number, (annotation, *_) in enumerate(cases):
        register(number, annotation)
    return app


def test_every_type_holds_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    cases, got = [*CASES, *MORE], {}
    app = app_of(cases, got)

    async def enqueue_all() -> None:
        async with lodeq.open(tmp_path / "from", shards=2) as engine, app.use(engine):
            for number, (_, value, _) in enumerate(cases):
                await app.function("typed", f"take{number}").enqueue(value)
            await engine.snapshot(keep=3600)

    asyncio.run(enqueue_all())
    read = spark.read.format("lodeq").options(table="tasks", snapshot="latest")
    rows = read.load(str(tmp_path / "from")).select(
        "queue", "payload", "payload_kind", "headers", "function"
    )
    stored = {row["function"]: row for row in rows.collect()}
    for number, (annotation, _, plain) in enumerate(cases):
        row = stored[f"take{number}"]
        assert row["payload_kind"] == "msgpack", annotation
        if plain is not None:
            whole = msgpack.packb({"value": plain}, datetime=True)
            assert bytes(row["payload"]) == whole, annotation
    with lodeq.sync.open(tmp_path / "to", shards=3):
        pass
    assert load_tasks(rows, tmp_path / "to", job="typed")

    async def run_all() -> None:
        async with lodeq.open(tmp_path / "to") as engine, app.use(engine):
            assert (await engine.ingest()).ok
            assert (await app.drain()).completed == len(cases)

    asyncio.run(run_all())
    for number, (annotation, value, _) in enumerate(cases):
        assert repr(got[number]) == repr(value) or got[number] == value, annotation
        assert type(got[number]) is type(value) or annotation in (float, memoryview), annotation


@pytest.mark.parametrize(
    ("age", "is_right"), [("cast(7 as bigint)", True), ("'seven'", False)], ids=["right", "wrong"]
)
def test_columns_are_arguments_too(
    spark: SparkSession, tmp_path: Path, age: str, is_right: bool
) -> None:
    """A value that does not fit fails its run with the place; Spark knows no functions."""
    cases = [(User, None, None)]
    got: dict[int, object] = {}
    app = app_of(cases, got)
    with lodeq.sync.open(tmp_path / "store", shards=1):
        pass
    frame = spark.sql(
        "select named_struct('value', named_struct('name', 'Ann', 'address', "
        f"array(named_struct('street', 'A', 'zip', {age})))) payload"
    ).select(
        "payload",
        lit("typed").alias("queue"),
        lit(1).alias("max_attempts"),
        col("payload.value.name").alias("preview"),
    )
    assert load_tasks(frame, tmp_path / "store", job="typed")

    async def run_all() -> list[str]:
        async with lodeq.open(tmp_path / "store") as engine, app.use(engine):
            assert (await engine.ingest()).ok
            await app.drain(errors="keep")
            return [task.reason for task in await engine.queue("typed").list("dead")]

    reasons = asyncio.run(run_all())
    if is_right:
        assert (reasons, got[0].address[0].zip) == ([], 7)
    else:
        (reason,) = reasons
        assert "argument value.address[0].zip: expected int, got str 'seven'" in reason
