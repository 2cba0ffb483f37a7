"""lodeq: a durable task queue that an asyncio service embeds. No server, no broker.

::

    async with lodeq.open("var/jobs") as engine:
        mail = engine.queue("mail")
        await mail.enqueue({"to": "a@example.org"})
        for lease in await mail.claim(limit=64, wait=10):
            async with lease:
                await send(lease.payload)

It features group commit (many callers share one write and one fsync), leases with fencing
epochs, priorities, delays, TTLs, deduplication, retries with backoff, dead letters, results,
tenants served in fair turns, N shards, and a recovery that says so when something is missing.

It is not a server (one process owns a store), not exactly-once *execution* (a worker may die
between its side effect and its complete), and not an ordered log.
"""

from . import journal, lifecycle, sync
from .client.connect import connect
from .coalescer.stats import LatencySummary
from .engine.bulk.snapshots import Snapshot
from .engine.recovery.checkpoint import restore
from .engine.recovery.health import Health
from .engine.recovery.verify import Finding
from .engine.runtime.task_id import TaskId
from .errors import (
    AccessDeniedError,
    BusyError,
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    DuplicateTaskError,
    FormatTooNewError,
    FormatTooOldError,
    InvalidNameError,
    InvariantError,
    LeaseLostError,
    LimitError,
    LockedError,
    LodeqError,
    NotLeaderError,
    OpenError,
    PayloadTooLargeError,
    QueueFullError,
    RecordCorruptError,
    RecoveryRefusedError,
    SegmentCorruptError,
    ShardCountError,
    SnapshotNotFoundError,
    StorageError,
    StorageFullError,
    StoragePoisonedError,
    StorePathError,
    StoreStalledError,
    TaskNotFoundError,
    UnreachableError,
    UsageError,
)
from .replication.port import Entry, Replica, Replicator
from .repository.api.engine import Engine
from .repository.api.leases import LeaseStream
from .repository.api.open import OpenHandle
from .repository.api.open import open_engine as open
from .repository.api.queue import Queue
from .repository.api.runtime import VerifyReport
from .repository.background.body_migration import MigrationReport
from .repository.bulk.forget import ForgottenLoads
from .repository.bulk.purge import PurgeReport
from .repository.bulk.stage import Stage
from .repository.model.ingest_report import IngestedJob, IngestReport
from .repository.model.values import (
    ALL_TENANTS,
    Backoff,
    Codec,
    EngineStats,
    Limits,
    NewTask,
    QueueStats,
    Receipt,
    Result,
    ShardStats,
    Task,
)
from .repository.tasks import fast_path as _hot
from .repository.tasks.lease import Lease

__version__ = "0.1.0"
COMPILED = not _hot.__file__.endswith((".py", ".pyc"))  # whether this is the compiled build

__all__ = [
    "ALL_TENANTS",
    "COMPILED",
    "AccessDeniedError",
    "Backoff",
    "BusyError",
    "ClosedError",
    "Codec",
    "CommitUnknownError",
    "CorruptionError",
    "DuplicateTaskError",
    "Engine",
    "EngineStats",
    "Entry",
    "Finding",
    "ForgottenLoads",
    "FormatTooNewError",
    "FormatTooOldError",
    "Health",
    "IngestReport",
    "IngestedJob",
    "InvalidNameError",
    "InvariantError",
    "LatencySummary",
    "Lease",
    "LeaseLostError",
    "LeaseStream",
    "LimitError",
    "Limits",
    "LockedError",
    "LodeqError",
    "MigrationReport",
    "NewTask",
    "NotLeaderError",
    "OpenError",
    "OpenHandle",
    "PayloadTooLargeError",
    "PurgeReport",
    "Queue",
    "QueueFullError",
    "QueueStats",
    "Receipt",
    "RecordCorruptError",
    "RecoveryRefusedError",
    "Replica",
    "Replicator",
    "Result",
    "SegmentCorruptError",
    "ShardCountError",
    "ShardStats",
    "Snapshot",
    "SnapshotNotFoundError",
    "Stage",
    "StorageError",
    "StorageFullError",
    "StoragePoisonedError",
    "StorePathError",
    "StoreStalledError",
    "Task",
    "TaskId",
    "TaskNotFoundError",
    "UnreachableError",
    "UsageError",
    "VerifyReport",
    "connect",
    "journal",
    "lifecycle",
    "open",
    "restore",
    "sync",
]
