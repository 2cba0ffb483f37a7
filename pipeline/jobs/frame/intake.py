"""Intake of rows from outside: convert them to the types of tasks, and check each one.

The encoder that makes tasks of the rows also checks them, so there is one set of rules. The error
of a row that cannot be a task is kept beside the row, with the file it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import (
    array,
    array_compact,
    coalesce,
    col,
    concat,
    from_json,
    lit,
    make_valid_utf8,
    monotonically_increasing_id,
    struct,
    to_json,
    unix_micros,
    when,
)
from pyspark.sql.types import DataType, MapType, StringType, StructType

from ....engine.records.task import NO_GHOST
from ....engine.recovery.dedup_secret import Secrets
from ....errors import LodeqError, UsageError
from ...datasource.encoder import TASK_COLUMNS, Policy, TaskEncoder, rows_of
from ...datasource.schemas import check_payload
from .files import CORRUPT, FILE, OURS, RAW, named

__all__ = ["ERRORS", "GHOST", "ROW", "checked_rows", "typed"]

ERRORS, GHOST, ROW = "_errors", "_ghost", "_row"
_YEARS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # 1 to 9999: Python's


def typed(frame: DataFrame, *, ignore_others: bool = False) -> DataFrame:
    """Convert columns to the types of tasks; ``ERRORS`` lists the values that do not convert.

    Adds ``RAW``, the original row as JSON; ``ROW``, its number; and ``FILE`` if it is missing.

    Raises ``UsageError`` for columns that tasks do not have, unless they are to be ignored, and for
    a payload of a type that cannot be one.
    """
    given = [name for name in frame.columns if name not in OURS]
    strange = [name for name in given if name not in TASK_COLUMNS]
    if strange and not ignore_others:
        raise UsageError(
            f"tasks have no column {strange[0]!r}; rename it to one of "
            f"{', '.join(TASK_COLUMNS)}, or ignore it"
        )
    if "payload" not in given:
        raise UsageError("tasks need a column 'payload'")
    kinds = {field.name: field.dataType for field in frame.schema}
    errors: list[Column] = []
    columns: list[Column] = []
    for name in given:
        if name in TASK_COLUMNS:
            value, wrong = _value(name, kinds[name])
            columns.append(value.alias(name))
            errors += wrong
    if CORRUPT in frame.columns:
        errors.append(when(col(CORRUPT).isNotNull(), lit("the line is malformed")))
    raw = coalesce(
        *(col(name).cast("string") for name in (CORRUPT, RAW) if name in frame.columns),
        to_json(struct(*map(named, given))),
    )
    file = col(FILE) if FILE in frame.columns else lit("")
    found = array_compact(array(*errors)) if errors else array().cast("array<string>")
    return frame.select(
        *columns,
        file.alias(FILE),
        make_valid_utf8(raw).alias(RAW),
        found.alias(ERRORS),
        monotonically_increasing_id().alias(ROW),
    )


def _value(name: str, kind: DataType) -> tuple[Column, list[Column]]:
    """Return a column converted to the type of tasks, and columns with its errors or null."""
    value, wanted = col(name), TASK_COLUMNS[name]
    if not wanted:
        check_payload(kind)
        return value, []
    wrong: list[Column] = []
    if kind.simpleString() not in wanted:
        if name in ("headers", "labels") and isinstance(kind, StructType | StringType):
            text = value if isinstance(kind, StringType) else to_json(value)
            value = from_json(text, MapType(StringType(), StringType()))
        else:
            value = value.try_cast(wanted[-1])
        words = concat(lit(f"{name} is not {wanted[-1]}: "), _shown(name))
        wrong.append(when(col(name).isNotNull() & value.isNull(), words))
    if wanted == ("timestamp",):
        fits = unix_micros(value).between(*_YEARS)
        words = concat(lit(f"{name} is not in the years 1 to 9999: "), _shown(name))
        wrong.append(when(~fits, words))
        value = when(fits, value)
    return value, wrong


def _shown(name: str) -> Column:
    """Return the column as text that can be read, whatever bytes it has."""
    return make_valid_utf8(col(name).cast("string"))


def checked_rows(frame: DataFrame, policy: Policy, secrets: Callable[[], Secrets]) -> DataFrame:
    """Add the encoder's error for each row to ``ERRORS``, and its dedup hash as ``GHOST``.

    ``secrets`` reads those of the store, in the workers: Spark's plans must not contain them.
    """
    policy.check()
    schema = StructType([*frame.schema.fields]).add(GHOST, "binary")
    names = [name for name in frame.columns if name not in OURS]

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = TaskEncoder("check", 0, 1_700_000_000_000_000, 1, policy, secrets())
        for batch in batches:
            yield _check_batch(encoder, batch, names)

    return frame.mapInArrow(check, schema)


def _check_batch(
    encoder: TaskEncoder, batch: pa.RecordBatch, names: Sequence[str]
) -> pa.RecordBatch:
    errors: list[list[str]] = []
    ghosts: list[bytes | None] = []
    known = batch.column(ERRORS).to_pylist()
    for row, before in zip(rows_of(batch.select(names)), known, strict=True):
        words, ghost = list(before), None
        if not words:
            words, ghost = _check_row(encoder, row)
        errors.append(words)
        ghosts.append(ghost)
    arrays = {name: batch.column(name) for name in batch.schema.names}
    arrays[ERRORS] = pa.array(errors, batch.schema.field(ERRORS).type)
    arrays[GHOST] = pa.array(ghosts, pa.binary())
    return pa.RecordBatch.from_pydict(arrays)


def _check_row(
    encoder: TaskEncoder, row: Mapping[str, Any] | UsageError
) -> tuple[list[str], bytes | None]:
    try:
        ghost = encoder.task(row)[0].ghost
    except LodeqError as exc:
        return [str(exc).partition(": ")[2] or str(exc)], None
    return [], None if ghost == NO_GHOST else ghost
