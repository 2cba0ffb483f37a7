"""Read input files as frames: each row with the columns of its own file, and the file's name.

Spark gives all files of one read one schema: that of the first file, or one that fits all values.
Here every file keeps its own header and every JSON payload its value.
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
    encode,
    explode,
    is_valid_utf8,
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
_BYTES: Final = "ISO-8859-1"  # a character for each byte


def read_rows(
    spark: SparkSession, paths: Sequence[str], form: str, columns: Sequence[str] = ()
) -> DataFrame:
    """Read files, each row with the name of its file.

    Args:
        spark: the session.
        paths: files or folders.
        form: one of ``FORMATS``. JSON has one object a line, CSV a header line.
        columns: ``theirs=ours``, for columns with another name in the files.

    Raises ``UsageError`` for a wrong pair, and for two columns of one name.
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
    """Return the column of exactly that name; in ``col`` a dot leads into a struct."""
    return col("`" + name.replace("`", "``") + "`")


def _called(names: Sequence[str], pairs: Sequence[str]) -> dict[str, str]:
    """Return our name for each of their names."""
    called = {name: name for name in names}
    for pair in pairs:
        theirs, equals, ours = pair.partition("=")
        if not equals or theirs not in called:
            raise UsageError(
                f"expected THEIRS=OURS with a column of {', '.join(names)}, got {pair!r}"
            )
        called[theirs] = ours
    found = list(called.values())
    if twice := [name for name in found if found.count(name) > 1]:
        raise UsageError(f"two columns have the name {twice[0]!r}")
    return called


def _csv(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Read files with equal headers together: Spark takes CSV columns by position.

    Spark would replace bytes that are no UTF-8, and nothing would say so. Here they stay in their
    values, for whoever reads these to refuse.
    """
    read = spark.read.options(header=True, escape='"', multiLine=True)  # as RFC 4180 has it
    read = read.options(columnNameOfCorruptRecord=CORRUPT, encoding=_BYTES)
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for file, line in _first_lines(spark, paths):
        groups.setdefault(_header(file, line), []).append(file)
    frames = []
    for (end, names), files in (groups or {("\n", ()): []}).items():
        schema = reduce(lambda made, name: made.add(name, StringType()), names, StructType())
        schema = schema.add(CORRUPT, StringType())
        # Without a separator Spark also replaces other line ends inside values.
        frame = read.option("lineSep", end).schema(schema).csv(paths)
        texts = [encode(named(one), _BYTES).cast("string").alias(one) for one in schema.names]
        frame = frame.select(*texts, col(_PATH).alias(FILE))
        frames.append(frame.where(col(FILE).isin(files)) if len(groups) > 1 else frame)
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _first_lines(spark: SparkSession, paths: list[str]) -> list[tuple[str, str]]:
    """Return (file, first line) of each file that has one, ordered by file."""
    lines = spark.read.option("lineSep", "\n").text(paths)
    lines = lines.where(col("_metadata.file_block_start") == 0)
    lines = lines.where(~col("value").isin("", "\r"))  # the CSV reader skips them, too
    lines = lines.select(col(_PATH).alias(FILE), "value", monotonically_increasing_id().alias("n"))
    found = lines.groupBy(FILE).agg(min_by("value", "n").alias("value")).collect()
    return sorted((row[FILE], row["value"]) for row in found)


def _header(file: str, line: str) -> tuple[str, tuple[str, ...]]:
    """Return the line end, and the names of the columns.

    Names that are empty, repeated or reserved get their position appended.
    """
    line = line.removeprefix("\ufeff")
    end = "\r\n" if line.endswith("\r") else "\r" if "\r" in line else "\n"
    line = line.partition("\r")[0]
    if line.count('"') % 2:
        raise UsageError(f"{file}: the name of a column has a line break in it")
    names = next(csv.reader([line]))
    return end, tuple(
        f"{name or '_c'}{position}" if not name or name in OURS or names.count(name) > 1 else name
        for position, name in enumerate(names)
    )


def _objects(lines: DataFrame, pairs: Sequence[str]) -> DataFrame:
    """Parse lines of JSON into text columns, for ``typed`` to convert; payloads stay JSON.

    Spark would give all payloads of a column one type, and convert the values of others to it.
    """
    whole = lines.where(is_valid_utf8("value"))
    keys = whole.select(explode(json_object_keys("value")).alias("key")).distinct().collect()
    outside = [name for name in lines.columns if name not in ("value", FILE)]  # from folder names
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
            lines = batch.column("value").cast(pa.binary()).to_pylist()
            rows = [_fields(line, fields, known) for line in lines]
            arrays = {
                name: pa.array([row.get(name) for row in rows], pa.string())
                for name in (*texts, CORRUPT)
            }
            arrays[RAW] = pa.array([line.decode("utf-8", "replace") for line in lines], pa.string())
            for name in (*outside, FILE):
                arrays[called.get(name, name)] = batch.column(name)
            yield pa.RecordBatch.from_pydict(arrays)

    return lines.mapInArrow(parse, schema)


def _fields(raw: bytes, called: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    """Return the values of a line that are not null, by our names."""
    line = raw.decode("utf-8", "replace")
    try:
        row = json.loads(raw.decode().removeprefix("\ufeff"))
        # A key that is not known: Spark's parser could not read this line.
        if not isinstance(row, dict) or not row.keys() <= known:
            return {CORRUPT: line}
        given = {ours: row[name] for name, ours in called.items() if row.get(name) is not None}
        is_plain = given.get("payload_kind") is not None
        fields = {
            name: json.dumps(value) if name == "payload" and not is_plain else _text(value)
            for name, value in given.items()
        }
    except (ValueError, RecursionError):  # no UTF-8, or lone surrogates, too
        return {CORRUPT: line}
    if "payload" in fields and not is_plain:
        fields["payload_kind"] = "json"
    return fields


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if not value.isascii():
        value.encode()
    return value
