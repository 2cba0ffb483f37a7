"""SIGKILL at steps of staging or taking a load in: all of it comes in, once, or none yet."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from crash.ingest_child import KEYS, stage
from crash.nursery import Nursery
from support_loop import on_loop

import lodeq

pytestmark = pytest.mark.crash

STEPS_MAX = 80
STRIDE = 4  # tests/behaviour/test_ingest.py stops at each, without a kill
HELD = {3, 4}  # dedup keys that live tasks hold
WANTED = sorted([f"bulk {n}" for n in range(KEYS) if n not in HELD] + ["live"] * len(HELD))


@on_loop
async def fill(path: Path) -> None:
    async with lodeq.open(path, shards=2) as engine:
        for n in HELD:
            await engine.queue("mail").enqueue("live", dedup_key=f"k{n}")


def run(nursery: Nursery, path: Path, *, stages: bool, kills_after: int) -> tuple[int, Any]:
    config = {"path": str(path), "stages": stages, "kills_after": kills_after}
    child = nursery.start("crash.ingest_child", config)
    records = child.rest()
    return nursery.wait(child), records


@pytest.mark.parametrize("stages", [True, False], ids=["staging", "taking in"])
def test_sigkill_leaves_a_load_whole(tmp_path: Path, stages: bool) -> None:
    fill(tmp_path / "full")
    if not stages:
        stage(str(tmp_path / "full"))
    with Nursery() as nursery:
        for kills_after in range(1, STEPS_MAX, STRIDE):
            path = tmp_path / str(kills_after)
            shutil.copytree(tmp_path / "full", path)
            status, records = run(nursery, path, stages=stages, kills_after=kills_after)
            assert status in {-signal.SIGKILL, 0}, records
            if stages:  # whoever staged does it again
                assert run(nursery, path, stages=True, kills_after=0) == (0, [["staged"]])
            again, [[what, found]] = run(nursery, path, stages=False, kills_after=0)
            assert (again, what) == (0, "took"), found
            assert (found["findings"], found["anomalies"]) == ([], [])
            assert set(found["reasons"]) <= {""}
            assert (found["payloads"], found["large"]) == (WANTED, [True])
            assert (path / "inbox" / "done" / "j.json").is_file()
            shutil.rmtree(path)
            if not status:  # it had no more steps
                break
        else:
            pytest.fail(f"more than {STEPS_MAX} steps")
    assert kills_after > 8, "too few steps: nothing was tested"
