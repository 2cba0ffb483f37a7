"""Values of the command line: durations, payloads, headers, a lease."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

import click

from ...engine.runtime.task_id import TaskId
from ...errors import UsageError
from ...repository.model.json_values import loads
from ..shared.duration_text import seconds_of

__all__ = [
    "INPUT_BYTES_MAX",
    "TOO_LONG",
    "Grant",
    "StateChoice",
    "duration",
    "grant_of",
    "grant_text",
    "headers_of",
    "parsed",
    "payload_of",
    "stdin_bytes",
]

# What is read whole: a line, or JSON. More is refused before it is read.
INPUT_BYTES_MAX: Final = 16 << 20
TOO_LONG: Final = f"more than {INPUT_BYTES_MAX >> 20} MiB: a larger payload comes by --file, raw"
# States as other systems call them.
_OTHER_WORDS: Final[Mapping[str, str]] = {
    "failed": "dead",
    "discarded": "dead",
    "pending": "ready",
    "queued": "ready",
    "available": "ready",
    "enqueued": "ready",
    "scheduled": "delayed",
    "retrying": "delayed",
    "retryable": "delayed",
    "running": "leased",
    "active": "leased",
    "executing": "leased",
    "started": "leased",
    "done": "completed",
    "succeeded": "completed",
    "finished": "completed",
}
_GRANT: Final = re.compile(r"([0-9a-fA-F-]{32,36}):(\d{1,20}):([0-9a-fA-F]{32})")


class StateChoice(click.Choice[str]):
    """One of the states of a task; the words that others use for them lead to ours."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ``click.ParamType``."""
        ours = _OTHER_WORDS.get(str(value).lower())
        if value in self.choices or ours not in self.choices:
            return super().convert(value, param, ctx)
        return self.fail(f"{value!r} is not a state here: {value} tasks are {ours}", param, ctx)


def duration(value: str | float) -> float:
    """Seconds from ``90``, ``1.5s``, ``5m``, ``2h`` or ``7d``; the type of an option."""
    if isinstance(value, int | float):
        return float(value)
    try:
        return seconds_of(value)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def payload_of(text: str | None, *, is_json: bool) -> Any:
    """A payload, text or JSON: the argument, or stdin if that is ``-`` or missing."""
    # What stands on the command line need not be UTF-8: its bytes are as they were typed.
    raw = _whole_stdin() if text in (None, "-") else os.fsencode(text or "")
    return parsed(raw) if is_json else raw


def _whole_stdin() -> bytes:
    raw = stdin_bytes().read(INPUT_BYTES_MAX + 1)
    if len(raw) > INPUT_BYTES_MAX:
        raise UsageError(TOO_LONG)
    return raw


def parsed(raw: bytes) -> Any:
    """The value of a JSON payload."""
    try:
        return loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"the payload is not JSON ({exc}): leave --parse out") from exc


def stdin_bytes() -> BinaryIO:
    """Stdin as bytes. A closed stdin is refused: it is not an empty payload."""
    if sys.stdin is None:
        raise UsageError("stdin is closed: there is nothing to read")
    return sys.stdin.buffer


def headers_of(pairs: Sequence[str]) -> dict[str, str] | None:
    """Headers from the texts of ``--header NAME=VALUE``; None if there are none."""
    headers = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"expected a header like NAME=VALUE, got {pair!r}")
        headers[name] = text
    return headers or None


class Grant(NamedTuple):
    """A lease as its holder shows it: all that ``complete`` needs."""

    task_id: TaskId
    epoch: int
    token: bytes


def grant_text(grant: Grant) -> str:
    """A lease as text, ``ID:EPOCH:TOKEN``."""
    return f"{grant.task_id}:{grant.epoch}:{grant.token.hex()}"


def grant_of(text: str) -> Grant:
    """A lease from its text."""
    found = _GRANT.fullmatch(text)
    if found is None:
        raise UsageError(
            f"expected a lease as 'lodeq claim' prints it (ID:EPOCH:TOKEN), got {text!r}"
        )
    return Grant(TaskId(found[1]), int(found[2]), bytes.fromhex(found[3]))
