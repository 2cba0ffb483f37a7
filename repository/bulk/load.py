"""State of one load while it comes in: its files, keys and ids by shard, and what is decided."""

from __future__ import annotations

import os
from functools import partial

from ...engine.bulk.ids import IdTable, ListedTask
from ...engine.bulk.inbox import staged_path
from ...engine.bulk.keys import KeyedTask, KeyTable
from ...engine.bulk.manifest import BODIES, FAMILIES, IDS, KEYS, Conflict, Manifest
from ...engine.bulk.patch import load_rows, write_patch
from ...engine.records.ingest import Ingested, LoadedRows
from ...engine.records.keyspace import TASK, decode_expiry_key
from ...engine.records.rows import BodyRow
from ...errors import InvariantError
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from .conflicts import Conflicts
from .load_accounting import note_load
from .staged_bodies import LoadedBodies, check_staged_body

__all__ = ["Held", "Ids", "Load"]

Tables = dict[Shard, list[KeyTable]]
Ids = dict[Shard, list[IdTable]]
Held = dict[Shard, list[ListedTask]]


class Load:
    """One load on its way in.

    Args:
        state: the engine's state.
        root: the store's folder.
        manifest: the load's manifest.
        missing: the shards that do not have their part of it yet.
        is_decided: it can no longer be refused, because a shard has its part; a key that is held
            now stays with its holder.
    """

    def __init__(
        self,
        state: EngineState,
        root: str,
        manifest: Manifest,
        missing: list[Shard],
        *,
        is_decided: bool,
    ) -> None:
        self._state = state
        self.root = root
        self.manifest = manifest
        self.missing = missing
        self.is_decided = is_decided
        self.conflicts: dict[Shard, Conflicts] = {}
        self._rows: list[LoadedRows] = []  # of the latest patch

    def _staged(self, shard: Shard, *families: str) -> list[str]:
        folder = staged_path(self.root, self.manifest.job)
        files, _ = self.manifest.of_shard(shard.index)
        return [os.path.join(folder, one.name) for one in files if one.family in families]

    def paths(self, shard: Shard) -> list[str]:
        """Paths of a shard's row files."""
        return self._staged(shard, *FAMILIES)

    def check_bodies(self) -> None:
        """Check that the files of streamed payloads are those of their tasks. Blocks.

        Raises:
            CorruptionError: one is not.
        """
        folder = staged_path(self.root, self.manifest.job)
        for shard in self.missing:
            for mark in self.manifest.of_shard(shard.index)[0]:
                if mark.family == BODIES:
                    check_staged_body(folder, mark)

    def bodies(self, shard: Shard) -> LoadedBodies | None:
        """The streamed payloads that a shard gets; None: there are none.

        Raises:
            StorageFullError, StorageError: the disk failed.
        """
        marks = [one for one in self.manifest.of_shard(shard.index)[0] if one.family == BODIES]
        if not marks:
            return None
        if shard.bodies is None:
            raise InvariantError("a shard on disk has no body files")
        return LoadedBodies(shard.bodies, staged_path(self.root, self.manifest.job), marks)

    def read_keys(self) -> Tables:
        """Read the load's dedup keys. Blocks."""
        return {
            shard: [KeyTable.read(path) for path in self._staged(shard, KEYS)]
            for shard in self.missing
        }

    def read_ids(self) -> Ids:
        """Read the ids of the load's tasks. Blocks.

        Raises:
            UsageError: one is no id of ours, or of another shard.
        """
        tables = {
            shard: [IdTable.read(path) for path in self._staged(shard, IDS)]
            for shard in self.missing
        }
        for shard, of_shard in tables.items():
            for table in of_shard:
                table.check(shard.index, self.manifest.shards)
        return tables

    @property
    def policy(self) -> Conflict:
        """Return what is done about a key or an id that is held, as things stand."""
        asked = self.manifest.conflict
        return "skip" if self.is_decided and asked == "error" else asked

    def watch(self, tables: Tables, held: Held) -> None:
        """Note every change of one of these keys from now on, until ``unwatch``.

        Args:
            tables: the load's dedup keys.
            held: its tasks whose id the store has: they stay out.
        """
        for shard, of_shard in tables.items():
            conflicts = Conflicts(self._state, shard, self.manifest.job, of_shard, self.policy)
            conflicts.hold(held.get(shard, []))
            self.conflicts[shard] = conflicts
            if of_shard or conflicts.held:
                shard.coalescer.watch = conflicts.watch

    def unwatch(self) -> None:
        """Stop watching. Idempotent."""
        for shard in self.conflicts:
            shard.coalescer.watch = None

    def recheck(self) -> bool:
        """Seal the open groups, check touched keys again; returns whether there were any."""
        for shard in self.missing:
            shard.coalescer.seal_full(always=True)
        return sum(conflicts.recheck() for conflicts in self.conflicts.values()) > 0  # each

    def decide(self) -> None:
        """Decide that it comes in. A key that is taken from now on stays with its holder."""
        self.is_decided = True
        for conflicts in self.conflicts.values():
            if conflicts.policy == "error":
                conflicts.policy = "skip"

    def patcher(
        self, shard: Shard, kept: dict[bytes, bytes | None], bodies: dict[bytes, BodyRow]
    ) -> partial[list[str]]:
        """A function that writes a shard's patch as of now; it blocks, and returns paths.

        Args:
            shard: whose patch it is.
            kept: the store's rows that stay, of ``Conflicts.read_kept``.
            bodies: by task id, where streamed payloads of the load lie.
        """
        state = self._state
        return partial(
            self._patch,
            shard,
            dict(self.conflicts[shard].dropped),
            kept,
            bodies,
            state.clock.wall_us(),
            f"patch-{state.ids.token().hex()}",
        )

    def _patch(
        self,
        shard: Shard,
        held: dict[bytes, bytes | None],
        kept: dict[bytes, bytes | None],
        bodies: dict[bytes, BodyRow],
        now_us: int,
        stem: str,
    ) -> list[str]:
        """Write the patch, in a thread: it may have as many entries as the load has keys."""
        conflicts, manifest = self.conflicts[shard], self.manifest
        dropped: dict[bytes, KeyedTask | ListedTask] = dict(conflicts.held)  # by id
        for ghost in held:
            task = conflicts.find(ghost)
            if task is None:
                raise InvariantError("a dedup key was dropped that the load does not take")
            dropped.setdefault(task.task_id, task)
        _, shard_queues = manifest.of_shard(shard.index)
        self._rows = load_rows(shard_queues, list(dropped.values()))
        tasks = sum(one.ready + one.delayed for one in self._rows)
        mark = Ingested(now_us, manifest.digest, tasks, len(dropped), conflicts.replaced)
        return write_patch(
            staged_path(self.root, manifest.job),
            stem,
            shard=shard.index,
            job=manifest.job,
            mark=mark,
            seq_max=manifest.seq_max,
            rows=self._rows,
            dropped=list(dropped.values()),
            ghosts=held,
            kept=kept,
            bodies={id: row for id, row in bodies.items() if id not in dropped},
        )

    def update_state(self, shard: Shard) -> None:
        """Update the state in memory: the rows, with the latest patch, are in the store."""
        files, shard_queues = self.manifest.of_shard(shard.index)
        expiries = [decode_expiry_key(one.first)[0] for one in files if one.family == "e"]
        note_load(
            self._state,
            shard,
            self.manifest.job,
            digest=self.manifest.digest,
            shard_queues=shard_queues,
            rows=self._rows,
            expiry_ms=min(expiries, default=None),
            seq_max=self.manifest.seq_max,
        )
        self._state.hidden.came_in(
            shard, min((one.first for one in files if one.first.startswith(TASK)), default=TASK)
        )
