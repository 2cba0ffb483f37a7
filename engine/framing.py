"""A RocksDB folder, looked at before RocksDB sees it.

Two things RocksDB does with what it finds must not be left to it: any open makes the folder it is
pointed at; and a log (the manifest is one) with a record of a *recyclable* type behind one of an
ordinary type is read in an endless loop, with the GIL held. We never recycle logs, so such a type
is damage: one flipped bit makes it, or a block that a power cut left out.

A log is a row of blocks of 32 KiB. A record is a checksum (4 bytes), a length (2), a type (1) and
so many bytes; it never crosses the end of a block.
"""

from __future__ import annotations

import os

from ..errors import CorruptionError, StorageError, StorePathError

__all__ = ["check_folder", "find_endless"]

_BLOCK_BYTES = 32 << 10
_HEADER_BYTES = 7
_RECYCLABLE = (5, 6, 7, 8)


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
