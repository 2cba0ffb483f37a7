"""Thousands of simulated worlds, each a seed: no promise may be broken in any of them.

``LODEQ_SIM_SEEDS`` says how many (800), ``LODEQ_SEED`` the first. ``make sim SEED=n``
repeats one and tells what happened in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sim.run import regressions, run_seed, run_seeds
from sim.world import World
from support_seeds import FIRST

SEEDS = int(os.environ.get("LODEQ_SIM_SEEDS", "800"))
TESTS = Path(__file__).resolve().parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + SEEDS)]


@pytest.mark.sample
def test_no_seed_breaks_a_promise():
    done, failed, started = 0, [], time.monotonic()
    for count, found in run_seeds(range(FIRST, FIRST + SEEDS)):
        done += count
        failed += found
    took = time.monotonic() - started
    sys.stdout.write(f"{done} seeds from {FIRST} in {took:.0f} s, {done / took:.0f} a second\n")
    assert done == SEEDS
    assert not failed, "\n".join(
        f"seed {seed}: {why[:2000]}\nrepeat: make sim SEED={seed}" for seed, why in failed[:5]
    )


@pytest.mark.parametrize("seed", regressions())
def test_a_seed_that_once_failed(seed):
    assert run_seed(seed) is None


# A step of the wall clock between some starts and a kill; a cancel that ended a task before the
# claim that took it was answered (both times the judge was wrong).
@pytest.mark.parametrize("seed", [966671, 574764])
def test_a_seed_with_limits_that_once_failed(seed):
    World(seed, has_limits=True).run()


# An attempts row was left where a cut took the death that it belonged to.
@pytest.mark.parametrize("seed", [45004])
def test_a_seed_of_the_history_that_once_failed(seed):
    World(seed, has_history=True).run()


@pytest.mark.sample
def test_no_seed_breaks_a_limit():
    """The same worlds with limits: rule 13, and whoever waits for a window gets its task."""
    checked = 0
    for seed in range(FIRST, FIRST + max(30, SEEDS // 10)):
        world = World(seed, has_limits=True)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}, with limits") from error
        checked += world.history.limits.checked
    assert checked > 100


@pytest.mark.sample
def test_no_seed_breaks_a_limit_of_keys():
    """The same worlds with a limit of keys: no key is above it, and what waits for one goes."""
    checked = aside = 0
    for seed in range(FIRST, FIRST + max(5, SEEDS // 20)):
        world = World(seed, has_keys=True)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}, with a limit of keys") from error
        checked += world.keys.checked
        aside += world.keys.aside
    assert checked > 100
    assert aside or SEEDS < 200


# A setting that changed while the reaper looked at all keys for the one before.
@pytest.mark.parametrize("seed", [84])
def test_a_seed_with_a_limit_of_keys_that_once_failed(seed):
    World(seed, has_keys=True).run()


@pytest.mark.sample
def test_no_seed_breaks_a_promise_of_the_history():
    """The same worlds with a history: rule 23, and all others of rows that stay for longer."""
    without = 0
    for seed in range(FIRST, FIRST + max(30, SEEDS // 10)):
        world = World(seed, has_history=True)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}, with a history") from error
        ends = [r[1].get("ends", {}) for r in world.records if r[0] == "found"]
        without += sum(not has_value for one in ends for has_value, *_ in one.values())
    assert without > 100


def test_a_journal_tells_of_what_survived_and_of_nothing_else():
    """As in every other world that has one; here they all have."""
    worlds = [world for seed in range(FIRST, FIRST + 60) if (world := World(seed)).journal]
    assert len(worlds) > 20
    for world in worlds:
        world.run()  # its judge raises
    records = [record for world in worlds if world.journal for record in world.journal.records]
    assert {record[:1] for record in records} == {b"J", b"N"}


def test_worlds_see_what_they_are_there_for():
    """The sample is not tame: crashes, holes, repairs, unknown outcomes, refusals, expiries."""
    seen = dict.fromkeys(("kills", "cuts", "unknown", "cancelled", "refused", "delivered"), 0)
    lost = recoveries = shrunk = told = repeats = 0
    for seed in range(FIRST, FIRST + 60):
        world = World(seed)
        world.run()
        for name in seen:
            seen[name] += getattr(world.history, name)
        lost += world.sim.disk.lost_batches
        recoveries += len(world.sim.recoveries)
        shrunk += bool(world.knobs)
        if world.journal is not None:
            told += len(world.journal.records)
            repeats += world.journal.repeats
    assert all(seen.values()), seen
    assert lost
    assert recoveries
    assert shrunk
    assert told > repeats > 0


TELL_DIGEST = """
import sys
from sim.world import World
for seed in map(int, sys.argv[1:]):
    world = World(seed)
    world.run()
    print(seed, world.sim.steps, world.sim.time.now_s, len(world.records), world.digest)
"""


def test_the_same_seed_is_the_same_run_in_any_process():
    """Whatever the order of sets and dicts of strings, the addresses, the time of day."""
    seeds = [str(FIRST + n) for n in (0, 1, 2, 3, 5, 8, 13, 21)]
    told = [
        subprocess.run(
            [sys.executable, "-c", TELL_DIGEST, *seeds],
            check=True,
            capture_output=True,
            text=True,
            timeout=200,
            env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert len({line.split()[-1] for line in told[0].splitlines()}) == len(seeds)
