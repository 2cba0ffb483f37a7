"""Decisions of the balancer, as pure functions: copies, zones, evenness, leaders."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodeq.replication.options import LogOptions
from lodeq.replication.placement.balancer import Balancer, _Known
from lodeq.replication.placement.leaders import place_leaders, weights_of
from lodeq.replication.placement.plan import PlacedNode, PlacedShard, plan
from lodeq.replication.port import Departure, Member, Placement

NAMES = "abcdefg"


class World:
    """Nodes that do at once, or late, what placements say."""

    def __init__(self, nodes, placements, copies, *, ready=None, is_home_first=False):
        self.nodes = {node.name: node for node in nodes}
        self.placements = dict(enumerate(placements))
        self.copies = copies
        self.is_home_first = is_home_first
        # Copies that are up to date: those that were there, of live nodes.
        self.ready = ready or {
            shard: {name for name in one.copies if self.nodes[name].is_live}
            for shard, one in self.placements.items()
        }

    def shards(self):
        return [
            PlacedShard(
                one,
                frozenset(self.ready[shard]),
                frozenset(self.ready[shard]),
                is_everywhere=self.is_home_first and shard == 0,
            )
            for shard, one in sorted(self.placements.items())
        ]

    def round(self, draw=lambda copies: copies):
        """One round: take the steps, keep the rules; some new copies come to be up to date."""
        steps = plan(self.nodes, self.shards(), self.copies)
        assert len({step.shard for step in steps}) == len(steps)
        for step in steps:
            self.take(step)
        for shard, one in self.placements.items():
            fresh = [
                name
                for name in one.copies
                if name not in self.ready[shard] and self.nodes[name].is_live
            ]
            self.ready[shard] |= set(draw(fresh))
        return steps

    def take(self, step):
        before, shard = self.placements[step.shard], step.shard
        assert len(set(step.copies)) == len(step.copies)
        assert set(step.leaving) <= set(step.copies)
        gone, come = set(before.copies) - set(step.copies), set(step.copies) - set(before.copies)
        assert not (gone and come), "one step at a time"
        assert len(gone) <= 1
        for name in gone:
            left = self.ready[shard] - {name}
            if name in self.ready[shard]:
                assert len(left) >= self.copies, (before, step)
            assert left, (before, step)
            self.ready[shard].discard(name)
        for name in come:
            assert self.nodes[name].takes
        self.placements[shard] = replace(step, version=before.version + 1)

    def held(self):
        return Counter(name for one in self.placements.values() for name in one.copies)


def settled(world, rounds=500, **given):
    """Until nothing is to be done."""
    for _ in range(rounds):
        if not world.round(**given) and not plan(world.nodes, world.shards(), world.copies):
            return
    raise AssertionError(f"it does not end: {world.placements}")


def nodes_of(text, **more):
    return [PlacedNode(name, **more) for name in text]


def placed(*copies, version=1):
    return [Placement(n, tuple(one), version=version) for n, one in enumerate(copies)]


def test_a_new_cluster_gets_its_copies_evenly():
    world = World(nodes_of("abc"), placed(*[""] * 12, version=0), 2)
    settled(world)
    assert set(world.held().values()) == {8}
    assert len({one.copies[0] for one in world.placements.values()}) == 3


@pytest.mark.parametrize("able", ["", "c", "bc", "abc"])
def test_a_shard_that_is_somewhere_is_first_placed_there(able):
    nodes = {node.name: node for node in nodes_of("abcd")}
    one = PlacedShard(Placement(0, ()), (), (), frozenset(able), needs_copy=True)
    steps = plan(nodes, [one], 2)
    if not able:
        assert steps == []  # whoever it was placed with would wait for ever
    else:
        assert set(able) <= {*steps[0].copies}
        assert len(steps[0].copies) == max(2, len(able))


def test_with_fewer_nodes_than_copies_each_has_every_shard():
    world = World(nodes_of("a"), placed(*[""] * 4, version=0), 3)
    settled(world)
    assert world.held() == {"a": 4}
    world.nodes["b"] = PlacedNode("b")
    settled(world)
    assert world.held() == {"a": 4, "b": 4}


def test_a_node_that_joins_gets_its_share():
    world = World(nodes_of("abc"), placed(*["ab", "bc", "ca"] * 4), 2)
    world.nodes["d"] = PlacedNode("d")
    settled(world)
    assert set(world.held().values()) == {6}


def test_a_node_that_leaves_is_rid_of_its_copies_and_only_then():
    world = World(nodes_of("abcd"), placed(*["ab", "bc", "cd", "da"] * 3), 2)
    world.nodes["d"] = PlacedNode("d", is_leaving=True)
    settled(world)
    assert world.held()["d"] == 0
    assert set(world.held().values()) == {8}


def test_nothing_is_taken_away_where_nobody_else_can_have_it():
    world = World(nodes_of("ab"), placed("ab", "ba"), 2)
    world.nodes["b"] = PlacedNode("b", is_leaving=True)
    assert not world.round()


def test_a_copy_that_was_to_go_stays_if_its_successor_dies():
    world = World(nodes_of("abc"), placed("abc"), 2, ready={0: {"a", "b"}})
    world.placements[0] = replace(world.placements[0], leaving=("a",))
    world.nodes["c"] = PlacedNode("c", is_live=False, is_away=True)
    (step,) = world.round()
    assert (step.copies, step.leaving) == (("a", "b", "c"), ())


def test_a_short_absence_moves_nothing_and_a_long_one_does():
    world = World(nodes_of("abc"), placed("ab", "bc", "ca"), 2)
    world.nodes["c"] = PlacedNode("c", is_live=False)
    world.ready = {0: {"a", "b"}, 1: {"b"}, 2: {"a"}}
    assert not world.round()
    world.nodes["c"] = PlacedNode("c", is_live=False, is_away=True)
    settled(world)
    assert world.held() == {"a": 3, "b": 3}


def test_a_dead_node_is_out_as_soon_as_one_other_copy_is_up_to_date():
    dead = PlacedNode("c", is_live=False, is_leaving=True, is_dead=True)
    world = World([*nodes_of("a"), dead], placed("ac"), 2, ready={0: {"a"}})
    (step,) = world.round()
    assert step.copies == ("a",)
    alone = World([*nodes_of("a"), dead], placed("c"), 2, ready={0: set()})
    (step,) = plan(alone.nodes, alone.shards(), 2)
    assert step.copies == ("c", "a")


def test_nothing_goes_before_others_can_start_from_what_is_left():
    nodes = {node.name: node for node in nodes_of("abc")}
    one = PlacedShard(Placement(0, ("a", "b", "c"), ("a",), 1), frozenset("abc"), frozenset("a"))
    assert not plan(nodes, [one], 2)
    assert plan(nodes, [replace(one, restorable=frozenset("ac"))], 2)


def test_copies_go_to_different_zones():
    nodes = [PlacedNode(name, "east" if name in "abc" else "west") for name in "abcd"]
    world = World(nodes, placed(*[""] * 6, version=0), 2)
    settled(world)
    for one in world.placements.values():
        assert "d" in one.copies
    moved = World(nodes, placed("ab", "bc", "ac", "ab"), 2)
    settled(moved)
    for one in moved.placements.values():
        assert "d" in one.copies


def test_the_home_shard_is_on_every_node():
    world = World(nodes_of("abcd"), placed(*[""] * 8, version=0), 2, is_home_first=True)
    settled(world)
    assert sorted(world.placements[0].copies) == [*"abcd"]
    world.nodes["d"] = PlacedNode("d", is_leaving=True)
    settled(world)
    assert sorted(world.placements[0].copies) == [*"abc"]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_from_anywhere_the_planner_comes_to_rest_with_every_copy_in_place(data):
    names = NAMES[: data.draw(st.integers(1, 7))]
    copies = data.draw(st.integers(1, 4))
    zones = data.draw(st.sampled_from([("",), ("",), ("x", "y"), ("x", "y", "z")]))
    nodes = [
        PlacedNode(
            name,
            data.draw(st.sampled_from(zones)),
            is_live=(is_live := data.draw(st.integers(0, 4)) > 0),
            is_away=not is_live,
            is_leaving=(is_leaving := data.draw(st.integers(0, 5)) == 0),
            is_dead=is_leaving and not is_live,
        )
        for name in names
    ]
    placements = []
    for shard in range(data.draw(st.integers(1, 8))):
        there = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=5))
        leaving = data.draw(st.lists(st.sampled_from(there), unique=True)) if there else []
        placements.append(Placement(shard, tuple(there), tuple(leaving), 1 if there else 0))
    live = {node.name for node in nodes if node.is_live}
    takers = {node.name for node in nodes if node.takes}
    # Somebody who lives has a copy; nobody can say what to do with one that is lost.
    placements = [
        one if set(one.copies) & live or not one.copies else Placement(one.shard, ())
        for one in placements
    ]
    world = World(nodes, placements, copies)

    def some(fresh):
        return [name for name in fresh if data.draw(st.booleans())]

    for _ in range(data.draw(st.integers(0, 5))):
        world.round(draw=some)
    settled(world)
    if not takers:
        return
    reachable = min(copies, len(takers))
    zones_of = {node.name: node.zone for node in nodes}
    for one in world.placements.values():
        assert len(set(one.copies) & takers) >= reachable, (one, takers)
        if len(takers) >= copies:
            assert set(one.copies) <= takers, (one, takers)
            assert len(one.copies) == copies
    if len(takers) >= copies and len({zones_of[name] for name in takers}) == 1:
        held = [world.held()[name] for name in takers]
        assert max(held) - min(held) <= 1, held
    if len(takers) >= copies:
        apart = min(copies, len({zones_of[name] for name in takers}))
        for one in world.placements.values():
            assert len({zones_of[name] for name in one.copies}) == apart, one


# -- leaders -----------------------------------------------------------------------------


def lead(nodes, shards, rounds=100):
    """Make all changes of leaders, which come to an end; the shards."""
    for _ in range(rounds):
        steps = {step.shard: step for step in place_leaders(nodes, shards)}
        if not steps:
            return shards
        shards = [
            replace(one, placement=steps.get(one.placement.shard, one.placement)) for one in shards
        ]
    raise AssertionError("it does not end")


def shards_of(*copies, weights=None):
    return [
        PlacedShard(
            Placement(n, tuple(one), version=1),
            frozenset(one),
            able=frozenset(one),
            weight=1.0 if weights is None else weights[n],
        )
        for n, one in enumerate(copies)
    ]


def test_leaders_are_spread_by_what_shards_write():
    nodes = {node.name: node for node in nodes_of("abc")}
    shards = lead(nodes, shards_of(*["abc"] * 9))
    assert Counter(one.placement.copies[0] for one in shards) == {"a": 3, "b": 3, "c": 3}
    rates = [90.0, 1, 1, 1, 1, 1, 1, 1, 1]
    shards = lead(nodes, shards_of(*["abc"] * 9, weights=weights_of(rates)))
    busy = shards[0].placement.copies[0]
    assert sum(one.placement.copies[0] == busy for one in shards) == 1


def test_who_is_drained_or_behind_or_leaving_leads_nothing():
    nodes = {node.name: node for node in nodes_of("ab")}
    nodes["b"] = PlacedNode("b", is_drained=True)
    assert not place_leaders(nodes, shards_of("ab", "ab", "ab"))
    nodes["b"] = PlacedNode("b")
    behind = [replace(one, able=frozenset("a")) for one in shards_of("ab", "ab", "ab")]
    assert not place_leaders(nodes, behind)
    leaving = [
        replace(one, placement=replace(one.placement, leaving=("b",)))
        for one in shards_of("ab", "ab", "ab")
    ]
    assert not place_leaders(nodes, leaving)


def test_who_says_that_it_may_not_lead_is_given_nothing_to_lead():
    node = SimpleNamespace(mono=lambda: 7.0, options=LogOptions())
    members = {name: Member(name, may_lead=name != "b") for name in "abc"}
    members["c"] = replace(members["c"], is_drained=True)
    nodes = Balancer(node, 4, 2)._nodes(
        _Known(), placed("ab", "ab", "ad"), members, {"d": Departure("d")}
    )
    assert [(one.name, one.takes, one.is_drained) for _, one in sorted(nodes.items())] == [
        ("a", True, False),
        ("b", True, True),  # it takes copies
        ("c", True, True),
        ("d", False, False),
    ]
    assert not place_leaders(nodes, shards_of("ab", "ab", "ab"))


@given(
    st.lists(st.permutations("abcd").map(lambda names: names[:2]), min_size=1, max_size=12),
    st.lists(st.floats(0, 1000), min_size=12, max_size=12),
)
def test_changes_of_leaders_come_to_an_end_with_nobody_to_be_relieved(copies, rates):
    nodes = {node.name: node for node in nodes_of("abcd")}
    weights = weights_of(rates[: len(copies)])
    shards = lead(nodes, shards_of(*copies, weights=weights))
    load = Counter()
    for one in shards:
        load[one.placement.copies[0]] += one.weight
    for one in shards:
        first, second = one.placement.copies
        assert load[first] - load[second] - one.weight <= 0.25 * one.weight + 1e-6


def test_idle_shards_weigh_the_same():
    assert weights_of([0.0, 0.0]) == [1.0, 1.0]
    assert weights_of([3.0, 1.0]) == [2.5, 1.5]
