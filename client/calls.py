"""Every call of a client as a request, for the async and the blocking client alike.

Nothing here waits or uses a connection. A ``Call`` holds the request, and whether it may be sent
again when its answer is lost. Arguments are checked by the engine's own rules, so a wrong call
fails before anything is sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from ..engine.records.keyspace import check_name
from ..engine.runtime.task_id import TaskId
from ..errors import (
    DuplicateTaskError,
    InvariantError,
    LimitError,
    LodeqError,
    RecordCorruptError,
    TaskNotFoundError,
    UsageError,
)
from ..repository.model.arguments import (
    check_attempts,
    check_functions,
    check_limit,
    check_progress,
    check_redrive_policy,
    check_retry,
    check_unicode,
    check_worker,
    duration_s,
    is_plain,
    length_s,
    listed,
    moment_us,
    names_of,
    task_ids,
    waits,
)
from ..repository.model.filters import position_of, start_of
from ..repository.model.queue_settings import Unchanged, check_by, check_changes
from ..repository.model.redaction import Redaction
from ..repository.model.values import (
    REASON_BYTES_MAX,
    AllTenants,
    AnyId,
    Backoff,
    Codec,
    Duration,
    Limits,
    NewTask,
    Task,
)
from .documents.records import (
    backoff_doc,
    encode_payload,
    new_task_doc,
    options_doc,
    stored_value,
    when_text,
)
from .documents.wire import JSON, MSGPACK_FORM, Stored

if TYPE_CHECKING:
    from .documents.records import Granted

__all__ = [
    "CANCEL_CLAIM_S",
    "CLAIM_ID_BYTES",
    "CLOSED",
    "FORM",
    "OPTIONS_BYTES_MAX",
    "PAYLOAD_PART_BYTES_MAX",
    "REDRIVE_ERRORS",
    "Call",
    "PackedTask",
    "QueueTemplate",
    "Session",
    "cancel_all",
    "cancel_claim",
    "check_claim",
    "check_durable",
    "check_history",
    "check_rising",
    "checkpoint",
    "claim",
    "complete",
    "complete_many",
    "engine_call",
    "enqueue",
    "enqueue_many",
    "heartbeat",
    "heartbeat_many",
    "history",
    "list_query",
    "long_write",
    "nack",
    "packed_options",
    "packed_tasks",
    "payload_part",
    "place",
    "place_among",
    "progress",
    "proof_of",
    "queue_call",
    "queue_settings",
    "queues",
    "redrive",
    "settings_change",
    "task_call",
]

FORM: Final = MSGPACK_FORM
PAYLOAD_PART_BYTES_MAX: Final = 1 << 20  # of a payload, in one answer
CHUNK_BYTES_MAX: Final = 2 << 20  # of tasks or results in one request
OPTIONS_BYTES_MAX: Final = 256 << 10  # of an enqueue of many over the link
PackedTask = tuple[int, bytes, bytes | None]  # kind, payload, and options if there are any
LEASE_S: Final = 30.0
CLAIM_ID_BYTES: Final = 16
CLOSED: Final = "this client is closed"
_LONG_S: Final = 86_400.0  # as long as it takes
CANCEL_CLAIM_S: Final = 2.0  # a server that hangs must not hold up whoever gives up
# Errors about one task of a redrive: the others are redriven all the same.
REDRIVE_ERRORS: Final = (TaskNotFoundError, DuplicateTaskError, RecordCorruptError)
# Calls that change many tasks, by the end of their path: the member that says how many.
COUNTS: Final[Mapping[str, str]] = {
    "act": "done",
    "cancel": "cancelled",
    "cancel_all": "cancelled",
    "purge": "purged",
    "redrive": "redriven",
}
# Others that go on where they were, and those that leave a copy behind.
_GO_ON: Final = frozenset(("forget_loads", "ingest", "migrate_bodies", "purge_archived"))
_LEAVE_COPIES: Final = frozenset(("checkpoint", "snapshots"))
_AT: Final = re.compile(r"tasks\[(\d{1,9})\](.*)", re.DOTALL)
_DEFAULTS: Final = {"max_attempts": 5, "retention": 3600.0, "dead_retention": 604_800.0}


class Call(NamedTuple):
    """One request.

    ``wait_s``: how long the server may wait by itself, on top of the timeout. ``timeout_s``:
    seconds after which a server that does not answer is given up; None: the client's own timeout.
    """

    method: str
    path: str
    doc: Any = None
    query: Mapping[str, str] = {}
    wait_s: float = 0.0
    is_write: bool = False  # if its answer is lost, its outcome is unknown
    is_repeatable: bool = False  # sending it twice does the same as once
    timeout_s: float | None = None

    @property
    def counts(self) -> str | None:
        """The member of the answer that says how many tasks it has changed, if one does."""
        return COUNTS.get(self.path.rpartition("/")[2]) if self.is_write else None

    @property
    def lost_text(self) -> str:
        """The text of the error where its answer was lost, with what to do."""
        name = self.path.rpartition("/")[2]
        cure = "so retry with the same dedup key"
        if self.counts is not None or name in _GO_ON:
            cure = "wholly or in part: the same call again does the rest"
        elif name in _LEAVE_COPIES:
            cure = "so look whether it is there"
        return f"the answer to {self.method} {self.path} was lost; it may have happened, {cure}"


class Session:
    """The server's limits and options, as a client was sent them, and its user's codecs."""

    def __init__(self, doc: Mapping[str, Any], redaction: Redaction | None = None) -> None:
        known = {name: doc["limits"][name] for name in Limits.__slots__ if name in doc["limits"]}
        self.limits = Limits(**known)
        self.path: str | None = doc["path"]
        self.shards: int = doc["shards"]
        self.durability: str = doc["durability"]
        self.batch_max: int = doc["batch_max"]
        self.wait_s_max: float = doc["wait_s_max"]
        self.body_bytes_max: int = doc["body_bytes_max"]
        self.takes_claim_ids: bool = doc.get("takes_claim_ids", False)  # an older server does not
        self.takes_queue_settings: bool = doc.get("takes_queue_settings", False)
        self.has_history: bool = doc.get("has_history", False)
        self.takes_filters: bool = doc.get("takes_filters", False)
        self.takes_policies: bool = doc.get("takes_policies", False)  # with each task; the same
        self.takes_faces: bool = doc.get("takes_faces", False)  # as that
        self.takes_progress: bool = doc.get("takes_progress", False)  # and cancels all of a queue
        self.takes_dependencies: bool = doc.get("takes_dependencies", False)  # ``NewTask.after``
        self.takes_dead_claims: bool = doc.get("takes_dead_claims", False)
        self.skips_functions: bool = doc.get("skips_functions", False)
        self.stream_bytes_max: int = doc.get("stream_bytes_max", 0)  # 0: it takes no streams
        self.lists_oldest_first: bool = doc.get("lists_oldest_first", False)
        self.codecs: dict[str, Codec] = {}
        self.redaction = redaction


class QueueTemplate:
    """A queue and tenant, with the options that its tasks have in common."""

    def __init__(
        self,
        session: Session,
        name: str,
        tenant: str | AllTenants,
        *,
        max_attempts: int,
        lease: Duration,
        retention: Duration,
        dead_retention: Duration,
        backoff: Backoff | None,
        boost_after: Duration | None,
        codec: Codec | None,
        faces: bool,
    ) -> None:
        self.faces = faces
        self.is_all = isinstance(tenant, AllTenants)
        queue_name, tenant_name = names_of(name, "" if self.is_all else tenant)
        self.name, self.tenant = queue_name.decode(), tenant_name.decode()
        self.routing = b"%b\0%b\0" % (queue_name, tenant_name)  # in front of a dedup key
        self.lease_s = length_s(lease)
        self.codec = codec
        if backoff is not None and not isinstance(backoff, Backoff):
            raise UsageError("backoff must be a lodeq.Backoff")
        given: dict[str, Any] = {
            "max_attempts": check_attempts(max_attempts),
            "retention": duration_s(retention, "retention"),
            "dead_retention": duration_s(dead_retention, "dead_retention"),
        }
        policy = {name: value for name, value in given.items() if value != _DEFAULTS[name]}
        if backoff is not None:
            policy["backoff"] = backoff_doc(backoff)
        self.doc: dict[str, Any] = {"queue": self.name}
        if self.is_all:
            self.doc["all_tenants"] = True
        elif self.tenant:
            self.doc["tenant"] = self.tenant
        # A claim carries no policy: each task has its own.
        self.claim_doc = dict(self.doc)
        if boost_after is not None:
            self.claim_doc["boost_after"] = duration_s(boost_after, "boost_after")
        if policy:
            self.doc["policy"] = policy
        if codec is not None:
            session.codecs[self.name] = codec

    @property
    def query(self) -> dict[str, str]:
        """The tenant as parameters of a URL's query."""
        if self.is_all:
            return {"all_tenants": "true"}
        return {"tenant": self.tenant} if self.tenant else {}


# -- enqueue ---------------------------------------------------------------------------


def enqueue(session: Session, template: QueueTemplate, task: NewTask, durable: bool | None) -> Call:
    """Enqueue one task: an ``enqueue_many`` of one, which carries the queue's policy.

    Args:
        session: the server's limits; payloads are encoded by its codecs.
        template: the queue, and the options of its tasks.
        task: with options of its own.
        durable: None waits as the store's durability says; False is refused in fsync mode.
    """
    for call, _ in enqueue_many(session, template, [task], durable, is_atomic=False):
        return call
    raise InvariantError("one task makes one request")


def enqueue_many(
    session: Session,
    template: QueueTemplate | None,
    tasks: Sequence[NewTask],
    durable: bool | None,
    *,
    is_atomic: bool,
) -> Iterator[tuple[Call, int]]:
    """Enqueue many: requests of a size the server takes, each with its number of tasks.

    Args:
        session: the server's limits; payloads are encoded by its codecs.
        template: the queue of tasks that name none; None refuses those.
        tasks: of any number, split after ``session.batch_max`` tasks or 2 MiB.
        durable: None waits as the store's durability says; False is refused in fsync mode.
        is_atomic: one request for all of them, or a ``LimitError``.
    """
    if template is not None and template.is_all:
        raise UsageError("a queue of ALL_TENANTS takes no enqueue: name the tenant")
    check_durable(session, durable)
    base: dict[str, Any] = dict(template.doc) if template is not None else {}
    if durable is not None:
        base["durable"] = durable
    if is_atomic:
        base["atomic"] = True
    name = template.name if template is not None else ""
    codecs: Mapping[str, Codec] = session.codecs
    if template is not None and template.codec is not session.codecs.get(name):
        codecs = _with(session.codecs, name, template.codec)
    if template is not None and not template.faces:
        tasks = [_without_face(task) if isinstance(task, NewTask) else task for task in tasks]
    docs: list[Any] = []
    try:
        for task in tasks:
            if not isinstance(task, NewTask):
                raise UsageError(f"tasks must be lodeq.NewTask, not {type(task).__name__}")
            if task.queue is None and template is None:
                raise UsageError(
                    "engine.enqueue_many needs a queue for every task: NewTask(queue=…)"
                )
            sent = task if session.takes_policies else _without_policy(task)
            docs.append(new_task_doc(FORM, sent, codecs, name, session))
    except UsageError as error:
        error.at(len(docs))
        raise
    sizes = [_size(doc) for doc in docs]
    if is_atomic and (len(docs) > session.batch_max or sum(sizes) > session.body_bytes_max // 2):
        raise LimitError(f"{len(docs)} tasks do not fit one atomic batch: split them")
    for start, end in [(0, len(docs))] if is_atomic else _chunks(sizes, session.batch_max):
        call = Call("POST", "/tasks", base | {"tasks": docs[start:end]}, is_write=True)
        yield call, end - start


def packed_options(session: Session, template: QueueTemplate, task: NewTask) -> bytes | None:
    """The options of a task, packed for the link; None: they do not pack, and ``enqueue`` says why.

    Raises:
        UsageError: an option is wrong.
    """
    doc = options_doc(FORM, task if template.faces else _without_face(task), session)
    try:
        return FORM.dumps(doc)
    except (TypeError, ValueError, OverflowError):
        return None


def packed_tasks(
    session: Session, template: QueueTemplate, tasks: Sequence[NewTask]
) -> list[PackedTask] | None:
    """Kind, payload and options of each task, for one request; None: they need calls.

    Raises:
        UsageError: a payload or an option is wrong.
    """
    if template.is_all or len(tasks) > session.batch_max:
        return None
    found: list[PackedTask] = []
    n_bytes = n_options = 0
    try:
        for task in tasks:
            if (
                not isinstance(task, NewTask)
                or task.queue is not None
                or task.tenant is not None
                or waits(task.after, task.on_failure)
            ):
                return None
            kind, data = encode_payload(task.payload, template.codec, session)
            options: bytes | None = None
            if not is_plain(task):
                options = packed_options(session, template, task)
                if options is None:
                    return None
                n_options += len(options)
            n_bytes += len(data)
            found.append((kind, data, options))
    except UsageError as error:
        error.at(len(found))
        raise
    return found if n_bytes <= CHUNK_BYTES_MAX and n_options <= OPTIONS_BYTES_MAX else None


def _without_face(task: NewTask) -> NewTask:
    return task._replace(labels=None, function=None, preview=None)


def _without_policy(task: NewTask) -> NewTask:
    """A task for an older server, which gives tasks that name their queue the default policy."""
    if task.retry is None and task.retention is None and task.dead_retention is None:
        return task
    own = {
        "retry": None if task.retry is None else check_retry(task.retry),
        "retention": task.retention,
        "dead_retention": task.dead_retention,
    }
    for name, default in (("retry", Backoff()), *_DEFAULTS.items()):
        if own.get(name) is not None and (own[name] != default or task.queue is None):
            raise UsageError(
                f"this server is older than the client: it takes no {name!r} with a task; "
                "upgrade the server, or give it to engine.queue(…)"
            )
    return task._replace(retry=None, retention=None, dead_retention=None)


def place(error: LodeqError, before: int) -> None:
    """Place an answer about one task of a request, counted over all requests of the call.

    ``before``: tasks of the requests before it.
    """
    place_among(error, range(before, 1 << 62))


def place_among(error: LodeqError, places: Sequence[int]) -> None:
    """The same, where the tasks of the request are those at ``places``."""
    found = _AT.match(str(error))
    if isinstance(error, UsageError) and found is not None and int(found[1]) < len(places):
        error.index = places[int(found[1])]
        error.args = (f"tasks[{error.index}]{found[2]}", *error.args[1:])


def _with(codecs: Mapping[str, Codec], name: str, codec: Codec | None) -> Mapping[str, Codec]:
    mine = dict(codecs)
    mine.pop(name, None)
    return mine if codec is None else mine | {name: codec}


def _size(doc: Mapping[str, Any]) -> int:
    total = 64
    for name in ("payload", "headers", "result"):
        value = doc.get(name)
        if value is not None:
            total += len(value if type(value) is bytes else value.data)
    return total


def _chunks(sizes: Sequence[int], tasks_max: int) -> Iterator[tuple[int, int]]:
    start, total = 0, 0
    for n, size in enumerate(sizes):
        if n > start and (n - start >= tasks_max or total + size > CHUNK_BYTES_MAX):
            yield start, n
            start, total = n, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)


def check_durable(session: Session, durable: object) -> None:
    """Check the argument ``durable`` of a call.

    Raises:
        UsageError: it is no bool or None, or the store cannot do less.
    """
    if durable is not None and not isinstance(durable, bool):
        raise UsageError(f"durable must be True, False or None, not {durable!r}")
    if durable is False and session.durability == "fsync":
        raise UsageError("durable=False is not possible in fsync mode: open with 'nosync'")


# -- leases ----------------------------------------------------------------------------


def check_claim(limit: int, lease: Duration | None, worker: str) -> None:
    """Check the arguments of a lease stream when it is made, not at its first claim."""
    check_limit(limit)
    check_worker(worker)
    if lease is not None:
        length_s(lease)


def claim(
    session: Session,
    queues: Sequence[str | QueueTemplate],
    *,
    limit: int,
    lease: Duration | None,
    wait_s: float,
    worker: str,
    skip_tenants: Collection[str] = (),
    claim_id: bytes | None = None,
    dead: bool = False,
    skip_functions: Collection[str] = (),
) -> Call:
    """Poll once for leases.

    Args:
        session: the server's limits.
        queues: names, or queues with a tenant and a length of their leases.
        limit: the most leases, 1 to 4,096; one poll returns ``session.batch_max`` at most.
        lease: seconds, up to 49 days; None takes the shortest length of the queues.
        wait_s: seconds; the server bounds one poll by ``session.wait_s_max``.
        worker: who claims, in at most 256 bytes of UTF-8.
        skip_tenants: tenants that are passed over.
        claim_id: 16 random bytes that ``cancel_claim`` names; an older server is sent none.
        dead: of the dead letters of one queue and tenant; an older server is asked for none.
        skip_functions: functions whose tasks are left to others; an older server is told of none.
    """
    check_limit(limit)
    name = check_worker(worker).decode()  # as the engine would keep it
    if lease is None:
        lease_s = min(q.lease_s if isinstance(q, QueueTemplate) else LEASE_S for q in queues)
    else:
        lease_s = length_s(lease)
    queue_docs = [
        q.claim_doc if isinstance(q, QueueTemplate) else {"queue": check_name(q, "queue").decode()}
        for q in queues
    ]
    poll_s = min(wait_s, session.wait_s_max)
    doc = {
        "queues": queue_docs,
        "limit": min(limit, session.batch_max),
        "lease": lease_s,
        "wait": poll_s,
        "worker": name,
    }
    if skip_tenants:
        if isinstance(skip_tenants, str):
            raise UsageError("skip_tenants must be a collection of names, not one name")
        doc["skip_tenants"] = list(skip_tenants)
    if skip_functions:
        check_functions(skip_functions)
        if session.skips_functions:
            doc["skip_functions"] = list(skip_functions)
    if claim_id is not None and session.takes_claim_ids:
        doc["claim_id"] = claim_id
    if dead is not False:
        if dead is not True:
            raise UsageError(f"dead must be True or False, not {dead!r}")
        if not session.takes_dead_claims:
            raise UsageError(
                "this server hands out no dead letters: it runs an older lodeq; upgrade the server"
            )
        doc["dead"] = True
    return Call("POST", "/leases/claim", doc, wait_s=poll_s)


def cancel_claim(claim_id: bytes) -> Call:
    """Take back a claim whose answer nobody reads."""
    doc = {"claim_id": claim_id}
    return Call("POST", "/leases/cancel_claim", doc, is_repeatable=True, timeout_s=CANCEL_CLAIM_S)


def proof_of(lease: Granted) -> dict[str, Any]:
    """The members of a document that prove that a lease is ours."""
    return {"task_id": bytes(lease.task_id), "epoch": lease.epoch, "token": lease.token}


def heartbeat(lease: Granted, seconds: Duration | None) -> Call:
    """Extend a lease by its length, or by ``seconds``."""
    doc = proof_of(lease)
    if seconds is not None:
        doc["seconds"] = duration_s(seconds, "seconds")
    return Call("POST", "/leases/heartbeat", doc, is_repeatable=True)


def cancel_all(session: Session, template: QueueTemplate, leased: object) -> Call:
    """Cancel all of a queue that has not ended."""
    if not session.takes_progress:  # both came in one release
        raise UsageError(
            "this server cannot cancel all of a queue: it runs an older lodeq; upgrade the server"
        )
    return queue_call(template, "cancel_all", {"leased": leased})


def progress(session: Session, lease: Granted, fraction: object, note: object) -> Call:
    """Report how far a run has come.

    Args:
        session: what the server takes.
        lease: of the run.
        fraction: 0.0 to 1.0; None: not known.
        note: a few words for people.
    """
    checked, text = check_progress(fraction, note)
    if not session.takes_progress:
        raise UsageError(
            "this server keeps no progress of runs: it runs an older lodeq; upgrade the server"
        )
    doc = {**proof_of(lease), "fraction": checked, "note": text.decode()}
    return Call("POST", "/leases/progress", doc, is_repeatable=True)


def heartbeat_many(
    session: Session, leases: Sequence[Granted], seconds: Duration | None
) -> Iterator[Call]:
    """Extend many leases, in as many requests as it takes."""
    base = {} if seconds is None else {"seconds": duration_s(seconds, "seconds")}
    for start in range(0, len(leases), session.batch_max):
        part = [proof_of(lease) for lease in leases[start : start + session.batch_max]]
        yield Call("POST", "/leases/heartbeat_many", base | {"leases": part}, is_repeatable=True)


def _result(session: Session, lease: Granted, doc: dict[str, Any], result: Any) -> None:
    if result is not None:
        stored: Stored = stored_value(
            result, session.codecs.get(lease.queue), session.limits.result_bytes_max, "result"
        )
        FORM.put(doc, "result", stored)


def complete(
    session: Session,
    lease: Granted,
    result: Any,
    then: Sequence[NewTask],
    keep: bool,
    durable: bool | None,
) -> Call:
    """Complete a task. While its result is kept, the request may be sent again.

    Args:
        session: the server's limits; the result is encoded by the queue's codec.
        lease: the lease as it was granted.
        result: None keeps a result without a value.
        then: follow-up tasks, enqueued in the same step.
        keep: False keeps no result.
        durable: None waits as the store's durability says; False is refused in fsync mode.
    """
    check_durable(session, durable)
    doc = proof_of(lease)
    _result(session, lease, doc, result)
    if then:
        then = listed(then)
        for task in then:
            if not isinstance(task, NewTask):
                raise UsageError(f"then= takes lodeq.NewTask, not {type(task).__name__}")
        if not session.takes_policies:
            then = [_without_policy(task) for task in then]
        doc["then"] = [
            new_task_doc(FORM, task, session.codecs, lease.queue, session) for task in then
        ]
    if not keep:
        doc["keep"] = False
    if durable is not None:
        doc["durable"] = durable
    is_kept = keep and lease.policy.retention_ms > 0
    return Call("POST", "/leases/complete", doc, is_write=True, is_repeatable=is_kept)


def complete_many(
    session: Session, pairs: Sequence[tuple[Granted, Any]], durable: bool | None
) -> Iterator[tuple[Call, int]]:
    """Complete many tasks: requests, each with its number of leases."""
    check_durable(session, durable)
    base = {} if durable is None else {"durable": durable}
    docs = []
    for lease, result in pairs:
        doc = proof_of(lease)
        _result(session, lease, doc, result)
        docs.append(doc)
    for start, end in _chunks([_size(doc) for doc in docs], session.batch_max):
        is_kept = all(lease.policy.retention_ms > 0 for lease, _ in pairs[start:end])
        call = Call(
            "POST",
            "/leases/complete_many",
            base | {"leases": docs[start:end]},
            is_write=True,
            is_repeatable=is_kept,
        )
        yield call, end - start


def nack(verb: str, lease: Granted, delay: Duration | None, reason: object) -> Call:
    """End a lease without completing its task.

    Args:
        verb: ``nack``, ``release``, ``bury``, ``redrive`` or ``cancel``.
        lease: the lease as it was granted.
        delay: seconds before the task is ready again; None lets its backoff decide.
        reason: text for ``nack`` and ``bury``; the server cuts it at ``reason_bytes_max``. Of a
            very long one no more is sent than a server may keep: else it would refuse the call.
    """
    doc = proof_of(lease)
    if delay is not None:
        doc["delay"] = duration_s(delay, "delay")
    if not isinstance(reason, str):
        raise UsageError(f"reason must be a str, not {type(reason).__name__}")
    if reason:
        raw = reason[:REASON_BYTES_MAX].encode("utf-8", "replace")[:REASON_BYTES_MAX]
        doc["reason"] = raw.decode("utf-8", "ignore")
    return Call("POST", f"/leases/{verb}", doc, is_write=True)


# -- reading and operating -------------------------------------------------------------


def task_call(task_id: AnyId, *, method: str = "GET", what: str = "", **query: str) -> Call:
    """Read or cancel one task by its id."""
    path = f"/tasks/{TaskId(task_id)}{what}"
    return Call(method, path, None, query, is_write=method != "GET", is_repeatable=method == "GET")


def payload_part(task_id: AnyId, offset: int, count: int) -> Call:
    """Read a part of a task's payload; the server gives less if it is too much for one answer."""
    many = str(min(count, PAYLOAD_PART_BYTES_MAX))
    return task_call(task_id, what="/payload", offset=str(offset), bytes=many)


def list_query(state: str, limit: int, after: Task | None) -> dict[str, str]:
    """The query of a listing; the server checks the values."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageError(f"limit {limit!r} is not between 1 and 10000")
    if not isinstance(state, str):
        raise UsageError(f"state must be a str, not {type(state).__name__}")
    query = {"state": state, "limit": str(limit)}
    position = position_of(after)
    if position:
        query["after"] = JSON.raw(position)
    return query


def queue_call(template: QueueTemplate, verb: str, doc: Any = None, **query: str) -> Call:
    """Read a queue, or change it: a request with a document is a change."""
    path = f"/queues/{quote(template.name)}/{verb}"
    if doc is None:
        return Call("GET", path, None, template.query | query, is_repeatable=True)
    return Call("POST", path, doc, template.query, is_write=True)


def queue_settings(session: Session, queue: str, doc: Any = None) -> Call:
    """Read what is set for a queue, or (with a document) change it."""
    name = names_of(queue, "")[0].decode()
    if not session.takes_queue_settings:
        raise UsageError(
            "this server has no settings of queues (rate, concurrency, history): it runs an older "
            "lodeq; upgrade the server"
        )
    path = f"/queues/{quote(name)}/settings"
    if doc is None:
        return Call("GET", path, is_repeatable=True)
    return Call("POST", path, doc, is_write=True, is_repeatable=True)


def settings_change(by: str, *, replace: bool, **changes: Any) -> dict[str, Any]:
    """The document of a change of settings, checked here as the engine would."""
    given = {name: one for name, one in changes.items() if not isinstance(one, Unchanged)}
    check_changes(**given)
    if given.get("history") is not None:
        given["history"] = duration_s(given["history"], "history")
    return {"by": check_by(by), "replace": replace, **given}


def redrive(
    session: Session, template: QueueTemplate, ids: Sequence[AnyId] | None, policy: str
) -> Iterator[Call]:
    """Redrive all dead letters, or those named: at least one request, more if it takes more.

    The engine redrives all it can before it reports an error about one. So send every request
    before raising one of ``REDRIVE_ERRORS``.

    Args:
        session: of the server.
        template: the queue.
        ids: None for all.
        policy: ``stored`` or ``current``.
    """
    base: dict[str, Any] = {}
    if check_redrive_policy(policy) != "stored":
        if not session.takes_policies:
            raise UsageError("this server is older than the client: it redrives as stored only")
        base["policy"] = policy
    if ids is None:
        yield queue_call(template, "redrive", base)
        return
    named = [bytes(one) for one in task_ids(ids, "redrive")]
    for start in range(0, max(1, len(named)), session.batch_max):
        part = {"ids": named[start : start + session.batch_max]}
        yield queue_call(template, "redrive", base | part)


def engine_call(path: str, doc: Any = None, *, takes_long: bool = False) -> Call:
    """Read the engine, or (with a document) do what may be done twice.

    ``takes_long``: a day's timeout.
    """
    return Call(
        "GET" if doc is None else "POST",
        path,
        doc,
        wait_s=_LONG_S if takes_long else 0.0,
        is_repeatable=True,
    )


def check_history(session: Session) -> None:
    """A server of before there was a history has no routes for it."""
    if not session.has_history:
        raise UsageError(
            "this server has no history and no attempts: it runs an older lodeq; upgrade the server"
        )


def check_rising(session: Session) -> None:
    """An older server lists ended tasks the newest first only."""
    if not session.lists_oldest_first:
        raise UsageError(
            "this server does not list the oldest first: it runs an older lodeq; upgrade the server"
        )


def history(
    session: Session,
    queue: str | None,
    *,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    oldest_first: bool,
    after: AnyId | None,
    **others: str | None,
) -> Call:
    """A page of ended tasks; the server checks what is not a moment.

    Args:
        session: what the server takes.
        queue: None for all.
        since: ended then or later.
        until: ended before.
        limit: tasks at most, 1 to 1,000.
        oldest_first: by rising ids.
        after: with ``oldest_first``, only what is behind this id.
        others: further members of the query; None leaves one out.
    """
    check_history(session)
    moment_us(since, "since")
    moment_us(until, "until")
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageError(f"limit {limit!r} is not between 1 and 1000")
    given = {
        "queue": queue,
        "since": when_text(since),
        "until": when_text(until),
        "limit": str(limit),
        **others,
    }
    if start_of(after, oldest_first):
        check_rising(session)
        given["oldest_first"] = "true"
    if after is not None:
        given["after"] = str(TaskId(after))
    for name, one in given.items():
        if one is not None and not isinstance(one, str):
            raise UsageError(f"{name} must be a str or None, not {type(one).__name__}")
        check_unicode(name, one or "")
    query = {name: one for name, one in given.items() if one is not None}
    return engine_call("/history")._replace(query=query)


def queues(after: str | None) -> Call:
    """A page of queues; ``after`` is the ``next`` of the page before."""
    return engine_call("/queues")._replace(query={} if after is None else {"after": after})


def checkpoint(path: str | os.PathLike[str]) -> Call:
    """Copy the store to a folder of the server."""
    return long_write("/checkpoint", {"path": os.fspath(path)})


def long_write(path: str, doc: Any) -> Call:
    """Change the store, however long that takes. Not one to be sent twice.

    A second checkpoint finds the first one's folder, a second migration nothing to do.
    """
    return Call("POST", path, doc, wait_s=_LONG_S, is_write=True)
