"""JSON of values: one rendering of whatever a payload may be, and strict reading.

Payloads, headers and results hold what JSON lacks: bytes, times, numbers that are none, keys that
are no text. ``rendered`` has a form for everything, and says whether that form is the value itself:

- bytes are ``{"base64": …}``, extensions ``{"ext": CODE, "base64": …}``, times ISO 8601;
- numbers that are none are ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``;
- a map with a key that is no text is the list of its pairs, so that no two keys become one;
- what lies deeper than ``DEPTH_MAX`` is ``"…"``, anything else its text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from math import isfinite
from typing import Any, Final, NamedTuple

import msgpack

from ...engine.runtime.task_id import TaskId

__all__ = [
    "DEPTH_MAX",
    "RENDERED",
    "Rendered",
    "dumps",
    "finite",
    "loads",
    "marked",
    "no_number",
    "rendered",
]

DEPTH_MAX: Final = 150  # json itself takes less than Python's limit of recursion
RENDERED: Final = "rendered"  # the kind of what is not the value itself
_BITS_MAX: Final = 8192  # Python writes no decimals of more than 4,300 digits
_NUMBERS: Final = {"inf": "Infinity", "-inf": "-Infinity"}


class Rendered(NamedTuple):
    """A value in types that JSON has; ``is_exact``: it is the value itself."""

    value: Any
    is_exact: bool


def rendered(value: Any) -> Rendered:
    """Render a value, whatever it is."""
    found = _Rendering()
    return Rendered(found.of(value, DEPTH_MAX), not found.is_changed)


def marked(name: str, value: Any) -> dict[str, Any]:
    """Render a value under a name, as the members of an object.

    Bytes are ``NAME_base64``. What is not the value itself has ``NAME_kind`` beside it.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}
    found = rendered(value)
    return {name: found.value} | ({} if found.is_exact else {f"{name}_kind": RENDERED})


def dumps(value: Any, *, is_ascii: bool = True) -> str:
    """Any value as one line of strict JSON."""
    return json.dumps(
        rendered(value).value, separators=(",", ":"), ensure_ascii=is_ascii, allow_nan=False
    )


def loads(text: str | bytes) -> Any:
    """Read JSON strictly: without NaN, and without numbers that a float cannot hold.

    Raises:
        ValueError, RecursionError: it is no JSON.
    """
    return json.loads(text, parse_constant=no_number, parse_float=finite)


def no_number(name: str) -> Any:
    """Refuse a constant that Python's parser would take."""
    raise ValueError(f"{name} is not a JSON number")


def finite(digits: str) -> float:
    """Parse a number with a point or an exponent; refuse one that would become infinite."""
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits[:40]} is more than a float can hold")
    return number


class _Rendering:
    __slots__ = ("is_changed",)

    def __init__(self) -> None:
        self.is_changed = False

    def of(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is str or kind is bool:
            return value
        if (kind is int and value.bit_length() <= _BITS_MAX) or (kind is float and isfinite(value)):
            return value
        if isinstance(value, list | tuple) and not isinstance(value, msgpack.ExtType):
            if depth:
                return [self.of(one, depth - 1) for one in value]
        elif isinstance(value, Mapping):
            if depth:
                return self._map(value, depth - 1)
        else:
            self.is_changed = True
            return self._other(value, depth)
        self.is_changed = True
        return "…"

    def _map(self, value: Mapping[Any, Any], depth: int) -> Any:
        if all(type(key) is str for key in value):
            return {key: self.of(one, depth) for key, one in value.items()}
        self.is_changed = True
        return [[self.of(key, depth), self.of(one, depth)] for key, one in value.items()]

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, TaskId):
            return str(value)
        if isinstance(value, msgpack.ExtType):
            return {"ext": value.code, "base64": base64.b64encode(value.data).decode("ascii")}
        if isinstance(value, bytes | bytearray | memoryview):
            return {"base64": base64.b64encode(value).decode("ascii")}
        if isinstance(value, datetime):
            return value.isoformat()
        if isinstance(value, int):
            return int(value) if value.bit_length() <= _BITS_MAX else hex(value)
        if isinstance(value, float):
            return _NUMBERS.get(str(float(value)), "NaN") if not isfinite(value) else float(value)
        if isinstance(value, set | frozenset) and depth:
            return [self.of(one, depth - 1) for one in value]
        try:
            return str(value)
        except Exception:  # noqa: BLE001 - an object of the user's codec
            return f"<{type(value).__name__}>"
