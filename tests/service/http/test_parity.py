"""Code moves between an embedded and a served engine: names, arguments, errors, values."""

import inspect
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_sources import none_of

import lodeq
import lodeq.testing
from lodeq import errors
from lodeq.client.blocking.engine import SyncRemoteEngine
from lodeq.client.blocking.lease import SyncRemoteLease
from lodeq.client.blocking.leases import SyncRemoteLeaseStream
from lodeq.client.blocking.queue import SyncRemoteQueue
from lodeq.client.documents.problems import STATUSES, error_of, problem_of
from lodeq.client.documents.records import Granted, plain_doc, stats_of
from lodeq.client.documents.wire import JSON, MSGPACK_FORM, Stored
from lodeq.client.engine import RemoteEngine
from lodeq.client.lease import RemoteLease
from lodeq.client.leases import RemoteLeaseStream
from lodeq.client.queue import RemoteQueue
from lodeq.client.transport.transport import Target, Transport
from lodeq.engine.records.policy import Policy
from lodeq.repository.api.engine import ThreadEngine
from lodeq.repository.api.lease_proof import LeaseProof
from lodeq.repository.api.threads.thread_leases import ThreadLease, ThreadLeaseStream
from lodeq.repository.api.threads.thread_queue import ThreadQueue
from lodeq.repository.model.codec import CODEC, MSGPACK, RAW, encode_value
from lodeq.service.http.guard import Settings

PAIRS = [
    (lodeq.Engine, RemoteEngine),
    (lodeq.Queue, RemoteQueue),
    (lodeq.Lease, RemoteLease),
    (lodeq.LeaseStream, RemoteLeaseStream),
    (ThreadEngine, SyncRemoteEngine),
    (ThreadQueue, SyncRemoteQueue),
    (ThreadLease, SyncRemoteLease),
    (ThreadLeaseStream, SyncRemoteLeaseStream),
]
# What the engine's own modules use of these classes.
INSIDE = {"twin", "stored", "stored_headers"}
# What a lease keeps for the engine, not for its holder.
KEPT = {
    "shard_queue",
    "codec",
    "state",
    "dead_row",
    "deadline_mono",
    "expires_ms",
    "flags",
    "face",
    "ghost",
    "ghost_expires_ms",
    "granted_mono",
    "key",
    "leased_us",
    "packed_policy",
    "record",
    "record_bytes",
    "runs",
    "stored_s",
    "times",
    "worker",
}
ENTERED = {"__aenter__", "__aexit__", "__enter__", "__exit__"}


def members(kind):
    names = {name for name in dir(kind) if not name.startswith("_") or name in ENTERED}
    return sorted(names - INSIDE - KEPT)


def difference(here, there, name):
    """Differences that a user of one would not find in the other."""
    if not hasattr(there, name):
        return "is missing"
    ours, theirs = inspect.getattr_static(here, name), inspect.getattr_static(there, name)
    if inspect.iscoroutinefunction(ours) != inspect.iscoroutinefunction(theirs):
        return "is a coroutine function in one of them"
    if not inspect.isfunction(ours):
        return "can be called" if callable(theirs) else None
    return None if shape(ours) == shape(theirs) else f"takes {shape(theirs)}, not {shape(ours)}"


def test_a_client_has_what_an_engine_has():
    asked = [(here, there, name) for here, there in PAIRS for name in members(here)]
    assert len(asked) > 100
    none_of(
        f"{there.__name__}.{name} {why}"
        for here, there, name in asked
        if (why := difference(here, there, name)) is not None
    )


# Embedded, in threads, over HTTP, over HTTP without async: whichever a service holds.
FAMILIES = [
    (lodeq.Engine, ThreadEngine, RemoteEngine, SyncRemoteEngine),
    (lodeq.Queue, ThreadQueue, RemoteQueue, SyncRemoteQueue),
    (lodeq.Lease, ThreadLease, RemoteLease, SyncRemoteLease),
    (lodeq.LeaseStream, ThreadLeaseStream, RemoteLeaseStream, SyncRemoteLeaseStream),
]
# Of a client: what its own modules use.
OF_CLIENTS = {
    "claim_from",
    "end",
    "enqueue_tasks",
    "extend",
    "granted",
    "send",
    "template",
    "upload",
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family[0].__name__)
def test_all_four_kinds_have_the_same(family):
    kept = INSIDE | KEPT | OF_CLIENTS | {"sync"}  # without async there is nothing to leave
    names = [{n for n in dir(kind) if not n.startswith("_")} - kept for kind in family]
    assert names == [names[0]] * len(family)


def shape(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_both_ways_to_connect_take_the_same():
    assert shape(lodeq.connect) == shape(lodeq.sync.connect)


# --- errors -------------------------------------------------------------------------------------

FACTS = {
    "task_id": lodeq.TaskId(bytes(range(16))),
    "size_bytes": 7,
    "limit_bytes": 5,
    "retry_after_ms": 1500,
    "leader": "b",
    "shard": 3,
    "missing": (4, 5),
    "offset": 9,
    "reason": "torn",
    "state": "dead",
    "finished_at": datetime(2026, 11, 26, 12, tzinfo=UTC),
}


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_comes_back_as_what_it_was(name):
    error = getattr(errors, name)("what it says")
    for fact, value in FACTS.items():
        if hasattr(error, fact):
            setattr(error, fact, value)
    error.receipts = [lodeq.Receipt(FACTS["task_id"], duplicate=True), None]
    doc = json.loads(json.dumps(problem_of(error)))
    again = error_of(doc, doc["status"])
    assert type(again) is type(error)
    assert (str(again), again.receipts) == (str(error), error.receipts)
    for fact in FACTS:
        assert getattr(again, fact, None) == getattr(error, fact, None)


def test_every_error_has_a_type_and_a_status_of_its_own():
    docs = [problem_of(getattr(errors, name)("x")) for name in errors.__all__]
    assert len({doc["type"] for doc in docs}) == len(docs)
    assert all(400 <= doc["status"] < 600 for doc in docs)
    assert set(STATUSES) <= set(errors.__all__)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, lodeq.AccessDeniedError),
        (403, lodeq.AccessDeniedError),
        (502, lodeq.BusyError),
        (404, lodeq.UsageError),
        (500, lodeq.LodeqError),
    ],
)
@pytest.mark.parametrize("doc", ["<html>", None, [], {"type": "urn:lodeq:problem:unheard-of"}])
def test_an_answer_of_something_else_is_an_error_too(status, kind, doc):
    assert type(error_of(doc, status)) is kind


# --- values -------------------------------------------------------------------------------------

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False)
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=5,
)


def encodable(value):
    try:
        return Stored(*encode_value(value, None, 1 << 20, "value"))
    except lodeq.UsageError:  # a surrogate
        return None


@pytest.mark.slow
@pytest.mark.parametrize("form", [JSON, MSGPACK_FORM], ids=lambda form: form.content_type)
@given(value=plain, kind=st.sampled_from([RAW, CODEC, MSGPACK]), data=st.binary())
def test_a_value_arrives_as_it_was_stored(form, value, kind, data):
    stored = encodable(value) if kind == MSGPACK else Stored(kind, data)
    if stored is None:
        return
    doc = {}
    form.put(doc, "payload", stored)
    assert form.take(form.loads(form.dumps(doc)), "payload") == stored
    assert form.take({}, "payload") is None


@pytest.mark.parametrize("form", [JSON, MSGPACK_FORM], ids=lambda form: form.content_type)
def test_ids_and_keys_arrive(form):
    doc = {"id": form.id(FACTS["task_id"]), "token": form.raw(b"\0\xff")}
    form.put_key(doc, "a", "text")
    form.put_key(doc, "b", b"\xff")
    doc = form.loads(form.dumps(doc))
    assert lodeq.TaskId(doc["id"]) == FACTS["task_id"]
    assert form.take_raw(doc, "token") == b"\0\xff"
    assert doc["a"] == "text"
    assert (doc.get("b") or form.take_raw(doc, "b_base64")) == b"\xff"


def test_json_says_plainly_what_it_can():
    doc = {}
    JSON.put(doc, "payload", encodable({"to": ["a", 1, 2.5, None, True]}))
    assert doc == {"payload": {"to": ["a", 1, 2.5, None, True]}}
    doc = {}
    JSON.put(doc, "payload", encodable({"at": datetime(2024, 1, 1, tzinfo=UTC)}))
    assert doc["payload_kind"] == "msgpack"


def test_json_passes_on_what_it_cannot_read():
    doc = {}
    JSON.put(doc, "payload", Stored(MSGPACK, b"\xc1"))
    assert doc == {"payload_base64": "wQ==", "payload_kind": "msgpack"}


@pytest.mark.anyio
@pytest.mark.parametrize("form", [JSON, MSGPACK_FORM])
async def test_statistics_arrive_also_those_of_an_earlier_server(form):
    async with lodeq.testing.open() as engine:
        stats = await engine.stats()
        doc = form.loads(form.dumps(plain_doc(stats)))
    assert stats_of(doc) == stats
    del doc["unreadable"]  # which an older server does not tell
    assert stats_of(doc) == stats


def test_tokens_stand_in_no_repr():
    token, secret = b"sixteen bytes !!", "a server's secret"
    granted = Granted(
        FACTS["task_id"],
        1,
        token,
        "mail",
        "",
        5,
        1,
        Policy(5, 0, 2.0, 1, 1, 1, 1),
        datetime.now(UTC),
        datetime.now(UTC),
        30.0,
        Stored(RAW, b""),
        None,
    )
    target = Target("http://localhost", secret, 1.0)
    for one in (
        granted,
        RemoteLease(None, granted, None),
        SyncRemoteLease(None, granted, None),
        LeaseProof(FACTS["task_id"], 1, token),
        Settings(token=secret),
        target,
        Transport(target),
    ):
        assert "sixteen" not in repr(one)
        assert "secret" not in repr(one)
