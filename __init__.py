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

from importlib import import_module
from sys import modules
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from . import journal, lifecycle, sync
    from .client.connect import connect
    from .engine.recovery.checkpoint import restore
    from .engine.runtime.task_id import TaskId
    from .engine.values import Finding, Health, LatencySummary, Snapshot
    from .replication.port import Entry, Replica, Replicator
    from .repository.api.engine import Engine
    from .repository.api.leases import LeaseStream
    from .repository.api.open import OpenHandle
    from .repository.api.open import open_engine as open
    from .repository.api.queue import Queue
    from .repository.bulk.stage import Stage
    from .repository.model.ingest_report import IngestedJob, IngestReport
    from .repository.model.reports import ForgottenLoads, MigrationReport, PurgeReport, VerifyReport
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
    from .repository.tasks.lease import Lease

    COMPILED: bool  # whether this is the compiled build

__version__ = "0.1.0"

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

# Where each name is imported from when it is first used, so that a remote client loads no store.
# The block above says the same to type checkers; tests/unit/test_root.py compares the two.
_MODULES: Final = ("journal", "lifecycle", "sync")
_HOMES: Final[dict[str, tuple[str, ...]]] = {
    "client.connect": ("connect",),
    "engine.recovery.checkpoint": ("restore",),
    "engine.runtime.task_id": ("TaskId",),
    "engine.values": ("Finding", "Health", "LatencySummary", "Snapshot"),
    "replication.port": ("Entry", "Replica", "Replicator"),
    "repository.api.engine": ("Engine",),
    "repository.api.leases": ("LeaseStream",),
    "repository.api.open": ("OpenHandle", "open_engine"),
    "repository.api.queue": ("Queue",),
    "repository.bulk.stage": ("Stage",),
    "repository.model.ingest_report": ("IngestReport", "IngestedJob"),
    "repository.model.reports": (
        "ForgottenLoads",
        "MigrationReport",
        "PurgeReport",
        "VerifyReport",
    ),
    "repository.model.values": (
        "ALL_TENANTS",
        "Backoff",
        "Codec",
        "EngineStats",
        "Limits",
        "NewTask",
        "QueueStats",
        "Receipt",
        "Result",
        "ShardStats",
        "Task",
    ),
    "repository.tasks.lease": ("Lease",),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}
_DEFINED_AS: Final = {"open": "open_engine"}


def _is_compiled() -> bool:
    fast_path = import_module(".repository.tasks.fast_path", __name__)
    return not str(fast_path.__file__).endswith((".py", ".pyc"))


if not TYPE_CHECKING:  # type checkers would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        defined_as = _DEFINED_AS.get(name, name)
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        if name == "COMPILED":
            value = _is_compiled()
        elif name in _MODULES:
            value = import_module(f".{name}", __name__)
        else:
            value = getattr(import_module(f".{_HOME_OF[defined_as]}", __name__), defined_as)
        setattr(modules[__name__], name, value)
        return value

    def __dir__() -> list[str]:
        """Names that are loaded already, and every public name."""
        return sorted({*vars(modules[__name__]), *__all__})
