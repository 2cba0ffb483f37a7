"""The ceiling: the same keys and values through rocksdict, without an engine in between.

A task's life is seven key operations in three batches: ``+t +q``, ``-q +l``, ``-l -t +r``. Sizes
are those of the engine's records for a 100-byte payload; ids are in UUIDv7 order.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Sequence
from operator import itemgetter

from rocksdict import DBCompressionType, Rdict, WriteBatch

from lodeq.engine.records.lease import LEASE_BODY
from lodeq.engine.records.result import RESULT_HEAD
from lodeq.engine.records.rows import IndexRow, encode_index_row
from lodeq.engine.records.task import TASK_HEAD
from lodeq.engine.store.rocks_options import SharedMemory, rocks_options

QUEUE = b"bench"


def open_raw(path: str, *, blobs: bool = False) -> Rdict:
    """Open with the engine's own RocksDB options; ``blobs``: large values lie in blob files.

    Those are of the size of our body files, and collected as RocksDB does by default.
    """
    options = rocks_options(SharedMemory(256 << 20), 1)
    options.create_if_missing(True)
    if blobs:
        options.set_enable_blob_files(True)
        options.set_min_blob_size(4 << 10)
        options.set_blob_file_size(16 << 20)
        options.set_blob_compression_type(DBCompressionType.none())
        options.set_enable_blob_gc(True)
        options.set_blob_gc_age_cutoff(0.25)
        options.set_blob_gc_force_threshold(1.0)
    return Rdict(path, options)


def new_ids(n: int) -> list[bytes]:
    """Time-ordered: forty to a millisecond."""
    ms = time.time_ns() // 1_000_000
    return [struct.pack(">Q", (ms + i // 40) << 16 | 0x7000)[:8] + os.urandom(8) for i in range(n)]


def values(payload_bytes: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Task, index, lease and result values of the engine's sizes."""
    task = os.urandom(TASK_HEAD.size + len(QUEUE) + payload_bytes + 8)
    index = encode_index_row(IndexRow(0, 5, 0, len(task), 0, b""))
    lease = os.urandom(LEASE_BODY.size + len(QUEUE) + 8)
    result = os.urandom(RESULT_HEAD.size + len(QUEUE) + 8)
    return task, index, lease, result


def cycles(
    db: Rdict,
    n: int,
    batch: int,
    payload_bytes: int = 100,
    *,
    random_ids: bool = False,
    seconds: float = 0.0,
    cpu_us: list[float] | None = None,
    is_synced: bool = False,
) -> Iterator[float]:
    """Full cycles per second in batches of ``batch``, one figure per call of ``next``.

    Each is of ``n`` cycles, or of as many times ``n`` as it takes for so many seconds; ``cpu_us``
    gets the CPU microseconds a cycle of each figure; ``is_synced`` syncs the log behind each batch.
    """
    sizes = values(payload_bytes)
    while True:
        done, took, cpu = 0, 0.0, 0.0
        while not done or took < seconds:
            ids = [os.urandom(16) for _ in range(n)] if random_ids else new_ids(n)
            started, spent = time.perf_counter(), time.process_time()
            for at in range(0, n, batch):
                _cycle(db, ids[at : at + batch], at, *sizes, is_synced=is_synced)
            done, took = done + n, took + time.perf_counter() - started
            cpu += time.process_time() - spent
        if cpu_us is not None:
            cpu_us.append(cpu / done * 1e6)
        yield done / took


def _cycle(
    db: Rdict,
    part: list[bytes],
    at: int,
    task: bytes,
    index: bytes,
    lease: bytes,
    result: bytes,
    *,
    is_synced: bool,
) -> None:
    keys = [b"q/bench\0\0r\4" + struct.pack(">Q", at + i) + d for i, d in enumerate(part)]
    w = WriteBatch(raw_mode=True)
    for d, k in zip(part, keys, strict=True):
        w[b"t/" + d] = task  # by item: a tenth faster than by method
        w[k] = index
    _write(db, w, is_synced=is_synced)
    w = WriteBatch(raw_mode=True)
    for d, k in zip(part, keys, strict=True):
        del w[k]
        w[b"l/" + d] = lease
    _write(db, w, is_synced=is_synced)
    w = WriteBatch(raw_mode=True)
    for d in part:
        del w[b"l/" + d]
        del w[b"t/" + d]
        w[b"r/" + d] = result
    _write(db, w, is_synced=is_synced)


def _write(db: Rdict, batch: WriteBatch, *, is_synced: bool) -> None:
    db.write(batch)
    if is_synced:
        db.flush_wal(True)


def puts(db: Rdict, payloads: Sequence[bytes], n: int, batch: int, *, is_synced: bool) -> float:
    """Payloads as they are, each with an index row, in batches; per second."""
    ids = new_ids(n)
    index = values(0)[1]
    started = time.perf_counter()
    for at in range(0, n, batch):
        w = WriteBatch(raw_mode=True)
        for i, d in enumerate(ids[at : at + batch], at):
            w[b"t/" + d] = payloads[i % len(payloads)]
            w[b"q/bench\0\0r\4" + struct.pack(">Q", i) + d] = index
        db.write(w)
        if is_synced:
            db.flush_wal(True)
    return n / (time.perf_counter() - started)


def lists(db: Rdict, n: int, batch: int, *, in_order: bool) -> Iterator[float]:
    """The same from lists of rows, as the engine has them: task by task, or by key."""
    task, index, lease, result = values(100)
    while True:
        ids = new_ids(n)
        started = time.perf_counter()
        for at in range(0, n, batch):
            part = ids[at : at + batch]
            keys = [b"q/bench\0\0r\4" + struct.pack(">Q", at + i) + d for i, d in enumerate(part)]
            pairs = list(zip(part, keys, strict=True))
            for ops in (
                [row for d, k in pairs for row in ((b"t/" + d, task), (k, index))],
                [row for d, k in pairs for row in ((k, None), (b"l/" + d, lease))],
                [
                    row
                    for d in part
                    for row in ((b"l/" + d, None), (b"t/" + d, None), (b"r/" + d, result))
                ],
            ):
                w = WriteBatch(raw_mode=True)
                for key, value in sorted(ops, key=itemgetter(0)) if in_order else ops:
                    if value is None:
                        del w[key]
                    else:
                        w[key] = value
                db.write(w)
        yield n / (time.perf_counter() - started)


def synced_writes(db: Rdict, seconds: float) -> float:
    """One fsynced write after another, per second."""
    n, started = 0, time.perf_counter()
    value = os.urandom(200)
    while time.perf_counter() - started < seconds:
        w = WriteBatch(raw_mode=True)
        w.put(b"x/%016d" % n, value)
        db.write(w)
        db.flush_wal(True)
        n += 1
    return n / (time.perf_counter() - started)
