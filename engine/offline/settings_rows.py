"""Rows of a whole store that lie on its first shard: pauses, settings of queues, functions.

Where several processes have a store's shards, each keeps a copy of them on the first of its own,
and an operator's change goes to all. The first shard's rows are those that count: before the
processes start, the copies are made anew, and whoever opens the store whole reads no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..records.frame import attempt
from ..records.keyspace import (
    FUNCTIONS,
    FUNCTIONS_END,
    PAUSE,
    PAUSE_END,
    QUEUE_SETTINGS,
    QUEUE_SETTINGS_END,
)
from ..records.queues.queue_settings import (
    STARTS,
    decode_queue_settings,
    encode_queue_settings,
)
from ..store.port import Op, Rows, Store, write_patiently

__all__ = ["RANGES", "copy_settings"]

RANGES: Final = (
    (PAUSE, PAUSE_END),
    (QUEUE_SETTINGS, QUEUE_SETTINGS_END),
    (FUNCTIONS, FUNCTIONS_END),
)
_SLICE: Final = 512
_OPS: Final = 256  # of one batch


def copy_settings(stores: Sequence[Store], to: Iterable[int]) -> None:
    """Make the rows on these shards what they are on the first one. Blocks.

    But for what has started of late: that is of all shards, and each process has some.
    Nothing else may write meanwhile. A crash leaves some of it: it is to be called again.

    Args:
        stores: all shards, by their index.
        to: indexes of the shards that get copies.
    """
    wanted = {key: _without_starts(key, raw) for key, raw in _rows(stores[0])}
    for index in to:
        store = stores[index]
        had = dict(_rows(store))
        ops: list[Op] = [(key, None) for key in had.keys() - wanted.keys()]
        ops += [(key, value) for key, value in wanted.items() if had.get(key) != value]
        for at in range(0, len(ops), _OPS):
            write_patiently(store, ops[at : at + _OPS])


def _without_starts(key: bytes, raw: bytes) -> bytes:
    if not QUEUE_SETTINGS <= key < QUEUE_SETTINGS_END:
        return raw
    stored = attempt(decode_queue_settings, raw)
    if stored is None or stored.pop(STARTS, None) is None:
        return raw
    return encode_queue_settings(stored)


def _rows(store: Store) -> Iterator[tuple[bytes, bytes]]:
    for lower, upper in RANGES:
        at: bytes | None = lower
        while at is not None:
            rows: Rows
            rows, at = store.scan_part(at, upper, _SLICE)
            yield from rows
