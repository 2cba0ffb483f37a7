"""``docs/benchmarks.md`` and its plots, written from what was kept: never by hand."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from results import Goal, Result

__all__ = ["load", "quoted", "tables", "write"]

HEAD = """\
# Benchmarks

Written by `make bench-full` and `make bench-peers`; do not edit. Medians over rounds that
alternate with what a measure is compared with, in one process; in brackets the least and the
greatest round. *Ratio* is the median of the rounds' ratios.
"""
GRID = "callers by backlog"
QUOTED = "<!-- quoted: README.md says the same, and a test compares -->"


def quoted(results: Sequence[Result]) -> tuple[str, str]:
    """The worst and the best cell of the grid, a line each: the README quotes both or neither."""
    cells = sorted((r for r in results if r.case == GRID), key=lambda r: r.median)
    return _line("worst", cells[0]), _line("best", cells[-1])


def _line(which: str, cell: Result) -> str:
    waiting = cell.params["waiting"]
    share = "" if cell.ratio is None else f" ({cell.ratio:.2f} of raw RocksDB)"
    return (
        f"- {which} cell: {cell.median:,.0f} cycles/s{share}, {cell.params['callers']:,} callers, "
        f"{f'{waiting:,} tasks' if waiting else 'nothing'} waiting"
    )


def _corners(results: Sequence[Result]) -> str:
    return "\n".join((QUOTED, "", *quoted(results), ""))


def load(path: Path) -> tuple[dict[str, Any], list[Result]]:
    """Read back the results of a run."""
    whole = json.loads(path.read_text("utf-8"))
    told = _setting(whole["about"])
    setting = {"setting": told} if told else {}
    results = [
        Result(
            **{
                **row,
                "params": {**row["params"], **setting},
                "goal": Goal(**row["goal"]) if row["goal"] else None,
            }
        )
        for row in whole["results"]
    ]
    return whole, results


def write(paths: Sequence[Path], docs: Path) -> None:
    """The document of all that was kept, and the plots if matplotlib is there."""
    runs = [load(path) for path in paths]
    results = [result for _, found in runs for result in found]
    plots: dict[str, str] = {}
    try:
        from plots import draw
    except ImportError:
        print("no plots: matplotlib is not installed (pip install 'lodeq[bench]')")
    else:
        plots = draw(results, docs / "benchmarks")
    (docs / "benchmarks.md").write_text("\n".join([HEAD, *tables(runs, plots)]), "utf-8")
    print(f"written: {docs / 'benchmarks.md'}" + (f", {len(plots)} plots" if plots else ""))


def tables(runs: Sequence[tuple[dict[str, Any], list[Result]]], plots: dict[str, str]) -> list[str]:
    """All that runs have found, a table a case, with its plot if there is one."""
    parts: list[str] = []
    machine = ""
    for whole, found in runs:
        if _machine(whole["about"]) != machine:
            machine = _machine(whole["about"])
            parts.append(machine)
        setting = _setting(whole["about"])
        title = f" ({setting})" if setting else ""
        for case in dict.fromkeys(result.case for result in found):
            parts.append(f"## {case[0].upper()}{case[1:]}{title}\n")
            if case in plots:
                parts.append(f"![{case}](benchmarks/{plots.pop(case)})\n")
            parts.append(_table([r for r in found if r.case == case]))
            if case == GRID:
                parts.append(_corners([r for r in found if r.case == case]))
        for title, lines in (
            ("Shards for this machine", whole["advice"]),
            ("Not measured", whole["skipped"]),
        ):
            if lines:
                parts.append(f"## {title}\n\n" + "\n".join(f"- {x}" for x in lines) + "\n")
    return parts


def _machine(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['memory']}; Linux {about['kernel']}, "
        f"{about['file_system']}; fdatasync p50 {about['fdatasync_p50_us']:,} us, p99 "
        f"{about['fdatasync_p99_us']:,} us. Python {about['python']}, {versions}, "
        f"commit {about['commit']}{_extent(about)}.\n"
    )


def _extent(about: dict[str, Any]) -> str:
    """Say how much was run, where that was kept: older files do not say it."""
    return f", {about['rounds']} rounds, scale {about['scale']:g}" if "scale" in about else ""


def _setting(about: dict[str, Any]) -> str:
    """Name each setting that is not as installed: ``compiled, uvloop``."""
    usual = {"build": "interpreted", "loop": "asyncio"}
    told = [about[name] for name, value in usual.items() if about.get(name, value) != value]
    return ", ".join(told)


def _table(results: Sequence[Result]) -> str:
    params = list(dict.fromkeys(name for r in results for name in r.params))
    more = list(dict.fromkeys(name for r in results for name in r.more))
    latencies = list(dict.fromkeys(name for r in results for name in r.latency_us))
    has_ratio = any(r.ratio is not None for r in results)
    has_goal = any(r.goal is not None for r in results)
    head = [*params, results[0].unit]
    head += ["ratio", "compared with"] if has_ratio else []
    head += [f"{name}, us" for name in latencies] + more
    head += ["goal", "met"] if has_goal else []
    rows = []
    for r in results:
        row = [_cell(r.params.get(name)) for name in params] + [_median(r.runs)]
        if has_ratio:
            row += _ratio(r)
        row += [_cell(r.latency_us.get(name)) for name in latencies]
        row += [_cell(r.more.get(name)) for name in more]
        if has_goal:
            row += [str(r.goal), "yes" if r.goal.is_met(r) else "**no**"] if r.goal else ["", ""]
        rows.append(row)
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rows)]) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(r: Result) -> list[str]:
    if r.ratio is None:
        return ["", ""]
    digits = 2 if r.ratio >= 0.1 else 3
    return [f"**{r.ratio:.{digits}f}**", f"{r.than}: {_number(statistics.median(r.than_runs))}"]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return _number(value) if isinstance(value, int | float) else str(value)


def _median(runs: Sequence[float]) -> str:
    text = _number(statistics.median(runs))
    return f"{text} [{_number(min(runs))} to {_number(max(runs))}]" if len(runs) > 1 else text


if __name__ == "__main__":
    write([Path(name) for name in sys.argv[2:]], Path(sys.argv[1]))
