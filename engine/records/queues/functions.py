"""A published function's row: when it was published, and what a worker said of it.

::

    0  u8 type 'f'   1  u8 version 1   2  u16 0   4  i64 published_us   12 msgpack map, then xxh3_64

Key ``m/f/`` queue 0 function, on the first shard. The map's members are in
``repository/model/calls/functions.py``; whoever reads it passes over those it does not know.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ....errors import RecordCorruptError
from ..frame import open_frame, seal
from ..keyspace import FUNCTIONS

__all__ = [
    "FunctionRow",
    "decode_function",
    "decode_function_key",
    "encode_function",
    "function_key",
]

_KIND: Final = 0x66
_HEAD: Final = struct.Struct("<BBHq")


class FunctionRow(NamedTuple):
    """A decoded row; ``facts`` is the map, packed."""

    published_us: int
    facts: bytes


def function_key(queue: bytes, function: bytes) -> bytes:
    """Key order is by queue, then by the bytes of the function's name, which may be any."""
    return FUNCTIONS + queue + b"\0" + function


def decode_function_key(key: bytes) -> tuple[bytes, bytes]:
    """(queue, function)."""
    queue, zero, function = key[len(FUNCTIONS) :].partition(b"\0")
    if not key.startswith(FUNCTIONS) or not (queue and zero and function):
        raise RecordCorruptError(f"not a key of a function: {key!r}")
    return queue, function


def encode_function(row: FunctionRow) -> bytes:
    """The value's bytes."""
    return seal(_HEAD.pack(_KIND, 1, 0, row.published_us) + row.facts)


def decode_function(raw: bytes) -> FunctionRow:
    """The inverse."""
    open_frame(raw, _HEAD, _KIND, 1, "function row")
    return FunctionRow(_HEAD.unpack_from(raw)[3], raw[_HEAD.size : -8])
