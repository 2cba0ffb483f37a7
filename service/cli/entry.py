"""Entry point of the ``lodeq`` script. It runs without the extra, to say that it is missing."""

from __future__ import annotations

import io
import os
import signal
import sys
from importlib.util import find_spec
from types import FrameType

from ..shared.child_signals import leave_from_now_on
from .output import CheckedOutput, ClosedOutput

__all__ = ["main"]

_EXTRA = frozenset({"click", "rich"})
_INTERRUPTED = 130


def main() -> int:
    """Run the command line. Returns 2 without its extra; else it ends by ``SystemExit``.

    SIGTERM ends a command as an interrupt does, so that it cleans up; then it kills this process.
    """
    received: list[int] = []
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: _interrupt(received, number, frame))
        leave_from_now_on(signal.SIGTERM)  # an app may start processes while it is imported
    try:
        return _main()
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        if received:
            _die_of(received[0])


def _main() -> int:
    _fill_streams()
    try:
        from .app import lodeq  # noqa: PLC0415 - what it needs may not be installed

        is_whole = find_spec("rich.console") is not None  # commands import it when they print
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] not in _EXTRA:
            raise
        is_whole = False
    if not is_whole:
        sys.stderr.write('the command line needs an extra: pip install "lodeq[cli]"\n')
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper) and not isinstance(sys.stdout, ClosedOutput):
        sys.stdout = CheckedOutput(
            sys.stdout.buffer,
            encoding=sys.stdout.encoding,
            line_buffering=sys.stdout.line_buffering,
            write_through=sys.stdout.write_through,
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack a character
    lodeq()
    return 0


def _fill_streams() -> None:
    """Open /dev/null for each of 0, 1 and 2 that is closed: no file of a store may get its number.

    RocksDB writes to 2 whatever that is. ``sys.stdin`` stays None: a command that reads it says so.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    while null <= 2:
        null = os.dup(null)
    os.close(null)
    if sys.stdout is None:
        sys.stdout = ClosedOutput(os.fdopen(1, "wb", closefd=False), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _interrupt(received: list[int], number: int, frame: FrameType | None) -> None:
    received.append(number)
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):  # that of a running event loop lets it come to its end
        handler(signal.SIGINT, frame)
    else:  # a shell starts what is in the background with interrupts ignored
        raise KeyboardInterrupt


def _die_of(number: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
