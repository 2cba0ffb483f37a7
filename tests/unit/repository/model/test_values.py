"""Options are checked where they are made, and the public values stay what they are."""

import math
from typing import Any

import pytest

from lodeq import ALL_TENANTS, Backoff, Limits, NewTask, QueueStats, Receipt, TaskId
from lodeq.engine.records.policy import BackoffKind
from lodeq.errors import UsageError

ID = TaskId(bytes(16))


@pytest.mark.parametrize("kind", ["fixed", "linear", "exponential", "equal_jitter", "full_jitter"])
def test_every_kind_of_backoff_has_its_number(kind: Any) -> None:
    assert Backoff(kind).code == BackoffKind[kind.upper()]


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "random"},
        {"base": -1},
        {"base": math.nan},
        {"base": 5e6},
        {"cap": math.inf},
        {"cap": -0.1},
        {"factor": -1},
        {"factor": 2e6},
        {"factor": math.nan},
        {"kind": ["fixed"]},
        {"kind": None},
        {"base": "5"},
        {"cap": None},
        {"factor": 1j},
        {"base": True},
    ],
)
def test_a_backoff_out_of_range_is_refused(options: Any) -> None:
    with pytest.raises(UsageError, match="backoff"):
        Backoff(**options)


def test_the_defaults_are_the_documented_ones() -> None:
    assert Backoff() == Backoff("full_jitter", 5.0, 2.0, 900.0)
    assert Limits() == Limits(16 << 20, 16 << 10, 1 << 20, None, 1_000_000, 1024)


@pytest.mark.parametrize(
    "options",
    [
        {"payload_bytes_max": -1},
        {"payload_bytes_max": (64 << 20) + 1},
        {"headers_bytes_max": 4 << 20},
        {"result_bytes_max": -1},
        {"pending_max": 0},
        {"results_max": -1},
        {"reason_bytes_max": -1},
        {"reason_bytes_max": 64 << 10},
        {"payload_bytes_max": 3 << 20, "headers_bytes_max": 3 << 20},
        {"payload_bytes_max": "1"},
        {"headers_bytes_max": None},
        {"result_bytes_max": 1.5},
        {"pending_max": "5"},
        {"pending_max": 1.5},
        {"results_max": None},
        {"results_max": True},
        {"reason_bytes_max": b"1"},
    ],
)
def test_limits_have_limits(options: Any) -> None:
    with pytest.raises(UsageError):
        Limits(**options)


def test_values_cannot_be_changed() -> None:
    for value, name in ((Backoff(), "base"), (Limits(), "results_max"), (NewTask(b""), "priority")):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)


def test_a_receipt_is_a_plain_tuple_with_names() -> None:
    assert Receipt(ID) == (ID, False, None)
    assert Receipt(ID, duplicate=True).duplicate


def test_pending_is_ready_and_delayed() -> None:
    assert QueueStats(2, 3, 5, 7, 11, None, False).pending == 5


def test_all_tenants_prints_as_it_is_written() -> None:
    assert repr(ALL_TENANTS) == "lodeq.ALL_TENANTS"
