"""A function's policy holds on every path by which one of its tasks is made."""

import ast
from datetime import UTC, datetime

import anyio
import pytest
from support_http import ServedOpening

import lodeq
import lodeq.testing
from lodeq.testing import ManualClock
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio
FIVE = lodeq.Backoff("fixed", base=5.0)


class Jobs:
    """An app whose ``fail`` has a policy of its own in every field, on a clock moved by hand."""

    def __init__(self):
        self.app = app = App(name="test")
        self.clock = ManualClock()

        @app.task("mail", retry=FIVE, max_attempts=3, priority=7, retention=60, dead_retention=90)
        async def fail(ok: bool = False) -> str:
            if not ok:
                raise RuntimeError("no")
            return "done"

        @app.task("parents")
        async def parent(ok: bool = False) -> None:
            current().then(fail.new(ok))

        @app.task("other", retry=lodeq.Backoff("fixed", base=2.0))
        async def other() -> None:
            raise RuntimeError("no")

        self.fail, self.parent, self.other = fail, parent, other


@pytest.fixture
def jobs():
    return Jobs()


@pytest.fixture(params=["embedded", "served"])
async def engine(request, jobs, anyio_backend):
    opening = lodeq.testing.open(clock=jobs.clock)
    if request.param == "served":
        opening = ServedOpening(opening)
    async with opening as engine, jobs.app.use(engine):
        if request.param == "served":  # the worker's time is the store's, here in one process
            jobs.app.backend().clock = jobs.clock
        yield engine


async def by_function(jobs, engine, **of):
    await jobs.fail.enqueue(**of)


async def by_options(jobs, engine, **of):
    await jobs.fail.options(headers={"x": 1}).enqueue(**of)


async def by_many(jobs, engine, **of):
    await jobs.fail.enqueue_many([jobs.fail.new(**of)])


async def by_many_of_the_queue(jobs, engine, **of):
    await engine.queue("mail").enqueue_many([jobs.fail.new(**of)])


async def by_many_of_another_queue(jobs, engine, **of):
    await engine.queue("parents", backoff=lodeq.Backoff("fixed", base=1.0)).enqueue_many(
        [jobs.fail.new(**of)]
    )


async def by_many_of_the_engine(jobs, engine, **of):
    await engine.enqueue_many([jobs.fail.new(**of), jobs.other.new()])


async def by_many_of_the_app(jobs, engine, **of):
    await jobs.app.enqueue_many([jobs.other.new(), jobs.fail.new(**of)])


async def by_follow_up(jobs, engine, **of):
    await jobs.parent.enqueue(**of)


PATHS = [
    by_function,
    by_options,
    by_many,
    by_many_of_the_queue,
    by_many_of_another_queue,
    by_many_of_the_engine,
    by_many_of_the_app,
    by_follow_up,
]


async def of_fail(engine, state="delayed"):
    (task,) = await engine.queue("mail").list(state)
    return await engine.get(task.id)


@pytest.mark.parametrize("path", PATHS)
async def test_the_retry_policy_holds(jobs, engine, path):
    await path(jobs, engine)
    await jobs.app.drain(errors="keep")
    now = jobs.clock.wall_us() / 1e6
    task = await of_fail(engine)
    assert task.due_at == datetime.fromtimestamp(round(now * 1000) / 1000 + 5, UTC)
    assert (task.priority, task.max_attempts, task.attempts) == (7, 3, 1)


@pytest.mark.parametrize("path", PATHS)
async def test_the_retention_holds(jobs, engine, path):
    await getattr(engine, "inner", engine).configure("mail", history=0)  # else a row stays
    await path(jobs, engine, ok=True)
    await jobs.app.drain(errors="keep")
    (task,) = await engine.queue("mail").list("completed")
    jobs.clock.advance(58)
    assert (await engine.result(task.id)).value == "done"
    jobs.clock.advance(4)
    assert await engine.queue("mail").list("completed") == []


@pytest.mark.parametrize("path", [by_function, by_many_of_the_engine, by_follow_up])
async def test_dead_letters_are_kept_as_long_as_the_function_says(jobs, engine, path):
    await path(jobs, engine)
    for _ in range(3):
        await jobs.app.drain(errors="keep")
        jobs.clock.advance(6)
    assert (await of_fail(engine, "dead")).attempts == 3
    jobs.clock.advance(80)
    await of_fail(engine, "dead")
    jobs.clock.advance(10)
    assert await engine.queue("mail").list("dead") == []


async def test_options_override_the_policy_field_by_field(jobs, engine):
    await jobs.fail.options(retry=lodeq.Backoff("fixed", base=9.0), max_attempts=2).enqueue()
    await jobs.app.drain(errors="keep")
    task = await of_fail(engine)
    assert task.due_at == datetime.fromtimestamp(jobs.clock.wall_us() / 1e6 + 9, UTC)
    assert (task.max_attempts, task.priority) == (2, 7)


async def test_a_task_of_no_function_has_the_policy_it_carries(jobs, engine):
    """Also where the policy of the queue that takes it is another."""
    task = lodeq.NewTask(b"", "plain", retry=FIVE, max_attempts=2, retention=7, dead_retention=8)
    await engine.queue("elsewhere").enqueue_many([task])
    for n in range(2):
        (lease,) = await engine.queue("plain").claim()
        assert lease.attempt == n + 1
        await lease.nack(reason="no")
        if n == 0:
            (task,) = await engine.queue("plain").list("delayed")
            assert task.due_at == datetime.fromtimestamp(jobs.clock.wall_us() / 1e6 + 5, UTC)
            jobs.clock.advance(6)
    assert len(await engine.queue("plain").list("dead")) == 1
    jobs.clock.advance(10)
    assert await engine.queue("plain").list("dead") == []


async def test_an_older_server_is_named_where_a_policy_would_be_lost(jobs):
    async with ServedOpening(lodeq.testing.open(clock=jobs.clock)) as engine:
        engine.session.takes_policies = False
        default = {"retry": lodeq.Backoff(), "retention": 3600.0, "dead_retention": 604_800.0}
        await engine.enqueue_many([lodeq.NewTask(b"", "plain", **default)])  # what it would be
        with pytest.raises(lodeq.UsageError, match="older than the client: it takes no 'retry'"):
            await engine.enqueue_many([lodeq.NewTask(b"", "plain", retry=FIVE)])
        with pytest.raises(lodeq.UsageError, match="'retention'"):
            await engine.queue("plain").enqueue_many([lodeq.NewTask(b"", retention=3600.0)])
        lease = await engine.queue("plain").claim_one()
        with pytest.raises(lodeq.UsageError, match="'dead_retention'"):
            await lease.complete(then=[lodeq.NewTask(b"", "plain", dead_retention=5)])
        await lease.complete(then=[lodeq.NewTask(b"", "plain", **default)])
        async with jobs.app.use(engine):
            await jobs.fail.enqueue()  # by a queue that has the policy: as ever


WRONG = [
    {"retry": "fixed"},
    {"retention": -1},
    {"dead_retention": "long"},
    {"max_attempts": 0},
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_policy_is_refused_before_anything_is_written(engine, wrong):
    ((name, _),) = wrong.items()
    with pytest.raises(lodeq.UsageError, match=name):
        await engine.queue("plain").enqueue_many([lodeq.NewTask(b"", **wrong)])
    with pytest.raises(lodeq.UsageError, match=name):
        await engine.enqueue_many([lodeq.NewTask(b"", "plain", **wrong)])
    assert (await engine.stats()).enqueued_total == 0


async def test_a_codec_holds_on_every_path(anyio_backend):
    class Reversed:
        """Not what msgpack would write."""

        def encode(self, value):
            return repr(value).encode()[::-1]

        def decode(self, data):
            return ast.literal_eval(data[::-1].decode())

    app = App(codec=Reversed())
    seen = []

    @app.task("a")
    async def first(x: int) -> None:
        current().then(second.new(x + 1))

    @app.task("b")
    async def second(x: int) -> None:
        seen.append(x)

    async with lodeq.testing.worker(app) as bench:
        await bench.engine.enqueue_many([first.new(1), second.new(10)])
        assert (await app.drain()).completed == 3
    assert sorted(seen) == [2, 10]


async def test_a_timeout_of_its_own_travels_with_the_task(anyio_backend):
    app = App()
    clock = ManualClock()

    @app.task("slow", timeout=100)
    async def slow() -> None:
        clock.advance(3)  # the timer fires while it runs
        await anyio.sleep_forever()

    async with lodeq.testing.worker(app, clock=clock):
        await slow.options(timeout=2, headers={"x": 1}).enqueue()
        with pytest.raises(TimeoutError, match="2 s"):
            await app.drain()
