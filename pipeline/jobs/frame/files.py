"""Files from outside as frames: each row with the columns of its own file, and where it is from.

Spark reads the files of one read as if they had one schema: what is in the first of them, or what
all values together could be. Here every file keeps its header and every JSON payload its value.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import (
    col,
    explode,
    json_object_keys,
    min_by,
    monotonically_increasing_id,
    trim,
)
from pyspark.sql.types import StringType, StructType

from ....errors import UsageError

__all__ = ["CORRUPT", "FILE", "FORMATS", "OURS", "RAW", "named", "read_rows"]

FORMATS: Final = ("parquet", "json", "csv")
CORRUPT, FILE, RAW = "_corrupt_record", "_source_file", "_raw"
OURS: Final = (CORRUPT, "_errors", FILE, "_ghost", RAW, "_row")
_PATH: Final = "_metadata.file_path"


def read_rows(
    spark: SparkSession, paths: Sequence[str], form: str, columns: Sequence[str] = ()
) -> DataFrame:
    """Files as they are, each row with the file it comes from.

    Args:
        spark: the session.
        paths: files or folders.
        form: one of ``FORMATS``. JSON has an object a line, CSV a header.
        columns: ``theirs=ours``, of columns that are called otherwise.

    Raises ``UsageError`` for what is no such pair, and for headers that cannot be told apart.
    """
    if form == "json":
        lines = spark.read.text(list(paths)).withColumn(FILE, col(_PATH))
        return _objects(lines.where(trim("value") != ""), columns)
    if form == "csv":
        frame = _csv(spark, list(paths))
    else:
        read = spark.read.format(form).option("mergeSchema", True)
        frame = read.load(list(paths)).withColumn(FILE, col(_PATH))
    called = _called([name for name in frame.columns if name not in OURS], columns)
    return frame.select(*(named(name).alias(called.get(name, name)) for name in frame.columns))


def named(name: str) -> Column:
    """The column of that name, whatever it is made of: a dot in ``col`` leads into a struct."""
    return col("`" + name.replace("`", "``") + "`")


def _called(names: Sequence[str], pairs: Sequence[str]) -> dict[str, str]:
    """Their names, and what each is called here."""
    called = {name: name for name in names}
    for pair in pairs:
        theirs, equals, ours = pair.partition("=")
        if not equals or theirs not in called:
            raise UsageError(f"column {pair!r}: THEIRS=OURS, of {', '.join(names)}")
        called[theirs] = ours
    found = list(called.values())
    if twice := [name for name in found if found.count(name) > 1]:
        raise UsageError(f"two columns are called {twice[0]!r}: one is enough")
    return called


def _csv(spark: SparkSession, paths: list[str]) -> DataFrame:
    """The files of each header by themselves: Spark takes columns by their place."""
    read = spark.read.options(header=True, escape='"', multiLine=True)  # as RFC 4180 has it
    read = read.option("columnNameOfCorruptRecord", CORRUPT)
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for file, line in _first_lines(spark, paths):
        groups.setdefault(_header(file, line), []).append(file)
    frames = []
    for (end, names), files in (groups or {("\n", ()): []}).items():
        schema = reduce(lambda made, name: made.add(name, StringType()), names, StructType())
        schema = schema.add(CORRUPT, StringType())
        # Left to find out how lines end, it makes other ends within a value the same.
        frame = read.option("lineSep", end).schema(schema).csv(paths).withColumn(FILE, col(_PATH))
        frames.append(frame.where(col(FILE).isin(files)) if len(groups) > 1 else frame)
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _first_lines(spark: SparkSession, paths: list[str]) -> list[tuple[str, str]]:
    """Of each file that has one, in the order of their names."""
    lines = spark.read.option("lineSep", "\n").text(paths)
    lines = lines.where(col("_metadata.file_block_start") == 0)
    lines = lines.where(~col("value").isin("", "\r"))  # as the reader of CSV passes them over
    lines = lines.select(col(_PATH).alias(FILE), "value", monotonically_increasing_id().alias("n"))
    found = lines.groupBy(FILE).agg(min_by("value", "n").alias("value")).collect()
    return sorted((row[FILE], row["value"]) for row in found)


def _header(file: str, line: str) -> tuple[str, tuple[str, ...]]:
    """How lines end, and the names of columns.

    Names that are empty, there twice or ours have their place with them.
    """
    line = line.removeprefix("\ufeff")
    end = "\r\n" if line.endswith("\r") else "\r" if "\r" in line else "\n"
    line = line.partition("\r")[0]
    if line.count('"') % 2:
        raise UsageError(f"{file}: the name of a column is longer than a line")
    names = next(csv.reader([line]))
    return end, tuple(
        f"{name or '_c'}{place}" if not name or name in OURS or names.count(name) > 1 else name
        for place, name in enumerate(names)
    )


def _objects(lines: DataFrame, pairs: Sequence[str]) -> DataFrame:
    """Lines of JSON. All is text, for ``typed`` to read; a payload is JSON, and says so.

    Spark would give all payloads of a column one type, and make the values of others fit it.
    """
    keys = lines.select(explode(json_object_keys("value")).alias("key")).distinct().collect()
    outside = [name for name in lines.columns if name not in ("value", FILE)]  # of the folders
    names = sorted({row["key"] for row in keys}.difference(outside))
    called = _called([*(name for name in names if name not in OURS), *outside], pairs)
    fields = {theirs: ours for theirs, ours in called.items() if theirs not in outside}
    texts = list(fields.values())
    if "payload" in texts and "payload_kind" not in called.values():
        texts.append("payload_kind")
    schema = StructType()
    for name in (*texts, CORRUPT, RAW):
        schema.add(name, StringType())
    for name in (*outside, FILE):
        schema.add(called.get(name, name), lines.schema[name].dataType)

    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = frozenset(names) | frozenset(outside)
        for batch in batches:
            told = [_fields(line, fields, known) for line in batch.column("value").to_pylist()]
            arrays = {
                name: pa.array([row.get(name) for row in told], pa.string())
                for name in (*texts, CORRUPT)
            }
            arrays[RAW] = batch.column("value")
            for name in (*outside, FILE):
                arrays[called.get(name, name)] = batch.column(name)
            yield pa.RecordBatch.from_pydict(arrays)

    return lines.mapInArrow(parse, schema)


def _fields(line: str, called: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    """What a line says, by our names; what it says nothing of, or null, is not there."""
    try:
        row = json.loads(line.removeprefix("\ufeff"))
        # A key that was not found before: Spark's parser could not read this line.
        if not isinstance(row, dict) or not row.keys() <= known:
            return {CORRUPT: line}
        given = {ours: row[name] for name, ours in called.items() if row.get(name) is not None}
        is_plain = given.get("payload_kind") is not None
        told = {
            name: json.dumps(value) if name == "payload" and not is_plain else _text(value)
            for name, value in given.items()
        }
    except (ValueError, RecursionError):  # halves of a character, too
        return {CORRUPT: line}
    if "payload" in told and not is_plain:
        told["payload_kind"] = "json"
    return told


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if not value.isascii():
        value.encode()
    return value
