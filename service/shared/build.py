"""Which build of the hot path runs: the compiled one of a binary wheel, or the sources."""

from typing import Final

from ... import COMPILED

__all__ = ["BUILD"]

BUILD: Final = "compiled" if COMPILED else "interpreted"
