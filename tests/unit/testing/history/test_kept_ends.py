"""How long ends are kept: each way to keep one too short, too long or wrongly is found."""

import pytest
from unit.testing.history.test_history import DONE, HELD, A, S, enqueue, found, new, ok, on, timed

from lodeq.testing import check

HISTORY_S = 100
KEPT_US = 10 * S
ONE = enqueue(1, new(1, retention_us=KEPT_US))
END = [timed(one, 1) for one in (ONE, *HELD[1:], on(3, "complete"), ok(3))]


def judged(at_s, *, value=1, finished_s=1, kept_us=KEPT_US, history_s=HISTORY_S, attempts=0):
    ends = {A: [value, finished_s * S, kept_us, history_s * S, attempts]}
    records = [*END, timed(found(results=DONE, ends=ends), at_s)]
    return check(records, history_s=HISTORY_S)


@pytest.mark.parametrize(("at_s", "value"), [(2, 1), (60, 1), (12, 0), (160, 0)])
def test_what_is_kept_for_as_long_as_it_says_is_accepted(at_s, value):
    report = judged(at_s, value=value)
    assert report.ok, report.broken


@pytest.mark.parametrize(
    ("at_s", "options", "text"),
    [
        (2, {"history_s": 50}, "is kept for"),
        (2, {"attempts": 11}, "11 attempts"),
        (72, {"value": 1}, "the value of"),
        (162, {"value": 0}, "the row of"),
        (2, {"value": 0}, "has gone before its time"),
    ],
)
def test_what_is_not_is_found(at_s, options, text):
    report = judged(at_s, **options)
    assert (report.ok, report.rule) == (False, 23)
    assert text in report.broken


def test_an_end_without_a_row_is_found():
    report = check([*END, timed(found(results=DONE), 2)], history_s=HISTORY_S)
    assert (report.rule, report.ok) == (23, False)
