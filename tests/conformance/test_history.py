"""The history of ended tasks and their attempts, on every loop, over every store."""

from datetime import UTC, datetime, timedelta

import pytest
from conformance import test_engine as suite

import lodeq
import lodeq.testing

pytestmark = pytest.mark.anyio
store, shards, opening = suite.store, suite.shards, suite.opening
form = suite.form
engine, queue = suite.engine, suite.queue


async def run(queue, *, result=None, keep=True, worker="w"):
    """One task from enqueue to its end; its id."""
    await queue.enqueue(b"x")
    (lease,) = await queue.claim(worker=worker)
    await lease.complete(result, keep=keep)
    return lease.task_id


async def pages(engine, *args, **options):
    """All pages of the history, as one list."""
    out, cursor = [], None
    while True:
        page = await engine.history(*args, cursor=cursor, **options)
        out += page
        cursor = page.cursor
        if cursor is None:
            return out


async def test_what_ended_is_listed_the_newest_first(engine, queue):
    ids = [await run(queue) for _ in range(5)]
    found = await pages(engine, "mail")
    assert {one.task_id for one in found} == set(ids)
    assert [one.task_id for one in found] == sorted(ids, reverse=True)
    assert {one.status for one in found} == {"completed"}
    one = found[0]
    assert min(one.took, one.ran, one.waited) >= 0
    assert (one.worker, one.attempts) == ("w", 1)


async def test_every_end_has_a_row(engine):
    queue = engine.queue("ends", max_attempts=1)
    done = await run(queue)
    dead = await queue.enqueue(b"x")
    (lease,) = await queue.claim()
    await lease.nack(reason="no such mailbox")
    gone = await queue.enqueue(b"x", delay=60)
    assert await engine.cancel(gone.id)
    by_state = {
        state: [one.task_id for one in await pages(engine, "ends", state=state)]
        for state in ("completed", "dead", "cancelled", "expired")
    }
    assert by_state == {
        "completed": [done],
        "dead": [dead.id],
        "cancelled": [gone.id],
        "expired": [],
    }
    (end,) = await pages(engine, "ends", state="dead")
    assert end.error == "no such mailbox"


async def test_pages_meet_without_gap_or_double(engine, queue):
    ids = {await run(queue) for _ in range(7)}
    seen, cursor = [], None
    while True:
        page = await engine.history("mail", limit=3, cursor=cursor)
        assert len(page) <= 3
        seen += [one.task_id for one in page]
        if page.cursor is None:
            break
        cursor = page.cursor
    assert sorted(seen) == sorted(ids)


async def test_it_is_read_on_from_an_id_the_oldest_first(engine):
    """Dead letters with the other ends, in one order; the id need not be kept."""
    queue = engine.queue("mail", max_attempts=1)
    ids = [(await queue.enqueue(b"%d" % n)).id for n in range(9)]
    await engine.queue("sms").enqueue(b"x")
    await engine.cancel(ids[8])
    for n, lease in enumerate(await queue.claim(limit=8)):
        await (lease.bury("bad") if n % 3 == 0 else lease.complete())
    await run(engine.queue("sms"))
    ids.sort()
    for limit in (1, 4, 100):
        found = await pages(engine, "mail", limit=limit, oldest_first=True)
        assert [one.task_id for one in found] == ids
        for n in (0, 4, 8):
            found = await pages(engine, "mail", limit=limit, oldest_first=True, after=ids[n])
            assert [one.task_id for one in found] == ids[n + 1 :]
    dead = await pages(engine, "mail", state="dead", oldest_first=True)
    assert len(dead) == 3
    gone = next(one.task_id for one in await pages(engine, "mail", state="completed", limit=1))
    assert (await engine.act("delete", lodeq.TaskFilter(ids=[gone]))).done == 1
    found = await pages(engine, "mail", oldest_first=True, after=gone)
    assert [one.task_id for one in found] == [one for one in ids if one > gone]
    everyone = await pages(engine, limit=3, oldest_first=True)
    assert len(everyone) == 9
    assert everyone == sorted(everyone, key=lambda one: one.task_id)
    since = everyone[0].finished_at - timedelta(hours=1)
    assert await pages(engine, until=since, oldest_first=True, after=gone) == []


async def test_a_cursor_goes_on_in_its_own_order_from_its_own_start(engine, queue):
    first, *_ = sorted([await run(queue) for _ in range(3)])

    async def cursor_of(**order):
        return (await engine.history("mail", limit=1, **order)).cursor

    newest, rising = await cursor_of(), await cursor_of(oldest_first=True)
    behind = await cursor_of(oldest_first=True, after=first)
    for options, text in [
        ({"after": first}, "goes with oldest_first=True"),
        ({"cursor": newest, "oldest_first": True}, "search without oldest_first="),
        ({"cursor": rising}, "this one is without oldest_first="),
        ({"cursor": rising, "oldest_first": True, "after": first}, f"and after={first}"),
        ({"cursor": behind, "oldest_first": True}, f"and after={first}"),
    ]:
        with pytest.raises(lodeq.UsageError, match=text):
            await engine.history("mail", **options)
    for wrong in (rising[:-1], f"{rising}0", rising.replace(".", "-"), "." + newest):
        with pytest.raises(lodeq.UsageError, match="cursor"):
            await engine.history("mail", cursor=wrong, oldest_first=True)


async def test_filters_by_queue_tenant_and_time(engine, queue):
    mine = await run(queue)
    other = await run(engine.queue("mail", tenant="acme"))
    await run(engine.queue("else"))
    assert {one.task_id for one in await pages(engine, "mail")} == {mine, other}
    assert [one.task_id for one in await pages(engine, "mail", tenant="")] == [mine]
    assert [one.task_id for one in await pages(engine, "mail", tenant="acme")] == [other]
    assert len(await pages(engine)) == 3
    hour = timedelta(hours=1)
    now = datetime.now(UTC) if engine.path else (await engine.result(mine)).finished_at
    assert len(await pages(engine, since=now - hour)) == 3
    assert await pages(engine, since=now + hour) == []
    assert await pages(engine, until=now - hour) == []
    for oldest_first in (False, True):
        for second in (-1, 0):
            until = datetime.fromtimestamp(second, UTC)
            assert await pages(engine, until=until, oldest_first=oldest_first) == []
    assert len(await pages(engine, until=now + hour)) == 3


async def test_values_are_there_as_long_as_results_are(engine, queue):
    await run(queue, result={"sent": 1})
    (one,) = await pages(engine, "mail")
    assert one.value == {"sent": 1}


async def test_a_part_of_the_call_a_label_or_the_reason_finds_it(engine):
    queue = engine.queue("texts", max_attempts=1)
    for n in range(3):
        await queue.enqueue(
            b"x", function="make_invoice", preview=f"n={n}", labels={"customer": f"C{n}"}
        )
        (lease,) = await queue.claim()
        await lease.nack(reason=f"no such Ümlaut {n}")
    assert len(await pages(engine, text="INVOICE")) == 3
    for text in ("n=1", "customer=c1", "no such ümlaut 1"):
        assert [one.preview for one in await pages(engine, text=text)] == ["n=1"]
    assert await pages(engine, text="n=3") == []
    for bad in ("", "x" * 257, 5):
        with pytest.raises(lodeq.UsageError, match="text"):
            await engine.history(text=bad)


async def test_a_page_for_text_says_that_previews_were_cut(engine):
    queue = engine.queue("texts")
    await queue.enqueue(b"x", preview=f"body='{'x' * 300}', to='ann'", function="send")
    await queue.enqueue(b"x", preview="to='bob'", function="send")
    await engine.complete_many([(lease, None) for lease in await queue.claim(limit=2)])
    for meant, n, has_cut in [
        ({"text": "to='ann'"}, 1, False),
        ({"text": "to='bob'"}, 1, True),
        ({"text": "yyy", "function": "pay"}, 0, False),
        ({"function": "pay"}, 0, False),
    ]:
        page = await engine.history("texts", **meant)
        assert (len(page), page.has_cut_previews) == (n, has_cut)


async def test_a_result_that_is_not_kept_leaves_its_history(engine, queue):
    task_id = await run(queue, result=b"large", keep=False)
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.result(task_id)
    (one,) = await pages(engine, "mail")
    assert (one.task_id, one.status, one.value) == (task_id, "completed", None)


async def test_an_error_says_how_a_task_without_a_result_ended(engine):
    task_id = await run(engine.queue("mail", retention=0))
    with pytest.raises(lodeq.TaskNotFoundError, match="ended as completed at ") as caught:
        await engine.result(task_id)
    error = caught.value
    assert (error.task_id, error.state, error.reason) == (task_id, "completed", "")
    assert error.finished_at == (await engine.get(task_id)).finished_at
    unknown = lodeq.TaskId("01a00000-0000-7000-9000-000000000000")
    with pytest.raises(lodeq.TaskNotFoundError, match="never existed") as caught:
        await engine.result(unknown)
    assert (caught.value.state, caught.value.finished_at) == ("", None)


async def test_attempts_have_their_reasons(engine, queue):
    receipt = await queue.enqueue(b"x")
    for n in range(3):
        (lease,) = await queue.claim(worker=f"w{n}")
        await lease.nack(delay=0, reason=f"reason {n}")
    (lease,) = await queue.claim(worker="last")
    await lease.complete()
    found = await engine.attempts(receipt.id)
    assert [(one.number, one.outcome, one.reason, one.worker) for one in found] == [
        (1, "nacked", "reason 0", "w0"),
        (2, "nacked", "reason 1", "w1"),
        (3, "nacked", "reason 2", "w2"),
        (4, "completed", "", "last"),
    ]
    assert all(one.ran is not None and one.ran >= 0 for one in found)


async def test_of_a_live_task_the_attempts_so_far(engine, queue):
    receipt = await queue.enqueue(b"x")
    assert await engine.attempts(receipt.id) == []
    (lease,) = await queue.claim()
    await lease.nack(delay=0, reason="once")
    assert [one.reason for one in await engine.attempts(receipt.id)] == ["once"]


async def test_a_dead_letter_has_its_last_attempt_once(engine):
    queue = engine.queue("dead", max_attempts=2)
    receipt = await queue.enqueue(b"x")
    (lease,) = await queue.claim()
    await lease.nack(delay=0, reason="first")
    (lease,) = await queue.claim()
    await lease.nack(reason="second")
    found = await engine.attempts(receipt.id)
    assert [(one.number, one.reason) for one in found] == [(1, "first"), (2, "second")]
    assert await queue.redrive([receipt.id]) == 1
    (lease,) = await queue.claim()
    await lease.bury(reason="enough")
    found = await engine.attempts(receipt.id)
    assert [(one.number, one.outcome) for one in found] == [
        (1, "nacked"),
        (2, "nacked"),
        (1, "buried"),
    ]


async def test_the_last_ten_attempts_are_kept_and_cut(engine):
    queue = engine.queue("often", max_attempts=40)
    receipt = await queue.enqueue(b"x")
    for _ in range(13):
        (lease,) = await queue.claim()
        await lease.nack(delay=0, reason="ü" * 1000)
    found = await engine.attempts(receipt.id)
    assert [one.number for one in found] == list(range(4, 14))
    assert {len(one.reason.encode()) for one in found} == {512}


async def test_an_unknown_task_has_no_attempts(engine):
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.attempts(lodeq.TaskId("01890a5d-ac96-774b-bcce-b302099a8057"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"state": "failed"}, "state"),
        ({"cursor": "x"}, "cursor"),
        ({"since": datetime(2026, 1, 1)}, "since"),  # noqa: DTZ001 - that is what is wrong
    ],
)
async def test_wrong_arguments_are_named(engine, options, words):
    with pytest.raises(lodeq.UsageError, match=words):
        await engine.history("mail", **options)
