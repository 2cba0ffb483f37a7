"""Bodies of a backlog come by scans, but never at the price of much that nobody asked for."""

from typing import Any

import pytest
from support_faults import Rig, faulty
from support_loop import on_loop

from lodeq import NewTask


def told(rig: Rig) -> list[int]:
    """The bytes of every scan of task records from now on."""
    sizes: list[int] = []
    scan_part = rig.store.scan_part

    def counted(lower: bytes, upper: bytes, limit: int) -> Any:
        rows, following = scan_part(lower, upper, limit)
        if lower.startswith(b"t/"):
            sizes.append(sum(len(value) for _, value in rows))
        return rows, following

    rig.store.scan_part = counted  # type: ignore[method-assign]
    return sizes


@pytest.fixture(autouse=True)
def from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lodeq.repository.state.engine_state.HELD_BYTES_MAX", 0)


@on_loop
async def test_tasks_that_lie_side_by_side_are_scanned_whole() -> None:
    async with faulty() as rig:
        await rig.queue.enqueue_many([NewTask(n) for n in range(300)])
        sizes = told(rig)
        found = await rig.queue.claim(limit=300)
        assert [lease.payload for lease in found] == list(range(300))
        assert sum(sizes) == sum(lease.record_bytes for lease in found)


@on_loop
async def test_large_tasks_in_between_are_not_read_along() -> None:
    async with faulty() as rig:
        for n in range(600):
            rig.clock.jump(0.001)  # so that they lie in the order they came
            await rig.queue.enqueue(n)
            await rig.engine.queue("large").enqueue(bytes(10_000))
        sizes = told(rig)
        for part in range(0, 600, 300):
            found = await rig.queue.claim(limit=300)
            assert [lease.payload for lease in found] == list(range(part, part + 300))
        assert sum(sizes) < 64 * 11_000, "one page, then it is known how they lie"
