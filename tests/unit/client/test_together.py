"""Calls to several nodes at once, from threads."""

import threading

import pytest

from lodeq.client.blocking.cluster.together import first_true
from lodeq.errors import UnreachableError

WAIT_S = 10.0


def test_a_node_that_is_silent_holds_nobody_up_once_another_has_something():
    """Neither what it was asked nor the request to stop that is waited for."""
    is_over, stops = threading.Event(), threading.Semaphore(0)
    stopped, ended = [], []

    def silent():
        ended.append(is_over.wait(WAIT_S))
        return False

    def stop(n):
        stopped.append(n)
        stops.release()
        is_over.wait(WAIT_S)

    before = set(threading.enumerate())
    assert first_true([silent, lambda: True, silent], stop) == 1
    assert not ended
    for _ in range(2):
        assert stops.acquire(timeout=WAIT_S)
    assert sorted(stopped) == [0, 2]
    is_over.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)


@pytest.mark.parametrize("answer", [False, UnreachableError("gone")])
def test_all_are_waited_for_where_none_has_anything(answer):
    def ask():
        if answer:
            raise answer
        return answer

    def stop(n):
        raise AssertionError(n)

    assert first_true([ask, ask], stop) is None
