"""Claims over damaged rows and failing reads: nothing is lost, doubled, or left waiting."""

import asyncio

import pytest
from support_behaviour import in_memory, settle, sound
from support_faults import faulty

import lodeq
from lodeq import (
    CommitUnknownError,
    CorruptionError,
    NewTask,
    StorageError,
    StoragePoisonedError,
)
from lodeq.engine.records.keyspace import GHOST, ready_prefix, shard_queue_prefix
from lodeq.engine.store.memory import MemoryStore
from lodeq.repository.state.caches.ready_cache import ReadyCache
from lodeq.repository.tasks import lease_grant
from lodeq.repository.tasks.claim_order import pick, refill

pytestmark = pytest.mark.anyio


def _damage_first_row(state, priority=5):
    """The first index row on disk is unreadable, and nothing is held in memory."""
    shard_queue = state.find_tenant_queue(b"mail", b"").shard_queues[0]
    store = state.shards[0].store
    prefix = ready_prefix(shard_queue_prefix(b"mail", b""), priority)
    key = store.scan(prefix, prefix + b"\xff" * 25, 1)[0][0]
    store.write([(key, b"junk")])
    state.held_bytes = 0
    shard_queue.load(
        shard_queue.ready,
        shard_queue.delayed,
        shard_queue.leased,
        shard_queue.dead,
        shard_queue.results,
    )
    return shard_queue


@pytest.mark.parametrize("limit", [1, 3, 8])
async def test_a_damaged_index_row_neither_doubles_nor_hangs_a_claim(clock, limit):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(i) for i in range(6)])
        shard_queue = _damage_first_row(engine._state)
        got = []
        while leases := await asyncio.wait_for(queue.claim(limit=limit), 5):
            got += leases
        assert [lease.payload for lease in got] == [1, 2, 3, 4, 5]
        assert shard_queue.ready == 0
        assert shard_queue.leased == 5
        told = len(engine._state.anomalies)
        assert await queue.claim(limit=limit) == []  # and it does not rescan for ever
        assert len(engine._state.anomalies) == told
        kinds = {finding.kind for finding in (await engine.verify()).findings}
        assert "counters" not in kinds
        await asyncio.wait_for(queue.enqueue(b"more"), 5)


async def test_a_claim_without_probes_left_ends_at_the_end_of_a_known_range(clock, monkeypatch):
    """Another window has used them up, and behind that range there is one that is not known."""
    async with in_memory(clock) as engine:
        queue, state = engine.queue("mail"), engine._state
        await queue.enqueue_many([NewTask(n) for n in range(600)])
        shard_queue = state.find_tenant_queue(b"mail", b"").shard_queues[0]
        prefix = shard_queue.ready_prefixes[4]
        keys = [key for key, _ in state.shards[0].store.scan(prefix, prefix + b"\xff", 600)]
        damage = [(keys[100], keys[139] + b"\0"), (keys[300], keys[339] + b"\0")]
        scan, calls = MemoryStore.scan, 0

        def failing(self, lower, upper, limit):
            nonlocal calls
            calls += 1
            assert calls < 1000, "it goes on for ever"
            rows = scan(self, lower, upper, limit)
            last = rows[-1][0] if len(rows) == limit else upper
            if any(low <= last and lower < high and low < upper for low, high in damage):
                raise CorruptionError("block checksum mismatch")
            return rows

        monkeypatch.setattr(MemoryStore, "scan", failing)
        overlay, upper = state.shards[0].overlay, prefix + b"\xff"
        overlay.report = lambda *_: None  # nobody looks for what it hides
        at = prefix
        for _ in range(3):
            _, at = overlay.scan_readable(at, upper, 50)
        assert len(overlay.unreadable) == 1
        window = ReadyCache(is_complete=False, edge=keys[99])
        while overlay.scan_readable(keys[298], upper, 64, renew=False)[0]:
            pass  # until no probes are left
        calls = 0
        refill(state, shard_queue, 4, window)
        assert not window.rows
        assert not window.is_complete
        overlay.unreadable.renew()
        refill(state, shard_queue, 4, window)  # the next claim goes on
        assert [row[0] for row in window.rows][:50] == keys[140:190]


@pytest.mark.parametrize("off", [-2, 3])
async def test_a_counter_that_is_wrong_never_goes_below_zero(clock, off):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(i) for i in range(5)])
        shard_queue = engine._state.find_tenant_queue(b"mail", b"").shard_queues[0]
        shard_queue.ready += off
        got = [lease.payload for lease in await asyncio.wait_for(queue.claim(limit=8), 5)]
        assert got == list(range(min(5, 5 + off)))
        assert await asyncio.wait_for(queue.claim(limit=8), 5) == []
        assert shard_queue.ready == 0


async def test_a_doubtful_tenant_gets_its_turn_in_the_next_claim(clock):
    async with in_memory(clock) as engine:
        for tenant in ("a", "b", "d"):
            await engine.queue("mail", tenant=tenant).enqueue_many([NewTask(tenant)] * 6)
        state = engine._state
        queue_state = state.queue_states[b"mail"]
        shard_queue = queue_state.tenant_queues[b"d"].shard_queues[0]
        for row in shard_queue.ready_caches[4].rows:
            state.held_bytes -= row[5]
        shard_queue.ready_caches[4], shard_queue.occupied = None, 0  # the rows are on disk only
        for tenant in (b"a", b"d"):
            queue_state.turns.move_to_end(tenant)  # b, a, d: d's turn is never the first
        every = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
        await every.claim(limit=2)
        got = [lease.payload for _ in range(2) for lease in await every.claim(limit=2)]
        assert "d" in got


def no_row_can_hold_its_counters(engine):
    engine._state.queue_states[b"mail"].tenant_queues[b""].shard_queues[0].results = -1


@pytest.mark.parametrize("call", ["enqueue", "claim", "waits"])
async def test_a_group_that_cannot_be_sealed_poisons_and_tells_everybody(clock, call):
    engine = in_memory(clock)
    async with engine as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        waiting = asyncio.create_task(engine.queue("other").claim(wait=100))
        await settle()

        no_row_can_hold_its_counters(engine)
        calls = {
            "enqueue": lambda: queue.enqueue(b"y"),
            "claim": queue.claim,
            "waits": lambda: asyncio.gather(*(queue.enqueue(b"z", priority=1) for _ in range(200))),
        }
        with pytest.raises((StoragePoisonedError, CommitUnknownError)):
            await asyncio.wait_for(calls[call](), 5)
        with pytest.raises(StoragePoisonedError):
            await asyncio.wait_for(waiting, 5)
        with pytest.raises(StoragePoisonedError):
            await asyncio.wait_for(queue.enqueue(b"z"), 5)
        assert any("poisoned" in reason for reason in (await engine.health()).reasons)
        await asyncio.wait_for(engine.close(), 5)


async def test_a_lone_caller_whose_group_cannot_be_sealed_hears_that_nothing_was_written(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        while not engine._state.shards[0].coalescer.inline_left:
            await queue.enqueue(b"x")

        no_row_can_hold_its_counters(engine)
        with pytest.raises(StoragePoisonedError, match="nothing was written"):
            await asyncio.wait_for(queue.enqueue(b"y"), 5)


async def _expired_between_good(queue, clock):
    await queue.enqueue(b"first", priority=9)
    await queue.enqueue(b"ttl", ttl=5, dedup_key="k", priority=8)
    await queue.enqueue_many([NewTask(b"good%d" % i) for i in range(3)])
    clock.jump(10)


async def test_a_damaged_ghost_costs_a_claim_nothing(clock):
    async with in_memory(clock, reaper=False) as engine:
        queue, store = engine.queue("mail"), engine._state.shards[0].store
        await _expired_between_good(queue, clock)
        store.write([(store.scan(GHOST, GHOST + b"\xff" * 17, 1)[0][0], b"junk")])
        got = [lease.payload for lease in await queue.claim(limit=10)]
        assert got == [b"first", b"good0", b"good1", b"good2"]
        stats = await queue.stats()
        assert (stats.ready, stats.leased, stats.results) == (0, 4, 1)
        assert any("ghost" in text for text in engine._state.anomalies)
        assert {f.kind for f in (await engine.verify()).findings} == {"damaged"}


async def test_a_read_that_fails_in_the_middle_of_a_claim_loses_nothing():
    async with faulty(reaper=False) as rig:
        await _expired_between_good(rig.queue, rig.clock)
        rig.store.read_error = StorageError("the disk is gone")
        with pytest.raises(StorageError):
            await rig.queue.claim(limit=10)
        rig.store.read_error = None
        stats = await rig.queue.stats()
        assert (stats.ready, stats.leased, len(rig.state.leases)) == (5, 0, 0)
        got = await rig.queue.claim(limit=10)
        assert [x.payload for x in got] == [b"first", b"good0", b"good1", b"good2"]
        await sound(rig.engine)


async def test_a_waiter_of_all_tenants_outlasts_a_crowd_of_expired_tasks(clock):
    async with in_memory(clock, reaper=False) as engine:
        queue = engine.queue("mail", tenant="t")
        await queue.pause()
        await queue.enqueue_many([NewTask(b"old", ttl=0.2, priority=9) for _ in range(40)])
        await queue.enqueue(b"good")
        every = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
        waiting = asyncio.create_task(every.claim(wait=30))
        await settle()
        clock.jump(0.5)
        await queue.resume()
        await settle()
        assert waiting.done()
        assert [lease.payload for lease in waiting.result()] == [b"good"]
        await sound(engine)


async def test_what_is_picked_can_be_put_back_when_its_counter_was_wrong(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(i) for i in range(4)])
        state = engine._state
        _damage_first_row(state)
        request = lodeq.repository.state.long_polls.ClaimRequest(
            [(b"mail", b"")], limit=8, lease_s=1.0, worker=b""
        )
        picked = pick(state, request)
        assert len({row[0] for _, row in picked}) == len(picked) == 3
        lodeq.repository.tasks.claim_order.put_back_picked(state, picked)
        assert len(await queue.claim(limit=8)) == 3


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_backlog_on_disk_is_delivered_whole_however_its_ids_lie(clock, monkeypatch, shards):
    monkeypatch.setattr(
        "lodeq.repository.state.engine_state.HELD_BYTES_MAX", 0
    )  # bodies from the store
    async with in_memory(clock, shards=shards) as engine:
        queue, other = engine.queue("mail"), engine.queue("other")
        sent = []
        for n in range(40):  # side by side, scattered, and among the tasks of another queue
            sent += [n, f"{n} alone"]
            await queue.enqueue_many([NewTask(n)] * 3)
            await other.enqueue_many([NewTask(b"x" * 50) for _ in range(n)])
            await queue.enqueue(f"{n} alone", shard_key=str(n))
        found = []
        while leases := await queue.claim(limit=32):
            found += [lease.payload for lease in leases]
        assert sorted(map(str, set(found))) == sorted(map(str, sent))
        assert len(found) == 40 * 4
        await sound(engine)


async def test_everybody_who_waits_hears_why_what_is_ready_cannot_be_read():
    async with faulty() as rig:
        rig.state.held_bytes_max = 0  # records from the store
        await rig.queue.enqueue(b"x", delay=1)
        waiting = [asyncio.ensure_future(rig.queue.claim(wait=60)) for _ in range(2)]
        await settle()
        error = rig.store.read_error = StorageError("the disk said no")
        await rig.clock.advance(2)
        rig.store.read_error = None
        assert [one.done() and one.exception() for one in waiting] == [error, error]
        (lease,) = await rig.queue.claim()
        assert lease.payload == b"x"
        await sound(rig.engine)


@pytest.mark.interpreted
@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_claim_of_one_that_cannot_be_granted_leaves_the_task_in_line(
    clock, monkeypatch, is_waiting
):
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")

        def fails(*_):
            raise MemoryError

        if is_waiting:
            call = asyncio.ensure_future(queue.claim_one(wait=60))
            await settle()
        monkeypatch.setattr(lease_grant, "checksum", fails)
        await queue.enqueue(b"x")
        if not is_waiting:
            with pytest.raises(MemoryError):
                await queue.claim_one()
        monkeypatch.undo()
        assert (await queue.stats()).ready == 1
        await queue.enqueue(b"y")
        lease = await (call if is_waiting else queue.claim_one())
        assert lease.payload == b"x"
        assert [left.payload for left in await queue.claim(limit=9)] == [b"y"]
        await sound(engine)
    assert len(reports) == is_waiting


async def test_a_dedup_entry_that_cannot_be_read_leaves_the_completed_task_whole(
    clock, monkeypatch
):
    """Of a store that has been upgraded: whose entry it is decides a read."""
    async with in_memory(clock) as engine:
        queue, (shard,) = engine.queue("mail"), engine._state.shards
        await queue.enqueue(b"1", dedup_key="k")
        (lease,) = await queue.claim()

        def unreadable(*_):
            raise CorruptionError("block checksum mismatch")

        with monkeypatch.context() as patch:
            patch.setattr("lodeq.repository.state.rows.dedup_entries.is_old_entry", unreadable)
            shard.old_ghosts = 1
            with pytest.raises(CorruptionError):
                await lease.complete(b"ok")
            shard.old_ghosts = 0
        await lease.complete(b"ok")
        assert (await engine.result(lease.task_id)).value == b"ok"
        assert (await engine.verify()).ok
