"""A hold keeps writes back and nothing else: no order, no caller is lost."""

import asyncio

import pytest
from support_behaviour import settle

import lodeq
from lodeq.coalescer.write_pause import writes_paused

CACHE_BYTES = 8 << 20


def run(tmp_path, main, **options):
    async def whole():
        async with lodeq.open(tmp_path / "s", block_cache_bytes=CACHE_BYTES, **options) as engine:
            await main(engine)

    asyncio.run(whole())


@pytest.mark.parametrize("durability", ["nosync", "fsync"])
def test_what_is_queued_inside_is_written_afterwards_in_order(tmp_path, durability):
    async def main(engine):
        mail = engine.queue("mail")
        coalescer = engine._state.shards[0].coalescer
        await mail.enqueue(0)
        with writes_paused(coalescer):
            before = coalescer.applied_number
            tasks = [asyncio.create_task(mail.enqueue(n)) for n in range(1, 5)]
            await settle(20)
            assert coalescer.applied_number == before
            assert not any(task.done() for task in tasks)
        await asyncio.gather(*tasks)
        assert [lease.payload for lease in await mail.claim(limit=9)] == [0, 1, 2, 3, 4]

    run(tmp_path, main, durability=durability)


def test_a_lone_caller_waits_too(tmp_path):
    """One that commits at once, without a tick."""

    async def main(engine):
        mail = engine.queue("mail")
        coalescer = engine._state.shards[0].coalescer
        for n in range(50):
            await mail.enqueue(n)
        assert coalescer.inline_left > 0
        with writes_paused(coalescer):
            task = asyncio.create_task(mail.enqueue(b"x"))
            await settle(20)
            assert not task.done()
        await task

    run(tmp_path, main)


def test_a_hold_inside_a_hold_and_a_shard_that_fails(tmp_path):
    async def main(engine):
        mail = engine.queue("mail")
        coalescer = engine._state.shards[0].coalescer
        with writes_paused(coalescer):
            with writes_paused(coalescer):
                task = asyncio.create_task(mail.enqueue(1))
                await settle(20)
            await settle(20)
            assert not task.done()
        await task
        with writes_paused(coalescer):
            task = asyncio.create_task(mail.enqueue(2))
            await settle(20)
            coalescer.fail(RuntimeError("the disk"))
        with pytest.raises(lodeq.StorageError):
            await task

    run(tmp_path, main)


def test_closing_waits_for_the_end_of_a_hold(tmp_path):
    async def main(engine):
        mail = engine.queue("mail")
        with writes_paused(engine._state.shards[0].coalescer):
            task = asyncio.create_task(mail.enqueue(1))
            await settle(20)
            closing = asyncio.create_task(engine.close())
            await settle(20)
            assert not closing.done()
        await asyncio.gather(task, closing)
        async with lodeq.open(tmp_path / "s", block_cache_bytes=CACHE_BYTES) as again:
            assert (await again.queue("mail").stats()).ready == 1

    run(tmp_path, main)
