"""Rows from outside, on their way to become tasks: read, given types, and judged one by one.

Whether a row can be a task is decided by the encoder that will make it one, so there is one set of
rules. What it says of a row that cannot is kept beside the row, with the file it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import (
    array,
    array_compact,
    coalesce,
    col,
    concat,
    from_json,
    lit,
    monotonically_increasing_id,
    struct,
    to_json,
    when,
)
from pyspark.sql.types import MapType, StringType, StructType

from ...engine.records.task import NO_GHOST
from ...errors import LodeqError, UsageError
from ..encoding import TASK_COLUMNS, Policy, TaskEncoder

__all__ = ["ERRORS", "FILE", "FORMATS", "GHOST", "RAW", "ROW", "judged", "read_rows", "typed"]

FORMATS: Final = ("parquet", "json", "csv")
CORRUPT, ERRORS, FILE, GHOST, RAW, ROW = (
    "_corrupt_record", "_errors", "_source_file", "_ghost", "_raw", "_row",
)  # fmt: skip
OURS: Final = (CORRUPT, ERRORS, FILE, GHOST, RAW, ROW)


def read_rows(
    spark: SparkSession, paths: Sequence[str], form: str, columns: Sequence[str] = ()
) -> DataFrame:  # fmt: skip
    """Files as they are, each row with the file it comes from.

    Args:
        spark: the session.
        paths: files or folders.
        form: one of ``FORMATS``. JSON has an object a line, CSV a header.
        columns: ``theirs=ours``, of columns that are called otherwise.

    Raises ``UsageError`` for what is no such pair.
    """
    read = spark.read.format(form)
    if form == "json":
        read = read.option("primitivesAsString", True)
    if form in ("json", "csv"):
        schema = read.option("header", True).load(list(paths)).schema
        if CORRUPT not in schema.names:
            schema = StructType([*schema.fields]).add(CORRUPT, StringType())
        read = read.schema(schema).option("header", True)
        read = read.option("columnNameOfCorruptRecord", CORRUPT)
    frame = read.load(list(paths)).withColumn(FILE, col("_metadata.file_path"))
    for pair in columns:
        theirs, equals, ours = pair.partition("=")
        if not equals or theirs not in frame.columns:
            raise UsageError(f"column {pair!r}: THEIRS=OURS, of {', '.join(frame.columns)}")
        frame = frame.withColumnRenamed(theirs, ours)
    return frame


def typed(frame: DataFrame, *, ignore_others: bool = False) -> DataFrame:
    """Columns of the types that tasks have; ``ERRORS`` tells of values that are of none.

    Adds ``RAW``, the row as it was, as JSON; ``ROW``, its number; and ``FILE`` if it is missing.

    Raises ``UsageError`` for columns that no task has, unless they are to be ignored.
    """
    given = [name for name in frame.columns if name not in OURS]
    strange = [name for name in given if name not in TASK_COLUMNS]
    if strange and not ignore_others:
        raise UsageError(
            f"no task has a {strange[0]!r}; give its column a name of ours "
            f"({', '.join(TASK_COLUMNS)}), or ignore it"
        )
    if "payload" not in given:
        raise UsageError("tasks need a column 'payload'")
    kinds = {field.name: field.dataType for field in frame.schema}
    errors: list[Column] = []
    columns: list[Column] = []
    for name in given:
        wanted = TASK_COLUMNS.get(name)
        if wanted is None:
            continue
        value = col(name)
        if wanted and kinds[name].simpleString() not in wanted:
            if name == "headers" and isinstance(kinds[name], StructType):
                value = from_json(to_json(col(name)), MapType(StringType(), StringType()))
            else:
                value = value.try_cast(wanted[-1])
            words = concat(lit(f"{name} is no {wanted[-1]}: "), col(name).cast("string"))
            errors.append(when(col(name).isNotNull() & value.isNull(), words))
        columns.append(value.alias(name))
    if CORRUPT in frame.columns:
        errors.append(when(col(CORRUPT).isNotNull(), lit("the line is malformed")))
    raw = to_json(struct(*map(col, given)))
    if CORRUPT in frame.columns:
        raw = coalesce(col(CORRUPT), raw)
    file = col(FILE) if FILE in frame.columns else lit("")
    found = array_compact(array(*errors)) if errors else array().cast("array<string>")
    return frame.select(
        *columns, file.alias(FILE), raw.alias(RAW), found.alias(ERRORS),
        monotonically_increasing_id().alias(ROW),
    )  # fmt: skip


def judged(frame: DataFrame, policy: Policy) -> DataFrame:
    """With what the encoder says of each row in ``ERRORS``, and its dedup hash in ``GHOST``."""
    policy.check()
    schema = StructType([*frame.schema.fields]).add(GHOST, "binary")
    names = [name for name in frame.columns if name not in OURS]

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = TaskEncoder("judge", 0, 1_700_000_000_000_000, 1, policy)
        for batch in batches:
            yield _judged(encoder, batch, names)

    return frame.mapInArrow(judge, schema)


def _judged(encoder: TaskEncoder, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    errors: list[list[str]] = []
    ghosts: list[bytes | None] = []
    known = batch.column(ERRORS).to_pylist()
    rows = batch.select(names).to_pylist(maps_as_pydicts="strict")
    for row, before in zip(rows, known, strict=True):
        words, ghost = list(before), None
        if not words:
            words, ghost = _verdict(encoder, row)
        errors.append(words)
        ghosts.append(ghost)
    arrays = {name: batch.column(name) for name in batch.schema.names}
    arrays[ERRORS] = pa.array(errors, batch.schema.field(ERRORS).type)
    arrays[GHOST] = pa.array(ghosts, pa.binary())
    return pa.RecordBatch.from_pydict(arrays)


def _verdict(encoder: TaskEncoder, row: Mapping[str, Any]) -> tuple[list[str], bytes | None]:
    try:
        ghost = encoder.rows(row).ghost
    except LodeqError as exc:
        return [str(exc).partition(": ")[2] or str(exc)], None
    return [], None if ghost == NO_GHOST else ghost
