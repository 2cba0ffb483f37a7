"""Workflows through the public calls: fan-out and fan-in, chains, cancel, redrive."""

import anyio
import pytest
from anyio.lowlevel import checkpoint
from conformance import test_engine as suite

import lodeq
from lodeq import NewTask, TaskFilter

pytestmark = pytest.mark.anyio
store, shards, opening, engine = suite.store, suite.shards, suite.opening, suite.engine
form = suite.form


async def claim_all(engine, queue, limit=64):
    return await engine.queue(queue).claim(limit=limit)


async def complete_all(engine, queue="parts"):
    leases = await claim_all(engine, queue)
    for lease in leases:
        await lease.complete(lease.payload)
    return leases


async def fan_out(engine, count=3, **options):
    workflow = await engine.workflow(NewTask(b"join", "joins"), **options)
    ids = await workflow.add([NewTask(b"%d" % i, "parts") for i in range(count)])
    return workflow, ids


async def test_the_callback_runs_once_when_all_members_have_ended(engine):
    workflow, ids = await fan_out(engine)
    assert (await engine.get(workflow.callback)).state == "waiting"
    assert (await workflow.info()).state == "open"
    await workflow.seal()
    first, second, third = await claim_all(engine, "parts")
    await first.complete(b"a")
    await second.bury("no such address")
    assert await claim_all(engine, "joins") == []
    assert (await workflow.info()).state == "running"
    await third.complete(b"c")
    (join,) = await claim_all(engine, "joins")
    assert join.task_id == workflow.callback
    assert await claim_all(engine, "joins") == []
    parts = await engine.parts_page(join.task_id)
    assert [part.task_id for part in parts] == ids
    assert [part.status for part in parts] == ["completed", "dead", "completed"]
    assert [part.value for part in parts] == [b"a", None, b"c"]
    (failed,) = await engine.parts_page(join.task_id, failed=True)
    assert (failed.number, failed.error) == (1, "no such address")
    info = await workflow.info()
    assert (info.state, info.members, info.ended, info.failed) == ("joined", 3, 3, 1)
    await join.complete()
    assert (await workflow.info()).state == "over"


async def test_the_join_cannot_fire_before_the_seal(engine):
    workflow, _ = await fan_out(engine)
    await complete_all(engine)
    assert await claim_all(engine, "joins") == []
    assert await workflow.seal() is True
    assert await workflow.seal() is False
    assert len(await claim_all(engine, "joins")) == 1


async def test_a_workflow_without_members_runs_its_callback(engine):
    async with await engine.workflow(NewTask(b"join", "joins")):
        assert await claim_all(engine, "joins") == []
    assert len(await claim_all(engine, "joins")) == 1


async def test_a_producer_that_runs_again_fills_the_same_workflow(engine):
    workflow, ids = await fan_out(engine, key="report-42")
    again, same = await fan_out(engine, count=5, key="report-42")
    assert (workflow.is_new, again.is_new) == (True, False)
    assert (again.id, again.callback) == (workflow.id, workflow.callback)
    assert same[:3] == ids
    assert (await again.info()).members == 5
    await again.seal()
    _, sealed = await fan_out(engine, count=5, key="report-42")
    assert sealed == same
    with pytest.raises(lodeq.UsageError, match="sealed"):
        await fan_out(engine, count=6, key="report-42")
    assert len(await complete_all(engine)) == 5
    assert len(await claim_all(engine, "joins")) == 1


@pytest.mark.parametrize("end", ["cancel", "purge", "bury"])
async def test_whatever_ends_a_member_counts(engine, end):
    workflow, (one,) = await fan_out(engine, count=1)
    await workflow.seal()
    if end == "cancel":
        assert await engine.cancel(one)
    elif end == "purge":
        assert await engine.queue("parts").purge() == 1
    else:
        (lease,) = await claim_all(engine, "parts")
        await lease.bury("broken")
    (part,) = await engine.parts_page(workflow.id)
    assert part.status == ("dead" if end == "bury" else "cancelled")
    assert len(await claim_all(engine, "joins")) == 1


async def test_only_the_first_end_of_a_member_counts(engine):
    workflow, (one, _) = await fan_out(engine, count=2)
    await workflow.seal()
    first, second = await claim_all(engine, "parts")
    await first.bury("broken")
    assert await engine.queue("parts").redrive([one]) == 1
    (again,) = await complete_all(engine)
    assert again.task_id == one
    info = await workflow.info()
    assert (info.ended, info.failed) == (1, 1)
    await second.complete()
    assert len(await claim_all(engine, "joins")) == 1


async def test_a_waiting_callback_waits_for_a_redrive_of_the_whole(engine):
    workflow, _ = await fan_out(engine, count=2, on_failure="wait")
    await workflow.seal()
    first, second = await claim_all(engine, "parts")
    await first.bury("broken")
    await second.complete()
    assert (await workflow.info()).state == "waiting"
    assert await claim_all(engine, "joins") == []
    assert await workflow.redrive() == 1
    assert (await workflow.info()).generation == 1
    await complete_all(engine)
    assert len(await claim_all(engine, "joins")) == 1
    assert await engine.parts_page(workflow.id, failed=True) == []


async def test_on_failure_cancel_cancels_the_callback(engine):
    workflow, _ = await fan_out(engine, count=2, on_failure="cancel")
    await workflow.seal()
    first, second = await claim_all(engine, "parts")
    await first.bury("broken")
    await second.complete()
    assert (await engine.result(workflow.callback)).status == "cancelled"
    assert (await workflow.info()).state == "over"


async def test_a_redriven_workflow_runs_its_callback_again(engine):
    workflow, _ = await fan_out(engine, count=2)
    await workflow.seal()
    first, second = await claim_all(engine, "parts")
    await first.bury("broken")
    await second.complete(b"kept")
    await complete_all(engine, "joins")
    assert await workflow.redrive() == 1
    info = await workflow.info()
    assert info.callback != workflow.callback
    assert info.callback_state == "waiting"
    await complete_all(engine)
    (join,) = await complete_all(engine, "joins")
    assert (join.task_id, join.payload) == (info.callback, b"join")
    parts = await engine.parts_page(join.task_id)
    assert [part.status for part in parts] == ["completed", "completed"]
    assert await workflow.redrive() == 0
    assert await claim_all(engine, "joins") == []


async def test_a_callback_under_way_is_not_redriven(engine):
    workflow, _ = await fan_out(engine, count=1)
    await workflow.seal()
    (lease,) = await claim_all(engine, "parts")
    await lease.bury("broken")
    (join,) = await claim_all(engine, "joins")
    with pytest.raises(lodeq.UsageError, match="under way"):
        await workflow.redrive()
    await join.bury("broken")
    assert await workflow.redrive() == 1
    assert (await engine.get(workflow.callback)).state == "waiting"
    await complete_all(engine)
    assert len(await complete_all(engine, "joins")) == 1


async def test_cancelling_a_workflow_cancels_what_has_not_ended(engine):
    workflow, _ = await fan_out(engine, count=4)
    (lease,) = await engine.queue("parts").claim()
    await lease.complete(b"done")
    (leased,) = await engine.queue("parts").claim()
    assert await workflow.cancel() == 3
    with pytest.raises(lodeq.LeaseLostError):
        await leased.complete()
    assert await claim_all(engine, "joins") == []
    assert (await engine.result(workflow.callback)).status == "cancelled"
    statuses = [part.status for part in await workflow.parts_page()]
    assert statuses == ["completed", "cancelled", "cancelled", "cancelled"]
    assert (await workflow.info()).state == "cancelled"
    with pytest.raises(lodeq.UsageError, match="cancelled"):
        await workflow.add([NewTask(b"late", "parts")])
    assert await workflow.cancel() == 0


async def test_a_chain_runs_step_by_step_and_hands_results_on(engine):
    workflow = await engine.workflow()
    ids = await workflow.add([NewTask(b"%d" % i, "steps") for i in range(3)], chain=True)
    await workflow.seal()
    for i, expected in enumerate(ids):
        (lease,) = await claim_all(engine, "steps")
        assert lease.task_id == expected
        if i:
            (before,) = await engine.parts_page(lease.task_id)
            assert (before.task_id, before.value) == (ids[i - 1], b"result of %d" % (i - 1))
        await lease.complete(b"result of %d" % i)
    assert (await workflow.info()).state == "over"


async def test_members_wait_for_members(engine):
    workflow = await engine.workflow()
    left, right = await workflow.add([NewTask(b"l", "parts"), NewTask(b"r", "parts")])
    (top,) = await workflow.add([NewTask(b"t", "tops")], after=[left, right])
    assert (await engine.get(top)).state == "waiting"
    first, second = await claim_all(engine, "parts")
    await first.complete()
    assert await claim_all(engine, "tops") == []
    await second.complete()
    (late,) = await workflow.add([NewTask(b"u", "tops")], after=[left])
    assert [lease.task_id for lease in await complete_all(engine, "tops")] == [top, late]


async def test_a_failed_step_cancels_the_rest_of_its_chain(engine):
    workflow = await engine.workflow(on_failure="cancel")
    ids = await workflow.add([NewTask(b"%d" % i, "steps") for i in range(200)], chain=True)
    await workflow.seal()
    (lease,) = await claim_all(engine, "steps")
    await lease.bury("broken")
    with anyio.fail_after(20):
        while (await workflow.info()).ended < 200:
            await checkpoint()
    assert (await engine.result(ids[-1])).status == "cancelled"


async def test_a_dead_step_is_redriven_with_what_waited_for_it(engine):
    workflow = await engine.workflow()
    one, two = await workflow.add([NewTask(b"1", "steps"), NewTask(b"2", "steps")], chain=True)
    await workflow.seal()
    for _ in range(2):
        (lease,) = await claim_all(engine, "steps")
        await lease.bury("broken")
    assert await workflow.redrive() == 2
    assert (await engine.get(two)).state == "waiting"
    (lease,) = await claim_all(engine, "steps")
    assert lease.task_id == one
    await lease.complete()
    assert [lease.task_id for lease in await complete_all(engine, "steps")] == [two]
    assert (await workflow.info()).failed == 0


async def test_unknown_ids_are_refused(engine):
    workflow, _ = await fan_out(engine)
    receipt = await engine.queue("parts").enqueue(b"alone")
    with pytest.raises(lodeq.UnknownDependencyError):
        await workflow.add([NewTask(b"x", "parts")], after=[receipt.id])
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.workflow_info(receipt.id)
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.parts_page(receipt.id)
    with pytest.raises(lodeq.TaskNotFoundError):
        await anext(engine.parts(receipt.id))
    with pytest.raises(lodeq.UsageError, match="dedup_key"):
        await workflow.add([NewTask(b"x", "parts", dedup_key="k")])
    with pytest.raises(lodeq.UsageError, match="on_failure"):
        await engine.workflow(on_failure="explode")
    with pytest.raises(lodeq.LimitError, match="256"):
        await engine.add_members(workflow.id, [NewTask(b"x", "parts")] * 257)
    assert (await workflow.info()).members == 3


async def test_waiting_tasks_are_counted_cancelled_and_purged(engine):
    workflow, _ = await fan_out(engine)
    stats = await engine.queue("joins").stats()
    assert (stats.ready, stats.delayed, stats.waiting, stats.pending) == (0, 0, 1, 1)
    assert (await engine.stats()).waiting == 1
    assert await engine.queue("joins").purge() == 1
    assert (await engine.queue("joins").stats()).waiting == 0
    assert (await engine.result(workflow.callback)).status == "cancelled"
    await workflow.seal()
    await complete_all(engine)
    assert await claim_all(engine, "joins") == []
    assert (await workflow.info()).state == "over"


async def mixed(engine):
    """One delayed task, and three that wait, of one queue; the ids of those that wait."""
    queue = engine.queue("mixed")
    late = (await queue.enqueue(b"late", delay=3600)).id
    (first,) = [(await engine.queue("parts").enqueue(b"p")).id]
    waits = [await engine.enqueue_after(NewTask(b"%d" % n, "mixed"), [first]) for n in range(3)]
    return queue, late, waits


async def test_waiting_tasks_are_a_state_of_lists_and_searches(engine):
    queue, late, waits = await mixed(engine)
    assert [task.id for task in await queue.list("delayed")] == [late]
    listed = await queue.list("waiting")
    assert sorted(task.id for task in listed) == sorted(waits)
    assert {(task.state, task.due_at) for task in listed} == {("waiting", None)}
    paged, last = [], None
    while page := await queue.list("waiting", limit=1, after=last):
        paged += page
        last = page[-1]
    assert paged == listed
    assert await queue.list("delayed", after=last) == []
    assert (await engine.queues())["mixed", ""].waiting == 3
    meant = TaskFilter(queue="mixed", state="waiting")
    assert (await engine.count(meant)).count == 3
    assert sorted(task.id for task in await engine.find(meant)) == sorted(waits)
    assert (await engine.count(TaskFilter(queue="mixed"))).count == 4
    assert (await engine.count(TaskFilter(queue="mixed", state="delayed"))).count == 1


async def test_what_an_act_does_to_waiting_tasks(engine):
    queue, late, waits = await mixed(engine)
    meant = TaskFilter(queue="mixed", state="waiting")
    for act in ("redrive", "delete"):
        with pytest.raises(lodeq.UsageError, match="waiting"):
            await engine.act(act, meant)
    report = await engine.act("reprioritise", meant, priority=9)
    assert report.done == 3
    assert {task.priority for task in await queue.list("waiting")} == {9}
    cut = await engine.act("cancel", meant, limit=1)
    rest = await engine.act("cancel", meant, cursor=cut.cursor)
    assert (cut.done, rest.done, rest.cursor) == (1, 2, None)
    assert {(await engine.result(one)).status for one in waits} == {"cancelled"}
    stats = await queue.stats()
    assert (stats.delayed, stats.waiting) == (1, 0)
    assert (await engine.get(late)).state == "delayed"


async def test_a_priority_that_was_changed_while_it_waited_holds_when_it_is_let_go(engine):
    queue, _, waits = await mixed(engine)
    await engine.act("reprioritise", TaskFilter(id_prefix=str(waits[1])), priority=9)
    await complete_all(engine)
    leases = await passed(engine, "mixed")
    while len(leases) < 3:
        leases += await passed(engine, "mixed")
    assert sorted(lease.priority for lease in leases) == [5, 5, 9]
    assert (await queue.stats()).waiting == 0


async def test_a_purge_of_delayed_tasks_leaves_those_that_wait(engine):
    queue, late, _ = await mixed(engine)
    assert await queue.purge("delayed") == 1
    assert await engine.get(late) is None or (await engine.get(late)).state == "cancelled"
    assert len(await queue.list("waiting")) == 3
    assert await queue.purge("waiting") == 3
    assert (await queue.stats()).pending == 0


async def test_a_workflow_of_many_slices(engine):
    workflow, ids = await fan_out(engine, count=600)
    await workflow.seal()
    for _ in range(10):
        leases = await claim_all(engine, "parts")
        await engine.complete_many([(lease, b"v") for lease in leases])
    assert len(await claim_all(engine, "joins")) == 1
    seen, after = [], -1
    while page := await workflow.parts_page(after=after, limit=256):
        seen += [part.task_id for part in page]
        after = page[-1].number
    assert seen == ids


async def test_parts_are_all_parts_and_a_page_is_one(engine):
    workflow, ids = await fan_out(engine, count=1100)  # more than the largest page
    await workflow.seal()
    for lease in await claim_all(engine, "parts", limit=1024):
        await (lease.bury("no") if lease.payload == b"7" else lease.complete(lease.payload))
    assert [part.task_id async for part in engine.parts(workflow.id)] == ids
    parts = [part async for part in workflow.parts()]
    assert [part.number for part in parts] == list(range(1100))
    assert sum(part.status == "completed" for part in parts) == 1023
    assert [part.number async for part in workflow.parts(failed=True)] == [7]
    assert len(await workflow.parts_page()) == 256


async def test_parts_with_large_results_come_page_by_page(engine):
    workflow, _ = await fan_out(engine, count=7)
    await workflow.seal()
    for n, lease in enumerate(await claim_all(engine, "parts")):
        await lease.complete(bytes([n]) * 1_000_000)
    assert len(await workflow.parts_page()) < 7  # 4 MiB
    assert [part.value[:1] async for part in workflow.parts()] == [bytes([n]) for n in range(7)]


async def test_workflows_are_listed_the_newest_first(engine):
    flows = [await engine.workflow(name=f"w{n}", key=f"k{n}") for n in range(5)]
    ids = [flow.id for flow in flows]
    await flows[1].seal()
    first = (await engine.queue("parts").enqueue(b"p")).id
    for _ in range(3):  # joins that are no workflows lie between
        await engine.enqueue_after(NewTask(b"w", "waits"), [first])
    page = await engine.workflows()
    assert sorted(info.id for info in page) == sorted(ids)
    assert [info.id for info in page] == sorted(ids, reverse=True)
    assert (page.cursor, page.is_short) == (None, False)
    seen, cursor = [], None
    while True:
        page = await engine.workflows(limit=2, cursor=cursor)
        seen += [info.id for info in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == sorted(ids, reverse=True)
    assert [info.name for info in await engine.workflows(state="over")] == ["w1"]
    assert len(await engine.workflows(state="open")) == 4
    with pytest.raises(lodeq.UsageError, match="one of open, running"):
        await engine.workflows(state="lost")
    with pytest.raises(lodeq.UsageError):
        await engine.workflows(cursor="nonsense")
    with pytest.raises((lodeq.UsageError, lodeq.LimitError)):
        await engine.workflows(limit=0)


async def layered(engine):
    """Two fetches, three renders that wait for both, one check that waits for the renders."""
    flow = await engine.workflow(NewTask(b"j", "joins", function="bind"))
    fetches = await flow.add([NewTask(b"f", "parts", function="fetch") for _ in range(2)])
    renders = [NewTask(b"r", "parts", function="render", preview=f"n={n}") for n in range(3)]
    rendered = await flow.add(renders, after=fetches)
    await flow.add([NewTask(b"c", "checks", function="check")], after=rendered)
    return flow


async def test_a_graph_has_members_in_groups_by_function(engine):
    flow = await layered(engine)
    await flow.seal()
    graph = await engine.workflow_graph(flow.id)
    assert [(one.function, one.queue, one.layer, one.states) for one in graph.groups] == [
        ("fetch", "parts", 0, {"ready": 2}),
        ("render", "parts", 1, {"waiting": 3}),
        ("check", "checks", 2, {"waiting": 1}),
    ]
    assert [one.waits_for for one in graph.groups] == [{}, {0: 6}, {1: 3}]
    assert (graph.looked, graph.failed, graph.info) == (6, (), await flow.info())
    await complete_all(engine)
    first, *rest = await claim_all(engine, "parts")
    await first.bury("no such page")
    graph = await engine.workflow_graph(flow.id)
    assert graph.groups[0].states == {"completed": 2}
    assert graph.groups[1].states == {"dead": 1, "leased": 2}
    assert graph.states == {"completed": 2, "dead": 1, "leased": 2, "waiting": 1}
    (failed,) = graph.failed
    assert (failed.function, failed.status, failed.reason) == ("render", "dead", "no such page")
    assert (failed.task_id, failed.preview) == (first.task_id, f"n={failed.number - 2}")
    for lease in rest:
        await lease.complete()


async def test_a_workflow_is_found_by_any_of_its_tasks(engine):
    flow = await layered(engine)
    for part in await flow.parts_page():
        assert (await engine.workflow_info(part.task_id)).id == flow.id
    assert (await engine.workflow_info(flow.callback)).id == flow.id
    assert (await engine.workflow_graph(flow.callback)).info.id == flow.id
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.workflow_graph((await engine.queue("parts").enqueue(b"p")).id)
    with pytest.raises(lodeq.TaskNotFoundError):  # not by a member: that would be a surprise
        await engine.cancel_workflow(flow.callback)


async def test_a_graph_of_a_long_chain_and_of_many_functions_stays_small(engine):
    flow = await engine.workflow()
    await flow.add([NewTask(b"c", "parts", function="step") for _ in range(40)], chain=True)
    (group,) = (await engine.workflow_graph(flow.id)).groups
    assert (group.function, group.members, group.waits_for) == ("step", 40, {0: 39})
    many = await engine.workflow()
    await many.add([NewTask(b"c", "parts", function=f"f{n}") for n in range(60)])
    graph = await engine.workflow_graph(many.id)
    assert len(graph.groups) == 24
    assert sum(one.members for one in graph.groups) == 60
    assert max(graph.groups, key=lambda one: one.members).function == "(others)"


# -- after= of ordinary enqueues ---------------------------------------------------------------


async def sources(engine, count=2):
    """Tasks of which each lives on another slot."""
    queue = engine.queue("parts")
    return [(await queue.enqueue(b"p", shard_key=f"k{n}")).id for n in range(count)]


async def test_an_enqueue_waits_for_others(engine):
    ids = await sources(engine, 5)
    tops = engine.queue("tops")
    receipt = await tops.enqueue({"n": 1}, after=ids, priority=8, headers={"a": 1}, ttl=3600)
    assert receipt == lodeq.Receipt(receipt.id, False, None)
    task = await engine.get(receipt.id)
    assert (task.state, task.payload, task.priority) == ("waiting", {"n": 1}, 8)
    for lease in await claim_all(engine, "parts"):
        assert await claim_all(engine, "tops") == []
        await lease.complete(b"v")
    (top,) = await passed(engine, "tops")
    assert (top.task_id, top.payload, top.headers) == (receipt.id, {"n": 1}, {"a": 1})
    assert sorted(part.value for part in await engine.parts_page(receipt.id)) == [b"v"] * 5
    assert (await tops.enqueue(b"x", after=[])).duplicate is False
    assert (await tops.stats()).ready == 1
    (last,) = ids[:1]
    assert (await tops.enqueue(b"x", after=[], on_failure="cancel")).duplicate is False
    done = await tops.enqueue(b"y", after=[last])  # all have ended
    assert (await engine.get(done.id)).state == "ready"


@pytest.mark.parametrize("on_failure", ["run", "wait", "cancel"])
async def test_what_follows_a_failed_dependency(engine, on_failure):
    ids = await sources(engine, 1)
    receipt = await engine.queue("tops").enqueue(b"x", after=ids, on_failure=on_failure)
    (lease,) = await claim_all(engine, "parts")
    await lease.bury("no")
    if on_failure == "run":
        assert len(await passed(engine, "tops")) == 1
    elif on_failure == "wait":
        assert (await engine.get(receipt.id)).state == "waiting"
        assert await engine.cancel(receipt.id)
    else:
        result = await engine.result(receipt.id, wait=20)
        assert (result.status, "did not complete" in result.error) == ("cancelled", True)


async def test_a_repeat_with_a_dedup_key_is_answered_as_without_after(engine):
    ids = await sources(engine)
    tops = engine.queue("tops")
    first = await tops.enqueue(b"1", after=ids, dedup_key="k")
    again = await tops.enqueue(b"2", after=ids, dedup_key="k")
    assert again == lodeq.Receipt(first.id, True, None)
    assert await tops.enqueue(b"3", dedup_key="k") == again
    unknown = [lodeq.TaskId(bytes(16))]  # what it waits for is moot: it waits already
    assert await tops.enqueue(b"4", after=unknown, dedup_key="k") == again
    with pytest.raises(lodeq.DuplicateTaskError):
        await tops.enqueue(b"5", after=ids, dedup_key="k", on_conflict="raise")
    assert (await tops.stats()).waiting == 1
    await complete_all(engine)
    (top,) = await passed(engine, "tops")
    assert (top.task_id, top.payload) == (first.id, b"1")
    assert (await tops.enqueue(b"6", after=ids, dedup_key="k")).id == first.id
    await top.complete()
    fresh = await tops.enqueue(b"7", after=ids, dedup_key="k")
    assert (fresh.duplicate, fresh.id != first.id) == (False, True)
    for lease in await passed(engine, "tops"):
        await lease.complete()


async def test_a_replacement_waits_anew_and_may_wait_for_what_it_replaces(engine):
    ids = await sources(engine)
    tops = engine.queue("tops")
    first = await tops.enqueue(b"1", after=ids, dedup_key="k")
    second = await tops.enqueue(b"2", after=ids, dedup_key="k", on_conflict="replace")
    assert second.replaced == first.id
    assert (await engine.get(first.id)).state == "cancelled"
    third = await tops.enqueue(
        b"3", after=[second.id], dedup_key="k", on_conflict="replace", on_failure="run"
    )
    assert third.replaced == second.id
    (top,) = await passed(engine, "tops")  # what it waits for was cancelled by it
    assert top.payload == b"3"
    await top.complete()


async def test_many_tasks_of_which_some_wait(engine):
    ids = await sources(engine)
    tops = engine.queue("tops")
    given = [NewTask(b"0"), NewTask(b"1", after=ids), NewTask(b"2"), NewTask(b"3", after=ids[:1])]
    receipts = await tops.enqueue_many(given)
    states = [(await engine.get(one.id)).state for one in receipts]
    assert states == ["ready", "waiting", "ready", "waiting"]
    named = [NewTask(b"4", "others", after=ids), NewTask(b"5", "others")]
    receipts = await engine.enqueue_many(named)
    assert [(await engine.get(one.id)).state for one in receipts] == ["waiting", "ready"]
    with pytest.raises(lodeq.UsageError, match="atomic"):
        await tops.enqueue_many(given, atomic=True)
    bad = [NewTask(b"6"), NewTask(b"7", after=[lodeq.TaskId(bytes(16))])]
    with pytest.raises(lodeq.UnknownDependencyError):
        await tops.enqueue_many(bad)
    before = (await tops.stats()).ready
    with pytest.raises(lodeq.UsageError, match="delay"):
        await tops.enqueue(b"8", after=ids, delay=5)
    with pytest.raises(lodeq.UsageError, match="list of task ids"):
        await tops.enqueue(b"8", after=ids[0])
    with pytest.raises(lodeq.UsageError, match="on_failure"):
        await tops.enqueue(b"8", after=ids, on_failure="explode")
    with pytest.raises(lodeq.UsageError, match="not a task id"):
        await tops.enqueue(b"8", after=["nonsense"])
    with pytest.raises(lodeq.LimitError, match="255"):
        await tops.enqueue(b"8", after=[lodeq.TaskId(n.to_bytes(16, "big")) for n in range(256)])
    assert (await tops.stats()).ready == before


async def test_a_cycle_cannot_be_made(engine):
    """Who waits has an id that did not exist before, and a repeat waits for nothing more."""
    tops = engine.queue("tops")
    first = await tops.enqueue(b"1", after=await sources(engine), dedup_key="a")
    second = await tops.enqueue(b"2", after=[first.id], dedup_key="b")
    again = await tops.enqueue(b"1", after=[second.id], dedup_key="a")
    assert again == lodeq.Receipt(first.id, True, None)
    assert len(await engine.parts_page(first.id)) == 2
    await complete_all(engine)
    (top,) = await passed(engine, "tops")
    assert top.task_id == first.id
    await top.complete()
    (top,) = await passed(engine, "tops")
    assert top.task_id == second.id
    await top.complete()


async def test_where_after_is_refused(engine):
    ids = await sources(engine, 1)
    waiting = NewTask(b"x", "tops", after=ids)
    flow = await engine.workflow()
    with pytest.raises(lodeq.UsageError, match=r"Workflow\.add"):
        await flow.add([waiting])
    with pytest.raises(lodeq.UsageError, match="after="):
        await engine.workflow(waiting)
    (lease,) = await claim_all(engine, "parts")
    with pytest.raises(lodeq.UsageError, match="after="):
        await lease.complete(then=[waiting])
    await lease.complete()


# -- tasks that wait for others --------------------------------------------------------------


async def passed(engine, queue):
    """What the reaper lets go: at once on one slot, soon where the others live elsewhere."""
    with anyio.fail_after(20):
        while not (leases := await claim_all(engine, queue)):
            await checkpoint()
    return leases


async def test_a_task_waits_for_others_wherever_they_live(engine):
    ids = [(await engine.queue("parts").enqueue(b"p", shard_key=f"k{n}")).id for n in range(8)]
    waits = await engine.enqueue_after(NewTask(b"late", "tops"), ids)
    assert (await engine.get(waits)).state == "waiting"
    for n, lease in enumerate(await claim_all(engine, "parts")):
        assert await claim_all(engine, "tops") == []
        await (lease.bury("no") if n == 3 else lease.complete(b"v"))
    (top,) = await passed(engine, "tops")
    assert top.task_id == waits
    parts = await engine.parts_page(waits)
    assert [p.task_id for p in parts] == ids
    assert sorted(p.status for p in parts) == ["completed"] * 7 + ["dead"]
    await top.complete()


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "completed", "dead"])
async def test_a_dependency_may_be_in_any_state(engine, state):
    queue = engine.queue("parts")
    one = (await queue.enqueue(b"p", shard_key="a", delay=0.05 if state == "delayed" else None)).id
    leases = [] if state in ("ready", "delayed") else await queue.claim()
    if state == "completed":
        await leases[0].complete(b"v")
    elif state == "dead":
        await leases[0].bury("no")
    waits = await engine.enqueue_after(NewTask(b"late", "tops", shard_key="b"), [one])
    if state in ("ready", "delayed"):
        leases = await passed(engine, "parts")
    if state not in ("completed", "dead"):
        assert await claim_all(engine, "tops") == []
        await leases[0].complete(b"v")
    (top,) = await passed(engine, "tops")
    assert top.task_id == waits
    (part,) = await engine.parts_page(waits)
    assert part.status == ("dead" if state == "dead" else "completed")


async def test_unknown_dependencies_are_refused(engine):
    missing = lodeq.TaskId(bytes(16))
    with pytest.raises(lodeq.UnknownDependencyError) as caught:
        await engine.enqueue_after(NewTask(b"late", "tops"), [missing])
    assert caught.value.task_id == missing
    with pytest.raises(lodeq.UsageError):
        await engine.enqueue_after(NewTask(b"late", "tops"), [])
    one = (await engine.queue("parts").enqueue(b"p")).id
    with pytest.raises(lodeq.UsageError, match="no delay"):
        await engine.enqueue_after(NewTask(b"late", "tops", delay=5), [one])
    waits = await engine.enqueue_after(NewTask(b"late", "tops"), [one], on_failure="cancel")
    await engine.cancel(one)
    assert (await engine.result(waits, wait=10)).status == "cancelled"


# -- a wait that a redrive by hand ends ------------------------------------------------------


async def soon(engine, queue):
    """The one that the reaper lets go."""
    (lease,) = await passed(engine, queue)
    return lease


async def redriven_by(engine, how, task_id):
    """Whoever redrives the one dead letter of ``parts``."""
    if how == "id":
        return await engine.queue("parts").redrive([task_id])
    if how == "queue":
        return await engine.queue("parts").redrive()
    return (await engine.act("redrive", TaskFilter(queue="parts", state="dead"))).done


@pytest.mark.parametrize("how", ["id", "queue", "act"])
async def test_a_member_that_is_redriven_by_hand_counts_again_where_a_redrive_is_waited_for(
    engine, how
):
    workflow, (one, _) = await fan_out(engine, count=2, on_failure="wait")
    await workflow.seal()
    first, second = await claim_all(engine, "parts")
    await first.bury("broken")
    await second.complete(b"2")
    assert await redriven_by(engine, how, one) == 1
    info = await workflow.info()
    assert (info.state, info.ended, info.failed, info.generation) == ("running", 1, 0, 0)
    assert await claim_all(engine, "joins") == []
    await complete_all(engine)
    join = await soon(engine, "joins")
    assert [part.status for part in await engine.parts_page(join.task_id)] == ["completed"] * 2
    await join.complete()
    assert (await workflow.info()).state == "over"


async def test_a_member_that_is_redriven_while_others_run_counts_by_its_new_end(engine):
    workflow, (one, _) = await fan_out(engine, count=2, on_failure="wait")
    await workflow.seal()
    first, second = await claim_all(engine, "parts")
    await first.bury("broken")
    assert await engine.queue("parts").redrive([one]) == 1
    await second.complete()
    assert (await workflow.info()).state == "running"
    (again,) = await claim_all(engine, "parts")
    await again.bury("broken again")
    assert (await workflow.info()).state == "waiting"
    assert await workflow.redrive() == 1
    await complete_all(engine)
    await (await soon(engine, "joins")).complete()


async def test_a_member_whose_join_has_fired_runs_alone(engine):
    workflow, (one, _) = await fan_out(engine, count=2)
    await workflow.seal()
    first, second = await claim_all(engine, "parts")
    await first.bury("broken")
    await second.complete()
    join = await soon(engine, "joins")
    assert await engine.queue("parts").redrive([one]) == 1
    info = await workflow.info()
    assert (info.state, info.ended, info.failed) == ("joined", 2, 1)
    await complete_all(engine)
    await join.complete()
    assert (await workflow.info()).failed == 1
    assert await workflow.redrive() == 0  # its end is taken as it is now
    info = await workflow.info()
    assert (info.generation, info.ended, info.failed) == (1, 2, 0)
    await (await soon(engine, "joins")).complete()


@pytest.mark.parametrize("how", ["id", "queue", "act", "join"])
@pytest.mark.parametrize("key", ["same", "other"])
async def test_a_task_that_waits_hears_of_a_redriven_dependency(engine, how, key):
    queue = engine.queue("parts")
    one = (await queue.enqueue(b"p", shard_key="same")).id
    late = NewTask(b"late", "tops", shard_key=key)
    waits = await engine.enqueue_after(late, [one], on_failure="wait")
    for _ in range(2):
        await (await soon(engine, "parts")).bury("broken")
        with anyio.fail_after(20):
            while (await engine.parts_page(waits))[0].status != "dead":
                await checkpoint()
        if how == "join":
            assert await engine.redrive_workflow(waits) == 1
        else:
            assert await redriven_by(engine, how, one) == 1
        assert (await engine.get(waits)).state == "waiting"
    await complete_all(engine)
    top = await soon(engine, "tops")
    assert top.task_id == waits
    (part,) = await engine.parts_page(waits)
    assert part.status == "completed"
    await top.complete()


@pytest.mark.parametrize("key", ["same", "other"])
async def test_a_dependency_that_was_dead_before_may_be_redriven(engine, key):
    queue = engine.queue("parts")
    one = (await queue.enqueue(b"p", shard_key="same")).id
    await (await soon(engine, "parts")).bury("broken")
    late = NewTask(b"late", "tops", shard_key=key)
    waits = await engine.enqueue_after(late, [one], on_failure="wait")
    assert (await engine.get(waits)).state == "waiting"
    assert await queue.redrive([one]) == 1
    await complete_all(engine)
    assert (await soon(engine, "tops")).task_id == waits


async def test_what_redriving_a_waiting_task_refuses(engine):
    one = (await engine.queue("parts").enqueue(b"p", shard_key="a")).id
    with pytest.raises(lodeq.TaskNotFoundError):
        await engine.redrive_workflow(one)
    waits = await engine.enqueue_after(NewTask(b"late", "tops"), [one], on_failure="wait")
    assert await engine.redrive_workflow(waits) == 0  # nothing is dead
    await complete_all(engine)
    await (await soon(engine, "tops")).bury("broken")
    with pytest.raises(lodeq.UsageError, match="let go"):
        await engine.redrive_workflow(waits)
    workflow = await engine.workflow(on_failure="wait")
    _, two = await workflow.add([NewTask(b"1", "steps"), NewTask(b"2", "steps")], chain=True)
    with pytest.raises(lodeq.UsageError, match=str(workflow.id)):
        await engine.redrive_workflow(two)
