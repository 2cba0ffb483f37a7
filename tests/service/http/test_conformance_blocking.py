"""What holds for an engine holds for its blocking twins: in threads, and over a served store."""

import pytest
from conformance import (
    test_bad_arguments,
    test_bulk_acts,
    test_engine,
    test_faces,
    test_history,
    test_limits,
    test_operate,
    test_progress,
    test_workflows,
)
from conformance import test_functions as functions  # one module has a test of that name
from support_blocking import BlockingOpening

WAYS = [("asyncio", "embedded"), ("asyncio", "served")]
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,  # each call is a thread's
    pytest.mark.parametrize(("anyio_backend", "form"), WAYS),
]
MODULES = (
    *(test_bad_arguments, test_bulk_acts, test_engine, test_faces, functions),
    *(test_history, test_limits, test_operate, test_progress, test_workflows),
)
# Of async engines alone: what cancellation leaves behind, and what turns of a loop show.
_NOT_BLOCKING = {
    "test_a_cancelled_claim_gives_its_task_back",
    "test_a_cancelled_claim_passes_its_wake_on",
    "test_a_claim_cancelled_while_it_is_served_loses_nothing",
    "test_closing_from_several_tasks",
    "test_closing_under_load_leaves_nobody_waiting",
    "test_fenced_off_from_other_threads",
    "test_filters_that_are_refused",  # needs no engine
    "test_leaving_while_cancelled_closes_all_the_same",
    "test_settings_outlive_the_engine",  # of the served form that is in memory
    "test_waiting_claims_are_served_in_turn",
}
for _module in MODULES:
    for _name in dir(_module):
        if _name.startswith("test_") and _name not in _NOT_BLOCKING:
            assert _name not in globals(), f"two modules have {_name}"
            globals()[_name] = getattr(_module, _name)
engine, queue = test_engine.engine, test_engine.queue


@pytest.fixture
def shards():
    return 4


@pytest.fixture
def store(form):
    return "rocks" if form == "embedded" else "memory"


@pytest.fixture
def opening(form, shards, tmp_path):
    def opening(**options):
        is_served = form == "served"
        return BlockingOpening(tmp_path / "s", is_served=is_served, shards=shards, **options)

    return opening
