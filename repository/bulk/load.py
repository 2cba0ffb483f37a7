"""One load on its way in: its files and dedup keys, shard by shard, and how far it has come."""

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
    """``missing``: the shards that have not got it. ``is_decided``: whoever holds a key keeps it.

    A load of which a shard has its part already is decided: it can no longer be refused.
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
        self._rows: list[LoadedRows] = []  # of the patch that was made last

    def _staged(self, shard: Shard, *, keys: bool) -> list[str]:
        folder = staged_path(self.root, self.manifest.job)
        files, _ = self.manifest.of_shard(shard.index)
        return [os.path.join(folder, one.name) for one in files if (one.family == KEYS) is keys]

    def paths(self, shard: Shard) -> list[str]:
        """The files of rows of a shard."""
        return self._staged(shard, keys=False)

    def read_keys(self) -> Tables:
        """Who takes which dedup key. Blocks."""
        return {
            shard: [KeyTable.read(path) for path in self._staged(shard, keys=True)]
            for shard in self.missing
        }

    def watch(self, tables: Tables) -> None:
        """From here on every change of one of these keys is noticed, until ``unwatch``."""
        policy = self.manifest.conflict
        if self.is_decided and policy == "error":
            policy = "skip"
        for shard, of_shard in tables.items():
            conflicts = Conflicts(self._core, shard, self.manifest.job, of_shard, policy)
            self.conflicts[shard] = conflicts
            if of_shard:
                shard.co.watch = conflicts.watch

    def unwatch(self) -> None:
        """Watch no longer. Idempotent."""
        for shard in self.conflicts:
            shard.co.watch = None

    def recheck(self) -> bool:
        """Seal what is open, and look up what has been touched. Returns whether there was any."""
        for shard in self.missing:
            shard.co.seal_full(always=True)
        return sum(conflicts.recheck() for conflicts in self.conflicts.values()) > 0  # each

    def decide(self) -> None:
        """It comes in. A key that somebody takes in the moments until then stays with them."""
        self.is_decided = True
        for conflicts in self.conflicts.values():
            if conflicts.policy == "error":
                conflicts.policy = "skip"

    def patcher(self, shard: Shard) -> partial[list[str]]:
        """What writes the patch of a shard, as things are now; it blocks, and returns paths."""
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
        """In a thread: there may be as many as the load has keys."""
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
        """Its rows are in the store, by the patch that was made last: memory learns of them."""
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
