"""The replicator seam: lodeq above, somebody's replicated log below.

lodeq brings no consensus. It hands every batch of a shard to a ``Replicator`` and applies what that
has committed; it takes no part in elections. The two meet in three things:

- ``Replicator``: what the replication layer implements and ``lodeq.open(replicator=…)`` takes.
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
5. Everything is called on the engine's own event loop.
6. Replicas start alike: all new, or all restored from one checkpoint.

What lodeq promises: an entry is applied in one batch with ``m/applied``, so term and index in
the store are exactly what its rows hold, whatever happened to the process. Callers are answered
when their entry is applied (fsync mode: and synced). A leader's batches are everything there is to
replicate: rows, counters, ghosts, leases, expiry lists, ring, incarnation, and what dedup hashes
are keyed with (``m/secret``: the first leader of a shard draws it, so a log is to be kept as safe
as a store). Only ``m/stamp``, which names the store, and ``m/applied`` itself are a replica's own.
Where a large body is stored is nobody else's business either and never appears in an entry.

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
memory is dropped, because it ran ahead of the rows: only ``Replica.lead`` builds it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..engine.records.rows import Applied
from ..engine.store.port import Op

__all__ = ["Done", "Entry", "Replica", "Replicator"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch in the log of one shard: applied as a whole, in the order of ``index``."""

    shard: int
    term: int
    index: int
    commit_seq: int
    ops: tuple[Op, ...]


# Called once a proposal: with its entry when that is committed, or with the error instead of it.
Done = Callable[[Entry | BaseException], None]


class Replica(Protocol):
    """The engine as the replication layer sees it. Call it on the engine's event loop."""

    def applied(self, shard: int) -> Applied:
        """Term and index of the last entry in the rows; (0, 0) before the first."""

    def apply(self, entry: Entry) -> None:
        """Take a committed entry that was not proposed here. Taken already: ignored.

        It is applied before this returns, unless the store refuses writes for now (a stall, a
        full disk): then it is kept, and applied as soon as the store takes it. ``applied`` says it.

        Raises:
            InvariantError: an entry is missing before it, or it belongs to another history.
                Nothing was taken.
            BusyError, StorageFullError: an earlier entry waits for the store. This one was not
                taken; deliver it again.
            StorageError: the disk failed: this replica is out until it is reopened.
            ClosedError: the engine is closed.
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
        """This replica does not lead (any more): drop the shard's memory, answer its callers."""


class Replicator(Protocol):
    """The replication layer as lodeq sees it."""

    def attach(self, replica: Replica) -> None:
        """The engine is open and follows in every shard; called once, before anything else."""

    def is_leader(self, shard: int) -> bool:
        """Whether this replica leads ``shard``. Cheap: asked before every proposal."""

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
