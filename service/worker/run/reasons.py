"""Reasons of failures: the text that is kept of an exception."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Final

__all__ = ["format_error"]

FRAMES: Final = 3  # innermost frames of a traceback that a reason shows
NAMED: Final = 5  # exceptions of a group that a reason names
CAUSES: Final = 3
_HERE: Final = Path(__file__)
_OURS: Final = {  # frames that a reason leaves out
    str(_HERE.with_name(f"{name}.py")) for name in ("loop_guard", "reasons", "task_run", "threads")
}


def format_error(error: BaseException) -> str:
    """Format an exception as the reason of a failure: its text and the innermost frames.

    A group names the exceptions in it; what an exception was caused by follows it.
    """
    lines = [_title(error), *_frames(error)]
    for said, cause in _causes(error):
        lines += [f"{said} {_title(cause)}", *_frames(cause)]
    return "\n".join(lines)


def _title(error: BaseException) -> str:
    text = _text(error)
    if not isinstance(error, BaseExceptionGroup):
        return text
    inside = list(_leaves(error))
    named = [_text(one).partition("\n")[0] + _place(one) for one in inside[:NAMED]]
    if len(inside) > NAMED:
        named.append(f"{len(inside) - NAMED} more")
    return "\n".join([text, *(f"- {one}" for one in named)])


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Go through what groups within groups hold."""
    waiting: list[BaseException] = [group]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(reversed(one.exceptions))
        else:
            yield one


def _place(error: BaseException) -> str:
    frames = _frames(error)
    return f" ({frames[0].strip()})" if frames else ""


def _frames(error: BaseException) -> list[str]:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in _OURS]
    return [
        f"  {PurePath(frame.filename).name}:{frame.lineno} in {frame.name}"
        for frame in reversed(frames[-FRAMES:])
    ]


def _causes(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """Go through what led to an exception, as a traceback does, the nearest first."""
    seen = {id(error)}
    for _ in range(CAUSES):
        if error.__cause__ is not None:
            said, found = "caused by", error.__cause__
        elif error.__context__ is not None and not error.__suppress_context__:
            said, found = "while handling", error.__context__
        else:
            return
        if id(found) in seen:
            return
        seen.add(id(found))
        yield said, found
        error = found
