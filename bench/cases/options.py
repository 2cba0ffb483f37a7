"""The knobs of RocksDB and of the keys, one at a time: what each would buy the raw ceiling.

Raw cycles, with nothing of the engine in between, so that a gain of a few per cent shows. Each
variant runs in the same rounds as the engine's own options, on a store of its own.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import raw
from results import Bench, Result
from rocksdict import DBCompressionType, Options, Rdict, WriteOptions
from settling import settled

from lodeq.engine.store.rocks_options import LEVELS, SharedMemory, rocks_options, write_options

MIB = 1 << 20
BASE, BY_TASK = "as it is", "from lists, task by task"


class Variant(NamedTuple):
    """A store with one thing changed."""

    options: Callable[[Options], object] = lambda _: None
    writes: Callable[[WriteOptions], object] = lambda _: None
    memtable_bytes: int | None = None
    cycles: Callable[[Rdict, int, int], Iterator[float]] = raw.cycles
    beside: str = "as it is"


def _levels(first: int) -> Callable[[Options], object]:
    """No compression above level ``first``, LZ4 from there on."""
    none, lz4 = DBCompressionType.none(), DBCompressionType.lz4()

    def change(options: Options) -> None:
        options.set_compression_per_level([none] * first + [lz4] * (LEVELS - first))
        options.set_bottommost_compression_type(lz4 if first < LEVELS else none)

    return change


def _concurrent(options: Options) -> None:
    options.set_allow_concurrent_memtable_write(True)


def _hinted(writes: WriteOptions) -> None:
    writes.memtable_insert_hint_per_batch = True  # type: ignore[assignment,method-assign]


def _without_log(writes: WriteOptions) -> None:
    writes.disable_wal = True  # type: ignore[assignment,method-assign]


def _bloom(options: Options) -> None:
    options.set_memtable_prefix_bloom_ratio(0.1)
    options.set_memtable_whole_key_filtering(True)


VARIANTS = {
    BASE: Variant(),
    BY_TASK: Variant(cycles=partial(raw.lists, in_order=False)),
    "from lists, in the order of the keys": Variant(
        cycles=partial(raw.lists, in_order=True), beside=BY_TASK
    ),
    "random ids (UUID 4) instead of time-ordered": Variant(
        cycles=partial(raw.cycles, random_ids=True)
    ),
    "memtable of 16 MiB": Variant(memtable_bytes=16 * MIB),
    "memtable of 128 MiB": Variant(memtable_bytes=128 * MIB),
    "no compression": Variant(_levels(LEVELS)),
    "LZ4 on every level": Variant(_levels(0)),
    "pipelined writes": Variant(lambda options: options.set_enable_pipelined_write(True)),
    "concurrent memtable inserts, hinted": Variant(_concurrent, _hinted),
    "a bloom filter in the memtable": Variant(_bloom),
    "no log (not an option: what the log costs)": Variant(writes=_without_log),
}


@contextlib.contextmanager
def opened(path: str, variant: Variant) -> Iterator[Rdict]:
    """A store with one thing changed."""
    options = rocks_options(SharedMemory(256 * MIB), 1)
    options.create_if_missing(True)
    if variant.memtable_bytes is not None:
        # Half of the manager's bound is one memtable (SharedMemory.memtable_bytes).
        options = rocks_options(SharedMemory(512 * MIB, 2 * variant.memtable_bytes), 1)
        options.create_if_missing(True)
        options.set_write_buffer_size(variant.memtable_bytes)
    variant.options(options)
    writes = write_options()
    variant.writes(writes)
    db = Rdict(path, options)
    db.set_write_options(writes)
    try:
        yield db
    finally:
        db.close()


async def options(bench: Bench) -> None:
    """Options of RocksDB, order of keys: raw cycles in batches of 64 with one thing changed."""
    n = int(64_000 * bench.scale)
    with contextlib.ExitStack() as stack:
        measures = {}
        stores: list[Rdict] = []
        for i, (name, variant) in enumerate(VARIANTS.items()):
            db = stack.enter_context(opened(str(bench.folder / f"options-{i}"), variant))
            stores.append(db)
            runs = variant.cycles(db, n, 64)

            async def measure(runs: Iterator[float]) -> float:
                return next(runs)

            measures[name] = partial(measure, runs)
        order = list(measures)
        random.Random(1).shuffle(order)  # who runs behind whom is not the order of the table
        for name in order:  # the first round of a store meets empty levels
            await measures[name]()
        found = await bench.rounds(
            {name: measures[name] for name in order}, before=partial(settled, [], stores)
        )
    for name, variant in VARIANTS.items():
        beside = "" if name == BASE else variant.beside
        bench.add(
            Result(
                "option",
                {"changed": name},
                "raw cycles/s",
                found[name],
                beside,
                found[beside] if beside else [],
            )
        )
