"""A worker's report is taken whole or not at all: what is wrong in it would hide all the others."""

import dataclasses
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from lodeq import UsageError, WorkerReport
from lodeq.repository.model.workers import (
    CronTick,
    KnownFunction,
    RunningTask,
    UnknownFunction,
    check_report,
)
from lodeq.repository.state.worker_register import WorkerRegister

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - that is what is refused
RUN, TICK = RunningTask("1", "f", "q"), CronTick("q", "f")
WRONG = [
    {"pid": "x"},
    {"pid": 1 << 70},
    {"pid": -1},
    {"pid": True},
    {"started_at": "yesterday"},
    {"started_at": NAIVE},
    {"functions": None},
    {"running_count": "9"},
    {"running_count": 1.5},
    {"queues": 5},
    {"queues": "abc"},
    {"queues": (5,)},
    {"queues": ("\ud800",)},
    {"name": "\ud800"},
    {"name": ""},
    {"version": "\ud800"},
    {"version": "v" * 257},
    {"is_over": "no"},
    {"is_newest": None},
    {"beat_age": float("nan")},
    {"beat_age": "x"},
    {"running": (RUN,) * 65},
    {"running": {RUN: RUN}},
    {"known": (KnownFunction("q", "f" * 257),)},
    {"known": (KnownFunction("q", "f"),) * 257},
    {"unknown": (UnknownFunction("q", "f", -1),)},
    {"unknown": (UnknownFunction("q", "f", 1, 0, NAIVE),)},
    {"unknown": (RUN,)},
    *(
        {"running": (dataclasses.replace(RUN, **one),)}
        for one in (
            {"function": 5},
            {"function": "\ud800"},
            {"seconds": float("inf")},
            {"seconds": "x"},
            {"progress": "x"},
            {"attempt": "1"},
            {"note": object()},
            {"note": "n" * 257},
        )
    ),
    *(
        {"ticks": (dataclasses.replace(TICK, **one),)}
        for one in (
            {"next_at": "x"},
            {"last_at": NAIVE},
            {"function": None},
            {"task_id": 5},
            {"upcoming": (NAIVE,)},
            {"upcoming": ("x",)},
            {"upcoming": None},
            {"upcoming": (datetime.now(UTC),) * 6},
        )
    ),
]


@pytest.mark.parametrize("fields", WRONG, ids=lambda one: repr(one)[:40])
def test_a_report_with_a_wrong_field_is_refused(fields):
    register = WorkerRegister(SimpleNamespace(mono=lambda: 1.0))
    register.beat(WorkerReport("good", ("q",), "v", started_at=datetime.now(UTC)))
    with pytest.raises(UsageError):
        register.beat(WorkerReport(**({"name": "w", "queues": ("q",)} | fields)))
    (good,) = register.workers()
    assert good.name == "good"


def test_a_whole_report_is_taken():
    now = datetime.now(UTC)
    report = WorkerReport("w", ["q"], "v", 7, now, 3, 1, [RUN], [CronTick("q", "f", now, None)])
    assert check_report(report) is report
