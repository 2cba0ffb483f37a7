"""SIGKILL at random instants under a full load, thousands of times: nothing acknowledged is lost.

A round is one store: cycles of open, look, work, kill; then a full drain. The number of cycles is
``LODEQ_CRASH_CYCLES`` (500), spread over both durability modes and one and four shards;
``LODEQ_SEED`` repeats the choices of a failed run (when the kill falls is up to the
scheduler, too).
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.nursery import Nursery
from crash.rounds import ROUND_CYCLES, Round
from support_seeds import FIRST

from lodeq.testing import BrokenError

CYCLES = int(os.environ.get("LODEQ_CRASH_CYCLES", "250"))
SEED = FIRST or random.SystemRandom().randrange(1 << 32)

# As long as what is asked for may take: a fixed limit would end the long run, and not a hang.
pytestmark = [pytest.mark.crash, pytest.mark.timeout(240 + CYCLES)]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one


@pytest.mark.sample
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
                f"{mode}, {shards} shards, round {number}, {error}\nrepeat with LODEQ_SEED={seed}"
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
