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
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from sys import modules
from typing import TYPE_CHECKING, Any, Final

from .errors import (
    AccessDeniedError,
    BusyError,
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    DeadlineExceededError,
    DuplicateTaskError,
    FormatTooNewError,
    FormatTooOldError,
    IncompleteError,
    InvalidNameError,
    InvariantError,
    LeaseLostError,
    LimitError,
    LockedError,
    LodeqError,
    LogRolledBackError,
    NotLeaderError,
    OpenError,
    PayloadNotLoadedError,
    PayloadTooLargeError,
    QueueFullError,
    RecordCorruptError,
    RecoveryRefusedError,
    ReplicaStoreError,
    SegmentCorruptError,
    ShardCountError,
    SnapshotNotFoundError,
    StorageError,
    StorageFullError,
    StoragePoisonedError,
    StorePathError,
    StoreStalledError,
    TaskNotFoundError,
    UnknownDependencyError,
    UnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    from . import journal, lifecycle, sync
    from .client.connect import connect
    from .coalescer.hosting import Hosting
    from .coalescer.replicator import Entry, Replica, Replicator
    from .engine.recovery.checkpoint import restore
    from .engine.runtime.task_id import TaskId
    from .engine.values import Finding, Health, LatencySummary, Snapshot
    from .repository.api.engine import Engine
    from .repository.api.leases import LeaseStream
    from .repository.api.open import OpenHandle
    from .repository.api.open import open_engine as open
    from .repository.api.queue import Queue
    from .repository.api.serve_options import Serve
    from .repository.bulk.stage import Stage
    from .repository.maintenance.detach import detach
    from .repository.model.calls.functions import FunctionParameter, PublishedFunction
    from .repository.model.filters import ActReport, FoundCount, FoundTasks, TaskFilter
    from .repository.model.flows.workflow_handle import Workflow
    from .repository.model.flows.workflows import (
        FailedMember,
        MemberGroup,
        WorkflowGraph,
        WorkflowInfo,
        WorkflowPage,
    )
    from .repository.model.ingest_report import IngestedJob, IngestReport
    from .repository.model.queue_settings import QueueSettings
    from .repository.model.reports import ForgottenLoads, MigrationReport, PurgeReport, VerifyReport
    from .repository.model.values import (
        ALL_TENANTS,
        Attempt,
        Backoff,
        Codec,
        EngineStats,
        HistoryPage,
        Limits,
        NewTask,
        Part,
        Progress,
        QueueStats,
        Receipt,
        Result,
        ShardStats,
        Task,
    )
    from .repository.model.workers import (
        CronTick,
        KnownFunction,
        RunningTask,
        UnknownFunction,
        WorkerReport,
    )
    from .repository.tasks.lease import Lease
    from .repository.tasks.streamed_payloads import PayloadReader

    COMPILED: bool  # whether the hot path runs compiled

__version__ = "0.1.0"

__all__ = [
    "ALL_TENANTS",
    "COMPILED",
    "AccessDeniedError",
    "ActReport",
    "Attempt",
    "Backoff",
    "BusyError",
    "ClosedError",
    "Codec",
    "CommitUnknownError",
    "CorruptionError",
    "CronTick",
    "DeadlineExceededError",
    "DuplicateTaskError",
    "Engine",
    "EngineStats",
    "Entry",
    "FailedMember",
    "Finding",
    "ForgottenLoads",
    "FormatTooNewError",
    "FormatTooOldError",
    "FoundCount",
    "FoundTasks",
    "FunctionParameter",
    "Health",
    "HistoryPage",
    "Hosting",
    "IncompleteError",
    "IngestReport",
    "IngestedJob",
    "InvalidNameError",
    "InvariantError",
    "KnownFunction",
    "LatencySummary",
    "Lease",
    "LeaseLostError",
    "LeaseStream",
    "LimitError",
    "Limits",
    "LockedError",
    "LodeqError",
    "LogRolledBackError",
    "MemberGroup",
    "MigrationReport",
    "NewTask",
    "NotLeaderError",
    "OpenError",
    "OpenHandle",
    "Part",
    "PayloadNotLoadedError",
    "PayloadReader",
    "PayloadTooLargeError",
    "Progress",
    "PublishedFunction",
    "PurgeReport",
    "Queue",
    "QueueFullError",
    "QueueSettings",
    "QueueStats",
    "Receipt",
    "RecordCorruptError",
    "RecoveryRefusedError",
    "Replica",
    "ReplicaStoreError",
    "Replicator",
    "Result",
    "RunningTask",
    "SegmentCorruptError",
    "Serve",
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
    "TaskFilter",
    "TaskId",
    "TaskNotFoundError",
    "UnknownDependencyError",
    "UnknownFunction",
    "UnreachableError",
    "UsageError",
    "VerifyReport",
    "WorkerReport",
    "Workflow",
    "WorkflowGraph",
    "WorkflowInfo",
    "WorkflowPage",
    "connect",
    "detach",
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
    "coalescer.hosting": ("Hosting",),
    "coalescer.replicator": ("Entry", "Replica", "Replicator"),
    "repository.api.engine": ("Engine",),
    "repository.api.leases": ("LeaseStream",),
    "repository.api.open": ("OpenHandle", "open_engine"),
    "repository.api.queue": ("Queue",),
    "repository.api.serve_options": ("Serve",),
    "repository.bulk.stage": ("Stage",),
    "repository.maintenance.detach": ("detach",),
    "repository.model.filters": ("ActReport", "FoundCount", "FoundTasks", "TaskFilter"),
    "repository.model.calls.functions": ("FunctionParameter", "PublishedFunction"),
    "repository.model.ingest_report": ("IngestReport", "IngestedJob"),
    "repository.model.queue_settings": ("QueueSettings",),
    "repository.model.reports": (
        "ForgottenLoads",
        "MigrationReport",
        "PurgeReport",
        "VerifyReport",
    ),
    "repository.model.values": (
        "ALL_TENANTS",
        "Attempt",
        "Backoff",
        "Codec",
        "EngineStats",
        "HistoryPage",
        "Limits",
        "NewTask",
        "Part",
        "Progress",
        "QueueStats",
        "Receipt",
        "Result",
        "ShardStats",
        "Task",
    ),
    "repository.model.flows.workflow_handle": ("Workflow",),
    "repository.model.flows.workflows": (
        "FailedMember",
        "MemberGroup",
        "WorkflowGraph",
        "WorkflowInfo",
        "WorkflowPage",
    ),
    "repository.model.workers": (
        "CronTick",
        "KnownFunction",
        "RunningTask",
        "UnknownFunction",
        "WorkerReport",
    ),
    "repository.tasks.streamed_payloads": ("PayloadReader",),
    "repository.tasks.lease": ("Lease",),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}
_DEFINED_AS: Final = {"open": "open_engine"}


def _is_compiled() -> bool:
    """Whether the import system finds a compiled module where the hot path is; loads no store."""
    found = find_spec(".repository.tasks.fast_path", __name__)
    return found is not None and str(found.origin).endswith(tuple(EXTENSION_SUFFIXES))


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
