"""The OpenAPI document says what is accepted: each field at its bounds, both ways.

Values come from the document itself: what lies just inside is taken, what lies just outside is
refused, and what the document says of two members together holds.
"""

import base64
import copy
import json
import re
import uuid

import httpx
import jsonschema_rs
import pytest
from anyio.from_thread import start_blocking_portal
from support_http import BASE

import lodeq
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.http.operations import OPERATIONS, openapi

DOCUMENT = openapi(OPERATIONS, lodeq.__version__)
COMPONENTS = DOCUMENT["components"]["schemas"]
PATHS = {name: (method, f"/v1{path}") for name, method, path, *_ in OPERATIONS}
SPECS = {name: DOCUMENT["paths"][path][method.lower()] for name, (method, path) in PATHS.items()}
REFUSED = {"usage", "invalid-name", "limit", "payload-too-large"}
WEIRD = [{}, [], "x", 1.5, 7, True, None]  # of another type than nearly everything


def schema_of(name):
    body = SPECS[name].get("requestBody")
    found = None if body is None else body["content"].get("application/json")  # else a stream
    return None if found is None else found["schema"]


def plain(schema):
    """Without references."""
    while "$ref" in schema:
        schema = COMPONENTS[schema["$ref"].rpartition("/")[2]]
    return schema


def validator(schema):
    whole = {**schema, "components": {"schemas": COMPONENTS}}
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True)


@pytest.fixture(scope="module")
def send(tmp_path_factory):
    """An app of its own for what each operation needs: ``{queue}``, ``{lease}`` and so on."""
    folder = tmp_path_factory.mktemp("served")
    with start_blocking_portal() as portal:
        opening = lodeq.open(folder / "store", shards=1)
        engine = portal.call(opening.__aenter__)
        app = make_app(engine, Settings(wait_s_max=0.001, checkpoints=str(folder / "copies")))
        transport = httpx.ASGITransport(app)

        async def request(method, url, doc, query, headers):
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                content = None if doc is None else json.dumps(doc).encode()
                kind = "octet-stream" if url.endswith("/stream") else "json"
                headers = {"content-type": f"application/{kind}", **headers}
                return await client.request(
                    method, url, content=content, params=query, headers=headers
                )

        async def lease():
            await engine.queue("held").enqueue(b"x")
            one = await engine.queue("held").claim_one(lease=3600)
            return {
                "task_id": str(one.task_id),
                "epoch": one.epoch,
                "token": base64.b64encode(one.token).decode(),
            }

        def call(name, doc=None, query=None, headers=None, **path):
            method, url = PATHS[name]
            known = {
                "queue": "mail",
                "task_id": str(uuid.UUID(int=1)),
                "snapshot_id": "20240101T000000000Z",
            }
            for part, value in (known | path).items():
                url = url.replace("{" + part + "}", value)
            return portal.call(request, method, url, doc, query or {}, headers or {})

        call.lease = lambda: portal.call(lease)
        call.store_id = engine._runtime.opened.store_id.hex()
        call.folder = folder
        yield call
        portal.call(opening.__aexit__, None, None, None)


def is_refused(answer):
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    if answer.headers["content-type"] != "application/problem+json":
        return False
    return answer.json()["type"].rpartition(":")[2] in REFUSED


# --- what is sent -------------------------------------------------------------------------------

TASK = {"payload": 1}


def base_of(name, send):
    """A document that is taken."""
    held = send.lease() if name in HOLDING or name in ("complete_many", "heartbeat_many") else {}
    if name in HOLDING:
        return held
    return copy.deepcopy(
        {
            "enqueue": TASK,
            "enqueue_many": {"queue": "mail", "tasks": [TASK]},
            "claim": {"queues": ["mail"]},
            "complete_many": {"leases": [held]},
            "heartbeat_many": {"leases": [held]},
            "checkpoint": {"path": uuid.uuid4().hex},
            "forget_loads": {"older_than": 3600},
            "add_members": {"tasks": []},
            "configure": {"concurrency": 1},
            "purge_archived": {
                "store_id": send.store_id,
                "shards": 1,
                "parts": [
                    {"shard": 0, "kind": "dead", "rows": ""},
                ],
            },
        }.get(name, {})
    )


HOLDING = {"heartbeat", "complete", "nack", "release", "bury", "cancel_lease"}
# What a member needs beside it, to be judged by itself.
BESIDE = {
    "dedup_window": {"dedup_key": "k"}, "on_conflict": {"dedup_key": "k"},
    "payload_kind": {"payload_base64": "wA=="}, "result_kind": {"result_base64": "wA=="},
    "headers_base64": {"headers_kind": "msgpack"}, "headers_kind": {"headers_base64": "gA=="},
    "skip_tenants": {"queues": [{"queue": "mail", "all_tenants": True}]},
    "skip_functions": {"queues": [{"queue": "mail", "all_tenants": True}]},
    ("find", "after"): {"oldest_first": True},
}  # fmt: skip
INSTEAD = {"payload_base64": "payload", "payload_kind": "payload", "result_base64": "result"}
# Right by the document, and wrong all the same for what they mean; said in its descriptions.
MEANING = {
    ("publish", "functions"), ("beat", "report"),  # what is in them, the engine checks
    ("purge_archived", "store_id"), ("purge_archived", "shards"), ("purge_archived", "shard"),
    ("purge_archived", "parts"), ("checkpoint", "path"), ("ingest", "job"),
    ("configure", "rate"), ("configure", "key_concurrency"), ("find", "cursor"), ("act", "cursor"),
    ("act", "act"),  # "priority" needs the member of that name
    ("open_workflow", "callback"), ("add_members", "tasks"), ("add_members", "after"),
    ("find", "after"), ("history", "after"),  # of version 7, as all ids of tasks are
    *((name, "headers_base64") for name in PATHS),
}  # fmt: skip


def examples(name, schema):
    """Values at the bounds that the schema draws, and just beyond them."""
    schema = plain(schema)
    found = list(WEIRD)
    for part in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        part = plain(part)
        kinds = part.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        low, high = part.get("minimum"), part.get("maximum")
        step = 1 if "integer" in kinds else 0.0005
        for bound in (low, high):
            if bound is not None:
                found += [bound, bound - step, bound + step, bound + 0.5, float(bound)]
        found += part.get("enum", [])
        if "string" in kinds:
            found += strings(name, part)
        if "array" in kinds:
            one = next((v for v in examples(name, part["items"]) if fits(v, part["items"])), None)
            for n in {0, 1, part.get("minItems", 1), part.get("maxItems", 1)}:
                found += [[one] * n, [one] * (n + 1)]
            found += [[v] for v in examples(name, part["items"])]
        if "object" in kinds and part.get("properties"):
            found += objects(name, part)
    return found


def strings(name, schema):
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    sizes = {0, 1, least, max(0, least - 1), *([most, most + 1] if most else ())}
    bounds = [int(n) for n in re.findall(r"\{\d*,(\d+)\}", schema.get("pattern", ""))]
    sizes |= {size + more for size in bounds for more in (-1, 0, 1, 2)}
    found = ["a" * size for size in sizes] + ["ü" * (size // 2 + 1) for size in sizes]
    found += ["€" * (size // 3 + 1) for size in sizes] + ["😀" * (size // 4) for size in sizes]
    found += ["😀" * (size // 4 + 1) for size in sizes]
    found += ["A", "a.b-c_1", "-a", "a b", "a\n", "a/b", " a", "\x00", "null"]
    found += ["YWJj", "YWJjZA==", "YWJjZA=", "YWJj====", "YW Jj", "Y", "gA==", "wA==", "wQ=="]
    found += [
        "2030-01-01T00:00:00Z",
        "2030-01-01T00:00:00.123456+05:30",
        "2030-01-01T00:00:00",
        "2030-01-01",
        "20300101T000000Z",
        "2030-W01-1T00:00:00Z",
        "2030-02-30T00:00:00Z",
        "2030-01-01T24:30:00Z",
        "1969-12-31T23:59:59Z",
        "9999-01-01T00:00:00Z",
        "6428-12-31T00:00:00Z",
        "6430-01-01T00:00:00Z",
        "2030-01-01T00:00:00.5Z",
    ]
    found += [
        str(uuid.UUID(int=7)),
        uuid.UUID(int=7).hex,
        f"{{{uuid.UUID(int=7)}}}",
        f"urn:uuid:{uuid.UUID(int=7)}",
        str(uuid.UUID(int=7))[:-1],
    ]
    found += ["0" * 32, "F" * 32, "0" * 31, "20240101T000000000Z"]
    return found


def objects(name, schema):
    needed = {one: good(name, schema["properties"][one]) for one in schema.get("required", ())}
    found = [needed, needed | {"nonsense": 1}]
    for member, inner in schema["properties"].items():
        for value in examples(member, inner):
            whole = needed | BESIDE.get(member, {}) | {member: value}
            if member in INSTEAD:
                whole.pop(INSTEAD[member], None)
            found.append(whole)
        if member in needed:
            found.append({k: v for k, v in needed.items() if k != member})
    return found


def good(name, schema):
    return next(value for value in examples(name, schema) if fits(value, schema))


_VALIDATORS = {}


def fits(value, schema):
    key = json.dumps(schema, sort_keys=True)
    if key not in _VALIDATORS:
        _VALIDATORS[key] = validator(schema)
    return _VALIDATORS[key].is_valid(value)


def cases(name, schema, member, base):
    """Documents with one member at its bounds."""
    seen = set()
    for value in examples(member, schema["properties"][member]):
        beside = BESIDE.get((name, member), BESIDE.get(member, {}))
        doc = {**base, **beside, member: value}
        if member in INSTEAD:
            doc.pop(INSTEAD[member], None)
        key = json.dumps(value, sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield doc


MEMBERS = [
    (name, member)
    for name in PATHS
    if schema_of(name) is not None
    for member in plain(schema_of(name))["properties"]
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "member"), MEMBERS, ids=lambda one: one)
def test_every_member_at_its_bounds(name, member, send):
    wrong = []
    schema = plain(schema_of(name))
    for doc in cases(name, schema, member, base_of(name, send)):
        if name in HOLDING and member not in ("task_id", "epoch", "token"):
            doc |= {one: value for one, value in base_of(name, send).items() if one != member}
        may = fits(doc, schema)
        refused = is_refused(send(name, doc))
        if may == refused and not (may and (name, member) in MEANING):
            wrong.append(("refused" if refused else "accepted", repr(doc.get(member))[:120]))
    assert wrong == []


# --- two members together -----------------------------------------------------------------------

TOGETHER = {
    "payload": [1], "payload_base64": ["YWJj"], "headers": [{"a": 1}], "headers_base64": ["gA=="],
    "headers_kind": ["msgpack"], "delay": [1, None], "run_at": ["2030-01-01T00:00:00Z", None],
    "dedup_key": ["k", None], "dedup_key_base64": ["YWJj"], "shard_key": ["k", None],
    "shard_key_base64": ["YWJj"], "dedup_window": [1, None],
    "on_conflict": ["return", "replace", "raise"],
}  # fmt: skip
PLACES = {
    "queue": ["mail"], "tenant": ["", "acme"], "all_tenants": [True, False],
    "boost_after": [5, None], "policy": [{}, None],
}  # fmt: skip


def pairs(members):
    for one, values in members.items():
        for other, others in members.items():
            if one < other:
                yield from ({one: a, other: b} for a in values for b in others)


@pytest.mark.slow
def test_members_that_exclude_or_need_one_another(send):
    wrong = []
    docs = [("enqueue", base | pair) for base in ({}, TASK) for pair in pairs(TOGETHER)]
    docs += [("enqueue_many", {"tasks": [TASK]} | pair) for pair in pairs(PLACES)]
    docs += [("enqueue_many", {"tasks": [TASK | {"queue": "a"}]} | pair) for pair in pairs(PLACES)]
    docs += [("claim", {"queues": [{"queue": "mail"} | pair]}) for pair in pairs(PLACES)]
    for n, (name, doc) in enumerate(docs):
        if doc.get("on_conflict") == "raise":  # by a key of its own: it is not about conflicts
            doc |= {k: f"{v}{n}" for k, v in doc.items() if k == "dedup_key" and v}
        may, refused = fits(doc, schema_of(name)), is_refused(send(name, doc))
        if may == refused:
            wrong.append((name, "refused" if refused else "accepted", doc))
    assert wrong == []


# --- paths, queries and headers -----------------------------------------------------------------

PARAMETERS = [
    (
        name,
        one["in"],
        one["name"],
        one.get("schema") or one["content"]["application/json"]["schema"],
    )
    for name, spec in SPECS.items()
    for one in spec["parameters"]
    if one["name"] != "headers_base64"  # of any bytes, those that are msgpack
]
BESIDE_IN_QUERY = {
    "dedup_window": {"dedup_key": "k"},
    "on_conflict": {"dedup_key": "k"},
    ("history", "after"): {"oldest_first": "true"},
}


def as_text(value):
    return value if isinstance(value, str) else json.dumps(value)


def meant(text, schema):
    """What a parameter says by its schema; the text itself where that is none."""
    kind = schema.get("type", ())
    if "string" in kind or ("integer" in kind and not re.fullmatch(r"-?(0|[1-9]\d*)", text)):
        return text
    try:
        return json.loads(text) if text == text.strip() else text
    except ValueError:
        return text


@pytest.mark.parametrize(
    ("name", "where", "member", "schema"),
    PARAMETERS,
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_every_parameter_at_its_bounds(name, where, member, schema, send):
    wrong = []
    texts = {as_text(value) for value in examples(member, schema)}
    texts |= {"1", "0", "01", "+1", "1_0", " 1", "1e1", "inf", "nan", "True", "mail/", "mail/a"}
    for text in sorted(texts):
        if where == "path" and (not text or {"/", "\x00", "\n", "{"} & set(text)):
            continue  # another path
        if where == "header" and not (
            text.isascii() and text.isprintable() and text == text.strip()
        ):
            continue  # no header
        beside = BESIDE_IN_QUERY.get((name, member), BESIDE_IN_QUERY.get(member, {}))
        query = beside | {member: text}
        options = {"query": query} if where == "query" else {}
        if where == "header":
            options = {"headers": {member: text}}
        if where == "path":
            options = {member: text}
        may = fits(meant(text, schema), schema)
        answer = send(name, base_of(name, send) if schema_of(name) is not None else None, **options)
        # A path of other methods, or one that names nothing there is.
        refused = is_refused(answer) or answer.status_code == 405
        refused |= not may and answer.status_code == 404
        if may == refused and not (may and (name, member) in MEANING):
            wrong.append(("refused" if refused else "accepted", text[:80]))
    assert wrong == []
