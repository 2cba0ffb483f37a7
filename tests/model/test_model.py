"""The engine against the reference queue, step by step, whatever the steps.

``LODEQ_MODEL_RUNS`` (50) runs a piece, ``LODEQ_MODEL_FIRST`` the first (that of all proofs).
"""

import os

import pytest
import support_seeds
from model import bites, pieces
from model.machine import Model
from model.stored import StoredModel

RUNS = int(os.environ.get("LODEQ_MODEL_RUNS", "50"))
FIRST = int(os.environ.get("LODEQ_MODEL_FIRST", support_seeds.FIRST))

pytestmark = pytest.mark.slow


@pytest.mark.sample
@pytest.mark.parametrize("piece", range(6))
def test_in_memory(piece):
    pieces.play(Model, FIRST + piece, RUNS, 50)


@pytest.mark.parametrize("piece", range(3))
def test_on_rocksdict_with_reopen_crash_and_restore(piece):
    pieces.play(StoredModel, FIRST + piece, 20, 40)


def play_all():
    for piece in range(6):
        pieces.play(Model, piece, 50, 50)


@pytest.mark.parametrize("bug", bites.BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug):
    """Within as many examples as the tests above have."""
    with bites.planted(bug), pytest.raises((AssertionError, KeyError)):
        play_all()
