"""Every RocksDB option, explicit, with a why.

With ``rocks.py``, ``rocks_errors.py`` and the SST writer this is the store module: nothing else
imports rocksdict.

A queue's rows live briefly. Most are written, deleted and forgotten within seconds, so the memtable
is where they should die, and what reaches level 0 is mostly tombstones that a compaction should
drop soon. Next to that throughput question stand two promises:

- *Memory is bounded.* One block cache serves all shards and also pays for the memtables (through
  one ``WriteBufferManager``) and for index and filter blocks. A million pending tasks stay
  on disk.
- *Open is quick.* Replaying the WAL holds the GIL, so the WAL must stay short. RocksDB enforces
  ``max_total_wal_size`` only in a database of several column families; ours has one. What
  really bounds the live WAL is memtable size times memtable count, hence the modest memtables.

``no_slowdown`` turns every throttled write into a refusal (``StoreStalledError``), so there is no
useful zone between "go on" and "stop": the slowdown triggers lie close below the stop triggers.
"""

from __future__ import annotations

import resource
from typing import Final, Literal

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DataBlockIndexType,
    DBCompactionStyle,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    WriteBufferManager,
    WriteOptions,
)

__all__ = [
    "RecoveryMode",
    "SharedMemory",
    "open_files_max",
    "rocks_options",
    "sst_options",
    "write_options",
]

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

LEVELS = 7
OPEN_FILES_MIN: Final = 20  # RocksDB's own

RecoveryMode = Literal["tail", "point_in_time"]


class SharedMemory:
    """The memory of all shards of one engine: one cache, and the memtables charged to it.

    Create it once per engine and hand it to every ``RocksStore.open``.

    Args:
        block_cache_bytes: the bound on data, index and filter blocks and memtables together.
        write_buffer_bytes: the part of it that memtables of all shards may take.
    """

    __slots__ = ("cache", "write_buffer_bytes", "write_buffers")

    def __init__(
        self, block_cache_bytes: int = 256 * MIB, write_buffer_bytes: int | None = None
    ) -> None:
        if write_buffer_bytes is None:
            # A quarter: memtables of 64 MiB kill most rows, three quarters still cache reads.
            write_buffer_bytes = max(8 * MIB, block_cache_bytes // 4)
        self.write_buffer_bytes = write_buffer_bytes
        self.cache = Cache(block_cache_bytes)
        # allow_stall=False: a stall would block the event loop; we want a refusal instead.
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            write_buffer_bytes, False, self.cache
        )

    def memtable_bytes(self, shards: int) -> int:
        """The size of one memtable: space for one being filled and one being flushed a shard."""
        return max(4 * MIB, min(64 * MIB, self.write_buffer_bytes // (2 * shards)))

    def used_bytes(self) -> int:
        """Bytes in the cache now, memtables included."""
        return self.cache.get_usage()


def write_options() -> WriteOptions:
    """For every write: to the WAL, unsynced, and refused rather than delayed."""
    options = WriteOptions()
    options.sync = False  # a synced write holds the GIL through the fsync; flush_wal does not
    # The WAL is what survives the process. (A property, whatever the stub says.)
    options.disable_wal = False  # type: ignore[method-assign, assignment]
    options.no_slowdown = True  # a stalled store answers; it must not freeze the event loop
    options.low_pri = False  # low priority writes are throttled as soon as compaction lags
    options.ignore_missing_column_families = False  # there is one; another is a bug
    options.memtable_insert_hint_per_batch = False  # keys of a batch are spread over families
    return options


def rocks_options(
    shared: SharedMemory,
    shards: int,
    *,
    recovery_mode: RecoveryMode = "tail",
    create: bool = False,
) -> Options:
    """The options of one shard among ``shards``.

    Args:
        shared: block cache and write buffers of all shards.
        shards: how many share the memory, 1 to 4,096.
        recovery_mode: how much damage at the end of the WAL is accepted.
        create: whether RocksDB may make a new database.
    """
    options = Options(raw_mode=True)  # raw: bytes in, bytes out, nothing is ever unpickled
    options.create_if_missing(create)  # only when asked: a mistyped path must not make a store
    options.set_error_if_exists(False)  # open and create are one call
    options.create_missing_column_families(False)  # there is only the default one
    options.set_block_based_table_factory(_tables(shared.cache))
    _recovery(options, recovery_mode)
    _memtables(options, shared, shards)
    _levels(options, shared, shards)
    _files(options, shards)
    return options


def sst_options() -> Options:
    """For files of rows that are written outside a store, to be taken in by one: its own tables."""
    options = Options(raw_mode=True)  # the same comparator, or no store takes them
    options.set_block_based_table_factory(_tables(None))
    options.set_compression_type(DBCompressionType.lz4())  # what they are merged with, below
    return options


def _tables(cache: Cache | None) -> BlockBasedOptions:
    tables = BlockBasedOptions()
    if cache is None:
        tables.disable_cache()  # written once, read by somebody else
    else:
        tables.set_block_cache(cache)  # one for all shards: an idle one lends its share
    tables.set_cache_index_and_filter_blocks(True)  # else they grow outside the bound
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)  # every read asks level 0 first
    tables.set_bloom_filter(10, False)  # 10 bits a key: 1 % false hits; a ghost miss reads no block
    tables.set_block_size(8 * KIB)  # rows are ~200 B and read in runs: half the index of 4 KiB
    tables.set_block_restart_interval(16)  # RocksDB's default; keys share long prefixes
    tables.set_index_block_restart_interval(1)  # binary search down to the entry
    tables.set_index_type(BlockBasedIndexType.binary_search())  # small files need no second level
    tables.set_data_block_index_type(DataBlockIndexType.binary_search())  # scans gain nothing else
    tables.set_format_version(5)  # readable since RocksDB 6.6; brings the full bloom filter
    tables.set_checksum_type(ChecksumType.xxh3())  # the fastest; checked on every block read
    return tables


def _recovery(options: Options, mode: RecoveryMode) -> None:
    options.set_wal_recovery_mode(
        DBRecoveryMode.point_in_time()  # salvage: stop at the first damage, the caller checks
        if mode == "point_in_time"
        else DBRecoveryMode.tolerate_corrupted_tail_records()  # refuse damage that is no torn tail
    )
    options.set_paranoid_checks(True)  # damage found at open is an error, not a warning
    options.set_recycle_log_file_num(0)  # recycled WALs look like torn ones
    options.set_wal_ttl_seconds(0)  # keep no old WAL: nobody tails them
    options.set_wal_size_limit_mb(0)  # the same
    options.set_atomic_flush(False)  # one column family
    options.set_skip_stats_update_on_db_open(True)  # it reads every table at open


def _memtables(options: Options, shared: SharedMemory, shards: int) -> None:
    memtable_bytes = shared.memtable_bytes(shards)
    options.set_write_buffer_manager(shared.write_buffers)  # the bound over all shards
    options.set_db_write_buffer_size(0)  # the manager has that number
    options.set_write_buffer_size(memtable_bytes)  # see the module's essay: also bounds the WAL
    options.set_max_write_buffer_number(4)  # one filled, three flushing; then writes are refused
    options.set_min_write_buffer_number_to_merge(1)  # waiting to merge would keep the WAL long
    options.set_max_write_buffer_size_to_maintain(0)  # no history: there are no transactions
    options.set_max_total_wal_size(4 * memtable_bytes)  # what the memtables imply, stated
    options.set_allow_concurrent_memtable_write(False)  # one writer: plain inserts, no CAS
    options.set_enable_pipelined_write(False)  # one writer: nothing to overlap
    options.set_enable_write_thread_adaptive_yield(False)  # one writer: nobody to spin for
    options.set_unordered_write(False)  # a snapshot must be a moment
    options.set_inplace_update_support(False)  # breaks snapshots
    options.set_memtable_whole_key_filtering(False)  # costs each insert; misses ask few keys
    options.set_memtable_prefix_bloom_ratio(0.0)  # the same


def _levels(options: Options, shared: SharedMemory, shards: int) -> None:
    table_bytes = max(8 * MIB, shared.memtable_bytes(shards))
    options.set_compaction_style(DBCompactionStyle.level())  # least space; scans meet few runs
    options.set_num_levels(LEVELS)  # RocksDB's default
    options.set_level_compaction_dynamic_level_bytes(True)  # few levels while the store is small
    options.set_level_zero_file_num_compaction_trigger(4)  # each L0 file costs every scan a seek
    options.set_level_zero_slowdown_writes_trigger(32)  # refusals begin: keep space above normal
    options.set_level_zero_stop_writes_trigger(40)  # and reads must not sink below a crawl
    options.set_soft_pending_compaction_bytes_limit(64 * GIB)  # a backlog is no emergency
    options.set_hard_pending_compaction_bytes_limit(256 * GIB)  # a runaway is
    options.set_max_bytes_for_level_base(max(64 * MIB, 4 * table_bytes))  # as large as a full L0
    options.set_max_bytes_for_level_multiplier(10.0)  # RocksDB's default
    options.set_target_file_size_base(table_bytes)  # a flush's worth; bounds the work of one step
    options.set_target_file_size_multiplier(1)  # the same on every level
    options.set_max_subcompactions(1)  # background work may take a core, not all of them
    options.set_disable_auto_compactions(False)  # tombstones must go
    # Consumed rows leave runs of tombstones that every later scan steps over: a table where half
    # of any 4,096 neighbours are deletions is compacted next, full or not.
    options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5)
    # Level 0 is short-lived: compressing it is wasted. LZ4 below: decompresses at memory speed.
    levels = [DBCompressionType.none()] + [DBCompressionType.lz4()] * (LEVELS - 1)
    options.set_compression_per_level(levels)
    options.set_bottommost_compression_type(DBCompressionType.lz4())  # one codec to depend on
    options.set_optimize_filters_for_hits(False)  # misses matter: a dedup check is a miss


def open_files_max(shards: int) -> int:
    """Tables that one of ``shards`` may have open: bounded, as each of their readers costs memory.

    All of them take at most half of the files of the process. A shard that cannot open its next log
    takes no writes until it is reopened, and the tables are what grows without anybody's doing.
    """
    most = max(64, 1024 // shards)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(OPEN_FILES_MIN, min(most, soft // 2 // shards))


def _files(options: Options, shards: int) -> None:
    options.set_max_background_jobs(min(8, 2 + shards // 2))  # a flush and a compaction at least
    options.set_max_open_files(open_files_max(shards))
    options.set_max_file_opening_threads(4)  # open is quick with few files; more only thrash
    options.set_avoid_unnecessary_blocking_io(True)  # deletes files in the background, not in us
    options.set_use_fsync(False)  # fdatasync: the size of a preallocated file is settled
    options.set_bytes_per_sync(MIB)  # spread table writeback, so that a WAL sync waits less
    options.set_wal_bytes_per_sync(0)  # would run inside write(), holding the GIL
    options.set_use_direct_reads(False)  # the page cache is the second cache
    options.set_use_direct_io_for_flush_and_compaction(False)  # the same
    options.set_allow_mmap_reads(False)  # an I/O error would be a SIGBUS
    options.set_allow_mmap_writes(False)  # the same
    options.set_advise_random_on_open(False)  # scans and compactions read ahead
    options.set_is_fd_close_on_exec(True)  # children of the user must not hold our files
    options.set_keep_log_file_num(4)  # of RocksDB's own LOG: the last few opens
    options.set_max_log_file_size(4 * MIB)  # bounded
    options.set_log_file_time_to_roll(0)  # by size only
    options.set_max_manifest_file_size(16 * MIB)  # read whole at open
    options.set_manifest_preallocation_size(64 * KIB)  # a small store stays small
    options.set_stats_dump_period_sec(0)  # no thread that wakes to log statistics
    options.set_stats_persist_period_sec(0)  # nor one that stores them
    options.set_report_bg_io_stats(False)  # unread
