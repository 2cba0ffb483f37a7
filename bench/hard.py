"""The hard loads in one table: what each showed before, shows now, and must show.

``make bench-hard`` runs the cases and prints it; ``python bench/hard.py [--docs PAGE] FILE …``
prints it again, or writes the page, of what is kept: a file a case and build, each with its
commit and scale. ``--only CASE`` (of ``CASES``) measures the rows of one case again; a compiled
build measures ``COMPILED_CASES``, unless it is told which.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from report import load, tables
from results import Goal, Result

__all__ = ["CASES", "COMPILED_CASES", "KEPT", "ROWS", "Row", "about_s", "table"]

KEPT = Path(__file__).resolve().parent.parent / "build" / "bench-hard"

# Seconds a round and seconds once, about, on two quiet cores: at scale 0.2, and what a scale adds.
# They tell who starts a run how long it takes; nothing is held to them.
CASES = {
    "burst": (6.0, 8.0, 0.0),
    "drains": (4.0, 18.0, 25.0),
    "grid": (2.0, 60.0, 20.0),
    "sqlite": (0.5, 12.0, 0.0),
    "served-processes": (12.0, 50.0, 3.0),
    "neighbour": (1.0, 10.0, 5.0),
    "shards": (1.0, 54.0, 0.0),
    "many-queues": (1.0, 14.0, 0.0),
    "herd-cycles": (6.0, 8.0, 0.0),
    "dedup": (0.5, 8.0, 0.0),
    "mixes": (10.0, 4.0, 0.0),
    "two-speeds": (2.0, 32.0, 0.0),
    "latencies": (2.0, 14.0, 0.0),
    "body-puts": (3.0, 30.0, 0.0),
    "streamed": (0.0, 120.0, 0.0),
    "journal-appends": (0.5, 10.0, 0.0),
    "mixed-day": (1.0, 10.0, 0.0),
    "life": (0.0, 0.0, 6.0),
}
# Those with a target for the compiled build.
COMPILED_CASES = ("burst", "sqlite")


def about_s(case: str, scale: float, rounds: int) -> float:
    """Tell about how many seconds a hard case takes; 0 for one that nobody has timed."""
    each, scaled, once = CASES.get(case, (0.0, 0.0, 0.0))
    life = (3600.0 if scale >= 1 else 200.0 * scale) if case == "life" else 0.0
    return rounds * (each + scaled * scale) + once + life


HEAD = """\
# Benchmarks: the loads that are not easy

Written by `make bench-hard` and `bench/hard.py`; do not edit. Bursts, backlogs, several
processes, several shards, many queues: medians over rounds that alternate with what a measure is
compared with. *Before* is what stood there when the targets were set, on another machine of two
cores. The easier loads are on [Benchmarks](benchmarks.md).
"""


class Row(NamedTuple):
    """One row: which results it is about, and what each of them must show.

    ``before`` is what stood there when the targets were set; ``build`` is the one that the target
    is for, empty for any.
    """

    name: str
    before: str
    goal: Goal | None
    case: str
    params: dict[str, Any]
    than: str = ""
    build: str = ""

    def finds(self, result: Result) -> bool:
        """Tell if it is about this result; ``than`` narrows it to one that it stands beside."""
        return (
            result.case == self.case
            and (not self.than or result.than.startswith(self.than))
            and all(
                result.params.get(name) in (value if isinstance(value, tuple) else (value,))
                for name, value in self.params.items()
            )
        )


def at_least(value: float) -> Goal:
    """Hold the ratio to a least value."""
    return Goal("ratio", least=value)


def _rate(value: float) -> Goal:
    return Goal("median", least=value)


def _served(
    name: str,
    before: str,
    goal: Goal | None,
    processes: int,
    callers: int,
    server: str = "lodeq, nosync",
) -> Row:
    params = {
        "server": server,
        "api": "single",
        "processes": processes,
        "callers_each": callers,
    }
    return Row(f"served, single calls: {name}", before, goal, "served to client processes", params)


COMPILED = "compiled"
BURST, BALANCED = "burst, then drain", "workers wait for producers"
DRAIN = "drain by single claims"
ROWS = (
    Row("256 + 256", "0.09–0.13", at_least(0.27), BURST, {"callers": "256 + 256"}),
    Row("16 + 16", "0.10–0.12", at_least(0.25), BURST, {"callers": "16 + 16"}),
    Row("64 + 64", "0.09", None, BURST, {"callers": "64 + 64"}),
    Row("balanced 32 + 128", "0.18–0.33", at_least(0.35), BALANCED, {}, build="interpreted"),
    Row("balanced 32 + 128", "0.18–0.33", at_least(0.45), BALANCED, {}, build="compiled"),
    Row("drain by single claims, 1 M waiting", "33,000", _rate(60_000), DRAIN, {"waiting": 10**6}),
    Row("the same, 10 M waiting", "33,000", _rate(60_000), DRAIN, {"waiting": 10**7}),
    Row(
        "the larger backlog beside the smaller",
        "–",
        Goal("ratio", least=0.9, most=1.1),
        "drain beside a smaller backlog",
        {},
    ),
    Row(
        "batches of 100 beside a hand-written SQLite queue",
        "0.74",
        at_least(1.0),
        "beside a hand-written SQLite queue",
        {"shape": "batches of 100"},
        build="compiled",
    ),
    Row(
        "single calls beside the same",
        "–",
        None,
        "beside a hand-written SQLite queue",
        {"shape": "single calls"},
    ),
    _served("1 caller", "230", _rate(1_400), 1, 1),
    _served("32 callers", "525", _rate(12_000), 1, 32),
    _served("4 processes of 32", "–", _rate(16_000), 4, 32),
    _served("32 callers, HTTP", "465", _rate(1_500), 1, 32, "lodeq, nosync, HTTP on loopback"),
    *(
        Row(f"the same beside {than}", before, goal, "served, beside other servers", {}, than)
        for than, before, goal in (
            ("Redis streams, always", "0.1", at_least(3.0)),
            ("Redis streams, everysec", "0.1", at_least(3.0)),
            ("beanstalkd -f0", "0.1", at_least(3.0)),
            ("beanstalkd, default", "0.1", None),
            ("a bare echo by asyncio", "–", None),
            ("a bare echo by asyncio, synced", "–", None),
        )
    ),
    Row(
        "p99 of a claim beside 100 MB of results",
        "–",
        Goal("ratio", most=3.0),
        "p99 of a claim's answer beside a neighbour",
        {},
    ),
    Row(
        "served, batches of 64",
        "8,300–21,900",
        _rate(40_000),
        "served to client processes",
        {"api": "batches of 64", "processes": 1, "callers_each": 4},
    ),
    *(
        Row(
            f"8 shards beside 1, {mode}, 64 callers",
            before,
            at_least(0.9),
            "shards",
            {"shards": 8, "durability": mode, "callers": 64},
        )
        for mode, before in (("nosync", "0.57"), ("fsync", "0.24"))
    ),
    *(
        Row(
            f"claims over {n} queues beside one, {api}",
            before,
            at_least(0.85),
            "claims over many queues",
            {"queues": n, "api": api},
        )
        for n, api, before in (
            (8, "batches of 64", "0.45"),
            (64, "batches of 64", "0.14"),
            (256, "batches of 64", "0.04"),
            (8, "waited single claims", "0.76"),
            (64, "waited single claims", "0.27"),
            (256, "waited single claims", "0.12"),
        )
    ),
    *(
        Row(
            f"30,000 callers beside 1,000, {by}{'' if of == 'as it is' else f', collector {of}'}",
            "0.1",
            at_least(0.8),
            "a herd beside a thousand",
            {"by": by, "collector": of},
        )
        for by, of in (
            ("wall time", "as it is"),
            ("CPU time", "as it is"),
            ("wall time", "frozen"),
            ("CPU time", "frozen"),
        )
    ),
    Row("dedup misses beside no key", "0.30", at_least(0.6), "dedup", {"keys": "misses"}),
    *(
        Row(
            f"a fifth delayed{more}",
            "0.48",
            at_least(0.75),
            "mix",
            {"mix": "a fifth delayed by up to 50 ms", "by": by},
        )
        for by, more in (("wall time", ""), ("CPU time", ", by CPU time"))
    ),
    Row(
        "the same, results at their bound, by CPU time",
        "–",
        at_least(0.75),
        "mix",
        {"mix": "a fifth delayed by up to 50 ms, results at their bound", "by": "CPU time"},
    ),
    Row(
        "claims a CPU second, results at their bound",
        "–",
        None,
        "claims a CPU second",
        {"beside": "results at their bound"},
    ),
    Row(
        "fsync enqueue p99, 64 callers, beside fdatasync p99",
        "6.4",
        Goal("ratio", most=4.0),
        "p99 of an enqueue",
        {"durability": "fsync"},
    ),
    *(
        Row(
            f"64 KiB puts beside {than}, {mode}",
            before,
            at_least(3.0),
            "puts of large payloads",
            {"durability": mode, "upto": "settled"},
            than,
        )
        for than, mode, before in (
            ("RocksDB", "nosync", "3.2"),
            ("BlobDB", "nosync", "2.0"),
            ("RocksDB", "fsync", "1.7"),
            ("BlobDB", "fsync", "–"),
        )
    ),
    Row("200 streamed payloads, of a plain file", "–", None, "streamed payloads in flight", {}),
    Row(
        "MiB of memory for them",
        "–",
        Goal("median", most=300.0),
        "memory of streamed payloads in flight",
        {},
    ),
    Row(
        "journal, batches of 100, beside write",
        "0.40",
        at_least(0.5),
        "journal appends",
        {"api": "batches of 100", "until": "buffered"},
        "write",
    ),
    Row("a mixed day, of raw", "–", None, "a mixed day", {}),
    Row("a life, of raw", "–", None, "a life", {}),
    Row(
        "longest turn of the loop under each, ms",
        "–",
        Goal("median", most=20.0),
        "longest turn of the loop",
        {},
    ),
)


def table(results: Sequence[Result], build: str, *, is_whole: bool = True) -> str:
    """All rows for this build, aligned; a row that no result is about says so, or is left out."""
    lines = [("row", "before", "now", "must", "")]
    for row in ROWS:
        if row.build and row.build != build and _has_other(row):
            continue
        found = [result for result in results if row.finds(result)]
        if not found and not is_whole:
            continue
        lines.append((row.name, row.before, _now(row, found), _must(row), _status(row, found)))
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _has_other(row: Row) -> bool:
    """Tell whether the same row has another target for the other build."""
    return sum(other.name == row.name for other in ROWS) > 1


def _now(row: Row, found: Sequence[Result]) -> str:
    if row.case == "longest turn of the loop" and found:
        worst = max(found, key=lambda result: result.median)
        return f"{worst.median:.3g} ({worst.params['under']})"
    is_rate = row.goal is not None and row.goal.of == "median"
    text = ", ".join(_figure(result, is_rate=is_rate) for result in found) or "–"
    tasks = {result.params["tasks"] for result in found if type(result.params.get("tasks")) is int}
    return text + "".join(f" [{n:,} tasks]" for n in sorted(tasks))


def _figure(result: Result, *, is_rate: bool) -> str:
    if is_rate or result.ratio is None:
        text, more = f"{result.median:,.0f}", result.more
        if "client_us_a_call" in more:
            client, server = more["client_us_a_call"], more["server_us_a_call"]
            text += f" (us of CPU a call: client {client:g}, server {server:g})"
        elif "cpu_us" in more:
            text += f" (us of CPU: {more['cpu_us']:g})"
        return text
    text = f"{result.ratio:.3f}"
    if "of_raw_by_cpu" in result.more:
        text += f" (by CPU {result.more['of_raw_by_cpu']:.3f})"
    return text


def _must(row: Row) -> str:
    if row.goal is None:
        return "–"
    return f"{row.goal} {row.build}".rstrip()


def _status(row: Row, found: Sequence[Result]) -> str:
    if not found:
        return "not measured"
    if row.goal is None:
        return ""
    is_met: Callable[[Result], bool] = row.goal.is_met
    missed = [result for result in found if not is_met(result)]
    if not missed:
        return "met"
    return f"missed {len(missed)} of {len(found)}" if len(found) > 1 else "missed"


def page(paths: Sequence[Path]) -> str:
    """``docs/benchmarks-hard.md``: the table for each build, then all that was measured."""
    runs = sorted((load(path) for path in paths), key=_order)
    parts = [HEAD]
    for build in dict.fromkeys(whole["about"]["build"] for whole, _ in runs):
        found = [r for whole, kept in runs if whole["about"]["build"] == build for r in kept]
        rows = table(found, build, is_whole=build != COMPILED)
        parts.append(f"## Against the targets, {build}\n\n```text\n{rows}\n```\n")
    return "\n".join([*parts, *tables(runs, {})])


def _order(run: tuple[dict[str, Any], list[Result]]) -> tuple[bool, str, str]:
    about = run[0]["about"]
    return about["build"] == COMPILED, about["commit"], run[1][0].case if run[1] else ""


if __name__ == "__main__":
    docs, names = (sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == ["--docs"] else ("", sys.argv[1:])
    text = page([Path(name) for name in names])
    if docs:
        Path(docs).write_text(text, "utf-8")
    else:
        print(text)
