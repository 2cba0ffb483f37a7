"""Snapshots of an open engine: taking them, and removing what has lapsed."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from ...engine.bulk.snapshot_lease import abandoned_snapshots, prune_snapshots, release_snapshot
from ...engine.bulk.snapshots import (
    abandon_snapshot,
    begin_snapshot,
    finish_snapshot,
    list_snapshots,
)
from ...engine.records.rows import FORMAT_VERSION
from ...engine.runtime.clock import TimerHandle
from ...engine.runtime.event_loop import TaskHandle
from ...engine.store.paths import snapshots_path
from ...engine.values import Snapshot
from ...errors import StorageError, UsageError
from ..bulk.purge import purge_archived
from ..model.arguments import SNAPSHOT_S, age_s, duration_s
from ..model.reports import ForgottenLoads, PurgeReport
from ..model.values import Duration

if TYPE_CHECKING:
    from ..api.runtime import EngineRuntime
    from ..state.engine_state import EngineState

__all__ = ["SnapshotCalls", "SnapshotScheduler"]

LOOK_S: Final = 60.0


class SnapshotScheduler:
    """Of one engine. Nothing is done where there are none."""

    def __init__(self, operator: EngineRuntime) -> None:
        self._operator = operator
        self._abandoned: list[str] = []  # by an earlier process
        self._timer: TimerHandle | None = None
        self._task: TaskHandle | None = None

    @property
    def root(self) -> str:
        """The store's folder."""
        path = self._operator.opened.path
        if path is None:
            raise UsageError("an engine in memory has nothing to take a snapshot of")
        return path

    # -- taking ------------------------------------------------------------------------

    async def take(self, keep_s: float) -> Snapshot:
        """See ``Engine.snapshot``."""
        operator, root = self._operator, self.root
        core = operator.core
        for shard in core.shards:
            await core.settled(shard)
        journals = operator.pump.following if operator.pump is not None else {}
        now_ms = core.clock.wall_us() // 1000
        work = await operator.wholly(partial(begin_snapshot, root, now_ms), abandon_snapshot)
        try:
            marks = await operator.copy_shards(work)
            finish = partial(
                finish_snapshot,
                work,
                store_id=operator.opened.store_id,
                store_format=FORMAT_VERSION,
                expires_ms=now_ms + round(keep_s * 1000),
                shards=tuple(marks),
                journals=journals,
            )
            return await operator.wholly(finish, lambda made: abandon_snapshot(made.path))
        except BaseException:
            await operator.wholly(partial(abandon_snapshot, work), lambda _: None)
            raise

    # -- removing ----------------------------------------------------------------------

    def start(self) -> None:
        """Have a look now and then."""
        if self._operator.opened.path is None:
            return
        try:
            self._abandoned = abandoned_snapshots(self.root)
        except StorageError:
            pass  # they are not in the way
        self._look()

    def _look(self) -> None:
        core = self._operator.core
        if core.is_closed:
            return
        if os.path.isdir(snapshots_path(self.root)):
            self._task = core.spawner.spawn(self._prune, "lodeq-snapshots")
        else:
            self._again()

    async def _prune(self) -> None:
        core = self._operator.core
        now_ms = core.clock.wall_us() // 1000
        prune = partial(prune_snapshots, self.root, now_ms, abandoned=tuple(self._abandoned))
        try:
            await core.spawner.run_in_thread(prune)
            self._abandoned = []
        except StorageError:
            pass  # what cannot be listed now may be at the next look
        self._again()

    def _again(self) -> None:
        core = self._operator.core
        if not core.is_closed:
            self._timer = core.clock.call_at(core.spawner, core.clock.mono() + LOOK_S, self._look)

    async def stop(self) -> None:
        """No look any more; the one under way ends first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await self._task.join()
            self._task = None


class SnapshotCalls:
    """The calls of an engine that are about snapshots, and what has been made of them."""

    _core: EngineState
    _operator: EngineRuntime

    async def snapshot(self, *, keep: Duration = SNAPSHOT_S) -> Snapshot:
        """A copy of every shard to be read by others, under ``<store>/snapshots/``.

        Its tables are hard links: it costs next to nothing to take, and room once the store has
        moved on. See docs/snapshots.md, and ``checkpoint`` for a backup.

        Args:
            keep: seconds (or a timedelta) until the engine removes it, at most ten years. A reader
                can extend that.

        Raises:
            UsageError: the engine is in memory; nothing was made.
            StorageError: a shard takes no writes, or the disk is full; nothing is left of it.

        Durability: holds everything acknowledged before the call, and survives a power cut.
        Cancellation: leaves nothing.
        """
        keep_s = duration_s(keep, "keep", least=0.001)
        self._core.check()
        return await self._operator.snapshots.take(keep_s)

    async def snapshots(self) -> list[Snapshot]:
        """Those that are whole, oldest first; the last is what ``latest`` stands for.

        Durability: all of them survive a power cut. Cancellation: changes nothing.
        """
        self._core.check()
        listed = partial(list_snapshots, self._operator.snapshots.root)
        found: list[Snapshot] = await self._core.spawner.run_in_thread(listed)
        return found

    async def release_snapshot(self, id: str) -> None:
        """Remove a snapshot, pinned or not. Who reads it meets an error.

        Raises:
            SnapshotNotFoundError: there is none of that id (or it has lapsed).

        Durability: a power cut may bring it back, whole. Cancellation: it is removed all the same.
        """
        self._core.check()
        release = partial(release_snapshot, self._operator.snapshots.root, id)
        await self._operator.wholly(release, lambda _: None)

    async def purge_archived(self, plan: str | os.PathLike[str]) -> PurgeReport:
        """Remove results and dead letters that the archive job has in safety.

        Exactly what its plan names goes, by id and moment: nothing that ended after the snapshot.

        Args:
            plan: the file (or its folder) that ``lodeq-spark archive`` names in its report.

        Raises:
            UsageError: the plan is of another store, or of another number of shards.
            CorruptionError: the plan is damaged; what was read before it is purged.
            StorageError: the disk; call it again.

        Durability: as ``Queue.enqueue``. Cancellation: what is gone stays gone; call it again.
        """
        self._core.check()
        store_id = self._operator.opened.store_id
        return await purge_archived(self._core, store_id, plan)

    async def forget_loads(self, older_than: Duration) -> ForgottenLoads:
        """Forget loads that ended before: that they came in, or why not, and what is left of them.

        Who stages one of these jobs again has its tasks a second time. Files that were staged and
        never published go too, where none is newer.

        Args:
            older_than: seconds (or a timedelta), at least an hour.

        Raises:
            UsageError: the engine is in memory, or takes no such age; nothing was forgotten.
            StorageError: the disk; call it again.

        Durability: what it reports is forgotten after a power cut too, in either mode.
        Cancellation: what is forgotten stays so; call it again.
        """
        self._core.check()
        age_s(older_than)
        return await self._operator.ingester.forget(older_than)
