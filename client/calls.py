"""Every call as a request: what the asynchronous and the blocking client share.

Nothing here waits or knows of a connection. A ``Call`` says what to send and what may be done
when its answer is lost; the members of its document are checked as the engine would check them,
so a wrong call fails before anything is sent.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from ..engine.records.keyspace import check_name
from ..engine.runtime.task_id import TaskId
from ..errors import (
    DuplicateTaskError,
    InvariantError,
    LimitError,
    RecordCorruptError,
    TaskNotFoundError,
    UsageError,
)
from ..repository.model.arguments import (
    check_attempts,
    check_limit,
    check_worker,
    duration_s,
    length_s,
    names_of,
)
from ..repository.model.values import (
    AllTenants,
    AnyId,
    Backoff,
    Codec,
    Duration,
    Limits,
    NewTask,
    Task,
)
from .records import new_task_doc, stored_value
from .wire import JSON, MSGPACK_FORM, Stored

if TYPE_CHECKING:
    from .records import Granted

__all__ = [
    "CANCEL_CLAIM_S",
    "CLAIM_ID_BYTES",
    "CLOSED",
    "FORM",
    "REDRIVE_ERRORS",
    "Call",
    "QueueTemplate",
    "Session",
    "cancel_claim",
    "check_claim",
    "checkpoint",
    "claim",
    "complete",
    "complete_many",
    "engine_call",
    "enqueue",
    "enqueue_many",
    "heartbeat",
    "heartbeat_many",
    "list_query",
    "nack",
    "proof_of",
    "queue_call",
    "queues",
    "redrive",
    "task_call",
]

FORM: Final = MSGPACK_FORM
CHUNK_BYTES_MAX: Final = 2 << 20  # of tasks or results in one request
LEASE_S: Final = 30.0
CLAIM_ID_BYTES: Final = 16
CLOSED: Final = "this client is closed"
CANCEL_CLAIM_S: Final = 2.0  # a server that does not answer must not hold up who gives up
# Of one named task: the others are redriven all the same.
REDRIVE_ERRORS: Final = (TaskNotFoundError, DuplicateTaskError, RecordCorruptError)
_USUAL: Final = {"max_attempts": 5, "retention": 3600.0, "dead_retention": 604_800.0}


class Call(NamedTuple):
    """One request. ``wait_s``: how long the server may take by itself.

    ``timeout_s``: when one that does not answer is given up, instead of the client's own.
    """

    method: str
    path: str
    doc: Any = None
    query: Mapping[str, str] = {}
    wait_s: float = 0.0
    is_write: bool = False  # lost, its outcome is unknown
    is_repeatable: bool = False  # sent twice it does what it does once
    timeout_s: float | None = None


class Session:
    """What a client knows of its server, and of the codecs of its user."""

    def __init__(self, doc: Mapping[str, Any]) -> None:
        known = {name: doc["limits"][name] for name in Limits.__slots__}
        self.limits = Limits(**known)
        self.path: str | None = doc["path"]
        self.shards: int = doc["shards"]
        self.durability: str = doc["durability"]
        self.batch_max: int = doc["batch_max"]
        self.wait_s_max: float = doc["wait_s_max"]
        self.body_bytes_max: int = doc["body_bytes_max"]
        self.takes_claim_ids: bool = doc.get("takes_claim_ids", False)  # an older server does not
        self.codecs: dict[str, Codec] = {}


class QueueTemplate:
    """A queue and tenant, with what its tasks have in common."""

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
    ) -> None:
        self.is_all = isinstance(tenant, AllTenants)
        if self.is_all and boost_after is not None:
            raise UsageError("boost_after needs one tenant: ALL_TENANTS is served in turns")
        queue_name, tenant_name = names_of(name, "" if self.is_all else tenant)
        self.name, self.tenant = queue_name.decode(), tenant_name.decode()
        self.lease_s = length_s(lease)
        self.codec = codec
        if backoff is not None and not isinstance(backoff, Backoff):
            raise UsageError("backoff must be a lodeq.Backoff")
        given: dict[str, Any] = {
            "max_attempts": check_attempts(max_attempts),
            "retention": duration_s(retention, "retention"),
            "dead_retention": duration_s(dead_retention, "dead_retention"),
        }
        policy = {name: value for name, value in given.items() if value != _USUAL[name]}
        if backoff is not None:
            policy["backoff"] = {
                "kind": backoff.kind,
                "base": backoff.base,
                "factor": backoff.factor,
                "cap": backoff.cap,
            }
        self.doc: dict[str, Any] = {"queue": self.name}
        if self.is_all:
            self.doc["all_tenants"] = True
        elif self.tenant:
            self.doc["tenant"] = self.tenant
        # Where it is claimed from, the policy has no say.
        self.claim_doc = dict(self.doc)
        if boost_after is not None:
            self.claim_doc["boost_after"] = duration_s(boost_after, "boost_after")
        if policy:
            self.doc["policy"] = policy
        if codec is not None:
            session.codecs[self.name] = codec

    @property
    def query(self) -> dict[str, str]:
        """The same as a query's members."""
        if self.is_all:
            return {"all_tenants": "true"}
        return {"tenant": self.tenant} if self.tenant else {}


# -- tasks in --------------------------------------------------------------------------


def enqueue(session: Session, place: QueueTemplate, task: NewTask, durable: bool | None) -> Call:
    """One task: an ``enqueue_many`` of one, which carries the queue's policy."""
    for call, _ in enqueue_many(session, place, [task], durable, is_atomic=False):
        return call
    raise InvariantError("one task makes one request")


def enqueue_many(
    session: Session,
    place: QueueTemplate | None,
    tasks: Sequence[NewTask],
    durable: bool | None,
    *,
    is_atomic: bool,
) -> Iterator[tuple[Call, int]]:
    """Requests that the server takes, each with how many tasks it carries."""
    if place is not None and place.is_all:
        raise UsageError("a queue of ALL_TENANTS takes no enqueue: name the tenant")
    _check_durable(session, durable)
    base: dict[str, Any] = dict(place.doc) if place is not None else {}
    if durable is not None:
        base["durable"] = durable
    if is_atomic:
        base["atomic"] = True
    name = place.name if place is not None else ""
    codecs: Mapping[str, Codec] = session.codecs
    if place is not None and place.codec is not session.codecs.get(name):
        codecs = _with(session.codecs, name, place.codec)
    for task in tasks:
        if not isinstance(task, NewTask):
            raise UsageError(f"tasks must be lodeq.NewTask, not {type(task).__name__}")
        if task.queue is None and place is None:
            raise UsageError("engine.enqueue_many needs a queue for every task: NewTask(queue=…)")
    docs = [new_task_doc(FORM, task, codecs, name, session.limits) for task in tasks]
    sizes = [_size(doc) for doc in docs]
    if is_atomic and (len(docs) > session.batch_max or sum(sizes) > session.body_bytes_max // 2):
        raise LimitError(f"{len(docs)} tasks do not fit one atomic batch: split them")
    for start, end in [(0, len(docs))] if is_atomic else _chunks(sizes, session.batch_max):
        call = Call("POST", "/tasks", base | {"tasks": docs[start:end]}, is_write=True)
        yield call, end - start


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


def _chunks(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    start, total = 0, 0
    for n, size in enumerate(sizes):
        if n > start and (n - start >= most or total + size > CHUNK_BYTES_MAX):
            yield start, n
            start, total = n, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)


def _check_durable(session: Session, durable: object) -> None:
    if durable is not None and not isinstance(durable, bool):
        raise UsageError(f"durable must be True, False or None, not {durable!r}")
    if durable is False and session.durability == "fsync":
        raise UsageError("durable=False is not possible in fsync mode: open with 'nosync'")


# -- leases ----------------------------------------------------------------------------


def check_claim(limit: int, lease: Duration | None, worker: str) -> None:
    """What a stream of leases is asked for: refused where it is made, not at its first claim."""
    check_limit(limit)
    check_worker(worker)
    if lease is not None:
        length_s(lease)


def claim(
    session: Session,
    places: Sequence[str | QueueTemplate],
    *,
    limit: int,
    lease: Duration | None,
    wait_s: float,
    worker: str,
    skip_tenants: Collection[str] = (),
    claim_id: bytes | None = None,
) -> Call:
    """One poll of a claim. ``claim_id``: what ``cancel_claim`` may name, where the server can."""
    check_limit(limit)
    name = check_worker(worker).decode()  # as the engine would keep it
    if lease is None:
        lease_s = min(p.lease_s if isinstance(p, QueueTemplate) else LEASE_S for p in places)
    else:
        lease_s = length_s(lease)
    queues = [
        p.claim_doc if isinstance(p, QueueTemplate) else {"queue": check_name(p, "queue").decode()}
        for p in places
    ]
    poll_s = min(wait_s, session.wait_s_max)
    doc = {
        "queues": queues,
        "limit": min(limit, session.batch_max),
        "lease": lease_s,
        "wait": poll_s,
        "worker": name,
    }
    if skip_tenants:
        if isinstance(skip_tenants, str):
            raise UsageError("skip_tenants must be a collection of names, not one name")
        doc["skip_tenants"] = list(skip_tenants)
    if claim_id is not None and session.takes_claim_ids:
        doc["claim_id"] = claim_id
    return Call("POST", "/leases/claim", doc, wait_s=poll_s)


def cancel_claim(claim_id: bytes) -> Call:
    """Take back a claim whose answer nobody reads any more."""
    doc = {"claim_id": claim_id}
    return Call("POST", "/leases/cancel_claim", doc, is_repeatable=True, timeout_s=CANCEL_CLAIM_S)


def proof_of(lease: Granted) -> dict[str, Any]:
    """What proves that a lease is ours."""
    return {"task_id": bytes(lease.task_id), "epoch": lease.epoch, "token": lease.token}


def heartbeat(lease: Granted, seconds: Duration | None) -> Call:
    """Move a deadline."""
    doc = proof_of(lease)
    if seconds is not None:
        doc["seconds"] = duration_s(seconds, "seconds")
    return Call("POST", "/leases/heartbeat", doc, is_repeatable=True)


def heartbeat_many(
    session: Session, leases: Sequence[Granted], seconds: Duration | None
) -> Iterator[Call]:
    """Move many."""
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
    """End a task. Sent again it succeeds again (while its result is kept), so it may be."""
    _check_durable(session, durable)
    doc = proof_of(lease)
    _result(session, lease, doc, result)
    if then:
        for task in then:
            if not isinstance(task, NewTask):
                raise UsageError(f"then= takes lodeq.NewTask, not {type(task).__name__}")
        doc["then"] = [
            new_task_doc(FORM, task, session.codecs, lease.queue, session.limits) for task in then
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
    """End many, each request with how many it carries."""
    _check_durable(session, durable)
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
    """Nack, release, bury or cancel."""
    doc = proof_of(lease)
    if delay is not None:
        doc["delay"] = duration_s(delay, "delay")
    if not isinstance(reason, str):
        raise UsageError(f"reason must be a str, not {type(reason).__name__}")
    if reason:
        doc["reason"] = reason.encode("utf-8", "replace").decode()
    return Call("POST", f"/leases/{verb}", doc, is_write=True)


# -- looking and operating -------------------------------------------------------------


def task_call(task_id: AnyId, *, method: str = "GET", what: str = "", **query: str) -> Call:
    """One task by id."""
    path = f"/tasks/{TaskId(task_id)}{what}"
    return Call(method, path, None, query, is_write=method != "GET", is_repeatable=method == "GET")


def list_query(state: str, limit: int, after: Task | None) -> dict[str, str]:
    """The query of a listing; the server checks the values."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageError(f"limit {limit!r} is not between 1 and 10000")
    if not isinstance(state, str):
        raise UsageError(f"state must be a str, not {type(state).__name__}")
    query = {"state": state, "limit": str(limit)}
    if after is not None:
        if not isinstance(after, Task) or not after.position:
            raise UsageError("after= takes the last Task of the previous page")
        query["after"] = JSON.raw(after.position)
    return query


def queue_call(place: QueueTemplate, verb: str, doc: Any = None, **query: str) -> Call:
    """A queue's tasks or counts, or (with a document) something that is done to it."""
    path = f"/queues/{quote(place.name)}/{verb}"
    if doc is None:
        return Call("GET", path, None, place.query | query, is_repeatable=True)
    return Call("POST", path, doc, place.query, is_write=True)


def redrive(session: Session, place: QueueTemplate, ids: Sequence[AnyId] | None) -> Iterator[Call]:
    """Dead letters go back: all, or those named in as many requests as it takes, but one at least.

    The engine redrives all it can before it says what is wrong with one: so must who sends these.
    """
    if ids is None:
        yield queue_call(place, "redrive", {})
        return
    named = [bytes(TaskId(one)) for one in ids]
    for start in range(0, max(1, len(named)), session.batch_max):
        yield queue_call(place, "redrive", {"ids": named[start : start + session.batch_max]})


def engine_call(path: str, doc: Any = None, *, takes_long: bool = False) -> Call:
    """Something of the whole engine. ``takes_long``: as long as it takes."""
    return Call(
        "GET" if doc is None else "POST",
        path,
        doc,
        wait_s=86_400.0 if takes_long else 0.0,
        is_repeatable=True,
    )


def queues(after: str | None) -> Call:
    """A page of queues, behind the ``next`` of the one before."""
    return engine_call("/queues")._replace(query={} if after is None else {"after": after})


def checkpoint(path: str | os.PathLike[str]) -> Call:
    """A copy of the store."""
    return engine_call("/checkpoint", {"path": os.fspath(path)}, takes_long=True)
