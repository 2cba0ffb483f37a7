"""The ledger of joins bites: each broken rule is found, and what is allowed passes."""

import pytest

from lodeq.testing.history.joins import JoinLedger
from lodeq.testing.history.rules import BrokenError

FLOW, CALLBACK, OTHER = b"f" * 16, b"c" * 16, b"o" * 16
MEMBERS = [b"1" * 16, b"2" * 16]
ENDED = ["completed", "dead"]


@pytest.fixture
def ledger():
    found = JoinLedger(is_durable=True)
    found.opened(FLOW, CALLBACK)
    return found


def fire(ledger, *, attempt=1, statuses=ENDED, alive=0, current=CALLBACK):
    ledger.delivered(CALLBACK, attempt, statuses, alive, current)


def test_a_callback_runs_once_and_may_be_tried_again(ledger):
    ledger.sealing(FLOW, MEMBERS)
    fire(ledger)
    fire(ledger, attempt=2)
    ledger.over([CALLBACK], [FLOW])
    assert ledger.deliveries == 2


@pytest.mark.parametrize(
    ("rule", "is_sealed", "options"),
    [
        (20, True, {"current": OTHER}),
        (21, False, {}),
        (21, True, {"statuses": ["completed", None]}),
        (21, True, {"alive": 1}),
        (21, True, {"statuses": ["completed"]}),
    ],
)
def test_a_delivery_that_may_not_be_is_found(ledger, rule, is_sealed, options):
    if is_sealed:
        ledger.sealing(FLOW, MEMBERS)
    with pytest.raises(BrokenError) as caught:
        fire(ledger, **options)
    assert caught.value.rule == rule


def test_a_join_that_fires_twice_is_found_unless_it_was_redriven(ledger):
    ledger.sealing(FLOW, MEMBERS)
    fire(ledger)
    with pytest.raises(BrokenError, match="fired twice"):
        fire(ledger)
    ledger.redriving(FLOW)
    fire(ledger)


def test_a_power_cut_may_take_back_what_was_not_synced():
    ledger = JoinLedger(is_durable=False)
    ledger.opened(FLOW, CALLBACK)
    ledger.sealing(FLOW, MEMBERS)
    fire(ledger)
    ledger.power_cut()
    fire(ledger)


def test_a_callback_of_nothing_and_one_that_never_runs_are_found(ledger):
    with pytest.raises(BrokenError) as caught:
        ledger.delivered(OTHER, 1, ENDED, 0, None)
    assert caught.value.rule == 20
    ledger.sealing(FLOW, MEMBERS)
    with pytest.raises(BrokenError) as caught:
        ledger.over([], [FLOW])
    assert caught.value.rule == ledger.stuck(FLOW, "running", 2, 1).rule == 22
    ledger.callback_may_end(FLOW)
    ledger.over([], [FLOW])
