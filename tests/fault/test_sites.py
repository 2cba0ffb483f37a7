"""A fault at every place a store touches the disk: typed, told, and nothing acknowledged lost.

Here the first ``LODEQ_FAULT_SITES`` (100) of a shuffle over all plans; ``run.py`` does every
one. What a site is held to stands in ``judge.py``, in words in docs/faults.md.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crash.nursery import Nursery
from fault import sites
from fault.injector import preloaded
from fault.judge import BrokenError
from fault.planted import PLANTS
from support_seeds import FIRST

SITES = int(os.environ.get("LODEQ_FAULT_SITES", "100"))
WORKERS = 4
NTHS = (1, 2, 3, 5, 8, 13, 21)
# What each planted bug is looked for with: a plan it must show in, from the n-th call on.
BITES = {
    "swallow_write_errors": ("nosync", "write", "wal", "EIO", False),
    "drop_refused_groups": ("nosync", "write", "wal", "ENOSPC", False),
    "forget_the_failure": ("nosync", "write", "wal", "EIO", True),
    "leak_bare_errors": ("nosync", "write", "wal", "EIO", False),
    "retry_failed_syncs": ("fsync", "sync", "wal", "EIO", False),
    "swallow_sync_errors": ("fsync", "sync", "wal", "EIO", False),
    "ignore_the_watermark": ("nosync", "sync", "watermark", "EIO", False),
}

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240 + SITES)]


def shuffled() -> list[tuple[sites.Plan, int]]:
    """Plans in a disorder, one call of each: whatever comes first is a cross-section."""
    draw = random.Random(FIRST)
    found = [(plan, draw.choice(NTHS)) for plan in sites.plans()]
    draw.shuffle(found)
    return found


@pytest.mark.sample
def test_no_fault_breaks_a_promise(library: Path, place: Path) -> None:
    done = 0
    with contextlib.ExitStack() as stack:
        free: queue.SimpleQueue[sites.Killed] = queue.SimpleQueue()
        for number in range(WORKERS):  # more than cores: a full disk heals in RocksDB's own time
            nursery = stack.enter_context(preloaded(library))
            (place / f"killed{number}").mkdir()
            free.put(sites.Killed(nursery, library, place / f"killed{number}"))
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS))
        stack.callback(pool.shutdown, cancel_futures=True)

        def one(at: int, plan: sites.Plan, nth: int) -> bool:
            killed = free.get()
            try:
                while nth:  # there may be fewer such calls in a life
                    folder = place / f"{at}-{nth}"
                    if sites.met(killed.nursery, library, folder, plan, nth, killed):
                        return True
                    nth //= 2
                return False
            finally:
                free.put(killed)

        plans = shuffled()
        for is_met in pool.map(one, range(len(plans)), *zip(*plans, strict=True)):
            done += is_met
            if done >= SITES:
                break
    assert done >= min(SITES, len(plans) // 2), "hardly any fault was met"


@pytest.mark.parametrize("mode", ["nosync", "fsync"])
@pytest.mark.parametrize("shards", [1, 4])
def test_without_a_fault_nothing_is_refused(
    faulty_nursery: Nursery, library: Path, place: Path, mode: str, shards: int
) -> None:
    plan = sites.Plan(mode, shards, "write", "wal", "EIO", sticky=False, torn=False)
    site = sites.Site(faulty_nursery, library, place / "one", plan, 1 << 20)
    assert not site.run()
    assert site.judge.acked > 25


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(
    faulty_nursery: Nursery, library: Path, place: Path, plant: str
) -> None:
    mode, op, kind, error, sticky = BITES[plant]
    plan = sites.Plan(mode, 1, op, kind, error, sticky, torn=False)
    for nth in range(1, 16):
        site = sites.Site(faulty_nursery, library, place / str(nth), plan, nth)
        try:
            assert site.run(plant), f"{plant} was not found in {nth} sites"
        except BrokenError:
            return
        shutil.rmtree(place / str(nth), ignore_errors=True)
    pytest.fail(f"{plant} was not found in {nth} sites")
