"""Claims of a backlog read ahead: few reads, a bound on what is held, and no stale record."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from support_behaviour import StillClock, in_memory
from support_loop import on_loop

import lodeq
from lodeq import Engine, NewTask
from lodeq.engine.records.keyspace import TASK
from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.background.reaper import forget_idle_tenant_queues
from lodeq.repository.state import engine_state

pytestmark = pytest.mark.anyio


def held(engine: Engine) -> int:
    """The bytes of all records in ready caches, counted one by one."""
    rows = [
        row
        for queue_state in engine._state.queue_states.values()
        for tenant_queue in queue_state.tenant_queues.values()
        for shard_queue in tenant_queue.shard_queues
        if shard_queue is not None
        for window in shard_queue.ready_caches
        if window is not None
        for row in window.rows
    ]
    return sum(row[5] for row in rows if row[6] is not None)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each read of a store finds or asks for."""
    sizes: list[int] = []
    for kind in (MemoryStore, RocksStore):

        def scanned(
            self: Any, lower: bytes, upper: bytes, limit: int, scan: Any = kind.scan_part
        ) -> Any:
            found = scan(self, lower, upper, limit)
            if lower.startswith(TASK):
                sizes.append(len(found[0]))
            return found

        def got(self: Any, keys: Any, multi_get: Any = kind.multi_get) -> Any:
            if keys and keys[0].startswith(TASK):
                sizes.append(len(keys))
            return multi_get(self, keys)

        monkeypatch.setattr(kind, "scan_part", scanned)
        monkeypatch.setattr(kind, "multi_get", got)
    return sizes


def forget_records(engine: Engine) -> None:
    """As after a restart: rows are known by their counters alone."""
    state = engine._state
    for queue_state in state.queue_states.values():
        for tenant_queue in queue_state.tenant_queues.values():
            for b in tenant_queue.shard_queues:
                if b is not None:
                    b.load(b.ready, b.delayed, b.leased, b.dead, b.results)
    state.held_bytes = 0


async def test_a_drain_by_single_claims_takes_few_reads(
    clock: StillClock, sizes: list[int]
) -> None:
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(n) for n in range(1000)])
        forget_records(engine)
        sizes.clear()
        for n in range(1000):
            (lease,) = await queue.claim()
            assert lease.payload == n
            await lease.complete()
            assert engine._state.held_bytes == held(engine)
        assert len(sizes) < 50
        assert sizes[0] < 40, "a claim alone reads a few"
        assert engine._state.held_bytes == 0


@pytest.mark.parametrize("priorities", [(5,), (0, 5, 9)])
async def test_priorities_and_tenants_read_ahead_as_well(
    clock: StillClock, sizes: list[int], priorities: tuple[int, ...]
) -> None:
    async with in_memory(clock) as engine:
        tenants = [engine.queue("mail", tenant=f"t{n}") for n in range(5)]
        for tenant in tenants:
            await tenant.enqueue_many(
                [NewTask(n, priority=priorities[n % len(priorities)]) for n in range(90)]
            )
        forget_records(engine)
        sizes.clear()
        every = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
        taken = 0
        while leases := await every.claim():
            taken += len(leases)
            await leases[0].complete()
            assert engine._state.held_bytes == held(engine)
        assert taken == 450
        assert len(sizes) < 100


@pytest.mark.slow
async def test_what_is_held_is_bounded_over_many_tenant_queues(
    clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_state, "HELD_BYTES_MAX", 60_000)
    async with in_memory(clock) as engine:
        tenant_queues = [engine.queue("mail", tenant=f"t{n}") for n in range(60)]
        for tenant_queue in tenant_queues:
            await tenant_queue.enqueue_many([NewTask(bytes(100)) for _ in range(40)])
        forget_records(engine)
        most = 0
        for _ in range(40):
            for tenant_queue in tenant_queues:
                (lease,) = await tenant_queue.claim()
                await lease.complete()
                most = max(most, held(engine))
                assert engine._state.held_bytes == held(engine)
        assert 20_000 < most < 60_000 // 3 * 4 + 2000
        assert len(engine._state.ahead) <= 60


async def test_cancelled_and_moved_tasks_take_their_records_along(clock: StillClock) -> None:
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        receipts = await queue.enqueue_many([NewTask(n, dedup_key=f"k{n}") for n in range(60)])
        forget_records(engine)
        await queue.claim()  # reads ahead
        assert engine._state.held_bytes > 0
        for receipt in receipts[1:10]:
            await engine.cancel(receipt.id)
        await queue.enqueue("new", dedup_key="k11", on_conflict="replace")
        assert engine._state.held_bytes == held(engine)
        left = [lease.payload for lease in await queue.claim(limit=100)]
        assert left == [10, *range(12, 60), "new"]
        assert engine._state.held_bytes == held(engine) == 0


@pytest.mark.usefixtures("no_history")
async def test_nothing_is_kept_of_tenant_queues_that_are_dropped(clock: StillClock) -> None:
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(n) for n in range(60)])
        forget_records(engine)
        while leases := await queue.claim():
            await leases[0].complete(keep=False)
        assert len(engine._state.ahead) == 1
        for _ in forget_idle_tenant_queues(engine._state):
            pass
        assert not engine._state.queue_states
        assert not engine._state.ahead


async def test_damage_ahead_costs_the_damaged_task_alone(clock: StillClock) -> None:
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        receipts = await queue.enqueue_many([NewTask(n) for n in range(30)])
        store = engine._state.shards[0].store
        key = TASK + receipts[7].id
        record = store.get(key) or b""
        store.write([(key, record[:-1] + bytes([record[-1] ^ 1]))])
        forget_records(engine)
        got = []
        while leases := await queue.claim():
            got.append(leases[0].payload)
        assert got == [n for n in range(30) if n != 7]
        assert (await queue.stats()).dead == 1
        assert engine._state.held_bytes == 0


@on_loop
async def test_payloads_in_body_files_come_whole(tmp_path: Path) -> None:
    payloads = [os.urandom(20_000 if n % 3 else 20) for n in range(30)]
    async with lodeq.open(tmp_path / "jobs") as engine:
        await engine.queue("mail").enqueue_many([NewTask(payload) for payload in payloads])
    async with lodeq.open(tmp_path / "jobs") as engine:
        queue = engine.queue("mail")
        for payload in payloads:
            (lease,) = await queue.claim()
            assert lease.payload == payload
            await lease.complete(b"ok")
        assert engine._state.held_bytes == held(engine) == 0


@on_loop
async def test_a_burst_is_kept_in_memory_whole(tmp_path: Path, sizes: list[int]) -> None:
    async with lodeq.open(tmp_path / "jobs") as engine:
        queue = engine.queue("mail")
        sizes.clear()

        async def produce() -> None:
            for n in range(50):
                await queue.enqueue(n)

        await asyncio.gather(*(produce() for _ in range(100)))
        for _ in range(5000):
            (lease,) = await queue.claim()
            await lease.complete()
        assert sizes == []
        assert engine._state.held_bytes == 0
