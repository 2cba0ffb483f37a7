"""Figures of the commit loop. Updated once per group; read on the event loop, at any time."""

from __future__ import annotations

from typing import Final

from ..engine.values import LatencySummary

__all__ = ["SAMPLES_MAX", "CommitStats", "Histogram"]

SAMPLES_MAX: Final = 64

_SUB: Final = 3  # 2**3 sub-buckets per octave: a percentile is exact to 12.5 %


class Histogram:
    """Log-linear counts of non-negative integers (the layout of HdrHistogram, coarser)."""

    __slots__ = ("_counts", "_end", "count", "maximum", "total")

    def __init__(self) -> None:
        self._counts = [0] * (64 << _SUB)
        self._end = 0  # behind the last bucket in use: most are never
        self.count = 0
        self.total = 0
        self.maximum = 0

    def add(self, value: int) -> None:
        """Count one value."""
        shift = value.bit_length() - _SUB - 1
        index = ((shift + 1) << _SUB) + (value >> shift) - (1 << _SUB) if shift >= 0 else value
        self._counts[index] += 1
        self.count += 1
        self.total += value
        if value > self.maximum:
            self.maximum = value
        if index >= self._end:
            self._end = index + 1

    @staticmethod
    def _upper(index: int) -> int:
        if index < (2 << _SUB):
            return index
        shift = (index >> _SUB) - 1
        return (((index & ((1 << _SUB) - 1)) + (1 << _SUB) + 1) << shift) - 1

    def percentile(self, p: float) -> int:
        """The least bucket bound that ``p`` per cent of the values do not exceed; 0 if none."""
        need = self.count * p / 100
        seen = 0
        for index, n in enumerate(self._counts[: self._end]):
            seen += n
            if n and seen >= need:
                return min(self._upper(index), self.maximum)
        return 0

    def summary(self) -> LatencySummary:
        """Count, median, 99th percentile and maximum."""
        return LatencySummary(self.count, self.percentile(50), self.percentile(99), self.maximum)

    def buckets(self) -> list[tuple[int, int]]:
        """(upper bound, count) of every bucket that is not empty."""
        return [(self._upper(i), n) for i, n in enumerate(self._counts[: self._end]) if n]


class CommitStats:
    """Figures of one shard's commit loop."""

    __slots__ = (
        "_commit_us",
        "_merge",
        "bytes",
        "commits",
        "fsync_us",
        "operations",
        "samples",
        "stalls",
        "submissions",
        "syncs",
    )

    def __init__(self) -> None:
        self.commits = 0
        self.submissions = 0
        self.operations = 0
        self.bytes = 0
        self.syncs = 0
        self.stalls = 0
        # (submissions, µs) of the last commits, at most ``SAMPLES_MAX``: the loop only appends,
        # and has them counted together.
        self.samples: list[tuple[int, int]] = []
        self._merge = Histogram()
        self._commit_us = Histogram()
        self.fsync_us = Histogram()  # with the wait for the store's thread

    def count_samples(self) -> None:
        """Move what is in ``samples`` to the histograms."""
        for submissions, took_us in self.samples:
            self._merge.add(submissions)
            self._commit_us.add(took_us)
        self.samples.clear()

    @property
    def merge(self) -> Histogram:
        """How many submissions each commit had."""
        self.count_samples()
        return self._merge

    @property
    def commit_us(self) -> Histogram:
        """How long each write took."""
        self.count_samples()
        return self._commit_us
