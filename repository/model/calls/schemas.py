"""Schemas of arguments: compact JSON that a published function carries for each parameter.

Whoever enqueues by name has no annotations. A schema says which plain values the worker will
accept: it never refuses what the worker takes, and may accept what the worker refuses.

::

    "int"                               int float bool str bytes None datetime date time timedelta
                                        UUID Decimal Path; number: what a library reads as one
    ["list", S]                         also sets and tuples of any length
    ["tuple", S, …]                     a list of this length
    ["map", S, S]                       keys and values
    ["one", "Colour", "red", "blue"]    one of these; the name is empty for a ``Literal``
    ["object", "Line", {"a": S, "b?": S}]   a map; "?": may be missing. Without the third: any map
    ["or", S, …]                        one of these

Anything else, "any" and what a newer release writes accepts every value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import PurePath
from typing import Any, Final

from ....engine.runtime.task_id import UUID
from .mismatch import Mismatch, key_step

__all__ = ["SCHEMA_BYTES_MAX", "first_mismatch", "schema_text"]

SCHEMA_BYTES_MAX: Final = 512  # of one parameter
VALUES_MAX: Final = 10_000  # of one argument that are looked at: the rest is the worker's to refuse
DEPTH_MAX: Final = 6
NAME_CHARS_MAX: Final = 64
INT_LEAST: Final = -(1 << 63)  # msgpack's
INT_MOST: Final = (1 << 64) - 1
_SEQUENCES: Final = (list, tuple, set, frozenset)


def schema_text(make: Callable[[int], Any]) -> str:
    """The schema as text, as deep as fits; empty if it would say nothing.

    ``make``: gives the schema of a depth.
    """
    for depth in range(DEPTH_MAX, -1, -1):
        try:
            text = json.dumps(make(depth), ensure_ascii=False, separators=(",", ":"))
            size = len(text.encode())
        except (TypeError, ValueError):  # a value that JSON does not have
            return ""
        if size <= SCHEMA_BYTES_MAX:
            return "" if text == '"any"' else text
    return ""


def first_mismatch(text: str, arguments: Iterable[tuple[str, Any]]) -> tuple[str, Mismatch] | None:
    """The first argument that is not what the schema says, by its name; None: all fit."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return None
    check = _Check()
    for name, value in arguments:
        try:
            check.value(schema, value)
        except Mismatch as error:
            return name, error
        except RecursionError:
            return name, Mismatch("nested too deeply")
    return None


class _Check:
    """Checks values; it looks at a bounded number of them."""

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def value(self, schema: Any, value: Any) -> None:
        self._left -= 1
        if self._left < 0:
            return
        if isinstance(schema, str):
            accepts = _PLAIN.get(schema)
            if accepts is not None and not _fits(accepts, value):
                raise _wrong(schema, value)
            if accepts is _is_moment and _is_naive(value):
                wrong = Mismatch.expected("datetime with a time zone", value)
                raise Mismatch(f"{wrong.what}; write 2026-01-31T12:00:00Z, or +02:00 for Z")
            return
        if not isinstance(schema, list) or not schema:
            return
        form = _FORMS.get(schema[0]) if isinstance(schema[0], str) else None
        if form is not None:
            form(self, schema, value)

    def list_of(self, schema: list[Any], value: Any) -> None:
        if not isinstance(value, _SEQUENCES):
            raise _wrong("list", value)
        item = _at(schema, 1)
        if item == "any":
            return
        for i, one in enumerate(value):
            if self._left < 0:
                return
            self.step(f"[{i}]", item, one)

    def tuple_of(self, schema: list[Any], value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise _wrong("tuple", value)
        if len(value) != len(schema) - 1:
            raise Mismatch(f"expected {len(schema) - 1} values ({_text(schema)}), got {len(value)}")
        for i, (item, one) in enumerate(zip(schema[1:], value, strict=True)):
            self.step(f"[{i}]", item, one)

    def map_of(self, schema: list[Any], value: Any) -> None:
        if not isinstance(value, Mapping):
            raise _wrong("map", value)
        for key, one in value.items():
            if self._left < 0:
                return
            # JSON has keys of text alone, so numbers are text there.
            is_number = isinstance(key, str) and key.lstrip("-").isdecimal()
            if not is_number:
                self.step(key_step(key), _at(schema, 1), key)
            self.step(key_step(key), _at(schema, 2), one)

    def one_of(self, schema: list[Any], value: Any) -> None:
        for one in schema[2:]:
            if one == value and isinstance(one, bool) == isinstance(value, bool):
                return
        raise _wrong(schema, value)

    def object_of(self, schema: list[Any], value: Any) -> None:
        if not isinstance(value, Mapping):
            raise Mismatch.expected(f"{_text(schema)} as a map", value)
        fields = _at(schema, 2)
        if not isinstance(fields, dict) or "$v" in value:  # of a version: the worker knows which
            return
        for name, one in fields.items():
            field = name.removesuffix("?")
            if field in value:
                self.step(f".{field}", one, value[field])
            elif field == name:
                raise Mismatch("missing").below(f".{field}")

    def any_of(self, schema: list[Any], value: Any) -> None:
        members, tries = schema[1:], []
        if isinstance(value, Mapping) and "$type" in value:
            maps = [one for one in members if _form(one) in ("object", "map")]
            if len(maps) > 1:  # then each is stored with its name
                members = [one for one in maps if _at(one, 1) == value["$type"]]
                if not members and any(_form(one) == "map" for one in maps):
                    return
        for one in members:
            try:
                self.value(one, value)
            except Mismatch as error:
                tries.append(error)
            else:
                return
        deepest = max(tries, key=lambda error: len(error.path), default=None)
        if deepest is not None and deepest.path:
            raise deepest
        raise _wrong(schema, value)

    def step(self, step: str, schema: Any, value: Any) -> None:
        try:
            self.value(schema, value)
        except Mismatch as error:
            raise error.below(step) from None


_FORMS: Final[Mapping[str, Callable[[_Check, list[Any], Any], None]]] = {
    "list": _Check.list_of,
    "tuple": _Check.tuple_of,
    "map": _Check.map_of,
    "one": _Check.one_of,
    "object": _Check.object_of,
    "or": _Check.any_of,
}


def _at(schema: Any, i: int) -> Any:
    return schema[i] if isinstance(schema, list) and i < len(schema) else "any"


def _form(schema: Any) -> Any:
    return _at(schema, 0) if isinstance(schema, list) else schema


def _wrong(schema: Any, value: Any) -> Mismatch:
    return Mismatch.expected(_text(schema), value)


def _text(schema: Any) -> str:
    """The schema as its annotation was written, nearly."""
    form = _form(schema)
    if not isinstance(schema, list):
        return str(schema)
    if form == "object":
        return str(_at(schema, 1))[:NAME_CHARS_MAX]
    if form == "one":
        values = f"one of {', '.join(map(repr, schema[2:10]))}"
        return f"{_at(schema, 1)} ({values})" if _at(schema, 1) else values
    parts = [_text(one) for one in schema[1:]]
    return " | ".join(parts) if form == "or" else f"{form}[{', '.join(parts)}]"


# -- single values -----------------------------------------------------------------------


def _fits(accepts: Callable[[Any], Any], value: Any) -> bool:
    try:
        return accepts(value) is not False
    except (ValueError, ArithmeticError, InvalidOperation):
        return False


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and INT_LEAST <= value <= INT_MOST


def _is_float(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, float | int):
        return False
    float(value)  # an int may be too large
    return True


def _is_number(value: Any) -> bool:
    """Whether a library that converts may read it as a number."""
    if isinstance(value, str):
        float(value.strip().replace("_", ""))
        return True
    return value is not None and not isinstance(value, list | tuple | Mapping)


def _is_length(value: Any) -> bool:
    if isinstance(value, timedelta):
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    timedelta(seconds=value)
    return True


def _as_text(kind: type, of_text: Callable[[str], Any]) -> Callable[[Any], bool]:
    def accepts(value: Any) -> bool:
        if isinstance(value, str):
            of_text(value)
            return True
        return isinstance(value, kind)

    return accepts


def _moment(text: str) -> datetime:
    if len(text) <= len("2026-01-01"):
        raise ValueError("a date, and no time")
    return datetime.fromisoformat(text)


_is_moment: Final = _as_text(datetime, _moment)


def _is_naive(value: Any) -> bool:
    moment = _moment(value) if isinstance(value, str) else value
    return isinstance(moment, datetime) and moment.utcoffset() is None


_PLAIN: Final[Mapping[str, Callable[[Any], bool]]] = {
    "None": lambda value: value is None,
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "float": _is_float,
    "number": _is_number,
    "str": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, bytes | bytearray | memoryview),
    "datetime": _is_moment,
    "date": _as_text(date, date.fromisoformat),
    "time": _as_text(time, time.fromisoformat),
    "timedelta": _is_length,
    "UUID": _as_text(UUID, UUID),
    "Decimal": _as_text(Decimal, Decimal),
    "Path": _as_text(PurePath, str),
}
