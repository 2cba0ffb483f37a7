"""The fixed fields of a record, named once: formats, offsets and columns are all made from that."""

from __future__ import annotations

import struct
from collections.abc import Mapping

__all__ = ["FixedFields"]


class FixedFields:
    """Fields that stand one behind the other, little-endian, without gaps.

    Args:
        codes: the code of each field as ``struct`` has it (``B``, ``H``, ``I``, ``i``, ``Q``,
            ``q``, ``16s``; ``x`` for bytes that mean nothing), by its name, in their order.

    Attributes:
        codes: as given.
        at: where each begins, in bytes.
        whole: all of them.
    """

    def __init__(self, **codes: str) -> None:
        self.codes: Mapping[str, str] = codes
        self.at: dict[str, int] = {}
        end = 0
        for name, code in codes.items():
            self.at[name] = end
            end += struct.calcsize(f"<{code}")
        self.whole = struct.Struct(f"<{''.join(codes.values())}")

    def part(self, first: str, last: str) -> str:
        """The codes of the fields from one to another."""
        names = list(self.codes)
        chosen = names[names.index(first) : names.index(last) + 1]
        return "".join(self.codes[name] for name in chosen)

    def rest(self, first: str) -> str:
        """The codes of the fields from one to the last."""
        return self.part(first, list(self.codes)[-1])

    def zeros(self, after: str) -> str:
        """The code of all fields behind one, as bytes that a packer leaves at zero."""
        size = struct.calcsize(f"<{self.rest(after)}") - struct.calcsize(f"<{self.codes[after]}")
        return f"{size}x" if size else ""

    def picked(self, *spans: str) -> struct.Struct:
        """Only these, in their order.

        Args:
            spans: each the name of a field, or ``first:last`` for all that stands there, as bytes.
        """
        form, end = "<", 0
        for span in spans:
            first, _, last = span.partition(":")
            code = self.codes[first]
            if last:
                code = f"{struct.calcsize(f'<{self.part(first, last)}')}s"
            gap = self.at[first] - end
            form += f"{gap}x{code}" if gap else code
            end = self.at[first] + struct.calcsize(f"<{code}")
        return struct.Struct(form)
