"""The small files of a Rust queue: sparse indexes and the manifest.

::

    index    := interval:8 count:8 zeros:240 (sequence:8 offset:8)*count
    manifest := "QMFT" version:4 next_sequence:8 sealed:4 crc32:4 zeros:8 active sealed*
    active   := number:4 write_offset:8 records:8 path
    sealed   := first_sequence:8 last_sequence:8 size:8 path
    path     := bytes:2 utf-8
    current  := slot:1                         1 or 2: manifest.1 or manifest.2

Integers are little-endian; the CRC-32 is that of all that follows the header. Both are hints: an
index has no checksum, and a manifest is as old as the last roll. Everything in them can be found
from the data files.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ....errors import UsageError
from ...item import Item, Record
from .reader import corrupt

__all__ = [
    "CURRENT_NAME",
    "INDEX_INTERVAL",
    "SLOT_NAMES",
    "ActiveFile",
    "Index",
    "IndexEntry",
    "Manifest",
    "SealedFile",
    "build_index",
    "decode_current",
    "decode_index",
    "decode_manifest",
    "encode_current",
    "encode_index",
    "encode_manifest",
]

CURRENT_NAME: Final = "manifest.current"
SLOT_NAMES: Final = {1: "manifest.1", 2: "manifest.2"}
INDEX_INTERVAL: Final = 1024  # the original's default

_INDEX_HEAD: Final = struct.Struct("<QQ240s")
_ENTRY: Final = struct.Struct("<QQ")
_RESERVED: Final = bytes(240)
_MANIFEST_HEAD: Final = struct.Struct("<4sIQII8s")
_MAGIC: Final = b"QMFT"
_VERSION: Final = 1
_ACTIVE: Final = struct.Struct("<IQQ")
_SEALED: Final = struct.Struct("<QQQ")
_PATH: Final = struct.Struct("<H")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Where the record of a number begins."""

    sequence: int
    offset: int


@dataclass(frozen=True, slots=True)
class Index:
    """Index of one data file. From one entry to the next lie at least ``interval`` records."""

    interval: int
    entries: tuple[IndexEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """The file that is written to; ``path`` is empty while there is none."""

    number: int = 0  # as in its name
    write_offset: int = 0
    records: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A file that is written no more. ``size`` is that of its records."""

    first_sequence: int
    last_sequence: int
    size: int
    path: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest: the original program starts from it."""

    next_sequence: int = 0
    active: ActiveFile = ActiveFile()
    sealed: tuple[SealedFile, ...] = ()


def build_index(items: Iterable[Item], interval: int = INDEX_INTERVAL) -> Index:
    """The index of a scan's records: the first record, and then one in each ``interval``.

    The original writes no entry before the first record of all: the indexes of later files stay
    empty.

    Raises:
        UsageError: ``interval`` is not positive.
    """
    if interval <= 0:
        raise UsageError(f"interval must be positive, not {interval}")
    entries: list[IndexEntry] = []
    for item in items:
        if not isinstance(item, Record) or item.sequence < 0:
            continue
        if not entries or item.sequence >= entries[-1].sequence + interval:
            entries.append(IndexEntry(item.sequence, item.offset))
    return Index(interval, tuple(entries))


def encode_index(index: Index) -> bytes:
    """The file's bytes.

    Raises:
        UsageError: a number does not fit into 64 bits.
    """
    try:
        head = _INDEX_HEAD.pack(index.interval, len(index.entries), _RESERVED)
        entries = [_ENTRY.pack(entry.sequence, entry.offset) for entry in index.entries]
    except struct.error as exc:
        raise UsageError(f"the index holds 64 bits without a sign: {exc}") from exc
    return b"".join((head, *entries))


def decode_index(raw: bytes) -> Index:
    """The inverse.

    Bytes behind the entries that are counted are left alone: the original counts at a flush.

    Raises:
        SegmentCorruptError: it is cut, or its entries do not ascend, or the header holds entries:
            the original writes them there after a flush by time or size.
    """
    if len(raw) < _INDEX_HEAD.size:
        raise corrupt(len(raw), "an index begins with 256 bytes")
    interval, count, reserved = _INDEX_HEAD.unpack_from(raw)
    if reserved != _RESERVED:
        raise corrupt(_ENTRY.size, "entries lie in the header of the index")
    if count > (len(raw) - _INDEX_HEAD.size) // _ENTRY.size:
        raise corrupt(len(raw), f"the index ends before the {count} entries it counts")
    end = _INDEX_HEAD.size + count * _ENTRY.size
    entries = tuple(IndexEntry(*entry) for entry in _ENTRY.iter_unpack(raw[_INDEX_HEAD.size : end]))
    for i, (one, two) in enumerate(pairwise(entries), 1):
        if one.sequence >= two.sequence or one.offset >= two.offset:
            raise corrupt(_INDEX_HEAD.size + i * _ENTRY.size, "the entries do not ascend")
    return Index(interval, entries)


def encode_manifest(manifest: Manifest) -> bytes:
    """The file's bytes.

    Raises:
        UsageError: a number or a path does not fit.
    """
    active = manifest.active
    try:
        body = _ACTIVE.pack(active.number, active.write_offset, active.records)
        body += _encode_path(active.path)
        for file in manifest.sealed:
            body += _SEALED.pack(file.first_sequence, file.last_sequence, file.size)
            body += _encode_path(file.path)
        head = _MANIFEST_HEAD.pack(
            _MAGIC, _VERSION, manifest.next_sequence, len(manifest.sealed), zlib.crc32(body), b""
        )
    except (struct.error, UnicodeEncodeError) as exc:
        raise UsageError(f"the manifest cannot hold this: {exc}") from exc
    return head + body


def decode_manifest(raw: bytes) -> Manifest:
    """The inverse. A path that is not UTF-8 is read as far as it is.

    Raises:
        SegmentCorruptError: it is none, or cut, or of another version, or its checksum is wrong.
    """
    if len(raw) < _MANIFEST_HEAD.size:
        raise corrupt(len(raw), "a manifest begins with 32 bytes")
    magic, version, next_sequence, count, checksum, _ = _MANIFEST_HEAD.unpack_from(raw)
    if magic != _MAGIC:
        raise corrupt(0, "this is no manifest")
    if version != _VERSION:
        raise corrupt(4, f"version {version} of the manifest is unknown")
    if zlib.crc32(raw[_MANIFEST_HEAD.size :]) != checksum:
        raise corrupt(20, "the checksum of the manifest does not match")
    try:
        number, write_offset, records = _ACTIVE.unpack_from(raw, at := _MANIFEST_HEAD.size)
        path, at = _decode_path(raw, at + _ACTIVE.size)
        active = ActiveFile(number, write_offset, records, path)
        sealed = []
        for _ in range(count):  # ends with the bytes, whatever the count
            first, last, size = _SEALED.unpack_from(raw, at)
            path, at = _decode_path(raw, at + _SEALED.size)
            sealed.append(SealedFile(first, last, size, path))
    except struct.error as exc:
        raise corrupt(len(raw), "the manifest ends before what it counts") from exc
    if at != len(raw):
        raise corrupt(at, "bytes follow the manifest")
    return Manifest(next_sequence, active, tuple(sealed))


def encode_current(slot: int) -> bytes:
    """The file that names the slot.

    Raises:
        UsageError: there is no such slot.
    """
    if slot not in SLOT_NAMES:
        raise UsageError(f"a manifest has the slots 1 and 2, not {slot}")
    return bytes([slot])


def decode_current(raw: bytes) -> int:
    """The slot; the original reads one byte and leaves the rest alone.

    Raises:
        SegmentCorruptError: it names none.
    """
    slot = int.from_bytes(raw[:1], "little")
    if slot not in SLOT_NAMES:
        raise corrupt(0, f"{CURRENT_NAME} names no slot")
    return slot


def _encode_path(path: str) -> bytes:
    raw = path.encode()
    return _PATH.pack(len(raw)) + raw


def _decode_path(raw: bytes, at: int) -> tuple[str, int]:
    (count,) = _PATH.unpack_from(raw, at)
    at += _PATH.size
    if at + count > len(raw):
        raise struct.error("path")
    return raw[at : at + count].decode("utf-8", "replace"), at + count
