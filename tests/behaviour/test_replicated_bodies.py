"""Large payloads on replicas: whole in the log, moved out by each replica for itself."""

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support_behaviour import drain, payloads, settle, sound, until
from support_replication import Cluster, names_of_bodies, whole_rows

import lodeq
from lodeq.engine.records.keyspace import BODY, BODY_AT, BODY_AT_END, BODY_END, TASK
from lodeq.engine.store.rocks import RocksStore
from lodeq.errors import CommitUnknownError
from lodeq.segments.bodies import files as body_files

pytestmark = pytest.mark.anyio

LARGE = 5000


@asynccontextmanager
async def replicas(path, clock, durability="nosync", **least):
    """(cluster, engines by name): the first leads; each with its ``body_bytes_min``."""
    cluster = Cluster()
    async with AsyncExitStack() as stack:
        engines = {}
        for name, bytes_min in least.items():
            engine = lodeq.open(
                path / name,
                replicator=cluster.node(name),
                clock=clock,
                body_bytes_min=bytes_min,
                durability=durability,
                reaper=False,
            )
            engines[name] = await stack.enter_async_context(engine)
            engines[name]._state.held_bytes_max = 0  # nothing is claimed from memory
            runtime = engines[name]._runtime
            task, runtime._body_gc_task = runtime._body_gc_task, None
            task.cancel()  # it moves when it is told to
            await task.join()
        await cluster.elect(next(iter(least)))
        yield cluster, engines


async def level(cluster, *engines):
    """Until these have applied all there is: payloads are synced first."""
    last = len(cluster.logs[0])
    await until(
        lambda: all(one._state.shards[0].coalescer.applied.index == last for one in engines)
    )


async def same(cluster, *engines):
    await level(cluster, *engines)
    for engine in engines:
        await sound(engine)
    first, *others = [whole_rows(engine) for engine in engines]
    for other in others:
        assert other == first
    assert names_of_bodies(cluster.logs[0]) == []


def bodies(engine):
    """How many rows find bodies, and how many find their tasks."""
    store = engine._state.shards[0].store
    return len(store.scan(BODY, BODY_END, 9999)), len(store.scan(BODY_AT, BODY_AT_END, 9999))


def numbers(engine):
    return [file.number for file in engine._state.shards[0].bodies.files.files()]


async def collected(engine, clock):
    """Do what body GC does in half a minute of quiet."""
    gc, shard = engine._runtime.body_gc, engine._state.shards[0]
    shard.bodies.files.seal()
    shard.bodies.to_look.update(numbers(engine))
    for _ in range(2):
        step = asyncio.ensure_future(gc.step(shard))
        while not step.done():
            await clock.advance(1.0, turns=1)
        await step
        await clock.advance(20.0)


@pytest.mark.parametrize("durability", ["nosync", "fsync"])
async def test_each_replica_moves_payloads_out_by_itself(tmp_path, clock, durability):
    async with replicas(tmp_path, clock, durability, a=1000, b=None, c=100) as (cluster, engines):
        a, b, c = engines.values()
        given = [os.urandom(LARGE), b"small" * 50, b"tiny", {"text": "x" * LARGE}]
        queue = a.queue("q")
        for payload in given:
            await queue.enqueue(payload)
        await same(cluster, a, b, c)
        assert [bodies(one) for one in (a, b, c)] == [(2, 2), (0, 0), (3, 3)]
        for engine in (a, b, c):
            assert [task.payload for task in await engine.queue("q").list("ready")] == given
        held = await queue.claim(limit=3)
        assert payloads(held) == given[:3]
        await held[0].complete(keep=False)
        await held[1].nack(delay=0)
        await held[2].complete(then=[lodeq.NewTask(os.urandom(LARGE))])
        await same(cluster, a, b, c)
        await cluster.elect("c")
        left = await drain(c.queue("q"))
        assert len(left) == 3
        await same(cluster, a, b, c)
        assert [bodies(one) for one in (a, b, c)] == [(0, 0)] * 3
        for engine in (a, c):
            await collected(engine, clock)
            assert numbers(engine) == []
        assert names_of_bodies(cluster.logs[0]) == []


async def test_moving_payloads_is_no_entry_and_ends_are_not_undone(tmp_path, clock):
    async with replicas(tmp_path, clock, a=1000, b=1000) as (cluster, engines):
        a, b = engines.values()
        queue = a.queue("q")
        given = [b"%d" % n + os.urandom(LARGE) for n in range(6)]
        await queue.enqueue_many([lodeq.NewTask(one) for one in given])
        await level(cluster, a, b)
        leases = await queue.claim(limit=4, lease=3600)
        for lease in leases[:3]:
            await lease.complete(keep=False)
        await level(cluster, a, b)
        last = len(cluster.logs[0])
        for engine in (b, a):  # a follower, a leader
            gc = engine._runtime.body_gc
            sync = gc._sync

            async def acting(*args, sync=sync):
                """One ends between the copy and the move of its row."""
                await sync(*args)
                if leases[3].is_live:
                    await leases[3].complete(keep=False)
                    await level(cluster, a, b)

            gc._sync = acting
            await collected(engine, clock)
            assert len(numbers(engine)) == 1
            assert numbers(engine) != [1]
            assert bodies(engine) == (2, 2)
        assert len(cluster.logs[0]) == last + 1
        await same(cluster, a, b)
        assert payloads(await queue.claim(limit=9)) == given[4:]


async def test_a_move_takes_its_place_behind_what_is_committed(tmp_path, clock):
    """An entry that is applied while rows are moved finds them where they are by then."""
    async with replicas(tmp_path, clock, a=1000, b=1000) as (cluster, engines):
        a, b = engines.values()
        queue = a.queue("q")
        await queue.enqueue_many([lodeq.NewTask(os.urandom(LARGE)) for _ in range(4)])
        leases = await queue.claim(limit=4, lease=3600)
        await leases[0].complete(keep=False)
        await leases[1].complete(keep=False)
        await level(cluster, a, b)
        shard = b._state.shards[0]
        pause = shard.coalescer.pause_writes()
        await leases[2].complete(keep=False)  # b has it, and does not write it yet
        assert shard.coalescer.applied.index < len(cluster.logs[0])
        moved = asyncio.ensure_future(collected(b, clock))
        await settle(500)
        shard.coalescer.resume_writes(pause)
        await moved
        await level(cluster, a, b)
        assert bodies(b) == (1, 1)
        await same(cluster, a, b)


async def test_a_redrive_with_another_policy_has_the_whole_record(tmp_path, clock):
    async with replicas(tmp_path, clock, a=1000, b=100) as (cluster, engines):
        a, b = engines.values()
        await a.publish_functions([lodeq.PublishedFunction("q", "send", max_attempts=7)])
        queue = a.queue("q", max_attempts=1)
        payload = os.urandom(LARGE)
        receipt = await queue.enqueue(payload, headers={"lodeq.task": "send"})
        (lease,) = await queue.claim()
        await lease.bury(reason="bad")
        assert await queue.redrive(policy="current") == 1
        puts = [
            value
            for entry in cluster.logs[0]
            for key, value in entry.ops
            if key == TASK + receipt.id and value is not None
        ]
        assert len(puts) == 2
        assert all(payload in value for value in puts)
        await same(cluster, a, b)
        assert [bodies(one) for one in (a, b)] == [(1, 1), (1, 1)]
        await cluster.elect("b")
        (lease,) = await b.queue("q").claim()
        assert lease.payload == payload


async def test_a_checkpoint_of_a_replica_has_its_payloads(tmp_path, clock):
    async with replicas(tmp_path, clock, a=1000, b=1000) as (cluster, engines):
        a, b = engines.values()
        given = [b"%d" % n + os.urandom(LARGE) for n in range(3)]
        for payload in given[:2]:
            await a.queue("q").enqueue(payload)
        await level(cluster, a, b)
        await b.checkpoint(tmp_path / "copy")  # of a follower
        await a.queue("q").enqueue(given[2])
        lodeq.restore(tmp_path / "copy", tmp_path / "c")
        async with lodeq.open(
            tmp_path / "c", replicator=cluster.node("c"), clock=clock, body_bytes_min=None
        ) as c:
            cluster.nodes["c"].catch_up()
            await same(cluster, a, b, c)
            assert bodies(c) == (2, 2)
            await cluster.elect("c")
            leases = await c.queue("q").claim(limit=9)
            assert payloads(leases) == given
            await leases[0].complete(keep=False)
            await same(cluster, a, b, c)
        cluster.nodes["c"].replica = None
    lodeq.detach(tmp_path / "c")  # a store of its own: its ends take their bodies with them
    async with lodeq.open(tmp_path / "c", clock=clock) as engine:
        await sound(engine)
        assert sorted(await drain(engine.queue("q"))) == sorted(given[1:])
        await sound(engine)
        assert bodies(engine) == (0, 0)


async def test_rows_of_a_replica_wait_for_their_payloads_in_both_modes(
    tmp_path, clock, monkeypatch
):
    """Where that sync fails, nothing is written."""
    did, is_broken = [], False
    sync, write = body_files.BodyFiles.sync, RocksStore.write

    def synced(files):
        if is_broken:
            raise OSError(5, "the disk fails")
        sync(files)
        did.append("sync")

    def written(store, ops):
        did.append("rows" if any(key[:2] == BODY for key, _ in ops) else "others")
        write(store, ops)

    monkeypatch.setattr(body_files.BodyFiles, "sync", synced)
    monkeypatch.setattr(RocksStore, "write", written)
    async with replicas(tmp_path, clock, a=1000, b=1000) as (cluster, engines):
        a, b = engines.values()
        did.clear()
        await a.queue("q").enqueue(os.urandom(LARGE))
        await level(cluster, a, b)
        assert did.count("rows") == 2
        assert did.index("rows") > did.index("sync")
        is_broken = True
        did.clear()
        with pytest.raises(CommitUnknownError):
            await a.queue("q").enqueue(os.urandom(LARGE))
        assert "rows" not in did
