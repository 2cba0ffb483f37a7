"""Durations as people write them: ``90``, ``1.5s``, ``5m``, ``2h``, ``7d``."""

from __future__ import annotations

import re
from typing import Final

from ...errors import UsageError

__all__ = ["seconds_of"]

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d|)", re.ASCII)


def seconds_of(text: str) -> float:
    """The seconds of a duration; without a unit it is in seconds.

    Raises:
        UsageError: it is none.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError(f"expected a duration like 90, 1.5s, 5m, 2h or 7d, got {text!r:.80}")
    return float(found[1]) * _UNITS[found[2]]
