"""What holds for an engine holds for a cluster of three nodes behind one client."""

import pytest
from conformance import (
    test_bad_arguments,
    test_bulk_acts,
    test_faces,
    test_history,
    test_limits,
    test_operate,
    test_progress,
    test_workflows,
)
from conformance import test_engine as suite
from conformance import test_functions as functions  # one module has a test of that name
from support_cluster_client import ClusterOpening

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,  # each test opens and serves three engines
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]
MODULES = (
    *(test_bad_arguments, test_bulk_acts, suite, test_faces, functions),
    *(test_history, test_limits, test_operate, test_progress, test_workflows),
)
NOT_IN_A_CLUSTER = {
    "test_filters_that_are_refused",  # needs no engine
    "test_fenced_off_from_other_threads",
    "test_bodies_of_todays_format_need_no_migration",  # of a node's files
    # Each leader has its share of a limit.
    "test_no_more_are_leased_at_once_than_the_concurrency",
    "test_waiting_claims_are_served_when_a_limit_is_raised",
    "test_settings_outlive_the_engine",  # this cluster is in memory
}
# Priorities and the order of tasks are exact within a node: here one of them leads all shards.
OF_ONE_LEADER = {
    "test_another_priority_in_the_same_order",
    "test_ended_tasks_of_all_queues_are_one_pass",
    "test_lists",
    "test_nack_sends_to_the_tail_and_counts",
    "test_purge",
    "test_release_keeps_the_place_and_the_count",
    "test_tasks_come_by_priority_then_in_order",
    "test_waiting_claims_are_served_in_turn",
}
for _module in MODULES:
    for _name in dir(_module):
        if _name.startswith("test_") and _name not in NOT_IN_A_CLUSTER:
            assert _name not in globals(), f"two modules have {_name}"
            globals()[_name] = getattr(_module, _name)
engine, queue = suite.engine, suite.queue


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A request takes more turns of the loop to get to where it waits."""
    real = suite.settle

    async def settle(n=5):
        await real(min(n * 60, 400))

    monkeypatch.setattr(suite, "settle", settle)


@pytest.fixture
def shards():
    return 6


@pytest.fixture
def store():
    return "memory"


@pytest.fixture
def opening(shards, request):
    leaders = [0] * shards if request.node.originalname in OF_ONE_LEADER else None

    def opening(**options):
        return ClusterOpening(shards=shards, leaders=leaders, **options)

    return opening
