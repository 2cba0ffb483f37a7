"""A claim that takes its tasks in several turns of the loop."""

import asyncio

import pytest
from support_behaviour import in_memory

from lodeq import NewTask
from lodeq.repository.model.arguments import LIMIT_MAX
from lodeq.repository.tasks import claim_order
from lodeq.repository.tasks.claim import TURN_TASKS

pytestmark = pytest.mark.anyio
N = TURN_TASKS


@pytest.fixture
async def engine():
    async with in_memory() as engine:
        yield engine


@pytest.fixture
def turns(engine, monkeypatch):
    """Called at each turn that is given."""
    acts, checkpoint = [], engine._state.spawner.checkpoint

    async def acting():
        for act in acts:
            await act()
        await checkpoint()

    monkeypatch.setattr(engine._state.spawner, "checkpoint", acting)
    return acts


async def test_others_have_their_turn_and_nothing_is_taken_twice(engine, turns):
    mail, others = engine.queue("mail"), []
    await mail.enqueue_many([NewTask(b"")] * (2 * N + 10))

    async def claims():
        others.extend(await mail.claim(limit=3))

    turns.append(claims)
    leases = await mail.claim(limit=LIMIT_MAX)
    assert others
    assert len({one.task_id for one in leases + others}) == len(leases) + len(others) == 2 * N + 10
    assert all(lease.is_live for lease in leases + others)
    assert (await mail.stats()).ready == 0


async def test_what_a_cancelled_claim_had_taken_goes_back(engine, turns):
    mail = engine.queue("mail")
    await mail.enqueue_many([NewTask(b"")] * (2 * N))

    async def cancelled():
        raise asyncio.CancelledError

    turns.append(cancelled)
    with pytest.raises(asyncio.CancelledError):
        await mail.claim(limit=LIMIT_MAX)
    turns.clear()
    stats = await mail.stats()
    assert (stats.ready, stats.leased) == (2 * N, 0)
    assert len(await mail.claim(limit=LIMIT_MAX)) == 2 * N
    assert (await engine.verify()).ok


async def test_the_bytes_of_all_turns_count(engine, monkeypatch):
    mail = engine.queue("mail")
    await mail.enqueue_many([NewTask(b"")] * (2 * N))
    size = (await mail.claim_one()).record_bytes
    monkeypatch.setattr(claim_order, "CLAIM_BYTES_MAX", (N + 5) * size)
    assert len(await mail.claim(limit=LIMIT_MAX)) == N + 5
