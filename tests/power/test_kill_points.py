"""SIGKILL at every n-th call that changes the store; every other tears the write it falls on.

``LODEQ_KILL_POINTS`` (100) calls, one after another, of a script's first segment, which makes the
store, and of its second, which opens what a dead process has left. ``run.py --kills`` does all of a
script of 2,000 operations.
"""

from __future__ import annotations

import os
import sys

import pytest
from power import crew
from power.shim import NEEDS, library
from support_seeds import FIRST

POINTS = int(os.environ.get("LODEQ_KILL_POINTS", "100"))
SEGMENT_OPS = 100
CALLS = 100  # of a segment: among the first of them a run begins

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(240 + POINTS),
    pytest.mark.skipif(library() is None, reason=NEEDS),
]


@pytest.mark.sample
def test_a_kill_at_every_call_loses_nothing() -> None:
    orders = [
        {
            "combinations": [[mode, shards]],
            "segments": [segment],
            "ops": SEGMENT_OPS,
            "n_first": 1 + FIRST % CALLS,
            "n_max": POINTS,
        }
        for mode, shards, segment in (("fsync", 1, 0), ("nosync", 1, 1))
    ]
    told = crew.run("power.kills", orders, timeout=230 + POINTS)
    sys.stdout.write("".join(f"{one}\n" for one in told))
    assert [one["failures"] for one in told] == [[], []]
    assert all(one["kills"] >= min(POINTS, 100) for one in told)
