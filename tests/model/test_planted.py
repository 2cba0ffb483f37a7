"""Each planted bug changes a function that is there: a name that has gone proves nothing."""

import pytest
from model import bites, flow_bites

PLANTED = {**bites.BUGS, **flow_bites.BUGS}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_has_its_place(bug):
    where, name = PLANTED[bug]
    before = getattr(where, name)
    planted = bites.planted if bug in bites.BUGS else flow_bites.planted
    with planted(bug):
        assert getattr(where, name) != before
