"""Tokens for some queues and tenants: whatever names another queue is refused, by name or by id."""

from base64 import b64encode

import pytest
from support_http import asgi_client, linking, serving, socket_path
from support_roles import entry, token_of, write_tokens
from support_wire import NONCE, pack, wired

import lodeq
import lodeq.testing
from lodeq.repository.model.calls.functions import PublishedFunction
from lodeq.service.http.access.roles import FULL, Access, Grant, NamedQueue, Role
from lodeq.service.http.access.tokens_file import TokensFile
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.http.named_queues import WHOLE
from lodeq.service.http.operations import OPERATIONS

pytestmark = pytest.mark.anyio
TASK = {"payload": 1}
OPERATION = {one.name: one for one in OPERATIONS}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine():
    async with lodeq.testing.open() as engine:
        yield engine


@pytest.fixture
def settings(tmp_path):
    path = write_tokens(
        tmp_path / "tokens.toml",
        entry("mailer", "admin", queues=["mail", "mail-*"]),
        entry("worker", "worker", queues=["mail"]),
        entry("producer", "producer", queues=["mail"]),
        entry("acme", "admin", queues=["mail"], tenants=["acme"]),
        entry("root", "admin"),
    )
    return Settings(tokens=TokensFile(path))


def client_of(engine, settings, name):
    return asgi_client(make_app(engine, settings), authorization=f"Bearer {token_of(name)}")


# By operation that names a queue: path, query and document for this queue and tenant.
def by_name(queue, tenant):
    own = {} if tenant == "" else {"tenant": tenant}
    named = {"queue": queue, **own}
    both = {"queue": queue, "tenant": tenant}
    return {
        "enqueue": (f"/queues/{queue}/tasks", own, TASK),
        "enqueue_stream": (f"/queues/{queue}/tasks/stream", own, {}),
        "list": (f"/queues/{queue}/tasks", own, None),
        "queue_stats": (f"/queues/{queue}/stats", own, None),
        "redrive": (f"/queues/{queue}/redrive", own, {}),
        "cancel_all": (f"/queues/{queue}/cancel_all", own, {}),
        "purge": (f"/queues/{queue}/purge", own, {}),
        "pause": (f"/queues/{queue}/pause", own, {}),
        "resume": (f"/queues/{queue}/resume", own, {}),
        "settings": (f"/queues/{queue}/settings", {}, None),
        "configure": (f"/queues/{queue}/settings", {}, {}),
        "enqueue_many": ("/tasks", {}, {"tasks": [TASK], **named}),
        "claim": ("/leases/claim", {}, {"queues": [named]}),
        "ready": ("/leases/ready", {}, {"queues": [named]}),
        "find": ("/tasks/find", {}, {"filter": both}),
        "count": ("/tasks/count", {}, {"filter": both}),
        "export": ("/tasks/export", {}, {"filter": both}),
        "act": ("/tasks/act", {}, {"act": "delete", "filter": both}),
        "history": ("/history", both, None),
        "functions": ("/functions", {"queue": queue}, None),
        "publish": ("/functions/publish", {}, {"functions": [{"queue": queue, "function": "f"}]}),
        "forget_function": ("/functions/forget", {}, {"queue": queue, "function": "f"}),
        "enqueue_function": ("/functions/enqueue", {}, {"function": "f", **named}),
        "beat": ("/workers/beat", {}, {"report": {"name": "w", "queues": [queue]}}),
    }


BY_ID = {"get", "result", "attempts", "cancel", "enqueue_after", "payload"}
BY_LEASE = {
    "heartbeat",
    "heartbeat_many",
    "progress",
    "complete",
    "complete_many",
    "nack",
    "release",
    "bury",
    "cancel_lease",
    "redrive_lease",
}
FREE = {"engine", "cluster", "cancel_claim", "queues"}  # that of ``queues`` is filtered
PATHS = {
    "enqueue_after": "/tasks/after",
    "cancel_lease": "/leases/cancel",
    "redrive_lease": "/leases/redrive",
    "heartbeat": "/leases/heartbeat",
}


def test_every_operation_is_tried():
    whole = {one.name for one in OPERATIONS if one.names is WHOLE}
    assert whole | by_name("q", "").keys() | BY_ID | BY_LEASE | FREE == OPERATION.keys()


async def call(client, name, path, query=None, document=None):
    return await client.request(
        OPERATION[name].method, f"/v1{path}", params=query or {}, json=document
    )


async def test_a_queue_by_its_name(engine, settings, subtests):
    async with client_of(engine, settings, "mailer") as client:
        for name in by_name("q", ""):
            with subtests.test(name):
                for queue, tenant in (("mail", ""), ("mail-2", ""), ("mail", "acme")):
                    answer = await call(client, name, *by_name(queue, tenant)[name])
                    assert answer.status_code not in (401, 403), answer.text
                for queue in ("other", "mailx", "xmail"):
                    answer = await call(client, name, *by_name(queue, "")[name])
                    assert answer.status_code == 403, answer.text
                    assert answer.json()["scope"].endswith(f":{queue}")


async def test_a_tenant_by_its_name(engine, settings, subtests):
    async with client_of(engine, settings, "acme") as client:
        for name in by_name("q", ""):
            is_of_all = name in ("configure", "forget_function")
            is_of_any = name in ("settings", "functions", "publish", "beat")
            with subtests.test(name):
                answer = await call(client, name, *by_name("mail", "acme")[name])
                assert (answer.status_code == 403) == is_of_all, answer.text
                for tenant in ("", "acme-2"):
                    answer = await call(client, name, *by_name("mail", tenant)[name])
                    assert (answer.status_code == 403) != is_of_any, answer.text


async def test_the_whole_store_is_not_for_a_token_with_limits(engine, settings, subtests):
    documents = {
        "forget_loads": {"older_than": 1e6},
        "purge_archived": {"store_id": "0" * 32, "shards": 1, "parts": []},
        "checkpoint": {"path": "x"},
        "add_members": {"tasks": []},
    }
    async with client_of(engine, settings, "mailer") as client:
        for one in OPERATIONS:
            if one.names is not WHOLE:
                continue
            path = one.path.format(task_id="0" * 32, snapshot_id="20260101T000000000Z")
            takes_none = one.method == "GET" or one.takes is None
            document = None if takes_none else documents.get(one.name, {})
            with subtests.test(one.name):
                answer = await call(client, one.name, path, None, document)
                assert answer.status_code == 403
                assert "for all queues and tenants" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("find", {}, {}),
        ("count", {}, {"filter": {"queue": None}}),
        ("export", {}, {"filter": {"ids": ["0" * 32]}}),
        ("act", {}, {"act": "delete"}),
        ("history", {}, None),
    ],
)
async def test_what_could_be_of_all_queues_has_to_name_one(engine, settings, name, query, document):
    async with client_of(engine, settings, "mailer") as client:
        answer = await call(client, name, OPERATION[name].path, query, document)
        assert answer.status_code == 422
        assert "name one in" in answer.json()["detail"]


@pytest.mark.parametrize(
    "filter_", [{"queue": ["mail"]}, {"queue": "mail", "tenant": 7}, {"queue": "m*"}]
)
async def test_a_filter_that_is_none_finds_nothing(engine, settings, filter_):
    async with client_of(engine, settings, "mailer") as client:
        answer = await call(client, "find", "/tasks/find", {}, {"filter": filter_})
    assert answer.status_code in (403, 422)


async def test_lists_leave_out_what_is_not_the_tokens(engine, settings):
    for queue, tenant in (
        ("aother", ""),
        ("mail", ""),
        ("mail", "acme"),
        ("mail-2", ""),
        ("other", ""),
    ):
        await engine.queue(queue, tenant=tenant).enqueue(b"x")
    await engine.publish_functions(
        [PublishedFunction(queue, "f") for queue in ("aother", "mail", "mail-2", "other")]
    )
    found = {}
    for name in ("mailer", "acme", "root"):
        async with client_of(engine, settings, name) as client:
            queues, functions = [], []
            after = None
            while after != "":
                query = {"limit": 1} | ({} if after is None else {"after": after})
                page = (await client.get("/v1/queues", params=query)).json()
                queues += [(one["queue"], one["tenant"]) for one in page["queues"]]
                after = page["next"] or ""
                assert name == "root" or "other" not in after
            after = None
            while after != "":
                query = {"limit": 1} | ({} if after is None else {"after": after})
                page = (await client.get("/v1/functions", params=query)).json()
                functions += [one["queue"] for one in page["functions"]]
                after = page["next"] or ""
                assert name == "root" or "other" not in after
            found[name] = len(queues), functions
    assert found == {
        "mailer": (3, ["mail", "mail-2"]),
        "acme": (1, ["mail"]),
        "root": (5, ["aother", "mail", "mail-2", "other"]),
    }


async def test_no_error_names_queues_of_others(engine, settings):
    await engine.publish_functions([PublishedFunction("other", "f")])
    document = {"queue": "mail", "function": "g"}
    for name, is_named in (("root", True), ("producer", False)):
        async with client_of(engine, settings, name) as client:
            answer = await client.post("/v1/functions/enqueue", json=document)
            assert answer.status_code == 422
            assert ("other" in answer.json()["detail"]) == is_named


async def test_all_tenants_need_a_token_for_all(engine, settings):
    claim = {"queues": [{"queue": "mail", "all_tenants": True}]}
    found = {}
    for name in ("mailer", "acme"):
        async with client_of(engine, settings, name) as client:
            found[name] = [
                (await call(client, "queue_stats", "/queues/mail/stats", query)).status_code
                for query in ({"all_tenants": "true"},)
            ] + [(await call(client, "claim", "/leases/claim", {}, claim)).status_code]
    assert found == {"mailer": [200, 200], "acme": [403, 403]}


async def test_one_foreign_queue_among_several_refuses_the_whole(engine, settings):
    tasks = [{"payload": 1}, {"payload": 2, "queue": "other"}]
    async with client_of(engine, settings, "mailer") as client:
        answer = await call(client, "enqueue_many", "/tasks", {}, {"tasks": tasks, "queue": "mail"})
        assert answer.status_code == 403
        answer = await call(client, "claim", "/leases/claim", {}, {"queues": ["mail", "other"]})
        assert answer.status_code == 403
    async with client_of(engine, settings, "acme") as client:  # a task says its own tenant
        task = {"payload": 1, "tenant": ""}
        document = {"tasks": [task], "queue": "mail", "tenant": "acme"}
        assert (await call(client, "enqueue_many", "/tasks", {}, document)).status_code == 403
    assert (await engine.queue("mail").stats()).ready == 0


# -- by id -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(BY_ID))
async def test_a_task_of_another_queue_is_as_one_that_is_not_there(engine, settings, name):
    mine = (await engine.queue("mail").enqueue(b"x")).id
    foreign = (await engine.queue("other").enqueue(b"x")).id
    async with client_of(engine, settings, "mailer") as client:
        found = []
        for id in (mine, foreign, lodeq.engine.runtime.task_id.TaskId(bytes(16))):
            if name == "enqueue_after":
                document = {"task": {"payload": 1, "queue": "mail"}, "after": [str(id)]}
                answer = await call(client, name, "/tasks/after", {}, document)
            else:
                path = OPERATION[name].path.format(task_id=id)
                answer = await call(client, name, path)
            found.append(answer)
        assert found[0].status_code in (200, 202), found[0].text
        assert [one.status_code for one in found[1:]] == [404, 404]
        texts = [one.json()["detail"].replace(str(foreign), "ID") for one in found[1:]]
        assert texts[0] == texts[1].replace("00000000-0000-0000-0000-000000000000", "ID")
    assert (await engine.get(foreign)).state == "ready"


async def test_what_ended_is_seen_by_its_id_too(engine, settings):
    ids = {}
    for queue in ("mail", "other"):
        ids[queue] = (await engine.queue(queue).enqueue(b"x")).id
        async with await engine.queue(queue).claim_one() as lease:
            await lease.complete({"ok": queue})
    async with client_of(engine, settings, "producer") as client:
        found = {
            queue: (await client.get(f"/v1/tasks/{id}/result")).status_code
            for queue, id in ids.items()
        }
    assert found == {"mail": 200, "other": 404}


async def test_a_new_task_waits_for_tasks_of_its_queues_only(engine, settings):
    foreign = (await engine.queue("other").enqueue(b"x")).id
    task = {"payload": 1, "after": [str(foreign)]}
    async with client_of(engine, settings, "producer") as client:
        for path, document in (("/queues/mail/tasks", task), ("/tasks", {"tasks": [task]})):
            if "tasks" in document:
                document["queue"] = "mail"
            answer = await client.post(f"/v1{path}", json=document)
            assert answer.status_code == 404
    assert (await engine.queue("mail").stats()).ready == 0


# -- by lease --------------------------------------------------------------------------------


async def leased(engine, queue, *, dead=False, **options):
    await engine.queue(queue, **options).enqueue(b"x")
    (lease,) = await engine.queue(queue, **options).claim(exported=True)
    if dead:
        await lease.bury()
        (lease,) = await engine.queue(queue, **options).claim(exported=True, dead=True)
    return lease


def proof_doc(lease):
    return {
        "task_id": str(lease.task_id),
        "epoch": lease.epoch,
        "token": b64encode(lease.token).decode(),
    }


@pytest.mark.parametrize("name", sorted(BY_LEASE))
async def test_no_lease_of_another_queue_is_touched(engine, settings, name):
    is_dead = name == "redrive_lease"  # what it sends back
    lease = await leased(engine, "other", dead=is_dead)
    mine = await leased(engine, "mail", dead=is_dead)

    async def send(client, *leases):
        docs = [proof_doc(one) for one in leases]
        document = {"leases": docs} if name.endswith("_many") else docs[-1]
        return await client.post(f"/v1{OPERATION[name].path}", json=document)

    async with client_of(engine, settings, "worker") as client:
        before = lease.deadline_mono
        answer = await send(client, mine, lease)  # of many a foreign one refuses all
        assert (answer.status_code, answer.json()["scope"]) == (403, "worker:other")
        assert (lease.is_live, mine.is_live) == (True, True)
        assert lease.deadline_mono == before
        assert (await send(client, mine)).status_code == 200
    async with client_of(engine, settings, "root") as client:
        assert (await send(client, lease)).status_code == 200


async def test_follow_ups_go_to_queues_of_the_token(engine, tmp_path):
    path = write_tokens(tmp_path / "t", entry("both", "worker", "producer", queues=["mail"]))
    settings = Settings(tokens=TokensFile(path))
    lease = await leased(engine, "mail")
    async with client_of(engine, settings, "both") as client:
        document = proof_doc(lease) | {"then": [{"payload": 1, "queue": "other"}]}
        answer = await client.post("/v1/leases/complete", json=document)
        assert (answer.status_code, answer.json()["scope"]) == (403, "producer:other")
        assert lease.is_live
        document["then"] = [{"payload": 1}]
        assert (await client.post("/v1/leases/complete", json=document)).status_code == 200
    assert (await engine.queue("mail").stats()).ready == 1


async def test_a_claim_is_taken_back_with_its_own_token_only(engine, tmp_path):
    names = "first", "second"
    path = write_tokens(tmp_path / "t", *(entry(one, "worker", queues=["mail"]) for one in names))
    app = make_app(engine, Settings(tokens=TokensFile(path)))
    await engine.queue("mail").enqueue(b"x")
    claim_id = b64encode(bytes(16)).decode()
    async with asgi_client(app) as client:
        headers = [{"authorization": f"Bearer {token_of(one)}"} for one in names]
        claim = {"queues": ["mail"], "claim_id": claim_id}
        answer = await client.post("/v1/leases/claim", json=claim, headers=headers[0])
        assert len(answer.json()["leases"]) == 1
        found = []
        for one in (headers[1], headers[0]):
            body = {"claim_id": claim_id}
            answer = await client.post("/v1/leases/cancel_claim", json=body, headers=one)
            found.append(answer.json()["released"])
    assert found == [0, 1]


# -- the link --------------------------------------------------------------------------------


async def test_the_link_looks_at_queues_and_leases(engine, settings):
    lease, mine = await leased(engine, "other"), await leased(engine, "mail")
    with socket_path() as path:
        async with linking(engine, path, settings), wired(path, token=token_of("mailer")) as wire:
            wire.send([0, 0, pack({"queue": "mail"})], [0, 1, pack({"queue": "other"})])
            foreign = [bytes(lease.task_id), lease.epoch, lease.token]
            own = [bytes(mine.task_id), mine.epoch, mine.token]
            sent = [
                [1, 0, 1, 0, b"x"],
                [2, 0, 1, 0, [b"x"]],
                [3, 0, 1, 1, None, 0.0, "w"],
                [4, 0, *foreign, None, None, True],
                [5, 0, [[*own, None, None], [*foreign, None, None]]],
                [6, 0, *foreign, "bury", None, ""],
                [7, 0, [own, foreign], None],
                [10, 0, 1, 0, b"x", pack({"priority": 1})],
                [11, 0, 1, [[0, b"x", None]]],
                [8, 0, "GET", "/queues/other/stats", {}, None, None],
                [8, 0, "POST", "/leases/claim", {}, pack({"queues": ["other"]}), None],
            ]
            for id, request in enumerate(sent, 1):
                request[1] = id
                wire.send(request)
                status, problem = await wire.answer(id)
                assert (status, problem["status"]) == (2, 403), request
                assert problem["scope"].endswith(":other")
            assert (lease.is_live, mine.is_live) == (True, True)
            allowed = [
                [1, 20, 0, 0, b"x"],
                [3, 21, 0, 1, None, 0.0, "w"],
                [7, 22, [own], None],
                [4, 23, *own, None, None, True],
                [4, 24, *own, None, None, True],  # a repeated one succeeds
                [8, 25, "GET", "/queues/mail/stats", {}, None, None],
                [10, 26, 0, 0, b"x", pack({"dedup_key": "k"})],
                [11, 27, 0, [[0, b"x", pack({"dedup_key": "k"})]]],
            ]
            for request in allowed:
                wire.send(request)
                assert (await wire.answer(request[1]))[0] == 0, request


async def test_a_link_takes_no_claim_of_another_token_back(engine, tmp_path):
    names = "first", "second"
    file = write_tokens(tmp_path / "t", *(entry(one, "worker") for one in names))
    await engine.queue("mail").enqueue(b"x")
    with socket_path() as path:
        async with (
            linking(engine, path, Settings(tokens=TokensFile(file))),
            wired(path, token=token_of("first"), nonce=NONCE) as wire,
        ):
            wire.send([0, 0, pack({"queue": "mail"})], [3, 1, 0, 1, None, 0.0, "w"])
            status, leases = await wire.answer(1)
            assert (status, len(leases)) == (0, 1)
            async with wired(path, token=token_of("second"), nonce=NONCE) as other:
                other.send([9, 1], [8, 2, "GET", "/engine", {}, None, None])
                await other.answer(2)
                assert (await engine.queue("mail").stats()).leased == 1
            wire.send([9, 1], [8, 2, "GET", "/engine", {}, None, None])
            await wire.answer(2)
            assert (await engine.queue("mail").stats()).leased == 0


async def test_a_whole_client_with_limits(engine, settings):
    with socket_path() as path:
        async with (
            serving(engine, path=path, settings=settings) as url,
            lodeq.connect(url, token=token_of("acme")) as client,
        ):
            mail = client.queue("mail", tenant="acme")
            receipt = await mail.enqueue({"to": "ann"})
            async with await mail.claim_one() as lease:
                await lease.complete("sent")
            assert (await client.result(receipt.id)).value == "sent"
            with pytest.raises(lodeq.AccessDeniedError, match="scope producer:mail"):
                await client.queue("mail").enqueue(b"x")
            with pytest.raises(lodeq.AccessDeniedError, match="for all queues and tenants"):
                await client.stats()


# -- an access by itself ---------------------------------------------------------------------


def test_grants_are_held_against_a_queue_each_by_itself():
    access = Access(
        "t", [Grant(int(Role.WORKER), ("mail",)), Grant(int(Role.PRODUCER), ("report-*",), ("",))]
    )
    assert access.allows(Role.WORKER, NamedQueue("mail", "any"))
    assert not access.allows(Role.PRODUCER, NamedQueue("mail", ""))
    assert access.allows(Role.PRODUCER, NamedQueue("report-1", ""))
    assert not access.allows(Role.PRODUCER, NamedQueue("report-1", "acme"))
    assert not access.allows(Role.PRODUCER, NamedQueue("report-1", None))
    assert not access.allows(Role.WORKER, NamedQueue("mail\n", ""))
    assert access.whole == 0
    assert FULL.allows(Role.ADMIN, NamedQueue("mail", None))
