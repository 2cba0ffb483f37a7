"""Fetch the records of tasks that are about to be claimed."""

from __future__ import annotations

from ...errors import CorruptionError, LodeqError
from ..state.queue_state import Shard

__all__ = ["read_records"]

SCAN_ROWS_MIN, SCAN_RECORD_BYTES_MAX, SCATTERED_CLAIMS = 16, 2048, 64
PAGE_ROWS = 64  # what lies between may be large, and is known only once it has been read


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
