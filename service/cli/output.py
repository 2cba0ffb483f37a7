"""Output of the file commands: tables, lines of JSON, damage on stderr, a progress bar.

Stored data is escaped when it is printed: a payload never moves the cursor of a terminal.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from ...errors import SegmentCorruptError, UsageError
from ...segments.formats.item import Damage, Record
from ...segments.formats.ledgerq.codec import content
from ...segments.formats.ledgerq.state import GoTime, format_time

__all__ = [
    "PIPE_COLUMNS",
    "Bar",
    "Column",
    "Rows",
    "damage_json",
    "inflated",
    "json_line",
    "record_json",
    "record_row",
    "report_damage",
    "rfc3339",
    "shown",
]

_PREFIX_BYTES: Final = 40
_PREFIX_CHARS: Final = 48
_ROWS: Final = 200  # what a table holds back, to be set together
PIPE_COLUMNS: Final = 240
_GAP: Final = 2
_BAR_S: Final = 1.0
_BAR_BYTES: Final = 64 << 20
_SHORT: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(data: bytes | str) -> str:
    """Text in which everything that is not printable is escaped."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    return "".join(_SHORT.get(c) or (c if c.isprintable() else _escape(c)) for c in text)


def _escape(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"
    )


def rfc3339(ns: int) -> str | None:
    """In UTC; None for 0, which stands for no time, and beyond the year 9999."""
    try:
        return format_time(GoTime(ns)) if ns else None
    except UsageError:
        return None


def json_line(value: Mapping[str, Any]) -> str:
    """One object on one line, in ASCII."""
    return json.dumps(value, separators=(",", ":"))


def damage_json(file: str, damage: Damage) -> dict[str, Any]:
    """A damaged range as a JSON object."""
    return {
        "file": file,
        "offset": damage.offset,
        "size": damage.size,
        "reason": damage.reason,
    }


def report_damage(file: str, damage: Damage) -> None:
    """Print a damaged range to stderr."""
    click.echo(
        f"{shown(file)} at {damage.offset}: {shown(damage.reason)} ({damage.size:,} bytes)",
        err=True,
    )


# --- records ----------------------------------------------------------------------------------


def _id(record: Record) -> str | int | None:
    """The id that the format has; None for a number behind a gap of unknown length."""
    if record.id:
        return record.id.hex()
    return record.sequence if record.sequence >= 0 else None


def inflated(record: Record) -> tuple[bytes, Damage | None]:
    """A record's payload, decompressed; as it is stored, with the damage, if that fails."""
    try:
        return content(record), None
    except SegmentCorruptError as exc:
        return record.payload, Damage(record.offset, record.size, exc.reason)


def record_json(file: str, record: Record, payload: bytes | None) -> dict[str, Any]:
    """A record as a JSON object. ``encoding`` is there only if the payload is still encoded."""
    document: dict[str, Any] = {
        "id": _id(record),
        "offset": record.offset,
        "file": file,
        "timestamp": rfc3339(record.timestamp_ns),
        "headers": dict(record.headers),
        "priority": record.priority,
        "expires_at": rfc3339(record.expires_ns),
        "payload": None if payload is None else base64.b64encode(payload).decode("ascii"),
    }
    if record.encoding not in ("", "none") and payload is record.payload:
        document["encoding"] = record.encoding
    return document


def record_row(file: str, record: Record, payload: bytes | None) -> dict[str, str]:
    """A record's cells, by the title of their column."""
    id = _id(record)
    headers = ", ".join(f"{shown(key)}={shown(text)}" for key, text in record.headers.items())
    return {
        "id": "?" if id is None else str(id),
        "offset": str(record.offset),
        "file": shown(file),
        "timestamp": rfc3339(record.timestamp_ns) or "",
        "priority": "" if record.priority is None else str(record.priority),
        "expires": rfc3339(record.expires_ns) or "",
        "headers": headers,
        "payload": "" if payload is None else _beginning(payload),
    }


def _beginning(payload: bytes) -> str:
    prefix = shown(payload[:_PREFIX_BYTES])
    is_cut = len(payload) > _PREFIX_BYTES or len(prefix) > _PREFIX_CHARS
    return f"{len(payload):,} B  {prefix[:_PREFIX_CHARS]}{'…' if is_cut else ''}"


# --- output -----------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of a table. It is as wide as its cells, within its bounds."""

    title: str
    least: int
    most: int
    is_number: bool = False
    may_be_cut: bool = False  # else it is folded


class Rows:
    """A table of any length on stdout, printed a few rows at a time. A context manager."""

    def __init__(self, columns: Sequence[Column], bar: Bar) -> None:
        self._columns = columns
        self._bar = bar
        self._widths = [0] * len(columns)
        self._waiting: list[list[str]] = []
        self._has_header = False

    def add(self, row: Mapping[str, str]) -> None:
        """Add a row: cells by title, escaped already."""
        self._waiting.append([row[column.title] for column in self._columns])
        if len(self._waiting) >= _ROWS:
            self._set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._waiting and not isinstance(exc, BrokenPipeError):
            self._set()

    def _set(self) -> None:
        self._bar.give_way()
        stdout = sys.stdout
        width = self._fit(shutil.get_terminal_size().columns if stdout.isatty() else PIPE_COLUMNS)
        if not self._has_header:
            self._waiting.insert(0, [column.title for column in self._columns])
            self._has_header = True
        for row in self._waiting:
            stdout.write(self._line(row) or self._folded(row, width))
        self._waiting.clear()

    def _line(self, row: list[str]) -> str:
        """A row that fits on one line, made by hand: a table of rich takes 100 times as long."""
        cells = []
        for column, text, size in zip(self._columns, row, self._widths, strict=True):
            spare = size - cell_len(text)
            if spare < 0 and not column.may_be_cut:
                return ""
            if spare < 0:
                text = set_cell_size(text, size - 1) + "…"
            pad = " " * spare
            cells.append(pad + text if column.is_number else text + pad)
        return (" " * _GAP).join(cells).rstrip() + "\n"

    def _folded(self, row: list[str], width: int) -> str:
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=False)
        for column, size in zip(self._columns, self._widths, strict=True):
            table.add_column(
                width=size,
                justify="right" if column.is_number else "left",
                overflow="ellipsis" if column.may_be_cut else "fold",
                no_wrap=column.may_be_cut,
            )
        table.add_row(*map(Text, row))
        console = Console(width=width, highlight=False, markup=False, emoji=False)
        with console.capture() as capture:  # rich would end the process on a closed pipe
            console.print(table)
        return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())

    def _fit(self, width: int) -> int:
        """Widen the columns for these rows. Returns the width of the table."""
        for i, column in enumerate(self._columns):
            longest = max(cell_len(row[i]) for row in self._waiting)
            least = max(column.least, len(column.title), self._widths[i])
            self._widths[i] = max(least, min(longest, column.most))
        whole = sum(self._widths) + _GAP * len(self._widths)
        widths = self._widths
        for i in sorted(range(len(widths)), key=widths.__getitem__, reverse=True):
            if self._columns[i].may_be_cut and whole > width:
                cut = min(whole - width, widths[i] - self._columns[i].least)
                widths[i], whole = widths[i] - cut, whole - cut
        return whole  # where that is still too much, the terminal wraps whole lines


class Bar:
    """A progress bar on stderr, if that is a terminal: at once for much data, else after a second.

    Use it as a context manager.
    """

    def __init__(self, what: str, total_bytes: int) -> None:
        self._is_wanted = sys.stderr.isatty()
        self._file = ""
        self._before = self._end = self._shown = 0
        self._step = max(1, total_bytes // 200)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._progress.add_task(what, total=total_bytes)
        self._is_much = total_bytes > _BAR_BYTES
        self._timer = threading.Timer(_BAR_S, self._progress.start)
        self._timer.daemon = True

    def at(self, file: str, offset: int) -> None:
        """Note that all bytes before ``offset`` of ``file``, and all earlier files, are done."""
        if file != self._file:
            self._file, self._before = file, self._before + self._end
            self._end = 0
        self._end = max(self._end, offset)
        done = self._before + self._end
        if self._is_wanted and done >= self._shown + self._step:
            self._shown = done
            self._progress.update(self._task, completed=done)

    def give_way(self) -> None:
        """Remove the bar if rows are about to be printed to the same terminal."""
        if sys.stdout.isatty():
            self.close()

    def close(self) -> None:
        """Remove the bar. Idempotent."""
        if self._is_wanted:
            self._is_wanted = False
            if self._timer.is_alive():
                self._timer.cancel()
                self._timer.join()
            self._progress.stop()

    def __enter__(self) -> Self:
        if self._is_wanted:
            (self._progress if self._is_much else self._timer).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
