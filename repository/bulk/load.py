"""State of one load while it comes in: its files and dedup keys by shard, and what is decided."""

from __future__ import annotations

import os
from functools import partial

from ...engine.bulk.inbox import staged_path
from ...engine.bulk.keys import KeyTable
from ...engine.bulk.manifest import KEYS, Manifest
from ...engine.bulk.patch import load_rows, write_patch
from ...engine.records.ingest import Ingested, LoadedRows
from ...engine.records.keyspace import TASK, decode_expiry_key
from ...errors import InvariantError
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from .conflicts import Conflicts
from .load_accounting import note_load

__all__ = ["Load"]

Tables = dict[Shard, list[KeyTable]]


class Load:
    """One load on its way in.

    Args:
        core: the engine's state.
        root: the store's folder.
        manifest: the load's manifest.
        missing: the shards that do not have their part of it yet.
        is_decided: it can no longer be refused, because a shard has its part; a key that is held
            now stays with its holder.
    """

    def __init__(
        self,
        core: EngineState,
        root: str,
        manifest: Manifest,
        missing: list[Shard],
        *,
        is_decided: bool,
    ) -> None:
        self._core = core
        self.root = root
        self.manifest = manifest
        self.missing = missing
        self.is_decided = is_decided
        self.conflicts: dict[Shard, Conflicts] = {}
        self._rows: list[LoadedRows] = []  # of the latest patch

    def _staged(self, shard: Shard, *, keys: bool) -> list[str]:
        folder = staged_path(self.root, self.manifest.job)
        files, _ = self.manifest.of_shard(shard.index)
        return [os.path.join(folder, one.name) for one in files if (one.family == KEYS) is keys]

    def paths(self, shard: Shard) -> list[str]:
        """Paths of a shard's row files."""
        return self._staged(shard, keys=False)

    def read_keys(self) -> Tables:
        """Read the load's dedup keys. Blocks."""
        return {
            shard: [KeyTable.read(path) for path in self._staged(shard, keys=True)]
            for shard in self.missing
        }

    def watch(self, tables: Tables) -> None:
        """Note every change of one of these keys from now on, until ``unwatch``."""
        policy = self.manifest.conflict
        if self.is_decided and policy == "error":
            policy = "skip"
        for shard, of_shard in tables.items():
            conflicts = Conflicts(self._core, shard, self.manifest.job, of_shard, policy)
            self.conflicts[shard] = conflicts
            if of_shard:
                shard.co.watch = conflicts.watch

    def unwatch(self) -> None:
        """Stop watching. Idempotent."""
        for shard in self.conflicts:
            shard.co.watch = None

    def recheck(self) -> bool:
        """Seal the open groups, check touched keys again; returns whether there were any."""
        for shard in self.missing:
            shard.co.seal_full(always=True)
        return sum(conflicts.recheck() for conflicts in self.conflicts.values()) > 0  # each

    def decide(self) -> None:
        """Decide that it comes in. A key that is taken from now on stays with its holder."""
        self.is_decided = True
        for conflicts in self.conflicts.values():
            if conflicts.policy == "error":
                conflicts.policy = "skip"

    def patcher(self, shard: Shard) -> partial[list[str]]:
        """A function that writes a shard's patch as of now; it blocks, and returns paths."""
        core = self._core
        return partial(
            self._patch,
            shard,
            dict(self.conflicts[shard].dropped),
            core.clock.wall_us(),
            f"patch-{core.ids.token().hex()}",
        )

    def _patch(
        self, shard: Shard, held: dict[bytes, bytes | None], now_us: int, stem: str
    ) -> list[str]:
        """Write the patch, in a thread: it may have as many entries as the load has keys."""
        conflicts, manifest = self.conflicts[shard], self.manifest
        dropped = {}
        for ghost, raw in held.items():
            task = conflicts.find(ghost)
            if task is None:
                raise InvariantError("a dedup key was dropped that the load does not take")
            dropped[ghost] = (task, raw)
        _, buckets = manifest.of_shard(shard.index)
        self._rows = load_rows(buckets, [task for task, _ in dropped.values()])
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
            dropped=dropped,
        )

    def update_state(self, shard: Shard) -> None:
        """Update the state in memory: the rows, with the latest patch, are in the store."""
        files, buckets = self.manifest.of_shard(shard.index)
        expiries = [decode_expiry_key(one.first)[0] for one in files if one.family == "e"]
        note_load(
            self._core,
            shard,
            self.manifest.job,
            digest=self.manifest.digest,
            buckets=buckets,
            rows=self._rows,
            expiry_ms=min(expiries, default=None),
            seq_max=self.manifest.seq_max,
        )
        self._core.hidden.came_in(
            shard, min((one.first for one in files if one.first.startswith(TASK)), default=TASK)
        )
