"""What has outlived its purpose is let go of: memory is flat within one life of an engine."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support_loop import on_loop, settle
from support_memory import only_new, payloads_held

import lodeq
from lodeq.testing import ManualClock

SIZE = 3000  # below what goes to body files
TASKS = 20
FEW = 4  # what a commit that has just ended may hold

Mode = dict[str, Any]
MODES: list[Mode] = [{}, {"shards": 2}, {"durability": "fsync"}]


@asynccontextmanager
async def opened(path: Path, **how: Any) -> AsyncIterator[lodeq.Engine]:
    with only_new():
        async with lodeq.open(path / "s", clock=ManualClock(), **how) as engine:
            yield engine


async def end_by_complete(engine: lodeq.Engine, lease: lodeq.Lease) -> None:
    await lease.complete()


async def end_by_many(engine: lodeq.Engine, lease: lodeq.Lease) -> None:
    await engine.complete_many([(lease, None)])


async def end_by_bury(engine: lodeq.Engine, lease: lodeq.Lease) -> None:
    await lease.bury("no")


async def end_by_nack(engine: lodeq.Engine, lease: lodeq.Lease) -> None:
    await lease.nack(delay=1000)


async def end_by_release(engine: lodeq.Engine, lease: lodeq.Lease) -> None:
    await lease.release(delay=1000)


async def end_by_cancel(engine: lodeq.Engine, lease: lodeq.Lease) -> None:
    await lease.cancel()


End = Callable[[lodeq.Engine, lodeq.Lease], Awaitable[None]]


ENDS = [end_by_many, end_by_bury, end_by_nack, end_by_release, end_by_cancel]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "end"),
    [*((mode, end_by_complete) for mode in MODES), *(({}, end) for end in ENDS)],
)
@on_loop
async def test_ended_leases_behind_one_that_lives(tmp_path: Path, mode: Mode, end: End) -> None:
    async with opened(tmp_path, **mode) as engine:
        queue = engine.queue("q")
        await queue.enqueue(b"first")
        (first,) = await queue.claim(lease=60)
        before = payloads_held(SIZE)
        for n in range(TASKS):
            await queue.enqueue(os.urandom(SIZE))
            (lease,) = await queue.claim(lease=60)
            if n % 2:  # its deadline moves: it stands in another place as well
                await lease.heartbeat(30)
            await end(engine, lease)
            del lease
        await settle()
        assert payloads_held(SIZE) - before <= FEW
        assert first.is_live


@pytest.mark.slow
@on_loop
async def test_leases_whose_lengths_all_differ(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        await queue.enqueue(b"first")
        (first,) = await queue.claim(lease=1)
        before = payloads_held(SIZE)
        for n in range(2 * TASKS):
            await queue.enqueue(os.urandom(SIZE))
            (lease,) = await queue.claim(lease=60 + n)
            await lease.complete()
            del lease
        await settle()
        assert payloads_held(SIZE) - before <= FEW
        assert first.is_live


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("limit", [1, 2])
@on_loop
async def test_served_polls_behind_one_that_waits(tmp_path: Path, mode: Mode, limit: int) -> None:
    async with opened(tmp_path, **mode) as engine:
        queue = engine.queue("q")
        waiting = asyncio.ensure_future(engine.queue("other").claim(wait=600))
        await settle()
        before = payloads_held(SIZE)
        for _ in range(TASKS):
            poll = asyncio.ensure_future(queue.claim(limit=limit, wait=600))
            await settle(2)
            await queue.enqueue(os.urandom(SIZE))
            (lease,) = await poll
            await lease.complete()
            del lease, poll
        await settle()
        assert payloads_held(SIZE) - before <= FEW
        assert not waiting.done()
        waiting.cancel()


@pytest.mark.slow
@on_loop
async def test_polls_that_were_cancelled_behind_one_that_waits(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        waiting = asyncio.ensure_future(engine.queue("other").claim(wait=600))
        for _ in range(TASKS):
            poll = asyncio.ensure_future(queue.claim(wait=600))
            await settle(2)
            poll.cancel()
            await settle(2)
        held = sum(map(len, engine._state.waiters._lines.values()))
        assert held == 1
        waiting.cancel()


@pytest.mark.slow
@on_loop
async def test_a_stream_lets_go_of_what_it_has_handed_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        before = payloads_held(SIZE)
        async with queue.leases(limit=2, lease=3600) as stream:
            for _ in range(TASKS):
                await queue.enqueue(os.urandom(SIZE))
                lease = await anext(stream)
                await lease.complete()
                del lease
            await settle()
            assert payloads_held(SIZE) - before <= FEW


@pytest.mark.slow
@pytest.mark.parametrize("size", [SIZE, 100_000], ids=["in the tree", "in a body file"])
@on_loop
async def test_what_reads_and_waits_holds_nothing(tmp_path: Path, size: int) -> None:
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        before = payloads_held(SIZE)
        for _ in range(TASKS):
            receipt = await queue.enqueue(os.urandom(size), dedup_key="k", dedup_window=1)
            await engine.get(receipt.id)
            await queue.list("ready")
            waiting = asyncio.ensure_future(engine.result(receipt.id, wait=600))
            async for lease in aclaim(queue):
                await lease.complete(os.urandom(SIZE))
                del lease
            await waiting
            del waiting, receipt
        await settle()
        assert payloads_held(SIZE) - before <= FEW


async def aclaim(queue: lodeq.Queue) -> Any:
    for lease in await queue.claim():
        yield lease
