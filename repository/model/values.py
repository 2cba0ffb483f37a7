"""The values users hold and hand in: options, receipts, tasks, results, statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypedDict,
    get_args,
    overload,
)

from ...engine.records.compression import VALUE_BYTES_MAX
from ...engine.records.policy import BackoffKind
from ...engine.records.task import WHOLE_BYTES_MAX
from ...engine.runtime.task_id import UUID, TaskId
from ...engine.values import LatencySummary, spelled
from ...errors import UsageError
from .flows.workflows import OnFailure
from .task_options import (
    BACKOFF_FACTOR_MAX,
    BACKOFF_KINDS,
    BACKOFF_S_MAX,
    DURATION_S_MAX,
    PRIORITY_DEFAULT,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")

__all__ = [
    "ALL_TENANTS",
    "CONFLICTS",
    "PAYLOAD_BYTES_MAX",
    "REASON_BYTES_MAX",
    "REDRIVE_POLICIES",
    "AllTenants",
    "AnyId",
    "Attempt",
    "Backoff",
    "Codec",
    "Deferred",
    "Duration",
    "EngineStats",
    "HistoryPage",
    "Limits",
    "NewTask",
    "OnConflict",
    "OnStageConflict",
    "Part",
    "Progress",
    "QueueStats",
    "Receipt",
    "RedrivePolicy",
    "Result",
    "ShardStats",
    "StreamOptions",
    "Task",
    "payload_bytes",
]

AnyId = TaskId | UUID | str | bytes
Duration = float | timedelta
OnConflict = Literal["return", "raise", "replace"]
CONFLICTS: Final[tuple[str, ...]] = get_args(OnConflict)
RedrivePolicy = Literal["stored", "current"]
REDRIVE_POLICIES: Final[tuple[str, ...]] = get_args(RedrivePolicy)
OnStageConflict = Literal["error", "skip", "replace"]

_T = TypeVar("_T")


class AllTenants:
    """The type of ``ALL_TENANTS``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "lodeq.ALL_TENANTS"


# As a tenant: claims serve all tenants in fair turns, statistics are summed, no enqueue.
ALL_TENANTS = AllTenants()


class Codec(Protocol):
    """How a queue turns objects into payload bytes, and back. Never pickle."""

    def encode(self, value: Any) -> bytes:
        """Object to bytes. Whatever it raises reaches the caller; nothing is written."""

    def decode(self, data: bytes) -> Any:
        """Bytes to object."""


PAYLOAD_BYTES_MAX: Final = 64 << 20  # what ``Limits.payload_bytes_max`` may be
REASON_BYTES_MAX: Final = 32 << 10  # what ``Limits.reason_bytes_max`` may be
OVERHEAD_BYTES = 4096  # of a task, beside payload and headers: 126 for names, the rest fixed


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a nacked task waits, by attempt ``n`` (1 is the first run). Seconds.

    ``fixed``: base. ``linear``: base · n. ``exponential``: base · factor^(n-1).
    ``equal_jitter``: half of the exponential delay, and a random part of the other half.
    ``full_jitter`` (default): a random part of the whole exponential delay. All are capped at
    ``cap``. The jitters are those of M. Brooker, "Exponential Backoff and Jitter" (AWS, 2015).
    """

    kind: Literal["fixed", "linear", "exponential", "equal_jitter", "full_jitter"] = "full_jitter"
    base: float = 5.0
    factor: float = 2.0
    cap: float = 900.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in BACKOFF_KINDS:
            raise UsageError(
                f"backoff kind {spelled(self.kind)} is not one of {', '.join(BACKOFF_KINDS)}"
            )
        for name, value, top in (
            ("base", self.base, BACKOFF_S_MAX),
            ("cap", self.cap, BACKOFF_S_MAX),
            ("factor", self.factor, BACKOFF_FACTOR_MAX),
        ):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= top:  # also refuses NaN
                raise UsageError(f"backoff {name} {spelled(value)} is not between 0 and {top:g}")

    @property
    def code(self) -> BackoffKind:
        """The number stored on disk."""
        return BACKOFF_KINDS[self.kind]


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of an engine. Bytes are after encoding, before compression."""

    payload_bytes_max: int = 16 << 20  # at most 64 MiB; above 3 MiB only of bytes
    headers_bytes_max: int = 16 << 10
    result_bytes_max: int = 1 << 20
    pending_max: int | None = None  # ready + delayed per (queue, tenant); then QueueFullError
    results_max: int = 1_000_000  # results kept in the whole store; the oldest go first
    reason_bytes_max: int = 1024  # nack, bury and error texts are cut here
    # Of queues that have no setting of their own: how long the row of an ended task is kept without
    # its value, in seconds (0: not at all); and how many rows, and bytes, of a queue.
    history_s: int = 604_800
    history_rows: int = 100_000
    history_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) is not int and (value is not None or name != "pending_max"):
                raise UsageError(f"{name} must be a whole number, not {type(value).__name__}")
        if not 0 <= self.payload_bytes_max <= PAYLOAD_BYTES_MAX:
            raise UsageError("payload_bytes_max must be between 0 and 64 MiB")
        for name in ("headers_bytes_max", "result_bytes_max"):
            if not 0 <= getattr(self, name) <= 3 << 20:
                raise UsageError(
                    f"{name} must be between 0 and 3 MiB: one task fits one submission"
                )
        if self.value_bytes_max + self.headers_bytes_max > VALUE_BYTES_MAX - OVERHEAD_BYTES:
            raise UsageError(
                "headers_bytes_max and payload_bytes_max (of which 3 MiB count at most) together "
                "must stay 4 KiB below 4 MiB: one task fits one submission"
            )
        if self.pending_max is not None and self.pending_max < 1:
            raise UsageError("pending_max must be at least 1, or None")
        if self.results_max < 0 or not 0 <= self.reason_bytes_max <= REASON_BYTES_MAX:
            raise UsageError("results_max must not be negative, reason_bytes_max at most 32 KiB")
        if not 0 <= self.history_s <= DURATION_S_MAX:
            raise UsageError("history_s must be between 0 (off) and ten years")
        if self.history_rows < 1 or self.history_bytes < 1:
            raise UsageError("history_rows and history_bytes must be at least 1 (off: history_s=0)")

    @property
    def value_bytes_max(self) -> int:
        """Bytes of a payload that is passed on in one piece; a larger one has its own file."""
        return min(self.payload_bytes_max, WHOLE_BYTES_MAX)


class NewTask(NamedTuple):
    """One task of an ``enqueue_many``, or a follow-up of ``Lease.complete(then=[…])``.

    ``queue`` and ``tenant`` default to those of the queue (or parent) it is given to. The other
    options are those of ``Queue.enqueue``. (A named tuple, because people make millions of them.)

    ``max_attempts``, ``retry``, ``retention`` and ``dead_retention`` are the task's policy: what it
    carries holds wherever it is enqueued. None takes that of the ``Queue`` object it is given to; a
    task for another queue than that one (``engine.enqueue_many``, follow-ups) takes the default of
    ``Engine.queue``: not that of a ``Queue`` object somebody has configured.

    A task with ``after`` is a batch of its own, and is no follow-up, and no member of a workflow:
    there say so to ``Workflow.add``.
    """

    payload: Any
    queue: str | None = None
    tenant: str | None = None
    priority: int = PRIORITY_DEFAULT
    delay: Duration | None = None
    run_at: datetime | None = None
    ttl: Duration | None = None
    dedup_key: str | bytes | None = None
    dedup_window: Duration | None = None
    on_conflict: OnConflict = "return"
    headers: Mapping[str, Any] | None = None
    max_attempts: int | None = None
    shard_key: str | bytes | None = None
    retry: Backoff | None = None
    retention: Duration | None = None
    dead_retention: Duration | None = None
    labels: Mapping[str, str] | None = None
    function: str | None = None
    preview: str | None = None
    after: Sequence[AnyId] = ()
    on_failure: OnFailure = "run"


class StreamOptions(TypedDict, total=False):
    """Options of ``Queue.enqueue_stream``: those of ``Queue.enqueue``, but ``after``."""

    priority: int
    delay: Duration | None
    run_at: datetime | None
    ttl: Duration | None
    dedup_key: str | bytes | None
    dedup_window: Duration | None
    on_conflict: OnConflict
    headers: Mapping[str, Any] | None
    max_attempts: int | None
    retry: Backoff | None
    retention: Duration | None
    dead_retention: Duration | None
    shard_key: str | bytes | None
    labels: Mapping[str, str] | None
    function: str | None
    preview: str | None


class Receipt(NamedTuple):
    """The answer to an enqueue. ``duplicate``: the dedup key was held, ``id`` is the holder.

    ``replaced``: the id of the task that gave way to this one (``on_conflict="replace"``).
    """

    id: TaskId
    duplicate: bool = False
    replaced: TaskId | None = None


class Progress(NamedTuple):
    """How far a run has come, as its function last reported it; ``fraction`` is from 0 to 1."""

    fraction: float | None
    note: str
    at: datetime


class Deferred:
    """A stored value that nobody has asked for yet; ``data`` are its bytes."""

    __slots__ = ("data", "decode")

    def __init__(self, data: bytes, decode: Callable[[bytes], Any]) -> None:
        self.data = data
        self.decode = decode


class _DecodedOnAccess:
    """A slot of a frozen dataclass. A ``Deferred`` in it is decoded once, when it is read."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, holder: Any, owner: type | None = None) -> Any:
        if holder is None:
            return self._slot
        value = self._slot.__get__(holder)
        if type(value) is Deferred:
            value = value.decode(value.data)
            self._slot.__set__(holder, value)  # and the stored bytes go
        return value

    def peek(self, holder: Any) -> Any:
        """Content of the slot, decoded or not."""
        return self._slot.__get__(holder)

    def __set__(self, holder: Any, value: Any) -> None:  # reached by __init__ only: it is frozen
        self._slot.__set__(holder, value)


def _decoded_on_access(*names: str) -> Callable[[type[_T]], type[_T]]:
    def decorate(cls: type[_T]) -> type[_T]:
        for name in names:
            setattr(cls, name, _DecodedOnAccess(cls.__dict__[name]))
        return cls

    return decorate


@_decoded_on_access("payload", "headers")
@dataclass(frozen=True, slots=True)
class Task:
    """A task as found by ``get``, ``list``, ``peek`` or ``dead_letters``.

    ``state`` is ready, delayed, waiting (for other tasks, or for room under the limit of its key),
    leased, dead, completed, expired or cancelled. A finished task has no payload and no headers any
    more. ``position`` is where a listing goes on ``after`` it; ``progress`` is that of the run that
    has it leased.

    ``function``, ``preview`` and ``labels`` are those given at enqueue, also once it is finished.

    Payload and headers are decoded when they are first read. Reading what cannot be decoded, also
    by ``repr`` or ``==``, raises ``RecordCorruptError``, or what the queue's codec raises.
    """

    id: TaskId
    state: str
    queue: str
    tenant: str
    priority: int
    attempts: int
    enqueued_at: datetime
    payload: Any = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    due_at: datetime | None = None
    expires_at: datetime | None = None
    finished_at: datetime | None = None
    max_attempts: int | None = None
    worker: str = ""
    reason: str = ""
    position: bytes = b""
    function: str = ""
    preview: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    progress: Progress | None = None


def payload_bytes(task: Task) -> int:
    """How many bytes are kept for its payload: 0 if it is not kept as bytes."""
    value = Task.__dict__["payload"].peek(task)
    data = value.data if type(value) is Deferred else value
    return len(data) if isinstance(data, bytes) else 0


@_decoded_on_access("value")
@dataclass(frozen=True, slots=True)
class Result(Generic[V]):
    """How a task ended. ``status``: completed, dead, expired or cancelled.

    The value is decoded when it is first read, as the payload of a ``Task``. ``function``,
    ``preview`` and ``labels`` are those that were given at enqueue, empty if none were.
    """

    task_id: TaskId
    status: str
    value: V
    error: str
    attempts: int
    queue: str
    tenant: str
    worker: str
    priority: int
    enqueued_at: datetime
    ready_at: datetime | None
    leased_at: datetime | None
    finished_at: datetime
    function: str = ""
    preview: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def waited(self) -> float | None:
        """Seconds from ready to claimed, of its last run; None if it was never claimed."""
        if self.ready_at is None or self.leased_at is None:
            return None
        return max(0.0, (self.leased_at - self.ready_at).total_seconds())

    @property
    def ran(self) -> float | None:
        """Seconds from claimed to ended, of its last run; None if it was never claimed."""
        if self.leased_at is None:
            return None
        return max(0.0, (self.finished_at - self.leased_at).total_seconds())

    @property
    def took(self) -> float:
        """Seconds from its enqueue to its end."""
        return max(0.0, (self.finished_at - self.enqueued_at).total_seconds())


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Some ended tasks, those that were enqueued last first. It iterates over its results.

    ``cursor`` is where the next page begins; None: there is no more. ``is_short``: the search ended
    before ``limit`` was reached, because it had looked at enough rows; there may be more.
    ``has_cut_previews``: others had a cut preview, in which ``text`` may have been.
    """

    results: Sequence[Result]
    cursor: str | None
    is_short: bool
    has_cut_previews: bool = False

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | Sequence[Result]:
        return self.results[index]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a task, and how it ended.

    ``outcome``: nacked, lease_expired, buried; of the last run also completed, expired, cancelled.
    A redriven task counts its runs anew. ``reason`` is cut to 512 bytes.
    """

    number: int
    outcome: str
    started_at: datetime | None
    ended_at: datetime
    worker: str
    reason: str

    @property
    def ran(self) -> float | None:
        """Seconds that it ran; None if it is not known when it began."""
        if self.started_at is None:
            return None
        return max(0.0, (self.ended_at - self.started_at).total_seconds())


@_decoded_on_access("value")
@dataclass(frozen=True, slots=True)
class Part:
    """One task that a workflow, or a waiting task, waits for.

    ``status`` is that of its first end in this generation: completed, dead, cancelled, expired;
    None while it is under way. ``value`` and ``error`` are those of its result, while that is
    kept; the value is decoded when it is first read, as the payload of a ``Task``.
    """

    number: int
    task_id: TaskId
    status: str | None
    value: Any = None
    error: str = ""
    queue: str = ""  # empty where no result is kept
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Exact counts, from memory: O(tenants of the queue) at most, never a scan of rows."""

    ready: int
    delayed: int
    leased: int
    dead: int
    results: int  # rows of ended tasks that are kept: results and history, dead ones as well
    oldest_ready_age: float | None
    is_paused: bool
    waiting: int = 0  # for other tasks, or for room under the limit of their key
    is_queue_paused: bool = False  # the whole queue, for all tenants

    @property
    def pending(self) -> int:
        """Ready, delayed and waiting."""
        return self.ready + self.delayed + self.waiting


@dataclass(frozen=True, slots=True)
class ShardStats:
    """One shard's commit loop since it was opened."""

    shard: int
    commits: int
    submissions: int
    operations: int
    bytes: int
    syncs: int
    stalls: int
    waiting: int
    merge_sizes: Sequence[tuple[int, int]]  # (submissions per commit up to, commits)
    commit: LatencySummary
    fsync: LatencySummary
    durable_commit: int
    applied_commit: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The whole engine. Counts are exact; totals count since the engine was opened."""

    ready: int
    delayed: int
    leased: int
    dead: int
    results: int
    enqueued_total: int
    claimed_total: int
    completed_total: int
    nacked_total: int
    reaped_total: int
    dead_total: int
    expired_total: int
    duplicates_total: int
    recoveries: Sequence[str]
    anomalies: Sequence[str]
    reaper_lag: float
    oldest_lease_age: float | None
    old_body_files: int  # of the older format: ``Engine.migrate_bodies``
    old_body_bytes: int
    unreadable: Sequence[str]  # what of each shard cannot be read, in words: see ``health``
    shards: Sequence[ShardStats]
    waiting: int = 0  # tasks that wait for others, or for room under the limit of their key
    redact_failures: int = 0  # texts that were not stored because the hook ``redact`` failed
    dead_dropped_total: int = 0  # dead letters beyond ``dead_max`` or ``dead_bytes``
