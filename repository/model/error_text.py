"""Texts of exceptions that others raise: their ``__repr__`` is anybody's code, and may raise."""

from __future__ import annotations

__all__ = ["repr_of"]


def repr_of(error: BaseException) -> str:
    """Return ``repr(error)``; where that raises, the name of its type."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - it may be anything
        return type(error).__name__
