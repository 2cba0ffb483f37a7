"""The dedup index: entries under the keyed hash, and those that are left from format 1.

An entry of format 1 lies under an unkeyed hash. Whoever gives keys can compute one that shares its
hash with another tenant's, so such an entry is only looked for while the shard has any: how many is
a row of its own, and rides in the batch that changes it. None is made, but by a redrive of a dead
letter that still has its own.
"""

from __future__ import annotations

from ....coalescer.group import Group
from ....engine.records.keyspace import GHOST, OLD_GHOSTS, SECRET, ghost_hasher, old_ghost_hash
from ....engine.records.rows import (
    OLD_FORM,
    Ghost,
    decode_ghost,
    decode_old_ghosts,
    decode_secret,
    encode_old_ghosts,
)
from ....errors import LodeqError
from ..queue_state import Shard

__all__ = [
    "drop_ghost",
    "drop_old_entry",
    "is_old_entry",
    "load_dedup",
    "old_entry",
    "old_entry_of",
]


def is_old_entry(shard: Shard, ghost: bytes) -> bool:
    """Whether an entry of format 1 lies under that hash. Raises nothing: batches are half made.

    One that cannot be read is counted still: the count is never too low.
    """
    try:
        raw = shard.overlay.get(GHOST + ghost) if shard.old_ghosts else None
        return raw is not None and decode_ghost(raw).form == OLD_FORM
    except LodeqError:
        return False


def old_entry_of(shard: Shard, routing: bytes) -> bytes | None:
    """The old hash of a dedup key, where an entry of format 1 lies under it."""
    ghost = old_ghost_hash(routing)
    return ghost if is_old_entry(shard, ghost) else None


def old_entry(shard: Shard, routing: bytes) -> Ghost | None:
    """The entry that a dedup key has under its old hash. Raises ``RecordCorruptError``."""
    raw = shard.overlay.get(GHOST + old_ghost_hash(routing))
    found = None if raw is None else decode_ghost(raw)
    return found if found is not None and found.form == OLD_FORM else None


def drop_ghost(shard: Shard, group: Group, ghost: bytes) -> None:
    """``-g``, whichever hash it is."""
    if shard.old_ghosts and is_old_entry(shard, ghost):
        _count_out(shard, group)
    group.ops.append((GHOST + ghost, None))


def drop_old_entry(shard: Shard, group: Group, ghost: bytes) -> None:
    """The key has an entry under its new hash now: that of ``old_entry_of`` goes."""
    _count_out(shard, group)
    group.ops.append((GHOST + ghost, None))


def _count_out(shard: Shard, group: Group) -> None:
    shard.old_ghosts -= 1
    left = shard.old_ghosts
    group.ops.append((OLD_GHOSTS, encode_old_ghosts(left) if left else None))


def load_dedup(shard: Shard) -> None:
    """Read what dedup hashes are keyed with, and how many entries are from before that."""
    raw, count = shard.overlay.get(SECRET), shard.overlay.get(OLD_GHOSTS)
    shard.secret = b"" if raw is None else decode_secret(raw)
    shard.ghost_hasher = ghost_hasher(shard.secret)
    shard.old_ghosts = 0 if count is None else decode_old_ghosts(count)
