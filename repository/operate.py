"""Running an engine: open, health, verify, checkpoint, close."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from anyio import CancelScope, get_cancelled_exc_class

from ..coalescer.poison import refusal
from ..coalescer.spawner import Future, TaskHandle
from ..engine.checkpoint import (
    ShardMark,
    abandon_checkpoint,
    begin_checkpoint,
    checkpoint_shard,
    write_manifest,
)
from ..engine.clock import DrivingClock, TimerHandle
from ..engine.health import Health, disk_free_bytes, read_probe
from ..engine.shard import OpenStore
from ..engine.verify import Finding, verify_slices
from ..errors import (
    ClosedError,
    CommitUnknownError,
    NotLeaderError,
    StorageError,
    UsageError,
)
from .core import Core
from .reaper import Reaper
from .state import Shard

__all__ = ["Operator", "VerifyReport", "insist"]

DISK_FREE_BYTES_MIN = 2 * (64 << 20)  # two write buffers: what ends tasks must still fit
WATCH_S = 1.0
REAPER_LAG_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What ``verify`` found. ``ok``: nothing."""

    ok: bool
    findings: Sequence[Finding]


async def insist(fn: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Await ``fn`` to its end. A cancellation that came meanwhile is returned: raise it.

    It is held off by the shield (trio, and anyio's scopes on asyncio) or caught
    (``Task.cancel()`` on asyncio, which knows no shield); then ``fn`` is called once more.
    """
    cancelled = None
    with CancelScope(shield=True):
        while True:
            try:
                await fn()
                break
            except get_cancelled_exc_class() as error:
                cancelled = error
    return cancelled


class Operator:
    """Everything about an engine that is not a queue operation."""

    def __init__(self, core: Core, opened: OpenStore, reaper: Reaper | None) -> None:
        self.core = core
        self.opened = opened
        self.reaper = reaper
        self._reaper_task: TaskHandle | None = None
        self._reaper_end: str | None = None  # how it ended although nobody asked it to
        self._watch: TimerHandle | None = None
        self._driven: TimerHandle | None = None
        self._close_task: TaskHandle | None = None
        self._closers: list[Future] = []
        self._is_torn_down = False

    # -- running -----------------------------------------------------------------------

    def start(self) -> None:
        """Start the background work."""
        core, reaper = self.core, self.reaper
        if reaper is not None and isinstance(core.clock, DrivingClock):
            self._driven = core.clock.drive(reaper.catch_up)
        elif reaper is not None:
            self._reaper_task = core.spawner.spawn(
                partial(self._run_reaper, reaper), "lodeq-reaper"
            )
        self._watch_disk()

    async def _run_reaper(self, reaper: Reaper) -> None:
        try:
            await reaper.run()
        except BaseException as error:  # also cancelled by somebody who cancels all there is
            if not self.core.is_closed:
                self._reaper_end = repr(error)
            raise

    def _watch_disk(self) -> None:
        core = self.core
        if self.opened.path is not None and not core.is_closed:
            try:
                core.is_disk_low = disk_free_bytes(self.opened.path) < DISK_FREE_BYTES_MIN
            except StorageError:
                core.is_disk_low = True
            self._watch = core.spawner.call_later(WATCH_S, self._watch_disk)

    def health(self) -> Health:
        """See ``Engine.health``."""
        core = self.core
        reasons = []
        for shard in core.shards:
            # Led elsewhere is not unhealthy.
            if shard.co.poison is not None and not isinstance(shard.co.poison, NotLeaderError):
                reasons.append(f"shard {shard.index} is poisoned: {shard.co.poison}")
            if shard.co.stalled is not None:
                reasons.append(f"shard {shard.index} is stalled: {shard.co.stalled}")
            reasons.extend(f"shard {shard.index}: {r}" for r in read_probe(shard.store).reasons)
        if core.is_disk_low:
            reasons.append("the disk is nearly full: enqueues are refused")
        if self._reaper_end is not None:
            reasons.append(f"the reaper has ended, nothing falls due any more: {self._reaper_end}")
        lag = core.deadlines.lag_s(core.clock.mono(), core.clock.wall_us() // 1000)
        if self.reaper is not None and lag > REAPER_LAG_S_MAX:
            reasons.append(f"the reaper is {lag:.1f} s late")
        reasons.extend(core.anomalies)
        return Health.of(*reasons)

    async def verify(self) -> VerifyReport:
        """See ``Engine.verify``."""
        core = self.core
        findings: list[Finding] = []
        for shard in core.shards:
            await core.settled(shard)
            view = shard.store.snapshot()
            try:
                slices = verify_slices(view, shard.index, len(core.shards))
                while True:
                    try:
                        next(slices)
                    except StopIteration as end:
                        findings.extend(end.value)
                        break
                    await core.spawner.checkpoint()
                    core.check()
            finally:
                view.close()
        return VerifyReport(not findings, tuple(findings))

    async def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """See ``Engine.checkpoint``."""
        core = self.core
        if self.opened.path is None:
            raise UsageError("an engine in memory has nothing to checkpoint")
        for shard in core.shards:
            await core.settled(shard)
        work = begin_checkpoint(path)
        try:
            marks = []
            for shard in core.shards:
                await self._flush(shard)
                checkpoint_shard(shard.store, work, shard.index)
                number = shard.co.applied_number
                marks.append(ShardMark(shard.index, number >> 40, number))
            await self._publish(work, marks)
        except BaseException:
            abandon_checkpoint(work)
            raise

    async def _publish(self, work: str, marks: Sequence[ShardMark]) -> None:
        """The last step. Cancelled, it ends when its thread does, and removes what that made."""
        spawner = self.core.spawner
        made: list[str] = []
        failures: list[Exception] = []
        write = partial(write_manifest, work, store_id=self.opened.store_id, shards=marks)

        async def run() -> None:
            try:
                made.append(await spawner.run_in_thread(write))
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                failures.append(error)

        cancelled = await insist(spawner.spawn(run, "lodeq-checkpoint").join)
        if cancelled is not None:
            for path in made:
                abandon_checkpoint(path)
            raise cancelled
        if failures:
            raise failures[0]
        if not made:
            raise ClosedError("the engine's event loop stopped while this call waited")

    async def _flush(self, shard: Shard) -> None:
        """In the shard's thread, for a checkpoint that would hold the GIL meanwhile."""
        poison = shard.co.poison
        if poison is None or isinstance(poison, NotLeaderError):
            try:
                await self._on_shard_thread(shard, shard.store.flush)
                return
            except CommitUnknownError as error:  # RocksDB takes no more writes either
                shard.co.fail(error)
        raise refusal(shard.index, shard.co.poison or ClosedError("the engine is closed"))

    async def _on_shard_thread(self, shard: Shard, fn: Callable[[], None]) -> None:
        spawner = self.core.spawner
        future = spawner.future()

        def tell(error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        def done(error: BaseException | None) -> None:
            spawner.call_soon_threadsafe(tell, error)

        shard.store.run(fn, done)
        await future

    # -- closing -----------------------------------------------------------------------

    @property
    def is_torn_down(self) -> bool:
        """Whether the stores are closed: nothing is going to happen any more."""
        return self._is_torn_down

    async def close(self) -> None:
        """See ``Engine.close``. It runs in a task of its own: cancelled callers do not stop it."""
        core = self.core
        if self._is_torn_down:
            return
        core.check_loop()
        if not self._closers:
            core.is_closed = True
            self._close_task = core.spawner.spawn(self._close, "lodeq-close")
        future = core.spawner.future()
        self._closers.append(future)
        await future

    async def _close(self) -> None:
        failure: BaseException | None = ClosedError("closing was interrupted: close it again")
        try:
            await self._tear_down()
            failure = None
        except Exception as error:  # noqa: BLE001 - whatever it was, those who wait get it
            failure = error
        finally:
            closers, self._closers = self._closers, []
            for future in closers:
                if future.done():
                    continue
                if failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(failure)

    async def _tear_down(self) -> None:
        core = self.core
        await self._stop_background()
        why = "the engine was closed while this call waited"
        core.waiters.fail_all(ClosedError(why))
        for futures in list(core.result_waiters.values()):
            for future in futures:
                if not future.done():
                    future.set_exception(ClosedError(why))
        core.result_waiters.clear()
        for shard in core.shards:
            await shard.co.drain()
        await core.spawner.run_in_thread(self.opened.close)
        self._is_torn_down = True
        await core.spawner.aclose()

    async def _stop_background(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self.reaper is not None:
            self.reaper.stop()
        if self._driven is not None:
            self._driven.cancel()
            self._driven = None
        if self._reaper_task is not None:
            # Not awaited to its next pause: it may be waiting for a store that is stalled.
            self._reaper_task.cancel()
            await self._reaper_task.join()
            self._reaper_task = None
