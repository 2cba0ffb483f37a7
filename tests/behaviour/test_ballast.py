"""Ballast of an engine: made when its volume gets tight, once, and nobody else's business."""

import errno
import os
import threading

import pytest

import lodeq
from lodeq.engine.files import ballast
from lodeq.repository.api.in_place_reshard import reshard

pytestmark = pytest.mark.anyio
CACHE_BYTES = 8 << 20


@pytest.fixture
def tight(monkeypatch):
    """Every volume is taken for tight."""
    monkeypatch.setattr(ballast, "TIGHT_BYTES", 1 << 60)


def size_of(root):
    path = root / "ballast"
    return path.stat().st_size if path.exists() else 0


async def made(engine):
    task = engine._runtime._ballast_task
    if task is not None:
        await task.join()


async def test_none_is_made_where_there_is_plenty_of_room(tmp_path, monkeypatch):
    monkeypatch.setattr(ballast, "TIGHT_BYTES", 0)
    async with lodeq.open(tmp_path / "s", block_cache_bytes=CACHE_BYTES) as engine:
        assert engine._runtime._ballast_task is None
        await engine.queue("q").enqueue(b"one")
    assert not size_of(tmp_path / "s")


async def test_it_is_made_at_open_kept_and_made_again(tmp_path, tight, caplog):
    caplog.set_level("INFO")
    root = tmp_path / "s"
    for _ in range(3):
        async with lodeq.open(root, block_cache_bytes=CACHE_BYTES) as engine:
            await made(engine)
            await engine.queue("q").enqueue(b"one")
            assert (await engine.stats()).recoveries == ()
        assert size_of(root) == 2 * CACHE_BYTES
    assert ballast.give_up(str(root))
    async with lodeq.open(root, block_cache_bytes=CACHE_BYTES) as engine:
        await made(engine)
        assert len(await engine.queue("q").claim(limit=9)) == 3
    assert size_of(root) == 2 * CACHE_BYTES
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events.count("ballast_made") == 2


async def test_a_disk_that_refuses_it_is_asked_once_and_the_engine_goes_on(
    tmp_path, tight, monkeypatch, caplog
):
    def no_room(fd, at, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    async with lodeq.open(tmp_path / "s", block_cache_bytes=CACHE_BYTES) as engine:
        await made(engine)
        for _ in range(2):
            engine._runtime._keep_ballast(engine.path)
            await made(engine)
        await engine.queue("q").enqueue(b"one")
        assert (await engine.health()).ok
    assert not size_of(tmp_path / "s")
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events.count("ballast_failed") == 1


async def test_a_close_waits_for_the_thread_that_makes_it(tmp_path, tight, monkeypatch):
    began, ended = threading.Event(), []

    def slowly(root, size, *, is_stopped):
        began.set()
        while not is_stopped():
            threading.Event().wait(0.001)
        assert os.path.getsize(os.path.join(root, "lock"))  # it is still ours
        ended.append(root)
        return False

    monkeypatch.setattr(ballast, "make", slowly)
    async with lodeq.open(tmp_path / "s", block_cache_bytes=CACHE_BYTES) as engine:
        await engine.queue("q").enqueue(b"one")
        assert await engine._state.spawner.run_in_thread(lambda: began.wait(30))
    assert ended == [str(tmp_path / "s")]


async def test_no_copy_of_a_store_has_it(tmp_path, tight):
    root = tmp_path / "s"
    async with lodeq.open(root, block_cache_bytes=CACHE_BYTES) as engine:
        await made(engine)
        await engine.queue("q").enqueue(b"one")
        await engine.checkpoint(tmp_path / "c")
        await engine.snapshot()
    lodeq.restore(tmp_path / "c", tmp_path / "r")
    assert size_of(root)
    left = [path for path in tmp_path.rglob("ballast") if path != root / "ballast"]
    assert left == []


@pytest.mark.slow
def test_a_reshard_leaves_it_behind_and_gives_it_back(tmp_path):
    root = tmp_path / "s"
    with lodeq.sync.open(root, shards=2) as engine:
        engine.queue("q").enqueue(b"one")
    assert ballast.make(str(root), CACHE_BYTES)
    reshard(root, 3)
    assert list(tmp_path.rglob("ballast")) == []
