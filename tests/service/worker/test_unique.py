"""``unique=``, ``unique_by=``: one live task of a tenant for the same arguments, on every path."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from support_http import ServedOpening

import lodeq
import lodeq.testing
from lodeq import DuplicateTaskError, UsageError
from lodeq.testing import ManualClock, worker
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio


@dataclass
class Order:
    number: int
    note: str = ""


class Jobs:
    def __init__(self):
        self.app = app = App(name="test")

        @app.task("mail", unique=True)
        async def send(to: str, copies: float = 2, tags: dict | None = None) -> None: ...

        @app.task("named", unique_by="to")
        async def named(to: str, body: str = "") -> None: ...

        @app.task("coded", unique_by=lambda a: (a.order.number, a.urgent))
        async def coded(order: Order, urgent: bool = False) -> None: ...

        @app.task("parents")
        async def parent() -> None:
            current().then(send.new("a"))

        self.send, self.named, self.coded, self.parent = send, named, coded, parent


@pytest.fixture
def jobs():
    return Jobs()


@pytest.fixture(params=["embedded", "served"])
async def engine(request, jobs):
    clock = ManualClock()
    opening = lodeq.testing.open(clock=clock)
    if request.param == "served":
        opening = ServedOpening(opening)
    async with opening as engine, jobs.app.use(engine):
        if request.param == "served":
            jobs.app.backend().clock = clock
        await engine.publish_functions(jobs.app.published())
        yield engine


async def by_call(jobs, engine, **of):
    return await jobs.send.enqueue(**of)


async def by_options(jobs, engine, **of):
    return await jobs.send.options(priority=7).enqueue(**of)


async def by_many(jobs, engine, **of):
    (receipt,) = await jobs.send.enqueue_many([jobs.send.new(**of)])
    return receipt


async def by_many_of_the_app(jobs, engine, **of):
    (receipt,) = await jobs.app.enqueue_many([jobs.send.new(**of)])
    return receipt


async def by_name(jobs, engine, **of):
    return await engine.enqueue_function("mail", "send", of)


PATHS = [by_call, by_options, by_many, by_many_of_the_app, by_name]


@pytest.mark.parametrize("other", PATHS)
@pytest.mark.parametrize("one", PATHS)
async def test_the_same_arguments_are_one_task_on_every_path(jobs, engine, one, other):
    first = await one(jobs, engine, to="a")
    # A default given, a whole number for a float, and another order of keys are the same call.
    assert (await other(jobs, engine, to="a", copies=2)).id == first.id
    tagged = await one(jobs, engine, to="a", tags={"x": 1, "y": [2]})
    assert tagged.id != first.id
    assert (await other(jobs, engine, tags={"y": [2], "x": 1}, to="a")).id == tagged.id
    assert (await other(jobs, engine, to="a", copies=3)).id not in (first.id, tagged.id)
    assert len(await engine.queue("mail").peek()) == 3
    await jobs.app.drain()
    assert (await other(jobs, engine, to="a")).id != first.id  # that one is over


async def test_only_what_is_named_counts(jobs, engine):
    first = await jobs.named.enqueue("a", "one")
    assert (await jobs.named.enqueue("a", "two")).id == first.id
    assert (await engine.enqueue_function("named", "named", {"to": "a"})).id == first.id
    assert (await jobs.named.enqueue("b", "one")).id != first.id


async def test_code_may_make_the_key(jobs, engine):
    first = await jobs.coded.enqueue(Order(1, "x"))
    assert (await jobs.coded.enqueue(Order(1, "y"), urgent=False)).id == first.id
    assert (await jobs.coded.enqueue(Order(1), urgent=True)).id != first.id
    with pytest.raises(UsageError, match="unique_by of 'coded' is code of its app"):
        await engine.enqueue_function("coded", "coded", {"order": {"number": 1}})


async def test_tenants_and_functions_are_apart_and_the_rules_are_those_of_dedup(jobs, engine):
    first = await jobs.send.enqueue("a")
    assert (await jobs.send.options(tenant="acme").enqueue("a")).id != first.id
    assert (await jobs.send.options(dedup_key="mine").enqueue("a")).id != first.id
    with pytest.raises(DuplicateTaskError) as caught:
        await jobs.send.options(on_conflict="raise").enqueue("a")
    assert caught.value.task_id == first.id
    with pytest.raises(UsageError, match="shard_key"):
        await jobs.send.options(shard_key="x").enqueue("a")


async def test_a_follow_up_cannot_be_unique_and_says_what_to_do(jobs, engine):
    await jobs.parent.enqueue()
    with pytest.raises(UsageError, match=r"no function with unique=; await its enqueue\(\)"):
        await jobs.app.drain()


async def test_what_makes_no_key_is_refused_before_anything_is_written():
    app = App()

    @app.task("a", unique_by=lambda a: a.nothing)
    async def raises(to: str) -> None: ...

    @app.task("b", unique_by=lambda a: object())
    async def opaque(to: str) -> None: ...

    @app.task("c", unique=True)
    async def moment(at: datetime) -> None: ...

    async with worker(app) as bench:
        with pytest.raises(UsageError, match=r"raises\(\): unique_by raised AttributeError"):
            await raises.enqueue("a")
        with pytest.raises(UsageError, match=r"opaque\(\): unique_by returned <object"):
            await opaque.enqueue("a")
        assert not await bench.engine.queue("a").peek()
        first = await moment.enqueue(datetime(2026, 1, 2, tzinfo=UTC))
        assert (await moment.enqueue(datetime(2026, 1, 2, tzinfo=UTC))).id == first.id


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"unique_by": "nobody"}, "'nobody' is none of"),
        ({"unique_by": ()}, "names no parameter"),
        ({"unique": "to"}, "unique must be True or False"),
        ({"middleware": [1]}, "middleware takes functions"),
    ],
)
def test_wrong_options_are_refused_where_they_are_written(options, error):
    async def send(to: str) -> None: ...

    with pytest.raises(UsageError, match=error):
        App().task("mail", **options)(send)


async def test_middleware_of_one_function_is_inside_that_of_the_app():
    app, calls = App(), []

    def named(name):
        async def around(context, call_next):
            calls.append(f"{name} {context.name}")
            return await call_next()

        return around

    app.middleware(named("app"))

    @app.task("mail", middleware=[named("outer"), named("inner")])
    async def send() -> None:
        calls.append("run")

    @app.task("mail")
    async def other() -> None: ...

    async def refuses(context, call_next):
        raise LookupError("not now")

    @app.task("refused", max_attempts=1, middleware=[refuses])
    async def refused() -> None:
        calls.append("never")

    async with worker(app):
        await send.enqueue()
        assert (await app.drain()).completed == 1
        assert calls == ["app send", "outer send", "inner send", "run"]
        await other.enqueue()
        assert (await app.drain()).completed == 1
        await refused.enqueue()
        assert (await app.drain(errors="keep")).dead == 1
        assert calls[4:] == ["app other", "app refused"]
