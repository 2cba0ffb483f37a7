"""Wire schema: each document is declared once, and that decodes, checks and describes it.

``document_reader`` turns a request into one of the ``Request`` classes, ``openapi`` writes all of
them down. The bounds are those of the engine, imported from where it checks them. A *described*
member is published with its bounds and refused by the engine, whose error says more (a name that is
invalid, a limit that is exceeded); all others are refused by msgspec. The members of a value
(``payload``, ``payload_base64``, ``payload_kind``) are not looked into here: see
``client.documents.wire``.

The schema is that of JSON; docs/http.md says what msgpack writes differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from ...client.calls import CLAIM_ID_BYTES, PAYLOAD_PART_BYTES_MAX
from ...client.documents.records import Granted
from ...client.documents.wire import KINDS
from ...engine import values as engine_values
from ...engine.bulk.manifest import JOB_PATTERN
from ...engine.records.face import FUNCTION_BYTES_MAX, LABEL_BYTES_MAX, LABELS_MAX
from ...engine.records.keyspace import NAME_PATTERN
from ...engine.records.task import ATTEMPTS_MAX
from ...engine.records.workflow import EDGES_MAX
from ...engine.runtime.task_id import TaskId
from ...engine.values import BY_BYTES_MAX, LatencySummary
from ...repository.model import ingest_report, queue_settings, reports, values
from ...repository.model.arguments import (
    LEASE_S_MAX,
    LIMIT_MAX,
    OLDER_THAN_S_MIN,
    SKIPPED_FUNCTIONS_MAX,
)
from ...repository.model.filters import ACTS, COUNT_LOOKS_MAX, FOUND_MAX, TEXT_MAX
from ...repository.model.flows import workflows
from ...repository.model.flows.workflows import (
    MEMBERS_MAX,
    ON_FAILURES,
    SLICE_TASKS_MAX,
    WORKFLOW_NAME_BYTES_MAX,
    WORKFLOW_STATES,
)
from ...repository.model.queue_settings import BY_OPERATOR, CONCURRENCY_MAX
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
from ...repository.model.values import PAYLOAD_BYTES_MAX
from ...repository.tasks.operators.history import PAGE_MAX as HISTORY_PAGE_MAX
from ...repository.tasks.task_list import PAGE_MAX
from ...repository.workflows.listing import PAGE_MAX as WORKFLOWS_PAGE_MAX
from ..shared.found_files import FOUND_FORMATS

__all__ = [
    "ActOn",
    "AddMembers",
    "Backoff",
    "Bury",
    "CallFunction",
    "CancelAll",
    "CancelClaim",
    "Checkpoint",
    "Claim",
    "Complete",
    "CompleteMany",
    "Configure",
    "Counted",
    "Enqueue",
    "EnqueueAfter",
    "EnqueueMany",
    "EnqueueStream",
    "ExportFound",
    "Find",
    "ForgetLoads",
    "FunctionsQuery",
    "Heartbeat",
    "HeartbeatMany",
    "Held",
    "HeldWithProgress",
    "HeldWithResult",
    "HistoryQuery",
    "Ingest",
    "Nack",
    "NamedFunction",
    "NewTask",
    "NoQuery",
    "Nothing",
    "OpenWorkflow",
    "PartsQuery",
    "PayloadQuery",
    "Policy",
    "Problem",
    "PublishFunctions",
    "Purge",
    "PurgeArchived",
    "PurgePart",
    "Query",
    "QueueReference",
    "QueuesQuery",
    "Ready",
    "Redrive",
    "Release",
    "Request",
    "ResultQuery",
    "TakeSnapshot",
    "TaskOptions",
    "TasksQuery",
    "TenantQuery",
    "TenantsQuery",
    "WorkerBeat",
    "WorkflowsQuery",
    "list_of",
    "none_or",
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


def _bytes_of_text(least: int, most: int) -> Schema:
    """Text of ``least`` to ``most`` bytes in UTF-8.

    A schema counts characters. This one forbids what cannot fit: too many characters, or too many
    in a row that take two bytes, three or four. What it lets in may still be too long.
    """
    rows = ((r"\u007f", most // 2), (r"\u07ff", most // 3), (r"\uffff", most // 4))
    too_long = [{"pattern": rf"[^\u0000-{last}]{{{n + 1}}}"} for last, n in rows]
    return {
        "type": "string",
        "minLength": least,
        "maxLength": most,
        "not": {"anyOf": too_long},
    }


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
    _described(
        enum=[
            "ready",
            "delayed",
            "waiting",
            "leased",
            "dead",
            "completed",
            "expired",
            "cancelled",
        ]
    ),
]
Outcome = Annotated[str, _described(enum=["completed", "dead", "expired", "cancelled"])]
Worker = Annotated[
    str,
    _described(
        **_bytes_of_text(0, WORKER_BYTES_MAX),
        description=f"0 to {WORKER_BYTES_MAX} bytes in UTF-8",
    ),
]
# Text in JSON, text or bytes in msgpack, or null.
Key = Annotated[
    Any,
    _described(
        anyOf=[_bytes_of_text(1, KEY_BYTES_MAX), {"type": "null"}],
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
# RFC 3339 as text, or a timestamp of msgpack: ``routes.enqueue`` reads it.
RunAt = Annotated[
    Any, _described(type=["string", "null"], format="date-time", pattern=f"^({_YEARS})-")
]
FaceFunction = Annotated[
    str,
    _described(
        **_bytes_of_text(0, FUNCTION_BYTES_MAX),
        description=f"0 to {FUNCTION_BYTES_MAX} bytes in UTF-8",
    ),
]
_LABEL_CHARS: Final = LABEL_BYTES_MAX // 4 // 2  # at most so many are never too long
Labels = Annotated[
    dict[str, str],
    _described(
        maxProperties=LABELS_MAX,
        propertyNames={"pattern": f"^[^=]{{1,{_LABEL_CHARS - 1}}}$"},
        additionalProperties={"type": "string", "maxLength": _LABEL_CHARS},
        description=f"Each at most {LABEL_BYTES_MAX} bytes in UTF-8 as key=value",
    ),
]
AnyValue = Annotated[Any, Meta(description="Any JSON value")]
ValueBase64 = Annotated[
    Any, _described(type="string", format="byte", pattern=_BASE64, description="Its bytes instead")
]
ValueKind = Annotated[
    Any, _described(type="string", enum=list(KINDS), description="What its bytes are")
]


FunctionName = Annotated[str, Meta(min_length=1, max_length=256)]
FUNCTIONS_PAGE_MAX: Final = 256

# -- requests ------------------------------------------------------------------------------


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """A document, or the members of a query, that a client sends. Nothing unknown is accepted."""

    what: ClassVar[str] = "the body"  # what errors call it
    rules: ClassVar[Schema] = {}  # JSON Schema of members that exclude or need one another


class Nothing(Request):
    """No members.

    A call without arguments still has to state its media type: a page of another site cannot.
    """


class Backoff(Request):
    """``lodeq.Backoff``."""

    kind: Annotated[str, _described(enum=list(BACKOFF_KINDS))] = values.Backoff().kind
    base: Annotated[float, Meta(ge=0, le=BACKOFF_S_MAX)] = values.Backoff().base
    factor: Annotated[float, Meta(ge=0, le=BACKOFF_FACTOR_MAX)] = values.Backoff().factor
    cap: Annotated[float, Meta(ge=0, le=BACKOFF_S_MAX)] = values.Backoff().cap


class _TaskOptions(Request):
    """The options of ``Queue.enqueue_stream``."""

    rules: ClassVar[Schema] = {
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
    retry: Backoff | None = None
    retention: Seconds | None = None
    dead_retention: Seconds | None = None
    shard_key: Key = None
    shard_key_base64: KeyBase64 | UnsetType = UNSET
    labels: Labels | None = None
    function: FaceFunction | None = None
    preview: str | None = None


class TaskOptions(_TaskOptions):
    """The options of a task whose payload and queue stand beside them."""

    what: ClassVar[str] = "the options"


class _TaskMembers(_TaskOptions):
    """The options of ``Queue.enqueue``, and the payload."""

    what: ClassVar[str] = "a task"
    rules: ClassVar[Schema] = {
        "oneOf": [{"required": ["payload"]}, {"required": ["payload_base64"]}],
        **_TaskOptions.rules,
    }

    payload: AnyValue = UNSET
    payload_base64: ValueBase64 = UNSET
    payload_kind: ValueKind = UNSET
    after: Annotated[list[TaskId], Meta(max_length=EDGES_MAX - 1)] = []
    on_failure: Annotated[str, _described(enum=list(ON_FAILURES))] = "run"


class NewTask(_TaskMembers):
    """A task among others."""

    queue: Name | None = None
    tenant: Tenant | None = None


class Enqueue(_TaskMembers):
    """A task for the queue in the path."""

    what: ClassVar[str] = "a task for the queue in the path"
    durable: bool | None = None


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
            {"properties": {"tenant": {"const": ""}}},
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
    dead: bool = False
    skip_functions: Annotated[list[FunctionName], _described(maxItems=SKIPPED_FUNCTIONS_MAX)] = []


class Ready(Request):
    """Queues of which a claim is to come, and how long to wait until there is something."""

    queues: Annotated[list[Name | QueueReference], _described(minItems=1, maxItems=BATCH_MAX)]
    wait: Seconds = 0.0
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


class HeldWithProgress(Held):
    """A lease, and how far its run has come."""

    fraction: Annotated[float, _described(ge=0, le=1)] | None = None
    note: str = ""


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
    policy: Annotated[str, _described(enum=list(values.REDRIVE_POLICIES))] = "stored"


class CancelAll(Request):
    """Whether leased tasks are cancelled, too."""

    leased: bool = True


_Filter = Annotated[
    dict[str, Any],
    _described(
        type="object",
        description="queue, tenant, states, function, labels, arguments (patterns by name), "
        "older_than, newer_than, finished_older_than, finished_newer_than (seconds), reason, "
        "id_prefix, text: those for which all that is "
        "given holds",
    ),
]


class Counted(Request):
    """The tasks that a filter means; ``looks``: rows that are looked at."""

    filter: _Filter = {}
    looks: Annotated[int, Meta(ge=1, le=COUNT_LOOKS_MAX)] = COUNT_LOOKS_MAX


class Find(Request):
    """A page of the tasks that a filter means, behind the ``cursor`` of the page before."""

    filter: _Filter = {}
    limit: Annotated[int, Meta(ge=1, le=FOUND_MAX)] = 100
    cursor: str | None = None
    payloads: bool = True
    oldest_first: bool = False
    after: TaskId | UnsetType = UNSET


class ExportFound(Request):
    """A file of all tasks that a filter means, without their payloads unless they are asked for."""

    filter: _Filter = {}
    format: Annotated[str, _described(enum=list(FOUND_FORMATS))] = "jsonl"
    payloads: bool = False


class ActOn(Request):
    """One slice of an act on the tasks that a filter means."""

    act: Annotated[str, _described(enum=list(ACTS))]
    filter: _Filter = {}
    priority: Priority | None = None
    policy: Annotated[str, _described(enum=list(values.REDRIVE_POLICIES))] = "stored"
    limit: Annotated[int, Meta(ge=1, le=FOUND_MAX)] = FOUND_MAX
    cursor: str | None = None


class NamedFunction(Request):
    """A published function."""

    queue: Name
    function: FunctionName


class PublishFunctions(Request):
    """Functions as a worker publishes them: what ``GET /functions`` shows of each."""

    functions: Annotated[list[dict[str, Any]], _described(maxItems=FUNCTIONS_PAGE_MAX)]


class CallFunction(NamedFunction):
    """A call of a published function. Its options are those of a task; None takes its policy's."""

    arguments: dict[str, Any] = {}
    tenant: Tenant = ""
    priority: Priority | None = None
    delay: Seconds | None = None
    ttl: Seconds | None = None
    dedup_key: Key = None
    headers: dict[str, Any] | None = None
    max_attempts: Attempts | None = None
    labels: Labels | None = None
    preview: str | None = None
    durable: bool | None = None


class WorkerBeat(Request):
    """A worker, as ``GET /workers`` shows it."""

    report: dict[str, Any]


class Purge(Request):
    """The state whose tasks are deleted; without one all that are not leased."""

    state: Annotated[str | None, _described(enum=["ready", "delayed", "waiting", "dead", None])] = (
        None
    )


class Configure(Request):
    """Settings of a queue: those that are not named stay, null takes one back.

    ``rate``: starts in a length of time, such as ``10/s`` or ``100/5m``. ``key_concurrency``:
    leases at once for each value of a label, such as ``2/customer``. ``by``: who sets them.
    Without ``replace`` what somebody else has set is not changed.
    """

    history: Annotated[float | None, _described(minimum=0, maximum=DURATION_S_MAX)] | UnsetType = (
        UNSET
    )
    history_rows: Annotated[int | None, _described(minimum=0)] | UnsetType = UNSET
    history_bytes: Annotated[int | None, _described(minimum=0)] | UnsetType = UNSET
    dead_max: Annotated[int | None, _described(minimum=0)] | UnsetType = UNSET
    dead_bytes: Annotated[int | None, _described(minimum=0)] | UnsetType = UNSET
    faces: bool | UnsetType | None = UNSET
    rate: str | UnsetType | None = UNSET
    concurrency: (
        Annotated[int | None, _described(minimum=1, maximum=CONCURRENCY_MAX)] | UnsetType
    ) = UNSET
    key_concurrency: str | UnsetType | None = UNSET
    by: Annotated[str, _described(**_bytes_of_text(1, BY_BYTES_MAX))] = BY_OPERATOR
    replace: bool = True


class Checkpoint(Request):
    """Where the copy is made, below the server's folder for them."""

    path: Annotated[str, Meta(min_length=1, max_length=CHECKPOINT_CHARS_MAX)]


class OpenWorkflow(Request):
    """A workflow: the task that runs when all of its members have ended, and its key."""

    callback: NewTask | UnsetType = UNSET
    key: Key = None
    key_base64: KeyBase64 | UnsetType = UNSET
    name: Annotated[str, _described(**_bytes_of_text(0, WORKFLOW_NAME_BYTES_MAX))] = ""
    on_failure: Annotated[str, _described(enum=list(ON_FAILURES))] = "run"


class AddMembers(Request):
    """A slice of members; ``first`` is the number of the first one."""

    tasks: Annotated[list[NewTask], _described(maxItems=SLICE_TASKS_MAX)]
    first: Annotated[int, Meta(ge=0, le=MEMBERS_MAX)] | None = None
    after: Annotated[list[TaskId], Meta(max_length=EDGES_MAX)] = []
    chain: bool = False


class EnqueueAfter(Request):
    """A task that waits for others."""

    task: NewTask
    after: Annotated[list[TaskId], Meta(min_length=1, max_length=EDGES_MAX - 1)]
    on_failure: Annotated[str, _described(enum=list(ON_FAILURES))] = "run"


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


class EnqueueStream(Query, _TaskOptions):
    """A task whose payload is the body. Objects are written as JSON."""

    what: ClassVar[str] = "the query"

    tenant: Tenant = ""
    durable: bool | None = None
    headers: Annotated[dict[str, Any], Meta(description="JSON")] | UnsetType = UNSET


class TenantsQuery(Query):
    """Whose queue, or everybody's."""

    tenant: Tenant = ""
    all_tenants: bool = False


class PayloadQuery(Query):
    """A part of a payload."""

    offset: Annotated[int, Meta(ge=0, le=PAYLOAD_BYTES_MAX)] = 0
    bytes: Annotated[int, Meta(ge=0, le=PAYLOAD_PART_BYTES_MAX)] = PAYLOAD_PART_BYTES_MAX


class ResultQuery(Query):
    """How long to wait for a result."""

    wait: Seconds = 0.0


class TasksQuery(TenantsQuery):
    """A page of tasks."""

    state: State = "ready"
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    after: Annotated[Base64, Meta(min_length=1)] | UnsetType = UNSET
    payloads: bool = True


class HistoryQuery(Query):
    """A page of ended tasks, behind the ``cursor`` of the page before."""

    queue: Name | UnsetType = UNSET
    tenant: Tenant | UnsetType = UNSET
    function: str | UnsetType = UNSET
    state: Outcome | UnsetType = UNSET
    since: Moment | UnsetType = UNSET
    until: Moment | UnsetType = UNSET
    text: Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=HISTORY_PAGE_MAX)] = 100
    cursor: (
        Annotated[str, _described(pattern=r"^([0-9a-fA-F]{32}\.)?[0-9a-fA-F]{32}$")] | UnsetType
    ) = UNSET
    oldest_first: bool = False
    after: TaskId | UnsetType = UNSET


class PartsQuery(Query):
    """A page of parts, behind the last number of the page before."""

    after: Annotated[int, Meta(ge=-1, le=MEMBERS_MAX)] = -1
    limit: Annotated[int, Meta(ge=1, le=1024)] = 256
    failed: bool = False


class WorkflowsQuery(Query):
    """A page of workflows, behind the ``cursor`` of the page before."""

    state: Annotated[str, _described(enum=list(WORKFLOW_STATES))] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=WORKFLOWS_PAGE_MAX)] = 50
    cursor: TaskId | UnsetType = UNSET


class QueuesQuery(Query):
    """A page of queues, behind the ``next`` of the page before."""

    limit: Annotated[int, Meta(ge=1, le=QUEUES_MAX)] = QUEUES_MAX
    after: Annotated[str, _described(pattern="^[^/]*/.*$")] | UnsetType = UNSET


class FunctionsQuery(Query):
    """A page of functions, behind the ``next`` of the page before."""

    queue: Name | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=FUNCTIONS_PAGE_MAX)] = FUNCTIONS_PAGE_MAX
    after: Annotated[str, _described(pattern="^[^/]*/.*$")] | UnsetType = UNSET


# -- answers: a later release may add members ----------------------------------------------


def list_of(kind: Any) -> Any:
    """A list of what ``_answer`` declares, which mypy cannot know."""
    return list[kind]


def none_or(kind: Any) -> Any:
    """Such a document, or null."""
    return kind | None


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
Progress = _answer("Progress", values.Progress, fraction=float | None)
Task = _answer(
    "Task",
    values.Task,
    "payload",
    "headers",
    state=State,
    progress=none_or(Progress),
    payload_bytes=Count,
)
PayloadPart = defstruct(
    "PayloadPart", [("payload_bytes", Count), ("crc32", Count), ("data", Base64)], kw_only=True
)
Lease = _answer("Lease", Granted, "payload", "headers", policy=Base64)
Result = _answer(
    "Result",
    values.Result,
    "value",
    status=Outcome,
)
Attempt = _answer("Attempt", values.Attempt)
Part = _answer("Part", values.Part, "value", queue=str)
WorkflowInfo = _answer("WorkflowInfo", workflows.WorkflowInfo)
MemberGroup = _answer(
    "MemberGroup",
    workflows.MemberGroup,
    queue=str,
    states=dict[str, Count],
    waits_for=list[list[Count]],
)
FailedMember = _answer("FailedMember", workflows.FailedMember, queue=str)
WorkflowGraph = _answer(
    "WorkflowGraph",
    workflows.WorkflowGraph,
    info=WorkflowInfo,
    groups=list_of(MemberGroup),
    failed=list_of(FailedMember),
)
QueueStats = _answer("QueueStats", values.QueueStats)
QueueSummary = _answer("QueueSummary", values.QueueStats, queue=Name, tenant=Tenant)
# By name: its module may be compiled, and then keeps no annotations.
_Latency = defstruct("Latency", [(field.name, Count) for field in fields(LatencySummary)])
ShardStats = _answer(
    "ShardStats", values.ShardStats, merge_sizes=list[list[Count]], commit=_Latency, fsync=_Latency
)
QueueSettings = _answer("QueueSettings", queue_settings.QueueSettings)
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
    not_begun: bool | UnsetType = UNSET
    size_bytes: Count | UnsetType = UNSET
    limit_bytes: Count | UnsetType = UNSET
    state: str | UnsetType = UNSET
    finished_at: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    scope: str | UnsetType = UNSET
    done: Count | UnsetType = UNSET
    receipts: list_of(Receipt | None) = UNSET  # type: ignore[valid-type]
