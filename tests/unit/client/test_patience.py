"""How long a client of a cluster looks for a leader: by time, and by tries."""

import pytest

from lodeq.client.cluster import target
from lodeq.client.cluster.target import Patience


@pytest.fixture
def clock(monkeypatch):
    found = [100.0]
    monkeypatch.setattr(target, "_mono", lambda: found[0])
    return found


def tries(clock, patience, each_s):
    """How many tries there are, of so many seconds each, and when the last one ends."""
    n, began = 0, clock[0]
    while True:
        n += 1
        clock[0] += each_s
        if patience.is_over:
            return n, clock[0] - began
        clock[0] += patience.next_s()


def test_quick_tries_go_on_for_the_time(clock):
    n, took = tries(clock, Patience(10.0), 0.001)
    assert 10.0 <= took < 10.5
    assert n > 20


def test_there_are_a_few_tries_however_short_the_time(clock):
    assert tries(clock, Patience(0.0), 0.001)[0] == 7


@pytest.mark.parametrize(("each_s", "n"), [(2.0, 7), (4.0, 5), (30.0, 1)])
def test_slow_tries_get_twice_the_time(clock, each_s, n):
    assert tries(clock, Patience(10.0), each_s)[0] == n
