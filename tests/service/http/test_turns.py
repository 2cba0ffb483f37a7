"""No request holds the loop for long, whatever it sends and whatever is stored: by CPU time."""

import base64
import json

import anyio
import anyio.lowlevel
import msgpack
import pytest
from support_dashboard import app_of, watch
from support_http import asgi_client
from support_turns import held_at_most

import lodeq
import lodeq.testing
from lodeq.client.documents.wire import JSON, MSGPACK_FORM
from lodeq.repository.model.codec import PackedBytes
from lodeq.service.dashboard.live import streams as live
from lodeq.service.dashboard.renderer import Pages

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.turns]
CALLBACK_MS = 50.0
JSON_TYPE = {"content-type": "application/json"}
MSGPACK_TYPE = {"content-type": "application/msgpack"}
ACCEPTS = ({"accept": "application/json"}, {"accept": "application/msgpack"})
EMPTY_LISTS = b"\xdd" + (1_000_000).to_bytes(4, "big") + b"\x90" * 1_000_000
PAYLOADS = [
    EMPTY_LISTS,
    b"\xdd" + (250_000).to_bytes(4, "big") + b"\x81\xa1a\x80" * 250_000,  # maps
    b"\xdd" + (340_000).to_bytes(4, "big") + b"\xd4\x05\x00" * 340_000,  # extension types
    b"\xdd" + (170_000).to_bytes(4, "big") + b"\xd6\xff\x00\x00\x00\x01" * 170_000,  # times
    b"\xdd" + (500_000).to_bytes(4, "big") + b"\xa1a" * 500_000,
    b"\xdb" + (1_000_000).to_bytes(4, "big") + b"\x00" * 1_000_000,  # six bytes of JSON each
    (b"\xdc\x4e\x1f" + b"\x01" * 19_998) * 50 + b"\x01",  # lists that end where the last one does
]
HEADERS = {"h": [[]] * 16_000}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine():
    limits = lodeq.Limits(payload_bytes_max=1 << 20, reason_bytes_max=32 << 10)
    async with lodeq.testing.open(limits=limits) as engine:
        mail = engine.queue("mail")
        for payload in PAYLOADS * 2:
            await mail.enqueue(PackedBytes(payload), headers=HEADERS)
        leases = await mail.claim(limit=4, lease=3600)
        for lease in leases[:2]:
            await lease.complete(PackedBytes(EMPTY_LISTS))
        await leases[2].bury("\x00" * 30_000)
        engine.ended = leases[0].task_id
        engine.buried = leases[2].task_id
        engine.leased = leases[3]
        yield engine


@pytest.fixture
async def client(engine):
    async with asgi_client(app_of(engine)) as client:
        yield client


async def ask(client, method, path, **options):
    with held_at_most(CALLBACK_MS):
        return await client.request(method, path, **options)


@pytest.mark.parametrize("accept", ACCEPTS, ids=lambda one: one["accept"])
@pytest.mark.parametrize("state", ["ready", "leased", "dead", "completed"])
async def test_lists(client, state, accept):
    answer = await ask(client, "GET", f"/v1/queues/mail/tasks?state={state}", headers=accept)
    assert answer.status_code == 200


@pytest.mark.parametrize("accept", ACCEPTS, ids=lambda one: one["accept"])
async def test_one_task_and_its_result(engine, client, accept):
    for task_id in (engine.leased.task_id, engine.buried, engine.ended):
        answer = await ask(client, "GET", f"/v1/tasks/{task_id}", headers=accept)
        assert answer.status_code == 200
    answer = await ask(client, "GET", f"/v1/tasks/{engine.ended}/result", headers=accept)
    assert answer.status_code == 200


@pytest.mark.parametrize("accept", ACCEPTS, ids=lambda one: one["accept"])
async def test_claims(client, accept):
    doc = {"queues": ["mail"], "limit": 100, "wait": 1}
    answer = await ask(client, "POST", "/v1/leases/claim", json=doc, headers=accept)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/queues/mail",
        "/queues/mail?state=dead",
        "/queues/mail?state=leased",
        "{buried}",
        "{ended}",
        "{leased}",
        "/v1/queues",
        "/v1/stats",
    ],
)
async def test_pages(engine, client, path):
    named = {"buried": engine.buried, "ended": engine.ended, "leased": engine.leased.task_id}
    path = path.replace("{", "/tasks/{").format(**named)
    await client.get(path)  # templates are compiled once
    answer = await ask(client, "GET", path)
    assert answer.status_code in (200, 404 if path == "/metrics" else 200)


LIVE = [
    "/live/",
    "/live/queues/mail",
    "/live/queues/mail?state=dead",
    "/live/queues/mail?state=leased",
    "/live/tasks/{buried}",
    "/live/tasks/{ended}",
    "/live/tasks/{leased}",
]


@pytest.mark.parametrize("path", LIVE)
@pytest.mark.parametrize("n_streams", [1, live.STREAMS_MAX])
async def test_live_pages(engine, monkeypatch, path, n_streams):
    """Each of them at once, and then again and again."""
    monkeypatch.setattr(live, "STEP_S", 0)
    monkeypatch.setattr(live, "SHARE", 0)
    for _ in range(26):  # a page full of the longest reasons
        await engine.queue("mail").enqueue(PackedBytes(EMPTY_LISTS), headers=HEADERS)
        for lease in await engine.queue("mail").claim(limit=1, lease=3600):
            await lease.bury("\x00" * 32_000)
    named = {"buried": engine.buried, "ended": engine.ended, "leased": engine.leased.task_id}
    app, path = app_of(engine), path.format(**named)
    renders, plain = [], Pages.render

    def render(pages, template, context):
        renders.append(template)
        return plain(pages, template, context)

    monkeypatch.setattr(Pages, "render", render)

    async def follow(times):
        seen = [[] for _ in range(n_streams)]
        renders.clear()
        async with anyio.create_task_group() as group:
            for events in seen:
                group.start_soon(watch, app, path, events)
            with anyio.fail_after(60):
                while not all(seen) or len(renders) < times:
                    await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    await follow(1)  # templates are compiled once
    with held_at_most(CALLBACK_MS):
        await follow(5)


def tasks_of(payload):
    return b'{"queue":"mail","tasks":[{"payload":' + payload + b"}]}"


JSON_LISTS = b"[" + b",".join([b"[]"] * 350_000) + b"]"
BODIES = {
    "lists": (JSON_LISTS, 413),
    "many lists": (b"[" + b",".join([b"[]"] * 2_700_000) + b"]", 413),
    "just too few": (b"[" + b",".join([b"[]"] * 49_000) + b"]", 200),
    "maps": (b"[" + b",".join([b'{"":0}'] * 300_000) + b"]", 413),
    "commas in a string": (b'"' + b'[{,:\\"' * 160_000 + b'"', 200),
    "quotes": (b'"' + b'\\"' * 500_000 + b'"', 200),
    "backslashes": (b'"' + b"\\\\" * 500_000 + b'"', 200),
    "strings": (b"[" + b",".join([b'""'] * 340_000) + b"]", 413),
    "digits": (b"[" + b",".join([b"9" * 4300] * 1900) + b"]", 422),
    "fractions": (b"[" + b",".join([b"0." + b"9" * 700] * 1400) + b"]", 200),
}


@pytest.mark.parametrize("name", BODIES)
async def test_bodies_of_json(client, name):
    payload, status = BODIES[name]
    answer = await ask(client, "POST", "/v1/tasks", content=tasks_of(payload), headers=JSON_TYPE)
    assert answer.status_code == status, answer.text[:200]
    if status == 413:
        assert answer.json()["type"] == "urn:lodeq:problem:payload-too-large"
    many = b'{"queue":"mail","tasks":' + payload + b"}"
    answer = await ask(client, "POST", "/v1/tasks", content=many, headers=JSON_TYPE)
    assert answer.status_code in (413, 422)
    answer = await ask(
        client,
        "POST",
        "/v1/queues/mail/tasks",
        content=b'{"payload":' + payload + b"}",
        headers=JSON_TYPE,
    )
    assert answer.status_code == (201 if status == 200 else status)


async def test_a_body_that_is_not_in_utf_8(client):
    # In UTF-16 the quotes stand where UTF-8 would see them inside of other characters.
    text = '{"payload":["∢",' + ",".join(["[]"] * 300_000) + ',"∢"]}'
    answer = await ask(
        client,
        "POST",
        "/v1/queues/mail/tasks",
        content=text.encode("utf-16-le"),
        headers=JSON_TYPE,
    )
    assert answer.status_code == 413


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
async def test_values_that_only_pass_through(client, payload):
    one = msgpack.packb({"payload": msgpack.ExtType(1, payload)})
    answer = await ask(client, "POST", "/v1/queues/mail/tasks", content=one, headers=MSGPACK_TYPE)
    assert answer.status_code == 201, answer.text
    coded = {"payload_base64": base64.b64encode(payload).decode(), "payload_kind": "msgpack"}
    answer = await ask(client, "POST", "/v1/tasks", json={"queue": "mail", "tasks": [coded]})
    assert answer.status_code == 200, answer.text
    # As it stands it would become objects.
    bare = b"\x81\xa7payload" + payload
    answer = await ask(client, "POST", "/v1/queues/mail/tasks", content=bare, headers=MSGPACK_TYPE)
    assert answer.status_code == (201 if payload[:1] == b"\xdb" else 413)


async def test_results_headers_and_reasons(engine, client):
    lease = engine.leased
    held = {
        "task_id": str(lease.task_id),
        "epoch": lease.epoch,
        "token": base64.b64encode(lease.token).decode(),
    }
    answer = await ask(
        client, "POST", "/v1/leases/nack", json={**held, "epoch": 0, "reason": "\x00" * 1_000_000}
    )
    assert answer.status_code == 409
    hostile = json.dumps(held).encode()[:-1] + b',"result":' + JSON_LISTS + b"}"
    answer = await ask(client, "POST", "/v1/leases/complete", content=hostile, headers=JSON_TYPE)
    assert answer.status_code == 413
    coded = {
        "result_base64": base64.b64encode(EMPTY_LISTS).decode(),
        "result_kind": "msgpack",
    }
    for path, doc in (
        ("complete_many", {"leases": [{**held, "epoch": 0, **coded}]}),
        ("heartbeat_many", {"leases": [{**held, "epoch": 0}] * 4096}),
        ("complete", {**held, **coded}),
    ):
        answer = await ask(client, "POST", f"/v1/leases/{path}", json=doc)
        assert answer.status_code == 200, answer.text
    task = {"payload": 1, "headers": {"h": [[]] * 45_000}}
    answer = await ask(client, "POST", "/v1/tasks", json={"queue": "mail", "tasks": [task]})
    assert answer.status_code == 413


async def test_long_lists_of_small_things(engine, client):
    ids = [bytes(16)] * 4096
    store_id = engine._runtime.opened.store_id.hex()
    part = {"shard": 0, "kind": "dead", "rows": bytes(7_999_992)}
    for path, doc, status in (
        ("queues/mail/redrive", {"ids": ids}, 404),
        ("purge_archived", {"store_id": store_id, "shards": 1, "parts": [part]}, 200),
        (
            "leases/claim",
            {
                "queues": [{"queue": "mail", "all_tenants": True}],
                "skip_tenants": [f"t{n}" for n in range(65_536)],
            },
            200,
        ),
        (
            "leases/complete_many",
            {"leases": [{"task_id": bytes(16), "epoch": 1, "token": b""}] * 4096},
            200,
        ),
    ):
        content = MSGPACK_FORM.dumps(doc)
        answer = await ask(client, "POST", f"/v1/{path}", content=content, headers=MSGPACK_TYPE)
        assert answer.status_code == status, answer.content[:200]


async def test_many_in_one_request(client):
    tasks = [{"payload": {"n": n, "to": ["a", "b"]}, "priority": n % 10} for n in range(4096)]
    for headers in (JSON_TYPE, MSGPACK_TYPE):
        form = JSON if headers is JSON_TYPE else MSGPACK_FORM
        content = form.dumps({"queue": "many", "tasks": tasks})
        answer = await ask(client, "POST", "/v1/tasks", content=content, headers=headers)
        assert answer.status_code == 200
    for accept in ACCEPTS:
        answer = await ask(client, "GET", "/v1/queues/many/tasks?limit=4096", headers=accept)
        assert answer.status_code == 200
    doc = {"queues": ["many"], "limit": 4096}
    answer = await ask(client, "POST", "/v1/leases/claim", json=doc)
    assert len(answer.json()["leases"]) == 4096
