"""Every transition tells exactly one event, in the batch that makes it, and nothing else does."""

from __future__ import annotations

import asyncio

import pytest
from support_behaviour import START_US, StillClock, in_memory, settle, sound
from support_loop import on_loop
from support_states import Row, Walk, table

import lodeq
from lodeq.coalescer.event_buffer import EventBuffer
from lodeq.engine.records.keyspace import EVENTS, EVENTS_END, decode_events_key
from lodeq.segments.lifecycle import Event, EventKind, events
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing

# By what a row of docs/state_machine.md says; nothing for what is no transition of a task.
KINDS = {
    "enqueue": ("ENQUEUED", ""),
    "enqueue with delay": ("ENQUEUED", ""),
    "open a workflow": ("ENQUEUED", ""),
    "fire after a failure": ("CANCELLED", "1 of the 1 tasks it waited for did not complete"),
    "redrive of its workflow": ("REDRIVEN", ""),
    "claim": ("CLAIMED", ""),
    "claim of a damaged record": ("DIED", "record missing or damaged"),
    "complete": ("COMPLETED", ""),
    "nack with delay 0": ("NACKED", ""),
    "nack with delay": ("NACKED", ""),
    "nack of the last attempt": ("DIED", "nacked"),
    "nack past its TTL": ("EXPIRED", "ttl"),
    "release": ("RELEASED", ""),
    "release with delay": ("RELEASED", ""),
    "bury": ("DIED", "buried"),
    "reap": ("NACKED", "lease expired"),
    "reap of the last attempt": ("DIED", "lease expired"),
    "cancel": ("CANCELLED", "cancelled"),
    "cancel of the lease": ("CANCELLED", "cancelled"),
    "purge": ("CANCELLED", "purged"),
    "replace": ("CANCELLED", "replaced by"),
    "TTL": ("EXPIRED", "ttl"),
    "redrive": ("REDRIVEN", ""),
    "complete of a dead letter": ("COMPLETED", ""),
    "redrive of a dead letter": ("REDRIVEN", ""),
    "cancel of a dead letter": ("CANCELLED", "cancelled"),
    "dead retention": ("FORGOTTEN", "retention"),
}


def listen(engine: lodeq.Engine) -> None:
    """From here on the shards leave rows, as with a journal."""
    for shard in engine._state.shards:
        shard.coalescer.events = EventBuffer(shard.index)


def told(engine: lodeq.Engine) -> list[Event]:
    """All that the rows of an engine say, each compared with its key."""
    out: list[Event] = []
    for shard in engine._state.shards:
        for key, value in shard.store.scan(EVENTS, EVENTS_END, 10_000):
            for event in events(value):
                assert isinstance(event, Event)
                assert event.shard == shard.index
                assert event.incarnation << 40 | event.number == decode_events_key(key)
                out.append(event)
    return out


@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row[0]}, {row[1]}")
@on_loop
async def test_a_transition_is_one_event(row: Row) -> None:
    start, by, _, _, _ = row
    clock = ManualClock()
    async with open_testing(clock=clock) as engine:
        listen(engine)
        walk = Walk(engine, clock, retention=1000)
        await walk.bring_to(start, by)
        await settle()
        if by == "claim of a damaged record":  # the walk claims and releases it first
            await walk.claim()
            await walk.lease.release()
        before = len([event for event in told(engine) if event.task_id == walk.id])
        old = walk.id
        await walk.move(by)
        await settle()
        mine = [event for event in told(engine) if event.task_id in (old, walk.id)][before:]
        if start == "–":
            mine = [event for event in mine if event.task_id == walk.id]
        kind, reason = KINDS.get(by, (None, ""))
        if start == "dead" and by in ("purge", "replace", "delete"):
            kind = "FORGOTTEN"
        if by == "claim of a damaged record":
            mine = mine[2:]
        assert [event.kind.name for event in mine] == ([kind] if kind else [])
        for event in mine:
            assert event.reason.startswith(reason)
            assert (event.queue, event.tenant, event.priority) == ("mail", "", 5)
            task = await engine.get(event.task_id)
            assert task is None or task.attempts == event.attempts
        if by != "claim of a damaged record":
            assert (await engine.verify()).ok


@on_loop
async def test_what_an_event_says() -> None:
    async with in_memory() as engine:
        listen(engine)
        mail = engine.queue("mail", tenant="acme", max_attempts=3)
        first = (await mail.enqueue(b"a", priority=7)).id
        (lease,) = await mail.claim(worker="w1")
        await lease.nack(delay=0, reason="später")
        (lease,) = await mail.claim(worker="w2")
        await lease.complete(b"ok", then=[lodeq.NewTask(b"b", queue="audit", priority=2)])
        await settle()
        found = told(engine)
        common = {"queue": "mail", "tenant": "acme", "priority": 7, "task_id": first}
        assert [event.kind.name for event in found] == [
            "ENQUEUED",
            "CLAIMED",
            "NACKED",
            "CLAIMED",
            "COMPLETED",
            "ENQUEUED",
        ]
        for event in found[:5]:
            assert {name: getattr(event, name) for name in common} == common
            assert (event.time_us, event.shard, event.incarnation) == (START_US, 0, 1)
        assert [event.attempts for event in found] == [0, 1, 1, 2, 2, 0]
        assert [event.worker for event in found] == ["", "w1", "", "w2", "w2", ""]
        assert found[2].reason == "später"
        assert (found[5].queue, found[5].tenant, found[5].priority) == ("audit", "acme", 2)
        assert found[4].number == found[5].number  # one batch
        await sound(engine)


@on_loop
async def test_batches_and_single_calls_tell_the_same() -> None:
    async with in_memory(shards=2) as engine:
        listen(engine)
        mail = engine.queue("mail")
        tasks = [lodeq.NewTask(b"x", priority=i % 3) for i in range(20)]
        tasks += [lodeq.NewTask(b"x")] * 20
        receipts = await mail.enqueue_many(tasks)
        receipts += await mail.enqueue_many([lodeq.NewTask(b"y")] * 20)
        receipts += await asyncio.gather(*(mail.enqueue(b"z") for _ in range(20)))
        ids = [receipt.id for receipt in receipts]
        leases = await mail.claim(limit=70, worker="w")
        while one := await mail.claim(worker="w"):
            leases += one
        await engine.complete_many([(lease, b"") for lease in leases[:40]])
        await asyncio.gather(*(lease.complete(b"") for lease in leases[40:]))
        await settle()
        found = told(engine)
        for kind in (EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.COMPLETED):
            of_kind = [event for event in found if event.kind is kind]
            assert sorted(event.task_id for event in of_kind) == sorted(ids)
            assert all(event.worker == ("w" if kind > 1 else "") for event in of_kind)
        priorities = dict(zip(ids, [task.priority for task in tasks] + [5] * 40, strict=True))
        assert all(event.priority == priorities[event.task_id] for event in found)
        await sound(engine)


@on_loop
async def test_in_one_tick_they_come_in_order() -> None:
    """A task that is enqueued, and claimed by somebody who waited, in one group."""
    async with in_memory() as engine:
        listen(engine)
        mail = engine.queue("mail")
        waiting = asyncio.create_task(mail.claim(wait=60))
        await settle()
        await mail.enqueue(b"x")
        (lease,) = await waiting
        found = told(engine)
        assert [event.kind.name for event in found] == ["ENQUEUED", "CLAIMED"]
        assert len({event.number for event in found}) == 1
        await lease.complete()


@on_loop
async def test_a_cancelled_claim_is_given_back() -> None:
    async with in_memory() as engine:
        listen(engine)
        mail = engine.queue("mail")
        await mail.enqueue(b"x")
        claim = asyncio.create_task(mail.claim(limit=2))
        await asyncio.sleep(0)
        claim.cancel()
        await asyncio.gather(claim, return_exceptions=True)
        await settle()
        assert [event.kind.name for event in told(engine)] == ["ENQUEUED", "CLAIMED", "RELEASED"]


@on_loop
async def test_what_changes_no_task_tells_nothing() -> None:
    async with in_memory() as engine:
        listen(engine)
        mail = engine.queue("mail")
        await mail.enqueue(b"x", dedup_key="k")
        before = told(engine)
        assert (await mail.enqueue(b"x", dedup_key="k")).duplicate
        await mail.pause()
        await mail.resume()
        (lease,) = await mail.claim(exported=True)
        await lease.heartbeat(100)
        await settle()
        assert [event.kind.name for event in told(engine)] == ["ENQUEUED", "CLAIMED"]
        assert told(engine)[:1] == before


@on_loop
async def test_without_a_journal_there_are_no_rows() -> None:
    async with in_memory() as engine:
        mail = engine.queue("mail")
        await mail.enqueue_many([lodeq.NewTask(b"x")] * 3)
        for lease in await mail.claim(limit=3):
            await lease.complete()
        assert told(engine) == []


@on_loop
async def test_a_claim_that_meets_an_expired_task_tells_so() -> None:
    clock = StillClock()
    async with in_memory(clock, reaper=False) as engine:
        listen(engine)
        mail = engine.queue("mail")
        await mail.enqueue_many([lodeq.NewTask(b"x", ttl=1), lodeq.NewTask(b"y")])
        clock.jump(2)
        (lease,) = await mail.claim(limit=2)
        found = told(engine)
        names = [event.kind.name for event in found]
        assert names == ["ENQUEUED", "ENQUEUED", "EXPIRED", "CLAIMED"]
        assert found[2].reason == "ttl"
        assert found[3].task_id == lease.task_id


@on_loop
async def test_a_purge_of_what_cannot_be_read_is_told() -> None:
    async with in_memory() as engine:
        listen(engine)
        mail = engine.queue("mail")
        task_id = (await mail.enqueue(b"x", priority=8, delay=60)).id
        engine._state.shards[0].store.write([(b"t/" + task_id, b"damaged")])
        assert await mail.purge() == 1
        last = told(engine)[-1]
        assert (last.kind.name, last.task_id, last.priority) == ("CANCELLED", task_id, 8)
        assert last.reason == "purged"


@on_loop
async def test_a_last_attempt_past_its_ttl_is_one_event() -> None:
    clock = StillClock()
    async with in_memory(clock) as engine:
        listen(engine)
        mail = engine.queue("mail", max_attempts=1, lease=30)
        await mail.enqueue(b"x", ttl=5)
        await mail.claim()
        await clock.advance(40)
        assert [event.kind.name for event in told(engine)] == ["ENQUEUED", "CLAIMED", "EXPIRED"]
