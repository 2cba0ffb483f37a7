"""Conflicts between the dedup keys and ids of a load and those that the store holds.

The keys of a load are checked in slices, while work goes on. From before the first check on, every
group that is sealed is watched for dedup entries of the load. So the atomic section in which the
load comes in knows which entries have changed since: these *touched* keys are checked again, and
while there are any, the load waits.

A task whose key is held is *dropped*: its rows are hidden in the same step that would have shown
them, and the holder's dedup entry is put back on top. With ``replace`` the holder is ended before
that instead, unless it is leased.

A task whose id is held (``id_check``) is left out with every policy: its rows are hidden in the
same way, and the store's own rows of that id are put back on top. So these are watched, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...coalescer.group import Group
from ...engine.bulk.ids import ListedTask
from ...engine.bulk.keys import KeyedTask, KeyTable
from ...engine.bulk.manifest import Conflict
from ...engine.records.frame import attempt
from ...engine.records.keyspace import GHOST, TASK
from ...engine.records.result import Status
from ...engine.records.rows import OLD_FORM, decode_ghost
from ...engine.runtime.task_id import TaskId
from ...errors import CorruptionError
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..state.rows.dedup_entries import drop_ghost, is_old_entry
from ..tasks.enqueue import ghost_owner, replaceable
from ..tasks.task_end import end_task

__all__ = ["Conflicts"]

SLICE: Final = 256  # keys per slice: a read each, and one or two more for a key that is held


class Conflicts:
    """Conflicts of one load on one shard. ``policy`` becomes ``skip`` once the load is decided.

    Args:
        state: the engine's state.
        shard: the shard whose entries are compared.
        job: the load's name, for messages.
        tables: the load's dedup keys with their tasks.
        policy: what to do about a key that is held.
    """

    def __init__(
        self,
        state: EngineState,
        shard: Shard,
        job: str,
        tables: Sequence[KeyTable],
        policy: Conflict,
    ) -> None:
        self._state = state
        self._job = job
        self._shard = shard
        self._tables = tables
        self.policy = policy
        self.touched: dict[bytes, KeyedTask] = {}
        # By ghost, the entry that stays; None: there is none under this hash.
        self.dropped: dict[bytes, bytes | None] = {}
        # Old entries of the load's keys: they may be deleted and restored, but no new one appears.
        self._of_old: dict[bytes, KeyedTask] = {}
        self.replaced = 0
        self.held: dict[bytes, ListedTask] = {}  # by id
        self._kept: set[bytes] = set()  # keys under which the store has, or had, rows of its own
        self._is_kept_touched = False

    def hold(self, tasks: Sequence[ListedTask]) -> None:
        """Leave these tasks out: the store has their ids. Before the first check."""
        for task in tasks:
            self.held[task.task_id] = task
            self._kept |= {TASK + task.task_id, task.index_key}

    async def read_kept(self) -> dict[bytes, bytes | None]:
        """Read what the store has under the keys of tasks whose id is held.

        A later change is noted, and shows in ``recheck``.
        """
        kept: dict[bytes, bytes | None] = {}
        keys = sorted(self._kept)
        for at in range(0, len(keys), SLICE):
            some = keys[at : at + SLICE]
            kept.update(zip(some, self._shard.overlay.multi_get(some), strict=True))
            await self._state.spawner.checkpoint()
            self._state.check()
        return kept

    def watch(self, group: Group) -> None:
        """Note the keys of the load in a group that is being sealed."""
        for key, _ in group.ops:
            if key in self._kept:
                self._is_kept_touched = True
            if key.startswith(GHOST):
                ghost = key[len(GHOST) :]
                task = self._of_old.get(ghost) or self.find(ghost)
                if task is not None:
                    self.touched[task.ghost] = task

    def find(self, ghost: bytes) -> KeyedTask | None:
        """The task of the load that brings this dedup entry."""
        for table in self._tables:
            task = table.find(ghost)
            if task is not None:
                return task
        return None

    async def check_keys(self) -> None:
        """Check all keys, in slices; ``watch`` is called meanwhile. Replacing waits in line."""
        for table in self._tables:
            for tasks in table.slices(SLICE):
                if self.policy == "replace" and not self._shard.coalescer.has_capacity:
                    await self._state.backpressure(self._shard)
                    self._state.check()
                self._check(tasks)
                await self._state.spawner.checkpoint()
                self._state.check()

    def recheck(self) -> bool:
        """Check a slice of the touched keys again; returns whether there were any.

        True as well if a row that is to stay has changed: it is read again for the patch.
        """
        is_kept_touched, self._is_kept_touched = self._is_kept_touched, False
        tasks = list(self.touched.values())[:SLICE]
        for task in tasks:
            del self.touched[task.ghost]
        self._check(tasks)
        return bool(tasks) or is_kept_touched

    def _check(self, tasks: Sequence[KeyedTask]) -> None:
        """Find the holders of these tasks' keys.

        Raises:
            CorruptionError: they cannot be read. Going on could add a task twice: the load waits,
                and all its keys are checked again.
        """
        try:
            self._check_slice(tasks)
        except CorruptionError as error:
            raise CorruptionError(
                f"whether dedup keys of load {self._job!r} are held on shard {self._shard.index} "
                f'cannot be read ({error}): close the store, and open it with recovery="salvage"; '
                "the load waits"
            ) from error

    def _check_slice(self, tasks: Sequence[KeyedTask]) -> None:
        now_ms = self._state.clock.wall_us() // 1000
        rows = self._shard.overlay.multi_get([GHOST + task.ghost for task in tasks])
        for task, raw in zip(tasks, rows, strict=True):
            self.dropped.pop(task.ghost, None)
            if task.task_id in self.held:  # whoever holds the key, this task stays out
                self.dropped[task.ghost] = raw
                continue
            ghost = attempt(decode_ghost, raw)  # a damaged one holds nothing
            if raw is None or ghost is None:
                continue
            held_by = ghost_owner(self._state, self._shard, ghost, now_ms)
            if held_by is not None and not self._gives_way(task, held_by):
                self.dropped[task.ghost] = raw
        if self._shard.old_ghosts:
            self._check_old_entries(
                [task for task in tasks if task.ghost not in self.dropped], now_ms
            )

    def _check_old_entries(self, tasks: Sequence[KeyedTask], now_ms: int) -> None:
        """Check entries under the hash of format 1: a holder keeps its key, a lapsed entry goes."""
        state, shard = self._state, self._shard
        rows = shard.overlay.multi_get([GHOST + task.old_ghost for task in tasks])
        for task, raw in zip(tasks, rows, strict=True):
            old = attempt(decode_ghost, raw)
            if old is None or old.form != OLD_FORM:
                continue
            self._of_old[task.old_ghost] = task
            held_by = ghost_owner(state, shard, old, now_ms)
            if held_by is not None and not self._gives_way(task, held_by):
                self.dropped[task.ghost] = None
            elif is_old_entry(shard, task.old_ghost):  # the holder's end may have deleted it
                drop_ghost(shard, shard.coalescer.begin(), task.old_ghost)

    def _gives_way(self, task: KeyedTask, held_by: bytes) -> bool:
        state, shard = self._state, self._shard
        if self.policy != "replace" or held_by in state.leases:
            return False
        found = replaceable(state, shard, held_by)
        if found is not None:
            group = shard.coalescer.begin()
            status = None if found.state == "dead" else Status.CANCELLED
            with group:
                end_task(state, group, found, status, f"replaced by {TaskId(task.task_id)}")
            self.replaced += 1
        return True
