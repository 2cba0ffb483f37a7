"""``lodeq.open``: from a folder to a running engine.

Open costs O(queues + live leases): counter rows become queues and tenants in memory, lease rows
become leases, and the first due row and first expiry row of each range become deadlines. Nothing
else is read; the backlog stays on disk. A lease granted by the previous process goes back at once,
its attempt counted; an exported one, whose worker may still run, starts again in full.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal

from ...coalescer.body_sync_barrier import BodySyncBarrier
from ...coalescer.commit_loop import Coalescer
from ...coalescer.shard_status import READ_ONLY
from ...coalescer.sync import Syncer
from ...engine.files.paths import normal_path
from ...engine.records.compression import Compressor
from ...engine.records.keyspace import check_name
from ...engine.recovery.decide import ADVICE
from ...engine.recovery.open_shard import OpenShard, OpenStore, open_memory, open_store
from ...engine.runtime.clock import Clock, SystemClock
from ...engine.runtime.current_loop import current_spawner
from ...engine.runtime.event_loop import Spawner
from ...engine.runtime.ids import IdSource, Rng, SystemRng
from ...engine.runtime.shielded import await_shielded
from ...errors import (
    CorruptionError,
    LockedError,
    NotLeaderError,
    RecoveryRefusedError,
    UsageError,
)
from ...replication.port import Replicator
from ...segments.bodies.find import BodyFolder
from ...segments.journal.retention import Retention
from ...segments.journal.roll import Roll
from ..background.event_publisher import EventPublisher, Sink, open_journal
from ..background.leadership import Leadership
from ..background.reaper import Reaper
from ..background.state_rebuild import (
    Noted,
    load_deadlines,
    load_leases,
    note_leases,
)
from ..bulk.load_accounting import count_at_open
from ..model.arguments import duration_s
from ..model.values import Duration, Limits
from ..state import engine_log
from ..state.bodies import open_bodies
from ..state.engine_state import NO_BODIES, EngineState
from ..state.hidden_rows import HiddenRows
from ..state.pages import counter_slices
from ..state.queue_state import Shard
from ..state.turns import in_slices
from ..tasks.claim import serve_waiter
from ..tasks.lease import Lease
from .engine import Engine
from .runtime import EngineRuntime

__all__ = [
    "OpenHandle",
    "build",
    "open_engine",
    "open_in_memory",
]

LOCK_POLL_S = 0.05
BODY_BYTES_MIN = 32 << 10


class OpenHandle:
    """Returned by ``lodeq.open``: ``async with`` it, or ``await`` it and close the engine."""

    def __init__(self, start: Callable[[], Awaitable[Engine]]) -> None:
        self._start = start
        self._engine: Engine | None = None

    def __await__(self) -> Generator[Any, Any, Engine]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Engine:
        self._engine = engine = await self._start()
        return engine

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._engine is None:
            return
        # Closing runs in a task of its own, but the folder stays locked until it ends. So a
        # cancellation waits here.
        cancelled = await await_shielded(self._engine.close)
        if cancelled is not None:
            raise cancelled


def open_engine(
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    durability: Literal["nosync", "fsync"] | None = None,
    sync_interval: Duration = 1.0,
    commit_batch_max: int = 64,
    submit_queue_max: int = 1024,
    block_cache_bytes: int = 256 << 20,
    limits: Limits | None = None,
    body_bytes_min: int | None = BODY_BYTES_MIN,
    recovery: Literal["strict", "salvage"] = "strict",
    reaper: bool = True,
    lock_wait: Duration = 0.0,
    clock: Clock | None = None,
    compression: Literal["zlib", "zstd"] | None = None,
    rng: Rng | None = None,
    replicator: Replicator | None = None,
    journal: str | None = None,
    journal_retention: Retention | None = None,
    journal_roll: Roll | None = None,
    inbox: bool = True,
) -> OpenHandle:
    """Open the store at ``path`` on the running event loop; it is made if it does not exist.

    ::

        async with lodeq.open("var/jobs", durability="fsync") as engine:
            ...

    Args:
        path: the store's folder, or a path where nothing is yet. One engine has it open at a time.
        shards: 1 to 4,096, stamped into the store when it is made. None takes the stamp; a new
            store gets 1.
        durability: ``nosync``: an acknowledgement survives the death of the process; a power cut
            can lose up to the last ``sync_interval`` of acknowledged work. ``fsync``: an
            acknowledgement survives a power cut. None takes what the store is stamped with; a
            new store gets ``nosync``.
        sync_interval: seconds between syncs in ``nosync``, at least 0.001; in both modes the
            greatest age of the watermark.
        commit_batch_max: submissions that share one commit at most, 1 to 4,096.
        submit_queue_max: submissions that wait for a commit at most, 1 to 1,048,576; further
            callers wait until there are fewer.
        block_cache_bytes: one cache for all shards; memtables are charged to it.
        limits: see ``Limits``.
        body_bytes_min: payloads of at least this many bytes (after compression) are written once,
            to body files outside RocksDB; None writes none there. Existing body files are read in
            any case. No effect with a replicator.
        recovery: ``strict`` refuses to open if durable commits are lost; ``salvage`` opens with
            what is left and reports what was dropped in ``stats().recoveries``.
        reaper: run the background task. Without it nothing expires or falls due.
        lock_wait: seconds to wait for another process to close the store.
        clock: another clock, for tests.
        compression: None, ``zlib``, or ``zstd`` (an extra), for payloads and results of 1 KiB or
            more.
        rng: another source of randomness, for simulation.
        replicator: makes the store a replica: every batch goes through its log, and a shard takes
            writes only where it leads (``NotLeaderError`` elsewhere; reads are local). See
            ``lodeq.Replicator``. ``commit_batch_max`` has no effect then.
        journal: name of a lifecycle journal, which gets an event for everything that happens to
            tasks; see ``lodeq.lifecycle``. Not with a replicator.
        journal_retention: how much of the journal is kept; None keeps everything. Only whole
            files are removed.
        journal_roll: when a file of the journal is full; None: at 128 MiB, or at an eighth of
            what ``journal_retention`` keeps.
        inbox: look once a second for loads that were staged outside, and take them in
            (``docs/ingest.md``). Without it only ``Engine.ingest`` does. Not with a replicator.

    Raises:
        OpenError: wrong path, locked, another shard count, or an unknown format; nothing was
            opened.
        RecoveryRefusedError: durable commits are missing; nothing was changed.
        InvalidNameError, UsageError: an option is wrong; nothing was opened.

    Durability: a new incarnation is fsynced before it returns.
    Cancellation: only while waiting for the lock.
    """
    _check_limits(commit_batch_max, submit_queue_max)
    _check_journal(journal, journal_retention, journal_roll, replicator)
    least = body_bytes_min
    if least is not None and (isinstance(least, bool) or not isinstance(least, int) or least < 1):
        raise UsageError(f"expected body_bytes_min as a positive int or None, got {least!r}")
    interval_s = duration_s(sync_interval, "sync_interval", least=0.001)
    wait_s = duration_s(lock_wait, "lock_wait")
    compressor = Compressor(compression)
    the_rng = rng if rng is not None else SystemRng()

    async def start() -> Engine:
        spawner = current_spawner()
        give_up = SystemClock().mono() + wait_s
        while True:
            try:
                opened = open_store(
                    path,
                    shards=shards,
                    durability=durability,
                    block_cache_bytes=block_cache_bytes,
                    recovery=recovery,
                    rng=the_rng,
                    is_replica=replicator is not None,
                    bodies=BodyFolder,
                    has_journal=journal is not None,
                )
                break
            except LockedError:
                if SystemClock().mono() >= give_up:
                    await spawner.aclose()
                    raise
            except BaseException:
                await spawner.aclose()
                raise
            await _pause(spawner)
        return await build(
            opened,
            clock=clock,
            rng=the_rng,
            limits=limits,
            compressor=compressor,
            interval_s=interval_s,
            commit_batch_max=commit_batch_max,
            submit_queue_max=submit_queue_max,
            reaper=reaper,
            spawner=spawner,
            replicator=replicator,
            body_bytes_min=body_bytes_min,
            inbox=inbox,
            sink=None
            if journal is None
            else partial(
                open_journal,
                root=normal_path(path),
                name=journal,
                retention=journal_retention,
                roll=journal_roll,
            ),
        )

    return OpenHandle(start)


def _check_limits(commit_batch_max: object, submit_queue_max: object) -> None:
    for name, value, top in (
        ("commit_batch_max", commit_batch_max, 4096),
        ("submit_queue_max", submit_queue_max, 1 << 20),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= top:
            raise UsageError(f"expected {name} as an int from 1 to {top}, got {value!r}")


def _check_journal(
    journal: object, retention: object, roll: object, replicator: Replicator | None
) -> None:
    if journal is None:
        if retention is not None or roll is not None:
            raise UsageError(
                "journal_retention and journal_roll have no effect without journal: name one"
            )
        return
    check_name(journal, "journal")
    if retention is not None and not isinstance(retention, Retention):
        raise UsageError(
            "expected journal_retention as a lodeq.journal.Retention, got "
            f"{type(retention).__name__}"
        )
    if roll is not None and not isinstance(roll, Roll):
        raise UsageError(
            f"expected journal_roll as a lodeq.journal.Roll, got {type(roll).__name__}"
        )
    if replicator is not None:
        raise UsageError(
            "a replica has no lifecycle journal, since all replicas must have the same rows: leave "
            "out journal or replicator"
        )


async def _pause(spawner: Spawner) -> None:
    """Wait before the next try to get the lock. Cancelled, it leaves no timer behind."""
    future = spawner.future()
    timer = spawner.call_later(LOCK_POLL_S, lambda: future.set_result(None))
    try:
        await future
    except BaseException:
        timer.cancel()
        await spawner.aclose()
        raise


def open_in_memory(
    *,
    clock: Clock,
    shards: int = 1,
    durability: Literal["nosync", "fsync"] = "nosync",
    limits: Limits | None = None,
    reaper: bool = True,
    rng: Rng | None = None,
    compression: Literal["zlib", "zstd"] | None = None,
    commit_batch_max: int = 64,
    submit_queue_max: int = 1024,
    replicator: Replicator | None = None,
) -> OpenHandle:
    """Open an engine over stores in memory, with the same API, for ``lodeq.testing.open``.

    Args:
        clock: the clock that deadlines follow.
        shards: 1 to 4,096.
        durability: as for ``open_engine``; nothing in memory outlives the process.
        limits: see ``Limits``.
        reaper: run the background task, or with a clock moved by hand have it called by that.
        rng: another source of randomness, for simulation.
        compression: as for ``open_engine``.
        commit_batch_max: as for ``open_engine``.
        submit_queue_max: as for ``open_engine``.
        replicator: as for ``open_engine``.
    """
    _check_limits(commit_batch_max, submit_queue_max)
    the_rng = rng if rng is not None else SystemRng()
    compressor = Compressor(compression)

    async def start() -> Engine:
        opened = open_memory(
            shards=shards, durability=durability, rng=the_rng, is_replica=replicator is not None
        )
        return await build(
            opened,
            clock=clock,
            rng=the_rng,
            limits=limits,
            compressor=compressor,
            interval_s=1.0,
            commit_batch_max=commit_batch_max,
            submit_queue_max=submit_queue_max,
            reaper=reaper,
            spawner=current_spawner(),
            replicator=replicator,
        )

    return OpenHandle(start)


async def build(
    opened: OpenStore,
    *,
    clock: Clock | None,
    rng: Rng,
    limits: Limits | None,
    compressor: Compressor,
    interval_s: float,
    commit_batch_max: int,
    submit_queue_max: int,
    reaper: bool,
    spawner: Spawner | None = None,
    replicator: Replicator | None = None,
    body_bytes_min: int | None = None,
    sink: Callable[[EngineState], Sink] | None = None,
    inbox: bool = False,
    refusal: NotLeaderError | None = None,
) -> Engine:
    """Build an engine over an opened store, and start it.

    Args:
        opened: the store; it is closed if this fails.
        clock: None for the system's.
        rng: source of ids and tokens.
        limits: None for the defaults.
        compressor: compresses payloads and results.
        interval_s: seconds between syncs.
        commit_batch_max: submissions that share one commit at most.
        submit_queue_max: submissions that wait for a commit at most.
        reaper: run the background task.
        spawner: port to the event loop; None for the running one.
        replicator: makes it a replica.
        body_bytes_min: least size in bytes of payloads in body files; None writes none.
        sink: opens the lifecycle journal, and blocks; None for none.
        inbox: take in loads from the inbox.
        refusal: makes the engine read-only: nothing runs, and whatever would write raises it.
    """
    the_spawner = current_spawner() if spawner is None else spawner
    core = EngineState(
        spawner=the_spawner,
        clock=clock if clock is not None else SystemClock(),
        ids=IdSource(rng),
        limits=limits if limits is not None else Limits(),
        seq=max(s.seq for s in opened.shards),
        is_fsync=opened.durability == "fsync",
        compressor=compressor,
    )
    core.lease_type = Lease
    core.waiters.serve_one = partial(serve_waiter, core)
    core.hidden = HiddenRows(core)
    leadership = Leadership(core, replicator) if replicator is not None else None
    runtime = EngineRuntime(core, opened, Reaper(core) if reaper else None)
    try:
        for one in opened.shards:
            with _refused(one.index):
                core.shards.append(
                    _shard(core, one, interval_s, commit_batch_max, submit_queue_max, leadership)
                )
        if opened.path is not None and replicator is None:
            _open_bodies(core, opened.path, body_bytes_min)
        if sink is not None:  # not earlier: it needs the shards
            runtime.event_publisher = EventPublisher(core, partial(sink, core))
            with _refused():
                runtime.event_publisher.open()
        await _read_rows(core, refusal, owns_shards=leadership is None and refusal is None)
    except BaseException:
        core.is_closed = True
        if runtime.event_publisher is not None:
            await await_shielded(runtime.event_publisher.close_journal)
        opened.close()
        await the_spawner.aclose()
        raise
    if refusal is None:
        runtime.watches_inbox = inbox and replicator is None
        runtime.start()
        _note(opened)
    if leadership is not None:
        try:
            await leadership.start()
        except BaseException:
            await await_shielded(runtime.close)
            raise
    return Engine(core, runtime)


def _open_bodies(core: EngineState, path: str, body_bytes_min: int | None) -> None:
    """Open the body files of every shard."""
    for shard in core.shards:
        with _refused(shard.index):
            shard.bodies = open_bodies(shard.store, path, shard.index)
        if core.is_fsync and shard.bodies is not None:
            sync = shard.bodies.files.sync
            shard.co.body_barrier = BodySyncBarrier(shard.co, core.spawner, sync)
    core.set_body_bytes_min(NO_BODIES if body_bytes_min is None else body_bytes_min)


async def _read_rows(
    core: EngineState, refusal: NotLeaderError | None, *, owns_shards: bool
) -> None:
    """Build memory from the rows; give back the leases of the process before."""
    for shard in core.shards:
        with _refused(shard.index):
            await in_slices(core, counter_slices(core, shard))
        if refusal is not None:
            shard.co.enter(READ_ONLY, refusal)
    own = core.shards if owns_shards else []
    noted: list[Noted] = []
    for shard in own:
        with _refused(shard.index):
            await count_at_open(core, shard)
            await in_slices(core, note_leases(core, shard, noted))
    with _refused():
        await load_leases(core, noted)
    for shard in own:
        with _refused(shard.index):
            await load_deadlines(core, shard)


@contextmanager
def _refused(shard: int = -1) -> Iterator[None]:
    """Turn damage that is met into a refusal to open; ``shard`` is -1 if it may be any."""
    try:
        yield
    except RecoveryRefusedError:
        raise
    except CorruptionError as exc:
        where = f"shard {shard}: " if shard >= 0 else ""
        raise RecoveryRefusedError(
            f"{where}a row is damaged ({exc}); {ADVICE}", shard=shard
        ) from exc


def _note(opened: OpenStore) -> None:
    if opened.path is not None:
        engine_log.opened(opened.path, len(opened.shards), opened.durability)
        for detail in opened.recoveries:
            engine_log.recovered(opened.path, detail)


def _shard(
    core: EngineState,
    one: OpenShard,
    interval_s: float,
    commit_batch_max: int,
    submit_queue_max: int,
    leadership: Leadership | None,
) -> Shard:
    first = (one.incarnation << 40) + one.last + 1
    mark = one.watermark

    def write_watermark(number: int) -> None:
        if mark is not None:
            mark.write(number >> 40, number)

    syncer = Syncer(
        one.store,
        core.spawner,
        first_number=first,
        interval_s=interval_s,
        write_watermark=write_watermark,
    )
    co = (
        Coalescer(
            one.store,
            core.spawner,
            shard=one.index,
            first_number=first,
            seq_source=core,
            syncer=syncer,
            is_fsync=core.is_fsync,
            commit_batch_max=commit_batch_max,
            submit_queue_max=submit_queue_max,
            tick_work=core.waiters,
            on_writes_end=core.on_writes_end,
        )
        if leadership is None
        else leadership.coalescer(
            one.store,
            shard=one.index,
            first_number=first,
            syncer=syncer,
            submit_queue_max=submit_queue_max,
        )
    )
    shard = Shard(one.index, one.store, co, mark, one.path, one.incarnation)
    co.overlay.report = partial(core.unreadable_found, one.index)
    shard.swept_ms = core.seq // 1000  # the clock may have stepped back since; seq never does
    return shard
