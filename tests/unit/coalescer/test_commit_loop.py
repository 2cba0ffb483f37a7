"""The commit loop: order, merging, refusals, failure, back-pressure, close."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pytest
from support_loop import FaultyStore, ManualSpawner, Seq, on_loop, settle

from lodeq.coalescer import commit_loop as module
from lodeq.coalescer.commit_loop import GROUP_BYTES_MAX, Coalescer
from lodeq.coalescer.fsync import Syncer
from lodeq.coalescer.group import Group
from lodeq.engine.records.keyspace import ring_key
from lodeq.errors import (
    ClosedError,
    CommitUnknownError,
    StorageError,
    StorageFullError,
    StoragePoisonedError,
    StoreStalledError,
)

FIRST = 1 << 40 | 1


@dataclass
class Work:
    """Something to do at the end of each tick."""

    serve: Callable[[], None]
    ready: Collection[object] = (1,)


@dataclass
class Rig:
    """One coalescer with everything around it under control."""

    store: FaultyStore
    spawner: ManualSpawner
    syncer: Syncer
    coalescer: Coalescer
    marks: list[int]

    def put(self, key: bytes, value: bytes = b"v", *, durable: bool = False) -> Any:
        """One submission; returns its future."""
        group = self.coalescer.begin()
        group.ops.append((key, value))
        return self.coalescer.wait(group, key, is_durable=durable)

    @property
    def written(self) -> list[list[bytes]]:
        """Keys of each batch, ring rows left out."""
        return [
            [key for key, _ in batch if not key.startswith(b"m/k/")] for batch in self.store.batches
        ]

    async def queue(self, key: bytes) -> str:
        """What an operation does: wait for room, queue, wait for the commit."""
        while not self.coalescer.has_capacity:
            await self.coalescer.wait_in_line()
            if self.coalescer.waiting < self.coalescer.submit_queue_max:
                break
        await self.put(key)
        return key.decode()


def make(*, fsync: bool = False, **options: Any) -> Rig:
    store, spawner, marks = FaultyStore(), ManualSpawner(), list[int]()
    syncer = Syncer(
        store, spawner, first_number=FIRST, interval_s=1.0, write_watermark=marks.append
    )
    coalescer = Coalescer(
        store,
        spawner,
        shard=0,
        first_number=FIRST,
        seq_source=Seq(7),
        syncer=syncer,
        is_fsync=fsync,
        **options,
    )
    return Rig(store, spawner, syncer, coalescer, marks)


async def outcome(future: Any) -> Any:
    """The value, or the error itself."""
    try:
        return await future
    except Exception as error:  # noqa: BLE001 - whatever it was
        return error


# -- merging ---------------------------------------------------------------------------


@on_loop
async def test_a_tick_is_one_write() -> None:
    rig = make()
    assert await asyncio.gather(*(rig.put(b"k%d" % n) for n in range(5))) == [
        b"k0",
        b"k1",
        b"k2",
        b"k3",
        b"k4",
    ]
    assert rig.written == [[b"k0", b"k1", b"k2", b"k3", b"k4"]]
    assert rig.store.batches[0][-1][0] == ring_key(FIRST)
    assert rig.store.syncs == 0


@on_loop
async def test_ticks_are_written_in_order_with_growing_numbers() -> None:
    rig = make()
    for n in range(3):
        await rig.put(b"k%d" % n)
    assert rig.written == [[b"k0"], [b"k1"], [b"k2"]]
    assert [batch[-1][0] for batch in rig.store.batches] == [ring_key(FIRST + n) for n in range(3)]
    assert rig.coalescer.applied_number == FIRST + 2


@on_loop
async def test_commit_batch_max_bounds_a_group() -> None:
    rig = make(commit_batch_max=2)
    await asyncio.gather(*(rig.put(b"k%d" % n) for n in range(5)))
    assert rig.written == [[b"k0", b"k1"], [b"k2", b"k3"], [b"k4"]]
    assert rig.coalescer.stats.merge.maximum == 2


@on_loop
async def test_bytes_bound_a_group() -> None:
    rig = make()
    futures = []
    for n in range(3):
        group = rig.coalescer.begin(GROUP_BYTES_MAX // 2)
        group.ops.append((b"k%d" % n, b"v"))
        futures.append(rig.coalescer.wait(group))
    await asyncio.gather(*futures)
    assert rig.written == [[b"k0", b"k1"], [b"k2"]]


@on_loop
async def test_a_submission_over_the_bound_has_a_group_of_its_own() -> None:
    rig = make()
    small = rig.put(b"a")
    big = rig.coalescer.begin(GROUP_BYTES_MAX * 2)
    big.ops.append((b"b", b"v"))
    await asyncio.gather(small, rig.coalescer.wait(big), rig.put(b"c"))
    assert rig.written == [[b"a"], [b"b"], [b"c"]]


@on_loop
async def test_work_of_the_tick_shares_its_write() -> None:
    rig = make()

    def serve() -> None:
        if not rig.store.batches:
            rig.coalescer.begin().ops.append((b"served", b"v"))

    rig.coalescer._tick_work = Work(serve)
    await rig.put(b"k")
    assert rig.written == [[b"k", b"served"]]


@on_loop
async def test_work_that_fails_stops_no_commit() -> None:
    rig = make()
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    def serve() -> None:
        raise StorageError("a row could not be read")

    rig.coalescer._tick_work = Work(serve)
    assert await rig.put(b"a") == b"a"
    assert await rig.put(b"b") == b"b"
    assert len(errors) == 2


@on_loop
async def test_a_long_drain_lets_the_loop_breathe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_OPS_MAX", 1)
    rig = make(commit_batch_max=1)
    futures = [rig.put(b"k%d" % n) for n in range(3)]
    asyncio.get_running_loop().call_soon(lambda: counts.append(len(rig.store.batches)))
    counts: list[int] = []
    await asyncio.gather(*futures)
    assert counts == [1]
    assert rig.written == [[b"k0"], [b"k1"], [b"k2"]]


@on_loop
async def test_reads_see_what_is_queued_and_then_what_is_applied() -> None:
    rig = make()
    future = rig.put(b"k")
    assert rig.store.get(b"k") is None
    assert rig.coalescer.overlay.get(b"k") == b"v"
    await future
    assert rig.coalescer.overlay.get(b"k") == b"v"
    assert not rig.coalescer.pending()


@on_loop
async def test_a_cancelled_caller_is_left_alone_and_its_operation_happens() -> None:
    rig = make()
    future, other = rig.put(b"a"), rig.put(b"b")
    future.cancel()
    assert await other == b"b"
    assert rig.written == [[b"a", b"b"]]


@on_loop
async def test_settled_waits_for_what_others_queued() -> None:
    rig = make()
    assert rig.coalescer.commit_barrier() is None
    rig.put(b"k")
    future = rig.coalescer.commit_barrier()
    assert future is not None
    await future
    assert rig.store.get(b"k") == b"v"
    assert rig.coalescer.commit_barrier() is None


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "delay_s"),
    [
        (StoreStalledError("stalled"), module.RETRY_STALLED_S),
        (StorageFullError("full"), module.RETRY_FULL_S),
    ],
)
@on_loop
async def test_a_refused_group_is_retried_first_and_unchanged(
    error: Exception, delay_s: float
) -> None:
    rig = make()
    rig.store.write_errors = [error, error]
    first = rig.put(b"a")
    await settle()
    assert rig.coalescer.refused_write is error
    assert rig.spawner.armed == [delay_s]
    second = rig.put(b"b")  # neither merged into it nor written before it
    await settle()
    assert not rig.store.batches
    rig.spawner.fire()
    assert not rig.store.batches
    rig.spawner.fire()
    assert await asyncio.gather(first, second) == [b"a", b"b"]
    assert rig.written == [[b"a"], [b"b"]]
    assert rig.coalescer.refused_write is None
    assert rig.coalescer.stats.stalls == 2


@on_loop
async def test_an_unknown_failure_poisons() -> None:
    rig = make(commit_batch_max=1)
    poisoned: list[bool] = []
    rig.coalescer._on_writes_end = lambda: poisoned.append(True)
    rig.store.write_errors = [OSError("EIO")]
    attempted, later = rig.put(b"a"), rig.put(b"b")
    assert isinstance(await outcome(attempted), CommitUnknownError)
    assert isinstance(await outcome(later), StoragePoisonedError)
    assert poisoned
    with pytest.raises(StoragePoisonedError):
        rig.coalescer.begin()
    assert rig.coalescer.commit_barrier() is None
    assert not rig.store.batches
    assert rig.coalescer.overlay.get(b"a") is None


@on_loop
async def test_poison_leaves_no_retry_behind() -> None:
    rig = make()
    rig.store.write_errors = [StoreStalledError("stalled")]
    future = rig.put(b"a")
    await settle()
    rig.coalescer.fail(OSError("EIO"))
    assert isinstance(await outcome(future), CommitUnknownError)
    assert rig.spawner.armed == []
    assert not rig.store.batches


# -- durability ------------------------------------------------------------------------


@on_loop
async def test_fsync_mode_answers_after_the_sync_that_covers_it() -> None:
    rig = make(fsync=True)
    rig.store.is_held = True
    first = rig.put(b"a")
    await settle()
    assert rig.store.get(b"a") == b"v"
    assert not first.done()
    second = rig.put(b"b")  # applied while the sync of the first is in flight
    await settle()
    rig.store.release()
    await settle()
    assert first.done()
    assert not second.done(), "the sync that ended had started before it was written"
    assert rig.store.syncs == 2
    rig.store.release()
    assert await second == b"b"
    assert rig.coalescer.durable_number == FIRST + 1


@on_loop
async def test_a_group_of_callers_shares_one_sync() -> None:
    rig = make(fsync=True)
    await asyncio.gather(*(rig.put(b"k%d" % n) for n in range(50)))
    assert rig.store.syncs == 1


@on_loop
async def test_durable_true_waits_in_nosync_mode_and_others_do_not() -> None:
    rig = make()
    rig.store.is_held = True
    quick, careful = rig.put(b"a"), rig.put(b"b", durable=True)
    assert await quick == b"a"
    assert not careful.done()
    rig.store.release()
    assert await careful == b"b"
    assert rig.store.syncs == 1


@on_loop
async def test_a_failed_sync_leaves_the_outcome_unknown() -> None:
    rig = make(fsync=True)
    rig.store.is_held = True
    future = rig.put(b"a")
    await settle()
    rig.store.release(OSError("EIO"))
    assert isinstance(await outcome(future), CommitUnknownError)
    with pytest.raises(StoragePoisonedError):
        rig.coalescer.begin()
    assert rig.store.syncs == 1, "a failed sync is never retried"


@on_loop
async def test_settled_is_durable_in_fsync_mode() -> None:
    rig = make(fsync=True)
    rig.store.is_held = True
    rig.put(b"a")
    await settle()
    answer = rig.coalescer.commit_barrier()
    assert answer is not None
    assert not answer.done()
    rig.store.release()
    await settle()
    rig.store.release()
    await answer


# -- back-pressure ---------------------------------------------------------------------


@on_loop
async def test_callers_wait_at_submit_queue_max_and_are_served_in_order() -> None:
    rig = make(submit_queue_max=2)
    done: list[str] = []

    async def call(n: int) -> None:
        done.append(await rig.queue(b"k%d" % n))

    await asyncio.gather(*(call(n) for n in range(7)))
    assert done == [f"k{n}" for n in range(7)]
    assert max(len(batch) for batch in rig.written) <= 2
    assert rig.coalescer.waiting == 0


@on_loop
async def test_nobody_overtakes_those_who_wait_for_room() -> None:
    rig = make(submit_queue_max=1)
    first = rig.put(b"a")
    waiting = asyncio.ensure_future(rig.queue(b"b"))
    await asyncio.sleep(0)
    assert not rig.coalescer.has_capacity
    await first
    late = asyncio.ensure_future(rig.queue(b"c"))
    await asyncio.gather(waiting, late)
    assert rig.written == [[b"a"], [b"b"], [b"c"]]


@on_loop
async def test_a_caller_cancelled_in_the_line_takes_nobodys_place() -> None:
    rig = make(submit_queue_max=1)
    rig.store.write_errors = [StoreStalledError("stalled")]
    first = rig.put(b"a")
    gone = asyncio.ensure_future(rig.queue(b"b"))
    waiting = asyncio.ensure_future(rig.queue(b"c"))
    await settle()
    gone.cancel()
    await settle()
    rig.spawner.fire()
    assert await first == b"a"
    assert await waiting == "c"


@on_loop
async def test_a_caller_cancelled_after_its_wake_passes_it_on() -> None:
    rig = make(submit_queue_max=1)
    first = rig.put(b"a")
    gone = asyncio.ensure_future(rig.queue(b"b"))
    waiting = asyncio.ensure_future(rig.queue(b"c"))
    await asyncio.sleep(0)
    first.add_done_callback(lambda _: gone.cancel())  # its place is free in this very turn
    await first
    assert await waiting == "c"


@on_loop
async def test_a_woken_caller_that_queues_nothing_blocks_nobody() -> None:
    rig = make(submit_queue_max=1)
    rig.store.write_errors = [StoreStalledError("stalled")]
    first = rig.put(b"a")
    idle = asyncio.ensure_future(rig.coalescer.wait_in_line())
    waiting = asyncio.ensure_future(rig.queue(b"c"))
    await settle()
    rig.spawner.fire()
    assert await first == b"a"
    await idle
    assert await waiting == "c"


@on_loop
async def test_poison_wakes_those_who_wait_for_room() -> None:
    rig = make(submit_queue_max=1)
    rig.store.write_errors = [OSError("EIO")]
    first = rig.put(b"a")
    waiting = asyncio.ensure_future(rig.queue(b"b"))
    assert isinstance(await outcome(first), CommitUnknownError)
    assert isinstance(await outcome(waiting), StoragePoisonedError)


@on_loop
async def test_begin_itself_never_waits() -> None:
    """The reaper, promotions and give-backs must get through at submit_queue_max too."""
    rig = make(submit_queue_max=1)
    assert await asyncio.gather(rig.put(b"a"), rig.put(b"b")) == [b"a", b"b"]


# -- closing ---------------------------------------------------------------------------


@on_loop
async def test_drain_commits_syncs_and_publishes() -> None:
    rig = make()
    future = rig.put(b"a")
    await rig.coalescer.drain()
    assert await future == b"a"
    assert rig.coalescer.durable_number == FIRST
    assert rig.marks == [FIRST]
    assert rig.spawner.armed == []


@on_loop
async def test_drain_of_an_idle_shard_writes_nothing() -> None:
    rig = make()
    await rig.coalescer.drain()
    assert rig.store.batches == []
    assert rig.store.syncs == 0


@on_loop
async def test_drain_waits_for_a_sync_in_flight() -> None:
    rig = make(fsync=True)
    rig.store.is_held = True
    future = rig.put(b"a")
    await settle()
    closing = asyncio.ensure_future(rig.coalescer.drain())
    await settle()
    assert not closing.done()
    rig.store.is_held = False
    rig.store.release()
    await closing
    assert await future == b"a"


@on_loop
async def test_drain_survives_a_commit_that_fails_under_it() -> None:
    rig = make()
    future = rig.put(b"a")
    rig.store.write_errors = [OSError("EIO")]
    await rig.coalescer.drain()
    assert isinstance(await outcome(future), CommitUnknownError)


@on_loop
async def test_drain_survives_a_sync_that_fails_under_it() -> None:
    rig = make(fsync=True)
    rig.store.sync_error = OSError("EIO")
    future = rig.put(b"a")
    await rig.coalescer.drain()
    assert isinstance(await outcome(future), CommitUnknownError)


@on_loop
async def test_drain_gives_up_on_a_store_that_refuses_for_ever() -> None:
    rig = make(submit_queue_max=1)
    rig.store.write_errors = [StorageFullError("full")] * 1000
    future = rig.put(b"a")
    in_line = asyncio.ensure_future(rig.queue(b"b"))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(rig.coalescer.drain())
    for _ in range(int(module.CLOSE_STALLED_S_MAX / module.RETRY_FULL_S) + 2):
        await settle(5)
        rig.spawner.fire()
    await closing
    assert isinstance(await outcome(future), ClosedError)
    in_line.cancel()
    assert rig.store.batches == []


@on_loop
async def test_a_group_counts_its_bytes_and_operations() -> None:
    rig = make()
    group: Group = rig.coalescer.begin(100)
    group.ops.append((b"a", b"v"))
    await rig.coalescer.wait(group)
    stats = rig.coalescer.stats
    assert (stats.commits, stats.submissions, stats.operations, stats.bytes) == (1, 1, 2, 100)
