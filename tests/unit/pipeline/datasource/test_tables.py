"""How a table is shared out: every row once, and no more than filters ask for."""

from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    LessThanOrEqual,
    Not,
)
from support_spark import make_store

from lodeq.engine.bulk.ranges import Filters
from lodeq.pipeline.datasource.filters import narrowed
from lodeq.pipeline.datasource.options import Options
from lodeq.pipeline.datasource.schemas import spark_schema
from lodeq.pipeline.datasource.tables import PushingTableReader, RangesPartition, TableReader


def reader_of(path: Path, table: str, kind: type[TableReader] = TableReader, **options: str):
    given = Options({"path": str(path)} | options)
    return kind(table, given, spark_schema(table, given))


def ids_of(reader: TableReader) -> list[list[str]]:
    return [
        [found for batch in reader.read(part) for found in batch.column("task_id").to_pylist()]
        for part in reader.partitions()
    ]


def test_pieces_have_every_row_once(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 400)
    expected = ids_of(reader_of(store, "tasks"))
    assert len(expected) == 2  # it may be live: a shard is one piece
    cut = reader_of(store, "tasks", splitBytes="4000", columns="task_id", batchRows="3")
    cut._is_still = True
    pieces = ids_of(cut)
    assert len(pieces) > 4
    found = sorted(chain.from_iterable(pieces))
    assert found == sorted(chain.from_iterable(expected))
    assert len(set(found)) == 380


TIME = datetime(2030, 1, 1, tzinfo=UTC)
US = 1893456000 * 10**6


@pytest.mark.parametrize(
    ("table", "filters", "expected"),
    [
        ("tasks", [EqualTo(("shard",), 1)], Filters(shards=frozenset({1}))),
        ("tasks", [In(("queue",), ("a", "A b"))], Filters(queues=frozenset({"a"}))),
        ("ready", [EqualTo(("queue",), "a"), In(("queue",), ("b",))], Filters(queues=frozenset())),
        ("ready", [EqualTo(("tenant",), "")], Filters(tenants=frozenset({""}))),
        ("tasks", [EqualTo(("id",), b"x" * 16)], Filters(ids=frozenset({b"x" * 16}))),
        ("tasks", [EqualTo(("id",), b"short")], Filters(ids=frozenset())),
        ("tasks", [EqualTo(("task_id",), "0" * 32)], Filters(ids=frozenset())),
        ("dead", [GreaterThan(("died_at",), TIME)], Filters(since_us=US + 1)),
        ("dead", [LessThanOrEqual(("died_at",), TIME)], Filters(until_us=US + 1)),
        ("dead", [EqualTo(("died_at",), TIME)], Filters(since_us=US, until_us=US + 1)),
        ("dead", [GreaterThan(("id_at",), TIME), IsNotNull(("queue",))], Filters()),
        ("tasks", [Not(EqualTo(("queue",), "a")), EqualTo(("queue", "x"), "a")], Filters()),
    ],
)
def test_what_filters_say(table: str, filters: list[Filter], expected: Filters) -> None:
    assert narrowed(table, filters) == expected


def test_a_filter_reads_less(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    reader = reader_of(store, "ready", PushingTableReader)
    filters: list[Filter] = [EqualTo(("queue",), "other"), IsNotNull(("queue",))]
    assert list(reader.pushFilters(filters)) == filters
    assert sum(map(len, ids_of(reader))) == 30
    reader.pushFilters([EqualTo(("shard",), 1)])
    assert [part.value[0] for part in reader.partitions()] == [1]
    reader.pushFilters([EqualTo(("queue",), "Not a name")])
    assert [part.value for part in reader.partitions()] == [None]
    assert list(reader.read(RangesPartition(None))) == []
