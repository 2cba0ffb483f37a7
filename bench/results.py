"""Results of measures: kept as JSON, told as medians with their spread."""

from __future__ import annotations

import json
import statistics
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Bench", "Goal", "Result", "percentiles"]

Measure = Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class Goal:
    """The target of a figure: a least or greatest value of the median or of the ratio."""

    of: str  # "median" or "ratio"
    least: float | None = None
    most: float | None = None

    def is_met(self, result: Result) -> bool:
        value = result.ratio if self.of == "ratio" else result.median
        if value is None:
            return False
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def __str__(self) -> str:
        bounds = [f">= {self.least:g}"] if self.least is not None else []
        bounds += [f"<= {self.most:g}"] if self.most is not None else []
        return " and ".join(bounds) + (" x" if self.of == "ratio" else "")


@dataclass(frozen=True)
class Result:
    """One measure with its parameters: a run a round, beside those it is compared with."""

    case: str
    params: Mapping[str, Any]
    unit: str
    runs: list[float]
    than: str = ""
    than_runs: list[float] = field(default_factory=list)
    latency_us: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    goal: Goal | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def ratio(self) -> float | None:
        """The median over the rounds: a slow minute hits both sides of each."""
        if not self.than_runs:
            return None
        pairs = zip(self.runs, self.than_runs, strict=True)
        ratios = [a / b for a, b in pairs if b]  # a minute in which nothing was done has none
        return statistics.median(ratios) if ratios else None

    def line(self) -> str:
        """Return the line for the terminal."""
        params = ", ".join(f"{name} {value}" for name, value in self.params.items())
        text = f"{self.case} ({params}): {self.median:,.6g} {self.unit}"
        if len(self.runs) > 1:
            text += f" [{min(self.runs):,.6g} to {max(self.runs):,.6g}]"
        if self.ratio is not None:
            than = statistics.median(self.than_runs)
            text += f" = {self.ratio:.3f} x {self.than} ({than:,.6g})"
            if "of_raw_by_cpu" in self.more:
                text += f", by CPU {self.more['of_raw_by_cpu']:.3f} x"
        if self.latency_us:
            text += "; " + ", ".join(f"{k} {v:,.0f} us" for k, v in self.latency_us.items())
        if self.goal is not None:
            text += f"   {'ok' if self.goal.is_met(self) else 'MISSED'}: {self.goal}"
        return text


class Bench:
    """The run: where stores may go, how much is asked for, what has been found."""

    def __init__(
        self,
        folder: Path,
        *,
        repeats: int,
        scale: float,
        about: dict[str, Any],
        kept: Path | None = None,
    ) -> None:
        """Keep where stores may go, and how much is asked for.

        Args:
            folder: for stores that go when the run ends.
            repeats: rounds of every measure.
            scale: 1.0 is the full run.
            about: the machine and the versions.
            kept: for stores that take long to build and are used again; in ``folder`` by default.
        """
        self.folder = folder
        self.kept = kept or folder / "kept"
        self.repeats = repeats
        self.scale = scale
        self.about = about
        self.results: list[Result] = []
        self.advice: list[str] = []
        self.skipped: list[str] = []

    async def rounds(
        self,
        measures: Mapping[str, Measure],
        repeats: int | None = None,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> dict[str, list[float]]:
        """Every measure once a round, in turn; ``before`` runs before each, unmeasured."""
        runs: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(repeats or self.repeats):
            for name, measure in measures.items():
                if before is not None:
                    await before()
                runs[name].append(await measure())
        return runs

    def add(self, result: Result) -> None:
        """Keep the result, and show it at once."""
        self.results.append(result)
        print(result.line(), flush=True)

    def save(self, path: Path, since: int = 0) -> None:
        """All results, or those from number ``since`` on."""
        rows = [asdict(result) for result in self.results[since:]]
        whole = {
            "about": self.about,
            "advice": self.advice,
            "skipped": self.skipped,
            "results": rows,
        }
        path.write_text(json.dumps(whole, indent=1) + "\n")


def percentiles(values_us: Iterable[float]) -> dict[str, float]:
    """p50, p99 and p99.9 of latencies."""
    values = sorted(values_us)
    if not values:
        return {}
    last = len(values) - 1
    return {
        name: round(values[min(last, int(len(values) * share))], 1)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }
