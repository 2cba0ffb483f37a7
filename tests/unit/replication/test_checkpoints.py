"""The checkpoints of a node: few, however often they are taken for nothing."""

import asyncio
import os
import shutil
from types import SimpleNamespace

import pytest
from support_behaviour import StillClock, until

import lodeq
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.errors import LodeqError
from lodeq.replication.checkpoints import BETWEEN_S, KEPT, LOOK_S, Checkpoints
from lodeq.replication.port import LogUnavailableError, SessionLostError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Layer:
    """A replication layer whose log answers, or not; it always lacks a checkpoint."""

    def __init__(self) -> None:
        self.is_away = False
        self.published = []

    def status(self):
        return SimpleNamespace(shards=[SimpleNamespace(applied=7)])

    def lacks_checkpoint(self, last) -> bool:
        return True

    async def publish(self, checkpoint) -> None:
        if self.is_away:
            raise LogUnavailableError("nobody answers")
        self.published.append(checkpoint)


@pytest.fixture
async def node(tmp_path):
    """(checkpoints, layer, clock, how often one was taken)."""
    async with lodeq.open(tmp_path / "store") as engine:
        await engine.checkpoint(str(tmp_path / "one"))
    taken, layer, clock = [], Layer(), StillClock()

    async def take(folder: str) -> None:
        taken.append(folder)
        shutil.copytree(tmp_path / "one", folder)

    checkpoints = Checkpoints(
        str(tmp_path / "store"),
        take,
        layer,
        node="a",
        url="",
        spawner=current_spawner(),
        clock=clock,
    )
    return checkpoints, layer, clock, taken


async def test_checkpoints_that_cannot_be_published_do_not_pile_up(node):
    checkpoints, layer, clock, taken = node
    published = await checkpoints.take()
    layer.is_away = True
    for _ in range(5):
        clock.jump(1.0)
        with pytest.raises(LodeqError):
            await checkpoints.take()
    assert len(taken) == 6
    left = [published.created_ms, clock.wall_us() // 1000]  # the last one may be in the log
    assert sorted(map(int, os.listdir(checkpoints.folder))) == left
    layer.is_away = False
    for _ in range(3):
        clock.jump(1.0)
        await checkpoints.take()
    assert len(os.listdir(checkpoints.folder)) == KEPT


async def test_one_that_was_not_finished_is_removed(node, monkeypatch):
    checkpoints, layer, _, taken = node

    async def lost(checkpoint) -> None:
        raise SessionLostError("the session is over")

    monkeypatch.setattr(layer, "publish", lost)
    with pytest.raises(SessionLostError):
        await checkpoints.take()
    assert taken
    assert os.listdir(checkpoints.folder) == []


async def test_one_that_cannot_be_published_is_not_taken_anew_at_each_look(node):
    checkpoints, layer, clock, taken = node
    layer.is_away = True
    running = asyncio.ensure_future(checkpoints.run(600.0))
    looks = 20
    for _ in range(looks):
        await asyncio.sleep(0)
        await until(lambda: not checkpoints._is_taking)
        clock.jump(LOOK_S)
        await asyncio.sleep(0)
        await until(lambda: not checkpoints._is_taking)
    running.cancel()
    assert 1 < len(taken) <= looks * LOOK_S / BETWEEN_S + 1
    assert "nobody answers" in checkpoints.problem
