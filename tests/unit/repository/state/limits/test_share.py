"""Shares of a limit: what all leaders may do together, however the shards are led."""

from hypothesis import given
from hypothesis import strategies as st

from lodeq.repository.state.limits.share import WHOLE, Share


@st.composite
def leaders(draw):
    """The shards of a store by who leads them; some may be led by nobody."""
    shards = draw(st.integers(1, 24))
    by_node: dict[int, list[int]] = {}
    for shard in range(shards):
        by_node.setdefault(draw(st.integers(0, 5)), []).append(shard)
    if draw(st.booleans()):
        by_node.pop(min(by_node))
    return [Share(led, shards) for led in by_node.values()], shards


@given(found=leaders(), limit=st.integers(1, 1_000_000))
def test_leaders_are_together_not_above_a_limit_of_at_least_the_shards(found, limit):
    shares, shards = found
    parts = [one.of(limit) for one in shares]
    assert all(part >= 1 for part in parts)
    if limit >= shards:
        assert sum(parts) <= limit
        if sum(len(one.led) for one in shares) == shards:
            assert sum(parts) == limit
    else:
        small = sum(limit * len(one.led) < shards for one in shares)
        assert sum(parts) <= limit + small


@given(found=leaders(), starts=st.integers(1, 1000), period=st.integers(1000, 10**9))
def test_the_means_of_all_leaders_are_together_not_above_a_rate(found, starts, period):
    shares, _ = found
    rates = [one.of_rate(starts, period) for one in shares]
    assert sum(n / length for n, length in rates) <= starts / period * (1 + 1e-9)


@given(limit=st.integers(-1, 1_000_000), shards=st.integers(1, 64))
def test_who_leads_all_has_all(limit, shards):
    for share in (WHOLE, Share([*range(shards)], shards)):
        assert share.of(limit) == limit
        assert share.of_rate(5, 1000) == (5, 1000)
