"""The engine's own rows beside a load: taken into a shard in the same step as its files.

The row that says that the load has come in, the one that says what is not counted yet, the rows
that lead to streamed payloads, and for tasks that stay out, because others hold their dedup key or
id: tombstones over their rows, and on top what the store has under the same keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..records.ingest import Ingested, LoadedRows, encode_ingested, encode_uncounted
from ..records.keyspace import BODY, GHOST, INGESTED, TASK, UNCOUNTED, body_at_key
from ..records.rows import BodyRow, encode_body, encode_body_at
from .ids import ListedTask
from .keys import KeyedTask
from .manifest import ShardQueueRows
from .sst import SstWriter

__all__ = ["LeftOut", "load_rows", "write_patch"]

LeftOut = KeyedTask | ListedTask


def load_rows(
    shard_queues: Sequence[ShardQueueRows], dropped: Sequence[LeftOut]
) -> list[LoadedRows]:
    """Counts that a shard gets by (queue, tenant), dropped tasks left out."""
    lost: dict[tuple[bytes, bytes, bool], int] = {}
    for task in dropped:
        name = (task.queue, task.tenant, task.due_ms > 0)
        lost[name] = lost.get(name, 0) + 1
    rows = []
    for one in shard_queues:
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
    dropped: Sequence[LeftOut],
    ghosts: Mapping[bytes, bytes | None],
    kept: Mapping[bytes, bytes | None],
    bodies: Mapping[bytes, BodyRow],
) -> list[str]:
    """Write the files; their paths. Blocks.

    Args:
        stem: never used before in ``folder``: a file that has come in may still have its old name
            there, and writing to it would write to the store.
        dropped: the tasks that stay out.
        ghosts: by dedup hash of such a task, the entry that stays; None: there is none under this
            hash.
        kept: rows that the store has under keys of these tasks; None: it has none.
        bodies: by task id, where its streamed payload lies.

    Raises:
        StorageFullError, StorageError: the disk; what was made stays, and is no harm.
    """
    families: dict[str, list[tuple[bytes, bytes | None]]] = {
        "m": [
            (INGESTED + job.encode(), encode_ingested(mark)),
            (UNCOUNTED + job.encode(), encode_uncounted(seq_max, rows)),
        ]
    }
    if bodies:
        families["b"] = [(BODY + task_id, encode_body(row)) for task_id, row in bodies.items()]
        families["o"] = [
            (body_at_key(row.file, row.offset, task_id), encode_body_at(row.size))
            for task_id, row in bodies.items()
        ]
    if dropped:
        families["g"] = [(GHOST + ghost, raw) for ghost, raw in ghosts.items()]
        families["q"] = [(task.index_key, kept.get(task.index_key)) for task in dropped]
        records = [TASK + task.task_id for task in dropped]
        families["t"] = [(key, kept.get(key)) for key in records]
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
