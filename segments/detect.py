"""Which format a file or a folder has.

A file's first bytes say it, where its format has a magic. Two have none (``.rdq``, ``.data``), and
of a damaged file it may be gone: then the suffix does, if it belongs to one format alone. A folder
is known by the names in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..errors import SegmentCorruptError, StorageError, UsageError
from .bodies.sqs import HEADER, Sqs
from .formats.registry import FOREIGN, foreign_format
from .item import Format
from .journal.log_format import MAGIC as JOURNAL_MAGIC
from .journal.log_walk import JournalLog
from .source import FileSource

__all__ = ["FORMATS", "DetectedPath", "codec_of", "detect", "is_ours"]

FORMATS: Final = ("sqs", *(foreign.name for foreign in FOREIGN), "journal")

_MAGIC_BYTES: Final = 4
_POSITION: Final = b"LDJP"
_OF_MAGIC: Final = {
    HEADER[:_MAGIC_BYTES]: "sqs",
    JOURNAL_MAGIC: "journal",
    **{foreign.magic: foreign.name for foreign in FOREIGN if foreign.magic},
}
_BESIDE: Final = {  # files that belong to others, and say nothing alone
    b"LDJI": "the index of a journal's log file",
    _POSITION: "the position of a journal",
    b"LDJT": "the place of a tailer",
    **{magic: what for foreign in FOREIGN for magic, what in foreign.beside.items()},
}
_OF_SUFFIX: Final = {
    Sqs.suffix: "sqs",
    **{foreign.suffix: foreign.name for foreign in FOREIGN if foreign.suffix},
}
_NUMBERED_LOG: Final = re.compile(r"\d{20}\.log", re.ASCII)
_YEAR: Final = re.compile(r"\d{4,}", re.ASCII)
_MONTH_OR_DAY: Final = re.compile(r"\d\d", re.ASCII)


@dataclass(frozen=True, slots=True)
class DetectedPath:
    """A file or a folder, and its format. ``path`` has no links in it."""

    path: str
    format: str
    is_folder: bool


def detect(path: str | os.PathLike[str], name: str | None = None) -> DetectedPath:
    """Look at the first bytes of a file, or the names in a folder. ``name``: do not ask, it is so.

    Raises:
        UsageError: it has none of the formats, or could have several.
        StorageError: it cannot be read.
    """
    whole = os.path.realpath(path)
    is_folder = os.path.isdir(whole)
    if name is not None and name not in FORMATS:
        raise UsageError(f"{name!r} is no format: {', '.join(FORMATS)} are")
    if name is None:
        name = _of_folder(whole) if is_folder else _of_file(whole)
    return DetectedPath(whole, name, is_folder)


def codec_of(path: str, name: str, *, is_current: bool = False) -> Format:
    """The codec for one file of that format. ``is_current``: see ``Sqs``."""
    if name == "sqs":
        return Sqs(foreign=_is_foreign(_magic(path)), is_current=is_current)
    foreign = foreign_format(name)
    return foreign.codec() if foreign is not None else JournalLog()


def is_ours(path: str) -> bool:
    """Whether a file has the magic and the version of our own ``.sqs``."""
    with FileSource(path) as source:
        return source.read(0, _MAGIC_BYTES + 1) == HEADER[: _MAGIC_BYTES + 1]


def _magic(path: str) -> bytes:
    with FileSource(path) as source:
        return source.read(0, _MAGIC_BYTES)


def _is_foreign(magic: bytes) -> bool:
    try:
        Sqs(foreign=True).check_header(magic + HEADER[_MAGIC_BYTES:])
    except SegmentCorruptError:
        return False
    return True


def _of_file(path: str) -> str:
    magic = _magic(path)
    if magic in _OF_MAGIC:
        return _OF_MAGIC[magic]
    if _is_foreign(magic):
        return "sqs"
    if magic in _BESIDE:
        raise UsageError(f"{path!r} is {_BESIDE[magic]}: give the log file, or the folder")
    name = _OF_SUFFIX.get(os.path.splitext(path)[1])
    if name is None:
        raise UsageError(f"{path!r} has no format that is known: name it with --format")
    return name


def _of_folder(path: str) -> str:
    found = set(_signs(path)) or set(_signs_in_days(path))
    if found == {"sqs", "rdq"}:  # a store that was on its way from one to the other
        return "sqs"
    if len(found) == 1:
        return found.pop()
    could_be = f"could be {' or '.join(sorted(found))}" if found else "holds no segments"
    raise UsageError(f"{path!r} {could_be}: name its format with --format, or give a file")


def _signs(folder: str) -> Iterator[str]:
    """Formats that the names directly in a folder stand for."""
    is_numbered_seen = False
    for name in _names(folder):
        path = os.path.join(folder, name)
        if name == "position" and os.path.isfile(path) and _magic(path) == _POSITION:
            yield "journal"
        elif name.endswith(Sqs.suffix):
            yield "sqs"
        elif _NUMBERED_LOG.fullmatch(name) and not is_numbered_seen:
            is_numbered_seen = True  # one decides for all
            if _magic(path) == JOURNAL_MAGIC:
                raise UsageError(f"{folder!r} is one day of a journal: give the journal's folder")
        yield from (foreign.name for foreign in FOREIGN if foreign.is_sign(name))


def _signs_in_days(folder: str) -> Iterator[str]:
    """The same of ``YYYY/MM/DD``: a format that has days keeps nothing else there."""
    folders = [folder]
    for part in (_YEAR, _MONTH_OR_DAY, _MONTH_OR_DAY):
        folders = [
            os.path.join(above, name)
            for above in folders
            for name in _names(above)
            if part.fullmatch(name) and os.path.isdir(os.path.join(above, name))
        ]
    for day in folders:
        for name in _names(day):
            if _NUMBERED_LOG.fullmatch(name):
                yield "journal"
            yield from (foreign.name for foreign in FOREIGN if foreign.is_sign_in_day(name))


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as exc:
        raise StorageError(f"cannot list {folder!r}: {exc.strerror}") from exc
