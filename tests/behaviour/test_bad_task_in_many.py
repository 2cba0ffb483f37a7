"""A bad task among many: the error says which one, on every path."""

import pytest
from support_http import LinkedOpening, ServedOpening

import lodeq
import lodeq.sync
import lodeq.testing
from lodeq import NewTask
from lodeq.service.http.guard import Settings
from lodeq.worker import App

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


OPENINGS = {
    "embedded": lodeq.testing.open,
    "served": lambda: ServedOpening(lodeq.testing.open()),
    "linked": lambda: LinkedOpening(lodeq.testing.open()),
}


@pytest.fixture(params=OPENINGS)
async def engine(request):
    async with OPENINGS[request.param]() as engine:
        yield engine


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (NewTask(object()), r"tasks\[2\]: payload cannot be packed"),
        (NewTask(b"x", priority=11), r"tasks\[2\](: |\.)priority"),
        (NewTask(b"x", delay=-1), r"tasks\[2\]: delay"),
        (NewTask(b"x" * (17 << 20)), r"tasks\[2\]: payload is 17825792 bytes"),
        ("mail", r"tasks\[2\]: tasks must be lodeq.NewTask, not str"),
        (NewTask(b"x", queue="Mail!"), r"tasks\[2\]: queue name"),
    ],
)
@pytest.mark.parametrize("others", [NewTask(b"x"), NewTask(b"x", priority=7)], ids=["plain", "not"])
async def test_a_bad_task_is_named_by_its_position(engine, bad, said, others):
    with pytest.raises(lodeq.UsageError, match=said) as found:
        await engine.queue("mail").enqueue_many([others, others, bad, others])
    assert found.value.index == 2
    assert found.value.receipts == [None] * 4
    with pytest.raises(lodeq.UsageError, match=said):
        await engine.queue("mail").enqueue_many([others, others, bad], atomic=True)
    assert (await engine.queue("mail").stats()).ready == 0


async def test_the_position_is_counted_over_all_requests():
    """A client sends many tasks in several requests; the server sees one of them."""
    async with ServedOpening(lodeq.testing.open(), Settings(batch_max=4)) as engine:
        tasks = [NewTask(b"x")] * 6 + [NewTask(b"x", dedup_key="a", shard_key="b")]
        with pytest.raises(lodeq.UsageError, match=r"tasks\[6\]") as found:
            await engine.queue("mail").enqueue_many(tasks)
        assert found.value.index == 6
        assert [one is not None for one in found.value.receipts] == [True] * 4 + [False] * 3


async def test_a_task_without_a_queue_is_named(engine):
    tasks = [NewTask(b"x", queue="mail"), NewTask(b"x")]
    with pytest.raises(lodeq.UsageError, match=r"tasks\[1\]: .*NewTask\(queue=…\)"):
        await engine.enqueue_many(tasks)


async def test_an_error_about_the_whole_call_names_none():
    async with lodeq.testing.open() as engine:
        with pytest.raises(lodeq.UsageError) as found:
            await engine.queue("mail").enqueue_many([NewTask(b"x")], durable=1)
        assert found.value.index is None
        assert "tasks[" not in str(found.value)


async def test_positions_are_those_of_the_callers_list():
    """A function sorts its tasks by tenant before it enqueues them."""
    app = App(lodeq.testing.open)

    @app.task("mail")
    async def send(to) -> None: ...

    async with app:
        tasks = [
            send.options(tenant="a").new("x"),
            send.options(tenant="b").new("x"),
            send.options(tenant="a").new(object()),
        ]
        with pytest.raises(lodeq.UsageError, match=r"tasks\[2\]: payload") as found:
            await send.enqueue_many(tasks)
        assert found.value.index == 2
        with pytest.raises(lodeq.UsageError, match=r"tasks\[1\]: .*send.new\(\)"):
            await send.enqueue_many([tasks[0], NewTask(b"x")])


async def test_too_large_names_the_setting():
    async with lodeq.testing.open() as engine:
        with pytest.raises(lodeq.PayloadTooLargeError, match="payload_bytes_max"):
            await engine.queue("mail").enqueue(b"x" * (17 << 20))
        with pytest.raises(lodeq.PayloadTooLargeError, match="headers_bytes_max"):
            await engine.queue("mail").enqueue(b"x", headers={"x": "y" * (1 << 20)})


class Array:
    """As an array: it has no truth, and what it compares to has none."""

    def __eq__(self, other):
        return Array()

    def __ne__(self, other):
        return Array()

    def __bool__(self):
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None


OPTIONS = [name for name in NewTask._fields if name != "payload"]


@pytest.mark.parametrize("name", OPTIONS)
async def test_an_option_that_does_not_compare_is_refused_as_any_other(engine, name):
    bad, queue = NewTask(b"x", **{name: Array()}), engine.queue("mail")
    for others in ([], [NewTask(b"x")], [NewTask(b"x", priority=7)]):
        with pytest.raises(lodeq.UsageError) as found:
            await queue.enqueue_many([*others, bad])
        assert found.value.index == len(others)
    if name not in ("queue", "tenant"):
        with pytest.raises(lodeq.UsageError):
            await queue.enqueue(b"x", **{name: Array()})
    assert (await queue.stats()).pending == 0


@pytest.mark.parametrize("name", OPTIONS)
def test_nor_does_a_stage_take_it(tmp_path, name):
    lodeq.sync.open(tmp_path / "jobs").close()
    bad = NewTask(b"x", **({"queue": "mail"} | {name: Array()}))
    with lodeq.Stage(tmp_path / "jobs", "load") as stage, pytest.raises(lodeq.UsageError):
        stage.add([bad])
