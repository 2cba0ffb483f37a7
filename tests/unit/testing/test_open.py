"""The engine in memory: the same API, nothing on disk, repeatable where it is asked to be."""

import asyncio
import os

import pytest
import trio

import lodeq
import lodeq.testing
from lodeq.testing import ManualClock


async def life(**options):
    async with lodeq.testing.open(**options) as engine:
        queue = engine.queue("mail", backoff=lodeq.Backoff(base=100))
        receipt = await queue.enqueue(b"x")
        lease = await queue.claim_one()
        token = lease.token
        await lease.nack()
        (task,) = await queue.list("delayed")
        return receipt.id, token, task.due_at


def test_it_runs_on_every_loop():
    assert asyncio.run(life())
    assert trio.run(life)


def test_a_seed_repeats_ids_tokens_and_jitter():
    def once(seed):
        return asyncio.run(life(clock=ManualClock(), seed=seed))

    assert once(7) == once(7)
    assert once(7) != once(8)
    assert once(None) != once(None)


def test_without_a_clock_time_is_the_machines():
    async def main():
        async with lodeq.testing.open() as engine:
            return await engine.queue("mail").claim(wait=0.001)

    assert asyncio.run(main()) == []


def test_options_are_those_of_the_real_thing():
    async def main():
        limits = lodeq.Limits(payload_bytes_max=10)
        async with lodeq.testing.open(
            shards=3, durability="fsync", limits=limits, commit_batch_max=2, submit_queue_max=2
        ) as engine:
            assert (engine.shards, engine.durability, engine.path) == (3, "fsync", None)
            queue = engine.queue("mail")
            with pytest.raises(lodeq.PayloadTooLargeError):
                await queue.enqueue(bytes(11))
            await asyncio.gather(*(queue.enqueue(b"x") for _ in range(20)))
            await engine.fsync()
            assert (await queue.stats()).ready == 20

    asyncio.run(main())


def test_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def main():
        async with lodeq.testing.open() as engine:
            await engine.queue("mail").enqueue(b"x")
            with pytest.raises(lodeq.UsageError):
                await engine.checkpoint(tmp_path / "copy")
        async with lodeq.testing.open() as engine:
            assert (await engine.stats()).ready == 0

    asyncio.run(main())
    assert os.listdir(tmp_path) == []


def test_without_a_reaper_nothing_falls_due():
    async def main():
        clock = ManualClock()
        async with lodeq.testing.open(clock=clock, reaper=False) as engine:
            queue = engine.queue("mail")
            await queue.enqueue(b"x", delay=1)
            call = asyncio.create_task(queue.claim(wait=10))
            await asyncio.sleep(0)
            clock.advance(60)
            assert await call == []
            assert (await queue.stats()).delayed == 1

    asyncio.run(main())


def test_awaited_it_is_closed_by_hand():
    async def main():
        engine = await lodeq.testing.open()
        await engine.close()
        with pytest.raises(lodeq.ClosedError):
            await engine.stats()

    asyncio.run(main())
