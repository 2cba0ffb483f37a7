"""Deduplication keys of calls that are unique by their arguments.

A call in Python and an enqueue by name get the same key: both take the arguments as they are
stored, without those that equal their default, maps in order of their keys, and whole floats as
the whole numbers they are (JSON does not tell them apart).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

import msgpack

from ....errors import UsageError

__all__ = ["ALL_ARGUMENTS", "BY_CODE", "digest_of", "key_of_arguments", "key_of_value"]

ALL_ARGUMENTS: Final = "*"  # instead of names: all of them
BY_CODE: Final = "?"  # instead of names: code of the app makes the key
NAME_CHARS: Final = 64  # of the function, shown in the key


def key_of_arguments(
    function: str, names: Sequence[str], arguments: Mapping[str, Any], defaults: Mapping[str, str]
) -> str:
    """Return the key of a call.

    Args:
        function: its name.
        names: of the arguments that count, or ``ALL_ARGUMENTS`` alone.
        arguments: as they are stored, by name.
        defaults: ``digest_of`` the defaults, by name.
    """
    counted = arguments if ALL_ARGUMENTS in names else {n: arguments.get(n) for n in names}
    kept = {
        name: value
        for name, value in counted.items()
        if name in arguments and (name not in defaults or defaults[name] != digest_of(value))
    }
    return key_of_value(function, kept)


def key_of_value(function: str, value: Any) -> str:
    """Return the key of a function and a plain value.

    Raises:
        UsageError: the value is not plain.
    """
    return f"unique:{function[:NAME_CHARS]}:{_hash(value, 16)}"


def digest_of(value: Any) -> str:
    """Return a short hash of a plain value; raises as ``key_of_value``."""
    return _hash(value, 8)


def _hash(value: Any, size: int) -> str:
    try:
        packed = msgpack.packb(_ordered(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"a unique key is made of plain values ({error})") from error
    return blake2b(packed, digest_size=size).hexdigest()


def _ordered(value: Any) -> Any:
    """Return the value so that equal ones are packed alike, and unlike ones are not."""
    if isinstance(value, Mapping):
        pairs = [[_ordered(key), _ordered(item)] for key, item in value.items()]
        return {"m": sorted(pairs, key=lambda pair: msgpack.packb(pair[0]))}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise TypeError("a datetime without a time zone")
        return {"t": value.astimezone(UTC).isoformat()}
    return value
