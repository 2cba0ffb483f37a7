"""Texts for a terminal, and what becomes of a stdout that cannot be written.

Stored data is escaped when it is printed: a payload never moves the cursor of a terminal.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

__all__ = [
    "PIPE_COLUMNS",
    "CheckedOutput",
    "ClosedOutput",
    "Column",
    "OutputError",
    "discard_output",
    "flush",
    "json_line",
    "shown",
    "stdout_errors",
]

PIPE_COLUMNS: Final = 240
_SHORT: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class OutputError(OSError):
    """Stdout cannot be written any more. What the command did until then stays done."""


def shown(data: bytes | str) -> str:
    """Text in which everything that is not printable is escaped."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    return "".join(_SHORT.get(c) or (c if c.isprintable() else _escape(c)) for c in text)


def _escape(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"
    )


def json_line(value: Mapping[str, Any]) -> str:
    """One object on one line, in ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class Column(NamedTuple):
    """A column of a table. It is as wide as its cells, within its bounds."""

    title: str
    least: int
    most: int
    is_number: bool = False
    may_be_cut: bool = False  # else it is folded


def discard_output() -> None:
    """Throw away buffered output that cannot be written, so that the interpreter ends quietly.

    A stdout that is not a file has nothing to lose.
    """
    null = os.open(os.devnull, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(io.UnsupportedOperation):
            os.dup2(null, sys.stdout.fileno())
    finally:
        os.close(null)


def flush() -> None:
    """Write out everything printed so far."""
    with stdout_errors():
        sys.stdout.flush()


@contextmanager
def stdout_errors() -> Iterator[None]:
    """Turn an error of stdout into an ``OutputError``, but for a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise  # nobody reads on: that is no error
    except OSError as exc:
        discard_output()
        raise OutputError(exc.errno, exc.strerror) from exc


class CheckedOutput(io.TextIOWrapper):
    """The stdout of the command: whatever prints, an error of it is an ``OutputError``."""

    def write(self, text: str, /) -> int:
        """See ``io.TextIOBase``."""
        if text == "":  # a probe of click's, which hides the error
            return 0
        with stdout_errors():
            return super().write(text)

    def flush(self) -> None:
        """See ``io.IOBase``."""
        with stdout_errors():
            super().flush()


class ClosedOutput(CheckedOutput):
    """Stands for a stdout that was closed when the command began: nobody sees what is printed."""
