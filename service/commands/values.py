"""Values of the command line: durations, payloads, headers, a lease."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click

from ...engine.task_id import TaskId
from ...errors import UsageError

__all__ = ["Grant", "duration", "grant_of", "grant_text", "headers_of", "payload_of"]

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")
_GRANT: Final = re.compile(r"([0-9a-fA-F-]{32,36}):(\d{1,20}):([0-9a-fA-F]{32})")


def duration(value: str | float) -> float:
    """Seconds, out of ``90``, ``1.5s``, ``5m``, ``2h`` or ``7d``; the type of an option."""
    if isinstance(value, int | float):
        return float(value)
    found = _DURATION.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no duration: 90, 1.5s, 5m, 2h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def payload_of(text: str | None, *, is_json: bool) -> Any:
    """A payload: the argument, or stdin where it is ``-`` or missing; as text or as JSON."""
    raw = sys.stdin.buffer.read() if text in (None, "-") else (text or "").encode()
    if not is_json:
        return raw
    try:
        return json.loads(raw)
    except ValueError as exc:
        raise UsageError(f"the payload is not JSON ({exc}): leave --parse out") from exc


def headers_of(pairs: Sequence[str]) -> dict[str, str] | None:
    """Of ``--header NAME=VALUE``."""
    headers = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"a header is NAME=VALUE, not {pair!r}")
        headers[name] = text
    return headers or None


class Grant(NamedTuple):
    """What the holder of a lease shows: it is all that ``complete`` needs."""

    task_id: TaskId
    epoch: int
    token: bytes


def grant_text(grant: Grant) -> str:
    """``ID:EPOCH:TOKEN``."""
    return f"{grant.task_id}:{grant.epoch}:{grant.token.hex()}"


def grant_of(text: str) -> Grant:
    """The inverse."""
    found = _GRANT.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no lease: give what 'lodeq claim' has printed (ID:…:…)")
    return Grant(TaskId(found[1]), int(found[2]), bytes.fromhex(found[3]))
