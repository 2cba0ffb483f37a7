"""Tables of any length on stdout, and a progress bar on stderr."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from .output import PIPE_COLUMNS, Column

__all__ = ["Bar", "Rows"]

_ROWS: Final = 200  # what a table holds back, to be set together
_GAP: Final = 2
_BAR_S: Final = 1.0
_BAR_BYTES: Final = 64 << 20


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
            line = self._line(row, is_whole=not stdout.isatty())
            stdout.write(line or self._folded(row, width))
        self._waiting.clear()

    def _line(self, row: list[str], *, is_whole: bool) -> str:
        """A row that fits on one line, made by hand: a table of rich takes 100 times as long.

        Args:
            row: its cells.
            is_whole: one line in any case, for whoever reads lines: what is too long stands out.
        """
        cells = []
        for column, text, size in zip(self._columns, row, self._widths, strict=True):
            spare = size - cell_len(text)
            if spare < 0 and not column.may_be_cut and not is_whole:
                return ""
            if spare < 0 and column.may_be_cut:
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
