"""Checkpoints that are cancelled: whole or not there, and nothing of them left."""

import asyncio
import os
import threading

import pytest
import trio
from anyio.lowlevel import checkpoint

import lodeq
from lodeq.engine.recovery.checkpoint import write_manifest

CACHE_BYTES = 8 << 20


@pytest.fixture
def gate(monkeypatch):
    """Hold the thread of a checkpoint when all is written; says when it has come there."""
    reached, go_on = threading.Event(), threading.Event()

    def write(*args, **kwargs):
        target = write_manifest(*args, **kwargs)
        reached.set()
        assert go_on.wait(10)
        return target

    monkeypatch.setattr("lodeq.repository.api.runtime.write_manifest", write)
    return reached, go_on


def open_(tmp_path):
    return lodeq.open(tmp_path / "s", block_cache_bytes=CACHE_BYTES)


async def reach(event):
    while not event.is_set():
        await checkpoint()


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_checkpoint_leaves_nothing(tmp_path, gate, times):
    reached, go_on = gate

    async def main():
        async with open_(tmp_path) as engine:
            await engine.queue("mail").enqueue(b"x")
            task = asyncio.create_task(engine.checkpoint(tmp_path / "copy"))
            await reach(reached)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert os.listdir(tmp_path) == ["s"]
            await engine.checkpoint(tmp_path / "copy")
            assert sorted(os.listdir(tmp_path)) == ["copy", "s"]

    asyncio.run(main())


def test_on_trio_a_checkpoint_is_whole_or_not_there(tmp_path, gate):
    reached, go_on = gate

    async def main():
        async with open_(tmp_path) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(engine.checkpoint, tmp_path / "copy")
            await reach(reached)
            nursery.cancel_scope.cancel()
            go_on.set()
        assert sorted(os.listdir(tmp_path)) == ["copy", "s"]
        lodeq.restore(tmp_path / "copy", tmp_path / "restored")

    trio.run(main)


def test_what_the_last_step_raises_arrives(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise lodeq.StorageFullError("no space for the manifest")

    async def main():
        async with open_(tmp_path) as engine:
            with pytest.raises(lodeq.StorageFullError):
                await engine.checkpoint(tmp_path / "copy")
            assert os.listdir(tmp_path) == ["s"]

    monkeypatch.setattr("lodeq.repository.api.runtime.write_manifest", full)
    asyncio.run(main())
