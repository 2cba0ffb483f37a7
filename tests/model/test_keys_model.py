"""Limits of keys, in the engine and in the reference queue, step by step.

``LODEQ_MODEL_RUNS`` (40) runs a piece, ``LODEQ_MODEL_FIRST`` the first (that of all proofs).
"""

import os

import pytest
import support_seeds
from model import key_bites, pieces
from model.keys import KeyModel
from model.stored_keys import StoredKeyModel

RUNS = int(os.environ.get("LODEQ_MODEL_RUNS", "40"))
FIRST = int(os.environ.get("LODEQ_MODEL_FIRST", support_seeds.FIRST))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.sample
def test_in_memory():
    for piece in range(4 if RUNS >= 40 else 1):
        pieces.play(KeyModel, FIRST + piece, RUNS, 40)


@pytest.mark.parametrize("piece", range(2))
def test_on_rocksdict_with_reopen_crash_and_restore(piece):
    pieces.play(StoredKeyModel, FIRST + piece, 10, 40)


def play_all(bug):
    machine = StoredKeyModel if bug in key_bites.AT_AN_OPEN else KeyModel
    for piece in range(4):
        pieces.play(machine, piece, 40, 40)


@pytest.mark.parametrize("bug", key_bites.BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug):
    """Within as many examples as the tests above have."""
    with key_bites.planted(bug), pytest.raises((AssertionError, KeyError)):
        play_all(bug)
