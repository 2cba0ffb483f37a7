"""The shards that a whole-queue call is about: all of them, unless its caller names some.

A client of a cluster asks every node about the shards that it leads, and puts the answers together.
So a node may be asked for less than it holds: what it only follows is another's to tell. The choice
is a context variable, for it concerns every function that walks over shards or shard queues below a
call, and none of the calls themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from .queue_state import Shard, ShardQueue

__all__ = ["is_meant", "is_scoped", "only", "shard_queues_meant", "shards_meant"]

_named: Final[ContextVar[frozenset[int] | None]] = ContextVar("lodeq_shards", default=None)


@contextmanager
def only(shards: Collection[int]) -> Iterator[None]:
    """Within the block, whole-queue calls of this task are about these shards."""
    token = _named.set(frozenset(shards))
    try:
        yield
    finally:
        _named.reset(token)


def is_scoped() -> bool:
    """Whether the call is about some of the shards."""
    return _named.get() is not None


def is_meant(shard: Shard) -> bool:
    """Whether the call is about this shard."""
    named = _named.get()
    return named is None or shard.index in named


def shards_meant(shards: Iterable[Shard]) -> list[Shard]:
    """Those of the shards that the call is about."""
    named = _named.get()
    return [shard for shard in shards if named is None or shard.index in named]


def shard_queues_meant(shard_queues: Iterable[ShardQueue | None]) -> list[ShardQueue]:
    """Those of the shard queues that are there, and on a shard that the call is about."""
    named = _named.get()
    return [
        shard_queue
        for shard_queue in shard_queues
        if shard_queue is not None and (named is None or shard_queue.shard.index in named)
    ]
