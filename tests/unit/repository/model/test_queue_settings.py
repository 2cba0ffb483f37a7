"""Rates of queues: their texts, and how smooth ones are spread."""

import pytest

from lodeq import UsageError
from lodeq.repository.model.queue_settings import parse_rate, rate_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10/s smooth", "1/100ms"),
        ("3/d  smooth", "1/8h"),
        ("1/s smooth", "1/s"),
        ("7/s smooth", "1/143ms"),
        ("13/s smooth", "1/77ms"),
        ("2000/s smooth", "200/100ms"),
        ("250/500ms", "250/500ms"),
    ],
)
def test_rates_of_milliseconds_and_smooth_ones(text, shown):
    assert rate_text(parse_rate(text)) == shown
    assert parse_rate(shown) == parse_rate(text)


@pytest.mark.parametrize("period_ms", [1, 10, 1000, 60_000, 86_400_000])
def test_a_smooth_rate_is_never_above_and_hardly_below(period_ms):
    for n in (*range(1, 300), 999, 1000, 1999, 12_345, 99_999, 100_000):
        few, short_ms = parse_rate(f"{n}/{period_ms}ms smooth")
        # n + 1 starts have at least n // few whole short periods between first and last.
        assert (n // few) * short_ms >= period_ms
        assert few * period_ms >= 0.95 * n * short_ms


@pytest.mark.parametrize("text", ["10/s rough", "10/0ms", "1/999999999d", "10/s smooth smooth"])
def test_wrong_rates_are_refused(text):
    with pytest.raises(UsageError, match="expected a rate such as"):
        parse_rate(text)
