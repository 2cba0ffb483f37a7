"""Payloads from a file or from stdin: those above 3 MiB are streamed into the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import chain

from ...engine.records.task import WHOLE_BYTES_MAX
from ...errors import UsageError
from ...repository.model.codec import SLICE_BYTES
from .values import stdin_bytes

__all__ = ["file_slices", "payload_or_slices", "stdin_slices"]


def stdin_slices() -> Iterator[bytes]:
    """Standard input, in slices."""
    stream = stdin_bytes()
    try:
        number = stream.fileno()
    except OSError:  # no file stands behind it
        return iter(partial(stream.read, SLICE_BYTES), b"")
    # Not by ``stream``: its lock would be a thread's when the interpreter ends.
    return iter(partial(os.read, number, SLICE_BYTES), b"")


def file_slices(path: str) -> Iterator[bytes]:
    """The bytes of a file, in slices.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            yield from iter(partial(file.read, SLICE_BYTES), b"")
    except OSError as exc:
        raise UsageError(f"the file {path!r} cannot be read: {exc.strerror}") from exc


def payload_or_slices(slices: Iterator[bytes]) -> bytes | Iterator[bytes]:
    """A payload; one above 3 MiB stays slices, of which the first are read."""
    read: list[bytes] = []
    size = 0
    for one in slices:
        read.append(one)
        size += len(one)
        if size > WHOLE_BYTES_MAX:
            return chain(read, slices)
    return b"".join(read)
