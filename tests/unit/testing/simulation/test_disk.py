"""The simulated disk keeps what a real one would, and the world around it repeats."""

import asyncio
import itertools

import pytest

import lodeq
from lodeq.engine.records.keyspace import RING
from lodeq.engine.runtime.ids import seeded
from lodeq.errors import (
    CommitUnknownError,
    RecoveryRefusedError,
    StorageError,
    StorageFullError,
    StoreStalledError,
)
from lodeq.testing.simulation.disk import SimDisk, SimStore
from lodeq.testing.simulation.loop import SimLoop, SimTime
from lodeq.testing.simulation.world import Simulation


def store_of(seed="disk", **faults):
    disk = SimDisk(1, seeded(seed))
    for name, rate in faults.items():
        setattr(disk.faults, name, rate)
    store = SimStore(disk, 0, SimLoop(SimTime(), seeded("loop")))
    store.is_opening = False
    return disk, store


def again(disk):
    return SimStore(disk, 0, SimLoop(SimTime(), seeded("next")))


def sync(store):
    """What the sync was told, once the thread had its turn."""
    told = []
    store.start_sync(told.append)
    store._work()
    return told[0]


def put(store, *names):
    for name in names:
        store.write([(name.encode(), b"v"), (b"also-" + name.encode(), b"v")])


def keys(store):
    return [key.decode() for key, _ in store.scan(b"", b"\xff", 99)]


def test_a_kill_keeps_every_write():
    disk, store = store_of()
    put(store, "a", "b")
    disk.kill()
    assert keys(again(disk)) == ["a", "also-a", "also-b", "b"]


def test_a_power_cut_keeps_what_was_synced_and_whole_batches_of_the_rest():
    survivors = set()
    for n in range(60):
        disk, store = store_of(f"disk {n}")
        put(store, "a")
        assert sync(store) is None
        put(store, "b", "c")
        disk.cut_power()
        left = frozenset(keys(again(disk)))
        assert {"a", "also-a"} <= left
        assert all((f"also-{name}" in left) == (name in left) for name in "bc")
        survivors.add(left - {"a", "also-a", "also-b", "also-c"})
    assert survivors == {frozenset(x) for x in ("", "b", "c", "bc")}  # not only prefixes


def test_a_sync_covers_what_was_written_before_it_started():
    for n in range(20):
        disk, store = store_of(f"disk {n}")
        put(store, "a")
        told = []
        store.start_sync(told.append)
        put(store, "b")
        store._work()
        assert told == [None]
        assert disk.platters[0].rows.keys() == {b"a", b"also-a"}


def test_a_failed_sync_makes_nothing_durable_and_a_second_one_lies():
    disk, store = store_of(sync_error=1.0)
    put(store, "a")
    assert isinstance(sync(store), StorageError)
    assert sync(store) is None
    assert not disk.platters[0].rows
    with pytest.raises(CommitUnknownError):
        put(store, "b")


def test_a_failed_write_is_there_or_not_and_the_last():
    there = set()
    for n in range(20):
        disk, store = store_of(f"disk {n}", write_error=1.0)
        with pytest.raises(CommitUnknownError):
            put(store, "a")
        assert store.get(b"a") is None
        with pytest.raises(CommitUnknownError):
            put(store, "b")
        disk.kill()
        there.add(tuple(keys(again(disk))))
    assert there == {(), ("a", "also-a")}


@pytest.mark.parametrize(
    ("fault", "error"), [("stall", StoreStalledError), ("full", StorageFullError)]
)
def test_a_refusal_lasts_and_heals(fault, error):
    disk, store = store_of(**{fault: 1.0})
    with pytest.raises(error):
        put(store, "a")
    setattr(disk.faults, fault, 0.0)
    with pytest.raises(error):
        put(store, "a")
    store._loop.pause(disk.faults.refuse_s)
    put(store, "a")
    assert keys(store) == ["a", "also-a"]


def test_a_read_error_is_one_of_ours():
    _, store = store_of(read_error=1.0)
    with pytest.raises(StorageError):
        store.get(b"a")


def test_a_world_goes_on_where_its_processes_died():
    told = []
    world = Simulation(3, shards=2, durability="fsync", emit=told.append)
    seen = []

    async def life(engine):
        queue = engine.queue("jobs")
        seen.append((await queue.stats()).ready)
        await queue.enqueue_many([lodeq.NewTask(n) for n in range(5)])
        for _ in itertools.count():
            await asyncio.sleep(1)

    assert not world.live(life, die_at_step=400, crash="power")
    assert world.live(lambda engine: life_once(engine, seen))
    assert seen == [0, 5]
    assert told[-1] == ["kill"]
    assert ["power"] in told
    assert world.complaints == []


async def life_once(engine, seen):
    seen.append((await engine.queue("jobs").stats()).ready)


def test_a_promise_of_the_watermark_that_was_not_kept_is_refused():
    world = Simulation(4)

    async def life(engine):
        await engine.queue("jobs").enqueue(b"x", durable=True)
        await engine.fsync()

    world.live(life)
    platter = world.disk.platters[0]
    assert platter.mark is not None
    platter.rows = {k: v for k, v in platter.rows.items() if not k.startswith(RING)}
    with pytest.raises(RecoveryRefusedError, match="durable commits are missing"):
        world.live(life)


def test_an_error_of_a_process_is_raised_and_its_engine_closed():
    world = Simulation(5)

    async def life(engine):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        world.live(life)
    assert world.live(lambda engine: life_once(engine, []))


def test_wall_time_steps_and_monotonic_time_does_not():
    told = []
    world = Simulation(6, emit=told.append)
    wall, mono = world.clock.wall_us(), world.clock.mono()
    world.step_wall(-3600)
    assert world.clock.wall_us() - wall == -3_600_000_000
    assert world.clock.mono() == mono
    assert told == [["wall", wall], ["wall", wall - 3_600_000_000]]
