"""Every error lodeq raises, in one tree.

::

    LodeqError
    ├─ UsageError (ValueError)        the call is wrong; nothing was written
    │  ├─ InvalidNameError
    │  ├─ PayloadTooLargeError
    │  ├─ PayloadNotLoadedError        a streamed payload is read with ``read_payload``
    │  └─ LimitError
    ├─ LeaseLostError                 drop the task: another worker may have it
    ├─ TaskNotFoundError              no such task, or its result has been forgotten
    ├─ UnknownDependencyError         a task is to wait for one that is not there
    ├─ SnapshotNotFoundError          no such snapshot, or it has lapsed
    ├─ DuplicateTaskError             a dedup key is held; carries ``task_id``
    ├─ BusyError                      retry later; carries ``retry_after_ms``
    │  ├─ QueueFullError
    │  ├─ StoreStalledError
    │  ├─ DeadlineExceededError       the server came to the request too late
    │  └─ UnreachableError            the server, or its answer, did not reach the client
    ├─ StorageError
    │  ├─ StorageFullError            the engine recovers by itself once there is space
    │  ├─ StoragePoisonedError        close and reopen
    │  └─ CommitUnknownError          outcome unknown; retry with the same dedup key
    ├─ CorruptionError                an operator has to act
    │  ├─ RecordCorruptError
    │  ├─ RecoveryRefusedError
    │  └─ SegmentCorruptError         carries ``offset``
    ├─ OpenError                      nothing was opened
    │  ├─ StorePathError
    │  ├─ LockedError
    │  ├─ ShardCountError
    │  ├─ ReplicaStoreError           give it its replicator, or detach it
    │  ├─ FormatTooNewError
    │  └─ FormatTooOldError
    ├─ AccessDeniedError              the server did not accept the token or the address
    ├─ NotLeaderError                 a replicated shard is led elsewhere
    ├─ LogRolledBackError             the replicated log is an older one, or another
    ├─ IncompleteError                some shards of a cluster did not answer; carries ``found``
    ├─ InvariantError                 a bug in lodeq: please report it
    └─ ClosedError                    the engine is closed; on disk also in a forked child
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

__all__ = [
    "AccessDeniedError",
    "BusyError",
    "ClosedError",
    "CommitUnknownError",
    "CorruptionError",
    "DeadlineExceededError",
    "DuplicateTaskError",
    "FormatTooNewError",
    "FormatTooOldError",
    "IncompleteError",
    "InvalidNameError",
    "InvariantError",
    "LeaseLostError",
    "LimitError",
    "LockedError",
    "LodeqError",
    "LogRolledBackError",
    "NotLeaderError",
    "OpenError",
    "PayloadNotLoadedError",
    "PayloadTooLargeError",
    "QueueFullError",
    "RecordCorruptError",
    "RecoveryRefusedError",
    "ReplicaStoreError",
    "SegmentCorruptError",
    "ShardCountError",
    "SnapshotNotFoundError",
    "StorageError",
    "StorageFullError",
    "StoragePoisonedError",
    "StorePathError",
    "StoreStalledError",
    "TaskNotFoundError",
    "UnknownDependencyError",
    "UnreachableError",
    "UsageError",
]


class LodeqError(Exception):
    """Root of the tree. Catch it to catch everything lodeq raises on purpose.

    Raised by ``enqueue_many``, it carries ``receipts``: one entry per task, None for those that
    were not enqueued (or whose outcome is unknown).

    Raised in the middle of a call that changes many tasks (``act``, ``redrive``, ``purge``,
    ``cancel_all``, those of workflows), it carries ``done``: how many were changed for certain,
    whatever its class says of the rest; None if that is none. The same call again goes on.
    """

    receipts: Sequence[Any] = ()
    done: int | None = None


class UsageError(LodeqError, ValueError):
    """The call is wrong. Nothing was written; fix the call.

    Raised by ``enqueue_many`` about one of its tasks, it carries ``index``: the task's position.
    """

    index: int | None = None

    def at(self, index: int) -> None:
        """Say that this is about the task at ``index``; again, where it was counted otherwise."""
        text = str(self).removeprefix(f"tasks[{self.index}]: ")
        self.index = index
        self.args = (f"tasks[{index}]: {text}", *self.args[1:])


class InvalidNameError(UsageError):
    """A queue or tenant name is not ``[a-z0-9][a-z0-9._-]{0,63}``. Nothing was written."""


class PayloadTooLargeError(UsageError):
    """A payload, headers or a result exceed their limit (see ``Limits``). Nothing was written.

    Store the large value elsewhere and enqueue a reference, or raise the limit.
    """

    def __init__(self, message: str, *, size_bytes: int = 0, limit_bytes: int = 0) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class PayloadNotLoadedError(UsageError):
    """A payload above 3 MiB was asked for like a small one. Nothing has changed.

    It is not in memory: ``await lease.read_payload()`` or ``engine.read_payload(id)`` read it
    whole, ``open_payload`` gives it in slices.
    """

    def __init__(self, message: str, *, size_bytes: int = 0) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes


class LimitError(UsageError):
    """Another limit is exceeded, for example the size of a batch with ``atomic=True``.

    Nothing was written. Split the call.
    """


class LeaseLostError(LodeqError):
    """The lease is no longer valid: reaped, revoked, ended, or from another engine.

    The call changed nothing. Drop the task; whoever has it now will finish it.
    """

    def __init__(self, message: str, *, task_id: bytes = b"") -> None:
        super().__init__(message)
        self.task_id = task_id


class TaskNotFoundError(LodeqError):
    """No task and no result has this id. It never existed, or its result has expired.

    Of a task that has ended, and whose result was not kept or no longer is, ``state`` says how
    (``completed``, ``dead``, …), ``finished_at`` when and ``reason`` why, as long as the history
    has them; ``state`` is empty where nothing is known.
    """

    def __init__(
        self,
        message: str,
        *,
        task_id: bytes = b"",
        state: str = "",
        finished_at: datetime | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.state = state
        self.finished_at = finished_at
        self.reason = reason


class UnknownDependencyError(LodeqError):
    """A task is to wait for one that is not there: it never existed, or its result has lapsed.

    Nothing was written. ``task_id`` names it. Keep results longer (``retention=``) where others
    are to wait for them.
    """

    def __init__(self, message: str, *, task_id: bytes = b"") -> None:
        super().__init__(message)
        self.task_id = task_id


class SnapshotNotFoundError(LodeqError):
    """No complete snapshot has this id. It never existed, was released, or has lapsed.

    Take another one, and keep it for as long as it is read.
    """


class DuplicateTaskError(LodeqError):
    """The dedup key, or an id of a load, is held, and ``on_conflict`` does not allow for that.

    Nothing was written. ``task_id`` names the holder of the key.
    """

    def __init__(self, message: str, *, task_id: bytes = b"") -> None:
        super().__init__(message)
        self.task_id = task_id


class BusyError(LodeqError):
    """The call cannot be served now. Nothing was written; retry after ``retry_after_ms`` ms.

    Attributes:
        not_begun: a server has refused it before it looked at it, for having too many callers.
            Clients send such a call again by themselves, until their timeout.
    """

    def __init__(
        self, message: str, *, retry_after_ms: int = 1000, not_begun: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        self.not_begun = not_begun


class QueueFullError(BusyError):
    """``Limits.pending_max`` tasks are waiting in this queue. Nothing was written."""


class StoreStalledError(BusyError):
    """RocksDB refused a write because flushes or compaction lag behind. Nothing was written.

    The engine retries the same group by itself; callers wait (backpressure) and do not get this
    error.
    """


class DeadlineExceededError(BusyError):
    """The server came to the request after its deadline, and did not begin it. Nothing was written.

    Only clients raise it: ``timeout`` of ``lodeq.connect`` is the deadline of what they send.
    """


class UnreachableError(BusyError):
    """The server could not be reached, or its answer to a call that may be repeated was lost.

    Only clients raise it. Tasks of a claim whose answer is lost go back by themselves, at the
    latest when their leases end. A write whose answer is lost raises ``CommitUnknownError``.
    """


class StorageError(LodeqError):
    """The disk or RocksDB failed. See the subclass for what is known."""


class StorageFullError(StorageError):
    """The disk is (nearly) full. Nothing was written; the engine recovers once there is space."""


class StoragePoisonedError(StorageError):
    """An earlier disk error poisoned this shard: reads work, writes and claims do not.

    Close the engine, look at the disk, open it again.
    """


class CommitUnknownError(StorageError):
    """A commit failed in a way that leaves its outcome unknown until the store is reopened.

    Retry after reopening, with the same dedup key, and it happens once. A client raises it, too,
    when the answer to a write is lost.
    """


class CorruptionError(LodeqError):
    """Stored bytes are not what was written. An operator has to act."""


class RecordCorruptError(CorruptionError):
    """One record fails its checksum or cannot be decoded. Nothing else is affected."""


class RecoveryRefusedError(CorruptionError):
    """Opening would lose durable commits; nothing was opened or changed.

    The message names the shard and the missing commits. Restore a checkpoint, or open with
    ``recovery="salvage"`` to go on with what is left and get a report of what was dropped.
    """

    def __init__(self, message: str, *, shard: int = -1, missing: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.shard = shard
        self.missing = missing


class SegmentCorruptError(CorruptionError):
    """A segment file is damaged from ``offset`` on. Everything before that is good.

    ``lodeq segments verify`` lists all damage, ``lodeq segments salvage`` saves the rest.
    """

    def __init__(self, message: str, *, offset: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.offset = offset
        self.reason = reason


class OpenError(LodeqError):
    """The store was not opened and not changed."""


class StorePathError(OpenError):
    """The path cannot be a store: not a directory, not ours, wrong owner or mode, not writable."""


class LockedError(OpenError):
    """Another process (or another engine in this one) has the store open. Only one can.

    ``address``: where that process serves the store, for ``lodeq.connect``; None if it does not.
    """

    def __init__(self, message: str, *, pid: int | None = None, address: str | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.address = address


class ShardCountError(OpenError):
    """The store has another number of shards. Open it with that number, or reshard it."""

    def __init__(self, message: str, *, stored: int = 0, requested: int = 0) -> None:
        super().__init__(message)
        self.stored = stored
        self.requested = requested


class ReplicaStoreError(OpenError):
    """The store is a replica: it holds entries of a replicated log. Nothing was changed.

    Open it with its replicator, or make it a store of its own with ``lodeq.detach``. Looking at it
    read-only needs neither.
    """


class FormatTooNewError(OpenError):
    """A newer lodeq wrote this store. Upgrade lodeq; nothing was changed."""


class FormatTooOldError(OpenError):
    """The store, or a file of it, has a format that is no longer read; nothing was changed.

    The message names both formats. A store: open it once with a release that reads the old format
    and writes one that this release reads; the open upgrades it. A load was staged by an older
    release: stage it again.
    """


class AccessDeniedError(LodeqError):
    """The server refused the call because of its token, its Host, or its origin.

    Nothing was written. Give the client the token of the server's ``--token-file``, or one of its
    ``--tokens`` that has the ``scope``: what a token that is known lacks, such as ``worker:mail``;
    empty where the token itself was not accepted.
    """

    def __init__(self, message: str, *, scope: str = "") -> None:
        super().__init__(message)
        self.scope = scope


class NotLeaderError(LodeqError):
    """This replica does not lead the shard, or cannot know. Nothing was written; ask ``leader``.

    ``leader`` is None while nobody knows it: retry. A lease that a heartbeat could not extend for
    this is not lost yet: it has its length from the last heartbeat that was answered.
    """

    def __init__(self, message: str, *, leader: str | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class LogRolledBackError(LodeqError):
    """The replicated log has gone back in time, or is another one; this replica does not follow it.

    Nothing was written here. The log's service was restored from an older copy, or set up anew
    under a name that was in use: what it has lost, this replica still has. Begin a cluster of
    another name from the most advanced copy of each shard.
    """


class IncompleteError(LodeqError):
    """Some shards of a cluster have no leader that answers. Repeat the call later: that is safe.

    Attributes:
        shards: indexes of the shards that are missing.
        found: what the call would have returned, of the other shards alone.
    """

    def __init__(self, message: str, *, shards: tuple[int, ...] = (), found: Any = None) -> None:
        super().__init__(message)
        self.shards = shards
        self.found = found


class InvariantError(LodeqError):
    """A bug in lodeq: its state contradicts itself. The shard takes no more writes; report it."""


class ClosedError(LodeqError):
    """The engine is closed, or its store is on disk and this is a forked child of its process.

    An engine in memory is copied by a fork like any other object.
    """
