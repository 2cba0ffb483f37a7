"""The shape of one annotation."""

from __future__ import annotations

from collections.abc import Iterable
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

    def unstorable(self, seen: set[int], /) -> tuple[str, str] | None:
        """Return a class that msgpack does not carry: its place below this, and its name; or None.

        Args:
            seen: ids of shapes that were asked already, as types may refer to themselves.
        """
        if id(self) in seen:
            return None
        seen.add(id(self))
        for step, part in self.parts():
            found = part.unstorable(seen)
            if found is not None:
                return step + found[0], found[1]
        return None

    def parts(self) -> Iterable[tuple[str, Shape]]:
        """Return the shapes of what its values hold, each with its place."""
        return ()

    def schema(self, depth: int, /) -> Any:
        """Return the schema of what ``decode`` accepts, for ``repository/model/calls/schemas.py``.

        It may accept more, never less. ``depth``: levels of containers that it may have.
        """
        del depth
        return "any"
