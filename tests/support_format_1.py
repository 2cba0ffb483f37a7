"""A store of today made into what a release of format 1 would have left: for dedup keys."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.records.lease import decode_lease, encode_lease
from lodeq.engine.records.task import NO_GHOST, decode_task, encode_task
from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.store.port import Op, Store
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory

MIB = 1 << 20


def open_shard(root: Path, shard: int) -> RocksStore:
    return RocksStore.open(str(root / f"shard{shard}"), shared=SharedMemory(8 * MIB), create=False)


def as_format_1(root: Path, keys: Iterable[tuple[str, str, str]], shards: int = 1) -> None:
    """Of a closed store; ``keys``: (queue, tenant, dedup key) of every entry it has."""
    routings = ["\0".join(key).encode() for key in keys]
    for shard in range(shards):
        store = open_shard(root, shard)
        rewrite(store, routings)
        store.close()
    (root / "secrets").unlink(missing_ok=True)


def rewrite(store: Store | MemoryStore, routings: Iterable[bytes]) -> None:
    """The rows of one shard."""
    secret = small.decode_secret(store.get(ks.SECRET) or b"")
    old = {ks.ghost_hash(secret, routing): ks.old_ghost_hash(routing) for routing in routings}
    ops: list[Op] = [(ks.SECRET, None), (ks.OLD_GHOSTS, None)]
    for key, value in store.scan(b"", b"\xff", 1 << 20):
        if key == ks.STAMP:
            stamp = small.decode_stamp(value)._replace(version=1)
            ops.append((key, small.encode_stamp(stamp)))
        elif key.startswith(ks.GHOST):
            row = small.decode_ghost(value)._replace(form=small.OLD_FORM)
            ops += [(key, None), (ks.GHOST + old[key[2:]], small.encode_ghost(row))]
        elif key.startswith(ks.TASK) and decode_task(value).ghost != NO_GHOST:
            task = decode_task(value)
            task = task._replace(ghost=old[task.ghost], ghost_form=small.OLD_FORM)
            ops.append((key, encode_task(task)))
        elif key.startswith(ks.LEASE) and decode_lease(value).ghost != NO_GHOST:
            lease = decode_lease(value)
            ops.append((key, encode_lease(lease._replace(ghost=old[lease.ghost]))))
        elif key.startswith(ks.EXPIRY):
            entries = [
                {ord("B"): b"b", ord("g"): b"g"}.get(kind, bytes((kind,)))
                + (old.get(ref, ref) if kind == ord("g") else ref)
                for kind, ref in small.decode_expiry(value)
            ]
            ops.append((key, small.encode_expiry(entries)))
    store.write(ops)
