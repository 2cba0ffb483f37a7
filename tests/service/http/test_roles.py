"""Roles: every pair of a role and an operation, over HTTP and over the link."""

from base64 import b64encode

import msgpack
import pytest
from support_http import asgi_client, linking, serving, socket_path
from support_roles import entry, token_of, write_tokens
from support_wire import pack, wired

import lodeq
import lodeq.testing
from lodeq.service.http.access.roles import ROLES
from lodeq.service.http.access.tokens_file import TokensFile
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.http.link import operations as linked
from lodeq.service.http.link import requests
from lodeq.service.http.link.limits import NEEDS
from lodeq.service.http.operations import OPERATIONS

pytestmark = pytest.mark.anyio

# What each role may, written down a second time: by operation, who may beside an admin.
ANYBODY = {"producer", "worker", "reader"}
MAY = {
    "enqueue": {"producer"},
    "enqueue_many": {"producer"},
    "enqueue_stream": {"producer"},
    "enqueue_after": {"producer"},
    "enqueue_function": {"producer"},
    "open_workflow": {"producer"},
    "add_members": {"producer"},
    "seal_workflow": {"producer"},
    "claim": {"worker"},
    "ready": {"worker"},
    "cancel_claim": {"worker"},
    "heartbeat": {"worker"},
    "heartbeat_many": {"worker"},
    "progress": {"worker"},
    "complete": {"worker"},
    "complete_many": {"worker"},
    "nack": {"worker"},
    "release": {"worker"},
    "bury": {"worker"},
    "cancel_lease": {"worker"},
    "redrive_lease": {"worker"},
    "publish": {"worker"},
    "beat": {"worker"},
    "get": {"producer", "reader"},
    "result": {"producer", "reader"},
    "attempts": {"producer", "reader"},
    "payload": {"producer", "worker", "reader"},
    "workflow_info": {"producer", "reader"},
    "settings": {"worker", "reader"},
    "functions": ANYBODY,
    "parts": ANYBODY,
    "engine": ANYBODY,
    "cluster": ANYBODY,
    "find": {"reader"},
    "count": {"reader"},
    "export": {"reader"},
    "history": {"reader"},
    "list": {"reader"},
    "queue_stats": {"reader"},
    "queues": {"reader"},
    "stats": {"reader"},
    "health": {"reader"},
    "workers": {"reader"},
    "workflows": {"reader"},
    "workflow_graph": {"reader"},
    "snapshots": {"reader"},
    "act": set(),
    "cancel": set(),
    "cancel_all": set(),
    "cancel_workflow": set(),
    "checkpoint": set(),
    "configure": set(),
    "forget_function": set(),
    "forget_loads": set(),
    "fsync": set(),
    "ingest": set(),
    "migrate_bodies": set(),
    "pause": set(),
    "purge": set(),
    "purge_archived": set(),
    "redrive": set(),
    "redrive_workflow": set(),
    "release_snapshot": set(),
    "resume": set(),
    "snapshot": set(),
    "verify": set(),
}
LINK_MAY = {
    requests.Queue: ANYBODY,
    requests.Enqueue: {"producer"},
    requests.EnqueueMany: {"producer"},
    requests.Claim: {"worker"},
    requests.Complete: {"worker"},
    requests.CompleteMany: {"worker"},
    requests.End: {"worker"},
    requests.Heartbeat: {"worker"},
    requests.Call: ANYBODY,
    requests.Cancel: ANYBODY,
    requests.EnqueueWith: {"producer"},
    requests.EnqueueManyWith: {"producer"},
}
PARTS = {"queue": "mail", "task_id": "0" * 32, "snapshot_id": "20260101T000000000Z"}
ID, LEASE = bytes(16), [bytes(16), 1, bytes(16)]
LINK_REQUESTS = [
    (requests.Enqueue, [1, 1, 0, 0, b"x"]),
    (requests.EnqueueMany, [2, 1, 0, 0, [b"x"]]),
    (requests.Claim, [3, 1, 0, 1, None, 0.0, "w"]),
    (requests.Complete, [4, 1, *LEASE, None, None, True]),
    (requests.CompleteMany, [5, 1, [[*LEASE, None, None]]]),
    (requests.End, [6, 1, *LEASE, "nack", None, ""]),
    (requests.Heartbeat, [7, 1, [LEASE], None]),
    (requests.Call, [8, 1, "GET", "/engine", {}, None, None]),
    (requests.EnqueueWith, [10, 1, 0, 0, b"x", b"\x80"]),
    (requests.EnqueueManyWith, [11, 1, 0, [[0, b"x", b"\x80"]]]),
]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine():
    async with lodeq.testing.open() as engine:
        yield engine


@pytest.fixture
def settings(tmp_path):
    tokens = write_tokens(tmp_path / "tokens.toml", *(entry(role, role) for role in ROLES))
    return Settings(tokens=TokensFile(tokens))


def path_of(operation):
    return operation.path.format(**PARTS)


def may(role, allowed):
    return role == "admin" or role in allowed


def test_every_operation_declares_who_may():
    assert {one.name for one in OPERATIONS} == MAY.keys()
    for one in OPERATIONS:
        roles = {role for role, bit in ROLES.items() if one.needs & bit}
        assert roles - {"admin"} == MAY[one.name], one.name
    assert linked.HANDLERS.keys() == NEEDS.keys() == LINK_MAY.keys()
    for kind, needs in NEEDS.items():
        assert {role for role, bit in ROLES.items() if needs & bit} - {"admin"} == LINK_MAY[kind]


def check_answer(role, allowed, status, problem):
    """A role that may is not refused for its rights, whatever else is wrong with the request."""
    if may(role, allowed):
        assert status not in (401, 403)
        return
    assert (status, problem["type"]) == (403, "urn:lodeq:problem:access-denied")
    assert set(problem["scope"].split(" or ")) == (allowed or {"admin"})
    assert repr(role) in problem["detail"]


@pytest.mark.parametrize("role", ROLES)
async def test_every_pair_over_http(engine, settings, subtests, role):
    headers = {"authorization": f"Bearer {token_of(role)}"}
    async with asgi_client(make_app(engine, settings), **headers) as client:
        for one in OPERATIONS:
            with subtests.test(one.name):
                body = None if one.method == "GET" or one.takes is None else {}
                answer = await client.request(one.method, f"/v1{path_of(one)}", json=body)
                problem = answer.json() if answer.status_code >= 400 else None
                check_answer(role, MAY[one.name], answer.status_code, problem)


@pytest.mark.parametrize("role", ROLES)
async def test_every_pair_over_a_links_calls(engine, settings, role):
    with socket_path() as path:
        async with linking(engine, path, settings), wired(path, token=token_of(role)) as wire:
            for id, one in enumerate(OPERATIONS, 1):
                doc = None if one.method == "GET" or one.takes is None else pack({})
                wire.send([8, id, one.method, path_of(one), {}, doc, 10.0])
                status, answer = await wire.answer(id)
                status = answer["status"] if status == 2 else 200
                check_answer(role, MAY[one.name], status, answer)


@pytest.mark.parametrize("role", ROLES)
async def test_every_pair_over_the_link(engine, settings, subtests, role):
    with socket_path() as path:
        async with linking(engine, path, settings):
            for kind, request in LINK_REQUESTS:
                with subtests.test(kind.__name__):
                    async with wired(path, token=token_of(role)) as wire:
                        wire.send([0, 0, pack({"queue": "mail"})], request)
                        status, answer = await wire.answer(1)
                        status = answer["status"] if status == 2 else 200
                        check_answer(role, LINK_MAY[kind], status, answer)
                        wire.send([9, 2], [8, 3, "GET", "/engine", {}, None, None])  # anybody may
                        assert (await wire.answer(3))[0] == 0


async def test_the_requests_of_the_test_are_all(settings):
    assert {kind for kind, _ in LINK_REQUESTS} | {requests.Queue, requests.Cancel} == NEEDS.keys()


async def test_what_is_refused_is_typed_in_the_client(engine, settings):
    with socket_path() as path:
        async with serving(engine, path=path, settings=settings) as url:
            async with lodeq.connect(url, token=token_of("producer")) as client:
                receipt = await client.queue("mail").enqueue(b"x")
                assert (await client.get(receipt.id)).state == "ready"
                with pytest.raises(lodeq.AccessDeniedError, match="scope worker") as raised:
                    await client.queue("mail").claim()
                assert raised.value.scope == "worker"
                with pytest.raises(lodeq.AccessDeniedError, match="scope admin"):
                    await client.queue("mail").purge()
            with pytest.raises(lodeq.AccessDeniedError) as raised:
                async with lodeq.connect(url, token="of nobody whatsoever"):
                    pass
            assert raised.value.scope == ""


async def test_the_one_token_goes_on_doing_everything(engine, settings):
    both = Settings(token=token_of("one"), tokens=settings.tokens)
    for name, status in (("one", 200), ("admin", 200), ("reader", 403), ("nobody", 401)):
        headers = {"authorization": f"Bearer {token_of(name)}"}
        async with asgi_client(make_app(engine, both), **headers) as client:
            assert (await client.post("/v1/fsync", json={})).status_code == status


async def test_what_lies_beside_the_interface_is_for_the_one_token(engine, settings):
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def answer(request):
        return PlainTextResponse("here")

    paths = "/metrics", "/pages", "/v1/mine", "/v1/fsync"  # the last one is ours for a POST alone
    routes = [Route(path, answer) for path in paths]
    both = Settings(token=token_of("one"), tokens=settings.tokens)
    app = make_app(engine, both, routes=routes)
    found = {}
    for name in ("one", *ROLES):
        headers = {"authorization": f"Bearer {token_of(name)}"}
        async with asgi_client(app, **headers) as client:
            found[name] = [(await client.get(path)).status_code for path in paths]
    assert found == {
        "one": [200, 200, 200, 200],
        "admin": [200, 403, 403, 403],
        "reader": [200, 403, 403, 403],
        "worker": [403, 403, 403, 403],
        "producer": [403, 403, 403, 403],
    }


async def test_a_mounted_interface_knows_its_own_paths(engine, settings):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = Starlette(routes=[Mount("/queue", make_app(engine, settings))])
    async with asgi_client(app, authorization=f"Bearer {token_of('reader')}") as client:
        found = [
            (await client.get(f"/queue{path}")).status_code
            for path in ("/v1/stats", "/v1/queues/mail/stats", "/v1/none", "/none")
        ]
    assert found == [200, 200, 403, 403]


async def test_follow_ups_need_a_producer(engine, tmp_path):
    path = write_tokens(
        tmp_path / "t", entry("worker", "worker"), entry("both", "worker", "producer")
    )
    app = make_app(engine, Settings(tokens=TokensFile(path)))
    mail = engine.queue("mail")
    for name, status in (("worker", 403), ("both", 200)):
        await mail.enqueue(b"x")
        (lease,) = await mail.claim(exported=True)
        doc = {"task_id": str(lease.task_id), "epoch": lease.epoch, "then": [{"payload": 1}]}
        doc["token"] = b64encode(lease.token).decode()
        async with asgi_client(app, authorization=f"Bearer {token_of(name)}") as client:
            answer = await client.post("/v1/leases/complete", json=doc)
            assert answer.status_code == status
            del doc["then"]
            answer = await client.post("/v1/leases/complete", json=doc)
            assert answer.status_code == 200
    assert (await mail.stats()).ready == 1


def test_the_openapi_document_says_who_may():
    from lodeq.service.http.operations import openapi

    document = openapi(OPERATIONS, "0")
    assert document["paths"]["/v1/leases/claim"]["post"]["x-lodeq-scopes"] == "worker"
    assert document["paths"]["/v1/tasks/{task_id}"]["get"]["x-lodeq-scopes"] == "producer or reader"
    assert document["paths"]["/v1/fsync"]["post"]["x-lodeq-scopes"] == "admin"
    assert document["paths"]["/v1/engine"]["get"]["x-lodeq-scopes"] == "any"


def test_packed_requests_are_what_the_link_reads():
    for kind, request_ in LINK_REQUESTS:
        assert type(requests.read_frame(msgpack.packb([request_]))[0]) is kind
