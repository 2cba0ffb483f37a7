"""The protocol as another language speaks it: JSON, every operation, as documented."""

import base64
import zlib

import anyio
import pytest
import schemathesis
from schemathesis import Response
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support_http import asgi_client

import lodeq
import lodeq.testing
from lodeq.client.documents.wire import MSGPACK_FORM
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.http.operations import OPERATIONS, openapi

pytestmark = pytest.mark.anyio
SCHEMA = schemathesis.openapi.from_dict(openapi(OPERATIONS, lodeq.__version__))
OPERATION = {
    one.ok().definition.raw["operationId"]: one.ok() for one in SCHEMA.get_all_operations()
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine():
    async with lodeq.testing.open() as engine:
        yield engine


@pytest.fixture
async def client(engine):
    async with asgi_client(make_app(engine)) as client:
        yield client


def b64(data):
    return base64.b64encode(data).decode()


class Speaker:
    """Calls operations by name, and holds each answer against the document."""

    def __init__(self, client):
        self._client = client
        self.called = set()

    async def __call__(self, operation, body=None, *, headers=None, status=200, **parameters):
        self.called.add(operation)
        spec = OPERATION[operation]
        path, query = spec.path, dict(parameters)
        for name in ("queue", "task_id", "snapshot_id"):
            if f"{{{name}}}" in path:
                path = path.replace(f"{{{name}}}", query.pop(name))
        options = {} if spec.method == "get" or spec.method == "delete" else {"json": body or {}}
        if isinstance(body, bytes):
            options = {"content": body}
            headers = {"content-type": "application/octet-stream"}
        answer = await self._client.request(
            spec.method, path, params=query, headers=headers, **options
        )
        assert answer.status_code == status, answer.text
        spec.validate_response(Response.from_httpx(answer, verify=False))
        return answer.json()


async def _functions(call):
    facts = {"queue": "jobs", "function": "send"}
    published = {"queue": "jobs", "name": "send"}
    assert await call("publish", {"functions": [published]}) == {"written": 1}
    (shown,) = (await call("functions"))["functions"]
    assert (shown["queue"], shown["name"]) == ("jobs", "send")
    await call("enqueue_function", facts, status=201)
    assert await call("forget_function", facts) == {"forgotten": True}
    await call("beat", {"report": {}}, status=422)  # of a worker that says nothing
    assert (await call("workers"))["workers"] == []


async def _workflows(call):
    callback = {"queue": "flow", "payload": 1}
    flow = await call("open_workflow", {"callback": callback})
    members = {"tasks": [{"queue": "flow", "payload": 2}]}
    (member,) = (await call("add_members", members, task_id=flow["id"]))["ids"]
    after = {"task": {"queue": "flow", "payload": 3}, "after": [member]}
    await call("enqueue_after", after)
    assert (await call("seal_workflow", task_id=flow["id"]))["was_open"]
    lease = (await call("claim", {"queues": ["flow"]}))["leases"][0]
    held = {name: lease[name] for name in ("task_id", "epoch", "token")}
    await call("progress", held | {"fraction": 0.5})
    assert (await call("workflow_info", task_id=flow["id"]))["id"] == flow["id"]
    graph = await call("workflow_graph", task_id=flow["id"])
    assert (graph["looked"], graph["groups"][0]["queue"]) == (1, "flow")
    (listed,) = (await call("workflows", limit=5))["workflows"]
    assert listed == graph["info"]
    (part,) = (await call("parts", task_id=flow["id"]))["parts"]
    assert member in part.values()
    await call("cancel_workflow", task_id=flow["id"])
    again = await call("redrive_workflow", task_id=flow["id"])
    assert again == {"redriven": 0}  # a workflow that was cancelled has nothing to run again


async def test_every_operation(engine, client):
    call = Speaker(client)
    receipt = await call(
        "enqueue",
        {"payload": {"to": "a"}, "headers": {"trace": "1"}, "priority": 7, "delay": 0, "ttl": 60},
        queue="mail",
        tenant="acme",
        status=201,
    )
    streamed = await call("enqueue_stream", b"bytes", queue="raw", priority=1, status=201)
    assert (await call("get", task_id=streamed["id"]))["payload_base64"] == b64(b"bytes")
    await call("cancel", task_id=streamed["id"])
    part = await call("payload", task_id=receipt["id"])
    assert part["payload_bytes"] == len(base64.b64decode(part["data"]))
    assert part["crc32"] == zlib.crc32(base64.b64decode(part["data"]))
    task = await call("get", task_id=receipt["id"])
    assert (task["state"], task["payload"], task["headers"]) == (
        "ready",
        {"to": "a"},
        {"trace": "1"},
    )
    many = await call(
        "enqueue_many",
        {
            "tasks": [{"payload_base64": b64(b"\0\xff")}, {"payload": 2, "queue": "other"}],
            "queue": "mail",
            "tenant": "acme",
            "atomic": True,
            "durable": True,
            "policy": {"max_attempts": 1, "backoff": {"kind": "fixed", "base": 1}},
        },
    )
    page = await call("list", queue="mail", tenant="acme", state="ready", limit=1)
    after = page["tasks"][0]["position"]
    (rest,) = (await call("list", queue="mail", tenant="acme", after=after))["tasks"]
    assert (rest["payload_base64"], rest["payload_kind"]) == (b64(b"\0\xff"), "bytes")
    await call("queue_stats", queue="mail", all_tenants="true")
    await call("pause", queue="mail", tenant="acme")
    everybody = {"queue": "mail", "all_tenants": True}
    assert (await call("claim", {"queues": [everybody]}))["leases"] == []
    await call("resume", queue="mail", tenant="acme")

    queues = [everybody, {"queue": "other", "tenant": "acme"}]
    claimed = await call(
        "claim", {"queues": queues, "limit": 9, "lease": 60, "wait": 5, "worker": "w"}
    )
    assert [one.get("payload") for one in claimed["leases"]] == [{"to": "a"}, None, 2]
    leases = [
        {name: lease[name] for name in ("task_id", "epoch", "token")} for lease in claimed["leases"]
    ]
    await call("heartbeat", leases[0] | {"seconds": 90})
    beats = await call("heartbeat_many", {"leases": leases, "seconds": 90})
    assert (beats["lost"], len(beats["deadlines"])) == ({}, 3)
    assert await call("result", task_id=receipt["id"], wait=0, status=202) == {}
    await call("complete", leases[0] | {"result": [1], "then": [{"payload": "next"}]})
    assert (await call("result", task_id=receipt["id"]))["value"] == [1]
    await call("release", leases[1] | {"delay": 60})
    await call("complete", leases[1], status=409)
    outcome = await call("complete_many", {"leases": [leases[0], leases[1]]})
    assert list(outcome["lost"]) == ["1"]
    await call("bury", leases[2] | {"reason": "poison"})
    (dead,) = (await call("claim", {"queues": queues[1:], "dead": True}))["leases"]
    assert (dead["reason"], dead["attempt"], dead["payload"]) == ("poison", 1, 2)
    assert dead["dead_at"] > dead["enqueued_at"]
    await call("claim", {"queues": queues, "dead": True}, status=422)
    await call("redrive_lease", {n: dead[n] for n in ("task_id", "epoch", "token")})
    (again,) = (await call("claim", {"queues": queues[1:]}))["leases"]
    await call("bury", {n: again[n] for n in ("task_id", "epoch", "token")})
    assert (await call("redrive", {}, queue="other", tenant="acme"))["redriven"] == 1
    (again,) = (await call("claim", {"queues": queues}))["leases"]
    held = {n: again[n] for n in ("task_id", "epoch", "token")}
    await call("nack", held | {"delay": 0})
    await call("cancel_lease", held, status=409)
    claim_id = {"claim_id": b64(bytes(range(16)))}
    assert len((await call("claim", {"queues": queues} | claim_id))["leases"]) == 1
    assert (await call("cancel_claim", claim_id))["released"] == 1
    (again,) = (await call("claim", {"queues": queues}))["leases"]
    await call("cancel_lease", {n: again[n] for n in ("task_id", "epoch", "token")})
    assert (await call("cancel", task_id=many["receipts"][0]["id"]))["cancelled"]
    await call("purge", {"state": "ready"}, queue="mail", tenant="acme")
    for name in ("engine", "stats", "health", "queues"):
        await call(name)
    for name in ("verify", "fsync", "migrate_bodies"):
        await call(name, {})
    await call("cancel_all", {}, queue="mail", tenant="acme")
    await _functions(call)
    await _workflows(call)
    found = await call("find", {"filter": {}})
    counted = await call("count", {})
    assert (counted["count"], counted["is_exact"]) == (len(found["tasks"]), True)
    open_ones = [one for one in found["tasks"] if one["state"] in ("ready", "delayed", "waiting")]
    assert (await call("act", {"act": "cancel"}))["done"] == len(open_ones) > 0
    exported = await client.request("POST", "/v1/tasks/export", json={"filter": {}})
    assert len(exported.text.splitlines()) == len(found["tasks"])
    call.called.add("export")  # its answer is a stream, not a document
    configured = await call("configure", {"concurrency": 3}, queue="mail")
    assert configured == await call("settings", queue="mail")
    await call("history", limit=5)
    assert (await call("cluster"))["led"] == list(range(engine.shards))
    assert not (await call("ready", {"queues": ["nothing here"]}, status=422)).get("ready")
    assert not (await call("ready", {"queues": ["nothing"]}))["ready"]
    (attempt,) = (await call("attempts", task_id=receipt["id"]))["attempts"]
    assert (attempt["number"], attempt["outcome"]) == (1, "completed")
    await call("checkpoint", {"path": "x"}, status=422)
    for name in ("snapshot", "snapshots", "ingest"):
        await call(name, status=422)  # in memory: tests/service/http/test_bulk.py has a folder
    await call("forget_loads", {"older_than": 3600}, status=422)
    await call("release_snapshot", snapshot_id="20261122T130000000Z", status=422)
    plan = {"store_id": engine._runtime.opened.store_id.hex(), "shards": engine.shards}
    parts = [{"shard": 0, "kind": "results", "rows": b64(bytes(24))}]
    purged = await call("purge_archived", plan | {"parts": parts})
    assert purged == {"results": 0, "dead": 0, "absent": 1}
    assert call.called == set(OPERATION)


async def test_the_document_is_served(client):
    answer = await client.get("/v1/openapi.json")
    assert answer.json() == openapi(OPERATIONS, lodeq.__version__)


@pytest.mark.parametrize("n", [1, 3])
async def test_a_request_sent_again_enqueues_nothing_again(engine, client, n):
    call = Speaker(client)
    key = {"Idempotency-Key": "welcome-42"}
    doc = {"queue": "mail", "tasks": [{"payload": i} for i in range(n)]}
    first = await call("enqueue_many", doc, headers=key)
    again = await call("enqueue_many", doc, headers=key)
    assert [one["id"] for one in again["receipts"]] == [one["id"] for one in first["receipts"]]
    assert [one["duplicate"] for one in again["receipts"]] == [True] * n
    for lease in await engine.queue("mail").claim(limit=9):
        await lease.complete()
    again = await call("enqueue_many", doc, headers=key)  # it is remembered for a day
    assert [one["duplicate"] for one in again["receipts"]] == [True] * n
    other = {"Idempotency-Key": "welcome-43"}
    one = await call("enqueue", {"payload": 1}, queue="mail", headers=other, status=201)
    same = await call("enqueue", {"payload": 1}, queue="mail", headers=other)
    assert same == {"id": one["id"], "duplicate": True, "replaced": None}
    # What it is about is not compared: docs/http.md says so.
    assert await call("enqueue", {"payload": 2}, queue="mail", headers=other) == same
    await call("enqueue", {"payload": 1, "dedup_key": "k"}, queue="mail", headers=key, status=422)


@pytest.mark.parametrize(
    ("accept", "content_type", "answered"),
    [
        ("application/json", "application/json", "application/json"),
        ("application/msgpack", "application/json", "application/msgpack"),
        ("application/json", "application/msgpack", "application/json"),
        ("text/html, application/x-msgpack;q=0.5", "application/json", "application/msgpack"),
        ("*/*", "application/msgpack", "application/msgpack"),
        ("*/*", "application/json; charset=utf-8", "application/json"),
        ("text/html", "application/json", "application/json"),
    ],
)
async def test_forms_are_negotiated(client, accept, content_type, answered):
    body = b'{"payload": 1}' if "json" in content_type else MSGPACK_FORM.dumps({"payload": 1})
    answer = await client.post(
        "/v1/queues/mail/tasks",
        content=body,
        headers={"accept": accept, "content-type": content_type},
    )
    assert (answer.status_code, answer.headers["content-type"]) == (201, answered)


async def test_msgpack_of_another_language(engine, client):
    """Plain types as they stand, without the ext types of ours."""
    headers = {"content-type": "application/msgpack", "accept": "application/json"}
    body = MSGPACK_FORM.dumps({"payload": {"a": [1, b"x"]}, "headers": {"h": 1}})
    await client.post("/v1/queues/mail/tasks", content=body, headers=headers)
    (task,) = await engine.queue("mail").peek()
    assert (task.payload, task.headers) == ({"a": [1, b"x"]}, {"h": 1})


async def test_routes_beside_it_stand_behind_the_same_guard(engine):
    async def page(request):
        return PlainTextResponse("page")

    settings = Settings(
        token="a token of some length",
        public_paths=frozenset({"/login"}),
        admits=lambda headers, path: headers.get(b"cookie") == b"session=1",
    )
    routes = [Route("/", page), Route("/metrics", page), Route("/login", page)]
    async with asgi_client(make_app(engine, settings, routes=routes)) as client:
        assert (await client.get("/login")).text == "page"
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"cookie": "session=1"})).text == "page"
        assert (await client.get("/v1/stats", headers={"cookie": "session=2"})).status_code == 401


async def test_problems_say_when_to_try_again():
    limits = lodeq.Limits(pending_max=1)
    async with (
        lodeq.testing.open(limits=limits) as engine,
        asgi_client(make_app(engine)) as client,
    ):
        answers = [
            await client.post("/v1/queues/mail/tasks", json={"payload": 1}) for _ in range(2)
        ]
    assert [answer.status_code for answer in answers] == [201, 429]
    assert answers[1].headers["retry-after"] == "1"


async def test_it_runs_on_trio_too():
    """The application does not care; only the server is asyncio's."""

    async def main():
        async with lodeq.testing.open() as engine, asgi_client(make_app(engine)) as client:
            return (await client.get("/v1/health")).json()

    assert await anyio.to_thread.run_sync(lambda: anyio.run(main, backend="trio")) == {
        "ok": True,
        "reasons": [],
    }
