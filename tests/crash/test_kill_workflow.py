"""SIGKILL between each pair of steps of a workflow: it goes on, and its callback runs once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.flow_child import CHAIN, PARTS
from crash.nursery import Nursery

pytestmark = pytest.mark.crash

WRITES_MAX = 80


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one


def run(nursery: Nursery, config: dict) -> tuple[int, list[list]]:
    child = nursery.start("crash.flow_child", config)
    records = child.rest()
    return nursery.wait(child), records


@pytest.mark.parametrize("mode", ["nosync", "fsync"])
@pytest.mark.parametrize("act", ["run", "redrive", "cancel"])
def test_a_workflow_outlives_a_kill_after_each_of_its_writes(
    nursery: Nursery, tmp_path: Path, act: str, mode: str
) -> None:
    for kills_after in range(1, WRITES_MAX):
        config = {"path": str(tmp_path / str(kills_after)), "mode": mode, "act": act}
        status, before = run(nursery, {**config, "kills_after": kills_after, "reaper": False})
        assert status in {-signal.SIGKILL, 0}, before
        again, after = run(nursery, {**config, "kills_after": 0, "reaper": True})
        assert again == 0, (kills_after, after)
        over = after[-1]
        assert over[0] == "over"
        assert over[5] == [], (kills_after, over)
        members = PARTS + CHAIN + 1
        if act != "cancel":
            assert over[1:4] == ["over", members, members], (kills_after, over)
        else:
            assert over[1] in ("cancelled", "over"), (kills_after, over)
            assert over[2:4] == [members, members], (kills_after, over)
        if act == "run":
            assert over[4] == 0
            joins = [join for kind, seen, *_ in before + after if kind == "joins" for join in seen]
            first = [task_id for task_id, attempt in joins if attempt == 1]
            assert len(set(first)) == len(first) <= 1, (kills_after, joins)
            assert len({task_id for task_id, _ in joins}) <= 1, (kills_after, joins)
        if not status:  # it made no more writes
            break
    else:
        pytest.fail(f"more than {WRITES_MAX} writes")
    assert kills_after > 8
