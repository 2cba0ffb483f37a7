"""Scans beside the loop: in slices, cancelled between them, waited for by a close."""

import asyncio
import threading

import pytest

from lodeq.engine.runtime.on_asyncio import AsyncioSpawner
from lodeq.errors import ClosedError
from lodeq.repository.state import thread_reads
from lodeq.repository.state.thread_reads import ThreadReads

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def reads():
    return ThreadReads(AsyncioSpawner(asyncio.get_running_loop()))


def nothing():
    pass


async def test_the_work_runs_in_slices_and_never_on_the_loop(reads, monkeypatch):
    monkeypatch.setattr(thread_reads, "SLICE_S", 0.0)
    threads, turns = set(), []

    def work():
        for _ in range(5):
            threads.add(threading.get_ident())
            yield
        return "found"

    assert await reads.run(work(), lambda: turns.append(1)) == "found"
    assert threading.get_ident() not in threads
    assert len(turns) == 6  # each step a slice, and the end


async def test_what_it_raises_the_caller_gets(reads):
    def work():
        yield
        raise ValueError("damage")

    with pytest.raises(ValueError, match="damage"):
        await reads.run(work(), nothing)
    await reads.finish()


async def test_a_closed_engine_ends_it_between_slices(reads, monkeypatch):
    monkeypatch.setattr(thread_reads, "SLICE_S", 0.0)
    left, checks = [], 0

    def check():
        nonlocal checks
        checks += 1
        if checks == 3:
            raise ClosedError("closed")

    def work():
        try:
            while True:
                yield
        finally:
            left.append("closed")

    with pytest.raises(ClosedError):
        await reads.run(work(), check)
    assert left == ["closed"]


async def test_a_close_waits_for_the_slice_and_a_cancelled_caller_too(reads):
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        may_end.wait(30)
        ended.append("slice")
        yield

    searching = asyncio.create_task(reads.run(work(), nothing))
    await asyncio.to_thread(begun.wait, 30)
    searching.cancel()
    closing = asyncio.create_task(reads.finish())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    assert not searching.done()
    may_end.set()
    await closing
    assert ended == ["slice"]
    with pytest.raises(asyncio.CancelledError):
        await searching
    await reads.finish()
