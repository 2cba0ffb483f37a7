"""Snapshots of an open engine: takes them, and removes those that have lapsed."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from ...engine.bulk.snapshot_lease import abandoned_snapshots, prune_snapshots
from ...engine.bulk.snapshots import (
    abandon_snapshot,
    begin_snapshot,
    finish_snapshot,
)
from ...engine.files.paths import snapshots_path
from ...engine.records.rows import FORMAT_VERSION
from ...engine.recovery.open_shard import OpenStore
from ...engine.runtime.clock import TimerHandle
from ...engine.runtime.event_loop import TaskHandle
from ...engine.values import ShardMark, Snapshot
from ...errors import StorageError, UsageError
from ..background.run_to_completion import run_to_completion
from ..state.engine_state import EngineState

__all__ = ["SnapshotScheduler"]

LOOK_S: Final = 60.0


class SnapshotScheduler:
    """Takes the snapshots of one engine, and removes lapsed ones once a minute.

    Args:
        state: the engine's state.
        opened: its store; without a folder (in memory) nothing is taken and nothing removed.
        copy_shards: links every shard into a folder, as a checkpoint does.
        journal_positions: for each lifecycle journal the first sequence number that may hold
            events newer than the snapshot.
    """

    def __init__(
        self,
        state: EngineState,
        opened: OpenStore,
        *,
        copy_shards: Callable[[str], Awaitable[list[ShardMark]]],
        journal_positions: Callable[[], Mapping[str, int]],
    ) -> None:
        self._state = state
        self._opened = opened
        self._copy_shards = copy_shards
        self._journal_positions = journal_positions
        self._abandoned: list[str] = []  # left by an earlier process
        self._timer: TimerHandle | None = None
        self._task: TaskHandle | None = None

    @property
    def root(self) -> str:
        """The store's folder."""
        path = self._opened.path
        if path is None:
            raise UsageError("an engine in memory has nothing to take a snapshot of")
        return path

    # -- taking ------------------------------------------------------------------------

    async def take(self, keep_s: float) -> Snapshot:
        """See ``Engine.snapshot``."""
        state, root = self._state, self.root
        spawner = state.spawner
        self._check_all(len(state.hosted))
        for shard in state.shards:
            await state.commit_barrier(shard, is_local=True)
        journals = self._journal_positions()
        now_ms = state.clock.wall_us() // 1000
        begin = partial(begin_snapshot, root, now_ms)
        work = await run_to_completion(spawner, begin, abandon_snapshot)
        try:
            marks = await self._copy_shards(work)
            self._check_all(len(marks))  # one may have been let go meanwhile
            finish = partial(
                finish_snapshot,
                work,
                store_id=self._opened.store_id,
                store_format=FORMAT_VERSION,
                expires_ms=now_ms + round(keep_s * 1000),
                shards=tuple(marks),
                journals=journals,
            )
            return await run_to_completion(
                spawner, finish, lambda made: abandon_snapshot(made.path)
            )
        except BaseException:
            await run_to_completion(spawner, partial(abandon_snapshot, work), lambda _: None)
            raise

    def _check_all(self, count: int) -> None:
        state = self._state
        if count < len(state.shards):
            raise UsageError(
                f"this process has the shards {[shard.index for shard in state.hosted]} of "
                f"{len(state.shards)}, and a snapshot has all: take it where all are open, or a "
                "checkpoint here"
            )

    # -- removing ----------------------------------------------------------------------

    def start(self) -> None:
        """Start to look for lapsed snapshots, once a minute."""
        if self._opened.path is None:
            return
        try:
            self._abandoned = abandoned_snapshots(self.root)
        except StorageError:
            pass  # they only take space
        self._look()

    def _look(self) -> None:
        state = self._state
        if state.is_closed:
            return
        if os.path.isdir(snapshots_path(self.root)):
            self._task = state.spawner.spawn(self._prune, "lodeq-snapshots")
        else:
            self._again()

    async def _prune(self) -> None:
        state = self._state
        now_ms = state.clock.wall_us() // 1000
        prune = partial(prune_snapshots, self.root, now_ms, abandoned=tuple(self._abandoned))
        try:
            await state.spawner.run_in_thread(prune)
            self._abandoned = []
        except StorageError:
            pass  # the next look may succeed
        self._again()

    def _again(self) -> None:
        state = self._state
        if not state.is_closed:
            self._timer = state.clock.call_at(
                state.spawner, state.clock.mono() + LOOK_S, self._look
            )

    async def stop(self) -> None:
        """Stop looking; waits for a look under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await self._task.join()
            self._task = None
