"""Percentiles are right to 12.5 %, whatever the values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.coalescer.stats import CommitStats, Histogram
from lodeq.engine.values import LatencySummary

values = st.lists(
    st.one_of(st.integers(0, 40), st.integers(0, 1 << 20), st.integers(0, (1 << 63) - 1)),
    min_size=1,
    max_size=60,
)


def filled(numbers: list[int]) -> Histogram:
    histogram = Histogram()
    for number in numbers:
        histogram.add(number)
    return histogram


@given(values, st.sampled_from([1, 25, 50, 90, 99, 99.9, 100]))
def test_a_percentile_is_that_of_the_sorted_list(numbers: list[int], p: float) -> None:
    ordered = sorted(numbers)
    need = len(ordered) * p / 100
    exact = next(x for i, x in enumerate(ordered, 1) if i >= need)
    found = filled(numbers).percentile(p)
    assert exact <= found <= exact * 1.125


@given(values)
def test_counts_are_exact(numbers: list[int]) -> None:
    histogram = filled(numbers)
    assert histogram.count == len(numbers)
    assert histogram.total == sum(numbers)
    assert histogram.maximum == max(numbers)
    assert histogram.percentile(100) == max(numbers)


@given(values)
def test_buckets_count_every_value_once_in_order(numbers: list[int]) -> None:
    buckets = filled(numbers).buckets()
    bounds = [bound for bound, _ in buckets]
    assert sum(n for _, n in buckets) == len(numbers)
    assert bounds == sorted(set(bounds))
    seen = 0
    for bound, n in buckets:
        seen += n
        assert sum(number <= bound for number in numbers) == seen


@pytest.mark.parametrize("number", range(16))
def test_small_values_are_exact(number: int) -> None:
    assert filled([number, 1000]).percentile(50) == number


def test_nothing_measured_is_zero() -> None:
    assert Histogram().percentile(99) == 0
    assert Histogram().buckets() == []
    assert Histogram().summary() == LatencySummary(0, 0, 0, 0)


def test_a_summary() -> None:
    assert filled([1, 2, 3, 10]).summary() == LatencySummary(4, 2, 10, 10)


def test_samples_are_counted_when_they_are_asked_for() -> None:
    stats = CommitStats()
    stats.samples += [(1, 30), (3, 10)]
    assert (stats.merge.count, stats.merge.total) == (2, 4)
    assert stats.samples == []
    stats.samples.append((2, 20))
    assert (stats.commit_us.count, stats.commit_us.maximum, stats.merge.maximum) == (3, 30, 3)


def test_a_commit_loop_starts_at_zero() -> None:
    stats = CommitStats()
    assert (stats.commits, stats.submissions, stats.syncs, stats.merge.count) == (0, 0, 0, 0)
