"""Options of ``format("lodeq")``, checked; errors suggest the right name."""

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
_SPARKS: Final = ("checkpointlocation",)  # passed on by Spark itself
_BY_LOWER: Final = {name.lower(): name for name in OPTIONS}


class Options:
    """The options of one reader or writer. Names ignore case, as in Spark; docs use camelCase.

    Raises:
        UsageError: an option is unknown.
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
        """Return the text of an option; an empty one counts as missing."""
        return self._given.get(name) or default

    def needed(self, name: str, why: str) -> str:
        """Return the text of a required option.

        Raises:
            UsageError: it is missing, or the address of a cluster.
        """
        value = self._given.get(name)
        if not value:
            raise UsageError(f"format lodeq needs the option {name!r}: {why}")
        if name == "path" and value.lower().startswith("lodeq:/"):
            raise UsageError(
                f"{value!r} is a cluster, whose shards lie on its nodes: take a snapshot at one of "
                "them (lodeq snapshot NODE), and give its folder: docs/spark-cluster.md"
            )
        return value

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """Return an option that must be one of ``choices``.

        Raises:
            UsageError: it is none of them.
        """
        value = self._given.get(name, default)
        allowed = list(choices)
        if value not in allowed:
            raise UsageError(f"option {name}={value!r} is not one of {', '.join(allowed)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return an option that must be ``true`` or ``false``.

        Raises:
            UsageError: it is neither.
        """
        value = self._given.get(name, str(default)).lower()
        if value not in ("true", "false"):
            raise UsageError(f"option {name}={value!r} must be true or false")
        return value == "true"

    def count(self, name: str, default: int | None = None) -> int | None:
        """Return an option that must be a whole number above 0.

        Raises:
            UsageError: it is not.
        """
        value = self._given.get(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdigit() or not int(value):
            raise UsageError(f"option {name}={value!r} must be a whole number above 0")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """Return an option that must be a number of seconds; its range is not checked.

        Raises:
            UsageError: it is not a number.
        """
        value = self._given.get(name)
        try:
            return default if value is None else float(value)
        except ValueError:
            raise UsageError(f"option {name}={value!r} must be a number of seconds") from None

    def names(self, name: str) -> list[str] | None:
        """Return a list of names, separated by commas."""
        value = self._given.get(name)
        return [part.strip() for part in value.split(",") if part.strip()] if value else None
