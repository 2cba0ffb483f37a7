"""Records of log files and segments, and their damage, as rows of a table and as JSON."""

from __future__ import annotations

import base64
from typing import Any, Final

import click

from ...errors import SegmentCorruptError, UsageError
from ...segments.formats.ledgerq.state import GoTime, format_time
from ...segments.formats.registry import foreign_format
from ...segments.item import Damage, Record
from .output import shown

__all__ = ["damage_json", "inflated", "record_json", "record_row", "report_damage", "rfc3339"]

_PREFIX_BYTES: Final = 40
_PREFIX_CHARS: Final = 48


def rfc3339(ns: int) -> str | None:
    """In UTC; None for 0, which stands for no time, and beyond the year 9999."""
    try:
        return format_time(GoTime(ns)) if ns else None
    except UsageError:
        return None


def damage_json(file: str, damage: Damage) -> dict[str, Any]:
    """A damaged range as a JSON object."""
    return {
        "file": file,
        "offset": damage.offset,
        "size": damage.size,
        "reason": damage.reason,
    }


def report_damage(file: str, damage: Damage) -> None:
    """Print a damaged range to stderr."""
    click.echo(
        f"{shown(file)} at {damage.offset}: {shown(damage.reason)} ({damage.size:,} bytes)",
        err=True,
    )


def _id(record: Record) -> str | int | None:
    """The id that the format has; None for a number behind a gap of unknown length."""
    if record.id:
        return record.id.hex()
    return record.sequence if record.sequence >= 0 else None


def inflated(record: Record, format: str) -> tuple[bytes, Damage | None]:
    """A record's payload, decompressed; as it is stored, with the damage, if that fails."""
    foreign = foreign_format(format)
    if foreign is None:
        return record.payload, None
    try:
        return foreign.content(record), None
    except SegmentCorruptError as exc:
        return record.payload, Damage(record.offset, record.size, exc.reason)


def record_json(file: str, record: Record, payload: bytes | None) -> dict[str, Any]:
    """A record as a JSON object. ``encoding`` is there only if the payload is still encoded."""
    document: dict[str, Any] = {
        "id": _id(record),
        "offset": record.offset,
        "file": file,
        "timestamp": rfc3339(record.timestamp_ns),
        "headers": dict(record.headers),
        "priority": record.priority,
        "expires_at": rfc3339(record.expires_ns),
        "payload": None if payload is None else base64.b64encode(payload).decode("ascii"),
    }
    if record.encoding not in ("", "none") and payload is record.payload:
        document["encoding"] = record.encoding
    return document


def record_row(file: str, record: Record, payload: bytes | None) -> dict[str, str]:
    """A record's cells, by the title of their column."""
    id = _id(record)
    headers = ", ".join(f"{shown(key)}={shown(text)}" for key, text in record.headers.items())
    return {
        "id": "?" if id is None else str(id),
        "offset": str(record.offset),
        "file": shown(file),
        "timestamp": rfc3339(record.timestamp_ns) or "",
        "priority": "" if record.priority is None else str(record.priority),
        "expires": rfc3339(record.expires_ns) or "",
        "headers": headers,
        "payload": "" if payload is None else _beginning(payload),
    }


def _beginning(payload: bytes) -> str:
    prefix = shown(payload[:_PREFIX_BYTES])
    is_cut = len(payload) > _PREFIX_BYTES or len(prefix) > _PREFIX_CHARS
    return f"{len(payload):,} B  {prefix[:_PREFIX_CHARS]}{'…' if is_cut else ''}"
