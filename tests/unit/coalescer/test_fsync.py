"""When a shard is synced, what a sync covers, and what the watermark is told."""

import asyncio
from typing import Any

import pytest
from support_loop import FaultyStore, ManualSpawner, Seq, on_loop, settle

from lodeq.coalescer import fsync as module
from lodeq.coalescer.commit_loop import Coalescer
from lodeq.coalescer.fsync import Syncer
from lodeq.errors import CommitUnknownError, StorageFullError, StoreStalledError

FIRST = 1 << 40 | 1


class Rig:
    """A shard whose clock, timers and syncs are the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "perf_s", lambda: self.now)
        self.store, self.spawner = FaultyStore(), ManualSpawner()
        self.marks: list[int] = []
        self.mark_errors: list[Exception] = []
        self.syncer = Syncer(
            self.store,
            self.spawner,
            first_number=FIRST,
            interval_s=1.0,
            write_watermark=self.mark,
        )
        self.coalescer = Coalescer(
            self.store,
            self.spawner,
            shard=0,
            first_number=FIRST,
            seq_source=Seq(0),
            syncer=self.syncer,
            is_fsync=False,
        )

    def mark(self, number: int) -> None:
        if self.mark_errors:
            raise self.mark_errors.pop(0)
        self.marks.append(number)

    async def put(self, n: int = 1) -> None:
        for i in range(n):
            group = self.coalescer.begin()
            group.ops.append((b"k%d" % i, b"v"))
            await self.coalescer.wait(group)

    async def pass_interval(self) -> None:
        self.now += 1.0
        self.spawner.fire()
        await settle()


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


@on_loop
async def test_what_was_written_is_synced_within_the_interval(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)
    await rig.put(3)
    assert rig.store.syncs == 0
    assert rig.spawner.armed == [1.0]
    await rig.pass_interval()
    assert rig.store.syncs == 1
    assert rig.syncer.durable_number == FIRST + 2
    assert rig.marks == [FIRST + 2]


@on_loop
async def test_an_idle_shard_is_left_alone(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)
    await rig.put()
    for _ in range(5):
        await rig.pass_interval()
    assert rig.store.syncs == 1
    assert rig.marks == [FIRST]
    assert rig.spawner.armed == []


@on_loop
async def test_the_watermark_lags_one_interval_at_most(patch: pytest.MonkeyPatch) -> None:
    """Also when syncs come thick and fast and then stop."""
    rig = Rig(patch)
    for _ in range(3):
        group = rig.coalescer.begin()
        await rig.coalescer.wait(group, is_durable=True)
        await settle()
    assert rig.store.syncs == 3
    assert rig.marks == []
    await rig.pass_interval()
    assert rig.marks == [FIRST + 2]


@on_loop
async def test_one_sync_in_flight_and_it_covers_what_was_written_before_it(
    patch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(patch)
    rig.store.is_held = True
    await rig.put()
    early = rig.syncer.commit_barrier(FIRST)
    assert early is not None
    await rig.put()
    late = rig.syncer.commit_barrier(FIRST + 1)
    assert late is not None
    assert rig.store.syncs == 1
    rig.store.release()
    await settle()
    assert early.done()
    assert not late.done()
    assert rig.syncer.durable_number == FIRST
    assert rig.store.syncs == 2
    rig.store.release()
    await late
    assert rig.syncer.commit_barrier(FIRST + 1) is None


@on_loop
async def test_the_loop_reports_a_commit_only_where_something_may_be_due(
    patch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(patch)
    patch.setattr(module, "SYNC_COMMITS_MAX", 5)
    seen: list[int] = []
    applied = rig.syncer.applied
    patch.setattr(rig.syncer, "applied", lambda number: (seen.append(number), applied(number)))
    await rig.put(5)  # the first starts the timer, the fifth is a sync's
    assert seen == [FIRST, FIRST + 4]
    await settle()
    assert rig.syncer.durable_number == FIRST + 4
    await rig.pass_interval()  # no timer runs any more: the next commit starts one
    await rig.put(2)
    assert seen == [FIRST, FIRST + 4, FIRST + 5]
    rig.store.is_held = True
    await rig.put()
    assert rig.syncer.commit_barrier(FIRST + 7) is not None  # as long as somebody waits: each
    await rig.put(2)
    assert seen == [FIRST, FIRST + 4, FIRST + 5, FIRST + 8, FIRST + 9]
    rig.store.release()
    await settle()


@on_loop
async def test_a_sync_comes_early_after_many_commits(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)
    patch.setattr(module, "SYNC_COMMITS_MAX", 5)
    await rig.put(4)
    assert rig.store.syncs == 0
    await rig.put(1)
    assert rig.store.syncs == 1


@on_loop
async def test_memtables_are_flushed_while_their_logs_are_inside_the_ring(
    patch: pytest.MonkeyPatch,
) -> None:
    patch.setattr(module, "FLUSH_COMMITS_MAX", 5)
    rig = Rig(patch)
    await rig.put(14)
    assert rig.store.flushes == 2


@on_loop
async def test_a_flush_that_was_refused_is_asked_for_again_soon(patch: pytest.MonkeyPatch) -> None:
    """Or the logs would grow out of the ring for another round."""
    patch.setattr(module, "FLUSH_COMMITS_MAX", 50)
    patch.setattr(module, "FLUSH_RETRY_COMMITS", 5, raising=False)
    rig = Rig(patch)
    flush, refused = rig.store.flush, [StorageFullError("full"), StoreStalledError("slow")]

    def refuse(wait: bool = True) -> None:
        flush(wait)
        if refused:
            raise refused.pop(0)

    patch.setattr(rig.store, "flush", refuse, raising=False)
    flushes = []
    for _ in range(62):
        await rig.put()
        await settle()
        flushes.append(rig.store.flushes)
    assert rig.coalescer.takes_writes
    assert [n + 1 for n in range(1, 62) if flushes[n] > flushes[n - 1]] == [50, 55, 60]
    await rig.put(47)
    assert rig.store.flushes == 3
    await rig.put(3)
    assert rig.store.flushes == 4


@on_loop
async def test_one_flush_is_asked_for_at_a_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "FLUSH_COMMITS_MAX", 5)
    rig = Rig(patch)
    held: list[Any] = []
    patch.setattr(rig.store, "run", lambda fn, done: held.append((fn, done)), raising=False)
    await rig.put(12)
    assert len(held) == 1
    held[0][1](None)
    await settle()
    await rig.put(1)
    assert len(held) == 2


@on_loop
async def test_a_flush_that_fails_poisons(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "FLUSH_COMMITS_MAX", 2)
    rig = Rig(patch)

    def fail(wait: bool = True) -> None:
        raise CommitUnknownError("EIO")

    patch.setattr(rig.store, "flush", fail, raising=False)
    await rig.put(2)
    await settle()
    assert isinstance(rig.coalescer.failure, CommitUnknownError)


def test_syncs_and_flushes_keep_live_logs_inside_the_ring() -> None:
    most = module.SYNC_COMMITS_MAX + module.FLUSH_COMMITS_MAX + module.FLUSH_RETRY_COMMITS
    assert most < 65_536


@on_loop
async def test_a_failed_background_sync_poisons(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)
    rig.store.sync_error = OSError("EIO")
    await rig.put()
    await rig.pass_interval()
    assert isinstance(rig.coalescer.failure, CommitUnknownError)
    await rig.pass_interval()
    assert rig.store.syncs == 1, "a failed sync is never retried"
    assert rig.marks == []


@on_loop
async def test_a_sync_that_cannot_start_is_a_sync_that_failed(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)

    def broken(done: Any) -> None:
        raise OSError("no thread")

    patch.setattr(rig.store, "start_sync", broken, raising=False)
    await rig.put()
    await rig.pass_interval()
    assert not rig.coalescer.takes_writes


@on_loop
async def test_poison_wakes_those_who_wait_for_a_sync(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)
    rig.store.is_held = True
    await rig.put()
    future = rig.syncer.commit_barrier(FIRST)
    assert future is not None
    rig.coalescer.fail(OSError("EIO"))
    with pytest.raises(CommitUnknownError):
        await future
    rig.store.release()
    await settle()
    assert rig.spawner.armed == []


@on_loop
async def test_a_full_disk_under_the_watermark_is_no_poison(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)
    rig.mark_errors = [StorageFullError("full")]
    await rig.put()
    await rig.pass_interval()
    assert rig.coalescer.takes_writes
    assert rig.marks == []
    await rig.pass_interval()
    assert rig.marks == [FIRST]


@on_loop
async def test_any_other_failure_of_the_watermark_is(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)
    rig.mark_errors = [OSError("EIO")]
    await rig.put()
    await rig.pass_interval()
    assert not rig.coalescer.takes_writes


@on_loop
async def test_finish_syncs_publishes_and_stops(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)
    await rig.put(2)
    await rig.syncer.finish()
    assert rig.store.syncs == 1
    assert rig.marks == [FIRST + 1]
    assert rig.spawner.armed == []


@on_loop
async def test_finish_on_a_full_disk_does_not_wait_for_space(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)
    rig.mark_errors = [StorageFullError("full")] * 5
    await rig.put()
    await rig.syncer.finish()
    assert rig.marks == []


@on_loop
async def test_finish_survives_a_failing_sync(patch: pytest.MonkeyPatch) -> None:
    rig = Rig(patch)
    rig.store.is_held = True
    await rig.put()
    closing = asyncio.ensure_future(rig.syncer.finish())
    await settle()
    rig.store.release(OSError("EIO"))
    await closing
    assert not rig.coalescer.takes_writes
