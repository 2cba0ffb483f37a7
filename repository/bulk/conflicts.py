"""Dedup keys that a load brings, and those that the store holds: who gets which.

The keys of a load are looked up in slices, while work goes on; from before the first look on, every
group that is sealed is watched for ghosts of the load. So in the atomic section in which the load
comes in it is known that nothing has changed since: what was *touched* is looked at again, and
while there is any, the load waits.

A task whose key is held is *dropped*: its rows are hidden in the very step that would have shown
them, and the ghost of the holder is put back on top. With ``replace`` the holder gives way instead,
before, unless it is leased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...coalescer.group import Group
from ...engine.bulk.keys import KeyedTask, KeyTable
from ...engine.bulk.manifest import Conflict
from ...engine.records.frame import attempt
from ...engine.records.keyspace import GHOST
from ...engine.records.result import Status
from ...engine.records.rows import OLD_FORM, decode_ghost
from ...engine.runtime.task_id import TaskId
from ...errors import CorruptionError
from ..state.dedup_entries import drop_ghost, is_old_entry
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..tasks.enqueue import ghost_owner, replaceable
from ..tasks.task_end import end_task

__all__ = ["Conflicts"]

SLICE: Final = 256  # keys in a slice: a read each, and one or two more where there is a ghost


class Conflicts:
    """Those of one load on one shard. ``policy`` may become ``skip`` once the load is decided.

    Args:
        core: of the engine.
        shard: whose keys.
        job: the load.
        tables: who takes which key.
        policy: what becomes of a key that is held.
    """

    def __init__(
        self,
        core: EngineState,
        shard: Shard,
        job: str,
        tables: Sequence[KeyTable],
        policy: Conflict,
    ) -> None:
        self._core = core
        self._job = job
        self._shard = shard
        self._tables = tables
        self.policy = policy
        self.touched: dict[bytes, KeyedTask] = {}
        # By ghost, the row of who holds it; None: it is held under its old hash.
        self.dropped: dict[bytes, bytes | None] = {}
        # Old entries of keys of the load, which may go and be put again, but not appear.
        self._of_old: dict[bytes, KeyedTask] = {}
        self.replaced = 0

    def watch(self, group: Group) -> None:
        """A group is sealed: what of it is about keys of the load."""
        for key, _ in group.ops:
            if key.startswith(GHOST):
                ghost = key[len(GHOST) :]
                task = self._of_old.get(ghost) or self.find(ghost)
                if task is not None:
                    self.touched[task.ghost] = task

    def find(self, ghost: bytes) -> KeyedTask | None:
        """The task of the load that takes that key."""
        for table in self._tables:
            task = table.find(ghost)
            if task is not None:
                return task
        return None

    async def look(self) -> None:
        """Look all keys up, in slices. The watch is on. Those who give way feel back-pressure."""
        for table in self._tables:
            for tasks in table.slices(SLICE):
                if self.policy == "replace" and not self._shard.co.has_room:
                    await self._core.room(self._shard)
                    self._core.check()
                self._look(tasks)
                await self._core.spawner.checkpoint()
                self._core.check()

    def look_again(self) -> bool:
        """Look up what has been touched, a slice of it. Returns whether there was any."""
        tasks = list(self.touched.values())[:SLICE]
        for task in tasks:
            del self.touched[task.ghost]
        self._look(tasks)
        return bool(tasks)

    def _look(self, tasks: Sequence[KeyedTask]) -> None:
        """Who holds them.

        Raises:
            CorruptionError: nobody knows. To go on might bring a task a second time: the load
                waits, with all of its keys to be looked up again.
        """
        try:
            self._look_up(tasks)
        except CorruptionError as error:
            raise CorruptionError(
                f"whether dedup keys of load {self._job!r} are held on shard {self._shard.index} "
                f'cannot be read ({error}): close the store, and open it with recovery="salvage"; '
                "the load waits"
            ) from error

    def _look_up(self, tasks: Sequence[KeyedTask]) -> None:
        now_ms = self._core.clock.wall_us() // 1000
        rows = self._shard.overlay.multi_get([GHOST + task.ghost for task in tasks])
        for task, raw in zip(tasks, rows, strict=True):
            self.dropped.pop(task.ghost, None)
            ghost = attempt(decode_ghost, raw)  # a damaged one holds nothing
            if raw is None or ghost is None:
                continue
            held_by = ghost_owner(self._core, self._shard, ghost, now_ms)
            if held_by is not None and not self._gives_way(task, held_by):
                self.dropped[task.ghost] = raw
        if self._shard.old_ghosts:
            self._look_for_old([task for task in tasks if task.ghost not in self.dropped], now_ms)

    def _look_for_old(self, tasks: Sequence[KeyedTask], now_ms: int) -> None:
        """Who holds a key under its old hash keeps it there; an entry that has lapsed goes."""
        core, shard = self._core, self._shard
        rows = shard.overlay.multi_get([GHOST + task.old_ghost for task in tasks])
        for task, raw in zip(tasks, rows, strict=True):
            old = attempt(decode_ghost, raw)
            if old is None or old.form != OLD_FORM:
                continue
            self._of_old[task.old_ghost] = task
            held_by = ghost_owner(core, shard, old, now_ms)
            if held_by is not None and not self._gives_way(task, held_by):
                self.dropped[task.ghost] = None
            elif is_old_entry(shard, task.old_ghost):  # the holder may have taken it along
                drop_ghost(shard, shard.co.begin(), task.old_ghost)

    def _gives_way(self, task: KeyedTask, held_by: bytes) -> bool:
        core, shard = self._core, self._shard
        if self.policy != "replace" or held_by in core.leases:
            return False
        found = replaceable(core, shard, held_by)
        if found is not None:
            group = shard.co.begin()
            status = None if found.state == "dead" else Status.CANCELLED
            with group:
                end_task(core, group, found, status, f"replaced by {TaskId(task.task_id)}")
            self.replaced += 1
        return True
