"""The replicator seam: lodeq above, somebody's replicated log below.

lodeq brings no consensus. It hands every batch of a shard to a ``Replicator`` and applies what that
has committed; it takes no part in elections. The two meet in three things:

- ``Replicator``: what the replication layer implements and ``lodeq.open(replicator=…)`` takes. One
  that is a ``Hosting`` as well (``hosting``) has a replica of some of the shards only.
- ``Replica``: what lodeq gives to ``Replicator.attach``: deliver entries, announce roles.
- ``Entry``: one batch in the log of one shard. One shard has one log.

What the layer promises:

1. ``propose`` is answered once, by ``done(entry)`` or ``done(error)``, in the order of proposals
   and never skipping one: if an entry is committed, so is every earlier one of its leader.
2. ``index`` counts the entries of a shard, 1, 2, 3, …; a term never falls. What the layer logs for
   itself (elections, members) has no index here.
3. Every replica is given the same entries in the same order: its own proposals by ``done``,
   all others by ``Replica.apply``. Delivering one again is harmless, skipping one is refused.
4. ``Replica.lead`` is called when all entries of earlier terms have been delivered here; between
   two terms of one leader comes ``Replica.follow``.
5. ``holds_session`` is true only while no other replica can have been elected. The log fences
   writes, but not answers from memory (a heartbeat, an empty claim): before each of those the
   engine asks.
6. Everything is called on the engine's own event loop.
7. Replicas start alike: all new, or all restored from one checkpoint.

What lodeq promises: an entry is applied in one batch with ``m/applied``, so term and index in
the store are exactly what its rows hold, whatever happened to the process. Callers are answered
when their entry is applied (fsync mode: and synced). A leader's batches are everything there is to
replicate: rows, counters, ghosts, leases, expiry lists, ring, incarnation, and what dedup hashes
are keyed with (``m/secret``: the first leader of a shard draws it, so a log is to be kept as safe
as a store). Only ``m/stamp``, which names the store, and ``m/applied`` itself are a replica's own.
Where a large payload is stored, and which events a journal has already, is nobody else's business
either and never appears in an entry (``local_rows``).

*Formats.* A replica of format 1 gets its new stamp when it is opened, and the rest by the log. Open
all of them with the new release before one of them leads: an older lodeq applies the entries of a
newer leader unread.

*Snapshots* are ``Engine.checkpoint`` and ``lodeq.restore``: a new replica, or one that has fallen
behind the log, is closed, restored and opened; ``Replica.applied`` says where its log goes on.

*A leader whose disk fails* answers everybody and says so in ``Engine.health``, but remains leader:
it is for the layer to move it.

*Failed proposals.* ``done(NotLeaderError)`` means that the proposal never entered the log: its
caller gets that error and may ask the leader. Any other error leaves open whether it will
still be committed: ``CommitUnknownError``, retry with the same dedup key. Either way the shard's
memory is dropped, because it ran ahead of the rows: only ``Replica.lead`` builds it again. What
was proposed and not answered when ``Replica.follow`` was called is waited for
``definite_s`` seconds: a layer that knows within a round trip answers it meanwhile.

*Merging.* While a proposal of a shard is under way its next group stays open, so submissions share
entries, rows and round trips. A full group is proposed behind it at once: the layer puts
consecutive proposals into one append.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..engine.records.rows import Applied
from ..engine.runtime.clock import Clock
from ..engine.runtime.event_loop import Spawner
from ..engine.store.port import Op

__all__ = [
    "ENTRY_BYTES_LEAST",
    "Done",
    "Entry",
    "InheritanceDelay",
    "KnowsWhy",
    "Replica",
    "Replicator",
    "submission_bytes_max",
]


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch in the log of one shard: applied as a whole, in the order of ``index``."""

    shard: int
    term: int
    index: int
    commit_seq: int
    ops: tuple[Op, ...]


ENTRY_BYTES_LEAST = 1 << 20  # a slice of the reaper's work, or a turn of a large claim, fits it

# Called once a proposal: with its entry when that is committed, or with the error instead of it.
Done = Callable[[Entry | BaseException], None]


class Replica(Protocol):
    """The engine as the replication layer sees it. Call it on the engine's event loop."""

    def applied(self, shard: int) -> Applied:
        """Term and index of the last entry in the rows; (0, 0) before the first."""

    def durable(self, shard: int) -> int:
        """Index of the last entry whose rows survive a power cut here. At most ``applied``."""

    def apply(self, entry: Entry) -> None:
        """Take a committed entry that was not proposed here. Taken already: ignored.

        It is applied before this returns, unless the store refuses writes for now (a stall, a
        full disk), or large payloads of it are to be synced first: then it is kept, and applied as
        soon as that has changed. ``applied`` says it.

        Raises:
            InvariantError: an entry is missing before it, or it belongs to another history.
                Nothing was taken.
            BusyError, StorageFullError: an earlier entry waits for the store. This one was not
                taken; deliver it again.
            StorageError: the disk failed: this replica is out until it is reopened.
            ClosedError: the engine is closed.
        """

    def apply_many(self, entries: Sequence[Entry]) -> None:
        """Take consecutive entries of one shard in one write; as ``apply``, all or none.

        A row that several of them change is written once, as the last of them leaves it. The event
        loop stands still for the write: some 2 MiB of rows at a time keep that to milliseconds.
        """

    def limit_intake(self, reason: str | None) -> None:
        """Refuse enqueues with ``StorageFullError``, for this reason; None: take them.

        What ends tasks goes on. For a log that is nearly full.
        """

    async def lead(self, shard: int) -> None:
        """This replica has been elected: build the shard's memory and serve it.

        Returns when it is being served. Calling it again meanwhile, or afterwards, does nothing.

        Raises:
            NotLeaderError, CommitUnknownError: leadership was lost before that. Nothing is served.
            CorruptionError: its rows cannot be read. Nothing is served: let another replica lead.
            StorageError, ClosedError: as ``apply``.
        """

    def follow(self, shard: int) -> None:
        """This replica does not lead (any more): drop the shard's memory, answer its callers.

        Harmless when repeated, and while the engine is being closed.
        """

    async def host(self, shard: int) -> None:
        """Have this replica take part in a shard: open its folder, in the place of the stub.

        For a replicator that is a ``Hosting``. The layer has made ready what lies there: a copy of
        another replica's shard, or nothing; then an empty one is begun. On return it follows, at
        its ``applied``. A shard that is here already stays as it is.

        Raises:
            UsageError: there is no such shard, or the replicator is no ``Hosting``.
            OpenError, RecoveryRefusedError: the folder is of another shard, damaged, or of a format
                that is not read. The stub is back, the folder unchanged.
            CorruptionError, StorageError: as before, of the rows or the disk.
            ClosedError: the engine is closed, or being closed.

        Durability: what ``applied`` says survives a power cut.
        Cancellation: the stub is back.
        """

    async def unhost(self, shard: int) -> None:
        """Let a shard go: it follows, its callers are answered, its store is synced and closed.

        From the call on the stub is in its place. On return the layer may remove its folder
        (``engine.files.shard_files.remove_shard``). A shard that is not here stays as it is.

        Raises:
            UsageError, ClosedError: as ``host``.

        Cancellation: it is let go all the same.
        """


class Replicator(Protocol):
    """The replication layer as lodeq sees it.

    In this order: ``prepare``, ``start``, then anything, then ``closing``, ``closed``. An open that
    fails calls ``closed`` as well, also where ``prepare`` itself has failed.
    """

    # Keys and values of one entry, at least 1 MiB; known before ``prepare``. What may be larger is
    # refused at the edge, by an estimate: a call may have half of it, a value 64 KiB less.
    entry_bytes_max: int
    definite_s: float  # how long to wait for an answer after leadership ended; 0: not at all

    async def prepare(self, path: str | None) -> None:
        """Make ready what is to be opened: the store at ``path`` is still closed.

        The place to copy a checkpoint to where there is no store yet, or one that has fallen behind
        the log. ``path`` is None for an engine in memory. An exception ends the open.
        """

    async def start(self, replica: Replica, spawner: Spawner, clock: Clock) -> None:
        """The engine is open and follows in every shard.

        Args:
            replica: the engine.
            spawner: its event loop, for tasks and timers of the layer.
            clock: its clock.
        """

    def is_leader(self, shard: int) -> bool:
        """Whether this replica leads ``shard``. Cheap: asked before every proposal."""

    def holds_session(self, shard: int) -> bool:
        """Whether no other replica can lead ``shard`` by now.

        Cheap: asked before every answer that rests on memory alone.
        """

    def leader(self, shard: int) -> str | None:
        """Where to find the leader (``NotLeaderError.leader``); None: not known."""

    def propose(self, shard: int, commit_seq: int, ops: tuple[Op, ...], done: Done) -> None:
        """Append a batch to the shard's log. An exception counts as ``done(exception)``.

        Args:
            shard: index of the shard.
            commit_seq: the batch's number, ascending within an incarnation.
            ops: the batch, as it is to be written by every replica.
            done: called once, with the entry once it is committed, or with an error.
        """

    async def closing(self) -> None:
        """The engine begins to close: take part in no election any more.

        What is proposed is still to be answered; leadership may be given up as soon as it is.
        ``Replica.lead`` is refused from now on. Called again if the close is cancelled and begun
        anew. An exception is logged, and the store is closed all the same.
        """

    async def closed(self) -> None:
        """The stores are closed: give up what is led, and let go of the log. As ``closing``."""


def submission_bytes_max(replicator: Replicator) -> int:
    """Bytes that one submission may be thought to have, with room for what it turns out to have."""
    return replicator.entry_bytes_max // 2


@runtime_checkable
class InheritanceDelay(Protocol):
    """A ``Replicator`` may have this as well: one that lets terms end before a session is over.

    Whoever led until then may go on answering heartbeats for a while (its session has not run out),
    so its leases are not to be ended behind its back.
    """

    def inherits_at(self, shard: int) -> float:
        """``mono()`` of the engine's clock before which this leader ends no inherited lease.

        Asked for once, when ``shard`` is gained. Until then leases of earlier terms are neither
        reaped nor cancelled, and their tasks not granted again; their holders may end them. 0.0, or
        a time that has passed: at once.
        """


@runtime_checkable
class KnowsWhy(Protocol):
    """A ``Replicator`` may have this as well: one that can say why it does not take part."""

    def why_not(self, shard: int) -> str | None:
        """Why this replica cannot lead ``shard``, for ``NotLeaderError``; None: it could."""

    def failures(self) -> Sequence[str]:
        """Why this replica cannot follow its log, or lead, for ``Engine.health``; empty: it can."""
