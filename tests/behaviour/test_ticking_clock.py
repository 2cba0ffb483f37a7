"""All rows that one act writes have one moment, whatever the clock does meanwhile.

A row and the expiry entry that is to remove it are made of two readings only if nobody minds that
a second, or a step of the clock, lies between them: an entry that is late is found by ``verify``.
"""

import anyio
import pytest
from support_behaviour import in_memory

import lodeq
from lodeq import NewTask
from lodeq.engine.records.keyspace import TASK
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio


class TickingClock(ManualClock):
    """Time goes on by more than a second between any two looks."""

    def wall_us(self):
        self._wall_us += 1_100_000
        return super().wall_us()


async def mixed(engine):
    """Tasks of every kind, and what is done with each."""
    queue = engine.queue("mail", max_attempts=2, lease=1e6)
    for options in (
        {},
        {"priority": 9},
        {"ttl": 1e6},
        {"delay": 5e5, "ttl": 1e6},
        {"retention": 0},
        {"retention": 60, "dead_retention": 90},
        {"function": "send", "preview": "to=ann", "labels": {"to": "ann"}},
    ):
        await queue.enqueue_many([NewTask(b"x" * 50, **options) for _ in range(12)])
    for n in range(12):
        await queue.enqueue(b"k", dedup_key=f"k{n}", dedup_window=1e6)
        await queue.enqueue(b"k", dedup_key=f"k{n}", on_conflict="replace")
    leases = await queue.claim(limit=64)
    acts = [
        lambda one: one.complete(b"v"),
        lambda one: one.complete(),
        lambda one: one.nack(delay=3),
        lambda one: one.nack(delay=0),
        lambda one: one.bury("no"),
        lambda one: one.release(),
        lambda one: one.cancel(),
        lambda one: one.complete(b"v", then=[NewTask(b"next", ttl=1e6)]),
    ]
    for n, lease in enumerate(leases[:48]):
        await acts[n % len(acts)](lease)
    await engine.complete_many([(lease, b"v") for lease in leases[48:]])
    return queue


@pytest.mark.parametrize("history", [0, 1_000_000])
async def test_acts_of_every_kind(history):
    async with in_memory(TickingClock(), limits=lodeq.Limits(history_s=history)) as engine:
        queue = await mixed(engine)
        for lease in await queue.claim(limit=20):
            await lease.nack(delay=0)  # some of them for the last time
        ready = await queue.list("ready", limit=8)
        for task in ready[:4]:
            await engine.cancel(task.id)
        dead = await queue.list("dead", limit=6)
        await queue.redrive([task.id for task in dead[:3]])
        assert (await engine.verify()).findings == ()


@pytest.mark.parametrize("history", [0, 1_000_000])
@pytest.mark.parametrize("how", ["claimed", "purged"])
async def test_a_task_whose_record_is_lost(how, history):
    async with in_memory(TickingClock(), limits=lodeq.Limits(history_s=history)) as engine:
        queue = engine.queue("mail")
        ids = [receipt.id for receipt in await queue.enqueue_many([NewTask(b"x")] * 6)]
        state = engine._state
        state.shards[0].store.write([(TASK + one, None) for one in ids])
        for shard_queue in state.find_tenant_queue(b"mail", b"").shard_queues:
            shard_queue.load(shard_queue.ready, 0, 0, 0, 0)
        if how == "claimed":
            with anyio.fail_after(5):
                assert await queue.claim(limit=6) == []
        else:
            assert await queue.purge() == 6
        status = {"claimed": "dead", "purged": "cancelled"}[how]
        assert [(await engine.result(one)).status for one in ids] == [status] * 6
        kinds = {finding.kind for finding in (await engine.verify()).findings}
        assert "expiry" not in kinds
