"""The simulation bites: it finds every bug that is planted, in a few hundred seeds at most."""

from __future__ import annotations

import pytest
from sim import test_after, test_flows, test_replicas
from sim.planted import SEEDS_MAX, Bug, bugs, hunt, patched, plant

BUGS_MIN = 12
OF_OTHERS = [
    *(*test_after.BUGS, *test_flows.BUGS),
    *(*test_replicas.BUGS, *test_replicas.CONTENDED_BUGS, *test_replicas.KEY_BUGS),
    *test_replicas.SLICED_BUGS,
]


def test_there_are_enough_of_them():
    names = [bug.name for bug in bugs()]
    assert len(set(names)) == len(names) >= BUGS_MIN


def test_each_fits_the_product_as_it_is():
    """Also those whose hunts no commit waits for."""
    for bug in (*bugs(), *OF_OTHERS):
        assert patched(bug)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found(bug: Bug, tmp_path):
    seed, told = hunt(bug, tmp_path)
    assert seed is not None, f"not found in {SEEDS_MAX} seeds: {told}"


@pytest.mark.slow
def test_without_a_bug_nothing_is_found(tmp_path):
    """So it is the bug that was found, and not the copy."""
    seed, told = hunt(Bug("none", []), tmp_path, seeds=30)
    assert seed is None, told


def test_a_patch_that_does_not_fit_is_told(tmp_path):
    bug = Bug("stale", [("engine/runtime/ids.py", "no such line\n", "\n")])
    with pytest.raises(LookupError, match="does not fit"):
        plant(bug, tmp_path)
