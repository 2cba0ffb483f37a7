"""The traceback that the log shows of a failed run: the user's frames, without those around them.

Every run has the same frames of the worker above the function. The exception itself keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Final, TypeAlias

from ....errors import LodeqError
from .control import Control

__all__ = ["ExcInfo", "shown_traceback"]

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

_OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def shown_traceback(error: BaseException) -> ExcInfo | None:
    """What a log record takes as ``exc_info``; None where the message says all there is.

    Frames of the worker before the last frame of the user's go; what lies behind that one stays:
    a call into lodeq that failed. An error without any frame of the user's is shown whole, but for
    one of lodeq's own errors, which is addressed to the user in words.
    """
    if isinstance(error, Control):
        return None
    frames = list(_each(error.__traceback__))
    theirs = [n for n, one in enumerate(frames) if not _is_ours(one)]
    if not theirs:
        is_said = isinstance(error, LodeqError) and error.__cause__ is None
        return None if is_said else (type(error), error, error.__traceback__)
    shown: TracebackType | None = None
    for n, one in reversed(list(enumerate(frames))):
        if n > theirs[-1] or not _is_ours(one):
            shown = TracebackType(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return type(error), error, shown


def _each(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _is_ours(tb: TracebackType) -> bool:
    return tb.tb_frame.f_code.co_filename.startswith(_OURS)
