"""``lodeq worker --reload``: a worker in a child, started anew when a source file changes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

__all__ = ["Sources", "supervise"]

LOOK_S: Final = 0.5
KILL_S: Final = 30.0  # a child that does not stop by then is killed
_MAIN: Final = "from lodeq.service.cli.entry import main; main()"
_NOT_OURS: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
log = logging.getLogger("lodeq.worker")


class Sources:
    """The Python files below a folder, but for hidden ones and environments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def _look(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for folder, below, names in os.walk(self._folder):
            below[:] = [name for name in below if name[:1] != "." and name not in _NOT_OURS]
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    try:
                        status = os.stat(path)
                    except OSError:  # it has just gone
                        continue
                    found[path] = status.st_mtime_ns, status.st_size
        return found

    def changed(self) -> str | None:
        """Return a file that is new, other or gone since the last call; None if none is."""
        before, self._seen = self._seen, self._look()
        return min((path for path, _ in self._seen.items() ^ before.items()), default=None)


def supervise(arguments: Sequence[str], folder: Path) -> int:
    """Run ``lodeq`` with these arguments until it, or we, are signalled; return its exit status.

    A child that fails by itself, because of a typo say, waits for the next change.

    Args:
        arguments: of the command line, without ``--reload``.
        folder: whose sources are watched.
    """
    sources, pause = Sources(folder), Event()
    with _signals() as received:
        while True:
            child = subprocess.Popen([sys.executable, "-c", _MAIN, *arguments])
            try:
                status = _watch(child, sources, received)
                if status == 0 or received:
                    return status or 0
                if status is not None:
                    log.error(
                        "the worker ended with status %d; it starts again when a file changes",
                        status,
                        extra={"event": "worker_waits"},
                    )
                    while sources.changed() is None:
                        if received:
                            return status
                        pause.wait(LOOK_S)
            finally:
                _stop(child)


def _watch(child: subprocess.Popen[bytes], sources: Sources, received: list[int]) -> int | None:
    """Return the status of a child that has ended; None if it is to start again."""
    while True:
        try:
            return child.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            pass
        if received:
            return _stop(child)
        path = sources.changed()
        if path is not None:
            log.info("%s has changed: the worker starts again", path, extra={"event": "reloaded"})
            _stop(child)
            return None


def _stop(child: subprocess.Popen[bytes]) -> int:
    if child.poll() is None:
        child.terminate()
    try:
        return child.wait(KILL_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Note SIGTERM and SIGINT, which the child gets from us, or from the terminal as well."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: received.append(got))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
