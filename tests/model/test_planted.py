"""Each planted bug changes a function that is there: a name that has gone proves nothing."""

import pytest
from model import bites, flow_bites, key_bites

FAMILIES = bites, flow_bites, key_bites
PLANTED = {bug: (family, *place) for family in FAMILIES for bug, place in family.BUGS.items()}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_has_its_place(bug):
    family, where, name = PLANTED[bug]
    before = getattr(where, name)
    with family.planted(bug):
        assert getattr(where, name) != before
