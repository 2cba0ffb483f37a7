"""Charts: numbers scaled to the box in which the templates draw them as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

__all__ = ["Bar", "Lines", "bars_of", "lines_of"]

WIDTH: Final = 600
HEIGHT: Final = 96
BAR_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64)  # writes per commit; the last class takes all above


class Lines(NamedTuple):
    """Two series over the same time, as points of polylines; ``top``: the value at the top edge."""

    width: int
    height: int
    first: str
    second: str
    top: float


class Bar(NamedTuple):
    """One class of a histogram."""

    label: str
    commits: int
    share: float  # per cent of all commits
    height: float  # per cent of the largest class


def lines_of(series: Sequence[tuple[float, float]], width_points: int) -> Lines | None:
    """A chart ``width_points`` wide, the newest point at the right; None for less than two."""
    if len(series) < 2:
        return None
    top = max(max(pair) for pair in series) or 1.0
    step = WIDTH / (width_points - 1)
    left = WIDTH - step * (len(series) - 1)

    def points(which: int) -> str:
        return " ".join(
            f"{left + i * step:.1f},{HEIGHT - 2 - pair[which] / top * (HEIGHT - 6):.1f}"
            for i, pair in enumerate(series)
        )

    return Lines(WIDTH, HEIGHT, points(0), points(1), top)


def bars_of(buckets: Iterable[tuple[int, int]]) -> list[Bar]:
    """A finer histogram, (upper bound, count) pairs, in a few classes; empty if all are zero."""
    counts = [0] * len(BAR_BOUNDS)
    for upper, count in buckets:
        at = next((i for i, bound in enumerate(BAR_BOUNDS) if upper <= bound), len(counts) - 1)
        counts[at] += count
    total, most = sum(counts), max(counts)
    if not total:
        return []
    lower = [1, *(bound + 1 for bound in BAR_BOUNDS)]
    return [
        Bar(
            str(bound) if low == bound else f"{low}–{bound}",
            count,
            count / total * 100,
            count / most * 100,
        )
        for low, bound, count in zip(lower, BAR_BOUNDS, counts, strict=False)
    ]
