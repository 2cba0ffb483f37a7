"""The engine's own rows beside a load: taken into a shard in the same step as its files.

The row that says that the load has come in, the one that says what is not counted yet, and for
tasks whose dedup key is held by others: tombstones over their rows, and the holders' ghosts on top.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..records.ingest import Ingested, LoadedRows, encode_ingested, encode_uncounted
from ..records.keyspace import GHOST, INGESTED, TASK, UNCOUNTED
from .keys import KeyedTask
from .manifest import BucketRows
from .sst import SstWriter

__all__ = ["load_rows", "write_patch"]


def load_rows(buckets: Sequence[BucketRows], dropped: Sequence[KeyedTask]) -> list[LoadedRows]:
    """Counts that a shard gets by (queue, tenant), dropped tasks left out."""
    lost: dict[tuple[bytes, bytes, bool], int] = {}
    for task in dropped:
        name = (task.queue, task.tenant, task.due_ms > 0)
        lost[name] = lost.get(name, 0) + 1
    rows = []
    for one in buckets:
        queue, tenant = one.queue.encode(), one.tenant.encode()
        ready = one.ready_rows - lost.get((queue, tenant, False), 0)
        delayed = one.delayed - lost.get((queue, tenant, True), 0)
        rows.append(LoadedRows(queue, tenant, max(0, ready), max(0, delayed)))
    return rows


def write_patch(
    folder: str,
    stem: str,
    *,
    shard: int,
    job: str,
    mark: Ingested,
    seq_max: int,
    rows: Sequence[LoadedRows],
    dropped: Mapping[bytes, tuple[KeyedTask, bytes | None]],
) -> list[str]:
    """Write the files; their paths. Blocks.

    Args:
        stem: never used before in ``folder``: a file that has come in may still have its old name
            there, and writing to it would write to the store.
        dropped: by ghost, the task and the row of who holds the key; None where the holder's row
            lies under the key's old hash, and stays there.

    Raises:
        StorageFullError, StorageError: the disk; what was made stays, and is no harm.
    """
    families: dict[str, list[tuple[bytes, bytes | None]]] = {
        "m": [
            (INGESTED + job.encode(), encode_ingested(mark)),
            (UNCOUNTED + job.encode(), encode_uncounted(seq_max, rows)),
        ]
    }
    if dropped:
        tasks = [task for task, _ in dropped.values()]
        families["g"] = [(GHOST + ghost, raw) for ghost, (_, raw) in dropped.items()]
        families["q"] = [(task.index_key, None) for task in tasks]
        families["t"] = [(TASK + task.task_id, None) for task in tasks]
    paths = []
    for family, ops in families.items():
        writer = SstWriter(folder, stem, shard=shard, family=family)
        for key, value in sorted(ops):
            if value is None:
                writer.delete(key)
            else:
                writer.put(key, value)
        paths += [os.path.join(folder, made.name) for made in writer.finish()]
    return paths
