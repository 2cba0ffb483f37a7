"""Values to bytes and back: payloads, results, headers.

``bytes`` are stored as they are, anything else as the queue's codec or msgpack packs it; which
of the three is in the record's flags, so a value comes back as what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

import msgpack

from ...engine.records.compression import inflate
from ...engine.records.task import WHOLE_BYTES_MAX
from ...engine.runtime.task_id import TaskId
from ...engine.values import spelled
from ...errors import PayloadNotLoadedError, PayloadTooLargeError, RecordCorruptError, UsageError
from .values import PAYLOAD_BYTES_MAX, Codec, Deferred

__all__ = [
    "CODEC",
    "MSGPACK",
    "RAW",
    "SLICE_BYTES",
    "CodecBytes",
    "PackedBytes",
    "check_slice",
    "decode_headers",
    "decode_value",
    "deferred_headers",
    "deferred_value",
    "encode_headers",
    "encode_value",
    "not_loaded",
    "not_loaded_yet",
    "stored_value",
    "too_large",
]

RAW, MSGPACK, CODEC = 0, 1, 2
SLICE_BYTES: Final = 256 << 10  # of a payload that is read in slices
# OverflowError: a timestamp past the year 9999.
_UNPACK_ERRORS = (
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    msgpack.exceptions.UnpackException,
)
# How a moment before 1970 or after 2514 starts: the one kind that may not be a datetime.
_FAR_TIME = b"\xc7\x0c\xff"
DEPTH_SHOWN: Final = 16  # steps of the place in an error
PARTS_TRIED: Final = 10_000  # of one list or map, to find it
# One packer for small maps of text: to make one takes longer than they do.
_pack: Final = msgpack.Packer().pack
SHORT_CHARS: Final = 255
SHORT_HEADERS: Final = 16


class CodecBytes(bytes):
    """Bytes that a codec has packed, in a process that does not have that codec.

    Stored as the codec's, so that it passes through a process that cannot read it (the server).
    """

    __slots__ = ()


class PackedBytes(bytes):
    """Bytes that msgpack has packed, stored or passed on as they are, never decoded."""

    __slots__ = ()


def _wrong_at(value: Any) -> str:
    """The place of the first part that msgpack does not carry; empty if unknown.

    ``.values()[0][2]``: by numbers, since keys are payload, which stands in no error.
    """
    path = ""
    for _ in range(DEPTH_SHOWN):
        if isinstance(value, dict):
            parts, at = iter(value.values()), ".values()"
        elif isinstance(value, list | tuple):
            parts, at = iter(value), ""
        else:
            break
        for step, part in enumerate(islice(parts, PARTS_TRIED)):
            try:
                msgpack.packb(part, datetime=True)
            except (TypeError, ValueError, OverflowError, RecursionError):
                path, value = f"{path}{at}[{step}]", part
                break
        else:
            break
    return path


def _cure(error: Exception) -> str:
    if "tzinfo=None" in str(error):
        return "give it a time zone: datetime.now(UTC), or value.replace(tzinfo=…)"
    return "give bytes, plain data, or a codec"


def encode_value(value: Any, codec: Codec | None, limit: int, what: str) -> tuple[int, bytes]:
    """(kind, bytes), or a typed error before anything is written.

    Args:
        value: bytes are stored as they are.
        codec: packs all other values; None: msgpack does.
        limit: bytes after encoding; more is ``PayloadTooLargeError``.
        what: its name in errors.
    """
    if type(value) is bytes:
        kind, data = RAW, value
    elif type(value) is CodecBytes:
        kind, data = CODEC, bytes(value)
    elif type(value) is PackedBytes:
        kind, data = MSGPACK, bytes(value)
    elif isinstance(value, bytes | bytearray | memoryview):
        kind, data = RAW, bytes(value)
    elif codec is not None:
        kind, data = CODEC, codec.encode(value)
        if type(data) is not bytes:
            raise UsageError(f"the codec's encode returned {type(data).__name__}, not bytes")
    else:
        try:
            kind, data = MSGPACK, msgpack.packb(value, datetime=True)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise UsageError(
                f"{what}{_wrong_at(value)} cannot be packed by msgpack ({exc}): {_cure(exc)}"
            ) from exc
        if _FAR_TIME in data:
            try:
                decode_value(MSGPACK, 0, data, len(data), None)
            except RecordCorruptError as exc:
                raise UsageError(
                    f"{what} could not be read again ({exc}): times are of the years 1 to 9999"
                ) from exc
    if len(data) > limit:
        raise too_large(what, len(data), limit)
    if len(data) > WHOLE_BYTES_MAX and type(value) is not bytes:
        raise PayloadTooLargeError(
            f"{what} is {len(data)} bytes once it is packed, and above {WHOLE_BYTES_MAX} only "
            "bytes are taken: pack it in a thread and enqueue the bytes, or use enqueue_stream",
            size_bytes=len(data),
            limit_bytes=WHOLE_BYTES_MAX,
        )
    return kind, data


def too_large(what: str, size: int, limit: int) -> PayloadTooLargeError:
    """The error for a value above its limit, with what to do."""
    highest = PAYLOAD_BYTES_MAX if what == "payload" else WHOLE_BYTES_MAX
    is_fixed = limit in (highest, WHOLE_BYTES_MAX)  # of a client, or a load: no setting raises it
    raised = f", or open the store with limits=lodeq.Limits({what}_bytes_max=…)"
    return PayloadTooLargeError(
        f"{what} is {size} bytes, the limit is {limit}: store it elsewhere and enqueue "
        f"a reference{'' if is_fixed else raised}",
        size_bytes=size,
        limit_bytes=limit,
    )


def decode_value(
    kind: int, compression: int, data: bytes, raw_bytes: int, codec: Codec | None
) -> Any:
    """The inverse. Damage is ``RecordCorruptError``; a codec's own errors pass through.

    Args:
        kind: ``RAW``, ``MSGPACK`` or ``CODEC``.
        compression: code of the record's flags, 0 for none.
        data: as stored.
        raw_bytes: before compression; other sizes are damage.
        codec: for ``CODEC``; without one the bytes come back as ``CodecBytes``.
    """
    data = inflate(compression, data, raw_bytes)
    if kind == RAW:
        return data
    if kind == CODEC:
        if codec is None:
            return CodecBytes(data)
        return codec.decode(data)
    try:
        try:
            return msgpack.unpackb(data, timestamp=3, strict_map_key=False)
        except TypeError:  # a map with tuples for keys was packed: lists cannot be keys
            return msgpack.unpackb(data, timestamp=3, strict_map_key=False, use_list=False)
    except _UNPACK_ERRORS as exc:
        raise RecordCorruptError(f"payload is not msgpack: {exc}") from exc


def stored_value(kind: int, compression: int, data: bytes, raw_bytes: int) -> Any:
    """As ``decode_value``, but only inflated: what ``encode_value`` would store just so again.

    Args:
        kind: ``RAW``, ``MSGPACK`` or ``CODEC``.
        compression: code of the record's flags, 0 for none.
        data: as stored.
        raw_bytes: before compression.
    """
    data = inflate(compression, data, raw_bytes)
    return data if kind == RAW else CodecBytes(data) if kind == CODEC else PackedBytes(data)


def _pack_texts(headers: dict[Any, Any]) -> bytes:
    """Headers whose names and values all are short ASCII text; empty for any others."""
    for key, value in headers.items():
        if (
            type(key) is not str
            or type(value) is not str
            or len(key) > SHORT_CHARS
            or len(value) > SHORT_CHARS
            or not key.isascii()
            or not value.isascii()
        ):
            return b""
    packed: bytes = _pack(headers)
    return packed


def encode_headers(headers: Mapping[str, Any] | None, limit: int) -> bytes:
    """Headers as msgpack; empty for none."""
    if headers is None:
        return b""
    if type(headers) is dict and len(headers) <= SHORT_HEADERS:
        packed = _pack_texts(headers)
        if packed and len(packed) <= limit:
            return packed
    if not isinstance(headers, Mapping) or not all(isinstance(k, str) for k in headers):
        raise UsageError("headers must be a mapping with str keys")
    if not headers:
        return b""
    return encode_value(dict(headers), None, limit, "headers")[1]


def decode_headers(data: bytes) -> dict[str, Any]:
    """The inverse."""
    if not data:
        return {}
    value = decode_value(MSGPACK, 0, data, len(data), None)
    if not isinstance(value, dict):
        raise RecordCorruptError("headers are not a map")
    return value


def deferred_value(
    kind: int, compression: int, data: bytes, raw_bytes: int, codec: Codec | None
) -> Any:
    """As ``decode_value``, but decoded by whoever reads it from a ``Task`` or ``Result``.

    Inflated at once: that is bounded by its size, and damage shows where the row is read.

    Args:
        kind: ``RAW``, ``MSGPACK`` or ``CODEC``.
        compression: code of the record's flags, 0 for none.
        data: as stored.
        raw_bytes: before compression.
        codec: for ``CODEC``.
    """
    data = inflate(compression, data, raw_bytes)
    if kind == RAW:
        return data
    return Deferred(data, partial(_decode_inflated, kind, codec))


def _decode_inflated(kind: int, codec: Codec | None, data: bytes) -> Any:
    return decode_value(kind, 0, data, len(data), codec)


def deferred_headers(data: bytes) -> Any:
    """As ``decode_headers``, for whoever reads them."""
    return Deferred(data, decode_headers) if data else {}


def not_loaded(task_id: bytes, size: int) -> PayloadNotLoadedError:
    """The error where a streamed payload is asked for like a small one."""
    return PayloadNotLoadedError(
        f"the payload of task {TaskId(task_id)} has {size} bytes and is not in memory: await "
        "read_payload(), or iterate over what open_payload() returns",
        size_bytes=size,
    )


def not_loaded_yet(task_id: bytes, size: int) -> Deferred:
    """A streamed payload in a ``Task``: reading it there raises ``not_loaded``."""

    def refuse(_: bytes) -> Any:
        raise not_loaded(task_id, size)

    return Deferred(b"", refuse)


def check_slice(slice_bytes: object) -> None:
    """Raises UsageError."""
    if type(slice_bytes) is not int or not 1 <= slice_bytes <= PAYLOAD_BYTES_MAX:
        raise UsageError(
            f"slice_bytes must be 1 to {PAYLOAD_BYTES_MAX}, not {spelled(slice_bytes)}"
        )
