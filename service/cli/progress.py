"""A progress bar of a long command on stderr, if that is a terminal, after a second."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Steps"]

_SOON_S: Final = 1.0


class Steps:
    """A bar of ``total`` steps; None: it only shows that work goes on. A context manager."""

    def __init__(self, what: str, total: int | None) -> None:
        self._is_wanted = sys.stderr.isatty()
        columns = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
        if total is not None:
            columns.insert(2, MofNCompleteColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(what, total=total)
        self._timer = threading.Timer(_SOON_S, self._progress.start)
        self._timer.daemon = True

    def step(self, what: str | None = None, n: int = 1) -> None:
        """Note that a step is done, or ``n``; ``what`` names the next one."""
        self._progress.update(self._task, advance=n, description=what)

    def __enter__(self) -> Self:
        if self._is_wanted:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._is_wanted:
            self._timer.cancel()
            self._timer.join()
            self._progress.stop()
