"""Leaving ``async with lodeq.open`` is over when the store is closed, whoever is cancelled."""

import asyncio
import threading
import types

import pytest
import trio
from anyio.lowlevel import checkpoint

import lodeq
import lodeq.testing
from lodeq.engine.recovery.open_shard import OpenStore
from lodeq.engine.store.memory import MemoryStore
from lodeq.repository.api.runtime import EngineRuntime

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
            patch.setattr("lodeq.coalescer.commit_loop.CLOSE_STALLED_S_MAX", 0.02)
            coalescer = engine._state.shards[0].coalescer
            if reaping:
                while coalescer.refused_write is None:  # by the promotion
                    await checkpoint()
            call = asyncio.create_task(queue.enqueue(b"y"))
            while coalescer.refused_write is None:
                await checkpoint()
            await checkpoint()
            await asyncio.wait_for(engine.close(), 10)
            with pytest.raises(lodeq.ClosedError):
                await call

    asyncio.run(main())


# -- cancelled at any step ---------------------------------------------------------------


async def limited(main):
    """In the same task, which is not cancelled."""
    async with asyncio.timeout(20):
        await main


class Steps:
    """Counts the steps of a tear-down; calls ``then`` when it has come to a given one."""

    def __init__(self, monkeypatch):
        self.at, self.then, self.count = -1, None, 0
        real = EngineRuntime._tear_down
        monkeypatch.setattr(EngineRuntime, "_tear_down", lambda op: self._run(real(op)))

    @types.coroutine
    def _run(self, inner):
        step, given = inner.send, None
        while True:
            try:
                waits_for = step(given)
            except StopIteration:
                return
            self.count += 1
            if self.count == self.at:
                self.then()
            try:
                step, given = inner.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001 - it is the other one's
                step, given = inner.throw, error


async def busy(path):
    """An engine with everything that closing has to end."""
    engine = await lodeq.open(
        path, durability="fsync", block_cache_bytes=CACHE_BYTES, body_bytes_min=100, journal="told"
    )
    mail = engine.queue("mail")
    await mail.enqueue(bytes(200))
    return engine, mail


async def reopened(path, least):
    async with lodeq.open(path, block_cache_bytes=CACHE_BYTES) as engine:
        assert least <= (await engine.stats()).ready
        assert (await engine.verify()).ok


def cancel_at(path, steps, at):
    """Cancel all there is at that step of closing. Returns whether it has come so far."""
    steps.at, steps.count = at, 0

    async def main():
        engine, mail = await busy(path)
        waiting = [asyncio.create_task(mail.enqueue(b"x")) for _ in range(3)]
        waiting += [asyncio.create_task(engine.queue("none").claim(wait=60)) for _ in range(2)]
        await asyncio.sleep(0)
        me = asyncio.current_task()

        def cancel_all():
            for task in asyncio.all_tasks():
                if task is not me:
                    task.cancel()

        steps.then = lambda: asyncio.get_running_loop().call_soon(cancel_all)
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        if at == 0:
            cancel_all()  # before the first step
        await asyncio.wait([closing])
        await asyncio.gather(*waiting, return_exceptions=True)
        await engine.close()
        await reopened(path, 1)

    asyncio.run(limited(main()))
    return steps.count >= at


@pytest.mark.slow
def test_closing_is_seen_through_whatever_is_cancelled_at_any_step(tmp_path, monkeypatch):
    steps, at = Steps(monkeypatch), 0
    while cancel_at(tmp_path / str(at), steps, at):
        at += 1
    assert at > 8


def test_closing_cancelled_before_its_first_step_can_be_waited_for(tmp_path, monkeypatch):
    assert cancel_at(tmp_path / "s", Steps(monkeypatch), 0)


@pytest.mark.slow
@pytest.mark.parametrize("is_waited_for", [True, False])
def test_on_trio_a_cancelled_close_goes_on_from_any_step(tmp_path, monkeypatch, is_waited_for):
    """Also where the main task ends meanwhile, and trio cancels what is left of the run."""
    steps, most = Steps(monkeypatch), 0

    async def main(path, at):
        engine, _ = await busy(path)
        scope = trio.CancelScope()
        steps.at, steps.count, steps.then = at, 0, scope.cancel
        if at == 0:
            scope.cancel()
        with scope:
            await engine.close()
        if is_waited_for:
            with trio.fail_after(10):
                await engine.close()

    at = 0
    while at <= most:
        path = tmp_path / str(at)
        trio.run(main, path, at)
        asyncio.run(reopened(path, 1))
        most = max(most, steps.count)
        at += 1
    assert at > 5


def test_the_last_step_is_not_done_twice_at_a_time(tmp_path, gate):
    """Cancelled while a thread closes RocksDB, closing waits for that thread."""
    reached, go_on = gate
    calls = []

    async def main():
        engine, _ = await busy(tmp_path / "s")
        close = OpenStore.close

        def counting(self):
            calls.append("begins")
            close(self)
            calls.append("ends")

        engine._runtime.opened.__class__.close = counting
        try:
            first = asyncio.create_task(engine.close())
            await reach(reached)
            for _ in range(2):
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.sleep(0)
            second = asyncio.create_task(engine.close())
            for _ in range(5):
                await asyncio.sleep(0)
            assert not second.done()
            assert calls == ["begins"]
            go_on.set()
            await second
            assert first.cancelled()
        finally:
            OpenStore.close = close
        assert set(zip(calls[::2], calls[1::2], strict=True)) == {("begins", "ends")}
        await reopened(tmp_path / "s", 1)

    asyncio.run(limited(main()))
