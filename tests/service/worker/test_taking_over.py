"""A process that has joined a store takes it over where it is, and makes none where it was."""

import logging
import os

import anyio
import pytest

import lodeq
from lodeq.service.worker import shared_store
from lodeq.service.worker.shared_store import SharedStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_store_that_was_moved_is_not_made_anew(tmp_path, monkeypatch, caplog, is_there):
    path = tmp_path / "s"
    async with lodeq.open(path) as engine:
        await engine.queue("jobs").enqueue(b"x")
    if not is_there:
        os.rename(path, tmp_path / "moved")
    monkeypatch.setattr(shared_store, "LOOK_S", 0.0)
    monkeypatch.setattr(shared_store, "FAILED_LOOK_S", 0.0)
    store = SharedStore(path, True, {})
    with caplog.at_level(logging.ERROR, "lodeq.worker"):
        async with anyio.create_task_group() as group:
            group.start_soon(store._stand_by)
            for _ in range(200):
                await anyio.lowlevel.checkpoint()
                if caplog.records or store._owned is not None:
                    break
            await anyio.wait_all_tasks_blocked() if is_there else None
            store._stop.set()
    assert path.exists() is is_there
    assert bool(caplog.records) is not is_there
    await store._close()
    if is_there:
        assert store._owned is not None
    assert store.owns_store() is is_there
