"""Ticks of every expression in every zone, where the clocks change: no search goes backwards.

What is right is counted out minute by minute, from what the zone says of each.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim

from lodeq.service.worker.cron_ticks import Ticks

FIRST, LAST = datetime(2024, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
NEAR = timedelta(hours=8)  # what is counted out around a change
PARTS = 8
# An hour, half an hour, two hours; at midnight; north, south; before and after Greenwich.
SOME = (
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Africa/Cairo",
    "America/Santiago",
    "America/Scoresbysund",
)
COMMON = (
    "30 2 * * *|0 2 * * *|30 1 * * *|0 1 * * *|15 0 * * *|0 0 * * *|45 1-3 * * *|*/20 1-4 * * *"
    "|0 1,2,3 * * *|0 */2 * * *|0 */3 * * *|*/30 * * * *|0 * * * *|*/5 8-18 * * *|30 2 * * 0"
    "|0 9-17 * * 1-5|*/15 0-6 * * *|* * * * *|7 * * * *|* 2 * * *|0-59 0-23 * * *|59 23 * * *"
    "|0 0 1 * *|0 0 29 2 *|30 2 L 3 *|30 2 * 3,10 7L|0 2 * 11 SUN#1|* * 29 2 *|*/7 * * 11 7"
    "|0 30 2 * * *|30 30 2 * * *|15 */10 1-3 * * *|*/20 30 2 * * *|0 0 0 1 1 *"
)


@cache
def expressions() -> list[str]:
    draw = random.Random(7)

    def field(low: int, high: int) -> str:
        one, other = sorted(draw.sample(range(low, high + 1), 2))
        star = f"*/{draw.randint(2, 12)}"
        return draw.choice(["*", star, str(one), f"{one}-{other}", f"{one},{other}"])

    found = COMMON.split("|")
    while len(found) < 200:
        fields = [field(0, 59), field(0, 6)]
        fields += draw.choice([["*", "*", "*"], ["*", "*", field(0, 6)], [field(1, 28), "*", "*"]])
        found.append(" ".join(fields))
    return found


@cache
def changes(zone: str) -> list[datetime]:
    """The first minute of each new offset."""
    here, found, moment = ZoneInfo(zone), [], FIRST
    while moment < LAST:
        low, high = moment, moment + DAY
        if low.astimezone(here).utcoffset() != (now := high.astimezone(here).utcoffset()):
            while high - low > MINUTE:
                middle = low + (high - low) // MINUTE // 2 * MINUTE
                if middle.astimezone(here).utcoffset() == now:
                    high = middle
                else:
                    low = middle
            found.append(high)
        moment += DAY
    return found


def all_zones() -> list[str]:
    """One zone of each kind: those with the same clocks in all these years are one kind."""
    kinds = {}
    for zone in sorted(available_timezones()):
        offset = FIRST.astimezone(ZoneInfo(zone)).utcoffset()
        after = (one.astimezone(ZoneInfo(zone)).utcoffset() for one in changes(zone))
        kinds.setdefault((offset, *zip(changes(zone), after, strict=True)), zone)
    return list(kinds.values())


@lru_cache(256)
def walls(expression: str, utc: datetime) -> list[datetime]:
    """The times without a zone that an expression names, near a moment in any zone."""
    found, most = [], NEAR + timedelta(hours=15)
    end = utc + most
    for one in CronSim(expression, utc - most):
        if one > end:
            return found
        found.append(one)
    return found


def counted(expression: str, zone: str, change: datetime) -> list[datetime]:
    """The ticks near a change, as docs/worker.md says."""
    here, fields = ZoneInfo(zone), expression.split()
    is_fixed = len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")
    found = set()
    for wall in walls(expression, change.replace(tzinfo=None)):
        first = wall.replace(tzinfo=here).astimezone(UTC)
        second = wall.replace(tzinfo=here, fold=1).astimezone(UTC)
        if first > second:  # clocks never show it
            found |= {change} if is_fixed else set()
        else:
            found |= {first} if is_fixed else {first, second}
    return sorted(one for one in found if abs(one - change) <= NEAR)


def moments(change: datetime, draw: random.Random) -> Iterator[datetime]:
    yield from (change - SECOND, change, change + SECOND, change - NEAR, change + NEAR)
    for _ in range(5):
        yield change + timedelta(minutes=draw.randint(-360, 360))
    yield change + timedelta(microseconds=draw.randint(-(10**10), 10**10))


def check(expression: str, zone: str, change: datetime, draw: random.Random) -> None:
    ticks, right = Ticks(expression, zone), counted(expression, zone, change)
    for moment in moments(change, draw):
        said = (expression, zone, moment)
        after, latest = ticks.after(moment), ticks.latest(moment)
        assert latest <= moment < after, said
        assert ticks.latest(after) == after, said
        assert ticks.after(after - SECOND) == after, said
        assert ticks.after(latest) == after, said
        behind = right[bisect_right(right, moment) :]
        assert after == behind[0] if behind else after > change + NEAR, said
        before = right[: bisect_left(right, moment + timedelta(microseconds=1))]
        assert latest == before[-1] if before else latest < change - NEAR, said


@pytest.mark.parametrize("zone", SOME)
def test_no_search_goes_backwards(zone):
    draw = random.Random(zone)
    for change in changes(zone)[:2]:
        for expression in draw.sample(expressions(), 10):
            check(expression, zone, change, draw)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_search_goes_backwards_in_any_zone_and_year(part):
    draw = random.Random(part)
    for zone in all_zones()[part::PARTS]:
        for change in changes(zone):
            for expression in expressions():
                check(expression, zone, change, draw)


@pytest.mark.slow
def test_a_year_of_ticks_is_the_same_forwards_and_backwards():
    for zone in SOME:
        for expression in ("30 2 * * *", "0 */2 * * *", "45 1-3 * * *"):
            ticks, there, back = Ticks(expression, zone), [], []
            moment, end = FIRST, FIRST + 366 * DAY
            while (moment := ticks.after(moment)) <= end:
                there.append(moment)
            moment = end
            while (moment := ticks.latest(moment)) > FIRST:
                back.append(moment)
                moment -= SECOND
            assert there == back[::-1]
