"""Shards that move about under faults drawn from a seed: nothing is lost, copies stay enough.

Each world has three or four nodes, eight shards of two copies (or three), writers and workers that
go to any node, and a network that loses, repeats and delays. Nodes join, are removed, come back,
lose their sessions, are cut off or frozen for longer than their copies wait for them, and die with
their disks; some copies are moved by hand. All the while each shard has as many copies as the rules
say; in the end everything heals, comes to rest, and the history is judged.
"""

import asyncio
import os
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partialmethod
from typing import Any

import pytest
from support_behaviour import StillClock
from support_log_cluster import STEP_S
from support_log_world import LogWorld, run_world, spawn
from support_placement import HOME, PlacedCluster
from support_seeds import FIRST

from lodeq.errors import LodeqError
from lodeq.replication.memory.network import Rates, SeededNetwork
from lodeq.replication.memory.service import LogService
from lodeq.replication.options import LogOptions
from lodeq.replication.placement import balancer, plan
from lodeq.replication.port import NO_COPY, Placement

SEEDS = int(os.environ.get("LODEQ_MOVE_SEEDS", "8"))
FAULTS = (
    *("move", "hand over") * 3,
    *("split", "freeze", "heal") * 2,
    *("join", "remove", "add", "expire", "mute", "quorum", "deaf", "crash"),
)
PLANTED_SEEDS = 1000  # one in 160 shows that reports are believed
WORLD_S = 20.0
BEHIND_MAX = 60  # what is written in the seconds that a report may be old
TOO_FEW = "one is taken away, and too few others are there"
PLACE = LogService.place
REGRESSIONS = (38,)  # both that stay die, and the third has just left


class World(LogWorld):
    """One seed."""

    cluster: PlacedCluster

    def __init__(self, seed: int) -> None:
        draw = random.Random(f"moves {seed}")
        rates = draw.choice((Rates(0, 0, 0, 0, 0, 0, 0, 0), Rates(delay_s_max=0.3)))
        super().__init__(draw, SeededNetwork(random.Random(f"network {seed}"), rates))
        self.copies = draw.choice((2, 2, 3))
        self.removals = 0
        self.crashed_at = float("-inf")
        self.gone: set[str] = set()

    async def run(self) -> None:
        draw, shards = self.draw, 8
        async with PlacedCluster(
            StillClock(), self.network, record_bytes_max=4096, shards=shards, copies=self.copies
        ) as cluster:
            self.cluster = cluster
            cluster.options = LogOptions(away_s=draw.choice((2.0, 6.0)), balance_s=2.0, lag_max=2)
            for name in "abcd"[: draw.choice((3, 4))]:
                await cluster.open(name)
            await cluster.until_at_rest()
            actors = [asyncio.ensure_future(self.write()) for _ in range(4)]
            actors += [asyncio.ensure_future(self.work()) for _ in range(2)]
            for _ in range(round(WORLD_S / STEP_S)):
                if draw.random() < STEP_S * 2:
                    await self.fault()
                await cluster.clock.advance(STEP_S, turns=draw.randint(5, 30))
                self.check_copies()
            self.is_over = self.network.is_calm = True
            cluster.heal()
            await cluster.pass_time(3)  # what was under way arrives
            await self.start_again()
            assert not self.gone
            for name in cluster.nodes:  # whoever was removed comes back
                await cluster.outcome(self.wishes(name).add(name))
            await cluster.until(lambda: all(actor.done() for actor in actors), 60)
            for actor in actors:
                actor.result()
            await cluster.until_at_rest(300)
            await cluster.check_rows()
            self.check_log()
            await self.judge()

    def wishes(self, name: str) -> Any:
        return self.cluster.nodes[name].replicator.wishes

    # -- what has to hold all the while ------------------------------------------------

    def check_copies(self) -> None:
        """Engines, whether the log reaches them or not, have copies enough."""
        for shard in range(1, self.cluster.shards):
            names = self.cluster.copies_of(shard)
            assert len(names) >= self.copies - 1, (shard, names)

    async def start_again(self) -> None:
        """Start who has died, on a new disk; without the log it stays away for now."""
        for name in sorted(self.gone):
            with suppress(LodeqError):
                await self.cluster.open(name)
                self.gone.discard(name)

    def has_all(self) -> bool:
        """Whether every shard has as many copies as it should, so that one may be lost.

        One that leaves is no such copy: it goes as soon as the others are there, and they count
        until the sessions of their nodes are over.
        """
        cluster = self.cluster
        placements = cluster.placements()
        return all(
            len({*cluster.copies_of(shard)} - {*placements[shard].leaving}) >= self.copies
            for shard in range(1, cluster.shards)
        )

    def place(
        self, service: LogService, session: int, placement: Placement, *, is_wish: bool
    ) -> bool:
        """No copy leaves a placement before as many others as there should be are there."""
        cluster = self.cluster
        before = cluster.placements().get(placement.shard)
        is_placed = PLACE(service, session, placement, is_wish=is_wish)
        gone = set() if before is None else {*before.copies} - {*placement.copies}
        if is_placed and gone:
            self.removals += 1
            assert not is_wish, placement
            tail = service.state(placement.shard).last
            there = [
                name
                for name in placement.copies
                if name in cluster.copies_of(placement.shard)
                and self.applied(name, placement.shard) >= tail - BEHIND_MAX
            ]
            # What a node that has just died had said counts until its session is over.
            is_fresh = cluster.clock.mono() < self.crashed_at + cluster.log.service.ttl_s + 3
            enough = len(there) >= self.copies - is_fresh
            assert enough, (TOO_FEW, before, placement, there)
        return is_placed

    def applied(self, name: str, shard: int) -> int:
        """How far the copy of a node goes."""
        state = self.cluster.nodes[name].engine._state
        return int(state.shards[shard].coalescer.applied.index)

    def check_log(self) -> None:
        """Every node has what the log says, and nothing of what was never placed there."""
        for name in self.cluster.nodes:
            assert sorted({*self.cluster.placed(name), HOME}) == self.cluster.hosted(name)
            for one in self.cluster.nodes[name].replicator.status().shards:
                assert (one.applied == NO_COPY) == (one.role == "absent"), one

    # -- faults ------------------------------------------------------------------------

    async def fault(self) -> None:
        network, draw, cluster = self.network, self.draw, self.cluster
        names = list(cluster.nodes)
        name, kind = draw.choice(names), draw.choice(FAULTS)
        if kind == "split":
            network.splits.add(name)
        elif kind == "mute":
            network.muted.add(name)
        elif kind == "freeze":
            network.freeze(name)
        elif kind == "expire":
            cluster.log.expire(name)
        elif kind == "quorum":
            network.has_quorum = False
        elif kind == "heal":
            cluster.heal()
        elif kind == "deaf":
            network.dropped_watch.add(name)
        elif kind == "hand over":
            _begin(cluster.nodes[name].replicator.hand_over(draw.randrange(cluster.shards)))
        elif kind == "move":
            shard, target = draw.randrange(1, cluster.shards), draw.choice(names)
            source = draw.choice((None, *names))
            _begin(self.wishes(name).move(shard, target, source))
        elif kind == "remove":
            _begin(self.wishes(name).remove(draw.choice(names)))
        elif kind == "add":
            _begin(self.wishes(name).add(draw.choice(names)))
        elif kind == "crash" and network.reaches(name) and self.has_all():
            cluster.crash(name)
            self.crashed_at = cluster.clock.mono()
            self.gone.add(name)
            await self.start_again()
        elif kind == "join" and len(names) < 5 and network.has_quorum:
            taken = {*names, *self.gone}  # whoever is away has its name for itself
            new = next(f"n{k}" for k in range(len(names), 9) if f"n{k}" not in taken)
            with suppress(LodeqError):
                await cluster.open(new)


async def _quietly(work: Any) -> None:
    with suppress(LodeqError):
        await work


def _begin(work: Any) -> None:
    spawn(_quietly(work))


def _placed(service: LogService, world: World, *given: Any, is_wish: bool) -> bool:
    return world.place(service, *given, is_wish=is_wish)


def run_all(seeds: Iterable[int]) -> int:
    """Run these; how many copies have left their places."""
    removals = 0
    for seed in seeds:
        world = World(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogService, "place", partialmethod(_placed, world))
            run_world(world, seed)
        removals += world.removals
    return removals


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_worlds_of_random_moves() -> None:
    assert run_all((*REGRESSIONS, *range(FIRST, FIRST + SEEDS))) >= SEEDS


# -- bugs that are planted, and have to be found -----------------------------------------


def eager_removal(patch: pytest.MonkeyPatch) -> None:
    """A copy goes before the one that was added is up to date."""
    fewer = plan._Round._fewer

    def without_waiting(self: Any, one: Any, stay: Any) -> Any:
        return fewer(self, replace(one, ready=frozenset(one.placement.copies)), stay)

    patch.setattr(plan._Round, "_fewer", without_waiting)


def believed_reports(patch: pytest.MonkeyPatch) -> None:
    """A copy is counted by what was reported before it was placed anew."""
    fact = balancer.Balancer._fact

    def believe(self: Any, known: Any, placement: Any, *given: Any) -> Any:
        found = fact(self, known, placement, *given)
        return replace(found, ready=found.able)

    patch.setattr(balancer.Balancer, "_fact", believe)


PLANTED = [(eager_removal, 0), (believed_reports, 400)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("plant", "first"), PLANTED)
def test_a_planted_bug_of_placement_is_found(
    plant: Any, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=TOO_FEW):
        run_all(range(first, first + PLANTED_SEEDS))
