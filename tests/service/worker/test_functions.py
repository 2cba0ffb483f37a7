"""Task functions: what is stored of a call, and what comes out at the other end."""

import asyncio
import functools
import math
import threading

import anyio
import pytest
from support_behaviour import StillClock, in_memory, until

import lodeq
from lodeq import NewTask, UsageError
from lodeq.testing import ManualClock, worker
from lodeq.worker import App, Bury, Cancel, Retry, Snooze, current

pytestmark = pytest.mark.anyio


@pytest.fixture
def app():
    return App(name="test")


async def test_a_call_goes_in_and_its_result_comes_out(app):
    @app.task("mail")
    async def send(to: str, subject: str = "Hello", *, times: int = 1) -> list[str]:
        return [f"{subject} {to}"] * times

    async with worker(app) as bench:
        receipt = await send.enqueue("a@b", times=2)
        (task,) = await bench.engine.queue("mail").peek()
        assert task.payload == {"to": "a@b", "times": 2}
        assert task.headers == {"lodeq.task": "send"}
        assert (await app.drain()).completed == 1
        result = await bench.engine.result(receipt.id)
        assert (result.status, result.value, result.worker) == (
            "completed",
            ["Hello a@b"] * 2,
            "drain",
        )


async def test_called_it_is_the_function(app):
    @app.task("mail")
    async def send(to: str) -> str:
        """Send it."""
        return to

    @app.task("sums")
    def add(a: int, b: int) -> int:
        return a + b

    assert await send("a@b") == "a@b"
    assert add(1, 2) == 3
    assert (send.__name__, send.__doc__) == ("send", "Send it.")


async def test_a_plain_function_runs_in_a_thread_and_knows_its_run(app):
    @app.task("sums")
    def add(a: int, b: int) -> list[object]:
        anyio.from_thread.run(note.enqueue, a + b)
        return [threading.current_thread() is threading.main_thread(), current().attempt]

    noted = []

    @app.task("notes")
    async def note(value: int) -> None:
        noted.append(value)

    async with worker(app) as bench:
        receipt = await add.enqueue(1, b=2)
        assert (await app.drain()).completed == 2
        assert (await bench.engine.result(receipt.id)).value == [False, 1]
        assert noted == [3]


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), (("a", "b", "c"), {}), (("a",), {"nobody": 1}), ((), {"x": 1})]
)
async def test_a_wrong_call_is_refused_before_anything_is_written(app, args, kwargs):
    @app.task("mail")
    async def send(to: str, subject: str = "") -> None: ...

    async with worker(app) as bench:
        with pytest.raises(UsageError, match="send"):
            await send.enqueue(*args, **kwargs)
        with pytest.raises(UsageError, match="send"):
            send.new(*args, **kwargs)
        assert (await bench.engine.stats()).enqueued_total == 0


async def test_options_are_those_of_the_queue(app):
    ran = []

    @app.task("mail", priority=3, max_attempts=2)
    async def send(to: str) -> None:
        ran.append((current().tenant, to, dict(current().headers)))

    async with worker(app) as bench:
        first = await send.options(dedup_key="k", tenant="acme", headers={"trace": "x"}).enqueue(
            "a"
        )
        again = await send.options(dedup_key="k", tenant="acme").enqueue("b")
        assert again == (first.id, True, None)
        await send.options(delay=60, priority=9).enqueue("later")
        task = await bench.engine.get(first.id)
        assert (task.priority, task.max_attempts, task.tenant) == (3, 2, "acme")
        assert (await app.drain()).completed == 1
        assert ran == [("acme", "a", {"trace": "x", "lodeq.task": "send"})]
        bench.clock.advance(60)
        assert (await app.drain()).completed == 1
        assert ran[1][1] == "later"


async def test_many_at_once_of_several_tenants_keep_order_and_policy(app):
    ran = []

    @app.task("mail", retry=lodeq.Backoff("fixed", base=7))
    async def send(to: str) -> None:
        ran.append(to)
        raise Retry

    async with worker(app) as bench:
        receipts = await send.enqueue_many(
            [send.new("a"), send.options(tenant="acme").new("b"), send.new("c")]
        )
        found = [(await bench.engine.get(receipt.id)).payload["to"] for receipt in receipts]
        assert found == ["a", "b", "c"]
        assert (await app.drain()).failed == 3
        bench.clock.advance(6.9)
        assert (await app.drain()).runs == 0
        bench.clock.advance(0.1)
        assert (await app.drain()).runs == 3
        with pytest.raises(UsageError, match="one tenant"):
            await send.enqueue_many(
                [send.new("a"), send.options(tenant="acme").new("b")], atomic=True
            )
        with pytest.raises(UsageError, match=r"send\.new"):
            await send.enqueue_many([NewTask({"to": "a"})])


async def test_tasks_that_came_another_way(app):
    """By hand, over HTTP, from the command line: without the header, and with it."""
    ran = []

    @app.task("mail")
    async def send(to, subject=None):
        ran.append((to, subject))

    async with worker(app) as bench:
        queue = bench.engine.queue("mail")
        await queue.enqueue({"to": "a", "subject": "s"})
        await queue.enqueue(b"raw")
        await queue.enqueue([1, 2])
        await queue.enqueue({"to": "b"}, headers={"lodeq.task": "send"})
        await app.drain()
        assert ran == [("a", "s"), (b"raw", None), ([1, 2], None), ("b", None)]


async def test_what_nobody_can_run_fails_visibly(app):
    @app.task("mail", max_attempts=1)
    async def send(to: str) -> None: ...

    @app.task("mail", name="other")
    async def other() -> None: ...

    async with worker(app) as bench:
        queue = bench.engine.queue("mail", max_attempts=1)
        await queue.enqueue({"to": "a"})
        await queue.enqueue({"to": "a", "nobody": 1}, headers={"lodeq.task": "send"})
        await queue.enqueue(b"raw", headers={"lodeq.task": "send"})
        assert (await app.drain(errors="keep")).dead == 3
        reasons = [task.reason for task in await queue.dead_letters()]
        for told in ("2 functions", "nobody", "not a map"):
            assert sum(told in reason for reason in reasons) == 1


async def test_a_task_for_a_function_of_another_worker_is_given_back_uncounted(caplog):
    """A rolling deploy: tasks of a new function come before the workers that have it."""
    clock, old, new, ran = ManualClock(), App(), App(), []

    @old.task("mail")
    async def send(to: str) -> None: ...

    @new.task("mail", max_attempts=1)
    async def send_v2(to: str) -> None:
        ran.append((to, current().attempt))

    async with worker(old, clock=clock) as bench, new.use(bench.engine):
        receipt = await send_v2.enqueue("a")
        waits = []
        for _ in range(42):
            report = await old.drain(errors="keep")
            assert (report.released, report.runs) == (1, 1)
            task = await bench.engine.get(receipt.id)
            wait_s = (task.due_at - clock.now).total_seconds()
            waits.append(round(wait_s, 1))
            assert task.attempts == 0
            clock.advance(wait_s)
        assert waits[:8] == [0.1] * 5 + [0.1, 0.2, 0.2]  # a quarter of its age
        assert waits[20] == pytest.approx(waits[19] * 1.25, abs=0.1)
        assert waits[-1] == 60
        assert (await new.drain()).completed == 1
        assert (await bench.engine.result(receipt.id)).status == "completed"
    assert ran == [("a", 1)]
    assert {getattr(one, "event", "") for one in caplog.records} == {"function_unknown"}
    assert all("no function 'send_v2' in queue 'mail'" in one.message for one in caplog.records)


async def test_a_function_that_is_not_there_is_logged_once_a_minute(app, caplog):
    clock = StillClock()

    @app.task("mail")
    async def send(to: str) -> None: ...

    async with in_memory(clock) as engine, app.use(engine), app.work() as working:
        queue = engine.queue("mail")
        headers = {"lodeq.task": "gone"}
        await queue.enqueue_many([NewTask({"to": "a"}, headers=headers) for _ in range(20)])
        await until(lambda: working.outcomes["released"] == 20)
        assert len(caplog.records) == 1
        clock.jump(61)
        await until(lambda: working.outcomes["released"] == 40)
        assert len(caplog.records) == 2


async def test_a_drain_raises_that_a_function_is_not_there(app):
    @app.task("mail")
    async def send(to: str) -> None: ...

    async with worker(app) as bench:
        await bench.engine.queue("mail").enqueue({"to": "a"}, headers={"lodeq.task": "gone"})
        with pytest.raises(lodeq.UsageError, match="no function 'gone'"):
            await app.drain()


async def test_how_a_run_may_end(app):
    states = {}

    for name, outcome in {
        "snooze": Snooze(60),
        "retry": Retry(60, "not yet"),
        "bury": Bury("bad"),
        "cancel": Cancel(),
        "error": ValueError("bad input"),
    }.items():
        for way in ("raised", "returned"):
            if way == "returned" and name == "error":
                continue

            async def run(outcome=outcome, way=way):
                if way == "raised":
                    raise outcome
                return outcome

            states[name, way] = app.task(f"{name}.{way}", name=name)(run)

    async with worker(app) as bench:
        ids = {key: (await task.enqueue()).id for key, task in states.items()}
        ended = await app.drain(errors="keep")
        assert (ended.snoozed, ended.failed, ended.dead, ended.cancelled) == (2, 3, 2, 2)
        for (name, _), task_id in ids.items():
            task = await bench.engine.get(task_id)
            told = (task.state, task.attempts, task.reason.splitlines()[:1])
            assert (
                told
                == {
                    "snooze": ("delayed", 0, []),
                    "retry": ("delayed", 1, ["not yet"]),
                    "bury": ("dead", 1, ["bad"]),
                    "cancel": ("cancelled", 1, ["cancelled"]),
                    "error": ("delayed", 1, ["ValueError: bad input"]),
                }[name]
            )
            if name in ("snooze", "retry"):
                assert (task.due_at - bench.clock.now).total_seconds() == 60


async def test_a_failure_says_where_and_drain_raises_it(app):
    @app.task("mail")
    async def send(to: str) -> None:
        int(to)

    async with worker(app) as bench:
        receipt = await send.enqueue("x")
        with pytest.raises(ValueError, match="invalid literal"):
            await app.drain()
        reason = (await bench.engine.get(receipt.id)).reason
        assert reason.startswith("ValueError: invalid literal")
        assert "test_functions.py:" in reason
        assert "in send" in reason


async def test_a_reason_may_be_made_by_the_app():
    app = App(format_error=lambda error: type(error).__name__)

    @app.task("mail")
    async def send() -> None:
        raise ValueError("secret")

    async with worker(app) as bench:
        receipt = await send.enqueue()
        await app.drain(errors="keep")
        assert (await bench.engine.get(receipt.id)).reason == "ValueError"


async def test_a_poison_task_dies_with_its_last_attempt(app):
    @app.task("mail", max_attempts=3, retry=lodeq.Backoff("fixed", base=1))
    async def send() -> None:
        raise SystemExit(3)

    async with worker(app) as bench:
        receipt = await send.enqueue()
        for _ in range(5):
            await app.drain(errors="keep")
            bench.clock.advance(1)
        task = await bench.engine.get(receipt.id)
        assert (task.state, task.attempts, task.reason.splitlines()[0]) == (
            "dead",
            3,
            "SystemExit: 3",
        )


async def test_a_result_that_cannot_be_stored_makes_a_dead_letter(app):
    @app.task("mail")
    async def send() -> object:
        return object()

    async with worker(app) as bench:
        receipt = await send.enqueue()
        assert (await app.drain(errors="keep")).dead == 1
        task = await bench.engine.get(receipt.id)
        assert task.state == "dead"
        assert "could not be stored" in task.reason


async def test_a_codec_that_fails_harms_its_own_task_alone():
    class Codec:
        def encode(self, value):
            if value == "bad":
                raise RuntimeError("no")
            return repr(value).encode()

        def decode(self, data):
            return {"text": data.decode()}

    app = App(codec=Codec())

    @app.task("mail")
    async def send(text: str) -> str:
        return "bad" if "poison" in text else "good"

    async with worker(app) as bench:
        receipts = await send.enqueue_many([send.new("poison"), send.new("fine")])
        ended = await app.drain(errors="keep")
        assert (ended.dead, ended.completed) == (1, 1)
        assert "RuntimeError" in (await bench.engine.get(receipts[0].id)).reason


async def test_a_follow_up_that_cannot_be_is_refused_at_once(app):
    @app.task("mail", max_attempts=1)
    async def send() -> None:
        current().then(send.options(dedup_key="k").new())

    async with worker(app):
        await send.enqueue()
        with pytest.raises(UsageError, match="shard"):
            await app.drain()


async def test_follow_ups_share_the_batch_of_the_completion(app):
    ran = []

    @app.task("mail")
    async def send(to: str) -> None:
        current().then(audit.new(f"sent {to}"), audit.options(priority=9).new("first"))
        if to == "bad":
            raise Retry

    @app.task("audit")
    async def audit(text: str) -> None:
        ran.append(text)

    async with worker(app):
        await send.enqueue("a")
        await send.enqueue("bad")
        await app.drain()
        assert ran == ["first", "sent a"]


async def test_middleware_wraps_every_run(app):
    seen = []

    @app.middleware
    async def outer(ctx, call_next):
        seen.append(("outer", ctx.name, current() is ctx))
        try:
            return await call_next()
        finally:
            seen.append("out")

    @app.middleware
    async def inner(ctx, call_next):
        value = await call_next()
        return value + 1

    @app.task("sums")
    def add(a: int) -> int:
        return a

    async with worker(app) as bench:
        receipt = await add.enqueue(1)
        await app.drain()
        assert (await bench.engine.result(receipt.id)).value == 2
        assert seen == [("outer", "add", True), "out"]


async def test_drain_is_bounded(app):
    @app.task("mail")
    async def again() -> None:
        raise Snooze(0)

    async with worker(app):
        await again.enqueue()
        with pytest.raises(lodeq.LimitError, match="20 runs"):
            await app.drain(limit=20)


async def test_a_function_that_cancels_itself_fails(app):
    @app.task("mail")
    async def send() -> None:
        raise anyio.get_cancelled_exc_class()

    async with worker(app) as bench:
        receipt = await send.enqueue()
        assert (await app.drain(errors="keep")).failed == 1
        assert (await bench.engine.get(receipt.id)).reason == "the function cancelled itself"


@pytest.mark.parametrize(
    "options",
    [
        {"rate": "fast"},
        {"rate": "0/m"},
        {"rate": "3/0s"},
        {"rate": 5},
        {"concurrency": 0},
        {"concurrency": True},
        {"timeout": -1},
        {"timeout": math.nan},
        {"max_attempts": 0},
        {"priority": 10},
        {"retry": 3},
        {"lease": 0},
        {"max_inflight_per_tenant": 0},
        {"name": ""},
        {"ttl": "x"},
        {"retention": -1},
    ],
    ids=repr,
)
def test_a_wrong_option_is_told_where_it_is_written(app, options):
    with pytest.raises(UsageError):
        app.task("mail", **options)(functools.partial(test_called_it_is_the_function))


def test_names_and_limits_are_given_once(app):
    async def send() -> None: ...

    app.task("mail", rate="1/s")(send)
    with pytest.raises(UsageError, match="already"):
        app.task("mail")(send)
    with pytest.raises(UsageError, match="rate is a limit of the queue"):
        app.task("mail", name="other", rate="2/s")(send)
    app.task("mail", name="fourth", queue_concurrency=3)(send)
    with pytest.raises(UsageError, match=r"queue_concurrency .* 'fourth' has set it .* 'fifth'"):
        app.task("mail", name="fifth", queue_concurrency=3)(send)
    app.task("mail", name="other", concurrency=3)(send)
    app.task("mail", name="sixth", concurrency=2)(send)  # each has its own
    with pytest.raises(UsageError, match="by name"):
        app.task("mail", name="third")(lambda *args: None)


async def test_without_a_store_it_says_what_to_do(app):
    @app.task("mail")
    async def send() -> None: ...

    with pytest.raises(UsageError, match="async with app"):
        await send.enqueue()
    with pytest.raises(UsageError, match="this app has no store"):
        async with app:
            pass
    with pytest.raises(UsageError, match="inside a task function"):
        current()
    async with worker(app):
        with pytest.raises(UsageError, match="open already"):
            async with app:
                pass


async def test_setup_is_around_all_work():
    from contextlib import asynccontextmanager

    seen = []

    @asynccontextmanager
    async def setup(app):
        seen.append(app.engine is not None)
        yield
        seen.append("left")

    app = App(setup=setup)

    @app.task("mail")
    async def send() -> None:
        seen.append("ran")

    async with worker(app, clock=ManualClock()):
        await send.enqueue()
        await app.drain()
    assert seen == [True, "ran", "left"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"oder": 1}, "got an unexpected argument 'oder'; did you mean 'order'?"),
        ({"zzz": 1}, "got an unexpected argument 'zzz'"),
        ({}, "missing a required argument: 'order'"),
        ({"order": 1, "oder": 1}, "got an unexpected argument 'oder'"),
    ],
)
async def test_an_unknown_argument_is_named_before_a_missing_one(arguments, why):
    app = App()

    @app.task("q")
    async def ship(order: int) -> None: ...

    with pytest.raises(UsageError) as caught:
        ship.new(**arguments)
    assert str(caught.value) == f"ship(order: int) -> None: {why}"


async def fails_on(row):
    raise LookupError(f"row {row} is gone")


async def in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(fails_on(7))
        group.create_task(fails_on(8))


async def with_a_cause():
    try:
        await fails_on(1)
    except LookupError as error:
        raise RuntimeError("the import failed") from error


async def while_handling():
    try:
        await fails_on(1)
    except LookupError:
        raise RuntimeError("the import failed")  # noqa: B904 - that is the case


async def without_a_cause():
    try:
        await fails_on(1)
    except LookupError:
        raise RuntimeError("the import failed") from None


async def many():
    raise ExceptionGroup("many", [ExceptionGroup("in it", [ValueError(n)]) for n in range(9)])


def stops():
    return next(iter([]))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (in_a_group, ["(2 sub-exceptions)", "- LookupError: row 7 is gone (test_functions.py:"]),
        (in_a_group, ["- LookupError: row 8 is gone", " in in_a_group"]),
        (with_a_cause, ["RuntimeError: the import failed", "caused by LookupError: row 1 is gone"]),
        (while_handling, ["while handling LookupError: row 1 is gone", " in fails_on"]),
        (many, ["- ValueError: 0\n", "- ValueError: 4\n", "- 4 more"]),
        (stops, ["StopIteration", "caused by StopIteration\n  test_functions.py:", " in stops"]),
    ],
)
async def test_a_reason_names_what_a_group_holds_and_what_it_was_caused_by(app, function, told):
    task = app.task("jobs", max_attempts=1)(function)
    async with worker(app) as bench:
        await task.enqueue()
        await app.drain(errors="keep")
        (dead,) = await bench.engine.queue("jobs").dead_letters()
    for text in told:
        assert text in dead.reason


async def test_a_cause_that_was_left_out_stays_out(app):
    task = app.task("jobs", max_attempts=1)(without_a_cause)
    async with worker(app) as bench:
        await task.enqueue()
        await app.drain(errors="keep")
        (dead,) = await bench.engine.queue("jobs").dead_letters()
    assert "row 1" not in dead.reason


async def test_nothing_is_added_to_a_run_that_is_over(app):
    contexts = []

    @app.task("jobs")
    async def crunch() -> None:
        contexts.append(current())
        current().then(crunch.new())
        current().follow_ups.clear()

    async with worker(app):
        await crunch.enqueue()
        await app.drain()
        with pytest.raises(UsageError, match="is over"):
            contexts[0].then(crunch.new())


async def test_none_is_no_tenant(app):
    @app.task("jobs")
    async def crunch() -> None: ...

    async with worker(app):
        with pytest.raises(UsageError, match="tenant=None"):
            crunch.options(tenant=None)
        with pytest.raises(UsageError, match="ALL_TENANTS"):
            crunch.options(tenant=lodeq.ALL_TENANTS)


@pytest.mark.parametrize("history", [0, 3600])
async def test_who_waits_for_a_result_that_is_not_kept_hears_that_the_task_ended(app, history):
    @app.task("jobs", retention=0)
    async def crunch() -> None: ...

    async with worker(app) as bench:
        await bench.engine.configure("jobs", history=history)
        receipt = await crunch.enqueue()
        waiting = asyncio.ensure_future(bench.engine.result(receipt.id, wait=60))
        await asyncio.sleep(0)
        await app.drain()
        with pytest.raises(
            lodeq.TaskNotFoundError, match=r"ended.*\(retention=\)|\(retention=\).*ended"
        ):
            await waiting
