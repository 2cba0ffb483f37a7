"""A RocksDB folder, looked at before RocksDB sees it.

Two things RocksDB does with what it finds must not be left to it: any open makes the folder it is
pointed at; and a log (the manifest is one) with a record of a *recyclable* type behind one of an
ordinary type is read in an endless loop, with the GIL held. We never recycle logs, so such a type
is damage: one flipped bit makes it, or a block that a power cut left out.

A log is a row of blocks of 32 KiB. A record is a checksum (4 bytes), a length (2), a type (1) and
so many bytes; it never crosses the end of a block.

And one thing it does not do: tell of a log whose last records it could not read. A record with a
damaged *length* looks like the end of the log. Every batch of ours ends with its number, so the
bytes of the log say themselves how far it went.
"""

from __future__ import annotations

import mmap
import os

from ..errors import CorruptionError, RecordCorruptError, StorageError, StorePathError
from .keyspace import RING, ring_key
from .records.rows import RING_BYTES, decode_ring

__all__ = ["check_folder", "find_endless", "newest_commit"]

_BLOCK_BYTES = 32 << 10
_HEADER_BYTES = 7
_RECYCLABLE = (5, 6, 7, 8)
_LOOKS_MAX = 4096  # of what only looks like a number: payloads may hold anything


def check_folder(path: str, *, create: bool, cut: bool = False) -> None:
    """Make the folder, or see that a store is there and that its logs can be read to an end.

    With ``cut`` a log of writes is shortened to what lies before the damage.
    """
    if create:
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as exc:
            raise StorePathError(f"not a folder for a store: {path!r}: {exc}") from exc
    elif not os.path.isfile(os.path.join(path, "CURRENT")):
        raise StorePathError(f"no store at {path!r}")
    try:
        for name in sorted(os.listdir(path)):
            is_log = name.endswith(".log")
            if not (is_log or name.startswith("MANIFEST-")):
                continue
            file = os.path.join(path, name)
            if (at := find_endless(file)) is None:
                continue
            if not (is_log and cut):
                raise CorruptionError(f"{file}: the record at byte {at} has an impossible type")
            os.truncate(file, at)
    except OSError as exc:
        raise StorageError(f"{exc.filename or path}: {exc.strerror}; look at the disk") from exc


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


def newest_commit(path: str, incarnation: int) -> int:
    """The last commit of ``incarnation`` whose number stands in a log of the folder; 0 for none.

    Whether RocksDB can read that part of the log or not. Numbers grow, so it is the last one of
    the newest log that has any.
    """
    names = [name for name in os.listdir(path) if name.endswith(".log")]
    for name in sorted(names, reverse=True):
        file = os.path.join(path, name)
        if os.path.getsize(file):
            with open(file, "rb") as opened, mmap.mmap(
                opened.fileno(), 0, access=mmap.ACCESS_READ
            ) as log:  # fmt: skip
                if found := _last_number(log, incarnation):
                    return found
    return 0


def _last_number(log: mmap.mmap, incarnation: int) -> int:
    at = len(log)
    for _ in range(_LOOKS_MAX):
        at = log.rfind(RING, 0, at)
        if at < 0:
            break
        value_at = at + len(ring_key(0)) + 1  # behind the key comes the value's length, one byte
        try:
            commit_seq, _ = decode_ring(log[value_at : value_at + RING_BYTES])
        except RecordCorruptError:
            continue
        if commit_seq >> 40 == incarnation and log[at : value_at - 1] == ring_key(commit_seq):
            return commit_seq
    return 0
