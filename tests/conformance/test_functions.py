"""The published registry and the workers' beats: embedded, and (by its own modules) served."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from conformance import test_engine as suite

import lodeq
from lodeq import FunctionParameter, PublishedFunction, WorkerReport

pytestmark = pytest.mark.anyio
store, shards, opening, engine = suite.store, suite.shards, suite.opening, suite.engine
form = suite.form

FIVE = lodeq.Backoff("fixed", base=5.0)
SEND = PublishedFunction(
    "mail",
    "send",
    max_attempts=3,
    retry=FIVE,
    retention=60.0,
    dead_retention=90.0,
    priority=7,
    ttl=600.0,
    timeout=4.5,
    parameters=(
        FunctionParameter("to", "required", "to: str"),
        FunctionParameter("subject", "optional", "subject: str = 'Hello'"),
    ),
    signature="ab12",
    doc="Send it.",
)
TICK = PublishedFunction("cron", "tick", cron="*/5 * * * *", tz="Europe/Berlin", parameters=())
OPEN = PublishedFunction("mail", "any", parameters=None)
REST = PublishedFunction("mail", "rest", parameters=(FunctionParameter("more", "rest", "**more"),))


def bare(found):
    return [replace(one, published_at=None) for one in found]


async def test_what_is_published_comes_back(engine):
    assert await engine.functions() == []
    assert await engine.publish_functions([SEND, TICK, OPEN]) == 3
    found = await engine.functions()
    assert bare(found) == [TICK, OPEN, SEND]
    assert all(isinstance(one.published_at, datetime) for one in found)
    assert bare(await engine.functions("mail")) == [OPEN, SEND]
    assert await engine.functions("nobody") == []
    assert SEND.call == "send(to: str, subject: str = 'Hello')"


async def test_the_newest_start_wins_and_the_same_writes_nothing(engine):
    await engine.publish_functions([SEND])
    assert await engine.publish_functions([SEND]) == 0
    newer = replace(SEND, max_attempts=9, signature="cd34")
    assert await engine.publish_functions([newer, TICK]) == 2
    assert bare(await engine.functions("mail")) == [newer]
    receipt = await engine.enqueue_function("mail", "send", {"to": "a"})
    assert (await engine.get(receipt.id)).max_attempts == 9
    assert await engine.publish_functions([SEND]) == 1  # an older version, started last
    assert (await engine.get(receipt.id)).max_attempts == 9  # a task keeps its own


async def test_a_call_by_name_has_the_published_policy(engine):
    await engine.publish_functions([SEND])
    receipt = await engine.enqueue_function("mail", "send", {"to": "a@example.org"})
    task = await engine.get(receipt.id)
    assert (task.payload, task.headers) == ({"to": "a@example.org"}, {"lodeq.task": "send"})
    assert (task.priority, task.max_attempts) == (7, 3)
    assert task.expires_at is not None
    (lease,) = await engine.queue("mail").claim()
    before = datetime.now(UTC) if lease.enqueued_at.year < 2030 else lease.enqueued_at
    await lease.nack(reason="no")
    task = await engine.get(receipt.id)
    assert task.state == "delayed"
    assert abs((task.due_at - before).total_seconds() - 5) < 4


async def test_options_of_a_call_by_name(engine):
    await engine.publish_functions([SEND])
    receipt = await engine.enqueue_function(
        "mail",
        "send",
        {"to": "a", "subject": "s"},
        tenant="acme",
        priority=2,
        delay=60,
        ttl=30,
        dedup_key="k",
        headers={"x": 1},
        max_attempts=8,
        durable=True,
    )
    task = await engine.get(receipt.id)
    assert (task.tenant, task.priority, task.max_attempts, task.state) == ("acme", 2, 8, "delayed")
    assert task.headers == {"x": 1, "lodeq.task": "send"}
    again = await engine.enqueue_function("mail", "send", {"to": "b"}, tenant="acme", dedup_key="k")
    assert (again.id, again.duplicate) == (receipt.id, True)


async def test_a_call_by_name_is_shown_as_one_of_the_function_is(engine):
    await engine.publish_functions([SEND])
    receipt = await engine.enqueue_function(
        "mail", "send", {"to": "a@example.org"}, labels={"customer": "17"}
    )
    task = await engine.get(receipt.id)
    assert (task.function, task.preview) == ("send", "to='a@example.org'")
    assert task.labels == {"customer": "17"}
    lease = await engine.queue("mail").claim_one()
    assert (lease.function, lease.preview) == ("send", "to='a@example.org'")
    await lease.bury("bad")
    (dead,) = await engine.queue("mail").dead_letters()
    assert (dead.function, dead.preview) == ("send", "to='a@example.org'")
    (ended,) = await engine.history("mail")
    assert (ended.function, ended.preview) == ("send", "to='a@example.org'")
    receipt = await engine.enqueue_function("mail", "send", {"to": "a"}, preview="mine")
    assert (await engine.get(receipt.id)).preview == "mine"


@pytest.mark.parametrize(
    ("change", "face"),
    [
        ({"faces": False}, ("", "", {})),
        ({"is_redacted": True}, ("send", "", {"k": "v"})),
    ],
    ids=["off", "redacted"],
)
async def test_a_call_by_name_shows_no_more_than_its_app_would(engine, change, face):
    await engine.publish_functions([replace(SEND, **change)])
    receipt = await engine.enqueue_function("mail", "send", {"to": "a"}, labels={"k": "v"})
    task = await engine.get(receipt.id)
    assert (task.function, task.preview, task.labels) == face


async def test_a_call_by_name_keeps_its_end_as_the_function_says(engine):
    await engine.publish_functions([replace(SEND, retention=0.0)])
    receipt = await engine.enqueue_function("mail", "send", {"to": "a"})
    lease = await engine.queue("mail").claim_one()
    await lease.complete("x")
    with pytest.raises(lodeq.TaskNotFoundError):  # a queue keeps it for an hour
        await engine.result(receipt.id)


TYPED = PublishedFunction(
    "mail",
    "typed",
    parameters=(
        FunctionParameter("order", "required", "order: Order", '["object","Order",{"due":"date"}]'),
        FunctionParameter("times", "optional", "times: int = 1", '"int"'),
        FunctionParameter("more", "rest", "**more: int", '"int"'),
    ),
)


async def test_arguments_of_a_call_by_name_are_checked_with_their_place(engine):
    await engine.publish_functions([TYPED])
    assert bare(await engine.functions("mail")) == [TYPED]
    good = {"order": {"due": "2026-12-24"}}
    await engine.enqueue_function("mail", "typed", good)
    for wrong, says in [
        ({"order": {"due": "soon"}}, r"argument order\.due: expected date, got str 'soon'"),
        ({"order": {}}, r"argument order\.due: missing"),
        ({**good, "times": "many"}, "argument times: expected int, got str 'many'"),
        ({**good, "else": None}, "argument else: expected int, got None"),
    ]:
        with pytest.raises(lodeq.UsageError, match=rf"typed\(\): {says}"):
            await engine.enqueue_function("mail", "typed", wrong)
    assert (await engine.stats()).enqueued_total == 1


async def test_a_dedup_key_of_any_bytes(engine):
    await engine.publish_functions([SEND])
    one, two = [
        await engine.enqueue_function("mail", "send", {"to": to}, dedup_key=b"\xff\x00")
        for to in "ab"
    ]
    assert (two.id, two.duplicate) == (one.id, True)


WRONG = [
    (("mail", "sent", {}), "no function 'sent' is published for queue 'mail'.*did you mean 'send'"),
    (("mial", "send", {}), "queues with functions: cron, mail"),
    (("mail", "send", {}), "needs the argument 'to'"),
    (("mail", "send", {"to": "a", "subjct": "b"}), "no parameter 'subjct'; did you mean 'subject'"),
    (("mail", "send", {"to": "a", "zzz": 1}), r"send\(to: str, subject: str = 'Hello'\) has no"),
    (("cron", "tick", {"x": 1}), "has no parameter 'x'"),
    (("Mail", "send", {}), "name"),
]


async def test_a_call_that_cannot_be_is_refused_with_what_exists(engine, subtests):
    await engine.publish_functions([SEND, TICK])
    for call, says in WRONG:
        with subtests.test(says):
            with pytest.raises(lodeq.UsageError, match=says):
                await engine.enqueue_function(*call)
            assert (await engine.stats()).enqueued_total == 0


async def test_nothing_published_says_so(engine):
    with pytest.raises(lodeq.UsageError, match="none is: workers publish theirs when they start"):
        await engine.enqueue_function("mail", "send", {})


async def test_functions_that_take_anything(engine):
    await engine.publish_functions([OPEN, REST])
    await engine.enqueue_function("mail", "any", {"whatever": [1, {"a": None}]})
    await engine.enqueue_function("mail", "rest", {"whatever": 2})
    assert (await engine.stats()).ready == 2


async def test_a_function_with_a_codec_needs_its_app(engine):
    await engine.publish_functions([replace(SEND, has_codec=True)])
    with pytest.raises(lodeq.UsageError, match=r"codec.*--app"):
        await engine.enqueue_function("mail", "send", {"to": "a"})


async def test_forgotten(engine):
    await engine.publish_functions([SEND, TICK])
    assert await engine.forget_function("mail", "send")
    assert not await engine.forget_function("mail", "send")
    assert bare(await engine.functions()) == [TICK]


BAD = [
    replace(SEND, queue="Not A Name"),
    replace(SEND, name=""),
    replace(SEND, name="x" * 257),
    replace(SEND, max_attempts=0),
    replace(SEND, priority=10),
    replace(SEND, retention=-1.0),
    replace(SEND, doc="x" * 201),
    replace(SEND, parameters=(FunctionParameter("x" * 129),)),
    replace(SEND, parameters=(FunctionParameter("x", "odd"),)),
]


async def test_a_wrong_one_is_refused_and_nothing_is_written(engine, subtests):
    for bad in BAD:
        with subtests.test(repr(bad)):
            with pytest.raises(lodeq.UsageError):
                await engine.publish_functions([TICK, bad])
            assert await engine.functions() == []


async def test_what_is_too_large_is_stored_with_less(engine):
    texts = tuple(FunctionParameter(f"parameter_{n}", "optional", "x" * 64) for n in range(40))
    names = tuple(FunctionParameter(f"{n}".rjust(64, "x"), "optional", "") for n in range(60))
    many = tuple(FunctionParameter(f"p{n}", "optional") for n in range(65))
    given = [
        replace(SEND, name="texts", parameters=texts),
        replace(SEND, name="names", parameters=names),
        replace(SEND, name="many", parameters=many),
    ]
    await engine.publish_functions(given)
    found = {one.name: one.parameters for one in await engine.functions()}
    assert [one.text for one in found["texts"]] == [""] * 40
    assert found["texts"][0].name == "parameter_0"
    assert (found["names"], found["many"]) == (None, None)
    await engine.enqueue_function("mail", "names", {"not": "checked"})


async def test_many_functions_come_in_pages(engine):
    given = [PublishedFunction(f"q{n % 3}", f"f/{n:04}") for n in range(700)]
    assert await engine.publish_functions(given) == 700
    assert bare(await engine.functions()) == sorted(given, key=lambda one: (one.queue, one.name))


# --- workers ------------------------------------------------------------------------------------


async def test_workers_that_beat_are_shown(engine):
    assert await engine.workers() == []
    old = datetime(2026, 1, 1, tzinfo=UTC)
    run = lodeq.RunningTask("id", "send", "mail", "acme", 2, 1.5, 0.5, "half")
    tick = lodeq.CronTick("cron", "tick", old, None, "")
    first = WorkerReport(
        "a", ("mail",), "v1", 1, old, functions=2, running_count=1, running=(run,), ticks=(tick,)
    )
    second = WorkerReport("b", ("mail", "cron"), "v2", 2, old.replace(year=2027))
    await engine.beat(first)
    await engine.beat(second)
    one, two = await engine.workers()
    assert one.beat_age >= 0
    assert replace(one, beat_age=0.0) == replace(first, is_newest=False)  # v2 started later
    assert replace(two, beat_age=0.0) == second
    await engine.beat(replace(second, is_over=True))
    assert [(w.name, w.is_newest) for w in await engine.workers()] == [("a", True)]


@pytest.mark.parametrize(
    "bad",
    [
        WorkerReport(""),
        WorkerReport("x" * 257),
        WorkerReport("w", ("q",) * 1025),
        WorkerReport("w", running=(lodeq.RunningTask("i", "f", "q", note="x" * 257),)),
    ],
    ids=range(4),
)
async def test_a_wrong_report_is_refused(engine, bad):
    with pytest.raises(lodeq.UsageError):
        await engine.beat(bad)
    assert await engine.workers() == []


# --- redrive ------------------------------------------------------------------------------------


async def dead_letters(engine, count=1, **options):
    queue = engine.queue("mail")
    for n in range(count):
        await engine.enqueue_function("mail", "send", {"to": "a" * (n + 1)}, **options)
    for lease in await queue.claim(limit=count):
        await lease.bury("bad")
    return [task.id for task in await queue.dead_letters()]


@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("policy", ["stored", "current"])
async def test_a_redrive_keeps_the_stored_policy_or_takes_that_of_today(engine, by_id, policy):
    await engine.publish_functions([SEND])
    ids = await dead_letters(engine, dedup_key="k", headers={"x": 1})
    await engine.publish_functions([replace(SEND, max_attempts=9, retry=lodeq.Backoff())])
    queue = engine.queue("mail")
    options = {} if policy == "stored" else {"policy": policy}
    assert await queue.redrive(ids if by_id else None, **options) == 1
    task = await engine.get(ids[0])
    assert task.max_attempts == {"stored": 3, "current": 9}[policy]
    assert (task.state, task.payload, task.attempts) == ("ready", {"to": "a"}, 0)
    assert task.headers == {"x": 1, "lodeq.task": "send"}
    again = await engine.enqueue_function("mail", "send", {"to": "b"}, dedup_key="k")
    assert (again.id, again.duplicate) == (ids[0], True)  # it has its key again
    (lease,) = await queue.claim()
    await lease.complete({"ok": True})
    assert (await engine.result(ids[0])).value == {"ok": True}


async def test_todays_policy_of_an_unknown_function_is_that_of_the_task(engine):
    await engine.publish_functions([SEND])
    ids = await dead_letters(engine)
    await engine.forget_function("mail", "send")
    assert await engine.queue("mail").redrive(policy="current") == 1
    assert (await engine.get(ids[0])).max_attempts == 3
    with pytest.raises(lodeq.UsageError, match="'newest' is not one of stored, current"):
        await engine.queue("mail").redrive(policy="newest")
