"""Workflows, in the engine and in the reference queue, step by step.

``LODEQ_MODEL_RUNS`` (40) runs a piece, ``LODEQ_MODEL_FIRST`` the first (that of all proofs).
"""

import os

import pytest
import support_seeds
from model import flow_bites, pieces
from model.flows import FlowModel
from model.stored_flows import StoredFlowModel

RUNS = int(os.environ.get("LODEQ_MODEL_RUNS", "40"))
FIRST = int(os.environ.get("LODEQ_MODEL_FIRST", support_seeds.FIRST))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.sample
@pytest.mark.parametrize("piece", range(4))
def test_in_memory(piece):
    pieces.play(FlowModel, FIRST + piece, RUNS, 40)


@pytest.mark.parametrize("piece", range(2))
def test_on_rocksdict_with_reopen_crash_and_restore(piece):
    pieces.play(StoredFlowModel, FIRST + piece, 10, 40)


def play_all():
    for piece in range(4):
        pieces.play(FlowModel, piece, 40, 40)


@pytest.mark.parametrize("bug", flow_bites.BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug):
    """Within as many examples as the tests above have."""
    with flow_bites.planted(bug), pytest.raises((AssertionError, KeyError)):
        play_all()
