"""Patterns of a text: parts that ``*`` divides. A module of its own: clients import it, too."""

from __future__ import annotations

__all__ = ["has_parts"]


def has_parts(pattern: str, text: str) -> bool:
    """Whether a text has the parts of a pattern that ``*`` divides, in their order."""
    at = 0
    for part in pattern.split("*"):
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True
