"""Description of the Rust queue's format, and the salvage of a queue into a new folder."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator
from typing import Final

from ....errors import CorruptionError
from ...item import Damage, Item
from ...source import FileSource
from ..foreign import ForeignFormat, Saving
from .codec import RustQueue, variant_of, wrong_with
from .folder import QueueDirectory
from .index import CURRENT_NAME, SLOT_NAMES
from .reader import Variant
from .writer import write_directory

__all__ = ["FORMAT"]

_DAY: Final = re.compile(r"(\d{8})-\d{4,10}\.data", re.ASCII)
_MANIFESTS: Final = frozenset({*SLOT_NAMES.values(), CURRENT_NAME})


def _files_in(folder: str) -> list[tuple[str, str]]:
    return [(file.path, file.name) for file in QueueDirectory(folder).files]


def _is_sign_in_day(name: str) -> bool:
    return name.endswith(RustQueue.suffix)


def _items_in(folder: str) -> Iterator[tuple[str, Item]]:
    """Numbers of records are counted over all files."""
    for file, item in QueueDirectory(folder).salvage():
        yield file.name, item


def _damage_in(folder: str) -> Iterator[tuple[str, Damage]]:
    """The directory describes damage as text; salvage has it precisely."""
    directory = QueueDirectory(folder)
    found = directory.verify()
    if not found:
        return
    precise: dict[tuple[str, str], Damage] = {}
    for file, item in directory.salvage():
        if damage := wrong_with(item):
            precise[file.path, f"{damage.offset}: {damage.reason}"] = damage
    for one in found:
        damage = precise.get((one.path, one.reason), Damage(0, 0, one.reason))
        yield one.path, damage


def _save(saving: Saving, fresh: str) -> None:
    """Save all payloads as of one day, with the checksum of the first file."""
    first = saving.path
    if saving.is_folder:
        directory = QueueDirectory(saving.path)
        for finding in directory.findings:
            saving.lost(finding.path, Damage(0, 0, finding.reason))
        first = directory.files[0].path if directory.files else ""
    variant = _variant(first)

    def payloads() -> Iterator[bytes]:
        for name, record in saving.records():
            if not record.payload:
                saving.skipped(name, record, "an empty payload reads as the end of the data")
            elif variant is Variant.CRC64_PAYLOAD and not any(record.payload):
                saving.skipped(name, record, "with this checksum zeros look like no payload")
            else:
                saving.saved(record)
                yield record.payload

    write_directory(fresh, payloads(), day=_day(first), variant=variant)


def _variant(path: str) -> Variant:
    if path:
        with FileSource(path) as source:
            try:
                return variant_of(source) or Variant.CRC32
            except CorruptionError:
                pass
    return Variant.CRC32


def _day(path: str) -> datetime.date:
    """The day of a data file: from its name, or else from the time it was written."""
    match = _DAY.fullmatch(os.path.basename(path))
    try:
        return datetime.date.fromisoformat(match[1] if match else "")
    except ValueError:
        seconds = os.stat(path).st_mtime if path else 0
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date()


FORMAT: Final = ForeignFormat(
    name=RustQueue.name,
    codec=RustQueue,
    files_in=_files_in,
    suffix=RustQueue.suffix,
    beside={b"QMFT": "the manifest of a Rust queue"},
    is_sign=_MANIFESTS.__contains__,
    is_sign_in_day=_is_sign_in_day,
    items_in=_items_in,
    damage_in=_damage_in,
    save=_save,
)
