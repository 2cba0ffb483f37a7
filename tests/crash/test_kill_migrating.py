"""SIGKILL after any step of a migration of body files loses nothing, and the next one ends it."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from crash.nursery import Nursery
from support_bodies import Opened, as_v1, names
from support_loop import on_loop

import lodeq

pytestmark = pytest.mark.crash

STEPS_MAX = 60
PAYLOADS = [f"{i:03d}" * 300 for i in range(10)]


@on_loop
async def fill(root: Path) -> None:
    async with Opened(root, body_bytes_min=500) as rig:
        await rig.queue.enqueue_many([lodeq.NewTask(text.encode()) for text in PAYLOADS])


def test_sigkill_after_any_step_of_a_migration_loses_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "full")
    as_v1(tmp_path / "full")
    with Nursery() as nursery:

        def run(root: Path, kills_after: int) -> tuple[int, list[list]]:
            config = {"path": str(root / "s"), "kills_after": kills_after}
            child = nursery.start("crash.migrate_child", config)
            records = child.rest()
            return nursery.wait(child), records

        moved = []
        for kills_after in range(1, STEPS_MAX):
            root = tmp_path / str(kills_after)
            shutil.copytree(tmp_path / "full", root)
            status, records = run(root, kills_after)
            assert status in {-signal.SIGKILL, 0}, records
            again, [[what, records_left, found]] = run(root, 0)
            assert (again, what) == (0, "found"), found
            assert found == {"findings": [], "payloads": PAYLOADS, "old": 0}
            assert all(name.endswith(".sqs") for name in names(root))
            moved.append(10 - records_left)
            if not status:  # it had no more steps
                break
        else:
            pytest.fail(f"more than {STEPS_MAX} steps")
    assert kills_after > 10, "too few steps: nothing was tested"
    assert moved[0] == 0
    assert moved[-1] == 10
    assert 0 < moved[len(moved) // 2] < 10
