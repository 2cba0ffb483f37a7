"""Leaving ``async with lodeq.open`` is over when the store is closed, whoever is cancelled."""

import asyncio
import threading

import pytest
import trio
from anyio.lowlevel import checkpoint

import lodeq
import lodeq.testing
from lodeq.engine.memory import MemoryStore
from lodeq.engine.shard import OpenStore

CACHE_BYTES = 8 << 20


@pytest.fixture
def gate(monkeypatch):
    """Hold back the last step of closing; says when it has been reached."""
    real = OpenStore.close
    reached, go_on = threading.Event(), threading.Event()

    def close(self):
        reached.set()
        assert go_on.wait(10)
        real(self)

    monkeypatch.setattr(OpenStore, "close", close)
    return reached, go_on


async def reach(event):
    while not event.is_set():
        await checkpoint()


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_while_closing(tmp_path, gate, times):
    reached, go_on = gate

    async def use():
        async with lodeq.open(tmp_path / "s", block_cache_bytes=CACHE_BYTES) as engine:
            await engine.queue("mail").enqueue(b"x")

    async def main():
        task = asyncio.create_task(use())
        await reach(reached)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with lodeq.open(tmp_path / "s", block_cache_bytes=CACHE_BYTES) as engine:
            assert (await engine.stats()).ready == 1

    asyncio.run(main())


def test_a_time_limit_around_it_stays_a_time_limit(gate):
    reached, go_on = gate

    async def main():
        async with asyncio.timeout(None) as limit, lodeq.testing.open():
            limit.reschedule(0)

    async def both():
        task = asyncio.create_task(main())
        await reach(reached)
        go_on.set()
        with pytest.raises(TimeoutError):
            await task

    asyncio.run(both())


def test_a_cancelled_close_goes_on(gate):
    reached, go_on = gate

    async def main():
        engine = await lodeq.testing.open()
        closing = asyncio.create_task(engine.close())
        await reach(reached)
        other = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        closing.cancel()
        go_on.set()
        await other
        await engine.close()

    asyncio.run(main())


def test_an_error_while_closing_reaches_who_closes(monkeypatch):
    real = OpenStore.close

    def fail(self):
        monkeypatch.setattr(OpenStore, "close", real)
        raise OSError("no")

    async def main():
        engine = await lodeq.testing.open()
        monkeypatch.setattr(OpenStore, "close", fail)
        with pytest.raises(OSError, match="no"):
            await engine.close()
        await engine.close()

    asyncio.run(main())
    trio.run(main)


def test_the_error_of_the_body_is_kept():
    async def main():
        async with lodeq.testing.open():
            raise KeyError("k")

    with pytest.raises(KeyError):
        asyncio.run(main())
    with pytest.raises(KeyError):
        trio.run(main)


def test_use_from_another_loop_raises():
    kept = []

    async def main():
        engine = await lodeq.testing.open()
        kept.append(engine)
        await engine.queue("mail").stats()

    async def later():
        (engine,) = kept
        with pytest.raises(lodeq.UsageError):
            await engine.queue("mail").enqueue(b"x")
        with pytest.raises(lodeq.UsageError):
            await engine.close()

    asyncio.run(main())
    asyncio.run(later())


def test_use_from_another_thread_raises():
    async def main():
        async with lodeq.testing.open() as engine:
            queue = engine.queue("mail")
            await queue.enqueue(b"x")

            def use():
                for call in (queue.enqueue(b"y"), queue.claim(), engine.stats()):
                    with pytest.raises(lodeq.UsageError):
                        call.send(None)

            await asyncio.to_thread(use)

    asyncio.run(main())


@pytest.mark.parametrize("reaping", [False, True])
def test_a_store_that_goes_on_refusing_writes_does_not_hold_up_closing(monkeypatch, reaping):
    """The reaper may be among those who wait for it."""

    def refuse(self, ops):
        raise lodeq.StoreStalledError("stalled")

    async def main():
        engine = await lodeq.testing.open()
        queue = engine.queue("mail")
        await queue.enqueue(b"x", delay=0.02 if reaping else None)
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "write", refuse)
            patch.setattr("lodeq.coalescer.coalescer.CLOSE_STALLED_S_MAX", 0.02)
            co = engine._core.shards[0].co
            if reaping:
                while co.stalled is None:  # by the promotion
                    await checkpoint()
            call = asyncio.create_task(queue.enqueue(b"y"))
            while co.stalled is None:
                await checkpoint()
            await checkpoint()
            await asyncio.wait_for(engine.close(), 10)
            with pytest.raises(lodeq.ClosedError):
                await call

    asyncio.run(main())
