"""Encode tasks: from a call's arguments to an ``EncodedTask`` that is validated and packed.

Everything that can be refused is refused here, before a single operation is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from ...engine.records.compression import Compressor
from ...engine.records.policy import Policy, encode_policy
from ...engine.records.rows import KEYED_FORM, BodyRow, ready_value
from ...engine.records.task import (
    FIRST_READY,
    FRAME_BYTES,
    NO_GHOST,
    RECORD_ID_BYTES,
    WHOLE_BYTES_MAX,
    option_packer,
    pack_task_head,
    pack_task_middle,
    plain_packer,
)
from ...engine.runtime.clock import Clock
from ...engine.runtime.ids import slot_of
from ...errors import UsageError
from .arguments import (
    check_attempts,
    check_on_conflict,
    check_priority,
    check_retry,
    duration_s,
    is_plain,
    shard_key_bytes,
    waits,
    when_ms,
)
from .codec import encode_headers, encode_value
from .faces import packed_face
from .redaction import Redaction
from .task_options import CONFLICT_DEFAULT, NO_IDS, ON_FAILURE_DEFAULT, PRIORITY_DEFAULT
from .values import Backoff, Codec, Duration, Limits, NewTask, OnConflict

__all__ = [
    "EncodedTask",
    "Encoding",
    "TaskTemplate",
    "encoded_task",
    "item_among",
    "plain_values",
    "simple_item",
    "to_datetime",
]

BODY_ROWS_BYTES: Final = 128  # a body row and its twin
# What is shown of a stored time that no date can show: loads may hold any number.
_FIRST_SHOWN: Final = datetime(1, 1, 2, tzinfo=UTC)
_LAST_SHOWN: Final = datetime(9999, 12, 30, tzinfo=UTC)
# Whoever takes such tasks takes the option out before.
NO_AFTER: Final = (
    "after= is for enqueue and enqueue_many: a follow-up, a member or a callback of a workflow and "
    "a staged task take none (members: Workflow.add(tasks, after=ids))"
)
# ``pack(head, created_us, seq, middle, payload)``, the middle, the value of the ready row.
PlainParts = tuple[Callable[[bytes, int, int, bytes, bytes], bytes], bytes, bytes]


def to_datetime(us: int) -> datetime:
    """Stored microseconds as an aware datetime; what is beyond dates, as the last one, or first."""
    try:
        return datetime.fromtimestamp(us / 1e6, UTC)
    except (OverflowError, ValueError, OSError):
        return _LAST_SHOWN if us > 0 else _FIRST_SHOWN


class TaskTemplate:
    """The fields that a queue's tasks share, packed. One per ``Queue`` object; bounded."""

    __slots__ = (
        "backoff",
        "codec",
        "dead_retention_s",
        "faces",
        "frame_bytes",
        "heads",
        "max_attempts",
        "names",
        "option_packs",
        "plain",
        "plain_heads",
        "policy",
        "queue",
        "retention_s",
        "routing",
        "tenant",
        "tenant_queue",
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
        faces: bool = True,
    ) -> None:
        self.queue = queue
        self.faces = faces
        self.tenant = tenant
        self.tenant_queue: Any = (
            None  # the ``TenantQueue`` of the last plain enqueue, a layer above
        )
        self.names = queue + tenant
        self.routing = b"%b\0%b\0" % (queue, tenant)  # in front of a dedup key
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
        self.option_packs: dict[int, tuple[Callable[..., bytes], bytes]] = {}  # the same
        # Of a record but for headers and payload.
        self.frame_bytes = FRAME_BYTES + len(self.middle(0))
        self.plain_heads = [self.head(kind, PRIORITY_DEFAULT, FIRST_READY) for kind in range(3)]

    def for_tenant(self, tenant: bytes) -> TaskTemplate:
        """The same options for another tenant of the queue."""
        return TaskTemplate(
            self.queue,
            tenant,
            max_attempts=self.max_attempts,
            retention=self.retention_s,
            dead_retention=self.dead_retention_s,
            backoff=self.backoff,
            codec=self.codec,
            faces=self.faces,
        )

    def policy_for(
        self,
        max_attempts: int,
        retry: Any = None,
        retention: Any = None,
        dead_retention: Any = None,
    ) -> bytes:
        """The 32 bytes of the record.

        Args:
            max_attempts: 1 to 65,535.
            retry: a task's own ``Backoff``; None takes the queue's.
            retention: seconds of its own; None takes the queue's.
            dead_retention: the same.
        """
        b = self.backoff if retry is None else check_retry(retry)
        kept_s = self.retention_s if retention is None else duration_s(retention, "retention")
        dead_s = self.dead_retention_s
        if dead_retention is not None:
            dead_s = duration_s(dead_retention, "dead_retention")
        return encode_policy(
            Policy(
                max_attempts,
                b.code,
                b.factor,
                round(b.base * 1000),
                round(b.cap * 1000),
                round(kept_s * 1000),
                round(dead_s * 1000),
            )
        )

    def policy_of(self, task: NewTask) -> bytes:
        """The 32 bytes of a task that may have a policy of its own, field by field."""
        attempts, retry = task.max_attempts, task.retry
        if (
            attempts is None
            and retry is None
            and task.retention is None
            and task.dead_retention is None
        ):
            return self.policy
        attempts = self.max_attempts if attempts is None else check_attempts(attempts)
        return self.policy_for(attempts, retry, task.retention, task.dead_retention)

    def head(self, flags: int, priority: int, kind: int) -> bytes:
        """The first eight bytes."""
        head = self.heads.get((flags, priority, kind))
        if head is None:
            head = pack_task_head(flags, priority, kind, self.queue, self.tenant)
            self.heads[flags, priority, kind] = head
        return head

    def middle(self, payload_bytes: int) -> bytes:
        """From policy to names, for a plain task of this size."""
        return (
            pack_task_middle(self.policy, NO_GHOST, 0, 0, payload_bytes, payload_bytes, 0)
            + self.names
        )

    def plain_parts(self, payload_bytes: int) -> PlainParts:
        """Packer of the records of plain tasks of this size, and the value of their ready rows."""
        if len(self.plain) >= 1024:
            self.plain.clear()
        middle = bytes(16) + self.middle(payload_bytes)  # due_ms and expires_ms: none
        pack = plain_packer(len(middle), payload_bytes)
        record_bytes = (
            FRAME_BYTES - 16 + len(middle) + payload_bytes
        )  # its last times are in ``middle``
        value = ready_value(record_bytes, 5)
        parts = self.plain[payload_bytes] = (pack, middle, value)
        return parts

    def option_pack(self, payload_bytes: int) -> tuple[Callable[..., bytes], bytes]:
        """Packer of the records of tasks of this size with options and without headers.

        Beside it the value of their index rows, for the default priority and without TTL.
        """
        if len(self.option_packs) >= 1024:
            self.option_packs.clear()
        value = ready_value(self.frame_bytes + payload_bytes, PRIORITY_DEFAULT)
        parts = option_packer(len(self.names), payload_bytes), value
        self.option_packs[payload_bytes] = parts
        return parts


class EncodedTask:
    """One task about to be queued: the parts of its record but for id and times."""

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
        self.record_bytes = len(tail) + FRAME_BYTES
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

    @property
    def is_streamed(self) -> bool:
        """Whether the payload is streamed: written before the task is queued."""
        return self.raw_bytes > WHOLE_BYTES_MAX

    def set_body(self, body: bytes, slim_tail: bytes, raw_bytes: int) -> None:
        """Have the payload go to a body file: see these three."""
        self.body, self.slim_tail, self.raw_bytes = body, slim_tail, raw_bytes
        self.record_bytes += len(body)
        self.row_bytes = len(slim_tail) + RECORD_ID_BYTES + FRAME_BYTES + BODY_ROWS_BYTES


class Encoding(Protocol):
    """The settings that encoding a task depends on: an ``EngineState``, or a stand-in for it."""

    limits: Limits
    compressor: Compressor
    body_bytes_min: int
    clock: Clock
    redaction: Redaction | None

    def keeps_faces(self, queue: bytes) -> bool:
        """Whether function, preview and labels of the queue's tasks are stored."""

    def ghost_of(self, slot: int, routing: bytes) -> bytes:
        """Hash under which a dedup key is stored on the shard of ``slot``."""


def simple_item(state: Encoding, shared: TaskTemplate, payload: Any) -> EncodedTask:
    """A task with no options: the hot path."""
    if state.compressor.code:
        return encoded_task(state, shared, NewTask(payload), state.clock.wall_us())
    kind, data = encode_value(payload, shared.codec, state.limits.payload_bytes_max, "payload")
    if len(data) >= state.body_bytes_min or len(data) > WHOLE_BYTES_MAX:
        return _simple_large(shared, kind, data)
    return EncodedTask(shared, kind, 5, shared.middle(len(data)) + data)


def _simple_large(shared: TaskTemplate, kind: int, data: bytes) -> EncodedTask:
    """A task with no options whose payload goes to a body file."""
    size = len(data)
    encoded = EncodedTask(shared, kind, PRIORITY_DEFAULT, shared.middle(size))
    slim = pack_task_middle(shared.policy, NO_GHOST, 0, 0, RECORD_ID_BYTES, size, 0)
    encoded.set_body(data, slim + shared.names, size)
    return encoded


def item_among(
    state: Encoding, shared: TaskTemplate, task: NewTask, now_us: int, large: dict[int, EncodedTask]
) -> EncodedTask:
    """One of the tasks of a call, which keeps their payloads alive; ``large`` begins empty.

    A payload that goes to a body file is encoded once for all that are given the same object.

    Args:
        shared: of the queue the task is given to.
        task: one of the call.
        now_us: wall microseconds, the same for all of the call.
        large: tasks with large payloads so far, by ``id`` of the payload; added to.
    """
    like = large.get(id(task.payload)) if large else None
    if like is not None and like.shared.codec is shared.codec:
        return encoded_task(state, shared, task, now_us, like)
    if is_plain(task):
        encoded = simple_item(state, shared, task.payload)
    else:
        encoded = encoded_task(state, shared, task, now_us)
    if encoded.body is not None:
        large[id(task.payload)] = encoded
    return encoded


def plain_values(
    shared: TaskTemplate, tasks: Sequence[Any], limit: int, plain_max: int
) -> tuple[list[tuple[int, bytes]], int] | None:
    """(kind, bytes) of tasks that all are without options, and how many bytes that is.

    None: one has options, or a payload above ``plain_max``.

    Args:
        shared: of the queue they are given to.
        tasks: of one call.
        limit: bytes of a payload after encoding.
        plain_max: larger payloads go to body files, and are not plain.
    """
    codec, values, size = shared.codec, [], 0
    for task in tasks:
        if task.__class__ is not NewTask or not is_plain(task):
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


def encoded_task(
    state: Encoding,
    shared: TaskTemplate,
    task: NewTask,
    now_us: int,
    like: EncodedTask | None = None,
) -> EncodedTask:
    """A task with any options. ``shared`` belongs to the queue it is given to.

    ``like``: another one with the same large payload, as the same codec has encoded it.

    Args:
        shared: of the queue it is given to.
        task: its options; a bad one is ``UsageError``.
        now_us: wall microseconds; delay, TTL and dedup window count from it.
        like: another one with the same large payload, as the same codec has encoded it.
    """
    has_after = task.after is not NO_IDS or task.on_failure is not ON_FAILURE_DEFAULT
    if has_after and waits(task.after, task.on_failure):
        raise UsageError(NO_AFTER)
    limits = state.limits
    priority = check_priority(task.priority)
    is_like = like is not None and like.body is not None
    if like is not None and like.body is not None:
        kind, code = like.flags & 3, like.flags >> 2
        stored, raw_bytes = like.body, like.raw_bytes
    else:
        kind, data = encode_value(task.payload, shared.codec, limits.payload_bytes_max, "payload")
        raw_bytes = len(data)
        code, stored = state.compressor.pack(data) if raw_bytes <= WHOLE_BYTES_MAX else (0, data)
    headers = encode_headers(task.headers, limits.headers_bytes_max)
    face = b""
    if shared.faces and state.keeps_faces(shared.queue):
        face = packed_face(task.function, task.preview, task.labels, state.redaction)
    due_ms = _due_ms(task, now_us)
    policy = shared.policy_of(task)
    on_conflict = check_on_conflict(task.on_conflict)
    ghost, ghost_expires_ms, slot = NO_GHOST, 0, None  # NO_GHOST is compared by identity
    routing, form = b"", 0
    if task.dedup_key is not None:
        if task.shard_key is not None:
            raise UsageError("give dedup_key or shard_key, not both: the dedup key alone routes")
        key = shard_key_bytes(task.dedup_key, "dedup_key")
        routing, form = shared.routing + key, KEYED_FORM
        slot = slot_of(routing)
        ghost = state.ghost_of(slot, routing)
        if task.dedup_window is not None:
            window_s = duration_s(task.dedup_window, "dedup_window")
            ghost_expires_ms = now_us // 1000 + max(1, round(window_s * 1000))
    elif task.dedup_window is not None or on_conflict != CONFLICT_DEFAULT:
        raise UsageError("dedup_window and on_conflict need a dedup_key")
    elif task.shard_key is not None:
        slot = slot_of(shard_key_bytes(task.shard_key, "shard_key"))
    middle = pack_task_middle(
        policy, ghost, ghost_expires_ms, len(headers), len(stored), raw_bytes, form, len(face)
    )
    has_body = is_like or len(stored) >= state.body_bytes_min or raw_bytes > WHOLE_BYTES_MAX
    parts = (middle, shared.names, headers, face, b"" if has_body else stored)
    encoded = EncodedTask(shared, kind | code << 2, priority, b"".join(parts))
    if has_body:
        slim = pack_task_middle(
            policy,
            ghost,
            ghost_expires_ms,
            len(headers),
            RECORD_ID_BYTES,
            raw_bytes,
            form,
            len(face),
        )
        encoded.set_body(stored, slim + shared.names + headers + face, raw_bytes)
    encoded.due_ms = due_ms
    if task.ttl is not None:
        ttl_ms = max(1, round(duration_s(task.ttl, "ttl") * 1000))
        encoded.expires_ms = max(now_us // 1000, due_ms) + ttl_ms
    encoded.slot, encoded.ghost, encoded.ghost_expires_ms = slot, ghost, ghost_expires_ms
    encoded.routing = routing
    encoded.on_conflict = on_conflict
    return encoded


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
