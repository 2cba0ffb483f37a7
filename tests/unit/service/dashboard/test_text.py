"""How values look: exact words, because people compare them at a glance."""

from datetime import UTC, datetime

import pytest

from lodeq.engine.records.patterns import has_parts
from lodeq.service.dashboard.pages.charts import bars_of, lines_of
from lodeq.service.dashboard.text import (
    BRIEF_MAX,
    TEXT_MAX,
    brief,
    bytes_text,
    common_part,
    count_text,
    duration_text,
    moment_text,
    rate_text,
    value_text,
    visible,
)


@pytest.mark.parametrize(
    ("reason", "shared"),
    [
        ("", ""),
        ("nacked", "nacked"),
        ("timeout after 5 s", "timeout after * s"),
        ("KeyError: 'CHF'\n  at jobs.py:13", "KeyError:"),
        ("KeyError: 'CHF' is no currency", "KeyError: * is no currency"),
        ("ValueError: can't send to ann@example.org", "ValueError: can't send to"),
        ("ValueError: can't send to ann@b.org: it's full", "ValueError: can't send to * it's full"),
        ("http2.Error: host db-17:5432 refused it", "http2.Error: host * refused it"),
        (
            "OSError: [Errno 28] No space left on device: '/var/x'",
            "OSError: [Errno 28] No space left on device:",
        ),
        ("cannot open /var/lib/x", "cannot open"),
        ("SMTPError: 550 5.1.1 <ann@b.org> mailbox full", "SMTPError: 550 * * mailbox full"),
        ("SMTPError: 550", "SMTPError: 550"),
        ("timeout of 500 ms", "timeout of * ms"),
        ("the service said HTTP 503 after 12 s", "the service said HTTP 503 after * s"),
        ("a quote 'without an end", "a quote"),
        ("user=ann is gone", "is gone"),
        ("17 of them failed", "of them failed"),
        ("0x7f3a", "0x7f3a"),
        ("ValueError:", "ValueError:"),
        ("x" * 300, "x" * 200),
    ],
)
def test_the_part_of_a_reason_that_others_may_have(reason, shared):
    assert common_part(reason) == shared


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (-3, "0 s"),
        (0, "0 s"),
        (12e-6, "12 µs"),
        (0.0015, "1.5 ms"),
        (0.25, "250 ms"),
        (1, "1.0 s"),
        (59.9, "59.9 s"),
        (59.96, "1 m"),
        (61, "1 m 1 s"),
        (3600, "1 h"),
        (3661, "1 h 1 m"),
        (90_000, "1 d 1 h"),
        (864_000, "10 d"),
    ],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (150 << 20, "150 MiB"),
        (3 << 40, "3.0 TiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_bytes(value, text):
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.123, "0.12"),
        (1.26, "1.3"),
        (12_345.6, "12,346"),
    ],
)
def test_rates(value, text):
    assert rate_text(value) == text


def test_counts_and_moments():
    assert (count_text(None), count_text(1_234_567)) == ("–", "1,234,567")
    moment = datetime(2026, 11, 22, 1, 2, 3, 456_789, UTC)
    assert moment_text(moment) == "2026-11-22 01:02:03.456 UTC"
    assert moment_text(None) == "–"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\tGrüße ✓", "plain\n\tGrüße ✓"),
        ("\x1b[2J\0", "\\x1b[2J\\x00"),
        ("a\u202eb", "a\\u202eb"),
        ("\U000e0041", "\\U000e0041"),
        ("\r", "\\x0d"),
    ],
)
def test_nothing_hides(text, shown):
    assert visible(text) == shown


def test_one_text_of_many_is_short():
    assert brief("a\0" * (BRIEF_MAX // 2)) == "a\\x00" * (BRIEF_MAX // 2)
    assert brief("\0" * 32_000) == "\\x00" * BRIEF_MAX + " … 31,600 characters more"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", ""),
        (b"text", "text"),
        (b"\x00\xff\x10", "00 ff10"),
        ("text", "text"),
        (None, "null"),
        ({"a": [1, "x"]}, '{\n  "a": [\n    1,\n    "x"\n  ]\n}'),
        ({1: {b"k": 2}}, None),
        (object, None),
        (float("nan"), '[shown as JSON, which cannot hold the value itself]\n"NaN"'),
    ],
)
def test_values(value, text):
    found = value_text(value)
    assert found == text or (text is None and found)


@pytest.mark.parametrize("value", ["x" * 100_000, b"x" * 100_000, b"\x00" * 100_000])
def test_a_long_value_is_cut_and_says_so(value):
    found = value_text(value)
    assert len(found) < TEXT_MAX * 1.5
    assert "more" in found


def test_a_histogram_in_a_few_classes():
    bars = bars_of([(1, 5), (2, 1), (9, 2), (15, 2), (1000, 10)])
    assert [(bar.label, bar.commits) for bar in bars] == [
        ("1", 5),
        ("2", 1),
        ("3–4", 0),
        ("5–8", 0),
        ("9–16", 4),
        ("17–32", 0),
        ("33–64", 10),
    ]
    assert (bars[0].share, bars[0].height, bars[-1].height) == (25.0, 50.0, 100.0)
    assert bars_of([]) == []


def test_lines_end_at_the_right_and_stay_in_their_box():
    assert lines_of([(1.0, 1.0)], 10) is None
    lines = lines_of([(0.0, 0.0), (10.0, 5.0)], 10)
    points = [tuple(map(float, pair.split(","))) for pair in lines.first.split()]
    assert points[-1][0] == lines.width
    assert all(0 <= x <= lines.width and 0 <= y <= lines.height for x, y in points)
    assert points[1][1] < points[0][1]  # more is higher
    assert lines_of([(0.0, 0.0)] * 3, 10).top > 0


REASONS = (
    ("SMTPError: 550 {n} mailbox of {to} full", "SMTPError: 421 {n} mailbox of {to} full"),
    ("timeout after {n} s", "no answer after {n} s"),
    ("ValueError: {n} is 'more {n}' than allowed", "ValueError: {n} is less than is usual"),
    ("cannot open /var/{n}/x: it is locked", "cannot open /var/{n}/x: it is gone"),
)


@pytest.mark.parametrize(("reason", "other"), REASONS)
def test_the_part_finds_those_that_failed_for_the_same_reason_and_no_others(reason, other):
    def reasons(text):
        return [text.format(n=n, to=f"u{n}@example.org") for n in (3, 17, 2_000)]

    for one in reasons(reason):
        part = common_part(one).lower()
        assert all(has_parts(part, like.lower()) for like in reasons(reason))
        assert not any(has_parts(part, like.lower()) for like in reasons(other))
