"""Kept sets of queues: which are kept, what they hold, whom a task that becomes ready concerns."""

import asyncio
import gc

import pytest
from support_loop import on_loop, settle

from lodeq import Engine, NewTask, UsageError
from lodeq.repository.background.reaper import forget_idle_tenant_queues
from lodeq.repository.state.caches import claim_sets
from lodeq.repository.state.caches.claim_sets import ClaimSets
from lodeq.repository.state.queue_state import ShardQueue
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing


def kept(engine: Engine) -> ClaimSets:
    return engine._state.claim_sets


@on_loop
async def test_a_set_is_kept_when_it_is_claimed_from_again() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        sets = kept(engine)
        await engine.claim(["a", "b"])
        assert not sets.sets
        assert not sets.is_noted
        await engine.claim(["a", "b"], limit=2, worker="other")
        assert list(sets.sets) == [((b"a", b""), (b"b", b""))]
        await engine.claim([engine.queue("a"), engine.queue("b")], lease=7)
        await engine.claim(("a", "b", "a"), lease=8.5)
        assert len(sets.sets) == 1
        assert sets.is_noted


@on_loop
async def test_who_names_other_queues_each_time_leaves_nothing_behind() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        for n in range(600):
            for index, lease in enumerate((None, 7, 8.0)):
                assert await engine.claim([f"a{n}", f"b{n}-{index}"], lease=lease) == []
        assert not kept(engine).sets
        assert not kept(engine).watch
        assert not engine._claims._requests
        assert len(engine._claims._seen) <= 256


@pytest.mark.interpreted
@on_loop
async def test_of_too_many_sets_the_one_used_longest_ago_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim_sets, "SETS_MAX", 3)
    async with open_testing(clock=ManualClock()) as engine:
        sets = kept(engine)

        async def claim(n: int) -> None:
            for _ in range(2):
                await engine.claim([f"a{n}", f"b{n}"])

        waiting = asyncio.ensure_future(engine.claim(["a0", "b0"], wait=60))
        await settle()
        assert not sets.sets, "it waits under each of its queues"
        waiting.cancel()
        await claim(0)
        waiting = asyncio.ensure_future(engine.claim(["a0", "b0"], wait=60))
        await settle()
        for n in (1, 2, 1, 3):
            await claim(n)
        assert [keys[0][0] for keys in sets.sets] == [b"a0", b"a1", b"a3"]
        assert len(sets.watch) == 6
        await engine.enqueue_many([NewTask(n, queue=f"a{n}") for n in (0, 2)])
        assert [lease.payload for lease in await waiting] == [0]
        assert [lease.payload for lease in await engine.claim(["a2", "b2"])] == [2]


@on_loop
async def test_a_poll_over_a_kept_set_is_filed_once() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        names = [f"q{n}" for n in range(50)]
        for _ in range(2):
            await engine.claim(names)
        polls = []
        for _ in range(3):
            polls.append(asyncio.ensure_future(engine.claim(names, wait=60)))
            await settle()
        one = asyncio.ensure_future(engine.queue("q7").claim(wait=60))
        await settle()
        waiters = engine._state.waiters
        assert list(waiters.by_tenant_queue) == [(b"q7", b"")]
        assert len(waiters.by_number) == 3
        await engine.enqueue_many([NewTask(n, queue="q7") for n in range(2)])
        await engine.queue("q9").enqueue(2)
        await engine.queue("q7").enqueue(3)
        assert [(await poll)[0].payload for poll in [*polls, one]] == [0, 1, 2, 3]
        assert not waiters.by_number
        assert kept(engine).waiting == 0


@on_loop
async def test_polls_over_sets_end_with_the_engine() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        for _ in range(2):
            await engine.claim(["a", "b"])
        waiting = asyncio.ensure_future(engine.claim(["a", "b"], wait=60))
        await settle()
    (error,) = await asyncio.gather(waiting, return_exceptions=True)
    assert "closed" in str(error)
    assert not engine._state.waiters.by_number


@on_loop
async def test_a_notice_is_given_once() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        for n in range(5):
            for _ in range(2):
                await engine.claim(["mail", f"other{n}"])
        watch = kept(engine).watch[b"mail", b""]
        assert len(watch.fresh) == 5
        await engine.queue("mail").enqueue(0)
        assert not watch.fresh, "all look again"
        await engine.queue("mail").enqueue(1)
        assert [lease.payload for lease in await engine.claim(["mail", "other3"])] == [0]
        assert len(watch.fresh) == 1, "the others have not claimed since"
        assert [lease.payload for lease in await engine.claim(["mail", "other0"])] == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("no_history")
@on_loop
async def test_a_tenant_queue_that_is_dropped_is_not_held() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        names = ["a", "b", "gone"]
        for _ in range(2):
            await engine.claim(names)
        await engine.enqueue_many([NewTask(name, queue=name) for name in names])
        (lease,) = await engine.claim(names)  # the heads of all are known now
        await lease.complete(keep=False)
        (other,) = await engine.queue("gone").claim()
        await other.complete(keep=False)
        del lease, other
        for _ in forget_idle_tenant_queues(engine._state):
            pass
        assert b"gone" not in engine._state.queue_states
        gc.collect()
        held = {b.tenant_queue.queue for b in gc.get_objects() if isinstance(b, ShardQueue)}
        assert b"gone" not in held
        assert [lease.payload for lease in await engine.claim(names, limit=9)] == ["b"]


@on_loop
async def test_the_caller_may_change_its_list() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        names = ["a", "b"]
        for _ in range(3):
            await engine.claim(names)
        await engine.queue("c").enqueue("c")
        names.append("c")
        assert [lease.payload for lease in await engine.claim(names)] == ["c"]
        names[:] = ["Not a name", "a"]
        with pytest.raises(UsageError):
            await engine.claim(names)
        with pytest.raises(UsageError):
            await engine.claim([])
        with pytest.raises(UsageError):
            await engine.claim("a")
