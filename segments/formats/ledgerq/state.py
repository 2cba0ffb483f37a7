"""Files beside LedgerQ's segments: the position, failures, and deduplication.

::

    metadata.dat       version:4 next_id:8 read_id:8 0:4       24 bytes, little-endian, no checksum
    .retry_state.json  {version, max_retries,
                        entries: [{msg_id, retry_count, last_failure, failure_reason?}]}
    .dedup_state.json  {version,
                        entries: [{dedup_id, message_id, offset?, enqueued_at, expires_at}]}

Every version is 1. ``last_failure`` is RFC 3339, to the nanosecond and in the zone of the writer;
the other times are nanoseconds. The JSON is what Go's ``MarshalIndent`` makes of it, and is written
in just that way: two spaces, ``<``, ``>``, ``&`` and two line separators escaped, no newline at the
end.

It is read entry by entry. ``json.loads`` would make all objects before the first is looked at, and
a hostile file of empty ones takes twenty times its size.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, NamedTuple, TypeVar

from ....errors import SegmentCorruptError, UsageError

__all__ = [
    "STATE_BYTES_MAX",
    "DedupEntry",
    "DedupState",
    "GoTime",
    "Metadata",
    "RetryEntry",
    "RetryState",
    "decode_dedup",
    "decode_metadata",
    "decode_retry",
    "encode_dedup",
    "encode_metadata",
    "encode_retry",
    "format_time",
    "parse_time",
]

STATE_BYTES_MAX: Final = 64 << 20  # 100,000 deduplication entries, its default, are 24 MB
_VALUE_BYTES: Final = 4096  # what is parsed at once, if the value ends there; 16 times as much …
_VALUE_BYTES_MAX: Final = 1 << 20
_MEMBERS_MAX: Final = 64  # of the whole object
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_VERSION: Final = 1
T = TypeVar("T")
_METADATA: Final = struct.Struct("<IQQI")
_I64_MAX: Final = (1 << 63) - 1
_U64_MAX: Final = (1 << 64) - 1
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_HASH: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LONE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


class Metadata(NamedTuple):
    """``read_id`` is the first unread message, ``next_id`` the first there is none of yet."""

    next_id: int
    read_id: int


class GoTime(NamedTuple):
    """Nanoseconds since 1970 UTC, and how many minutes east of UTC it was written."""

    ns: int
    zone_minutes: int = 0


@dataclass(frozen=True, slots=True)
class RetryEntry:
    """How often a message has failed, and how the last time."""

    message_id: int
    retry_count: int
    last_failure: GoTime
    failure_reason: str = ""


@dataclass(frozen=True, slots=True)
class RetryState:
    """``.retry_state.json``. After ``max_retries`` failures a message is dead; 0: never."""

    max_retries: int
    entries: tuple[RetryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class DedupEntry:
    """A key, as its SHA-256 in hex, and whose it is until when.

    ``offset`` is that of the message within its segment, whichever that was; older versions kept
    none.
    """

    dedup_id: str
    message_id: int
    enqueued_ns: int
    expires_ns: int
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class DedupState:
    """``.dedup_state.json``."""

    entries: tuple[DedupEntry, ...] = ()


def encode_metadata(metadata: Metadata) -> bytes:
    """24 bytes."""
    for number in metadata:
        if not 0 < number <= _U64_MAX:
            raise UsageError(f"metadata: {number} is not an id")
    return _METADATA.pack(_VERSION, *metadata, 0)


def decode_metadata(raw: bytes) -> Metadata:
    """The inverse; ``SegmentCorruptError`` on anything else. Ids start at 1."""
    if len(raw) != _METADATA.size:
        raise _corrupt(f"metadata: {len(raw)} bytes, not {_METADATA.size}")
    version, next_id, read_id, rest = _METADATA.unpack(raw)
    if version != _VERSION or rest or not next_id or not read_id:
        raise _corrupt("metadata: not version 1, or an id is 0")
    return Metadata(next_id, read_id)


def encode_retry(state: RetryState) -> bytes:
    """The file's bytes."""
    return _to_json(
        {
            "version": _VERSION,
            "max_retries": state.max_retries,
            "entries": [
                {
                    "msg_id": entry.message_id,
                    "retry_count": entry.retry_count,
                    "last_failure": format_time(entry.last_failure),
                    **({"failure_reason": entry.failure_reason} if entry.failure_reason else {}),
                }
                for entry in state.entries
            ],
        }
    )


def decode_retry(raw: bytes) -> RetryState:
    """The inverse; ``SegmentCorruptError`` on anything else."""
    state, entries = _from_json(raw, _retry_entry)
    return RetryState(_number(state, "max_retries", _I64_MAX), entries)


def _retry_entry(entry: Mapping[str, Any]) -> RetryEntry:
    return RetryEntry(
        _number(entry, "msg_id"),
        _number(entry, "retry_count", _I64_MAX),
        parse_time(_string(entry, "last_failure")),
        _string(entry, "failure_reason") if "failure_reason" in entry else "",
    )


def encode_dedup(state: DedupState) -> bytes:
    """The file's bytes."""
    return _to_json(
        {
            "version": _VERSION,
            "entries": [
                {
                    "dedup_id": entry.dedup_id,
                    "message_id": entry.message_id,
                    **({} if entry.offset is None else {"offset": entry.offset}),
                    "enqueued_at": entry.enqueued_ns,
                    "expires_at": entry.expires_ns,
                }
                for entry in state.entries
            ],
        }
    )


def decode_dedup(raw: bytes) -> DedupState:
    """The inverse; ``SegmentCorruptError`` on anything else."""
    return DedupState(_from_json(raw, _dedup_entry)[1])


def _dedup_entry(entry: Mapping[str, Any]) -> DedupEntry:
    key = _string(entry, "dedup_id")
    if not _HASH.fullmatch(key):
        raise _corrupt(f"dedup_id {key[:80]!r} is no SHA-256")
    return DedupEntry(
        key,
        _number(entry, "message_id"),
        _number(entry, "enqueued_at", _I64_MAX),
        _number(entry, "expires_at", _I64_MAX),
        _number(entry, "offset") if "offset" in entry else None,
    )


def parse_time(text: str) -> GoTime:
    """RFC 3339 as Go reads it, exact to the nanosecond; ``SegmentCorruptError`` if it is not."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise _corrupt(f"{text[:80]!r} is not a time")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    fraction, sign, zone_hours, zone_minutes = match.groups()[6:]
    zone = int(zone_hours or 0) * 60 + int(zone_minutes or 0)
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError as exc:
        raise _corrupt(f"{text!r} is not a time: {exc}") from exc
    if max(hour / 24, minute / 60, second / 60, int(zone_minutes or 0) / 60, zone / 1440) >= 1:
        raise _corrupt(f"{text!r} is not a time of a day")
    zone = -zone if sign == "-" else zone
    seconds = days * 86_400 + hour * 3600 + (minute - zone) * 60 + second
    return GoTime(seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0")), zone)


def format_time(time: GoTime) -> str:
    """As Go writes it: no zeros at the end of the fraction, ``Z`` in UTC."""
    minutes = abs(time.zone_minutes)
    seconds, fraction = divmod(time.ns + time.zone_minutes * 60_000_000_000, 1_000_000_000)
    days, second = divmod(seconds, 86_400)
    try:
        day = date.fromordinal(days + _EPOCH_DAY)
    except (ValueError, OverflowError) as exc:
        raise UsageError(f"{time.ns} ns is beyond the years 1 to 9999") from exc
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    digits = f".{fraction:09}".rstrip("0").rstrip(".")
    sign = "-" if time.zone_minutes < 0 else "+"
    zone = f"{sign}{minutes // 60:02}:{minutes % 60:02}" if minutes else "Z"
    return f"{day.isoformat()}T{clock}{digits}{zone}"


def _to_json(state: Mapping[str, Any]) -> bytes:
    text = json.dumps(state, indent=2, ensure_ascii=False).translate(_ESCAPED)
    return _LONE.sub("\ufffd", text).encode()


def _from_json(
    raw: bytes, entry_of: Callable[[Mapping[str, Any]], T]
) -> tuple[Mapping[str, Any], tuple[T, ...]]:
    """The object, of version 1, without its entries; and those.

    Each entry becomes what it is before the next one is parsed: a file of empty ones would take
    many times its size.
    """
    if len(raw) > STATE_BYTES_MAX:
        raise _corrupt(f"{len(raw)} bytes; {STATE_BYTES_MAX} at most")
    parser = _Parser(raw)
    state: dict[str, Any] = {}
    entries: list[T] = []
    try:
        for name in parser.members():
            if name != "entries":
                state[name] = parser.value()
            elif parser.peek() == b"[":
                entries = [entry_of(entry) for entry in parser.objects()]
            elif parser.value() is not None:  # Go writes null for a list that was never made
                raise _corrupt("entries are no list of objects")
        parser.end()
    except (ValueError, RecursionError) as exc:
        raise _corrupt(f"no JSON: {str(exc)[:200]}") from exc
    if _number(state, "version") != _VERSION:
        raise _corrupt("not version 1")
    return state, tuple(entries)


class _Parser:
    """An object of JSON, member by member. No value in it is longer than ``_VALUE_BYTES_MAX``."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> bytes:
        """The next byte that is not white space; it is not taken."""
        found = _SPACE.match(self._raw, self._at)
        self._at = found.end() if found else self._at
        return self._raw[self._at : self._at + 1]

    def members(self) -> Iterator[str]:
        """The names, in order; before the next one the value is to be taken."""
        self._take(b"{")
        seen: set[str] = set()
        while self.peek() != b"}" or seen:
            name = self.value()
            if not isinstance(name, str) or name in seen or len(seen) >= _MEMBERS_MAX:
                raise ValueError("a member without a name of its own")
            seen.add(name)
            self._take(b":")
            yield name
            if self.peek() != b",":
                break
            self._take(b",")
        self._take(b"}")

    def objects(self) -> Iterator[Mapping[str, Any]]:
        """Objects of a list that holds nothing else."""
        self._take(b"[")
        if self.peek() == b"]":
            self._take(b"]")
            return
        while True:
            value = self.value()
            if not isinstance(value, dict):
                raise _corrupt("entries are no list of objects")
            yield value
            if self.peek() != b",":
                break
            self._take(b",")
        self._take(b"]")

    def value(self) -> Any:
        """Whatever comes next."""
        self.peek()
        count = _VALUE_BYTES
        while True:
            part = self._raw[self._at : self._at + count]
            is_all = self._at + count >= len(self._raw) or count >= _VALUE_BYTES_MAX
            text = part.decode("utf-8", "surrogateescape")  # it may end within a character
            try:
                value, end = self._decode(text)
            except json.JSONDecodeError:
                if is_all:
                    raise
            else:
                if end < len(text) or is_all:  # else a number may go on
                    self._at += len(text[:end].encode())  # refuses what is no UTF-8
                    return value
            count *= 16

    def end(self) -> None:
        """Nothing follows."""
        if self.peek():
            raise ValueError("bytes follow the object")

    def _take(self, byte: bytes) -> None:
        if self.peek() != byte:
            raise ValueError(f"no {byte.decode()!r} at byte {self._at}")
        self._at += 1


def _number(entry: Mapping[str, Any], name: str, highest: int = _U64_MAX) -> int:
    value = entry.get(name)
    if type(value) is not int or not 0 <= value <= highest:
        raise _corrupt(f"{name} is not a number from 0 to {highest}")
    return value


def _string(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise _corrupt(f"{name} is no string")
    return _LONE.sub("\ufffd", value)  # what is no character, as Go reads it


def _corrupt(reason: str) -> SegmentCorruptError:
    return SegmentCorruptError(reason, reason=reason)
