"""Children that a task function forks itself: they end where the function does.

A child has a copy of its worker. Left to go on, it would take bytes from the socket by which
threads and signals wake the event loop of its parent, which would sleep on; and its copy of a
thread would wait for a function to run that nobody sends it.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ChildEnds", "end_child"]


class ChildEnds:
    """``with ChildEnds():`` around a function: its parent goes on behind the block, no child."""

    __slots__ = ("_pid",)

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        if os.getpid() != self._pid:
            end_child(error)


def end_child(error: BaseException | None) -> None:
    """End this process as Python ends one: with what ``sys.exit`` said, or a traceback and 1."""
    code: object = 0
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
    elif error is not None:
        code = 1
        traceback.print_exception(error)
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a stream of the parent's, perhaps closed
            stream.flush()
    os._exit(code & 0xFF)
