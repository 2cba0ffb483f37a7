"""Calls that change many tasks and fail in the middle: their errors say how many are done."""

import pytest
from support_behaviour import sound
from support_faults import faulty

from lodeq import CommitUnknownError, LodeqError, NewTask, TaskFilter

pytestmark = pytest.mark.anyio
TASKS = 400  # of 128 in a commit
WRITTEN = 128


def fail_after(rig, n):
    """Let ``n`` more writes succeed, and then none."""
    left = n

    def written():
        nonlocal left
        left -= 1
        if not left:
            rig.store.refusals.append(CommitUnknownError("the disk is gone"))

    rig.store.after_write = written


async def dead(rig, n=TASKS):
    await rig.queue.enqueue_many([NewTask(b"x")] * n)
    for lease in await rig.queue.claim(limit=n):
        await lease.bury("no")


async def error_of(call):
    with pytest.raises(LodeqError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("name", ["redrive", "delete"])
async def test_an_act_on_dead_letters_says_how_many_are_done(name):
    async with faulty() as rig:
        await dead(rig)
        fail_after(rig, 2)
        error = await error_of(rig.engine.act(name, TaskFilter(state="dead")))
        assert error.done == 2 * WRITTEN


@pytest.mark.parametrize(("name", "options"), [("cancel", {}), ("reprioritise", {"priority": 7})])
async def test_an_act_on_what_waits_says_how_many_are_done(name, options):
    async with faulty() as rig:
        await rig.queue.enqueue_many([NewTask(b"x", priority=3)] * TASKS)
        fail_after(rig, 1)
        error = await error_of(rig.engine.act(name, TaskFilter(), **options))
        assert error.done == WRITTEN


async def test_an_act_on_results_says_how_many_are_done():
    async with faulty() as rig:
        for _ in range(2):  # each in a second of its own
            await rig.queue.enqueue_many([NewTask(b"x")] * 10)
            leases = await rig.queue.claim(limit=10)
            await rig.engine.complete_many([(one, None) for one in leases])
            rig.clock.step_wall(5)
        fail_after(rig, 2)  # the first one files the ends
        error = await error_of(rig.engine.act("delete", TaskFilter(state="completed")))
        assert error.done == 10


@pytest.mark.parametrize("how", ["purge", "cancel_all"])
async def test_an_end_of_a_whole_queue_says_how_many_are_done(how):
    async with faulty() as rig:
        await rig.queue.enqueue_many([NewTask(b"x")] * TASKS)
        fail_after(rig, 2)
        error = await error_of(getattr(rig.queue, how)())
        assert error.done == 2 * WRITTEN


async def test_a_redrive_of_a_queue_says_how_many_are_done():
    async with faulty() as rig:
        await dead(rig)
        fail_after(rig, 1)
        assert (await error_of(rig.queue.redrive())).done == WRITTEN


async def test_a_redrive_of_ids_says_how_many_are_done():
    async with faulty() as rig:
        await dead(rig, 2)
        ids = [task.id for task in await rig.queue.list(state="dead")]
        other = (await rig.queue.enqueue(b"ready")).id
        error = await error_of(rig.queue.redrive([ids[0], other, ids[1]]))
        assert error.done == 2


async def test_what_fails_at_once_has_done_nothing():
    async with faulty() as rig:
        await rig.queue.enqueue_many([NewTask(b"x")] * TASKS)
        rig.store.refusals.append(CommitUnknownError("the disk is gone"))
        assert (await error_of(rig.queue.purge())).done is None


async def test_a_lease_that_cannot_be_ended_yet_leaves_none_before_it_uncounted(monkeypatch):
    async with faulty() as rig:
        await rig.queue.enqueue_many([NewTask(b"x")] * 3)
        *_, last = await rig.queue.claim(limit=3)
        check = rig.state.check_inherited

        def check_inherited(lease):
            if lease.task_id == last.task_id:
                raise LodeqError("of the leader before")
            check(lease)

        monkeypatch.setattr(rig.state, "check_inherited", check_inherited)
        assert (await error_of(rig.queue.cancel_all())).done == 2
        assert (await rig.queue.stats()).leased == 1
        await sound(rig.engine)


@pytest.mark.parametrize("how", ["cancel", "redrive"])
async def test_an_act_on_a_workflow_says_how_many_are_done(how):
    async with faulty() as rig:
        workflow = await rig.engine.workflow()
        await workflow.add([NewTask(b"x", "mail")] * TASKS)
        await workflow.seal()
        if how == "redrive":
            for lease in await rig.queue.claim(limit=TASKS):
                await lease.bury("no")
        fail_after(rig, 2)  # the first one says what is to come
        error = await error_of(getattr(rig.engine, f"{how}_workflow")(workflow.id))
        assert error.done == WRITTEN
