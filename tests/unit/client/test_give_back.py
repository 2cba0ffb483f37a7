"""Leases that a blocking client gives back when its lease stream is left."""

from threading import Event

import pytest

import lodeq
from lodeq.client.blocking import waits


class Lease:
    """Its release raises, waits until the test is over, or is noted."""

    def __init__(self, released, over, outcome=""):
        self.is_live = True
        self.released, self.over, self.outcome = released, over, outcome

    def end(self):
        self.is_live = False

    def release(self):
        if self.outcome == "waits":
            self.over.wait(60)
        if self.outcome:
            raise lodeq.UnreachableError("no answer")
        self.released.append(self)
        self.end()


@pytest.fixture
def over():
    event = Event()
    yield event
    event.set()


def test_those_of_a_silent_node_neither_keep_the_others_nor_hold_up_who_leaves(over, monkeypatch):
    released = []
    leases = [Lease(released, over, "waits" if n % 10 == 0 else "") for n in range(64)]
    monkeypatch.setattr(waits, "GIVE_BACK_S", 1.0)
    waits.give_back(leases)
    assert set(released) == {one for one in leases if not one.outcome}


def test_a_store_that_does_not_answer_is_waited_for_once_not_for_each(over, monkeypatch):
    monkeypatch.setattr(waits, "GIVE_BACK_S", 0.01)
    leases = [Lease([], over, "waits") for _ in range(64)]
    waits.give_back(leases)
    assert not any(one.is_live for one in leases)
