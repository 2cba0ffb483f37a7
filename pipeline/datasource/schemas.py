"""Schemas of the tables, as Arrow and as Spark types.

Spark does not pass the wanted columns to a Python source. So the user names them, by
``.schema(...)`` or by the option ``columns``; otherwise all columns are read.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from ...engine.bulk.arrow.columns import schema
from ...engine.bulk.tables import COLUMNS
from ...errors import UsageError
from .events import JOURNAL_SCHEMA
from .options import Options

__all__ = ["TABLES", "arrow_schema", "check_payload", "checked", "spark_schema"]

TABLES: Final[dict[str, pa.Schema]] = {
    **{table: schema(table) for table in COLUMNS},
    "journal": JOURNAL_SCHEMA,
}


def spark_schema(table: str, options: Options) -> StructType:
    """Return all columns of a table, or those that the option ``columns`` names, in that order.

    Raises:
        UsageError: the table has no such column.
    """
    whole = from_arrow_schema(TABLES[table], prefer_timestamp_ntz=False)
    names = options.names("columns")
    if names is None:
        return whole
    _check_names(table, names)
    return StructType([whole[name] for name in names])


def checked(table: str, given: StructType) -> StructType:
    """Check a schema that a user gave, or that Spark took from ``spark_schema``; return it.

    Raises:
        UsageError: the table has no such column, or one of another type.
    """
    whole = from_arrow_schema(TABLES[table], prefer_timestamp_ntz=False)
    _check_names(table, given.names)
    for field in given:
        have = whole[field.name].dataType
        if field.dataType.simpleString() != have.simpleString():
            raise UsageError(
                f"column {field.name!r} of table {table!r} is {have.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
    return given


def arrow_schema(given: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of the first batch, equal in every detail."""
    return to_arrow_schema(given, timezone="UTC")


def check_payload(kind: DataType) -> None:
    """Raise ``UsageError`` for a variant at any depth: Python gets its bytes, not its value."""
    inner: list[DataType] = []
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    elif isinstance(kind, VariantType):
        raise UsageError(
            "a payload cannot be a variant: pass to_json(payload) and payload_kind 'json'"
        )
    for one in inner:
        check_payload(one)


def _check_names(table: str, names: list[str]) -> None:
    there = TABLES[table].names
    unknown = [name for name in names if name not in there]
    if unknown or len(set(names)) < len(names):
        what = f"no column {unknown[0]!r}" if unknown else f"a column once, not twice: {names}"
        raise UsageError(f"table {table!r} has {what}; it has {', '.join(there)}")
