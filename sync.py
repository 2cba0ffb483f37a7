"""lodeq for scripts, without ``async`` and event loops.

::

    with lodeq.sync.open("var/jobs") as engine:
        mail = engine.queue("mail")
        mail.enqueue({"to": "a@example.org"})
        for lease in mail.leases():
            with lease:
                send(lease.payload)

The engine runs on an event loop in a thread of its own, so its reaper runs and its leases are kept
alive while the script computes. Any number of threads may use it. A service that has an event loop
opens the store there, and gives its threads ``engine.sync``.

A journal likewise: ``open_journal`` here, ``journal.threads`` beside an event loop; ``open_tailer``
reads one that another process writes.
"""

from __future__ import annotations

import os
from sys import modules
from typing import TYPE_CHECKING, Any, Literal

from .repository.model.arguments import duration_s
from .repository.model.redaction import Redact, redaction_of
from .repository.model.values import Duration, Limits

if TYPE_CHECKING:
    from .client.blocking.engine import SyncRemoteEngine
    from .engine.runtime.clock import Clock
    from .engine.runtime.ids import Rng
    from .repository.api.serve_options import ServeAs
    from .repository.api.threads.sync_engine import SyncEngine
    from .segments.journal.retention import Retention
    from .segments.journal.roll import Roll
    from .segments.journal.sync_journal import SyncJournal
    from .segments.journal.sync_tailer import SyncTailer

__all__ = [
    "SyncEngine",
    "SyncJournal",
    "SyncTailer",
    "connect",
    "open",
    "open_journal",
    "open_tailer",
]


def open(
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    durability: Literal["nosync", "fsync"] | None = None,
    sync_interval: Duration = 1.0,
    commit_batch_max: int = 64,
    submit_queue_max: int = 1024,
    block_cache_bytes: int = 256 << 20,
    limits: Limits | None = None,
    recovery: Literal["strict", "salvage"] = "strict",
    reaper: bool = True,
    lock_wait: Duration = 0.0,
    clock: Clock | None = None,
    compression: Literal["zlib", "zstd"] | None = None,
    rng: Rng | None = None,
    journal: str | None = None,
    journal_retention: Retention | None = None,
    journal_roll: Roll | None = None,
    serve: ServeAs = None,
    redact: Redact | None = None,
) -> SyncEngine:
    """Open the store at ``path``; blocks until it is open. Use it in a ``with`` block.

    Args:
        path: the store's folder, or a path where nothing is yet.
        shards: 1 to 4,096; None takes the store's own number, 1 for a new store.
        durability: ``nosync`` or ``fsync``; None takes the store's own, ``nosync`` for a new store.
        sync_interval: seconds between syncs in ``nosync``.
        commit_batch_max: submissions that share one commit at most, 1 to 4,096.
        submit_queue_max: submissions that wait for a commit at most, 1 to 1,048,576.
        block_cache_bytes: one cache for all shards.
        limits: see ``Limits``.
        recovery: ``strict`` refuses to open if durable commits are lost, ``salvage`` opens with
            what is left.
        reaper: run the background task; without it nothing expires or falls due.
        lock_wait: seconds to wait for another process to close the store.
        clock: another clock, for tests.
        compression: None, ``zlib`` or ``zstd``, for payloads and results of 1 KiB or more.
        rng: another source of randomness, for simulation.
        journal: name of a lifecycle journal; see ``lodeq.lifecycle``.
        journal_retention: how much of the journal is kept; None keeps everything.
        journal_roll: when a file of the journal is full.
        serve: let other processes reach the store while it is open; see ``lodeq.open``.
        redact: what of a preview or a label's value may be stored; see ``lodeq.open``.

    Errors, and what the modes promise, are those of ``lodeq.open``.

    Durability: a new incarnation is fsynced before it returns.
    Cancellation: interrupted, the store is closed again as soon as it is open.
    """
    from .repository.api.open import open_engine  # noqa: PLC0415 - a client loads no store
    from .repository.api.threads.sync_engine import open_in_thread  # noqa: PLC0415

    return open_in_thread(
        open_engine(
            path,
            shards=shards,
            durability=durability,
            sync_interval=sync_interval,
            commit_batch_max=commit_batch_max,
            submit_queue_max=submit_queue_max,
            block_cache_bytes=block_cache_bytes,
            limits=limits,
            recovery=recovery,
            reaper=reaper,
            lock_wait=lock_wait,
            clock=clock,
            compression=compression,
            rng=rng,
            journal=journal,
            journal_retention=journal_retention,
            journal_roll=journal_roll,
            serve=serve,
            redact=redact,
        )
    )


def connect(
    url: str,
    *,
    token: str | None = None,
    timeout: Duration = 30.0,
    redact: Redact | None = None,
) -> SyncRemoteEngine:
    """Connect to a served store, without an event loop. Use it in a ``with`` block.

    Its errors are those of ``lodeq.connect``. Its calls may come from any thread.

    Args:
        url: ``unix://FILE``, ``tcp://HOST:PORT``, ``http://…``, ``https://…``, or
            ``lodeq://HOST:PORT,HOST:PORT`` for a cluster.
        token: the content of the server's ``--token-file``, if it has one.
        timeout: seconds until a server that does not answer is given up.
        redact: what of a preview or a label's value may be sent; see ``lodeq.connect``.

    Durability: that of the server's engine. Cancellation: leaves no connection behind.
    """
    from .client.blocking.connect import led_on, transport_of  # noqa: PLC0415 - an extra
    from .client.blocking.engine import SyncRemoteEngine  # noqa: PLC0415
    from .client.calls import Session, engine_call  # noqa: PLC0415 - only for those who use it

    redaction = redaction_of(redact)
    transport = transport_of(url, token, duration_s(timeout, "timeout", least=0.001))
    try:
        doc = transport.send(engine_call("/engine"))
        session = Session(doc, redaction)
        transport = led_on(transport, doc, token)
    except BaseException:
        transport.close()
        raise
    return SyncRemoteEngine(transport, session)


def open_journal(
    path: str | os.PathLike[str],
    *,
    flush: Literal["async", "batch", "sync"] = "async",
    batch_bytes: int = 1 << 20,
    batch_interval: float = 0.1,
    roll: Roll | None = None,
    retention: Retention | None = None,
    compression: Literal["zlib", "zstd"] | None = None,
    clock: Clock | None = None,
) -> SyncJournal:
    """Open the journal at ``path`` for any number of threads; blocks until it is open.

    ::

        with lodeq.sync.open_journal("var/events", flush="batch") as journal:
            ack = journal.append(b"...", headers={"kind": "login"})

    Args:
        path: a folder of its own. One writer at a time holds it; readers are not counted.
        flush: what an append waits for, unless it says ``until``. ``async``: nothing, it is written
            as soon as the event loop's thread gets to run. ``batch``: the write, which threads
            share; a sync follows after ``batch_bytes`` or ``batch_interval`` seconds. ``sync``: a
            sync, which threads share.
        batch_bytes: see ``flush``; at least 1.
        batch_interval: seconds; see ``flush``.
        roll: when a file is full; None: at 128 MiB, or at an eighth of what ``retention`` keeps.
        retention: what is kept; None: everything. See ``lodeq.journal.open``.
        compression: None, ``zlib``, or ``zstd`` (an extra), for payloads from 1 KiB that gain by
            it, each by itself. Whatever it says, what is there is read.
        clock: another clock, for tests.

    Raises:
        UsageError: of the options; nothing was opened.
        LockedError: another writer has it.
        StorePathError: it is no folder, or not to be written.
        StorageError: the disk failed.

    **Durability.** That of ``lodeq.journal.open``.
    **Cancellation.** Interrupted, the journal is closed again as soon as it is open.
    """
    from .segments.journal.open import open_journal as opening  # noqa: PLC0415
    from .segments.journal.sync_journal import open_in_thread  # noqa: PLC0415

    return open_in_thread(
        opening(
            path,
            flush=flush,
            batch_bytes=batch_bytes,
            batch_interval=batch_interval,
            roll=roll,
            retention=retention,
            compression=compression,
            clock=clock,
        )
    )


def open_tailer(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    start: Literal["start", "end"] | int = "start",
    wait: float | None = None,
    clock: Clock | None = None,
) -> SyncTailer:
    """Read the journal at ``path`` beside whoever writes it, in this process or another; blocks.

    ::

        with lodeq.sync.open_tailer("var/events", "mailer") as tailer:
            for record in tailer:
                ...

    It writes nothing, but for the place of a named tailer: the first at once. It looks for
    more five times a second. ``Ctrl-C`` ends a wait; the tailer is then where it was. A ``close``
    from another thread ends a blocked ``read`` with ``ClosedError``, and a ``for`` loop.

    Args:
        path: the journal's folder.
        name: under which the tailer's position is kept, 1 to 64 of a-z, 0-9, ``_`` and ``-``; None:
            it is not kept.
        start: where a tailer without a kept position begins: a record's number, ``start`` or
            ``end``.
        wait: seconds after which a ``for`` loop ends that gets no more; None: it goes on until the
            tailer is closed.
        clock: None uses the machine's.

    Raises:
        StorePathError: there is no folder.
        UsageError: of ``start``.
        InvalidNameError, CorruptionError: of the name, or of the place stored under it.
        StorageError: the place cannot be read or written.

    **Durability.** A stored place survives the process. A power cut may take it back a little.
    **Cancellation.** Interrupted, the tailer is closed again as soon as it is open.
    """
    from .segments.journal.sync_tailer import open_in_thread  # noqa: PLC0415

    return open_in_thread(path, name, start=start, wait=wait, clock=clock)


if not TYPE_CHECKING:  # type checkers would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Import an engine, or a journal, when it is first used: a client loads no store."""
        if name == "SyncEngine":
            from .repository.api.threads import sync_engine as module  # noqa: PLC0415
        elif name == "SyncJournal":
            from .segments.journal import sync_journal as module  # noqa: PLC0415
        elif name == "SyncTailer":
            from .segments.journal import sync_tailer as module  # noqa: PLC0415
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        found = getattr(module, name)
        setattr(modules[__name__], name, found)
        return found

    def __dir__() -> list[str]:
        """Names that are loaded already, and every public name."""
        return sorted({*vars(modules[__name__]), *__all__})
