"""The text of a failed call for people: why, how far it came, and how it goes on."""

from __future__ import annotations

from ...errors import CommitUnknownError, LodeqError

__all__ = ["failure_text"]


def failure_text(error: LodeqError) -> str:
    """The words of an error; of a call that failed in the middle also what it had done."""
    if not error.done:
        return str(error)
    some = "1 task was" if error.done == 1 else f"{error.done:,} tasks were"
    more = ", and perhaps more" if isinstance(error, CommitUnknownError) else ""
    return f"{error}; {some} changed before that{more}: do the same again for the rest"
