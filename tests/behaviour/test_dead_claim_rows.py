"""Leased dead letters in another process, shard, or copy of the store; some payloads are large."""

import pytest
from support_behaviour import StillClock, sound

import lodeq
from lodeq.repository.api.in_place_reshard import reshard

pytestmark = pytest.mark.anyio
BIG = 40 << 10


async def leased(path, clock, *, shards=1, n=6):
    """A store of dead letters, every second one with a large payload, all leased."""
    async with lodeq.open(path, clock=clock, shards=shards) as engine:
        queue = engine.queue("mail", max_attempts=1)
        for number in range(n):
            await queue.enqueue({"n": number, "pad": bytes(BIG * (number % 2))})
            (lease,) = await queue.claim()
            await lease.nack(reason=f"no {number}")
            await clock.advance(0.01)
        leases = await queue.claim(dead=True, limit=n, lease=600, exported=True)
        assert [lease.payload["n"] for lease in leases] == [*range(n)]
        await sound(engine)
        return {lease.task_id: lease.dead_at for lease in leases}


async def all_come_back(path, clock, died, **options):
    async with lodeq.open(path, clock=clock, **options) as engine:
        await sound(engine)
        for _ in range(12):
            await clock.advance(60)
        queue = engine.queue("mail")
        found = {task.id: task.finished_at for task in await queue.dead_letters()}
        assert found == died
        assert (await queue.stats()).ready == 0
        leases = await queue.claim(dead=True, limit=10)
        assert sorted(lease.payload["n"] for lease in leases) == [*range(len(died))]
        for lease in leases:
            await lease.complete()
        await sound(engine)
    return found


async def test_with_payloads_in_body_files_after_an_open(tmp_path):
    clock = StillClock()
    died = await leased(tmp_path / "s", clock)
    await all_come_back(tmp_path / "s", clock, died)


async def test_after_a_reshard(tmp_path):
    clock = StillClock()
    died = await leased(tmp_path / "s", clock, shards=2)
    reshard(tmp_path / "s", 3)
    await all_come_back(tmp_path / "s", clock, died)


async def test_in_a_checkpoint(tmp_path):
    clock = StillClock()
    died = await leased(tmp_path / "s", clock)
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        await engine.checkpoint(tmp_path / "copy")
    lodeq.restore(tmp_path / "copy", tmp_path / "restored")
    await all_come_back(tmp_path / "restored", clock, died)


async def test_with_a_streamed_payload(tmp_path):
    clock = StillClock()
    data = bytes(range(256)) * (20 << 10)
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(data)
        await (await queue.claim())[0].bury("no")
        (lease,) = await queue.claim(dead=True)
        assert (lease.payload_bytes, await lease.read_payload()) == (len(data), data)
        await lease.release()
        (lease,) = await queue.claim(dead=True)
        await lease.redrive()
        (lease,) = await queue.claim()
        assert await lease.read_payload() == data
        await lease.complete()
        await sound(engine)


async def test_many_with_streamed_payloads_come_in_one_claim(tmp_path):
    data = bytes(4 << 20)
    async with lodeq.open(tmp_path / "s", clock=StillClock()) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([lodeq.NewTask(data)] * 3)
        for lease in await queue.claim(limit=3):
            await lease.bury("no")
        assert len(await queue.claim(dead=True, limit=3)) == 3  # a claim reads none of them
