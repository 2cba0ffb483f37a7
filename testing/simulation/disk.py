"""A simulated disk. A seed decides what a crash leaves on it.

One ``SimDisk`` outlives the processes that open it. A write is visible at once, and durable when
a sync that started after it has returned. A *kill* keeps every write; a *power cut* keeps what was
synced and any subset of the rest: whole batches, not only the first ones, because write-ahead
logs are separate files (a younger one may be on disk while an older one is not).

The seed also draws faults: slow writes and syncs, a store that stalls or is full for a while, a
failed write (outcome unknown: it may be on disk at the next open), a failed sync (a second one
succeeds and makes nothing durable, as Linux behaves). A failed store accepts no write until it is
reopened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ...engine.records.keyspace import SECRET_BYTES, STAMP
from ...engine.records.rows import Stamp, decode_stamp
from ...engine.recovery.decide import Candidate, check_ring
from ...engine.recovery.dedup_secret import stamp_ops
from ...engine.recovery.incarnation import begin, check_replicas, sync_all
from ...engine.recovery.open_shard import OpenShard, OpenStore
from ...engine.recovery.repair import repair
from ...engine.recovery.watermark import WatermarkState
from ...engine.runtime.ids import Dice, Rng
from ...engine.store.memory import MemoryStore
from ...engine.store.port import Op, Rows, StoreView
from ...errors import (
    ClosedError,
    CommitUnknownError,
    InvariantError,
    LodeqError,
    RecoveryRefusedError,
    StorageError,
    StorageFullError,
    StoreStalledError,
)
from .loop import SimLoop

__all__ = ["Faults", "SimDisk", "SimMark", "SimStore"]

Done = Callable[[BaseException | None], None]


@dataclass(slots=True)
class Faults:
    """Probability of each fault per call, 0 to 1. ``*_s``: longest duration, virtual seconds."""

    slow_write: float = 0.0
    slow_write_s: float = 0.05
    sync_s: float = 0.01
    slow_sync: float = 0.0
    slow_sync_s: float = 2.0
    stall: float = 0.0
    full: float = 0.0
    refuse_s: float = 1.0
    write_error: float = 0.0
    sync_error: float = 0.0
    read_error: float = 0.0


@dataclass(slots=True)
class _Platter:
    """The disk of one shard: durable rows, then the batches that are not durable yet."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    loose: list[list[Op]] = field(default_factory=list)
    limbo: list[list[Op]] = field(default_factory=list)  # written with an error: on disk or not
    mark: WatermarkState | None = None

    def harden(self, count: int) -> None:
        """Make the first ``count`` loose batches durable."""
        for batch in self.loose[:count]:
            _apply(self.rows, batch)
        del self.loose[:count]


class SimDisk:
    """The disk of a store of ``shards`` shards.

    Args:
        shards: 1 to 4,096.
        random: draws latencies, faults and the batches a crash keeps.
        emit: called with ``["sync", shard, n]`` and ``["synced", shard, n]``, as ``History`` takes
            them.
    """

    def __init__(
        self, shards: int, random: Dice, *, emit: Callable[[list[object]], None] | None = None
    ) -> None:
        self.random = random
        self.faults = Faults()
        self.emit = emit if emit is not None else lambda _: None
        self.platters = [_Platter() for _ in range(shards)]
        self.stores: list[SimStore] = []
        self.syncs = 0
        self.writes = 0
        self.die_at_write = -1  # number of the write, counted while opening, too
        self.lost_batches = 0  # by power cuts

    def open(
        self,
        loop: SimLoop,
        *,
        durability: str,
        rng: Rng,
        now_ms: int,
        has_journal: bool = False,
        is_replica: bool = False,
    ) -> OpenStore:
        """Open as ``engine/recovery/open_shard.py`` does: examine all shards, repair, begin.

        Args:
            loop: of the process that opens it.
            durability: ``nosync`` or ``fsync``.
            rng: the engine's; opening draws nothing from it.
            now_ms: wall time for repairs.
            has_journal: whether a lifecycle journal is open as well.
            is_replica: whether its batches come through a replicated log.

        Raises:
            RecoveryRefusedError: durable commits are missing.
        """
        store_id = b"simulated store."
        count, secret = len(self.platters), bytes(range(SECRET_BYTES))
        if is_replica:
            secret = b""  # its log brings one
        self.stores = [SimStore(self, index, loop) for index in range(count)]
        found: list[Candidate] = []
        for index, store in enumerate(self.stores):
            raw, platter = store.get(STAMP), self.platters[index]
            mark = platter.mark
            if raw is None:
                if mark is not None:
                    raise RecoveryRefusedError("a shard has lost its stamp", shard=index)
                mode = ("nosync", "fsync").index(durability)
                store.write(stamp_ops(Stamp(index, count, mode, store_id), secret))
                store.flush()
            else:
                decode_stamp(raw)
            check = check_ring(store, mark)
            if check.is_refused:
                raise RecoveryRefusedError(
                    f"shard {index}: {check.describe()}", shard=index, missing=check.lost
                )
            state = mark or WatermarkState(index, store_id, 0, 0, 0, 0)
            found.append(
                Candidate(
                    index,
                    store,  # type: ignore[arg-type]
                    "",
                    mark=SimMark(platter, state),  # type: ignore[arg-type]
                    check=check,
                )
            )
        reports = []
        mended = [one for one in found if not one.check.is_whole]
        if is_replica:
            check_replicas(mended)
        for one in mended:
            report = repair(one.store, now_ms=now_ms, next_commit_seq=one.check.next_commit_seq)
            reports.append(f"shard {one.index}: {report.describe()}")
        sync_all([one.store for one in mended])
        shards = [
            OpenShard(one.index, one.store, mark, incarnation, one.check.seq, None, [], last)
            for one, mark, incarnation, last in begin(
                "", found, store_id, is_replica=is_replica, has_journal=has_journal
            )
        ]
        for store in self.stores:
            store.is_opening = False
        return OpenStore(None, store_id, shards, durability, reports)  # type: ignore[arg-type]

    def kill(self) -> None:
        """Kill the process: the system still has every write, and the next open syncs it."""
        for platter in self.platters:
            self._keep(platter, [True] * len(platter.loose))
            platter.loose = []

    def cut_power(self) -> None:
        """Cut the power: any subset of the writes that were not synced is left."""
        random = self.random
        for platter in self.platters:
            likely = random.choice((0.0, 0.2, 0.5, 0.8, 1.0))
            keep = [random.random() < likely for _ in platter.loose]
            self.lost_batches += keep.count(False)
            self._keep(platter, keep)
            platter.loose = []

    def _keep(self, platter: _Platter, keep: Sequence[bool]) -> None:
        for batch, is_kept in zip(platter.loose, keep, strict=True):
            if is_kept:
                _apply(platter.rows, batch)
        for batch in platter.limbo:
            if self.random.random() < 0.5:
                _apply(platter.rows, batch)
        platter.limbo = []


class SimMark:
    """A watermark. Writing it includes its own sync, so a crash finds the old or the new one."""

    def __init__(self, platter: _Platter, state: WatermarkState) -> None:
        self._platter = platter
        self.state = state

    def write(self, incarnation: int, commit_seq: int) -> None:
        """Record that everything up to ``commit_seq`` is durable."""
        old = self.state
        if (incarnation, commit_seq) < (old.incarnation, old.commit_seq):
            raise InvariantError("a watermark never goes back")
        self.state = self._platter.mark = old._replace(
            incarnation=incarnation, commit_seq=commit_seq, generation=old.generation + 1
        )

    def close(self) -> None:
        """Do nothing: no file is open."""


class SimStore:
    """The store of one shard in one process. Implements ``Store``; see the module's docstring."""

    reads_beside = False  # there is one thread

    def __init__(self, disk: SimDisk, index: int, loop: SimLoop) -> None:
        self._disk = disk
        self._index = index
        self._loop = loop
        self._platter = disk.platters[index]
        self._memory = MemoryStore()
        self._memory.write(list(self._platter.rows.items()))
        self._refused_until_s = 0.0
        self._refusal: type[StoreStalledError | StorageFullError] = StoreStalledError
        self._free_s = 0.0
        self._failed: str | None = None
        self._jobs: deque[Callable[[], None]] = deque()
        self._is_closed = False
        self._gone: Callable[[], LodeqError] | None = None  # once it is retired
        self.is_opening = (
            True  # while opening, syncs return at once and crashes are the only faults
        )

    # -- writing ---------------------------------------------------------------------------

    def write(self, ops: Iterable[Op]) -> None:
        """Apply a batch, or draw a fault."""
        self._check_alive()
        disk, loop = self._disk, self._loop
        batch = list(ops)
        disk.writes += 1
        dies = disk.writes == disk.die_at_write
        if dies and disk.random.random() < 0.5:
            loop.die()
            raise ClosedError("the process died before this write")
        if self._failed is not None:
            raise CommitUnknownError(f"write after a failure: {self._failed}")
        if not self.is_opening:
            self._maybe_refuse()
            self._maybe_fail(batch)
        self._memory.write(batch)
        self._platter.loose.append(batch)
        if dies:
            loop.die()
            raise ClosedError("the process died after this write")

    def _maybe_refuse(self) -> None:
        faults, random, loop = self._disk.faults, self._disk.random, self._loop
        if faults.slow_write and random.random() < faults.slow_write:
            loop.pause(random.random() * faults.slow_write_s)
        if loop.time() >= self._refused_until_s:
            dice = random.random()
            if dice >= faults.stall + faults.full:
                return
            self._refusal = StoreStalledError if dice < faults.stall else StorageFullError
            self._refused_until_s = loop.time() + random.random() * faults.refuse_s
        raise self._refusal("simulated: try again")

    def _maybe_fail(self, batch: list[Op]) -> None:
        faults, random = self._disk.faults, self._disk.random
        if faults.write_error and random.random() < faults.write_error:
            self._failed = "a write failed"
            self._platter.limbo.append(batch)
            raise CommitUnknownError("simulated: EIO on a write")

    def start_sync(self, done: Done) -> None:
        """Start a sync: it is done after a while, or fails for good."""
        self._check_alive()
        disk, platter = self._disk, self._platter
        disk.syncs += 1
        number, count = disk.syncs, len(platter.loose)
        if self.is_opening:
            platter.harden(count)
            done(None)
            return
        faults, random = disk.faults, disk.random
        disk.emit(["sync", self._index, number])
        fails = random.random() < faults.sync_error
        longest = faults.slow_sync_s if random.random() < faults.slow_sync else faults.sync_s

        def finish() -> None:
            if self._failed == "a sync failed":
                done(None)  # a lie: the kernel has marked the pages clean
                return
            if fails or self._failed is not None:
                self._failed = "a sync failed"
                done(StorageError("simulated: EIO on a sync"))
                return
            platter.harden(count)
            disk.emit(["synced", self._index, number])
            done(None)

        self._later(random.random() * longest, finish)

    def run(self, fn: Callable[[], None], done: Done) -> None:
        """Run blocking work on the one thread that also syncs."""
        self._check_alive()

        def finish() -> None:
            error: BaseException | None = None
            try:
                fn()
            except BaseException as exc:  # noqa: BLE001 - the waiter gets it, as on RocksDB
                error = exc
            done(error)

        self._later(self._disk.random.random() * self._disk.faults.sync_s, finish)

    def _later(self, delay_s: float, fn: Callable[[], None]) -> None:
        """Queue work of the thread: one job at a time, in order."""
        self._free_s = max(self._free_s, self._loop.time()) + delay_s
        self._jobs.append(fn)
        self._loop.call_at(self._free_s, self._work)

    def _work(self) -> None:
        if self._jobs and not self._loop.is_dead:
            self._jobs.popleft()()

    def flush(self, wait: bool = True) -> None:
        """Flush memtables into files: everything written so far is durable."""
        self._check_alive()
        if self._failed is None:
            self._platter.harden(len(self._platter.loose))

    # -- reading ---------------------------------------------------------------------------

    def _read(self) -> MemoryStore:
        self._check_alive()
        rate = self._disk.faults.read_error
        if rate and not self.is_opening and self._disk.random.random() < rate:
            raise StorageError("simulated: EIO on a read")
        return self._memory

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self._read().get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the order of ``keys``."""
        return self._read().multi_get(keys)

    def scan(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """Return at most ``limit`` rows, ascending."""
        return self._read().scan(lower, upper, limit)

    def scan_part(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        """Return rows, and the key to continue from."""
        return self._read().scan_part(lower, upper, limit)

    def scan_last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """Return the last row of the range."""
        return self._read().scan_last(lower, upper)

    def scan_back(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """Read the last rows of the range. No error is drawn: callers go on without an answer."""
        self._check_alive()
        return self._memory.scan_back(lower, upper, limit)

    def snapshot(self, splits: Sequence[bytes] = ()) -> StoreView:
        """Return a view of the store at this moment."""
        return self._read().snapshot(splits)

    def checkpoint(self, path: str) -> None:
        """Raise ``UsageError``, as a store in memory does."""
        self._memory.checkpoint(path)

    def property_int(self, name: str) -> int | None:
        """Return the property, as a store in memory does."""
        return self._memory.property_int(name)

    def retire(self, refusal: Callable[[], LodeqError]) -> Callable[[], None]:
        """Refuse calls from now on, those of snapshots too; the rest comes when it is called."""
        self._gone = refusal
        self._memory.retire(refusal)
        return self.close

    def close(self) -> None:
        """Finish queued jobs and close; writes stay with the system. Idempotent."""
        while self._jobs and not self._loop.is_dead:
            self._work()
        self._memory.close()
        self._is_closed = True

    def _check_alive(self) -> None:
        if self._gone is not None:
            raise self._gone()
        if self._is_closed or self._loop.is_dead:
            raise ClosedError("the store is closed")


def _apply(rows: dict[bytes, bytes], batch: Iterable[Op]) -> None:
    for key, value in batch:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
