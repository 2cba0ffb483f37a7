"""Meaning of rocksdict's errors: bare ``Exception``s that hold RocksDB's status as text."""

from __future__ import annotations

from typing import Final, Literal

from rocksdict import DbClosedError

from ...errors import (
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    LockedError,
    LodeqError,
    OpenError,
    StorageError,
    StorageFullError,
    StorePathError,
    StoreStalledError,
    UsageError,
)
from ..files.disk_errors import LIMIT_ADVICE, is_disk_text, is_full_text, is_limit_text

__all__ = ["Doing", "is_damage", "translate"]

Doing = Literal["open", "read", "write", "sync"]
_STALL_RETRY_MS: Final = 10  # a stall ends when one flush or compaction does


def translate(exc: Exception, doing: Doing) -> LodeqError:
    """The one reading of rocksdict's errors: by type where there is one, else by status prefix.

    A failed sync is never "full": what the kernel dropped is unknown, whatever the errno.
    """
    text = str(exc) or repr(exc)  # a MemoryError has none
    if isinstance(exc, DbClosedError):
        return ClosedError("the store is closed")
    if isinstance(exc, (KeyError, TypeError, ValueError)):
        return UsageError(f"keys and values are bytes: {text}")
    if "lock hold by current process" in text or "While lock file" in text:
        return LockedError(f"the store is open elsewhere: {text}")
    if doing != "sync":
        if text.startswith("Result incomplete"):
            return StoreStalledError(text, retry_after_ms=_STALL_RETRY_MS)
        is_new_log = "While open a file for app" in text and ".log: " in text  # this never heals
        if is_full_text(text) and not (is_new_log and doing == "write"):
            return StorageFullError(text)
    is_limit = is_limit_text(text)
    if is_limit:
        text = f"{text}; {LIMIT_ADVICE}"
    if doing in ("write", "sync"):
        return CommitUnknownError(text)
    if is_limit:  # whatever RocksDB makes of it: the file itself has not been looked at
        return StorageError(text)
    if text.startswith("Corruption"):
        return CorruptionError(text)
    if doing == "read" or is_disk_text(text):
        return StorageError(text)
    if text.startswith("Invalid argument") or "Permission denied" in text:
        return StorePathError(f"not a store of ours: {text}")
    return OpenError(text)


def is_damage(error: BaseException) -> bool:
    """Whether a write was refused because a compaction has met a damaged block.

    RocksDB takes no write then until it is reopened, and none after that once it compacts again.
    """
    return "Corruption: " in str(error)
