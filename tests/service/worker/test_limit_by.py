"""``key_concurrency=`` and ``limit_by=``: a call has the label that its queue counts by."""

from dataclasses import dataclass

import pytest
from support_http import ServedOpening, serving

import lodeq
import lodeq.testing
from lodeq import UsageError
from lodeq.testing import ManualClock
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio


@dataclass
class Order:
    customer: str
    number: int = 0


class Jobs:
    def __init__(self):
        self.app = app = App(name="test")
        self.running, self.most = {}, 0

        @app.task("mail", key_concurrency="1/to", retention=3600)
        async def send(to: str, copies: int = 1) -> None: ...

        @app.task("orders", key_concurrency="2/customer", limit_by=lambda a: a.order.customer)
        async def order(order: Order) -> None: ...

        @app.task("others", key_concurrency="2/customer", limit_by="number")
        async def other(number: int | None = 7) -> None: ...

        @app.task("parents")
        async def parent(to: str) -> None:
            current().then(send.new(to))

        self.send, self.order, self.other, self.parent = send, order, other, parent


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


async def labels(engine, queue):
    """The labels of tasks that are there, and of those that have run."""
    states = [await engine.queue(queue).list(state) for state in ("ready", "completed")]
    return [task.labels for found in states for task in found]


async def by_call(jobs, engine, to):
    await jobs.send.enqueue(to)


async def by_options(jobs, engine, to):
    await jobs.send.options(priority=7, labels={"more": "x"}).enqueue(to=to)


async def by_many(jobs, engine, to):
    await jobs.send.enqueue_many([jobs.send.new(to)])


async def by_many_of_the_app(jobs, engine, to):
    await jobs.app.enqueue_many([jobs.send.new(to)])


async def by_another_task(jobs, engine, to):
    await jobs.parent.enqueue(to)
    await jobs.app.drain()


async def by_name(jobs, engine, to):
    await engine.enqueue_function("mail", "send", {"to": to})


async def by_name_with_more(jobs, engine, to):
    await engine.enqueue_function("mail", "send", {"to": to}, labels={"more": "x"})


PATHS = [
    by_call,
    by_options,
    by_many,
    by_many_of_the_app,
    by_another_task,
    by_name,
    by_name_with_more,
]


@pytest.mark.parametrize("path", PATHS)
async def test_a_call_has_its_key_on_every_path(jobs, engine, path):
    await path(jobs, engine, "ann")
    (found,) = await labels(engine, "mail")
    assert found == {"to": "ann"} | ({"more": "x"} if "more" in found else {})


async def test_a_worker_sets_the_limit_and_it_holds(jobs, engine):
    async with jobs.app.work(queues=["mail"]):
        found = await engine.settings("mail")
        assert (found.key_concurrency, found.by) == (
            "1/to",
            {"key_concurrency": "function send"},
        )
    for to in ("ann", "ann", "bob"):
        await jobs.send.enqueue(to)
    leases = await engine.queue("mail").claim(limit=3)
    assert [lease.labels["to"] for lease in leases] == ["ann", "bob"]
    assert (await engine.queue("mail").stats()).waiting == 1


async def test_where_the_value_comes_from(jobs, engine):
    await jobs.order.enqueue(Order("acme", 1))
    await jobs.order.options(labels={"customer": "own"}).enqueue(Order("acme", 2))
    assert await labels(engine, "orders") == [{"customer": "acme"}, {"customer": "own"}]
    for given in ((), (8,), (None,)):
        await jobs.other.enqueue(*given)
    assert await labels(engine, "others") == [{"customer": "7"}, {"customer": "8"}, {}]


async def test_what_is_not_known_by_name_is_refused(jobs, engine):
    with pytest.raises(UsageError, match=r"code of its app.*give the label 'customer'"):
        await engine.enqueue_function("orders", "order", {"order": {"customer": "a"}})
    with pytest.raises(UsageError, match="'number', whose default is not known"):
        await engine.enqueue_function("others", "other", {})
    await engine.enqueue_function("others", "other", {}, labels={"customer": "9"})
    await engine.enqueue_function("others", "other", {"number": None})
    assert await labels(engine, "others") == [{"customer": "9"}, {}]
    assert await labels(engine, "orders") == []


@pytest.mark.parametrize("given", [None, {"to": "secret"}], ids=["made", "given"])
@pytest.mark.parametrize(("hook", "kept"), [(lambda _: "***", "***"), (lambda _: 1 / 0, "")])
async def test_a_client_with_a_hook_lets_no_label_past_it(jobs, given, hook, kept):
    async with lodeq.testing.open() as engine, serving(engine) as url:
        await engine.publish_functions(jobs.app.published())
        async with lodeq.connect(url, redact=hook) as client:
            await client.enqueue_function("mail", "send", {"to": "secret"}, labels=given)
        assert await labels(engine, "mail") == [{"to": kept}]


async def test_labels_that_are_none_are_refused_by_name_too(jobs, engine):
    with pytest.raises(UsageError, match="labels must be a mapping"):
        await engine.enqueue_function("mail", "send", {"to": "ann"}, labels=["to"])


async def test_no_text_is_refused_where_it_is_called(jobs, engine):
    broken = jobs.app.task("broken", key_concurrency="2/to", limit_by=lambda a: a.nobody)(with_to)
    with pytest.raises(UsageError, match=r"with_to\(\): limit_by raised AttributeError"):
        await broken.enqueue("ann")

    @jobs.app.task("flags", key_concurrency="2/is_on")
    async def flag(is_on: bool) -> None: ...

    with pytest.raises(UsageError, match="must be a str, an int or None, not bool"):
        await flag.enqueue(True)


WRONG = [
    ({"limit_by": "to"}, "limit_by needs key_concurrency"),
    ({"key_concurrency": "2/customer"}, "none of \\['to'\\]: say with limit_by="),
    ({"key_concurrency": "2/to", "limit_by": 3}, "name of a parameter, or a callable"),
    ({"key_concurrency": "2"}, "such as '2/customer'"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_a_wrong_option_is_refused_where_it_is_written(options, said):
    with pytest.raises(UsageError, match=said):

        @App(name="test").task("mail", **options)
        async def send(to: str) -> None: ...


def test_two_functions_of_a_queue_have_one_limit():
    app = App(name="test")
    app.task("mail", name="one", key_concurrency="2/to")(with_to)
    app.task("mail", name="two", key_concurrency="2 / to")(with_to)
    with pytest.raises(UsageError, match="'one' has set it"):
        app.task("mail", name="three", key_concurrency="3/to")(with_to)
    with pytest.raises(UsageError, match="stores none"):
        App(name="test", faces=False).task("mail", key_concurrency="2/to")(with_to)


async def with_to(to: str) -> None: ...
