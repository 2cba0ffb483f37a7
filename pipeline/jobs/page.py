"""The page of ``analytics``: one self-contained HTML file with light and dark colours."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from html import escape
from typing import Any, Final, NamedTuple

from ...engine.files.durable_files import replaced_file
from ...errors import StorageError
from .plots import bars, columns, lines

__all__ = ["Page", "write_page"]

_LANES_MAX: Final = 20  # in a plot; tables have more
Rows = Sequence[Mapping[str, Any]]

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #59636e; --back: #fff; --line: #d5dae0;
  --c0: #2f6fde; --c1: #d1570a; --c2: #1a7f5a; --c3: #8250df; }
@media (prefers-color-scheme: dark) { :root { --text: #e6eaef; --soft: #9aa4af; --back: #14181d;
  --line: #353c44; --c0: #6ea4ff; --c1: #f0985a; --c2: #4cc38a; --c3: #b793f5; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
p { color: var(--soft); } svg { width: 100%; max-width: 45rem; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--soft); }
svg .end { text-anchor: end; } svg .mid { text-anchor: middle; }
.s0 { fill: var(--c0); } .s1 { fill: var(--c1); } .s2 { fill: var(--c2); } .s3 { fill: var(--c3); }
.l0, .l1, .l2, .l3, .grid { fill: none; stroke-width: 1.5; }
.l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); } .l2 { stroke: var(--c2); }
.l3 { stroke: var(--c3); } .grid { stroke: var(--line); stroke-width: 1; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th { color: var(--soft); font-weight: 600; } td.text, th.text { text-align: left; }
"""

_SECTIONS: Final = {
    "lanes": (
        "Queues",
        (
            "Waits are from when a task could be claimed until the lease of its last run; totals "
            "from when it might first run until its end. Seconds."
        ),
    ),
    "throughput": ("Throughput", "Ends by hour, UTC."),
    "sla": ("Late", "Later than agreed, or never completed."),
    "failures": ("Failures", "Why tasks did not complete."),
    "retries": ("Retries", "By how often a task was tried."),
    "runs": ("Every run", "From the lifecycle journal: what retries have cost, exactly."),
    "backlog": ("Backlog", "What had not ended when the snapshot was taken."),
    "shards": ("Shards", "Rows of tasks and of ends, by shard."),
    "projection": (
        "Other shard counts",
        "The fullest shard as a multiple of the mean: 1 is even.",
    ),
    "slots": ("Fullest slots", "A slot is the smallest part that resharding can move."),
}


class Page(NamedTuple):
    """Facts in the head of the page. ``limits``: the SLA's seconds by queue."""

    store: str
    snapshot: str
    made_us: int
    ended: int
    limits: Mapping[str, float]


def write_page(path: str, page: Page, tables: Mapping[str, Rows]) -> None:
    """Write the page to ``path``, replacing it as a whole. Raises ``StorageError``."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with replaced_file(path, mode=0o666, is_durable=False) as file:
            file.writelines(part.encode() for part in _parts(page, tables))
    except OSError as exc:
        raise StorageError(f"{path}: {exc.strerror}") from exc


def _parts(page: Page, tables: Mapping[str, Rows]) -> Iterator[str]:
    name = os.path.basename(page.store)
    made = datetime.fromtimestamp(page.made_us / 1e6, UTC)
    yield (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)}: tasks</title>\n<style>{_STYLE}</style>\n"
        f"<h1>{escape(name)}</h1>\n<p>{page.ended:,} ended tasks as of snapshot "
        f"{escape(page.snapshot)}; made {made:%Y-%m-%d %H:%M} UTC.</p>\n"
    )
    for table, (title, words) in _SECTIONS.items():
        if table not in tables:
            continue
        rows = tables[table]
        yield f'<h2 id="{table}">{escape(title)}</h2>\n<p>{escape(words)}</p>\n'
        if not rows:
            yield "<p>Nothing.</p>\n"
            continue
        if plot := _PLOTS.get(table):
            yield plot(rows) + "\n"
        yield from _table(rows)
    yield "</html>\n"


def _table(rows: Rows) -> Iterator[str]:
    names = list(rows[0])
    kinds = ["text" if isinstance(rows[0][name], str) else "" for name in names]
    heads = "".join(
        f'<th class="{kind}">{escape(name.replace("_", " "))}</th>'
        for name, kind in zip(names, kinds, strict=True)
    )
    yield f'<div class="wide"><table>\n<tr>{heads}</tr>\n'
    for row in rows:
        cells = "".join(
            f'<td class="{kind}">{escape(_cell(row[name]))}</td>'
            for name, kind in zip(names, kinds, strict=True)
        )
        yield f"<tr>{cells}</tr>\n"
    yield "</table></div>\n"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}" if value >= 0.01 or value == 0 else f"{value:.2g}"
    if isinstance(value, datetime | date):
        return f"{value:%Y-%m-%d %H:%M}"
    return str(value)


def _name(row: Mapping[str, Any]) -> str:
    tenant = row.get("tenant")
    return f"{row['queue']} / {tenant}" if tenant else str(row["queue"])


def _lanes(rows: Rows) -> str:
    rows = sorted(rows, key=lambda row: -row["ended"])[:_LANES_MAX]
    names = ("wait_s_p50", "wait_s_p95", "run_s_p50", "run_s_p95")
    series = {name.replace("_s_", " "): [row[name] for row in rows] for name in names}
    return bars([_name(row) for row in rows], series, "seconds waited and run, by queue")


def _throughput(rows: Rows) -> str:
    hours: dict[Any, list[Any]] = defaultdict(lambda: [0, 0, None])
    for row in rows:
        sums = hours[row["hour"]]
        sums[0] += row["completed"]
        sums[1] += row["failed"]
        if row["wait_s_p95"] is not None:
            sums[2] = max(sums[2] or 0, row["wait_s_p95"])
    labels = [f"{hour:%m-%d %H:00}" for hour in sorted(hours)]
    found = [hours[hour] for hour in sorted(hours)]
    ends = {"completed": [one[0] for one in found], "failed": [one[1] for one in found]}
    waits = {"wait p95, worst queue": [one[2] for one in found]}
    return columns(labels, ends, "ends by hour") + lines(labels, waits, "waits by hour")


def _failures(rows: Rows) -> str:
    rows = rows[:_LANES_MAX]
    labels = [f"{row['queue']}: {row['reason'] or row['outcome']}" for row in rows]
    return bars(labels, {"ended": [row["ended"] for row in rows]}, "failures by reason")


def _retries(rows: Rows) -> str:
    sums: dict[int, int] = defaultdict(int)
    for row in rows:
        sums[row["attempts"]] += row["ended"]
    labels = [str(attempts) for attempts in sorted(sums)]
    return columns(labels, {"ended": [sums[int(one)] for one in labels]}, "ends by attempts")


def _shards(rows: Rows) -> str:
    labels = [f"shard {row['shard']}" for row in rows]
    series = {name: [row[name] for row in rows] for name in ("tasks", "ended")}
    return columns(labels, series, "rows by shard")


def _projection(rows: Rows) -> str:
    labels = [f"{row['shards']} shards{' (now)' if row['is_now'] else ''}" for row in rows]
    return bars(labels, {"fullest / mean": [row["fullest"] for row in rows]}, "projected skew")


_PLOTS: Final = {
    "lanes": _lanes,
    "throughput": _throughput,
    "failures": _failures,
    "retries": _retries,
    "shards": _shards,
    "projection": _projection,
}
