"""Plots of what depends on something: one figure a case, a line a series."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from results import Result

__all__ = ["draw"]


class Axis(NamedTuple):
    """The axis that a case is drawn over."""

    x: str
    label: str
    log: bool = True


AXES = {
    "cycle": Axis("callers", "callers"),
    "payload": Axis("payload_bytes", "payload, bytes"),
    "shards": Axis("shards", "shards"),
    "callers by backlog": Axis("callers", "callers"),
    "claims at a backlog": Axis("tasks", "tasks pending"),
    "claims after a history": Axis("tasks", "tasks consumed before"),
}
LATENCIES = "enqueue"


def draw(results: Sequence[Result], folder: Path) -> dict[str, str]:
    """Case to file name, of what there was enough of."""
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams["svg.hashsalt"] = "lodeq"  # the same figures make the same file
    drawn: dict[str, str] = {}
    for case, axis in AXES.items():
        here = [r for r in results if r.case == case]
        if len({r.params[axis.x] for r in here}) > 1:
            drawn[case] = _lines(here, axis, folder, case.replace(" ", "-"))
    here = [r for r in results if r.case == LATENCIES and r.latency_us]
    if here:
        drawn[LATENCIES] = _bars(here, folder)
    return drawn


def _series(result: Result, x: str) -> str:
    return ", ".join(
        str(value) for name, value in result.params.items() if name not in {x, "batch"}
    )


def _lines(results: Sequence[Result], axis: Axis, folder: Path, name: str) -> str:
    figure, plot = plt.subplots(figsize=(7, 4))
    for series in dict.fromkeys(_series(r, axis.x) for r in results):
        here = [r for r in results if _series(r, axis.x) == series]
        xs = [r.params[axis.x] for r in here]
        plot.errorbar(
            xs,
            [r.median for r in here],
            [[r.median - min(r.runs) for r in here], [max(r.runs) - r.median for r in here]],
            marker="o",
            capsize=3,
            label=series,
        )
    if axis.log:
        plot.set_xscale("log", base=2 if axis.x == "shards" else 10)
    plot.set_ylim(bottom=0)
    plot.set_xlabel(axis.label)
    plot.set_ylabel(results[0].unit)
    plot.grid(alpha=0.3)
    plot.legend()
    return _save(figure, folder, name)


def _bars(results: Sequence[Result], folder: Path) -> str:
    figure, plot = plt.subplots(figsize=(7, 4))
    names = list(results[0].latency_us)
    width = 0.8 / len(results)
    for i, r in enumerate(results):
        plot.bar(
            [n + i * width for n in range(len(names))],
            [r.latency_us[name] for name in names],
            width,
            label=r.params["durability"],
        )
    plot.set_xticks([n + 0.4 - width / 2 for n in range(len(names))], names)
    plot.set_yscale("log")
    plot.set_ylabel("us")
    plot.legend()
    return _save(figure, folder, "latencies")


def _save(figure: plt.Figure, folder: Path, name: str) -> str:
    figure.tight_layout()
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
    return f"{name}.svg"
