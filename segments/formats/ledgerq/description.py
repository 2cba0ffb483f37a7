"""Description of LedgerQ's format, and the salvage of a queue into a new folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ....engine.files.durable_files import write_new
from ...item import Damage, Record
from ..foreign import ForeignFormat, Saving
from .codec import LedgerQ, content
from .folder import Directory, read_directory, write_directory
from .state import Metadata, encode_metadata

__all__ = ["FORMAT"]

_NUMBERED_LOG: Final = re.compile(r"\d{20}\.log", re.ASCII)
_PRIORITY_MAX: Final = 2


def _files_in(folder: str) -> list[tuple[str, str]]:
    return [(os.path.join(folder, name), name) for name in read_directory(folder).segments]


def _is_sign(name: str) -> bool:
    return name == "metadata.dat" or _NUMBERED_LOG.fullmatch(name) is not None


def _damage_in(folder: str) -> Iterator[tuple[str, Damage]]:
    yield from read_directory(folder).verify()


def _save(saving: Saving, fresh: str) -> None:
    """Ids stay as long as they ascend: LedgerQ finds nothing by one that does not."""
    directory = read_directory(saving.path) if saving.is_folder else None
    for name, damage in directory.problems if directory else ():
        saving.lost(name, damage)
    last = 0

    def records() -> Iterator[Record]:
        nonlocal last
        for name, record in saving.records():
            if record.priority is not None and record.priority > _PRIORITY_MAX:
                saving.lost(name, Damage(record.offset, 0, f"priority {record.priority} becomes 2"))
                record = replace(record, priority=_PRIORITY_MAX)
            if record.sequence <= last:
                reason = f"id {record.sequence} comes after {last}: it becomes {last + 1}"
                saving.lost(name, Damage(record.offset, 0, reason))
                record = replace(record, sequence=last + 1)
            last = record.sequence
            saving.saved(record)
            yield record

    write_directory(
        fresh,
        records(),
        retries=directory.retries if directory else None,
        dedup=directory.dedup if directory else None,
    )
    if directory is not None and directory.metadata is not None:
        _set_metadata(fresh, directory, last)


def _set_metadata(folder: str, directory: Directory, last: int) -> None:
    """Keep the read position. It has no checksum, so an impossible one is left out."""
    next_id = max(last + 1, directory.metadata.next_id if directory.metadata else 1)
    if directory.read_id > next_id:
        return
    metadata = encode_metadata(Metadata(next_id, directory.read_id))
    write_new(os.path.join(folder, "metadata.dat"), metadata, mode=0o644, may_exist=True)


FORMAT: Final = ForeignFormat(
    name=LedgerQ.name,
    codec=LedgerQ,
    files_in=_files_in,
    magic=b"QQDL",
    beside={b"IQDL": "the index of a LedgerQ segment"},
    is_sign=_is_sign,
    columns=("timestamp", "priority", "expires", "headers"),
    content=content,
    damage_in=_damage_in,
    save=_save,
)
