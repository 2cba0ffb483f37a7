"""What ``setup`` yields reaches the functions that ask for it."""

from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from support_behaviour import StillClock, in_memory

from lodeq import UsageError
from lodeq.testing import worker
from lodeq.worker import FROM_SETUP, App

pytestmark = pytest.mark.anyio


class Pool:
    def __init__(self):
        self.closed = False


@dataclass
class Tools:
    pool: Pool
    limit: int = 3


def app_with(value):
    @asynccontextmanager
    async def setup(app):
        yield value

    return App(setup=setup)


@pytest.mark.parametrize("shape", [lambda p: {"pool": p}, lambda p: p, Tools])
async def test_a_mapping_the_object_itself_or_its_attributes(shape):
    pool, got = Pool(), []
    app = app_with(shape(pool))

    @app.task("mail")
    async def send(to: str, pool: Pool = FROM_SETUP) -> None:
        got.append((to, pool))

    async with worker(app) as bench:
        await send.enqueue("a@b")
        (task,) = await bench.engine.queue("mail").peek()
        assert task.payload == {"to": "a@b"}
        assert (await app.drain()).completed == 1
    assert got == [("a@b", pool)]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, r"send\(\): setup yielded no 'pool': dict has none"),
        (Tools("x"), r"send\(\): setup yielded str as 'pool', which is annotated Pool"),
        (None, r"setup yielded no 'pool': NoneType has none"),
    ],
)
async def test_what_is_missing_is_found_before_anything_is_claimed(value, said):
    app = app_with(value)

    @app.task("mail")
    async def send(pool: Pool = FROM_SETUP) -> None: ...

    async with in_memory(StillClock()) as engine, app.use(engine):
        with pytest.raises(UsageError, match=said):
            async with app.work():
                pass


async def test_without_setup_there_is_nothing_to_give():
    app = App()

    @app.task("mail")
    async def send(pool: Pool = FROM_SETUP) -> None: ...

    async with in_memory(StillClock()) as engine, app.use(engine):
        with pytest.raises(UsageError, match=r"pool=FROM_SETUP needs App\(setup=…\)"):
            async with app.work():
                pass


async def test_no_task_carries_it():
    app = app_with(Pool())

    @app.task("mail", max_attempts=1)
    async def send(to: str, pool: Pool = FROM_SETUP) -> None: ...

    with pytest.raises(UsageError, match="pool comes from App"):
        send.new("a@b", Pool())
    async with worker(app) as bench:
        queue = bench.engine.queue("mail", max_attempts=1)
        receipt = await queue.enqueue({"to": "a", "pool": {}})
        assert (await app.drain(errors="keep")).dead == 1
        assert "pool comes from App(setup=…)" in (await bench.engine.get(receipt.id)).reason


async def test_called_directly_it_has_to_be_passed():
    app = app_with(Pool())

    @app.task("mail")
    async def send(pool: Pool = FROM_SETUP) -> bool:
        return pool.closed

    assert await send(Pool()) is False
    with pytest.raises(UsageError, match="pass it yourself"):
        await send()
