"""Report of a job: a frozen dataclass, printed as text or as JSON.

A job's report is a subclass of ``Report`` with its own fields: numbers, texts, and tables (tuples
of named tuples). Both forms of output follow from the fields.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Check", "Report", "equal", "to_json", "to_text"]


class Check(NamedTuple):
    """A check that a job made after its work."""

    name: str
    is_ok: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """Fields that every job's report has.

    ``seconds``: duration. ``checks``: of the job's own result; if one fails, the exit code is 1 and
    nothing that depends on it is done. ``notes``: what to know or to do next.
    """

    job: str
    store: str
    snapshot: str | None = None
    seconds: float = 0.0
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether all checks passed."""
        return all(check.is_ok for check in self.checks)


def equal(name: str, **counts: int) -> Check:
    """Check that all counts are the same number."""
    detail = ", ".join(f"{what} {count:,}" for what, count in counts.items())
    return Check(name, len(set(counts.values())) == 1, detail)


def to_json(report: Report) -> str:
    """Return one JSON object with the report's fields and ``ok``; tables are lists of objects."""
    fields = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    return json.dumps(_plain({"ok": report.is_ok, **fields}), indent=2)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value


def to_text(report: Report) -> str:
    """Return text for people: a line for each number, then tables, checks and notes."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    tables = []
    fields = [f.name for f in dataclasses.fields(report) if f.name not in ("checks", "notes")]
    width = max(map(len, fields))
    for name in fields:
        value = getattr(report, name)
        if isinstance(value, tuple | Mapping):
            if value:
                tables.append((name, value))
        elif value is not None:
            yield f"{name.replace('_', ' '):{width}}  {_shown(value)}"
    for name, value in tables:
        yield ""
        yield f"{name.replace('_', ' ')}:"
        yield from _table(value)
    if report.checks:
        yield ""
        for check in report.checks:
            yield f"{'ok    ' if check.is_ok else 'FAILED'}  {check.name}: {check.detail}"
    yield from report.notes


def _table(value: Any) -> Iterator[str]:
    rows: list[tuple[str, ...]]
    if isinstance(value, Mapping):
        rows = [(str(key), _shown(one)) for key, one in value.items()]
    elif hasattr(value[0], "_fields"):
        rows = [tuple(name.replace("_", " ") for name in value[0]._fields)]
        rows += [tuple(_shown(cell) for cell in row) for row in value]
    else:
        rows = [(_shown(one),) for one in value]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)).rstrip()


def _shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
