"""Wrong arguments of the newer calls: a typed error in every form of an engine, nothing written."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from conformance import test_engine as suite

import lodeq
from lodeq import LodeqError, NewTask, PublishedFunction, TaskFilter
from lodeq.repository.model.calls.functions import FunctionParameter

pytestmark = pytest.mark.anyio
engine, shards, store, opening = suite.engine, suite.shards, suite.store, suite.opening
form = suite.form

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - that is what is refused
TASK, ONE = NewTask(b"x", "jobs"), PublishedFunction("jobs", "send")
FILTERS = [
    {"tenant": 0},
    {"tenant": b""},
    {"tenant": []},
    {"state": 5},
    {"state": b"ready"},
    {"state": {"ready": 1}},
    {"labels": 5},
    {"older_than": "x"},
    {"function": "\ud800"},
    {"text": "\ud800"},
    {"reason": "\ud800"},
    {"labels": {"\ud800": "7"}},
    {"labels": {"customer": "\ud800"}},
    {"arguments": {"to": "\ud800"}},
]
FUNCTIONS = [
    {"name": "\ud800"},
    {"doc": "\ud800"},
    {"cron": "\ud800"},
    {"signature": 5},
    {"has_codec": "yes"},
    {"faces": None},
    {"published_at": 5},
    {"published_at": NAIVE},
    {"parameters": 5},
    {"parameters": (5,)},
    {"parameters": (FunctionParameter("\ud800"),)},
    {"parameters": (FunctionParameter("a", "required", 5),)},
    {"retention": "x"},
]


@pytest.mark.parametrize("name", [[], {}, 5, b"jobs"], ids=repr)
async def test_names_of_a_wrong_type(engine, name):
    for task in (NewTask(b"x", queue=name), NewTask(b"x", "jobs", tenant=name)):
        for tasks in ([task], [TASK, task]):
            with pytest.raises(LodeqError):
                await engine.enqueue_many(tasks)
    with pytest.raises(LodeqError):
        await engine.queue("jobs").purge(name)
    assert (await engine.stats()).ready == 0


async def test_filters(engine, subtests):
    for fields in FILTERS:
        with subtests.test(repr(fields)):
            with pytest.raises(LodeqError) as caught:
                await engine.find(TaskFilter(**fields))
            assert "server failed" not in str(caught.value)


@pytest.mark.parametrize("meant", [None, "ready", 5, {}])
async def test_what_is_no_filter(engine, meant):
    for call in (
        lambda: engine.find(meant),
        lambda: engine.count(meant),
        lambda: engine.act("cancel", meant),
    ):
        with pytest.raises(LodeqError, match="TaskFilter"):
            await call()


async def test_functions(engine, subtests):
    for fields in FUNCTIONS:
        with subtests.test(repr(fields)):
            with pytest.raises(LodeqError) as caught:
                await engine.publish_functions([replace(ONE, **fields)])
            assert "server failed" not in str(caught.value)
            assert await engine.functions() == []


async def test_a_function_may_give_its_durations_as_timedelta(engine):
    await engine.publish_functions([replace(ONE, retention=timedelta(days=1))])
    (one,) = await engine.functions()
    assert one.retention == 86_400


@pytest.mark.parametrize("given", [None, 5, "A!", b"A!"])
async def test_lists_that_are_none(engine, given):
    flow = await engine.workflow()
    await engine.queue("jobs").enqueue(b"x")
    lease = await engine.queue("jobs").claim_one()
    calls = [
        lambda: engine.enqueue_after(TASK, given),
        lambda: engine.add_members(flow.id, [TASK], after=given),
        lambda: engine.publish_functions(given),
    ]
    if given is not None:
        calls += [
            lambda: engine.queue("jobs").redrive(given),
            lambda: lease.complete(then=given),
            lambda: engine.functions(given),
            lambda: engine.history(state=[given]),
        ]
    for call in calls:
        with pytest.raises(LodeqError) as caught:
            await call()
        assert "server failed" not in str(caught.value)
    assert (await flow.info()).members == 0
    await lease.complete()


@pytest.mark.parametrize("name", ["function", "text", "tenant", "state", "cursor"])
async def test_a_history_of_what_is_no_unicode(engine, name):
    with pytest.raises(lodeq.UsageError):
        await engine.history(**{name: "\ud800"})


async def test_acts(engine):
    for name in (None, [], "burn", 5):
        with pytest.raises(lodeq.UsageError):
            await engine.act(name, TaskFilter())
