"""How many tasks a call has changed so far: what is returned, and what its error says."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ...errors import LodeqError

__all__ = ["Tally"]


class Tally:
    """Tasks that one call has changed for certain: their commits are acknowledged.

    A context manager: an error of ours that leaves it carries the number as ``done``.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if isinstance(exc, LodeqError):
            self.take(exc)
            exc.done = self.count or None

    def take(self, error: LodeqError) -> None:
        """Count what was done before an error, instead of it."""
        self.count += error.done or 0
        error.done = None
