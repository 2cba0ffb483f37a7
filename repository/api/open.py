"""``lodeq.open``: from a folder to a running engine.

Open costs O(queues + live leases): counter rows become queues and tenants in memory, lease rows
become leases, and the first due row and first expiry row of each range become deadlines. Nothing
else is read; the backlog stays on disk. A lease granted by the previous process goes back at once,
its attempt counted; an exported one, whose worker may still run, goes on until its end. If that
process did not close the store, nobody knows that end: the lease starts again in full, once.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import TracebackType
from typing import Any, Literal

from ...coalescer.hosting import Hosting
from ...coalescer.replicator import Replicator
from ...coalescer.shard_status import READ_ONLY
from ...engine.files.paths import absolute_path, normal_path
from ...engine.files.served_note import with_address
from ...engine.records.compression import Compressor
from ...engine.records.keyspace import check_name
from ...engine.recovery.decide import ADVICE
from ...engine.recovery.open_shard import OpenStore, open_memory, open_store
from ...engine.runtime.clock import Clock, SystemClock
from ...engine.runtime.current_loop import current_spawner
from ...engine.runtime.event_loop import Spawner
from ...engine.runtime.ids import IdSource, Rng, SystemRng
from ...engine.runtime.shielded import await_shielded, prepare_shields
from ...engine.values import spelled
from ...errors import (
    CorruptionError,
    LockedError,
    NotLeaderError,
    RecoveryRefusedError,
    UsageError,
)
from ...segments.bodies.find import BodyFolder
from ...segments.journal.retention import Retention
from ...segments.journal.roll import Roll
from ..background.event_publisher import EventPublisher, Sink, open_journal
from ..background.hosted_shards import HostedShards
from ..background.journal_start import leave
from ..background.leadership import Leadership, let_go, limits_within
from ..background.reaper import Reaper
from ..background.replica_bodies import use_bodies
from ..background.shard_maker import ShardMaker
from ..background.state_rebuild import (
    Noted,
    load_deadlines,
    load_leases,
    note_leases,
)
from ..bulk.load_accounting import count_at_open
from ..model.arguments import duration_s
from ..model.redaction import Redact, Redaction, redaction_of
from ..model.values import Duration, Limits
from ..state import engine_log
from ..state.bodies import open_bodies
from ..state.engine_state import NO_BODIES, EngineState
from ..state.pages import counter_slices
from ..state.queue_state import Shard
from ..state.rows.hidden_rows import HiddenRows
from ..state.turns import in_slices
from ..tasks.claim import serve_waiter
from ..tasks.key_waits import KeyWaits
from ..tasks.lease import Lease
from ..workflows.acts import resume
from ..workflows.joins import Joins
from .cluster_view import NamesMembers
from .engine import Engine, runtime_of
from .runtime import EngineRuntime
from .serve_options import NOTE_WAIT_S, ServeAs
from .store_server import StoreServer, load_server

__all__ = [
    "OpenHandle",
    "build",
    "open_engine",
    "open_in_memory",
]

LOCK_POLL_S = 0.05
BODY_BYTES_MIN = 32 << 10
# What an open takes from its caller: what it is, and what will be asked of it.
_PORTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "limits": ("lodeq.Limits", ()),
    "clock": ("clock", ("wall_us", "mono", "call_at")),
    "rng": ("source of randomness", ("bytes", "uniform")),
    "replicator": ("lodeq.Replicator", ("prepare", "start", "propose")),
}


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
    hosting: Hosting | None = None,
    journal: str | None = None,
    journal_retention: Retention | None = None,
    journal_roll: Roll | None = None,
    inbox: bool = True,
    serve: ServeAs = None,
    redact: Redact | None = None,
) -> OpenHandle:
    """Open the store at ``path`` on the running event loop; it is made if it does not exist.

    ::

        async with lodeq.open("var/jobs", durability="fsync") as engine:
            ...

    Args:
        path: the store's folder, or a path where nothing is yet. One engine has it open at a time,
            or with ``hosting`` each shard of it.
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
            any case. On a replica: payloads of entries, which it moves out by itself.
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
            ``lodeq.Replicator``. Submissions share entries of the log as they share commits; limits
            of payloads and results are lowered to what it takes. One that is a ``Hosting`` as well
            says which of the shards this replica has.
        hosting: says which shards this process has, of a store that several processes share; calls
            that need another raise ``NotLeaderError``, with where it is. The store has to exist,
            and this process or its parent has to hold the store's lock, as ``lodeq serve
            --processes`` does. Not with a replicator.
        journal: name of a lifecycle journal, which gets an event for everything that happens to
            tasks; see ``lodeq.lifecycle``. Of replicas, open all with one: each writes its own,
            of the same events.
        journal_retention: how much of the journal is kept; None keeps everything. Only whole
            files are removed.
        journal_roll: when a file of the journal is full; None: at 128 MiB, or at an eighth of
            what ``journal_retention`` keeps.
        inbox: look once a second for loads that were staged outside, and take them in
            (``docs/ingest.md``). Without it only ``Engine.ingest`` does. Not with a replicator, nor
            where shards are elsewhere.
        serve: let other processes reach the store while it is open: ``True`` over the socket
            ``PATH.sock``, or the path of a socket, ``HOST:PORT``, or a ``lodeq.Serve``
            (``docs/how-to/operate-embedded.md``). Needs the extra ``http``, and asyncio.
        redact: takes the preview of a task, or the value of one of its labels, and returns what of
            it may be stored; where it raises, nothing of that is (``stats().redact_failures``). It
            does not see payloads: ``docs/jobs.md``.

    Raises:
        OpenError: wrong path, locked, another shard count, or an unknown format; nothing was
            opened.
        RecoveryRefusedError: durable commits are missing; nothing was changed.
        InvalidNameError, UsageError: an option is wrong; nothing was opened.

    Durability: a new incarnation is fsynced before it returns.
    Cancellation: only while waiting for the lock.
    """
    _check_limits(commit_batch_max, submit_queue_max)
    _check_journal(journal, journal_retention, journal_roll)
    _check_ports(limits=limits, clock=clock, rng=rng, replicator=replicator)
    limits = limits_within(limits, replicator)
    hosting = _hosting_of(replicator, hosting)
    least = body_bytes_min
    if least is not None and (isinstance(least, bool) or not isinstance(least, int) or least < 1):
        raise UsageError(f"expected body_bytes_min as a positive int or None, got {spelled(least)}")
    interval_s = duration_s(sync_interval, "sync_interval", least=0.001)
    wait_s = duration_s(lock_wait, "lock_wait")
    redaction = redaction_of(redact)
    compressor = Compressor(compression)
    the_rng = rng if rng is not None else SystemRng()
    path = absolute_path(path)
    make_server = load_server(path, serve)

    def open_now() -> OpenStore:
        return open_store(
            path,
            shards=shards,
            durability=durability,
            block_cache_bytes=block_cache_bytes,
            recovery=recovery,
            rng=the_rng,
            is_replica=replicator is not None,
            bodies=BodyFolder,
            has_journal=journal is not None,
            hosts=None if hosting is None else cache(hosting.hosts),  # one answer each
        )

    async def start() -> Engine:
        spawner = current_spawner()
        prepare_shields()
        server = None if make_server is None else make_server()
        if server is not None:
            server.check()
        try:
            if replicator is not None:
                await replicator.prepare(normal_path(path))
            opened = await _open_patiently(
                spawner, open_now, path, wait_s, is_served=server is not None
            )
        except BaseException:
            if replicator is not None:
                await await_shielded(partial(let_go, replicator))
            await spawner.aclose()
            raise
        engine = await build(
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
            hosting=hosting,
            body_bytes_min=body_bytes_min,
            inbox=inbox,
            redaction=redaction,
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
        if server is not None:
            await _serve(engine, server)
        return engine

    return OpenHandle(start)


async def _open_patiently(
    spawner: Spawner,
    open_now: Callable[[], OpenStore],
    path: str | os.PathLike[str],
    wait_s: float,
    *,
    is_served: bool,
) -> OpenStore:
    """Open the store, waiting for another process to close it.

    Args:
        spawner: the event loop.
        open_now: opens it, or raises ``LockedError``.
        path: the store's folder.
        wait_s: seconds to wait at most; 0: not at all.
        is_served: this process is to serve it, so wait till the owner says where it does.
    """
    began = SystemClock().mono()
    while True:
        try:
            return open_now()
        except LockedError as exc:
            waited_s = SystemClock().mono() - began
            error = with_address(exc, path)
            is_awaited = is_served and error.address is None
            if waited_s >= (max(wait_s, NOTE_WAIT_S) if is_awaited else wait_s):
                raise error from exc
        await _pause(spawner)


async def _serve(engine: Engine, server: StoreServer) -> None:
    """Start the server of an open engine, which closes it; if that fails, close the engine."""
    runtime_of(engine).server = server
    try:
        await server.start(engine)
    except BaseException:
        await await_shielded(engine.close)
        raise


def _check_limits(commit_batch_max: object, submit_queue_max: object) -> None:
    for name, value, top in (
        ("commit_batch_max", commit_batch_max, 4096),
        ("submit_queue_max", submit_queue_max, 1 << 20),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= top:
            raise UsageError(f"expected {name} as an int from 1 to {top}, got {spelled(value)}")


def _check_ports(**given: object) -> None:
    """Check what an open takes from its caller, by what will be asked of it."""
    for name, (wanted, members) in _PORTS.items():
        one = given[name]
        if one is None:
            continue
        is_missing = any(not hasattr(one, member) for member in members)
        if (
            isinstance(one, type)
            or is_missing
            or (name == "limits" and not isinstance(one, Limits))
        ):
            raise UsageError(f"expected {name} as a {wanted}, got {type(one).__name__}")


def _hosting_of(replicator: Replicator | None, hosting: Hosting | None) -> Hosting | None:
    """Who says which shards are here; None: all are."""
    if hosting is None:
        return replicator if isinstance(replicator, Hosting) else None
    if replicator is not None:
        raise UsageError(
            "give either hosting or replicator: of a replica its replicator says which shards it "
            "has, if it is a Hosting as well"
        )
    if not isinstance(hosting, Hosting):
        raise UsageError(f"expected hosting as a lodeq.Hosting, got {type(hosting).__name__}")
    return hosting


def _check_journal(journal: object, retention: object, roll: object) -> None:
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


async def _pause(spawner: Spawner) -> None:
    """Wait before the next try to get the lock. Cancelled, it leaves no timer behind."""
    future = spawner.future()
    timer = spawner.call_later(LOCK_POLL_S, lambda: future.set_result(None))
    try:
        await future
    except BaseException:
        timer.cancel()
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
    redact: Redact | None = None,
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
        redact: as for ``open_engine``.
    """
    _check_limits(commit_batch_max, submit_queue_max)
    _check_ports(limits=limits, clock=clock, rng=rng, replicator=replicator)
    limits = limits_within(limits, replicator)
    redaction = redaction_of(redact)
    the_rng = rng if rng is not None else SystemRng()
    compressor = Compressor(compression)

    hosting = _hosting_of(replicator, None)

    async def start() -> Engine:
        if replicator is not None:
            try:
                await replicator.prepare(None)
            except BaseException:
                await await_shielded(partial(let_go, replicator))
                raise
        opened = open_memory(
            shards=shards,
            durability=durability,
            rng=the_rng,
            is_replica=replicator is not None,
            hosts=None if hosting is None else cache(hosting.hosts),
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
            hosting=hosting,
            redaction=redaction,
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
    hosting: Hosting | None = None,
    body_bytes_min: int | None = None,
    open_files: Callable[[EngineState, Shard], None] | None = None,
    sink: Callable[[EngineState], Sink] | None = None,
    inbox: bool = False,
    refusal: NotLeaderError | None = None,
    redaction: Redaction | None = None,
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
        hosting: knows where shards are that are not open here.
        body_bytes_min: least size in bytes of payloads in body files; None writes none.
        open_files: gives a shard its body files, for a simulation; None: those of the path.
        sink: opens the lifecycle journal, and blocks; None for none.
        inbox: take in loads from the inbox.
        refusal: makes the engine read-only: nothing runs, and whatever would write raises it.
        redaction: of previews and labels, where tasks are packed.
    """
    the_spawner = current_spawner() if spawner is None else spawner
    state: EngineState | None = None
    runtime: EngineRuntime | None = None
    try:
        state = EngineState(
            spawner=the_spawner,
            clock=clock if clock is not None else SystemClock(),
            ids=IdSource(rng),
            limits=limits if limits is not None else Limits(),
            seq=max((s.seq for s in opened.shards), default=0),
            is_fsync=opened.durability == "fsync",
            compressor=compressor,
        )
        state.redaction = redaction
        _connect(state, is_replica=replicator is not None)
        leadership = Leadership(state, replicator) if replicator is not None else None
        runtime = EngineRuntime(state, opened, Reaper(state) if reaper else None)
        runtime.replicator, runtime.leadership = replicator, leadership
        members = hosting if replicator is None else replicator
        if isinstance(members, NamesMembers):
            runtime.members = members
        maker = ShardMaker(
            state,
            opened.shard_count,
            interval_s=interval_s,
            commit_batch_max=commit_batch_max,
            submit_queue_max=submit_queue_max,
            leadership=leadership,
            hosting=hosting,
        )
        least = NO_BODIES if body_bytes_min is None else body_bytes_min
        if open_files is None and opened.path is not None:
            open_files = partial(_open_files, opened.path, least)
        use_files = None if open_files is None else partial(open_files, state)
        _make_shards(state, opened, maker)
        if hosting is not None:
            state.hosted = [state.shards[one.index] for one in opened.shards]
            if replicator is None:  # every process keeps a copy of what lies on the first shard
                state.first_index = opened.shards[0].index
        if use_files is not None:
            _open_body_files(state, use_files)
        if replicator is None:  # a replica moves payloads out when they are committed
            state.set_body_bytes_min(least)
        keep_events = _open_journal(runtime, sink)
        if leadership is not None and hosting is not None:
            leadership.hosted = HostedShards(
                state,
                opened,
                maker,
                leadership,
                rng,
                open_files=use_files,
                is_here=keep_events,
                is_gone=runtime.forget,
            )
        is_owner = leadership is None and refusal is None
        await _read_rows(state, refusal, owns_shards=is_owner, was_left=opened.was_left)
        opened.was_left = False
    except BaseException:
        if state is not None:
            state.is_closed = True
        if runtime is not None and runtime.event_publisher is not None:
            await await_shielded(runtime.event_publisher.close_journal)
        opened.close()
        if replicator is not None:
            await await_shielded(partial(let_go, replicator))
        await the_spawner.aclose()
        raise
    if refusal is None:
        runtime.watches_inbox = inbox and replicator is None and state.has_all
        runtime.start()
        _note(opened)
    if leadership is not None:
        try:
            await leadership.start()
        except BaseException:
            await await_shielded(runtime.close)
            raise
    return Engine(state, runtime)


def _connect(state: EngineState, *, is_replica: bool) -> None:
    """Give the state its parts from layers above."""
    state.lease_type = Lease
    state.waiters.serve_one = partial(serve_waiter, state)
    state.waiters.check_empty = state.check_empty
    if is_replica:
        state.waiters.may_serve = state.is_any_tended
    state.hidden = HiddenRows(state)
    state.flows = joins = Joins(state)
    KeyWaits(state)
    joins.resume = partial(resume, state)


def _make_shards(state: EngineState, opened: OpenStore, maker: ShardMaker) -> None:
    """Fill the list of shards: what is open, and stubs for the rest."""
    here = {one.index: one for one in opened.shards}
    for index in range(opened.shard_count):
        with _refused(index):
            one = here.get(index)
            state.shards.append(maker.stub(index) if one is None else maker.make(one))


def _open_body_files(state: EngineState, use_files: Callable[[Shard], None]) -> None:
    """Open the body files of every shard that is here."""
    for shard in state.hosted:
        with _refused(shard.index):
            use_files(shard)


def _open_journal(
    runtime: EngineRuntime, sink: Callable[[EngineState], Sink] | None
) -> Callable[[Shard], None]:
    """Open the lifecycle journal, if there is to be one. It needs the shards.

    Returns: what does the same for the events of a shard that comes here later.
    """
    state = runtime.state
    if sink is None:
        if runtime.leadership is not None:
            for shard in state.hosted:
                leave(shard)
        return leave
    publisher = runtime.event_publisher = EventPublisher(state, partial(sink, state))
    with _refused():
        publisher.open()
    return publisher.replace


def _open_files(path: str, least: int, state: EngineState, shard: Shard) -> None:
    """Open the body files of one shard of a store on disk."""
    use_bodies(state, shard, open_bodies(shard.store, path, shard.index), least)


async def _read_rows(
    state: EngineState, refusal: NotLeaderError | None, *, owns_shards: bool, was_left: bool
) -> None:
    """Build memory from the rows; give back the leases of the process before."""
    for shard in state.hosted:
        with _refused(shard.index):
            await in_slices(state, counter_slices(state, shard))
        if refusal is not None:
            shard.coalescer.enter(READ_ONLY, refusal)
    own = state.hosted if owns_shards else []
    noted: list[Noted] = []
    for shard in own:
        with _refused(shard.index):
            await count_at_open(state, shard)
            await in_slices(state, note_leases(state, shard, noted, was_left))
    with _refused():
        await load_leases(state, noted)
    for shard in own:
        with _refused(shard.index):
            await load_deadlines(state, shard)


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
