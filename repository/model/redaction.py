"""Redaction: a user's hook that takes out of texts what must not be stored."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import UsageError

__all__ = ["Redact", "Redaction", "redaction_of"]

Redact = Callable[[str], str]


class Redaction:
    """A hook, and how often it failed. A text for which it fails is not stored at all.

    It fails where it raises, or returns anything but text that can be written as UTF-8.
    """

    __slots__ = ("_hook", "failures")

    def __init__(self, hook: Redact) -> None:
        self._hook = hook
        self.failures = 0

    def __call__(self, text: str) -> str:
        """The part of ``text`` that may be stored; empty where the hook failed."""
        if not text:
            return text
        try:
            found = self._hook(text)
            found.encode()
        except Exception:  # noqa: BLE001 - it is the user's: whatever it raises, the call goes on
            self.failures += 1
            return ""
        if not isinstance(found, str):
            self.failures += 1
            return ""
        return str(found)


def redaction_of(hook: Redact | None) -> Redaction | None:
    """The hook of an ``App``, ``open`` or ``connect``, checked."""
    if hook is None:
        return None
    if not callable(hook):
        raise UsageError(
            "redact must be a function that takes a text and returns it without what must not be "
            f"stored, not {type(hook).__name__}"
        )
    return Redaction(hook)
