"""SIGKILL after each write of any shard while ends go from shard to shard: each join fires once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.after_child import WAITING
from crash.nursery import Nursery

pytestmark = pytest.mark.crash

WRITES_MAX = 200


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one


def run(nursery: Nursery, config: dict) -> tuple[int, list[list]]:
    child = nursery.start("crash.after_child", config)
    records = child.rest()
    return nursery.wait(child), records


def check(records: list[list], *, is_whole: bool) -> None:
    """Every join fired once, after all it waits for, and at last."""
    waits = {record[1] for record in records if record[0] == "waits"}
    assert not is_whole or len(waits) == WAITING
    first: Counter[str] = Counter()
    ran = set()
    for kind, *record in records:
        if kind != "ran":
            continue
        task_id, attempt, on_failure, statuses, alive = record
        ran.add(task_id)
        first[task_id] += attempt == 1
        assert len(statuses) == 3
        assert None not in statuses
        if on_failure == "wait":
            assert set(statuses) == {"completed"}
            assert not alive
    assert waits <= ran, waits - ran
    assert max(first.values(), default=0) <= 1, first


@pytest.mark.parametrize("mode", ["nosync", "fsync"])
def test_what_waits_on_other_shards_runs_once_whatever_write_was_the_last(
    nursery: Nursery, tmp_path: Path, mode: str
) -> None:
    for kills_after in range(1, WRITES_MAX):
        config = {"path": str(tmp_path / str(kills_after)), "mode": mode}
        status, before = run(nursery, {**config, "kills_after": kills_after, "fills": True})
        assert status in {-signal.SIGKILL, 0}, before
        again, after = run(nursery, {**config, "kills_after": 0, "fills": False})
        assert again == 0, (kills_after, after)
        assert after[-1] == ["over", [], 0, []], (kills_after, after)
        check(before + after, is_whole=not status)
        if not status:  # it made no more writes
            break
    else:
        pytest.fail(f"more than {WRITES_MAX} writes")
    assert kills_after > 20
