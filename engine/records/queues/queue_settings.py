"""The settings row of a queue: what an operator or a worker has set for it, and who did.

========== ==== =============================================================================
row        type layout (little-endian), sealed with xxh3_64
========== ==== =============================================================================
settings   'Q'  u8 type, u8 version, u16 0, msgpack map: name → [value, by, set_us]
========== ==== =============================================================================

The row lies on shard 0, as pauses do: one row, so two shards can never disagree about a limit.
A value is a whole number, true or false, or a list of whole numbers, an even count of them (a rate:
starts, period in milliseconds; ``key_concurrency``: leases, then the bytes of the label's name). A
name that this release does not know is kept as it is. ``starts`` is written where a queue has a
rate and the store is closed: pairs of wall microseconds and starts, with the incarnation in the
place of ``set_us``; the open of another one than the next passes it over.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgpack

from ....errors import RecordCorruptError
from ...values import Setting
from ..frame import open_frame, seal

__all__ = [
    "STARTS",
    "decode_queue_settings",
    "encode_queue_settings",
    "key_setting",
]

STARTS: Final = "starts"  # no setting: what had started when the store was closed
_HEAD: Final = struct.Struct("<BBH")
_NAMES_MAX: Final = 256
_NAME_BYTES_MAX: Final = 64


def encode_queue_settings(settings: Mapping[str, Setting]) -> bytes:
    """The value's bytes, names in order."""
    packed = {name: list(settings[name]) for name in sorted(settings)}
    raw: bytes = msgpack.packb(packed)
    return seal(_HEAD.pack(0x51, 1, 0) + raw)


def decode_queue_settings(raw: bytes) -> dict[str, Setting]:
    """The inverse."""
    open_frame(raw, _HEAD, 0x51, 1, "settings of a queue")
    try:
        given = msgpack.unpackb(raw[_HEAD.size : -8], strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:  # also RecursionError's kin: StackError
        raise RecordCorruptError(f"settings of a queue: {error}") from error
    if not isinstance(given, dict) or len(given) > _NAMES_MAX:
        raise RecordCorruptError("settings of a queue: not a map of settings")
    found = {_name(name): _setting(one) for name, one in given.items()}
    return dict(sorted(found.items()))


def key_setting(value: tuple[int, ...]) -> tuple[int, str]:
    """(leases at once, name of the label) of a stored ``key_concurrency``."""
    return value[0], bytes(value[1:]).rstrip(b"\0").decode("utf-8", "replace")


def _name(name: Any) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= _NAME_BYTES_MAX:
        raise RecordCorruptError(f"settings of a queue: {name!r} is no name")
    return name


def _setting(one: Any) -> Setting:
    if isinstance(one, list) and len(one) == 3:
        value, by, set_us = one
        if isinstance(value, list) and len(value) % 2 == 0 and all(map(_is_whole, value)):
            value = tuple(value)
        elif not isinstance(value, bool) and not _is_whole(value):
            value = None
        if value is not None and isinstance(by, str) and _is_whole(set_us):
            return Setting(value, by, set_us)
    raise RecordCorruptError(f"settings of a queue: {one!r} is no setting")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
