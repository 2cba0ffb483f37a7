"""SIGKILL between the writes of one tick keeps counters and heads right.

A tick writes several groups, one after another. Counters ride in each group and must describe
that group and those before it, never the ones still to come (docs/adr, sealed counters).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.nursery import Nursery
from crash.tick_child import BEFORE, NEW

pytestmark = pytest.mark.crash

WRITES_MAX = 16


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one


def run(nursery: Nursery, config: dict, kills_after: int) -> tuple[int, list[list]]:
    child = nursery.start("crash.tick_child", {**config, "kills_after": kills_after})
    records = child.rest()
    return nursery.wait(child), records


def check(found: dict, order: list[str]) -> int:
    """A reopened store: consistent, whole batches only, every ready task claimable, in order."""
    assert not found["findings"]
    assert not found["anomalies"]
    assert found["counted"] == found["rows"]
    where = {number: places for _, number, places in found["tasks"]}
    assert all(len(places) == 1 for places in where.values())
    completed = {status for _, status, _ in found["results"]}
    assert completed <= {"completed"}
    for i in (0, 1):  # complete with its follow-up, or neither
        assert (i in where) is not (100 + i in where)
    assert len(found["results"]) == sum(100 + i in where for i in (0, 1))
    for number in range(BEFORE):
        if number in where:
            kind, attempts, _ = where[number][0]
            assert kind == "ready"  # a lease of the dead process is back
            assert attempts == 1 if number < 4 else attempts in {0, 1}
    ready = {number for number, places in where.items() if places[0][0] == "ready"}
    numbers = [int(text.rstrip(":")) for text in order]
    assert sorted(numbers) == sorted(ready), "a ready task is hidden behind a head"
    assert [n < BEFORE for n in numbers] == sorted((n < BEFORE for n in numbers), reverse=True)
    return sum(number >= 200 for number in where)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("mode", ["nosync", "fsync"])
def test_sigkill_between_the_writes_of_one_tick_keeps_counters_and_heads_right(
    nursery: Nursery, tmp_path: Path, mode: str, shards: int
) -> None:
    enqueued = []
    for kills_after in range(1, WRITES_MAX + 1):
        config = {"path": str(tmp_path / str(kills_after)), "mode": mode, "shards": shards}
        status, records = run(nursery, config, kills_after)
        assert status in {-signal.SIGKILL, 0}, records
        again, [[what, *seen]] = run(nursery, config, 0)
        assert (again, what) == (0, "found"), seen
        enqueued.append(check(*seen))
        if not status:  # the tick had no more writes
            break
    else:
        pytest.fail(f"one tick made more than {WRITES_MAX} writes on a shard")
    assert kills_after > 4 // shards, "the tick was a single write: nothing was tested"
    assert enqueued[-1] == NEW
    if shards == 1:
        assert enqueued == sorted(enqueued), "a later write was there without an earlier one"
        assert enqueued[0] < NEW
