"""Simulated clusters keep their promises; the bugs that replication layers have are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim.planted import Bug, plant
from sim.replicas import ClusterWorld
from support_seeds import FIRST

SEEDS = min(1000, int(os.environ.get("LODEQ_SIM_SEEDS", "150")))
TESTS = Path(__file__).resolve().parent.parent
SHARD = "replication/shard_replica.py"
BUGS = [
    Bug(
        "the log is truncated beyond what checkpoints reach",
        [
            (
                "replication/truncation.py",
                "    return max(state.floor, min(restorable, kept))",
                "    return max(state.floor, kept)",
            )
        ],
    ),
    Bug(
        "fragments are put together in another order",
        [
            (
                "replication/fragments.py",
                '    raw = b"".join(fragments)',
                '    raw = b"".join(reversed(fragments))',
            )
        ],
    ),
    Bug(
        "a follower skips the first entry of what it is given",
        [
            (
                SHARD,
                "            for piece, size in _pieces(entries):\n",
                "            for piece, size in _pieces(entries[len(entries) > 1 :]):\n",
            )
        ],
    ),
    Bug(
        "an append without an answer is sent again as another one",
        [
            (
                "replication/proposals.py",
                "            await self._node.log.append(record)\n",
                """            try:
                await self._node.log.append(record)
            except LodeqError as error:
                if isinstance(error, FencedError):
                    raise
                await self._node.log.append(record._replace(nonce=bytes(16)))
""",
            )
        ],
    ),
    Bug(
        "rows are written before their payloads are durable",
        [
            (
                "coalescer/replicated.py",
                "        if not group.has_bodies or self.body_barrier is None:\n",
                "        if group is not None:\n",
            )
        ],
    ),
    Bug(
        "events are published of what is only proposed",
        [
            (
                "coalescer/event_buffer.py",
                "        if not self.is_replica:\n",
                "        if self.rows is not None:\n",
            )
        ],
    ),
    Bug(
        "a cancel is answered before it is in the log",
        [
            (
                "repository/tasks/operators/admin.py",
                'b"cancelled")\n        await shard.coalescer.wait(group)\n',
                'b"cancelled")\n',
            )
        ],
    ),
    Bug(
        "a follower says that what it has not read is not there",
        [
            (
                "coalescer/replicated.py",
                "        if self.is_given_up:\n            raise self.not_leader()\n\n    @prop",
                "        if self.is_given_up:\n            return\n\n    @prop",
            )
        ],
    ),
]

CONTENDED_BUGS = [
    Bug(
        "an append is not fenced by its term",
        [
            (
                "replication/memory/service.py",
                "(leader.term, shard.tail) == (tries.term, tries.first - 1)",
                "shard.tail == tries.first - 1",
            )
        ],
    ),
    Bug(
        "a leader serves before it has read to the end",
        [
            (
                SHARD,
                "        while self.delivered < won.last:\n",
                "        while False:\n",
            )
        ],
    ),
]

KEY_BUGS = [
    Bug(
        "a new leader does not count the leases that it takes over",
        [
            (
                "repository/state/limits/key_limits.py",
                "        if limit is not None:\n            self._count(limit, lease)\n",
                "        del limit\n",
            )
        ],
    ),
    Bug(
        "the end of a lease lets nobody go",
        [
            (
                "repository/state/limits/key_limits.py",
                "        one = tenant_queue, key\n        self.freed[one]",
                "        one = tenant_queue, -1\n        self.freed[one]",
            )
        ],
    ),
]

SLICED_BUGS = [
    Bug(
        "what the reaper meets of a shard that is being gained is forgotten",
        [
            (
                "repository/background/reaper.py",
                "                    and shard.coalescer.failure is None  # elected:",
                "                    and shard.coalescer.takes_writes  # elected:",
            )
        ],
    ),
    Bug(
        "what a leader has set in vain holds on",
        [
            (
                "repository/tasks/follower.py",
                "    if shard.index == 0:  # where",
                "    if shard.index < 0:  # where",
            )
        ],
    ),
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.sample
def test_nothing_acknowledged_is_lost_and_nothing_happens_twice():
    acknowledged = faults = 0
    for seed in range(FIRST, FIRST + SEEDS):
        world = ClusterWorld(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        acknowledged += len(world.judge.acknowledged)
        faults += world.faults
    assert acknowledged > 10 * SEEDS
    assert faults > 3 * SEEDS


@pytest.mark.sample
def test_no_leader_goes_beyond_a_limit_of_keys():
    """The same worlds with a limit of keys: rule 7, and what waits for a key goes."""
    checked = aside = 0
    for seed in range(FIRST, FIRST + max(10, SEEDS // 5)):
        world = ClusterWorld(seed, has_keys=True)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}, with a limit of keys: {error!r}") from error
        checked += world.keys.checked
        aside += world.keys.aside
    assert checked > 100
    assert aside > 10


HUNT = """
import sys
from sim.replicas import ClusterWorld, RuleBrokenError
for seed in range(int(sys.argv[1])):
    try:
        kind = sys.argv[2]
        is_contended = None if kind == "sliced" else kind == "contended"
        world = ClusterWorld(seed, is_contended=is_contended, has_keys=kind == "keys")
        if world.slices.is_on or kind != "sliced":
            world.run()
    except RuleBrokenError as error:  # anything else is no find
        print("seed", seed, str(error)[:200])
        break
"""


def named(bug: Bug) -> str:
    return bug.name.replace(" ", "-")


@pytest.mark.parametrize("bug", BUGS, ids=named)
def test_a_planted_bug_is_found(bug, tmp_path):
    assert_found(bug, tmp_path, 200, "calm")


@pytest.mark.parametrize("bug", CONTENDED_BUGS, ids=named)
def test_a_planted_bug_is_found_where_leaders_change_all_the_time(bug, tmp_path):
    assert_found(bug, tmp_path, 2000, "contended")


@pytest.mark.parametrize("bug", KEY_BUGS, ids=named)
def test_a_planted_bug_is_found_where_keys_have_a_limit(bug, tmp_path):
    assert_found(bug, tmp_path, 200, "keys")


@pytest.mark.parametrize("bug", SLICED_BUGS, ids=named)
def test_a_planted_bug_is_found_where_work_yields(bug, tmp_path):
    assert_found(bug, tmp_path, 2000, "sliced")


def assert_found(bug, tmp_path, seeds: int, kind: str) -> None:
    plant(bug, tmp_path)
    told = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-c", HUNT, str(seeds), kind],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(TESTS)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert "seed" in told.stdout, told.stdout + told.stderr[-2000:]
