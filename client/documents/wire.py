"""The two forms of a document on the wire: JSON for people and curl, msgpack for batches.

Both forms carry the same documents. They differ in what JSON lacks: ids, tokens and positions are
bytes in msgpack and text in JSON; a *value* (payload, headers, result) is

- in msgpack: ``bin`` for bytes, ``ext 1`` around what msgpack packed, ``ext 2`` around what a
  codec packed; anything else is taken as it stands;
- in JSON: the member itself if JSON can express it, else ``<name>_base64`` with ``<name>_kind``
  (``bytes``, ``msgpack`` or ``codec``). A value of more than ``PARTS_MAX`` parts goes as base64
  too, since turning it into JSON costs too much.

Either way it is a ``Stored`` here: a value that only passes through is not decoded.
"""

from __future__ import annotations

import base64
import binascii
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

import msgpack

from ...engine.runtime.task_id import TaskId
from ...errors import UsageError
from ...repository.model.codec import CODEC, MSGPACK, RAW, PackedBytes, encode_value
from ...repository.model.json_values import finite, no_number

__all__ = [
    "JSON",
    "MSGPACK_FORM",
    "PARTS_MAX",
    "UNPACK_ERRORS",
    "Form",
    "JsonForm",
    "MsgpackForm",
    "Plain",
    "Stored",
    "form_of",
    "plain_value",
    "unbase64",
]

KINDS: Final = ("bytes", "msgpack", "codec")
PARTS_MAX: Final = 20_000  # of a value written as plain JSON: its members, theirs, and so on
PLAIN_BYTES_MAX: Final = 1 << 20  # and its packed bytes
_NO_LIMIT: Final = 1 << 40
_DIGITS_MAX: Final = 20 + len("-")
_EXT = {1: MSGPACK, 2: CODEC}
# Raised by msgpack for bytes that it did not pack.
UNPACK_ERRORS = (
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    msgpack.exceptions.UnpackException,
)


class Stored(NamedTuple):
    """A value as it is stored: RAW, MSGPACK or CODEC, and its bytes."""

    kind: int
    data: bytes


class Form(ABC):
    """One of the two ways to write a document."""

    content_type: str

    @abstractmethod
    def dumps(self, doc: Any) -> bytes:
        """Encode a document."""

    @abstractmethod
    def loads(self, data: bytes) -> Any:
        """Decode a document, or raise a ``UsageError``."""

    @abstractmethod
    def joined(self, name: str, items: Sequence[bytes], rest: Mapping[str, Any]) -> bytes:
        """Encode a document with a list whose items are encoded already, and other members."""

    @abstractmethod
    def raw(self, data: bytes) -> Any:
        """Write bytes of ours: a token, a position."""

    @abstractmethod
    def id(self, task_id: bytes) -> Any:
        """Write a task's id."""

    @abstractmethod
    def put(self, doc: dict[str, Any], name: str, value: Stored) -> None:
        """Write a value into a document."""

    @abstractmethod
    def take(self, doc: Mapping[str, Any], name: str) -> Stored | None:
        """Read a value of a document; None if it has none."""

    @abstractmethod
    def put_key(self, doc: dict[str, Any], name: str, key: str | bytes) -> None:
        """Write a dedup or shard key."""

    @abstractmethod
    def take_raw(self, doc: Mapping[str, Any], name: str) -> bytes:
        """Read bytes of ours, or raise a ``UsageError``."""


class MsgpackForm(Form):
    """The compact form, which Python clients use."""

    content_type = "application/msgpack"

    def dumps(self, doc: Any) -> bytes:
        """See ``Form``."""
        packed: bytes = msgpack.packb(doc, datetime=True)
        return packed

    def loads(self, data: bytes) -> Any:
        """See ``Form``."""
        try:
            return msgpack.unpackb(data, timestamp=3, strict_map_key=False)
        except UNPACK_ERRORS as exc:
            raise UsageError(f"the body is not msgpack: {exc}") from exc

    def joined(self, name: str, items: Sequence[bytes], rest: Mapping[str, Any]) -> bytes:
        """See ``Form``."""
        packer = msgpack.Packer()
        head = packer.pack_map_header(1 + len(rest)), packer.pack(name)
        tail = [packer.pack(part) for pair in rest.items() for part in pair]
        return b"".join((*head, packer.pack_array_header(len(items)), *items, *tail))

    def raw(self, data: bytes) -> Any:
        """See ``Form``."""
        return data

    def id(self, task_id: bytes) -> Any:
        """See ``Form``."""
        return bytes(task_id)

    def put(self, doc: dict[str, Any], name: str, value: Stored) -> None:
        """See ``Form``."""
        kind, data = value
        doc[name] = data if kind == RAW else msgpack.ExtType(kind, data)

    def take(self, doc: Mapping[str, Any], name: str) -> Stored | None:
        """See ``Form``."""
        if name not in doc:
            return None
        value = doc[name]
        if type(value) is bytes:
            return Stored(RAW, value)
        if type(value) is msgpack.ExtType:
            kind = _EXT.get(value.code)
            if kind is None:
                raise UsageError(f"{name}: ext {value.code} is neither 1 (msgpack) nor 2 (codec)")
            return Stored(kind, value.data)
        return _packed(value, name)

    def put_key(self, doc: dict[str, Any], name: str, key: str | bytes) -> None:
        """See ``Form``."""
        doc[name] = key

    def take_raw(self, doc: Mapping[str, Any], name: str) -> bytes:
        """See ``Form``."""
        value = doc.get(name)
        if type(value) is not bytes:
            raise UsageError(f"{name} must be bytes")
        return value


class JsonForm(Form):
    """The readable form, the default."""

    content_type = "application/json"

    def dumps(self, doc: Any) -> bytes:
        """See ``Form``."""
        return json.dumps(doc, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
            "utf-8", "replace"
        )

    def loads(self, data: bytes) -> Any:
        """See ``Form``."""
        try:
            return json.loads(
                data,
                parse_constant=no_number,
                parse_int=_whole,
                parse_float=finite,
                object_pairs_hook=_members,
            )
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"the body is not JSON: {exc}") from exc

    def joined(self, name: str, items: Sequence[bytes], rest: Mapping[str, Any]) -> bytes:
        """See ``Form``."""
        tail = self.dumps(rest)
        comma = b"," if rest else b""
        return b"".join((b"{", self.dumps(name), b":[", b",".join(items), b"]", comma, tail[1:]))

    def raw(self, data: bytes) -> Any:
        """See ``Form``."""
        return base64.b64encode(data).decode()

    def id(self, task_id: bytes) -> Any:
        """See ``Form``."""
        return str(TaskId(task_id))

    def put(self, doc: dict[str, Any], name: str, value: Stored) -> None:
        """See ``Form``."""
        kind, data = value
        if kind == MSGPACK:
            plain = plain_value(data, PARTS_MAX)
            if plain is not None:
                doc[name] = plain.value
                return
        doc[f"{name}_base64"] = self.raw(data)
        doc[f"{name}_kind"] = KINDS[kind]

    def take(self, doc: Mapping[str, Any], name: str) -> Stored | None:
        """See ``Form``."""
        coded = f"{name}_base64"
        kind = doc.get(f"{name}_kind", "bytes")
        if kind not in KINDS:
            raise UsageError(f"{name}_kind {kind!r} is not one of {', '.join(KINDS)}")
        if coded in doc:
            if name in doc:
                raise UsageError(f"give {name} or {coded}, not both")
            return Stored(KINDS.index(kind), self.take_raw(doc, coded))
        if name not in doc:
            return None
        return _packed(doc[name], name)

    def put_key(self, doc: dict[str, Any], name: str, key: str | bytes) -> None:
        """See ``Form``."""
        if isinstance(key, str):
            doc[name] = key
        else:
            doc[f"{name}_base64"] = self.raw(key)

    def take_raw(self, doc: Mapping[str, Any], name: str) -> bytes:
        """See ``Form``."""
        value = doc.get(name)
        if not isinstance(value, str):
            raise UsageError(f"{name} must be base64 text")
        return unbase64(value, name)


def unbase64(text: str, name: str) -> bytes:
    """Decode base64 with exactly its padding, or raise a ``UsageError``."""
    try:
        if text.endswith("==="):  # which the decoder lets pass
            raise ValueError("too much padding")
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise UsageError(f"{name} is not base64: {exc}") from exc


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the member {twice[:80]!r} is given twice")
    return found


def _whole(digits: str) -> int:
    """A whole number of at most 20 digits: parsing more costs their square, and none fits."""
    if len(digits) > _DIGITS_MAX:
        raise ValueError(f"a whole number has {len(digits)} digits: 64 bits hold at most 20")
    return int(digits)


def _packed(value: Any, name: str) -> Stored:
    """Store a plain value of a document. Bytes that msgpack packed here need no check."""
    kind, data = encode_value(value, None, _NO_LIMIT, name)
    return Stored(kind, PackedBytes(data) if kind == MSGPACK else data)


class Plain(NamedTuple):
    """A value that JSON can express."""

    value: Any


def plain_value(data: bytes, parts_max: int) -> Plain | None:
    """Unpack a value if JSON can express it exactly, in at most ``parts_max`` parts.

    None otherwise, also for damaged bytes: decoding them will raise.
    """
    parts = 0

    def count(inner: Any) -> Any:
        nonlocal parts
        parts += 1 + len(inner)
        if parts > parts_max:
            raise ValueError("too many parts")
        return inner

    if len(data) > PLAIN_BYTES_MAX:
        return None
    try:
        found = msgpack.unpackb(
            data,
            strict_map_key=True,
            list_hook=count,
            object_hook=count,
            ext_hook=_no_ext,
            max_array_len=parts_max,
            max_map_len=parts_max,
        )
    except UNPACK_ERRORS:
        return None
    return Plain(found) if _is_plain(found, 64) else None


def _no_ext(code: int, data: bytes) -> Any:
    raise ValueError("JSON has no extension types")


def _is_plain(value: Any, depth: int) -> bool:
    """Whether JSON can express exactly this value, nested at most ``depth`` levels."""
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return True
    if kind is float:
        return isfinite(value)
    if depth and kind is list:
        return all(_is_plain(one, depth - 1) for one in value)
    if depth and kind is dict:
        return all(type(k) is str and _is_plain(v, depth - 1) for k, v in value.items())
    return False


JSON: Final = JsonForm()
MSGPACK_FORM: Final = MsgpackForm()
_TYPES: Final = {
    "application/json": JSON,
    "application/msgpack": MSGPACK_FORM,
    "application/vnd.msgpack": MSGPACK_FORM,
    "application/x-msgpack": MSGPACK_FORM,
}


def form_of(content_type: str) -> Form | None:
    """The form of a media type; None if it is neither."""
    return _TYPES.get(content_type.partition(";")[0].strip().lower())
