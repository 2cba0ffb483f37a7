"""Layout of a folder of body files: names and numbers, and which format a number has.

::

    bodies<i>/
      3.rdq  4.rdq        format 1, no number above ``last_v1_file``: only ever read
      5.sqs  6.sqs …      format 2: what is written
      7.sqs.part          a streamed body under way, or left by a crash: nobody counts it

The suffix names the format and the numbers are kept apart, so one comparison gives it for any
location. A release before us that went on with such a folder would have made ``.rdq`` files above
the others; then no number could be trusted, and such a folder is refused.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from ...errors import FormatTooNewError, FormatTooOldError, StorageError, StorePathError
from ..formats.rdq import Rdq
from .sqs import HEADER, HEADER_BYTES, Sqs

__all__ = [
    "NO_FILE",
    "OLDEST_BODY_FORMAT",
    "BodyFile",
    "BodyLayout",
    "Location",
    "examine_folder",
    "file_name",
    "list_numbers",
    "list_parts",
]

# On disk: never renumber.
FORMATS: Final = {Rdq.suffix: 1, Sqs.suffix: 2}
# What this release still reads. Raised when a format is dropped: its files are then refused.
OLDEST_BODY_FORMAT = 1

NO_FILE: Final = -1
_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,18})(\.[A-Za-z0-9]+)", re.ASCII)
_PART: Final = re.compile(r"(0|[1-9][0-9]{0,18})\.sqs\.part", re.ASCII)
_MAGIC_BYTES: Final = 4


class Location(NamedTuple):
    """Where a record lies. ``size`` is that of the whole record."""

    file: int
    offset: int
    size: int


class BodyFile(NamedTuple):
    """A file that is there."""

    number: int
    bytes: int


class BodyLayout(NamedTuple):
    """The numbers that are there, ascending; ``NO_FILE``: none is of format 1."""

    numbers: tuple[int, ...]
    last_v1_file: int


def file_name(number: int, last_v1_file: int) -> str:
    """Name of a body file, whether it is there or not."""
    return f"{number}{Rdq.suffix if number <= last_v1_file else Sqs.suffix}"


def list_numbers(folder: str) -> list[int]:
    """Numbers of the body files in a folder, ascending."""
    return sorted(number for number, suffix in _names(folder) if suffix in FORMATS)


def list_parts(folder: str) -> list[int]:
    """Numbers of streamed bodies that are under way, or were at a crash."""
    try:
        names = os.listdir(folder)
    except OSError:  # ``examine_folder`` says why
        return []
    return [int(match[1]) for name in names if (match := _PART.fullmatch(name))]


def examine_folder(folder: str) -> BodyLayout:
    """Check that this release can go on with the files that are there. Nothing is written.

    Names are looked at, and one header: a newer release writes above what it finds, so the newest
    file is of the newest format.

    Raises:
        FormatTooOldError: files are of a format that this release no longer reads.
        FormatTooNewError: files are of a format that it does not know yet.
        StorePathError: numbers of the two formats overlap.
        StorageError: the folder cannot be read.
    """
    found: dict[str, list[int]] = {suffix: [] for suffix in FORMATS}
    for number, suffix in sorted(_names(folder)):
        path = os.path.join(folder, f"{number}{suffix}")
        if suffix not in FORMATS:
            raise FormatTooNewError(
                f"{path!r} is of no format that this lodeq knows: upgrade lodeq if a newer one "
                "wrote it, else move it away"
            )
        if FORMATS[suffix] < OLDEST_BODY_FORMAT:
            raise FormatTooOldError(
                f"{path!r} has format {FORMATS[suffix]}, this lodeq reads {OLDEST_BODY_FORMAT} and "
                "later: open the store with the release that wrote it, or one between, and let its "
                "engine.migrate_bodies() end first"
            )
        found[suffix].append(number)
    old, new = found[Rdq.suffix], found[Sqs.suffix]
    if old and new and new[0] <= old[-1]:
        raise StorePathError(
            f"{folder!r} has {new[0]}.sqs and {old[-1]}.rdq: every .sqs file must have a higher "
            "number than every .rdq file; an older release has gone on with this store, restore a "
            "checkpoint"
        )
    _check_version(folder, new)
    return BodyLayout((*old, *new), old[-1] if old else NO_FILE)


def _check_version(folder: str, numbers: list[int]) -> None:
    """Check the newest file with a header of ours: a power cut may have left none in the last."""
    for number in reversed(numbers):
        path = os.path.join(folder, f"{number}{Sqs.suffix}")
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                raw = os.pread(fd, HEADER_BYTES, 0)
            finally:
                os.close(fd)
        except OSError as exc:
            raise StorageError(f"cannot read {path!r}: {exc.strerror}") from exc
        if raw[:_MAGIC_BYTES] != HEADER[:_MAGIC_BYTES] or len(raw) < HEADER_BYTES:
            continue
        if raw[_MAGIC_BYTES] > HEADER[_MAGIC_BYTES]:
            raise FormatTooNewError(
                f"{path!r} has format {raw[_MAGIC_BYTES]}, this lodeq reads up to "
                f"{HEADER[_MAGIC_BYTES]}: upgrade lodeq; if no newer one wrote it, the byte is "
                "damaged (this header has no checksum): restore a checkpoint"
            )
        return


def _names(folder: str) -> list[tuple[int, str]]:
    """Names like those of body files. Other files are nobody's business here."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise StorageError(f"cannot list {folder!r}: {exc.strerror}") from exc
    return [(int(match[1]), match[2]) for name in names if (match := _NAME.fullmatch(name))]
