"""Payload limits: bodies are bounded in parts before they are decoded, in slices of time.

A megabyte can hold a million empty lists: cheap to send, and a third of a second of the loop to
decode. So the parts of a body are counted before objects are made of it. A packed value only passes
through: it is checked without making objects of it.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

import msgpack

from ...client.documents.wire import JSON, UNPACK_ERRORS, Form, Stored
from ...errors import PayloadTooLargeError, RecordCorruptError, UsageError
from ...repository.model.codec import CODEC, MSGPACK, CodecBytes, PackedBytes, decode_value
from ...repository.state.turns import Turns

__all__ = ["PARTS_MAX", "document", "engine_value"]

PARTS_MAX: Final = 100_000  # values and keys of one body
_SMALL: Final = 16 << 10  # bytes; a smaller body cannot hold enough parts to matter
_STEP: Final = 256  # parts between two looks at the clock
_DEPTH_MAX: Final = 1024  # as deep as msgpack unpacks
_UNPACK_ERRORS: Final = (*UNPACK_ERRORS, IndexError)


class _TooManyPartsError(Exception):
    pass


async def document(form: Form, data: bytes, turns: Turns) -> Any:
    """Decode a request's body.

    Raises:
        UsageError: it is not of this form.
        PayloadTooLargeError: it has more than ``PARTS_MAX`` parts.
    """
    if len(data) > _SMALL:
        if form is JSON:
            data = await _counted_json(data, turns)
        else:
            try:
                await _walk(data, turns, PARTS_MAX)
            except _TooManyPartsError:
                _refuse()
            except _UNPACK_ERRORS as exc:
                raise UsageError(f"the body is not msgpack: {exc}") from exc
        await turns.give_now()
    found = form.loads(data)
    await turns.give()
    return found


def _refuse() -> NoReturn:
    raise PayloadTooLargeError(
        f"the body has more than {PARTS_MAX} parts (values, keys): send fewer tasks at once, and a "
        "value of many parts packed by msgpack (payload_base64 in JSON, ext 1 in msgpack)",
    )


# -- JSON ------------------------------------------------------------------------------


async def _counted_json(data: bytes, turns: Turns) -> bytes:
    """The body in UTF-8, after its parts are counted."""
    encoding = json.detect_encoding(data)
    if encoding not in ("utf-8", "utf-8-sig"):
        try:
            data = data.decode(encoding).encode()
        except ValueError as exc:
            raise UsageError(f"the body is not JSON: {exc}") from exc
        await turns.give_now()
    if _json_parts(data) <= PARTS_MAX:
        return data
    await turns.give_now()
    # Some may stand in strings. Between the quotes that are no part of a string every other piece
    # is outside of one; an escaped quote comes behind an odd number of backslashes.
    plain = data.replace(b"\\\\", b"")
    await turns.give_now()
    plain = plain.replace(b'\\"', b"")
    await turns.give_now()
    pieces = plain.split(b'"', 2 * PARTS_MAX + 2)
    if len(pieces) > 2 * PARTS_MAX or _json_parts(b" ".join(pieces[::2])) > PARTS_MAX:
        _refuse()
    return data


def _json_parts(data: bytes) -> int:
    """At least as many parts as there are: counts their marks, in strings too."""
    return data.count(b",") + data.count(b":") + data.count(b"[") + data.count(b"{")


# -- msgpack ---------------------------------------------------------------------------


async def engine_value(stored: Stored | None, turns: Turns, bytes_max: int, what: str) -> Any:
    """Wrap a value so that the engine stores exactly its bytes.

    Args:
        stored: a value as it was sent; None stays None.
        turns: of the request.
        bytes_max: a larger one is not looked into: the engine refuses it by its size.
        what: its name, for errors.

    Raises:
        UsageError: it is declared to be msgpack, and cannot be unpacked.
    """
    if stored is None:
        return None
    kind, data = stored
    if kind != MSGPACK:
        return CodecBytes(data) if kind == CODEC else data
    if type(data) is PackedBytes:  # packed here, out of a document
        return data
    if len(data) <= bytes_max:
        try:
            if len(data) <= _SMALL:
                decode_value(MSGPACK, 0, data, len(data), None)
            else:
                await _walk(data, turns, None)
        except (RecordCorruptError, *_UNPACK_ERRORS) as exc:
            raise UsageError(f"{what} is not msgpack: {exc}") from exc
        await turns.give()
    return PackedBytes(data)


async def _walk(data: bytes, turns: Turns, parts_max: int | None) -> None:
    """Check that ``data`` is one value that can be unpacked, without making objects of it.

    Lists may be keys, as tuples; maps may not, nor lists that contain one.

    Raises:
        _TooManyPartsError: there are more than ``parts_max``.
        Exception: one of ``_UNPACK_ERRORS``: it cannot be unpacked.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(data), timestamp=3, strict_map_key=False)
    unpacker.feed(data)
    left, is_map = [1], [False]
    key_depth = 0  # of the outermost list that is a key; 0 outside of keys
    parts = 0
    while left:
        if not left[-1]:
            left.pop()
            is_map.pop()
            if len(left) < key_depth:
                key_depth = 0
            continue
        is_key = key_depth > 0 or (is_map[-1] and not left[-1] & 1)
        left[-1] -= 1
        first = data[unpacker.tell()]
        if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
            if is_key:
                raise ValueError("a map is the key of another")
            left.append(2 * unpacker.read_map_header())
            is_map.append(True)
        elif 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
            left.append(unpacker.read_array_header())
            is_map.append(False)
            if is_key and not key_depth:
                key_depth = len(left)
        else:
            unpacker.unpack()
        if len(left) > _DEPTH_MAX:
            raise ValueError("it is too deep")
        parts += 1
        if parts_max is not None and parts > parts_max:
            raise _TooManyPartsError
        if not parts % _STEP:
            await turns.give()
    if unpacker.tell() != len(data):
        raise ValueError("something follows it")
