"""Fetch the records of tasks that are about to be claimed, and of those behind them.

A claim that has to read reads ahead: the records of the next rows of the same ready caches come
with the same read, are checked, and stay with their rows. The claims that follow find them in
memory, as if the tasks had been enqueued a moment ago.
"""

from __future__ import annotations

from xxhash import xxh3_64_digest

from ...engine.records.keyspace import ORDER_AT, TASK
from ...engine.records.task import BODY_FLAG, TASK_HEAD
from ...errors import CorruptionError, LodeqError
from ..state.caches.ready_cache import RECORD, SIZE, TASK_ID, ReadyCache, Row
from ..state.engine_state import AHEAD_BYTES_MAX, EngineState
from ..state.queue_state import Shard, ShardQueue

__all__ = ["checked_records", "read_records", "records_of"]

SCAN_ROWS_MIN, SCAN_RECORD_BYTES_MAX, SCATTERED_CLAIMS = 16, 2048, 64
PAGE_ROWS = 64  # what lies between may be large, and is known only once it has been read


def records_of(state: EngineState, picked: list[tuple[ShardQueue, Row]]) -> list[bytes | None]:
    """The task record of every picked row: from memory, else read and checked, shard by shard.

    None where it is missing or damaged.
    """
    records = [row[RECORD] for _, row in picked]
    if all(records):
        return records
    missing: dict[Shard, list[int]] = {}
    caches: dict[Shard, dict[ReadyCache, None]] = {}
    for i, (shard_queue, row) in enumerate(picked):
        if row[RECORD] is None:
            shard = shard_queue.shard
            if shard not in missing:
                missing[shard], caches[shard] = [], {}
            missing[shard].append(i)
            cache = shard_queue.ready_caches[row[0][ORDER_AT]]
            if cache is not None and cache.rows:
                caches[shard][cache] = None
    for shard, indexes in missing.items():
        rows = [picked[i][1] for i in indexes]
        ahead: list[tuple[ReadyCache, list[Row]]] = []
        bytes_left = AHEAD_BYTES_MAX
        for cache in caches[shard]:
            next_rows = cache.without_record(min(bytes_left, state.ahead_bytes(cache)))
            if next_rows:
                ahead.append((cache, next_rows))
                bytes_left -= sum([row[SIZE] for row in next_rows])
                rows += next_rows
        found = checked_records(shard, rows)
        for i, record in zip(indexes, found, strict=False):
            records[i] = record
        at = len(indexes)
        for cache, next_rows in ahead:
            state.held_bytes += cache.add_records(found[at : at + len(next_rows)])
            at += len(next_rows)
    return records


def checked_records(shard: Shard, rows: list[Row]) -> list[bytes | None]:
    """Their records, payloads in body files included; None where one is missing or damaged.

    Checked here and not at every use: what was enqueued in memory never left it.

    Args:
        shard: of all of them.
        rows: at any key: their ids and sizes are looked at.
    """
    found = read_records(
        shard, [TASK + row[TASK_ID] for row in rows], sum([row[SIZE] for row in rows])
    )
    least = TASK_HEAD.size
    for i, raw in enumerate(found):
        if raw is None:
            continue
        if len(raw) <= least or not raw.endswith(xxh3_64_digest(raw[:-8])):
            found[i] = None
        elif raw[2] & BODY_FLAG:  # of a replica the row does not say it
            found[i] = shard.whole_record(rows[i][1], raw)
    return found


def read_records(shard: Shard, keys: list[bytes], record_bytes: int) -> list[bytes | None]:
    """Task records by their keys, as queued or as on disk; not yet decoded.

    None: there is no such record, or it lies in a damaged block, which costs only what is in it.

    Tasks of a backlog mostly lie side by side, and a scan costs a quarter of as many reads.
    Where they turn out not to, the next claims on the shard do without.
    """
    count = len(keys)
    if count < SCAN_ROWS_MIN or record_bytes > SCAN_RECORD_BYTES_MAX * count:
        return _read_each(shard, keys)
    if shard.scattered:
        shard.scattered -= 1
        return _read_each(shard, keys)
    try:
        near = _near(shard, min(keys), max(keys), 2 * count, 2 * record_bytes)
    except LodeqError:  # damage beside these records is not theirs: read them one by one
        near = {}
    found = list(map(near.get, keys))
    if not all(found):
        missing = [i for i, value in enumerate(found) if value is None]
        if 2 * len(missing) > count:
            shard.scattered = SCATTERED_CLAIMS
        rest = _read_each(shard, [keys[i] for i in missing])
        for i, value in zip(missing, rest, strict=True):
            found[i] = value
    return found


def _read_each(shard: Shard, keys: list[bytes]) -> list[bytes | None]:
    """Many at once; where a damaged block fails all of them, one by one."""
    try:
        return shard.overlay.multi_get(keys)
    except CorruptionError:
        return [shard.overlay.get_sound(key) for key in keys]


def _near(
    shard: Shard, first: bytes, last: bytes, rows_max: int, bytes_max: int
) -> dict[bytes, bytes]:
    """The records from ``first`` to ``last``, in pages; no further page beyond either bound."""
    near: dict[bytes, bytes] = {}
    while True:
        limit = min(PAGE_ROWS, rows_max)
        page, following = shard.store.scan_part(first, last + b"\0", limit)
        near.update(page)
        rows_max -= limit
        if following is None or (page and page[-1][0] == last) or rows_max <= 0:
            return near
        if not page:  # many that were deleted lie between them
            shard.scattered = SCATTERED_CLAIMS
            return near
        bytes_max -= sum([len(record) for _, record in page])
        if bytes_max < 0:
            shard.scattered = SCATTERED_CLAIMS
            return near
        first = following
