"""Search by a filter, and acts on what was found, of every form of an engine."""

import pytest
from conformance import test_engine as suite

import lodeq
from lodeq import TaskFilter

pytestmark = pytest.mark.anyio
engine, shards, store, opening = suite.engine, suite.shards, suite.store, suite.opening
form = suite.form


async def fill(engine, n=8):
    """Tasks of two queues: every second is of acme and of another function."""
    ids = []
    for i in range(n):
        face = {"function": f"f{i % 2}", "preview": f"n={i}", "labels": {"customer": f"c{i % 4}"}}
        for name in ("mail", "sms"):
            queue = engine.queue(name, tenant="acme" if i % 2 else "", max_attempts=1)
            ids.append((await queue.enqueue(b"%d" % i, **face)).id)
    return ids


async def everything(engine, meant, limit=1000):
    out, cursor = [], None
    while True:
        page = await engine.find(meant, limit=limit, cursor=cursor)
        out += page
        assert len(page) <= limit
        cursor = page.cursor
        if cursor is None:
            return out


async def act_on_all(engine, name, meant, limit=1000, **options):
    done, cursor = 0, None
    while True:
        report = await engine.act(name, meant, limit=limit, cursor=cursor, **options)
        done += report.done
        cursor = report.cursor
        if cursor is None:
            return done, report


async def kill_all(engine, name):
    queue = engine.queue(name, tenant=lodeq.ALL_TENANTS)
    while leases := await queue.claim(limit=100):
        for lease in leases:
            await lease.bury(f"no such user {lease.payload.decode()}")


MEANT = [
    ({}, 16),
    ({"queue": "mail"}, 8),
    ({"tenant": ""}, 8),
    ({"tenant": "acme", "queue": "sms"}, 4),
    ({"function": "f1"}, 8),
    ({"labels": {"customer": "c3"}}, 4),
    ({"state": "ready"}, 16),
    ({"state": ["delayed", "dead"]}, 0),
    ({"older_than": 60}, 0),
    ({"newer_than": 60}, 16),
    ({"reason": "user"}, 0),
    ({"text": "N=3"}, 2),
    ({"text": "customer=c3"}, 4),
    ({"text": "F1"}, 8),
    ({"text": "acme"}, 0),
    ({"arguments": {"n": "3"}}, 2),
    ({"arguments": {"n": "*"}, "function": "f1"}, 8),
    ({"arguments": {"n": "?"}}, 0),
    ({"arguments": {"m": "3"}}, 0),
]


async def test_what_a_filter_means(engine, subtests):
    await fill(engine)
    for meant, n in MEANT:
        with subtests.test(str(meant)):
            for limit in (3, 1000):
                found = await everything(engine, TaskFilter(**meant), limit)
                assert len(found) == len({task.id for task in found}) == n
            assert await engine.count(TaskFilter(**meant)) == lodeq.FoundCount(n, is_exact=True)


async def test_a_search_for_text_says_that_previews_were_cut(engine):
    await fill(engine)
    rows = ", ".join(["word"] * 60)
    preview = f"body='{'x' * 300}', to='ann', rows=[{rows}], last=7"
    await engine.queue("sms").enqueue(b"x", preview=preview, function="cut")
    for meant, n, has_cut in [
        ({"text": "to='ann'"}, 1, False),
        ({"text": "last=7"}, 1, False),
        ({"text": "yyy"}, 0, True),
        ({"text": "yyy", "function": "cut"}, 0, True),
        ({"text": "yyy", "queue": "mail"}, 0, False),
        ({"text": "yyy", "function": "f1"}, 0, False),
        ({"reason": "yyy"}, 0, False),
        ({"arguments": {"to": "A*"}}, 1, False),
        ({"arguments": {"to": "*b"}}, 0, False),
        ({"arguments": {"body": "*b"}}, 0, True),
        ({"arguments": {"body": "*b"}, "text": "cut"}, 0, True),
        ({"arguments": {"body": "*b", "to": "bob"}}, 0, False),
        ({"arguments": {"body": "*b"}, "queue": "mail"}, 0, False),
    ]:
        page = await engine.find(TaskFilter(**meant))
        number = await engine.count(TaskFilter(**meant))
        assert (len(page), number.count) == (n, n)
        assert page.has_cut_previews is number.has_cut_previews is has_cut


async def test_failed_mails_are_found_by_their_domain_and_put_back(engine):
    """Not those whose reason has it, nor those of a longer domain; in every state they end in."""
    mail = engine.queue("mail", max_attempts=1)
    for i in range(8):
        domain = ("bad.example", "bad.example.org", "good.example")[i % 3]
        await mail.enqueue(b"%d" % i, function="send", preview=f"to='u{i}@{domain}', n={i}")
    while leases := await mail.claim(limit=100):
        for lease in leases:
            await lease.bury("no answer from @bad.example")
    meant = TaskFilter(state="dead", arguments={"to": "*@bad.example"})
    assert sorted(task.payload for task in await engine.find(meant)) == [b"0", b"3", b"6"]
    done, _ = await act_on_all(engine, "redrive", meant)
    assert done == 3
    assert (await mail.stats()).dead == 5
    while leases := await mail.claim(limit=100):
        for lease in leases:
            await lease.complete()
    ended = TaskFilter(state="completed", arguments={"to": "*@bad.example"})
    assert await engine.count(ended) == lodeq.FoundCount(3, is_exact=True)


async def test_a_state_that_is_named_twice_is_searched_once(engine):
    await fill(engine)
    assert await engine.count(TaskFilter(state=["ready", "ready"])) == lodeq.FoundCount(16, True)


async def test_by_the_beginning_of_an_id(engine):
    (first, *_) = await fill(engine)
    (found,) = await engine.find(TaskFilter(id_prefix=str(first)[:34].upper()))
    assert (found.id, found.preview, found.payload) == (first, "n=0", b"0")


async def test_tasks_are_chosen_one_by_one_in_any_state(engine):
    ids = await fill(engine)
    await kill_all(engine, "mail")
    leases = await engine.queue("sms").claim(limit=2)  # of a cluster in the order of its nodes
    lease = next(one for one in leases if one.task_id != ids[1])
    unknown = "01890000-0000-7000-8000-000000000000"
    chosen = [str(ids[0]), ids[1], lease.task_id, ids[0].uuid, unknown]
    for limit in (1, 2, 1000):
        found = await everything(engine, TaskFilter(ids=chosen), limit)
        assert {task.id for task in found} == {ids[0], ids[1], lease.task_id}
    assert await engine.count(TaskFilter(ids=chosen)) == lodeq.FoundCount(3, is_exact=True)
    assert await engine.count(TaskFilter(ids=chosen, state="dead")) == lodeq.FoundCount(1, True)
    assert await engine.count(TaskFilter(ids=chosen, queue="sms")) == lodeq.FoundCount(2, True)
    assert await engine.count(TaskFilter(ids=chosen, text="nothing")) == lodeq.FoundCount(0, True)
    dead = [task.id for task in await engine.find(TaskFilter(state="dead"))]
    for limit in (1, 1000):
        done, _ = await act_on_all(engine, "redrive", TaskFilter(ids=dead[:3]), limit)
        assert done == (3 if limit == 1 else 0)
    assert await engine.count(TaskFilter(state="dead")) == lodeq.FoundCount(5, True)
    done, _ = await act_on_all(engine, "cancel", TaskFilter(ids=[lease.task_id, *ids]), 3)
    assert done == 11
    with pytest.raises(lodeq.LeaseLostError):
        await lease.complete()
    ended = [task.id for task in await engine.find(TaskFilter(state="cancelled"))]
    done, _ = await act_on_all(engine, "delete", TaskFilter(ids=ended), 2)
    assert done == 11
    assert await engine.count(TaskFilter()) == lodeq.FoundCount(5, True)


async def test_one_dead_letter_is_discarded(engine):
    ids = await fill(engine)
    await kill_all(engine, "mail")
    dead = [task.id for task in await engine.find(TaskFilter(state="dead"))]
    ready = next(one for one in ids if one not in dead)
    assert await engine.discard(str(dead[0])) is True
    assert await engine.discard(dead[0]) is False
    assert await engine.discard(ready) is False
    with pytest.raises(lodeq.UsageError, match="not a task id"):
        await engine.discard("x")
    assert await engine.get(dead[0]) is None
    left = await everything(engine, TaskFilter())
    assert {task.id for task in left} == set(ids) - {dead[0]}


async def test_a_reason_has_parts_in_their_order(engine):
    """Ids of dead tasks, and of tasks whose result is all that is left."""
    queue = engine.queue("mail", max_attempts=1)
    for n in range(3):
        await queue.enqueue(b"x")
        (lease,) = await queue.claim()
        if n:
            await lease.nack(reason=f"Timeout after {n} s")
        else:
            await engine.cancel(lease.task_id)
    for reason, count in (("timeout * s", 2), ("*AFTER*", 2), ("s * timeout", 0), ("* 2 *", 1)):
        assert (await engine.count(TaskFilter(reason=reason))).count == count


async def test_a_reason_is_found_in_any_case_of_any_script(engine):
    queue = engine.queue("mail", max_attempts=1)
    await queue.enqueue(b"x")
    await (await queue.claim_one()).bury("straße ΟΔΟΣΑ")
    for reason in ("STRASSE", "ΟΔΟΣ"):
        assert (await engine.count(TaskFilter(reason=reason))).count == 1


async def test_dead_letters_are_found_by_reason_and_put_back(engine):
    await fill(engine)
    await kill_all(engine, "mail")
    meant = TaskFilter(state="dead", reason="NO SUCH user 3")
    (one,) = await engine.find(meant)
    assert [one] == list(await engine.find(TaskFilter(text="such USER 3")))
    assert (one.preview, one.reason) == ("n=3", "no such user 3")
    assert (await act_on_all(engine, "redrive", TaskFilter(labels={"customer": "c3"}), 1))[0] == 2
    assert (await engine.count(TaskFilter(state="dead"))).count == 6
    (lease, *_) = await engine.queue("mail", tenant="acme").claim()
    assert lease.payload in (b"3", b"7")


async def test_what_was_found_is_cancelled(engine):
    await fill(engine)
    leases = await engine.queue("mail").claim(limit=2)
    done, _ = await act_on_all(engine, "cancel", TaskFilter(queue="mail"), 3)
    assert done == 8
    with pytest.raises(lodeq.LeaseLostError):
        await leases[0].complete()
    assert (await engine.count(TaskFilter(queue="mail", state="cancelled"))).count == 8
    assert (await engine.count(TaskFilter(queue="sms", state="ready"))).count == 8
    assert (await act_on_all(engine, "delete", TaskFilter(state="cancelled"), 3))[0] == 8
    assert (await engine.count(TaskFilter(queue="mail"))).count == 0


async def test_another_priority_in_the_same_order(engine):
    await fill(engine)
    queue = engine.queue("mail")
    late = await queue.enqueue(b"late", delay=3600)
    meant = TaskFilter(queue="mail", tenant="", labels={"customer": "c2"})
    assert (await act_on_all(engine, "reprioritise", meant, priority=9))[0] == 2
    only_late = TaskFilter(queue="mail", state="delayed")
    assert (await act_on_all(engine, "reprioritise", only_late, priority=0))[0] == 1
    assert (await engine.get(late.id)).priority == 0
    found = {
        task.payload: task.priority for task in await everything(engine, TaskFilter(tenant=""))
    }
    assert (found[b"2"], found[b"6"], found[b"4"]) == (9, 9, 5) or found[b"2"] == 5  # of sms
    back = TaskFilter(queue="mail", state="ready", labels={"customer": "c2"}, tenant="")
    assert (await act_on_all(engine, "reprioritise", back, priority=5))[0] == 2
    assert (await act_on_all(engine, "reprioritise", back, priority=9))[0] == 2
    leases = await queue.claim(limit=4)
    assert [lease.payload for lease in leases] == [b"2", b"6", b"0", b"4"]
    assert [lease.priority for lease in leases] == [9, 9, 5, 5]
    await leases[0].release()
    (again,) = await queue.claim()
    assert (again.payload, again.priority, again.attempt) == (b"2", 9, 1)


async def test_later_tasks_are_not_meant(engine):
    await fill(engine)
    report = await engine.act("cancel", TaskFilter(), limit=2)
    await engine.queue("mail").enqueue(b"later")
    done = report.done
    while report.cursor is not None:
        report = await engine.act("cancel", TaskFilter(), limit=5, cursor=report.cursor)
        done += report.done
    assert done == 16
    assert (await engine.count(TaskFilter(state="ready"))).count == 1


async def test_a_slice_that_is_repeated_does_no_harm(engine):
    await fill(engine)
    await kill_all(engine, "sms")
    meant = TaskFilter(queue="sms")
    first = await engine.act("redrive", meant, limit=4)
    again = await engine.act("redrive", meant, limit=4)
    assert (first.done, again.done) == (4, 4)
    assert (await engine.act("redrive", meant)).done == 0


async def test_what_is_deleted_leaves_nothing_but_its_window(engine):
    queue = engine.queue("mail", max_attempts=2)
    ids = [
        (await queue.enqueue(b"%d" % n, dedup_key=f"k{n}", dedup_window=60)).id for n in range(3)
    ]
    for lease in await queue.claim(limit=3):
        await lease.nack(delay=0, reason="first")
    done, *dead = await queue.claim(limit=3)
    await done.complete({"sent": True})
    for lease in dead:
        await lease.nack(reason="second")
    assert (await act_on_all(engine, "delete", TaskFilter(queue="mail")))[0] == 3
    assert (await engine.history()).results == ()
    for n, one in enumerate(ids):
        assert await engine.get(one) is None
        for ask in (engine.attempts, engine.result):
            with pytest.raises(lodeq.TaskNotFoundError):
                await ask(one)
        assert (await queue.enqueue(b"again", dedup_key=f"k{n}")).duplicate
    assert (await queue.stats()).results == 0
    assert (await engine.verify()).ok


async def test_what_a_workflow_still_needs_is_not_deleted(engine):
    workflow = await engine.workflow(lodeq.NewTask(b"join", "joins"))
    ids = await workflow.add([lodeq.NewTask(b"%d" % n, "parts", max_attempts=1) for n in range(2)])
    await workflow.seal()
    first, second = await engine.queue("parts").claim(limit=2)
    await first.complete(b"a")
    await second.bury("no")
    for _ in range(2):
        report = await engine.act("delete", TaskFilter(queue="parts"))
        assert report.done == 0
        assert set(report.refused) == {str(one) for one in ids}
        assert "workflow may still read it" in next(iter(report.refused.values()))
    (join,) = await engine.queue("joins").claim()
    assert [part.value async for part in engine.parts(join.task_id)] == [b"a", None]
    await join.complete()
    assert (await engine.act("delete", TaskFilter(queue="parts"))).done == 2
    assert (await engine.verify()).ok


async def test_all_that_are_refused_are_named(engine):
    queue = engine.queue("mail", max_attempts=1)
    tasks = [lodeq.NewTask(b"x", dedup_key=f"k{n}") for n in range(130)]
    dead = {str(one.id) for one in await queue.enqueue_many(tasks)}
    for lease in await queue.claim(limit=130):
        await lease.bury("broken")
    await queue.enqueue_many(tasks[10:])  # they hold the keys of 120
    done, refused, cursor = 0, set(), None
    while True:
        report = await engine.act("redrive", TaskFilter(), cursor=cursor)
        done, refused = done + report.done, refused | set(report.refused)
        cursor = report.cursor
        if cursor is None:
            break
    assert (done, len(refused)) == (10, 120)
    assert refused < dead


async def test_all_that_was_found_slice_by_slice(engine):
    await fill(engine)
    meant = TaskFilter(queue="sms", function="f1")
    assert [task.payload async for task in engine.find_all(meant)] == [b"1", b"3", b"5", b"7"]
    bare = [task async for task in engine.find_all(meant, payloads=False)]
    assert [(task.payload, task.preview) for task in bare] == [
        (None, f"n={n}") for n in (1, 3, 5, 7)
    ]
    page = await engine.find(meant, payloads=False, limit=1)
    assert [task.payload for task in page] == [None]
    assert [one async for one in engine.find_all(TaskFilter(queue="none"))] == []


async def test_ended_tasks_of_all_queues_are_one_pass(engine):
    """Newest first, whatever their queues and states: none twice, none left out at a cursor."""
    ids = await fill(engine)
    for name in ("mail", "sms"):
        for lease in await engine.queue(name, tenant=lodeq.ALL_TENANTS).claim(limit=4):
            await lease.complete()
    await act_on_all(engine, "cancel", TaskFilter(state="ready"))
    ended = TaskFilter(state=["completed", "cancelled"])
    for limit in (1, 3, 1000):
        found = await everything(engine, ended, limit)
        assert sorted(task.id for task in found) == sorted(ids)
        assert [task.id for task in found] == sorted(ids, reverse=True)
    assert (await engine.count(TaskFilter(state="completed", queue="mail"))).count == 4
    assert (await engine.count(TaskFilter(state="cancelled", tenant="acme"))).count == 4
    newest = str(max(ids))
    (one,) = await everything(engine, TaskFilter(state=ended.state, id_prefix=str(found[-1].id)))
    assert one.id == found[-1].id
    assert (await everything(engine, TaskFilter(id_prefix=newest)))[0].id == max(ids)
    assert len(await everything(engine, TaskFilter(state=ended.state, newer_than=60))) == 16
    assert len(await everything(engine, TaskFilter(finished_newer_than=60))) == 16
    assert await everything(engine, TaskFilter(finished_older_than=60)) == []
    assert (await engine.count(TaskFilter(state=ended.state, id_prefix="0" * 20))).count == 0


async def test_a_count_that_is_cut_says_at_least(engine):
    await fill(engine, 40)
    for _ in range(4):  # more than the nodes of a cluster look at in one go each
        await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x")] * 300)
    cut = await engine.count(TaskFilter(), looks=1)
    assert not cut.is_exact
    assert 0 < cut.count < 1280
    assert str(cut) == f"at least {cut.count}"
    assert await engine.count(TaskFilter(), looks=9999) == lodeq.FoundCount(1280, is_exact=True)
    for wrong in (0, 1_000_001, True, "1"):
        with pytest.raises(lodeq.UsageError, match="looks"):
            await engine.count(TaskFilter(), looks=wrong)


async def test_a_redrive_with_the_policy_of_today(engine):
    await engine.publish_functions([lodeq.PublishedFunction("mail", "send", max_attempts=7)])
    queue = engine.queue("mail", max_attempts=1)
    for n in range(4):
        await queue.enqueue(b"%d" % n, headers={"lodeq.task": "send" if n % 2 else "gone"})
    await kill_all(engine, "mail")
    assert (await act_on_all(engine, "redrive", TaskFilter(), 1, policy="current"))[0] == 4
    found = await everything(engine, TaskFilter(state="ready"))
    assert sorted((task.payload, task.max_attempts) for task in found) == [
        (b"0", 1),
        (b"1", 7),
        (b"2", 1),
        (b"3", 7),
    ]


REFUSED = [
    ("burn", {}, {}, "not one of redrive"),
    ("delete", {"state": "leased"}, {}, "not leased; cancel it first"),
    ("redrive", {"state": "ready"}, {}, "applies to tasks that are dead, not ready"),
    ("reprioritise", {}, {}, "needs it"),
    ("cancel", {}, {"priority": 3}, "priority= is for reprioritise"),
    ("cancel", {}, {"policy": "current"}, "policy= is for redrive"),
    ("redrive", {}, {"policy": "newest"}, "policy 'newest' is not one of stored, current"),
    ("reprioritise", {}, {"priority": 10}, "priority"),
    ("cancel", {}, {"limit": 0}, "limit 0 is not between"),
    ("cancel", {}, {"cursor": "x"}, "take it from the page before"),
]


async def test_what_is_refused(engine, subtests):
    await fill(engine, 2)
    for name, meant, options, text in REFUSED:
        with subtests.test(text):
            with pytest.raises(lodeq.UsageError, match=text):
                await engine.act(name, TaskFilter(**meant), **options)
            assert (await engine.count(TaskFilter(state="ready"))).count == 4


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"state": "asleep"}, "'asleep' is not one of ready"),
        ({"id_prefix": "xyz"}, "hex digits"),
        ({"labels": {"a": 1}}, "str to str"),
        ({"older_than": -1}, "older_than"),
        ({"function": ""}, "function must be"),
        ({"text": "x" * 257}, "text must be"),
        ({"queue": "Mail"}, "queue"),
    ],
)
def test_filters_that_are_refused(fields, text):
    with pytest.raises(lodeq.LodeqError, match=text):
        TaskFilter(**fields)


# -- reading on from an id ----------------------------------------------------------------


async def read_on(engine, meant, limit, **order):
    """The ids of all pages."""
    out, cursor = [], None
    while True:
        page = await engine.find(meant, limit=limit, cursor=cursor, **order)
        out += [task.id for task in page]
        assert len(page) <= limit
        cursor = page.cursor
        if cursor is None:
            return out


async def end_all(engine, name):
    queue = engine.queue(name, tenant=lodeq.ALL_TENANTS)
    while leases := await queue.claim(limit=100):
        await engine.complete_many([(lease, None) for lease in leases])


async def test_ended_tasks_are_read_on_from_an_id_the_oldest_first(engine):
    await fill(engine)
    sms = sorted(task.id for task in await everything(engine, TaskFilter(queue="sms")))
    await engine.cancel(sms[3])
    await end_all(engine, "mail")
    await end_all(engine, "sms")
    await engine.queue("sms").enqueue(b"waits")
    everyone = TaskFilter(queue="sms")
    for limit in (1, 3, 1000):
        assert await read_on(engine, everyone, limit, oldest_first=True) == sms
        for n in (0, 3, 7):
            order = {"oldest_first": True, "after": sms[n]}
            assert await read_on(engine, everyone, limit, **order) == sms[n + 1 :]
    labelled = TaskFilter(queue="sms", state=["completed", "cancelled"], labels={"customer": "c3"})
    (third, last) = [task.id for task in await engine.find(labelled, oldest_first=True)]
    found = await engine.find(labelled, oldest_first=True, after=str(third))
    assert [task.id for task in found] == [last]
    assert [one.id async for one in engine.find_all(everyone, oldest_first=True)] == sms
    rest = engine.find_all(everyone, oldest_first=True, after=sms[5], payloads=False)
    assert [one.id async for one in rest] == sms[6:]
    both = await read_on(engine, TaskFilter(), 1000, oldest_first=True)
    assert both == sorted(both)
    assert len(both) == 16


async def test_an_id_is_a_place_also_when_its_task_is_gone(engine):
    await fill(engine)
    await end_all(engine, "mail")
    meant = TaskFilter(queue="mail")
    mail = await read_on(engine, meant, 1000, oldest_first=True)
    gone = TaskFilter(ids=[mail[2], mail[3]], state="completed")
    assert (await act_on_all(engine, "delete", gone))[0] == 2
    for n in (1, 2, 3):
        found = await read_on(engine, meant, 2, oldest_first=True, after=mail[n])
        assert found == mail[4:]
    assert await read_on(engine, meant, 2, oldest_first=True, after=mail[7]) == []


async def test_what_ends_later_with_an_earlier_id_is_not_behind_a_later_one(engine):
    """As the docs say; from its own place, or by when it ended, it is found."""
    queue = engine.queue("mail")
    for n in range(3):
        await queue.enqueue(b"%d" % n)
    ids = sorted(task.id for task in await engine.find(TaskFilter(queue="mail")))
    leases = {lease.task_id: lease for lease in await queue.claim(limit=3)}
    await leases[ids[0]].complete()
    await leases[ids[2]].complete()
    meant = TaskFilter(queue="mail")
    assert await read_on(engine, meant, 10, oldest_first=True) == [ids[0], ids[2]]
    await leases[ids[1]].complete()
    assert await read_on(engine, meant, 10, oldest_first=True, after=ids[2]) == []
    assert await read_on(engine, meant, 10, oldest_first=True, after=ids[0]) == ids[1:]
    lately = TaskFilter(queue="mail", finished_newer_than=3600)
    assert await read_on(engine, lately, 10, oldest_first=True) == ids


async def test_an_order_that_cannot_be_is_refused(engine, subtests):
    await fill(engine)
    await end_all(engine, "mail")
    meant = TaskFilter(queue="mail")
    first, second, *_ = await read_on(engine, meant, 1000, oldest_first=True)

    async def cursor_of(**order):
        return (await engine.find(TaskFilter(state="completed"), limit=1, **order)).cursor

    newest, rising = await cursor_of(), await cursor_of(oldest_first=True)
    behind = await cursor_of(oldest_first=True, after=first)
    for options, text in [
        ({"after": first}, "goes with oldest_first=True"),
        ({"after": 7, "oldest_first": True}, "not a task id"),
        ({"after": "3fa85f64-5717-4562-b3fc-2c963f66afa6", "oldest_first": True}, "version 7"),
        ({"oldest_first": 1}, "must be a bool"),
        ({"cursor": newest, "oldest_first": True}, "search without oldest_first="),
        ({"cursor": rising}, "this one is without oldest_first="),
        ({"cursor": rising, "oldest_first": True, "after": first}, f"and after={first}"),
        ({"cursor": behind, "oldest_first": True}, f"and after={first}"),
        ({"cursor": behind, "oldest_first": True, "after": second}, f"and after={second}"),
    ]:
        with subtests.test(text), pytest.raises(lodeq.UsageError, match=text):
            await engine.find(meant, **options)
    with subtests.test("list"), pytest.raises(lodeq.UsageError, match=r"last Task .* oldest_first"):
        await engine.queue("mail").list("completed", after=first)
    with subtests.test("act"), pytest.raises(lodeq.UsageError, match="cursor"):
        await engine.act("delete", meant, cursor=rising)
    for meant, text in [
        (TaskFilter(state="dead"), r"history\(oldest_first=True\)"),
        (TaskFilter(state=["completed", "ready"]), "not of those that are ready: list these"),
        (TaskFilter(ids=[first]), "no order of ids="),
    ]:
        with subtests.test(text), pytest.raises(lodeq.UsageError, match=text):
            await engine.find(meant, oldest_first=True)
