"""A RocksDB folder, looked at before RocksDB sees it.

Two things RocksDB does with what it finds must not be left to it: any open makes the folder it is
pointed at; and a log (the manifest is one) with a record of a *recyclable* type behind one of an
ordinary type is read in an endless loop, with the GIL held. We never recycle logs, so such a type
is damage: one flipped bit makes it, or a block that a power cut left out.

A log is a row of blocks of 32 KiB. A record is a checksum (4 bytes), a length (2), a type (1) and
so many bytes; it never crosses the end of a block.

It refuses a manifest with a torn record at its end, too, where zeros follow what reached the disk:
the usual picture of a power cut, and of a log it would drop them. ``open_cut`` does so, on a copy;
whether anything durable went with the cut the count of commits shows, as for logs.

And one thing it does not do: report a log whose last records it could not read. A record with a
damaged *length* looks like the end of the log. Every batch of ours holds its number, so the
bytes of the log say themselves how far it went. They are read as RocksDB lays out its batches, for
payloads may hold anything, what looks like a number too: only from where that order is broken to
the end of the block are bytes taken for what they look like.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from ...errors import (
    CorruptionError,
    LockedError,
    RecordCorruptError,
    StorePathError,
)
from ..files.disk_errors import disk_error, path_error
from ..records.frame import attempt
from ..records.keyspace import RING, ring_key
from ..records.rows import RING_BYTES, decode_ring, owner_of

__all__ = [
    "check_folder",
    "cut_manifest",
    "ends_torn",
    "find_endless",
    "log_owners",
    "newest_commit",
    "open_cut",
]

T = TypeVar("T")

_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_HEADER_BYTES = _HEADER.size
_RECYCLABLE = (5, 6, 7, 8)
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_DELETE, _PUT = 0, 1
_TRIES_MAX = 8  # a holder removes a file now and then, not all the time
_LOOKS_MAX = _BLOCK_BYTES // 4  # all that a block can hold


def check_folder(path: str, *, create: bool, cut: bool = False) -> None:
    """Make the folder, or see that a store is there and that its logs can be read to an end.

    With ``cut`` a log of writes is shortened to what lies before the damage.

    Raises:
        StorePathError: no store there, or the path cannot be one.
        LockedError: files came and went all the time: somebody has it open.
        CorruptionError: a log, or a manifest, cannot be read to an end.
        StorageError: the disk.
    """
    if create:
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as exc:
            raise path_error(exc, f"not a folder for a store: {path!r}: {exc}") from exc
    elif not _is_file(os.path.join(path, "CURRENT")):
        raise StorePathError(f"no store at {path!r}")
    try:
        for _ in range(_TRIES_MAX):
            if _check_logs(path, cut=cut):
                return
    except OSError as exc:
        raise disk_error(exc, path) from exc
    raise LockedError(f"the files in {path} keep changing: the store is open elsewhere")


def _is_file(path: str) -> bool:
    """Whether it is a file. Unlike ``os.path.isfile`` it takes no failing disk for a no."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise path_error(exc, f"{path}: {exc.strerror}") from exc


def _check_logs(path: str, *, cut: bool) -> bool:
    """Whether all that were listed were there to be read.

    Nobody has the lock yet: a holder may remove files meanwhile. That it holds the store only
    RocksDB can say, which knows of its own process, too; so its open is to get that far.
    """
    for name in sorted(os.listdir(path)):
        is_log = name.endswith(".log")
        if not (is_log or name.startswith("MANIFEST-")):
            continue
        file = os.path.join(path, name)
        try:
            if (at := find_endless(file)) is None:
                continue
            if not (is_log and cut):
                raise CorruptionError(f"{file}: the record at byte {at} has an impossible type")
            os.truncate(file, at)
        except FileNotFoundError:
            if os.path.lexists(file):  # a link to nothing
                raise
            return False
    return True


def find_endless(path: str) -> int | None:
    """Where the first record of a recyclable type begins, or None."""
    with open(path, "rb") as file:
        start = 0
        while block := file.read(_BLOCK_BYTES):
            at, end = 0, len(block) - _HEADER_BYTES
            while at <= end:
                kind = block[at + 6]
                if kind in _RECYCLABLE:
                    return start + at
                size = block[at + 4] | block[at + 5] << 8
                if not kind and not size:
                    break  # zeros: nothing more in this block
                at += _HEADER_BYTES + size
            start += len(block)
    return None


def open_cut(path: str, open_it: Callable[[], T]) -> T:
    """``open_it()``, with what lies before its first damage if the manifest is damaged."""
    try:
        return open_it()
    except CorruptionError:
        if not cut_manifest(path):
            raise
        return open_it()


def cut_manifest(path: str) -> bool:
    """Shorten the manifest of the folder, a copy, to what lies before its first damaged record.

    Returns whether there was one.
    """
    with open(os.path.join(path, "CURRENT"), "rb") as current:
        name = current.read(64).decode("ascii", "replace").strip()
    file = os.path.join(path, os.path.basename(name))
    if not os.path.isfile(file):
        return False
    with open(file, "rb") as manifest:
        at = _find_damage(manifest.read())
    if at is not None:
        os.truncate(file, at)
    return at is not None


def _find_damage(log: bytes) -> int | None:
    """Where the first record with a wrong checksum begins, or None."""
    at = 0
    while at < len(log):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            at += left
            continue
        if at + _HEADER_BYTES > len(log):
            return at
        crc, size, kind = _HEADER.unpack_from(log, at)
        if not kind and not size and not crc:
            at += left  # zeros: nothing more in this block
            continue
        body = log[at + _HEADER_BYTES - 1 : at + _HEADER_BYTES + size]
        if len(body) <= size or _HEADER_BYTES + size > left or _masked_crc32c(body) != crc:
            return at
        at += _HEADER_BYTES + size
    return None


@cache
def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [n >> 1 ^ 0x82F63B78 if n & 1 else n >> 1 for n in table]
    return table


def _masked_crc32c(data: bytes) -> int:
    """As RocksDB stores it (util/crc32c.h). Slow, and only where a store is damaged."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def newest_commit(path: str, incarnation: int) -> int:
    """The last commit of ``incarnation`` whose number stands in a log of the folder; 0 for none.

    Whether RocksDB can read that part of the log or not. Numbers grow, so it is the highest one of
    the last block of the newest log that has any.
    """
    names = [name for name in os.listdir(path) if name.endswith(".log")]
    for name in sorted(names, reverse=True):
        file = os.path.join(path, name)
        if os.path.getsize(file):
            with (
                open(file, "rb") as opened,
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as log,
            ):
                if found := _last_number(log, incarnation):
                    return found
    return 0


def ends_torn(path: str) -> bool:
    """Whether the newest log of the folder ends in the middle of a batch.

    A power cut leaves that of a batch that was being written; so does whoever cuts the file.
    """
    names = [name for name in os.listdir(path) if name.endswith(".log")]
    for name in sorted(names, reverse=True):
        size = os.path.getsize(os.path.join(path, name))
        if size:
            with open(os.path.join(path, name), "rb") as file:
                file.seek((size - 1) // _BLOCK_BYTES * _BLOCK_BYTES)
                return _is_torn(file.read())
    return False


def _is_torn(block: bytes) -> bool:
    at, kind = 0, _FULL
    while at + _HEADER_BYTES <= len(block):
        _, size, kind = _HEADER.unpack_from(block, at)
        if not kind and not size:
            return any(block[at:])  # zeros that were made ready
        at += _HEADER_BYTES + size
    return kind in (_FIRST, _MIDDLE) or (at != len(block) and len(block) < _BLOCK_BYTES)


def log_owners(path: str) -> set[int]:
    """Whose commits stand in a log, as its ring rows say; see ``ring_owner``."""
    owners: set[int] = set()
    if not os.path.getsize(path):
        return owners
    key_bytes = len(ring_key(0))
    with (
        open(path, "rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as log,
    ):
        at = log.find(RING)
        while at >= 0:
            value_at = at + key_bytes + 1
            value = log[value_at : value_at + RING_BYTES]
            number = attempt(decode_ring, value)
            if number is not None and ring_key(number[0]) == log[at : at + key_bytes]:
                owners.add(owner_of(value))
            at = log.find(RING, at + 1)
    return owners - {0}


def _last_number(log: mmap.mmap, incarnation: int) -> int:
    for start in range((len(log) - 1) // _BLOCK_BYTES * _BLOCK_BYTES, -1, -_BLOCK_BYTES):
        fragments, broken_at = _fragments(log, start)
        found = 0
        for kind, at, size in fragments:
            if kind not in (_FULL, _FIRST):
                continue
            batch = log[at : at + size]
            if kind == _FIRST:
                batch += _continued(log, start + _BLOCK_BYTES)
            number = _number_in(batch, incarnation)
            if number is None:  # damaged, or torn
                broken_at = min(broken_at, at)
                number = _look_for_number(batch, incarnation)
            found = max(found, number)
        if broken_at < start + _BLOCK_BYTES:
            found = max(found, _look_for_number(log[broken_at : start + _BLOCK_BYTES], incarnation))
        if found:
            return found
    return 0


def _fragments(log: mmap.mmap, start: int) -> tuple[list[tuple[int, int, int]], int]:
    """(type, where its bytes begin, how many) of the records of a block; where their order ends."""
    out: list[tuple[int, int, int]] = []
    end = start + _BLOCK_BYTES
    at = start
    while at + _HEADER_BYTES <= min(end, len(log)):
        _, size, kind = _HEADER.unpack_from(log, at)
        body = at + _HEADER_BYTES
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or body + size > min(end, len(log)):
            break
        if kind in (_MIDDLE, _LAST) and not (at == start or (out and out[-1][0] == _FIRST)):
            break
        out.append((kind, body, size))
        at = body + size
    is_over = not any(log[at:end])  # the end of the log, or zeros that were made ready
    return out, end if is_over else at


def _continued(log: mmap.mmap, start: int) -> bytes:
    """The rest of a batch that began before block ``start``."""
    parts: list[bytes] = []
    while start < len(log):
        fragments, _ = _fragments(log, start)
        if not fragments or fragments[0][0] not in (_MIDDLE, _LAST):
            break
        kind, at, size = fragments[0]
        parts.append(log[at : at + size])
        if kind == _LAST:
            break
        start += _BLOCK_BYTES
    return b"".join(parts)


def _number_in(batch: bytes, incarnation: int) -> int | None:
    """The number of a batch of ours; 0 for another incarnation or none; None: it is no batch."""
    count = int.from_bytes(batch[8:12], "little")
    at, found = 12, 0
    try:
        for _ in range(count):
            kind = batch[at]
            size, at = _length(batch, at + 1)
            key, at = batch[at : at + size], at + size
            if kind == _PUT:
                size, at = _length(batch, at)
                if key.startswith(RING):
                    found = max(found, _number_of(key, batch[at : at + size], incarnation))
                at += size
            elif kind != _DELETE:
                return None
    except IndexError:
        return None
    return found if at == len(batch) and len(batch) >= 12 else None


def _length(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 28:
            return number, at
        shift += 7


def _number_of(key: bytes, value: bytes, incarnation: int) -> int:
    try:
        commit_seq, _ = decode_ring(value)
    except RecordCorruptError:
        return 0
    return commit_seq if commit_seq >> 40 == incarnation and key == ring_key(commit_seq) else 0


def _look_for_number(raw: bytes, incarnation: int) -> int:
    """The highest one that bytes without order look like."""
    found, at = 0, -1
    key_bytes = len(ring_key(0))
    for _ in range(_LOOKS_MAX):
        at = raw.find(RING, at + 1)
        if at < 0:
            break
        value_at = at + key_bytes + 1  # behind the key comes the value's length, one byte
        value = raw[value_at : value_at + RING_BYTES]
        found = max(found, _number_of(raw[at : at + key_bytes], value, incarnation))
    return found
