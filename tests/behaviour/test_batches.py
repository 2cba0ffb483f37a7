"""Beside a call that writes to thousands of tasks, callers of its loop wait for few of them."""

import asyncio

import pytest
from support_behaviour import StillClock, in_memory, sound, until

from lodeq import NewTask, TaskFilter
from lodeq.repository.background import reaper
from lodeq.repository.state.turns import BATCH_S, TURN_S, PacedGroups

pytestmark = pytest.mark.anyio
N = 300
STEP_S = BATCH_S / 4
FEW = 8  # of a batch: four or five, and those of a batch that is seen half done


class SteppingClock(StillClock):
    """Time goes on by a quarter of a batch with each look at it: as work between two looks does."""

    def mono(self):
        self._mono += STEP_S
        return self._mono


@pytest.fixture
def clock():
    return SteppingClock()


@pytest.fixture
async def engine(clock):
    async with in_memory(clock) as engine:
        yield engine
        await sound(engine)


async def most_a_turn(act, left):
    """How many tasks ``act`` took in the turn of the loop that had most, by what was left."""
    before, most = left(), 0
    acting = asyncio.ensure_future(act())
    while not acting.done():
        await asyncio.sleep(0)
        now = left()
        most = max(most, before - now)
        before = now
    return await acting, most


async def test_what_is_ready_is_purged_or_cancelled_few_at_a_time(engine):
    for name, act in (("a", "purge"), ("b", "cancel_all")):
        queue = engine.queue(name)
        await queue.enqueue_many([NewTask(b"x")] * N)
        counts = counts_of(engine, name)
        count, most = await most_a_turn(getattr(queue, act), lambda of=counts: of().ready)
        assert (count, counts().ready) == (N, 0)
        assert 1 <= most <= FEW


async def test_what_is_leased_is_cancelled_few_at_a_time(engine):
    queue = engine.queue("mail")
    await queue.enqueue_many([NewTask(b"x")] * N)
    while await queue.claim(limit=100, lease=9999):
        pass
    counts = counts_of(engine, "mail")
    count, most = await most_a_turn(lambda: queue.cancel_all(leased=True), lambda: counts().leased)
    assert (count, counts().leased) == (N, 0)
    assert 1 <= most <= FEW


@pytest.mark.parametrize("how", ["redrive", "act"])
async def test_dead_letters_are_redriven_few_at_a_time(engine, how):
    queue = engine.queue("mail")
    await queue.enqueue_many([NewTask(b"x")] * N)
    for lease in await queue.claim(limit=N):
        await lease.bury("no")
    counts = counts_of(engine, "mail")
    meant = TaskFilter(queue="mail", state="dead")
    act = queue.redrive if how == "redrive" else lambda: engine.act("redrive", meant)
    done, most = await most_a_turn(act, lambda: counts().dead)
    assert (done if how == "redrive" else done.done, counts().ready) == (N, N)
    assert 1 <= most <= FEW


async def test_callers_go_on_beside_a_purge(engine):
    queue, other = engine.queue("mail"), engine.queue("other")
    await queue.enqueue_many([NewTask(b"x")] * N)
    purge = asyncio.ensure_future(queue.purge())
    cycles = 0
    while not purge.done():
        await other.enqueue(b"y")
        await (await other.claim_one()).complete()
        cycles += 1
    assert await purge == N
    assert cycles >= N // (4 * FEW)


async def test_expired_leases_are_reaped_few_at_a_time(engine, clock):
    queue = engine.queue("mail")
    await queue.enqueue_many([NewTask(b"x")] * N)
    while await queue.claim(limit=100, lease=5):
        pass
    counts = counts_of(engine, "mail")

    clock.jump(6)
    _, most = await most_a_turn(lambda: until(lambda: not counts().leased), lambda: counts().leased)
    assert 1 <= most <= reaper.LEASES


class Slow:
    """A shard whose commits take as long as is wanted, and how many tasks each of them had."""

    def __init__(self, shard, clock):
        self.coalescer, self.begin = self, shard.coalescer.begin
        self.clock, self.wait_s, self.tasks = clock, 0.0, 0

    async def wait(self, group):
        self.clock.jump(self.wait_s)
        self.tasks = 0


async def test_a_slow_commit_makes_longer_batches(engine, clock):
    shard = Slow(engine._state.first, clock)
    groups, lengths = PacedGroups(engine._state, shard), []
    await groups.group()
    for shard.wait_s in (0.0, 0.0, 4 * BATCH_S, 100.0, 0.0, 0.0):  # what the next one learns
        length = 0
        while shard.tasks == length:
            shard.tasks, length = shard.tasks + 1, length + 1
            await groups.group()
        lengths.append(length)
    _, short, before, longer, longest, short_again = lengths
    assert max(short, before, short_again) <= FEW
    assert max(short, before, short_again) < longer < longest <= TURN_S / STEP_S + FEW


def counts_of(engine, name):
    """The counts of a queue, without a wait."""
    tenant_queue = engine._state.tenant_queue(name.encode(), b"")
    return lambda: tenant_queue.shard_queues[0]
