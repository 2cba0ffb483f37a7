"""The checkpoints of a node: few, however often they are taken for nothing."""

import asyncio
import errno
import os
import shutil
from types import SimpleNamespace

import pytest
from support_behaviour import StillClock, until

import lodeq
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.errors import LodeqError
from lodeq.replication import checkpoints as checkpoints_module
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
        self.loses = ""  # "requests" or "answers" of publications
        self.published = []

    def status(self):
        return SimpleNamespace(shards=[SimpleNamespace(applied=7)])

    def lacks_checkpoint(self, last) -> bool:
        return True

    async def publish(self, checkpoint) -> None:
        if not self.is_away and self.loses != "requests":
            self.published.append(checkpoint)
        if self.is_away or self.loses:
            raise LogUnavailableError("nobody answers")

    async def own_checkpoint(self):
        if self.is_away:
            raise LogUnavailableError("nobody answers")
        return self.published[-1] if self.published else None


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


async def fails(checkpoints, clock, times: int) -> None:
    """Take so many checkpoints that are not published, as far as anybody knows."""
    for _ in range(times):
        clock.jump(1.0)
        with pytest.raises(LodeqError):
            await checkpoints.take()


async def test_while_the_log_does_not_answer_one_checkpoint_is_taken_for_nothing(node):
    checkpoints, layer, clock, taken = node
    await checkpoints.take()
    layer.is_away = True
    await fails(checkpoints, clock, 5)
    assert sorted(map(os.path.basename, taken)) == sorted(os.listdir(checkpoints.folder))
    assert len(taken) == 2


async def test_checkpoints_whose_publication_is_lost_do_not_pile_up(node):
    checkpoints, layer, clock, _ = node
    published = await checkpoints.take()
    layer.loses = "requests"
    await fails(checkpoints, clock, 5)
    now_ms = clock.wall_us() // 1000
    left = [published.created_ms, now_ms - 1000, now_ms]  # the log is asked about one late
    assert sorted(map(int, os.listdir(checkpoints.folder))) == left


async def test_the_one_that_was_published_without_an_answer_is_kept(node):
    """It was removed for a later one that the log never had: nobody could start from this node."""
    checkpoints, layer, clock, _ = node
    layer.loses = "answers"
    await fails(checkpoints, clock, 1)
    layer.loses = "requests"
    await fails(checkpoints, clock, 5)
    assert layer.published[-1].created_ms in map(int, os.listdir(checkpoints.folder))


async def test_the_one_that_was_published_without_an_answer_is_the_last_one(node, monkeypatch):
    checkpoints, layer, clock, _ = node
    looked_at = []
    monkeypatch.setattr(layer, "lacks_checkpoint", looked_at.append)
    layer.loses = "answers"
    await fails(checkpoints, clock, 1)
    layer.loses = "requests"
    await fails(checkpoints, clock, 1)
    running = asyncio.ensure_future(checkpoints.run(600.0))
    await until(lambda: clock.jump(LOOK_S) or looked_at)
    running.cancel()
    assert looked_at[0] == layer.published[-1]


async def test_after_one_that_is_published_as_many_are_left_as_are_kept(node):
    checkpoints, layer, clock, _ = node
    layer.loses = "requests"
    await fails(checkpoints, clock, 3)
    layer.loses = ""
    for _ in range(3):
        clock.jump(1.0)
        await checkpoints.take()
    assert len(os.listdir(checkpoints.folder)) == KEPT


async def test_one_that_was_published_stays_though_old_ones_cannot_be_looked_for(node, monkeypatch):
    checkpoints, layer, *_ = node

    def fail(folder: str) -> list[str]:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(checkpoints_module, "_names", fail)
    with pytest.raises(OSError, match="too many open files"):
        await checkpoints.take()
    (published,) = layer.published
    assert [published.created_ms] == list(map(int, os.listdir(checkpoints.folder)))


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
    layer.loses = "requests"
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
