"""Let flushes and compactions end between measures, so that none pays for another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rocksdict import Rdict

from lodeq import Engine

__all__ = ["settled"]

_BUSY = ("num-running-compactions", "num-running-flushes", "compaction-pending")
_POLL_S, _POLLS_MAX = 0.05, 12_000


async def settled(engines: Iterable[Engine], raws: Iterable[Rdict] = ()) -> None:
    """Flush, and wait until RocksDB has nothing left to do."""
    reads = [db.property_int_value for db in raws]
    for engine in engines:
        for shard in engine._state.shards:
            await asyncio.to_thread(shard.store.flush)
            reads.append(shard.store.property_int)
    for db in raws:
        await asyncio.to_thread(db.flush)
    for _ in range(_POLLS_MAX):  # ten minutes
        if not any(read(f"rocksdb.{name}") for read in reads for name in _BUSY):
            return
        await asyncio.sleep(_POLL_S)
    raise RuntimeError("RocksDB is still compacting: what is measured now would be something else")
