"""Small JSON files that are whole or not there: sealed with a checksum, named by a rename."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any, Final

import xxhash

from ...errors import CorruptionError, FormatTooNewError
from ..files.durable_files import replace_file

__all__ = ["natural", "read_document", "read_object", "write_document"]

_BYTES_MAX: Final = 16 << 20


def write_document(path: str, body: dict[str, Any]) -> None:
    """Put it there, durably, in the place of whatever was. Raises ``OSError``."""
    sealed = {**body, "xxh3_128": xxhash.xxh3_128_hexdigest(_canonical(body))}
    replace_file(path, _canonical(sealed))


def read_document(path: str, form: str, version: int) -> dict[str, Any]:
    """Read a document, without its checksum.

    Raises:
        FormatTooNewError: its version is above ``version``.
        CorruptionError: it is not there, cannot be read, or is damaged.
    """
    try:
        body = read_object(path)
    except OSError as exc:
        raise CorruptionError(f"{path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise CorruptionError(f"{path} is damaged ({exc})") from exc
    try:
        if body.get("format") != form:
            raise ValueError(f"not of the format {form}")
        claimed = body.pop("xxh3_128")
        if xxhash.xxh3_128_hexdigest(_canonical(body)) != claimed:
            raise ValueError("checksum mismatch")
        if natural(body["version"]) > version:  # the frame first: damage never reads as newer
            raise FormatTooNewError(
                f"{path} has version {body['version']}, this lodeq reads {version}: upgrade lodeq"
            )
    except (ValueError, KeyError, RecursionError) as exc:
        raise CorruptionError(f"{path} is damaged ({exc})") from exc
    return body


def read_object(path: str) -> dict[str, Any]:
    """The object in a small file. Raises ``OSError``; ``ValueError``: there is none in it."""
    # Whatever else may lie there (to open a pipe is to wait) is refused.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a file", path)
        raw = file.read(_BYTES_MAX + 1)
    if len(raw) > _BYTES_MAX:
        raise ValueError("too large")
    try:
        body = json.loads(raw)
    except RecursionError as exc:
        raise ValueError("too deep") from exc
    if not isinstance(body, dict):
        raise ValueError("not an object")
    return body


def natural(value: object) -> int:
    """``value`` if it is a number of up to 64 bits, else ``ValueError``."""
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"not a number: {value!r}")
    return value


def _canonical(body: object) -> bytes:
    return json.dumps(body, indent=0, sort_keys=True).encode("ascii")
