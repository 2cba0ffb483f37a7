"""Rows from outside, on their way to become tasks: given types, and judged one by one.

Whether a row can be a task is decided by the encoder that will make it one, so there is one set of
rules. What it says of a row that cannot is kept beside the row, with the file it came from.
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

__all__ = ["ERRORS", "GHOST", "ROW", "judged", "typed"]

ERRORS, GHOST, ROW = "_errors", "_ghost", "_row"
_YEARS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # 1 to 9999: Python's


def typed(frame: DataFrame, *, ignore_others: bool = False) -> DataFrame:
    """Columns of the types that tasks have; ``ERRORS`` tells of values that are of none.

    Adds ``RAW``, the row as it was, as JSON; ``ROW``, its number; and ``FILE`` if it is missing.

    Raises ``UsageError`` for columns that no task has, unless they are to be ignored, and for a
    payload of a type that cannot be one.
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
        raw.alias(RAW),
        found.alias(ERRORS),
        monotonically_increasing_id().alias(ROW),
    )


def _value(name: str, kind: DataType) -> tuple[Column, list[Column]]:
    """A column as one of the type that tasks have, and what is wrong with it, or null."""
    value, wanted = col(name), TASK_COLUMNS[name]
    if not wanted:
        check_payload(kind)
        return value, []
    wrong: list[Column] = []
    if kind.simpleString() not in wanted:
        if name == "headers" and isinstance(kind, StructType | StringType):
            text = value if isinstance(kind, StringType) else to_json(value)
            value = from_json(text, MapType(StringType(), StringType()))
        else:
            value = value.try_cast(wanted[-1])
        words = concat(lit(f"{name} is no {wanted[-1]}: "), col(name).cast("string"))
        wrong.append(when(col(name).isNotNull() & value.isNull(), words))
    if wanted == ("timestamp",):
        fits = unix_micros(value).between(*_YEARS)
        words = concat(lit(f"{name} is not of the years 1 to 9999: "), col(name).cast("string"))
        wrong.append(when(~fits, words))
        value = when(fits, value)
    return value, wrong


def judged(frame: DataFrame, policy: Policy, secrets: Callable[[], Secrets]) -> DataFrame:
    """With what the encoder says of each row in ``ERRORS``, and its dedup hash in ``GHOST``.

    ``secrets``: reads those of the store, in the workers: they do not travel with Spark's plans.
    """
    policy.check()
    schema = StructType([*frame.schema.fields]).add(GHOST, "binary")
    names = [name for name in frame.columns if name not in OURS]

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = TaskEncoder("judge", 0, 1_700_000_000_000_000, 1, policy, secrets())
        for batch in batches:
            yield _judged(encoder, batch, names)

    return frame.mapInArrow(judge, schema)


def _judged(encoder: TaskEncoder, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    errors: list[list[str]] = []
    ghosts: list[bytes | None] = []
    known = batch.column(ERRORS).to_pylist()
    for row, before in zip(rows_of(batch.select(names)), known, strict=True):
        words, ghost = list(before), None
        if not words:
            words, ghost = _verdict(encoder, row)
        errors.append(words)
        ghosts.append(ghost)
    arrays = {name: batch.column(name) for name in batch.schema.names}
    arrays[ERRORS] = pa.array(errors, batch.schema.field(ERRORS).type)
    arrays[GHOST] = pa.array(ghosts, pa.binary())
    return pa.RecordBatch.from_pydict(arrays)


def _verdict(
    encoder: TaskEncoder, row: Mapping[str, Any] | UsageError
) -> tuple[list[str], bytes | None]:
    try:
        ghost = encoder.rows(row).ghost
    except LodeqError as exc:
        return [str(exc).partition(": ")[2] or str(exc)], None
    return [], None if ghost == NO_GHOST else ghost
