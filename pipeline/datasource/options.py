"""Options of ``format("lodeq")``: read, checked, with an error that names the ones there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from ...errors import UsageError

__all__ = ["OPTIONS", "Options"]

OPTIONS: Final = (
    "path",
    "table",
    "columns",
    "snapshot",
    "pushdown",
    "batchRows",
    "splitBytes",
    "journal",
    "startingOffset",
    "maxRowsPerTrigger",
    "rowsPerPartition",
    "tailer",
    "failOnDataLoss",
    "commitId",
    "appId",
    "onConflict",
    "runBytes",
    "queue",
    "tenant",
    "maxAttempts",
    "retention",
    "deadRetention",
)
_SPARKS: Final = ("checkpointlocation",)  # what Spark hands on of its own
_BY_LOWER: Final = {name.lower(): name for name in OPTIONS}


class Options:
    """What was given. Names are Spark's way: any case, documented in camelCase.

    Raises:
        UsageError: one of them is unknown.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() in _SPARKS:
                continue
            known = _BY_LOWER.get(name.lower())
            if known is None:
                close = difflib.get_close_matches(name.lower(), _BY_LOWER, 1)
                hint = f"did you mean {_BY_LOWER[close[0]]!r}?" if close else "docs/pipeline.md"
                raise UsageError(f"format lodeq has no option {name!r}: {hint}")
            self._given[known] = value

    def text(self, name: str, default: str | None = None) -> str | None:
        """As it is; an empty one is none."""
        return self._given.get(name) or default

    def needed(self, name: str, why: str) -> str:
        """As ``text``.

        Raises:
            UsageError: it is missing.
        """
        value = self._given.get(name)
        if not value:
            raise UsageError(f"format lodeq needs the option {name!r}: {why}")
        return value

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of ``choices``.

        Raises:
            UsageError: it is none of them.
        """
        value = self._given.get(name, default)
        allowed = list(choices)
        if value not in allowed:
            raise UsageError(f"option {name}={value!r} is not one of {', '.join(allowed)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """``true`` or ``false``.

        Raises:
            UsageError: it is neither.
        """
        value = self._given.get(name, str(default)).lower()
        if value not in ("true", "false"):
            raise UsageError(f"option {name}={value!r} is neither true nor false")
        return value == "true"

    def count(self, name: str, default: int | None = None) -> int | None:
        """A whole number above 0.

        Raises:
            UsageError: it is none.
        """
        value = self._given.get(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdigit() or not int(value):
            raise UsageError(f"option {name}={value!r} is no whole number above 0")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """A number; whether it makes sense as a time is for others to say.

        Raises:
            UsageError: it is none.
        """
        value = self._given.get(name)
        try:
            return default if value is None else float(value)
        except ValueError:
            raise UsageError(f"option {name}={value!r} is no number of seconds") from None

    def names(self, name: str) -> list[str] | None:
        """Several, with commas between them."""
        value = self._given.get(name)
        return [part.strip() for part in value.split(",") if part.strip()] if value else None
