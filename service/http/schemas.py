"""Wire schema: each document is declared once, and that decodes, checks and describes it.

``document_reader`` turns a request into one of the ``Request`` classes, ``openapi`` writes all of
them down. The bounds are those of the engine, imported from where it checks them. A *described*
member is published with its bounds and refused by the engine, whose error says more (a name that is
invalid, a limit that is exceeded); all others are refused by msgspec. The members of a value
(``payload``, ``payload_base64``, ``payload_kind``) are not looked into here: see ``client.wire``.

The schema is that of JSON; docs/http.md says what msgpack writes differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from ...client.calls import CLAIM_ID_BYTES
from ...client.records import Granted
from ...client.wire import KINDS
from ...engine import values as engine_values
from ...engine.bulk.manifest import JOB_PATTERN
from ...engine.records.keyspace import NAME_PATTERN
from ...engine.records.task import ATTEMPTS_MAX
from ...engine.runtime.task_id import TaskId
from ...engine.values import LatencySummary
from ...repository.model import ingest_report, reports, values
from ...repository.model.arguments import LEASE_S_MAX, LIMIT_MAX, OLDER_THAN_S_MIN
from ...repository.model.task_options import (
    BACKOFF_FACTOR_MAX,
    BACKOFF_KINDS,
    BACKOFF_S_MAX,
    DURATION_S_MAX,
    FOLLOW_UPS_MAX,
    KEY_BYTES_MAX,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    WORKER_BYTES_MAX,
)
from ...repository.tasks.task_list import PAGE_MAX

__all__ = [
    "Backoff",
    "Bury",
    "CancelClaim",
    "Checkpoint",
    "Claim",
    "Complete",
    "CompleteMany",
    "Enqueue",
    "EnqueueMany",
    "ForgetLoads",
    "Heartbeat",
    "HeartbeatMany",
    "Held",
    "HeldWithResult",
    "Ingest",
    "Nack",
    "NewTask",
    "NoQuery",
    "Nothing",
    "Policy",
    "Problem",
    "Purge",
    "PurgeArchived",
    "PurgePart",
    "Query",
    "QueueReference",
    "QueuesQuery",
    "Redrive",
    "Release",
    "Request",
    "ResultQuery",
    "TakeSnapshot",
    "TasksQuery",
    "TenantQuery",
    "TenantsQuery",
    "list_of",
    "schema_of_type",
]

Schema = dict[str, Any]

BATCH_MAX: Final = 4096  # tasks or leases in one request, where the server's settings say no less
# A worker skips every tenant of which as many tasks run as may, and cannot split the claim.
SKIPPED_MAX: Final = 65_536
QUEUES_MAX: Final = 1000  # in one page
SHARDS_MAX: Final = 4096
CHECKPOINT_CHARS_MAX: Final = 255  # the folders that lead to it are made, too
_BASE64: Final = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


# -- JSON Schema that types cannot say -----------------------------------------------------


def _described(**schema: Any) -> Meta:
    """Published, and checked by the engine."""
    return Meta(extra_json_schema=schema)


def _bytes_of_text(least: int, most: int) -> list[Schema]:
    """Text of ``least`` to ``most`` bytes in UTF-8, whichever characters it is made of.

    A schema counts characters; what mixes characters of different sizes is accepted as far as its
    bytes go.
    """
    kinds = (
        (r"[\u0000-\u007f]", most),
        (r"[\u0000-\u07ff]", most // 2),
        (r"[\u0000-\uffff]", most // 3),
    )
    found: list[Schema] = [
        {"type": "string", "pattern": f"^{kind}{{{least},{n}}}$"} for kind, n in kinds
    ]
    return [*found, {"type": "string", "minLength": least, "maxLength": most // 4}]


def _given(name: str) -> Schema:
    """Holds where a member is there, and not null."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def _apart(*names: str) -> Schema:
    """No two of these members together."""
    pairs = [(one, other) for n, one in enumerate(names) for other in names[n + 1 :]]
    return {"allOf": [{"not": {"allOf": [_given(a), _given(b)]}} for a, b in pairs]}


def _needs(condition: Schema, *names: str) -> Schema:
    """Where the condition holds, one of these members is there."""
    return {"anyOf": [{"not": condition}, *(_given(name) for name in names)]}


def schema_of_type(kind: type) -> Schema:
    """JSON Schema of the one type that msgspec does not know; any other raises, as it asks."""
    if kind is not TaskId:
        raise NotImplementedError
    return {
        "type": "string",
        "pattern": r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$|^[0-9a-fA-F]{32}$",
        "description": "A UUID, with or without its hyphens",
    }


# -- members -------------------------------------------------------------------------------

Name = Annotated[str, _described(pattern=f"^{NAME_PATTERN}$", minLength=1, maxLength=64)]
Tenant = Annotated[str, _described(pattern=f"^({NAME_PATTERN})?$", maxLength=64)]
Seconds = Annotated[float, Meta(ge=0, le=DURATION_S_MAX)]
LeaseSeconds = Annotated[float, Meta(ge=0.001, le=LEASE_S_MAX)]
Count = Annotated[int, Meta(ge=0)]
Priority = Annotated[int, Meta(ge=0, le=PRIORITY_MAX)]
Attempts = Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)]
Moment = Annotated[datetime, Meta(tz=True)]
Base64 = Annotated[bytes, _described(format="byte", pattern=_BASE64)]
ClaimId = Annotated[
    bytes,
    Meta(
        min_length=CLAIM_ID_BYTES,
        max_length=CLAIM_ID_BYTES,
        extra_json_schema={"format": "byte", "pattern": "^[A-Za-z0-9+/]{22}==$"},
    ),
]
StoreId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", min_length=32, max_length=32)]
SnapshotId = Annotated[str, _described(pattern=r"^[0-9]{8}T[0-9]{9}Z$")]
IdempotencyKey = Annotated[str, _described(pattern="^[A-Za-z0-9._:-]{1,255}$")]
State = Annotated[
    str,
    _described(enum=["ready", "delayed", "leased", "dead", "completed", "expired", "cancelled"]),
]
Worker = Annotated[
    str,
    _described(
        anyOf=_bytes_of_text(0, WORKER_BYTES_MAX),
        description=f"0 to {WORKER_BYTES_MAX} bytes in UTF-8",
    ),
]
# Text in JSON, text or bytes in msgpack, or null.
Key = Annotated[
    Any,
    _described(
        anyOf=[*_bytes_of_text(1, KEY_BYTES_MAX), {"type": "null"}],
        description=f"1 to {KEY_BYTES_MAX} bytes in UTF-8",
    ),
]
# At most 4,096 bytes: two characters of padding behind as many as there may be.
_KEY_CHARS_MAX: Final = -(-KEY_BYTES_MAX // 3) * 4
KeyBase64 = Annotated[
    bytes,
    _described(
        format="byte",
        anyOf=[
            {"pattern": _BASE64, "minLength": 4, "maxLength": _KEY_CHARS_MAX - 4},
            {
                "pattern": f"^[A-Za-z0-9+/]{{{_KEY_CHARS_MAX - 2}}}==$",
                "minLength": _KEY_CHARS_MAX,
                "maxLength": _KEY_CHARS_MAX,
            },
        ],
    ),
]
_YEARS: Final = r"197[1-9]|19[89][0-9]|[2-5][0-9]{3}|6[0-3][0-9]{2}|64[01][0-9]|642[0-8]"
# RFC 3339 as text, or a timestamp of msgpack: ``enqueue_routes`` reads it.
RunAt = Annotated[
    Any, _described(type=["string", "null"], format="date-time", pattern=f"^({_YEARS})-")
]
AnyValue = Annotated[Any, Meta(description="Any JSON value")]
ValueBase64 = Annotated[
    Any, _described(type="string", format="byte", pattern=_BASE64, description="Its bytes instead")
]
ValueKind = Annotated[
    Any, _described(type="string", enum=list(KINDS), description="What its bytes are")
]


# -- requests ------------------------------------------------------------------------------


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """A document, or the members of a query, that a client sends. Nothing unknown is accepted."""

    what: ClassVar[str] = "the body"  # what errors call it
    rules: ClassVar[Schema] = {}  # JSON Schema of members that exclude or need one another


class Nothing(Request):
    """No members.

    A call without arguments still has to state its media type: a page of another site cannot.
    """


class _TaskMembers(Request):
    """The options of ``Queue.enqueue``."""

    what: ClassVar[str] = "a task"
    rules: ClassVar[Schema] = {
        "oneOf": [{"required": ["payload"]}, {"required": ["payload_base64"]}],
        "dependentRequired": {"headers_base64": ["headers_kind"]},
        "allOf": [
            {"not": {"required": ["headers", "headers_base64"]}},
            _apart("delay", "run_at"),
            _apart("dedup_key", "dedup_key_base64", "shard_key", "shard_key_base64"),
            _needs(_given("dedup_window"), "dedup_key", "dedup_key_base64"),
            _needs(
                {
                    "required": ["on_conflict"],
                    "properties": {"on_conflict": {"enum": ["raise", "replace"]}},
                },
                "dedup_key",
                "dedup_key_base64",
            ),
        ],
    }

    payload: AnyValue = UNSET
    payload_base64: ValueBase64 = UNSET
    payload_kind: ValueKind = UNSET
    headers: Annotated[Any, _described(type="object")] = UNSET
    headers_base64: ValueBase64 = UNSET
    headers_kind: Annotated[Any, _described(type="string", enum=["msgpack"])] = UNSET
    priority: Priority = PRIORITY_DEFAULT
    delay: Seconds | None = None
    run_at: RunAt = None
    ttl: Seconds | None = None
    dedup_key: Key = None
    dedup_key_base64: KeyBase64 | UnsetType = UNSET
    dedup_window: Seconds | None = None
    on_conflict: Annotated[str, _described(enum=list(values.CONFLICTS))] = "return"
    max_attempts: Attempts | None = None
    shard_key: Key = None
    shard_key_base64: KeyBase64 | UnsetType = UNSET


class NewTask(_TaskMembers):
    """A task among others."""

    queue: Name | None = None
    tenant: Tenant | None = None


class Enqueue(_TaskMembers):
    """A task for the queue in the path."""

    what: ClassVar[str] = "a task for the queue in the path"
    durable: bool | None = None


class Backoff(Request):
    """``lodeq.Backoff``."""

    kind: Annotated[str, _described(enum=list(BACKOFF_KINDS))] = values.Backoff().kind
    base: Annotated[float, Meta(ge=0, le=BACKOFF_S_MAX)] = values.Backoff().base
    factor: Annotated[float, Meta(ge=0, le=BACKOFF_FACTOR_MAX)] = values.Backoff().factor
    cap: Annotated[float, Meta(ge=0, le=BACKOFF_S_MAX)] = values.Backoff().cap


class Policy(Request):
    """Retry policy and retention of a queue."""

    max_attempts: Attempts | None = None
    retention: Seconds | None = None
    dead_retention: Seconds | None = None
    backoff: Backoff | None = None


class _QueueOptions(Request):
    """Options of the queue that a document names."""

    tenant: Tenant | UnsetType = UNSET
    all_tenants: bool | UnsetType = UNSET
    policy: Policy | UnsetType | None = UNSET
    boost_after: Seconds | UnsetType | None = UNSET


QUEUE_OPTIONS: Final = _QueueOptions.__struct_fields__


class QueueReference(_QueueOptions, kw_only=True):
    """A queue of one tenant, or of all."""

    rules: ClassVar[Schema] = {
        "anyOf": [
            {"properties": {"all_tenants": {"const": False}}},
            {"properties": {"tenant": {"const": ""}, "boost_after": {"type": "null"}}},
        ]
    }
    queue: Name


class EnqueueMany(_QueueOptions, kw_only=True):
    """Tasks, of one queue or of several."""

    rules: ClassVar[Schema] = {
        "properties": {"all_tenants": {"const": False}},
        "dependentRequired": {name: ["queue"] for name in QUEUE_OPTIONS},
        "anyOf": [
            {"required": ["queue"]},
            {"properties": {"tasks": {"type": "array", "items": _given("queue")}}},
        ],
    }
    tasks: Annotated[list[NewTask], _described(maxItems=BATCH_MAX)]
    queue: Name | UnsetType = UNSET
    durable: bool | None = None
    atomic: bool = False


class Claim(Request):
    """Up to ``limit`` tasks of these queues."""

    queues: Annotated[list[Name | QueueReference], _described(minItems=1, maxItems=BATCH_MAX)]
    limit: Annotated[int, _described(minimum=1, maximum=LIMIT_MAX)] = 1
    lease: LeaseSeconds | None = None
    wait: Seconds = 0.0
    worker: Worker = ""
    skip_tenants: Annotated[list[Tenant], _described(maxItems=SKIPPED_MAX)] = []
    claim_id: ClaimId | UnsetType = UNSET


class CancelClaim(Request):
    """The id that the claim was sent with."""

    claim_id: ClaimId


class Held(Request):
    """The proof that its sender has a lease."""

    what: ClassVar[str] = "a lease"
    task_id: TaskId
    epoch: int
    token: Base64


class Heartbeat(Held):
    """A lease, and how long it is to be from now on."""

    seconds: Seconds | None = None


class HeldWithResult(Held):
    """A lease, and the result of its task."""

    rules: ClassVar[Schema] = {"not": {"required": ["result", "result_base64"]}}
    result: AnyValue = UNSET
    result_base64: ValueBase64 = UNSET
    result_kind: ValueKind = UNSET


class Complete(HeldWithResult):
    """A lease, the result of its task, and the tasks that follow it."""

    then: Annotated[list[NewTask], _described(maxItems=FOLLOW_UPS_MAX)] = []
    keep: bool = True
    durable: bool | None = None


class Release(Held):
    """A lease, and how long its task is to wait."""

    delay: Seconds | None = None


class Nack(Release):
    """… and why it failed."""

    reason: str = ""


class Bury(Held):
    """A lease, and why its task is given up."""

    reason: str = ""


class CompleteMany(Request):
    """Leases, and the results of their tasks."""

    leases: Annotated[list[HeldWithResult], _described(maxItems=BATCH_MAX)]
    durable: bool | None = None


class HeartbeatMany(Request):
    """Leases, and how long they are to be from now on."""

    leases: Annotated[list[Held], _described(maxItems=BATCH_MAX)]
    seconds: Seconds | None = None


class Redrive(Request):
    """The dead letters to enqueue again; without ``ids`` all of the queue."""

    ids: Annotated[list[TaskId], _described(maxItems=BATCH_MAX)] | UnsetType = UNSET


class Purge(Request):
    """The state whose tasks are deleted; without one all that are not leased."""

    state: Annotated[str | None, _described(enum=["ready", "delayed", "dead", None])] = None


class Checkpoint(Request):
    """Where the copy is made, below the server's folder for them."""

    path: Annotated[str, Meta(min_length=1, max_length=CHECKPOINT_CHARS_MAX)]


class TakeSnapshot(Request):
    """How long it is kept, in seconds."""

    keep: Annotated[float, Meta(ge=0.001, le=DURATION_S_MAX)] | None = None


class Ingest(Request):
    """One load; without it, all that wait."""

    job: Annotated[str, _described(pattern=f"^{JOB_PATTERN}$", maxLength=128)] | None = None


class ForgetLoads(Request):
    """Loads that ended this many seconds ago, or earlier."""

    older_than: Annotated[float, Meta(ge=OLDER_THAN_S_MIN, le=DURATION_S_MAX)]


class PurgePart(Request):
    """Rows of a purge plan."""

    shard: Annotated[int, Meta(ge=0, le=SHARDS_MAX - 1)]
    kind: Annotated[str, _described(enum=["results", "dead"])]
    rows: Base64


class PurgeArchived(Request):
    """A purge plan: for which store it is, and its rows."""

    store_id: StoreId
    shards: Annotated[int, Meta(ge=1, le=SHARDS_MAX)]
    parts: Annotated[list[PurgePart], _described(maxItems=BATCH_MAX)]


# -- queries -------------------------------------------------------------------------------


class Query(Request):
    """The members of a query; numbers, true and false as JSON writes them."""

    what: ClassVar[str] = "the query"


class NoQuery(Query):
    """No members."""


class TenantQuery(Query):
    """Whose queue."""

    tenant: Tenant = ""


class TenantsQuery(Query):
    """Whose queue, or everybody's."""

    tenant: Tenant = ""
    all_tenants: bool = False


class ResultQuery(Query):
    """How long to wait for a result."""

    wait: Seconds = 0.0


class TasksQuery(TenantsQuery):
    """A page of tasks."""

    state: State = "ready"
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    after: Annotated[Base64, Meta(min_length=1)] | UnsetType = UNSET
    payloads: bool = True


class QueuesQuery(Query):
    """A page of queues, behind the ``next`` of the page before."""

    limit: Annotated[int, Meta(ge=1, le=QUEUES_MAX)] = QUEUES_MAX
    after: Annotated[str, _described(pattern="^[^/]*/.*$")] | UnsetType = UNSET


# -- answers: a later release may add members ----------------------------------------------


def list_of(kind: Any) -> Any:
    """A list of what ``_answer`` declares, which mypy cannot know."""
    return list[kind]


def _answer(name: str, source: type, *omitted: str, **others: Any) -> type[Struct]:
    """Declare the document of a record.

    Args:
        name: of the component.
        source: the record, a dataclass or named tuple of the model.
        omitted: its values, whose members may be missing.
        others: members that the document has beside the record's, or says in another form.
    """
    plain: Mapping[object, Any] = {
        int: Count,
        bytes: Base64,
        datetime: Moment,
        datetime | None: Moment | None,
    }
    named = {"queue": Name, "tenant": Tenant, "priority": Priority}
    hints = {
        one: named.get(one, plain.get(kind, kind)) for one, kind in get_type_hints(source).items()
    } | others
    members: list[Any] = [pair for pair in hints.items() if pair[0] not in omitted]
    for one in omitted:
        members += [(one, AnyValue, UNSET), (f"{one}_base64", ValueBase64, UNSET)]
        members.append((f"{one}_kind", ValueKind, UNSET))
    return defstruct(name, members, kw_only=True)


Receipt = _answer("Receipt", values.Receipt)
Task = _answer("Task", values.Task, "payload", "headers", state=State)
Lease = _answer("Lease", Granted, "payload", "headers", policy=Base64)
Result = _answer(
    "Result",
    values.Result,
    "value",
    status=Annotated[str, _described(enum=["completed", "dead", "expired", "cancelled"])],
)
QueueStats = _answer("QueueStats", values.QueueStats)
QueueSummary = _answer("QueueSummary", values.QueueStats, queue=Name, tenant=Tenant)
# By name: its module may be compiled, and then keeps no annotations.
_Latency = defstruct("Latency", [(field.name, Count) for field in fields(LatencySummary)])
ShardStats = _answer(
    "ShardStats", values.ShardStats, merge_sizes=list[list[Count]], commit=_Latency, fsync=_Latency
)
EngineStats = _answer("EngineStats", values.EngineStats, shards=list_of(ShardStats))
MigrationReport = _answer("MigrationReport", reports.MigrationReport)
ForgottenLoads = _answer("ForgottenLoads", reports.ForgottenLoads)
PurgeReport = _answer("PurgeReport", reports.PurgeReport)
IngestedJob = _answer("IngestedJob", ingest_report.IngestedJob)
Snapshot = _answer(
    "Snapshot", engine_values.Snapshot, id=SnapshotId, store_id=StoreId, shards=list[list[Count]]
)


class Problem(Struct, kw_only=True):
    """An error: ``urn:lodeq:problem:…`` in its ``type`` names it."""

    type: str
    title: str
    status: int
    detail: str
    task_id: TaskId | UnsetType = UNSET
    retry_after_ms: Count | UnsetType = UNSET
    size_bytes: Count | UnsetType = UNSET
    limit_bytes: Count | UnsetType = UNSET
    receipts: list_of(Receipt | None) = UNSET  # type: ignore[valid-type]
