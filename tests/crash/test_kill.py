"""SIGKILL at random instants under a full load, thousands of times: nothing acknowledged is lost.

A round is one store: cycles of open, look, work, kill; then a full drain. The number of cycles is
``LODEQ_CRASH_CYCLES`` (500), spread over both durability modes and one and four shards;
``LODEQ_CRASH_SEED`` repeats the choices of a failed run (when the kill falls is up to the
scheduler, too).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.nursery import Nursery

from lodeq.testing import BrokenError, History

CYCLES = int(os.environ.get("LODEQ_CRASH_CYCLES", "500"))
SEED = int(os.environ.get("LODEQ_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
ROUND_CYCLES = 25
WORK_S_MAX = 0.06
OPEN_S_MAX = 0.05
LIFE_S_MAX = 120.0  # of a child that should have told something long ago

# As long as what is asked for may take: a fixed limit would end the long run, and not a hang.
pytestmark = [pytest.mark.crash, pytest.mark.timeout(240 + CYCLES)]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one


class Round:
    """One store, killed again and again."""

    def __init__(self, nursery: Nursery, path: Path, mode: str, shards: int, seed: int) -> None:
        self.nursery = nursery
        self.random = random.Random(seed)
        self.history = History(shards, durability=mode, tracks_power=False)
        path.mkdir()
        self.fixed = {"path": str(path / "store"), "mode": mode, "shards": shards}

    def start(self, *, drain: bool = False):
        draw = self.random
        return self.nursery.start("crash.load", {
            **self.fixed, "drain": drain, "seed": draw.randrange(1 << 32),
            "first": self.history.next_number,
            "merge_max": draw.choice((1, 4, 64)), "queue_max": draw.choice((8, 1024)),
        })  # fmt: skip

    def cycle(self) -> None:
        """Open, look, work, kill. One in eight does not live to look."""
        history = self.history
        child = self.start()
        looked = history.found
        until = time.monotonic() + LIFE_S_MAX
        if self.random.random() < 0.125:
            until = time.monotonic() + self.random.random() * OPEN_S_MAX
            looked = -1
        while not child.is_over and time.monotonic() < until:
            for record in child.read(until):
                history.take(record)
            if history.found == looked + 1:
                until = time.monotonic() + self.random.random() * WORK_S_MAX
                looked = -1
        status = self.nursery.kill(child)
        for record in child.rest():
            history.take(record)
        history.killed()
        if status != -signal.SIGKILL:
            raise BrokenError(f"a child ended by itself, with {status}")

    def run(self, cycles: int) -> None:
        """All of it; what is wrong is told with the cycle."""
        for cycle in range(cycles):
            try:
                self.cycle()
            except BrokenError as error:
                raise BrokenError(f"cycle {cycle}: {error}") from error
        self.drain()

    def drain(self) -> None:
        """The rest, without a kill: every task ends."""
        child = self.start(drain=True)
        for record in child.rest():
            self.history.take(record)
        status = self.nursery.wait(child)
        if status:
            raise BrokenError(f"the last child ended with {status}")


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("mode", ["nosync", "fsync"])
def test_a_kill_at_any_instant_loses_nothing_and_repeats_nothing(
    nursery: Nursery, tmp_path: Path, mode: str, shards: int
) -> None:
    cycles = -(-CYCLES // 4)
    acked = tasks = 0
    started = time.monotonic()
    sizes = [min(ROUND_CYCLES, cycles - at) for at in range(0, cycles, ROUND_CYCLES)]
    for number, size in enumerate(sizes):
        seed = SEED + number
        one = Round(nursery, tmp_path / str(number), mode, shards, seed)
        try:
            one.run(size)
        except BrokenError as error:
            pytest.fail(
                f"{mode}, {shards} shards, round {number}, {error}\n"
                f"repeat with LODEQ_CRASH_SEED={seed}"
            )
        shutil.rmtree(tmp_path / str(number))
        acked += one.history.acked
        tasks += len(one.history.tasks)
    took = time.monotonic() - started
    sys.stdout.write(
        f"{mode}, {shards} shards: {cycles} kills in {took:.0f} s ({cycles / took * 60:.0f} a "
        f"minute), {tasks} tasks, {acked} acknowledged operations, seed {SEED}\n"
    )
    assert acked > cycles, "the load did nothing"
