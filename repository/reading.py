"""The bodies of tasks that are about to be claimed."""

from __future__ import annotations

from ..engine.keyspace import TASK
from ..errors import LodeqError
from .state import Shard

__all__ = ["read_records"]

SCAN_ROWS_MIN, SCAN_RECORD_BYTES_MAX, SCATTERED_CLAIMS = 16, 2048, 64


def read_records(shard: Shard, ids: list[bytes], record_bytes: int) -> list[bytes | None]:
    """Task records, as queued or as on disk; not yet decoded.

    Tasks of a backlog mostly lie side by side, and one scan costs a quarter of as many
    reads. Where they turn out not to, the next claims on the shard do without.
    """
    keys = [TASK + task_id for task_id in ids]
    count = len(keys)
    if count < SCAN_ROWS_MIN or record_bytes > SCAN_RECORD_BYTES_MAX * count:
        return shard.overlay.multi_get(keys)
    if shard.scattered:
        shard.scattered -= 1
        return shard.overlay.multi_get(keys)
    try:
        near = dict(shard.store.scan(min(keys), max(keys) + b"\0", 2 * count))
    except LodeqError:  # damage beside these records is not theirs: read them one by one
        near = {}
    found = [near.get(key) for key in keys]
    missing = [i for i, value in enumerate(found) if value is None]
    if missing:
        if 2 * len(missing) > count:
            shard.scattered = SCATTERED_CLAIMS
        rest = shard.overlay.multi_get([keys[i] for i in missing])
        for i, value in zip(missing, rest, strict=True):
            found[i] = value
    return found
