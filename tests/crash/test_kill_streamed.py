"""SIGKILL after any step of streamed payloads loses none that was acknowledged, and leaves none."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from crash.nursery import Nursery
from crash.streamed_child import TASKS

pytestmark = pytest.mark.crash

STEPS_MAX = 90


@pytest.mark.parametrize("mode", ["nosync", "fsync"])
def test_sigkill_after_any_step_loses_none_that_was_acknowledged(tmp_path: Path, mode: str) -> None:
    acked_counts, left_counts = set(), set()
    with Nursery() as nursery:

        def run(root: Path, kills_after: int) -> tuple[int, list[list]]:
            config = {"path": str(root), "mode": mode, "kills_after": kills_after}
            child = nursery.start("crash.streamed_child", config)
            records = child.rest()
            return nursery.wait(child), records

        for kills_after in range(1, STEPS_MAX):
            root = tmp_path / str(kills_after)
            status, records = run(root, kills_after)
            assert status in {-signal.SIGKILL, 0}, records
            acked = {n for what, n, *_ in records if what == "acked"}
            ending = {n for what, n, *_ in records if what == "ends"}
            left_counts.add(len(list((root / "bodies0").glob("*"))))
            again, [[what, found]] = run(root, 0)
            assert (again, what) == (0, "found"), found
            there = set(found["tasks"])
            assert (found["findings"], found["good"]) == ([], True), kills_after
            assert acked - ending <= there, kills_after
            assert len(list((root / "bodies0").glob("*"))) == len(there), kills_after
            acked_counts.add(len(acked))
            if not status:  # it had no more steps
                break
        else:
            pytest.fail(f"more than {STEPS_MAX} steps")
    assert acked_counts >= {0, TASKS}
    assert len(left_counts) > 2, "too few crashes in the middle: nothing was tested"
