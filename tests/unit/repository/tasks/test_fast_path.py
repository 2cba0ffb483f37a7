"""The flattened calls queue the rows the general code queues, byte for byte."""

from __future__ import annotations

import pytest

from lodeq import NewTask
from lodeq.engine.runtime.ids import SeededRng
from lodeq.repository.api import queue
from lodeq.repository.api.open import open_in_memory
from lodeq.repository.state.lease_state import LeaseState
from lodeq.repository.tasks import fast_path, lease
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio
PLAIN_FIELDS = {name for name in vars(LeaseState) if name[0] != "_"} - {"bucket", "core"}
assert {"task_id", "times", "token"} < PLAIN_FIELDS
PAYLOADS = (b"", b"x" * 100, {"a": [1, 2]}, "text", b"y" * 5000)


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def rows_after_a_life(shards):
    """Every row a few lives leave, and what the engine counted."""
    rows = []
    async with open_in_memory(
        clock=ManualClock(), rng=SeededRng(7), shards=shards, reaper=False
    ) as engine:
        mail = engine.queue("mail", tenant="acme", retention=60)
        stores = [shard.store for shard in engine._core.shards]

        def look():
            rows.append([store.scan(b"", b"\xff", 10_000) for store in stores])

        receipts = [await mail.enqueue(payload) for payload in PAYLOADS]
        receipts += await mail.enqueue_many([NewTask(payload) for payload in PAYLOADS])
        look()
        for n in range(len(receipts)):
            (one,) = await mail.claim(worker="w" if n % 2 else "", exported=n % 5 == 0)
            look()
            rows.append({name: getattr(one, name, None) for name in PLAIN_FIELDS})
            await one.complete(None if n % 3 else {"n": n}, keep=n != 4)
            look()
        stats = await engine.stats()
        assert (stats.enqueued_total, stats.claimed_total, stats.completed_total) == (10, 10, 10)
        assert (await engine.verify()).ok
    return receipts, rows


@pytest.mark.parametrize("shards", [1, 4])
async def test_same_rows_as_the_general_code(monkeypatch, shards):
    flat = await rows_after_a_life(shards)
    monkeypatch.setattr(queue, "submit_plain", lambda *_: None)
    monkeypatch.setattr(queue, "submit_plain_many", lambda *_: None)
    monkeypatch.setattr(queue, "submit_claim", lambda *_: None)
    monkeypatch.setattr(lease.fast_path, "submit_complete", lambda *_: None)
    assert await rows_after_a_life(shards) == flat


async def test_the_flat_calls_are_used(monkeypatch):
    """Or the test above would compare the general code with itself."""
    used = []
    for name in ("submit_plain", "submit_plain_many", "submit_claim"):
        real = getattr(fast_path, name)

        def spy(*args, real=real, name=name):
            out = real(*args)
            if out is not None:
                used.append(name)
            return out

        monkeypatch.setattr(queue, name, spy)
    real_complete = fast_path.submit_complete
    monkeypatch.setattr(
        lease.fast_path, "submit_complete", lambda *a: used.append("complete") or real_complete(*a)
    )
    await rows_after_a_life(1)
    assert set(used) == {"submit_plain", "submit_plain_many", "submit_claim", "complete"}
