"""The shape of one annotation."""

from __future__ import annotations

from typing import Any

__all__ = ["Shape"]


class Shape:
    """One annotation: how its values are stored, and read again. This one lets everything pass.

    ``wire`` names the kinds of plain values that it is stored as: two members of a union that
    share none cannot be mixed up.
    """

    text = "Any"
    wire: frozenset[str] = frozenset({"any"})
    is_free = True  # every value passes as it is

    def encode(self, value: Any, /) -> Any:
        """Return the plain value that is stored; raise ``Mismatch`` if it does not fit."""
        return value

    def decode(self, stored: Any, /) -> Any:
        """Return the value of a stored one; raise ``Mismatch`` if it does not fit."""
        return stored

    def schema(self, depth: int, /) -> Any:
        """Return the schema of what ``decode`` accepts, for ``repository/model/calls/schemas.py``.

        It may accept more, never less. ``depth``: levels of containers that it may have.
        """
        del depth
        return "any"
