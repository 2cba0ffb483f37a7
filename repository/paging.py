"""A range of rows, page by page, for whoever gives the loop turns in between.

An empty page is not the end of a range: a pending group may have deleted its rows, or there may be
many that were deleted long ago, or a range that cannot be read, which ``health()`` names. ``Pages``
goes on by itself, with a turn of the loop after each.
"""

from __future__ import annotations

from ..engine.keyspace import DEAD, DELAYED, prefix_end
from ..engine.store import Rows
from ..errors import CorruptionError
from .core import Core
from .state import Bucket, Shard

__all__ = ["Pages", "find_floor"]

_RAISED = (DELAYED, DEAD)  # of the ready rows the windows know


class Pages:
    """The rows in ``[lower, upper)`` of a shard, queued ones too.

    Args:
        core: for turns of the loop.
        shard: whose rows.
        lower: where to begin.
        upper: where to end.
        limit: rows a page.
        for_writing: wait for room on the shard before each page.
    """

    __slots__ = ("_at", "_core", "_for_writing", "_is_first", "_limit", "_shard", "_upper")

    def __init__(
        self, core: Core, shard: Shard, lower: bytes, upper: bytes, limit: int,
        *, for_writing: bool = False,
    ) -> None:  # fmt: skip
        self._core = core
        self._shard = shard
        self._at: bytes | None = lower
        self._upper = upper
        self._limit = limit
        self._for_writing = for_writing
        self._is_first = True

    async def following(self) -> Rows:
        """The next rows; none: that was all. No wait is between its read and its return."""
        core, shard = self._core, self._shard
        while self._at is not None:
            if not self._is_first:
                await core.spawner.checkpoint()
                core.check()
            self._is_first = False
            if self._for_writing and not shard.co.has_room:
                await core.room(shard)
            rows, self._at = shard.overlay.scan_readable(self._at, self._upper, self._limit)
            if rows:
                return rows
        return []


async def find_floor(core: Core, bucket: Bucket, kind: bytes) -> bytes:
    """Where the rows of one kind begin; remembered, so that deleted rows are passed over once.

    What is filed below the floor meanwhile lowers it. So each part is remembered before the wait.
    """
    upper = prefix_end(bucket.prefix + kind)
    while True:
        try:
            rows, following = bucket.shard.overlay.scan(bucket.floor(kind), upper, 1)
        except CorruptionError:  # rows may come back in what cannot be read: no floor is above it
            return bucket.floor(kind)
        if rows:
            bucket.raise_floor(kind, rows[0][0])
        if rows or following is None or bucket.shard.co.poison is not None:
            return bucket.floor(kind)
        bucket.raise_floor(kind, following)
        if kind not in _RAISED:
            return bucket.floor(kind)
        await core.spawner.checkpoint()
        core.check()
