"""From a call's arguments to an ``EncodedTask``: validated, encoded, ready to be placed.

Everything that can be refused is refused here, before a single operation is queued.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final, Protocol

from ...engine.records.compression import Compressor
from ...engine.records.keyspace import check_name
from ...engine.records.policy import Policy, encode_policy
from ...engine.records.rows import KEYED_FORM, BodyRow
from ...engine.records.task import ATTEMPTS_MAX, NO_GHOST, RECORD_ID_BYTES
from ...engine.runtime.clock import Clock
from ...engine.runtime.ids import slot_of
from ...errors import UsageError
from ..state.engine_state import ready_value
from ..state.queue_state import TenantQueue
from .codec import encode_headers, encode_value
from .task_options import DURATION_S_MAX, KEY_BYTES_MAX, PRIORITY_DEFAULT, PRIORITY_MAX
from .values import CONFLICTS, AllTenants, Backoff, Codec, Duration, Limits, NewTask, OnConflict

__all__ = [
    "EncodedTask",
    "Encoding",
    "TaskTemplate",
    "check_attempts",
    "check_priority",
    "duration_s",
    "encoded_task",
    "is_plain",
    "item_among",
    "listed",
    "names_of",
    "plain_values",
    "shard_key_bytes",
    "simple_item",
    "to_datetime",
    "when_ms",
]

# The pieces of engine/records/task.py, cut where they vary: what a queue's tasks share is packed
# once and kept, so a plain enqueue packs two timestamps and a checksum.
BODY_ROWS_BYTES: Final = 128  # a body row and its twin
HEAD: Final = struct.Struct("<BBHBBBB")
HEAD_TIMES: Final = struct.Struct("<qqqq")
MIDDLE: Final = struct.Struct("<32s16sqIIII")
TIME_MS_MAX: Final = (1 << 47) - 1  # in the year 6429: every time that is kept can be shown
# What is shown of a stored time that no date can show: loads may hold any number.
_FIRST_SHOWN: Final = datetime(1, 1, 2, tzinfo=UTC)
_LAST_SHOWN: Final = datetime(9999, 12, 30, tzinfo=UTC)
READY: Final = 0x72
DELAYED: Final = 0x64
_options: Final[Callable[[Any], Any]] = itemgetter(slice(1, None))
_NO_OPTIONS: Final = _options(NewTask(b""))
# ``pack(head, created_us, seq, middle, payload)``, the middle, the value of the ready row.
PlainParts = tuple[Callable[[bytes, int, int, bytes, bytes], bytes], bytes, bytes]


def duration_s(value: Duration, what: str, *, least: float = 0.0) -> float:
    """Seconds, finite and within ten years; anything else is a ``UsageError``."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageError(f"{what} must be seconds or a timedelta, not {type(value).__name__}")
    if not least <= seconds <= DURATION_S_MAX:  # refuses NaN as well
        raise UsageError(f"{what} {value!r} is not between {least:g} seconds and ten years")
    return float(seconds)


def when_ms(value: object, what: str) -> int:
    """An aware datetime as wall milliseconds."""
    if not isinstance(value, datetime):
        raise UsageError(f"{what} must be an aware datetime, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise UsageError(f"{what} has no time zone: use datetime.now(UTC) or give it a tzinfo")
    ms = round(value.timestamp() * 1000)
    if not 0 <= ms <= TIME_MS_MAX:
        raise UsageError(f"{what} {value!r} is out of range")
    return ms


def to_datetime(us: int) -> datetime:
    """Stored microseconds as an aware datetime; what is beyond dates, as the last one, or first."""
    try:
        return datetime.fromtimestamp(us / 1e6, UTC)
    except (OverflowError, ValueError, OSError):
        return _LAST_SHOWN if us > 0 else _FIRST_SHOWN


class TaskTemplate:
    """What a queue's tasks have in common, packed. One a ``Queue`` object; small and bounded."""

    __slots__ = (
        "backoff",
        "codec",
        "dead_retention_s",
        "heads",
        "lane",
        "max_attempts",
        "names",
        "plain",
        "plain_heads",
        "policy",
        "queue",
        "retention_s",
        "tenant",
    )

    def __init__(
        self,
        queue: bytes,
        tenant: bytes,
        *,
        max_attempts: int = 5,
        retention: Duration = 3600.0,
        dead_retention: Duration = 604_800.0,
        backoff: Backoff | None = None,
        codec: Codec | None = None,
    ) -> None:
        self.queue = queue
        self.tenant = tenant
        self.lane: TenantQueue | None = None  # where the last plain enqueue went
        self.names = queue + tenant
        self.codec = codec
        self.backoff = backoff if backoff is not None else Backoff()
        if not isinstance(self.backoff, Backoff):
            raise UsageError("backoff must be a lodeq.Backoff")
        self.retention_s = duration_s(retention, "retention")
        self.dead_retention_s = duration_s(dead_retention, "dead_retention")
        self.max_attempts = check_attempts(max_attempts)
        self.policy = self.policy_for(self.max_attempts)
        self.heads: dict[tuple[int, int, int], bytes] = {}
        self.plain: dict[int, PlainParts] = {}  # by payload size
        self.plain_heads = [self.head(kind, PRIORITY_DEFAULT, READY) for kind in range(3)]

    def policy_for(self, max_attempts: int) -> bytes:
        """The 32 bytes of the record."""
        b = self.backoff
        return encode_policy(
            Policy(
                max_attempts,
                b.code,
                b.factor,
                round(b.base * 1000),
                round(b.cap * 1000),
                round(self.retention_s * 1000),
                round(self.dead_retention_s * 1000),
            )
        )

    def head(self, flags: int, priority: int, kind: int) -> bytes:
        """The first eight bytes."""
        head = self.heads.get((flags, priority, kind))
        if head is None:
            head = HEAD.pack(0x54, 1, flags, priority, kind, len(self.queue), len(self.tenant))
            self.heads[flags, priority, kind] = head
        return head

    def middle(self, payload_bytes: int) -> bytes:
        """From policy to names, for a plain task of this size."""
        return (
            MIDDLE.pack(self.policy, NO_GHOST, 0, 0, payload_bytes, payload_bytes, 0) + self.names
        )

    def plain_parts(self, payload_bytes: int) -> PlainParts:
        """What packs the records of plain tasks of this size, and the value of their ready rows."""
        if len(self.plain) >= 1024:
            self.plain.clear()
        middle = bytes(16) + self.middle(payload_bytes)  # due_ms and expires_ms: none
        pack = struct.Struct(f"<8sqq{len(middle)}s{payload_bytes}s").pack
        value = ready_value(32 + len(middle) + payload_bytes, 5)  # head and times 24, checksum 8
        parts = self.plain[payload_bytes] = (pack, middle, value)
        return parts


def check_attempts(value: object) -> int:
    """1 to 65,535."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= ATTEMPTS_MAX:
        raise UsageError(f"max_attempts {value!r} is not between 1 and {ATTEMPTS_MAX}")
    return value


def check_priority(value: object) -> int:
    """0 to 9."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= PRIORITY_MAX:
        raise UsageError(
            f"priority {value!r} is not between 0 and {PRIORITY_MAX} "
            f"({PRIORITY_MAX} is claimed first)"
        )
    return value


class EncodedTask:
    """One task about to be placed: the parts of its record but for id and times."""

    __slots__ = (
        "body",
        "body_row",
        "due_ms",
        "expires_ms",
        "flags",
        "ghost",
        "ghost_expires_ms",
        "on_conflict",
        "priority",
        "queue",
        "raw_bytes",
        "record_bytes",
        "routing",
        "row_bytes",
        "shared",
        "slim_tail",
        "slot",
        "tail",
        "tenant",
    )

    def __init__(self, shared: TaskTemplate, flags: int, priority: int, tail: bytes) -> None:
        self.shared = shared
        self.queue = shared.queue
        self.tenant = shared.tenant
        self.flags = flags
        self.priority = priority
        self.tail = tail
        self.record_bytes = len(tail) + 48  # head 8, times 32, checksum 8
        self.row_bytes = self.record_bytes  # of it, what goes through the log
        self.due_ms = 0
        self.expires_ms = 0
        self.slot: int | None = None
        self.ghost = NO_GHOST
        self.routing = b""  # of a dedup key: queue NUL tenant NUL key
        self.ghost_expires_ms = 0
        self.on_conflict: OnConflict = "return"
        self.body: bytes | None = None  # the end of ``tail``, not in it: it goes to a body file
        self.body_row: BodyRow | None = None  # where it lies, once it is written
        self.raw_bytes = 0  # of a body: before compression
        self.slim_tail = b""  # ``tail`` of the task's record; the id of its payload's is to follow


class Encoding(Protocol):
    """What encoding a task depends on: an engine's ``Core``, or what stands in for one."""

    limits: Limits
    compressor: Compressor
    body_bytes_min: int
    clock: Clock

    def ghost_of(self, slot: int, routing: bytes) -> bytes:
        """Under which hash the dedup key of that slot lies."""


def is_plain(task: NewTask) -> bool:
    """Whether it has no options: ``simple_item`` will do."""
    return (
        task.priority == PRIORITY_DEFAULT
        and task.delay is None
        and task.run_at is None
        and task.ttl is None
        and task.dedup_key is None
        and task.dedup_window is None
        and task.headers is None
        and task.max_attempts is None
        and task.shard_key is None
        and task.on_conflict == "return"
    )


def simple_item(core: Encoding, shared: TaskTemplate, payload: Any) -> EncodedTask:
    """A task with no options: the hot path."""
    if core.compressor.code:
        return encoded_task(core, shared, NewTask(payload), core.clock.wall_us())
    kind, data = encode_value(payload, shared.codec, core.limits.payload_bytes_max, "payload")
    if len(data) >= core.body_bytes_min:
        return encoded_task(core, shared, NewTask(payload), core.clock.wall_us())
    return EncodedTask(shared, kind, 5, shared.middle(len(data)) + data)


def item_among(
    core: Encoding, shared: TaskTemplate, task: NewTask, now_us: int, large: dict[int, EncodedTask]
) -> EncodedTask:
    """One of the tasks of a call, which keeps their payloads alive; ``large`` begins empty.

    A payload that goes to a body file is encoded once for all that are given the same object.
    """
    like = large.get(id(task.payload)) if large else None
    if like is not None and like.shared.codec is shared.codec:
        return encoded_task(core, shared, task, now_us, like)
    if is_plain(task):
        item = simple_item(core, shared, task.payload)
    else:
        item = encoded_task(core, shared, task, now_us)
    if item.body is not None:
        large[id(task.payload)] = item
    return item


def plain_values(
    shared: TaskTemplate, tasks: Sequence[Any], limit: int, plain_max: int
) -> tuple[list[tuple[int, bytes]], int] | None:
    """(kind, bytes) of tasks that all are without options, and how many bytes that is.

    None: one has options, or a payload above ``plain_max``.
    """
    codec, values, size = shared.codec, [], 0
    for task in tasks:
        if task.__class__ is not NewTask or _options(task) != _NO_OPTIONS:
            return None
        payload = task[0]
        if type(payload) is bytes and len(payload) <= plain_max:
            values.append((0, payload))
            size += len(payload)
        else:
            values.append(encode_value(payload, codec, limit, "payload"))
            size += len(values[-1][1])
            if len(values[-1][1]) > plain_max:
                return None
    return values, size


def shard_key_bytes(key: object, what: str) -> bytes:
    """A dedup or shard key as bytes."""
    try:
        raw = key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError as exc:
        raise UsageError(f"{what} is not valid Unicode: {exc}") from exc
    if not isinstance(raw, bytes) or not 1 <= len(raw) <= KEY_BYTES_MAX:
        raise UsageError(f"{what} must be 1 to {KEY_BYTES_MAX} bytes of str or bytes")
    return raw


def encoded_task(
    core: Encoding,
    shared: TaskTemplate,
    task: NewTask,
    now_us: int,
    like: EncodedTask | None = None,
) -> EncodedTask:
    """A task with any options. ``shared`` belongs to the queue it is given to.

    ``like``: another one with the same large payload, as the same codec has encoded it.
    """
    limits = core.limits
    priority = check_priority(task.priority)
    if like is not None and like.body is not None:
        kind, code = like.flags & 3, like.flags >> 2
        stored, raw_bytes = like.body, like.raw_bytes
    else:
        kind, data = encode_value(task.payload, shared.codec, limits.payload_bytes_max, "payload")
        code, stored = core.compressor.pack(data)
        raw_bytes = len(data)
    headers = encode_headers(task.headers, limits.headers_bytes_max)
    due_ms = _due_ms(task, now_us)
    policy = shared.policy
    if task.max_attempts is not None:
        policy = shared.policy_for(check_attempts(task.max_attempts))
    if task.on_conflict not in CONFLICTS:
        raise UsageError(f"on_conflict {task.on_conflict!r} is not one of {', '.join(CONFLICTS)}")
    ghost, ghost_expires_ms, slot = NO_GHOST, 0, None  # NO_GHOST is compared by identity
    routing, form = b"", 0
    if task.dedup_key is not None:
        if task.shard_key is not None:
            raise UsageError("give dedup_key or shard_key, not both: the dedup key alone routes")
        key = shard_key_bytes(task.dedup_key, "dedup_key")
        routing, form = b"%b\0%b\0%b" % (shared.queue, shared.tenant, key), KEYED_FORM
        slot = slot_of(routing)
        ghost = core.ghost_of(slot, routing)
        if task.dedup_window is not None:
            window_s = duration_s(task.dedup_window, "dedup_window")
            ghost_expires_ms = now_us // 1000 + max(1, round(window_s * 1000))
    elif task.dedup_window is not None or task.on_conflict != "return":
        raise UsageError("dedup_window and on_conflict need a dedup_key")
    elif task.shard_key is not None:
        slot = slot_of(shard_key_bytes(task.shard_key, "shard_key"))
    middle = MIDDLE.pack(
        policy, ghost, ghost_expires_ms, len(headers), len(stored), raw_bytes, form
    )
    has_body = len(stored) >= core.body_bytes_min
    parts = (middle, shared.names, headers, b"" if has_body else stored)
    item = EncodedTask(shared, kind | code << 2, priority, b"".join(parts))
    if has_body:
        item.record_bytes += len(stored)
        slim = MIDDLE.pack(
            policy, ghost, ghost_expires_ms, len(headers), RECORD_ID_BYTES, raw_bytes, form
        )
        item.body, item.slim_tail = stored, slim + shared.names + headers
        item.raw_bytes = raw_bytes
        item.row_bytes = len(item.slim_tail) + RECORD_ID_BYTES + 48 + BODY_ROWS_BYTES
    item.due_ms = due_ms
    if task.ttl is not None:
        ttl_ms = max(1, round(duration_s(task.ttl, "ttl") * 1000))
        item.expires_ms = max(now_us // 1000, due_ms) + ttl_ms
    item.slot, item.ghost, item.ghost_expires_ms = slot, ghost, ghost_expires_ms
    item.routing = routing
    item.on_conflict = task.on_conflict
    return item


def _due_ms(task: NewTask, now_us: int) -> int:
    """0 for now; past times are now."""
    if task.delay is not None:
        if task.run_at is not None:
            raise UsageError("give delay or run_at, not both")
        delay_ms = round(duration_s(task.delay, "delay") * 1000)
        return now_us // 1000 + delay_ms if delay_ms else 0
    if task.run_at is not None:
        due = when_ms(task.run_at, "run_at")
        return due if due > now_us // 1000 else 0
    return 0


def listed(tasks: Iterable[NewTask]) -> Sequence[NewTask]:
    """The tasks of one call, of any iterable: they are looked at more than once."""
    if type(tasks) is list or type(tasks) is tuple:
        return tasks
    if isinstance(tasks, NewTask) or not isinstance(tasks, Iterable):
        raise UsageError(f"tasks must be an iterable of NewTask, not {type(tasks).__name__}")
    return list(tasks)


def names_of(queue: object, tenant: object) -> tuple[bytes, bytes]:
    """Validated names; an empty tenant is the default tenant."""
    if tenant is None:
        raise UsageError('tenant=None: use tenant="" for the default, or lodeq.ALL_TENANTS')
    if isinstance(tenant, AllTenants):
        raise UsageError("lodeq.ALL_TENANTS names no tenant here: give one")
    return check_name(queue, "queue"), check_name(tenant, "tenant") if tenant != "" else b""
