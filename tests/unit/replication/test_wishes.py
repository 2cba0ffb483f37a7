"""Wishes of an operator: the placements that they lead to."""

import pytest

from lodeq.replication.placement.wishes import Wishes
from lodeq.replication.port import Member, Placement

pytestmark = pytest.mark.anyio
SHARD = 3


class Log:
    """A log with one placement, which takes what it is given."""

    def __init__(self, *copies: str, leaving: tuple[str, ...] = ()) -> None:
        self.placement = Placement(SHARD, copies, leaving, 7)

    async def placements(self):
        return [self.placement]

    async def members(self):
        return [Member(node) for node in ("a", "b", "c", "d")]

    async def departures(self):
        return []

    async def place(self, placement, *, is_wish):
        assert is_wish
        self.placement = placement
        return True


@pytest.mark.parametrize("source", [None, "d"])
async def test_a_copy_that_is_to_leave_stays_when_it_is_wanted_there_again(source):
    """A move is taken back by the move the other way, and not answered as one that is done."""
    log = Log("a", "b", "c", "d", leaving=("c",))
    wanted = await Wishes(log, 3).move(SHARD, "c", source)
    assert log.placement is wanted
    assert set(wanted.copies) == {"a", "b", "c", "d"}
    (leaving,) = wanted.leaving
    assert leaving == source or (source is None and leaving != "c")


@pytest.mark.parametrize("source", [None, "c"])
async def test_a_move_that_is_under_way_changes_nothing(source):
    log = Log("a", "b", "c", "d", leaving=("c",))
    before = log.placement
    assert await Wishes(log, 3).move(SHARD, "d", source) is before
    assert log.placement is before
