"""Documents are read by their declaration, and errors say which member and what is accepted."""

import subprocess
import sys

import pytest

import lodeq
from lodeq.client.documents.wire import JSON, MSGPACK_FORM
from lodeq.repository.model.values import NewTask
from lodeq.service.http import schemas
from lodeq.service.http.document_reader import key_of, read, read_query, stored_of
from lodeq.service.http.operations import OPERATIONS

ID = "0" * 32


@pytest.mark.parametrize(
    ("kind", "document", "text"),
    [
        (schemas.EnqueueMany, {}, "the body needs 'tasks'"),
        (schemas.EnqueueMany, {"tasks": [{"payload": 1, "x": 1}]}, "tasks[0] has no 'x'"),
        (
            schemas.EnqueueMany,
            {"tasks": [{"payload": 1}, {"payload": 1, "priority": "high"}]},
            "tasks[1].priority: expected a whole number, got text",
        ),
        (schemas.Enqueue, {"priority": 10}, "priority: expected a whole number <= 9"),
        (schemas.Enqueue, {"priority": True}, "priority: expected a whole number, got true"),
        (schemas.Enqueue, {"delay": float("nan")}, "delay: expected a number >= 0"),
        (schemas.Held, {"task_id": "x"}, "task_id: not a task id: 'x' is not a UUID"),
        (
            schemas.Held,
            {"task_id": ID, "epoch": 1, "token": 5},
            "token: expected base64 text, got a whole number",
        ),
        (schemas.Held, {"task_id": ID, "epoch": 1, "token": "%"}, "token: invalid base64"),
        (schemas.Claim, {"queues": [5]}, "queues[0]: expected text or an object"),
        (schemas.Nothing, {"x`y": 1}, "the body has no 'x`y'"),
        (schemas.Nothing, {"\ud800": 1}, "the body: "),
        (schemas.Nothing, [], "the body: expected an object, got a list"),
    ],
    ids=str,
)
def test_an_error_names_the_member_and_what_is_accepted(kind, document, text):
    with pytest.raises(lodeq.UsageError) as caught:
        read(JSON, document, kind)
    assert str(caught.value).startswith(text)


def test_bytes_are_base64_in_json_and_themselves_in_msgpack():
    assert read(JSON, {"task_id": ID, "epoch": 1, "token": "YQ=="}, schemas.Held).token == b"a"
    held = {"task_id": bytes(16), "epoch": 1, "token": b"a"}
    assert read(MSGPACK_FORM, held, schemas.Held).token == b"a"
    with pytest.raises(lodeq.UsageError, match="token: expected bytes, got text"):
        read(MSGPACK_FORM, held | {"token": "YQ=="}, schemas.Held)


def test_a_whole_number_is_one_however_it_is_written_and_a_payload_is_left_alone():
    task = {"payload": 1.0, "headers": {"n": 2.0}, "priority": 9.0, "max_attempts": 3.0}
    queue = {"queue": "mail", "policy": {"max_attempts": 4.0, "retention": 5.0}}
    many = read(JSON, {"tasks": [task]} | queue, schemas.EnqueueMany)
    (found,) = many.tasks
    numbers = (found.priority, found.max_attempts, many.policy.max_attempts)
    assert [(type(one), one) for one in numbers] == [(int, 9), (int, 3), (int, 4)]
    assert type(found.payload) is type(found.headers["n"]) is type(many.policy.retention) is float
    claim = read(JSON, {"queues": [queue], "limit": 1.0}, schemas.Claim)
    assert type(claim.limit) is type(claim.queues[0].policy.max_attempts) is int
    with pytest.raises(lodeq.UsageError, match="priority: expected a whole number, got a number"):
        read(JSON, {"payload": 1, "priority": 1.5}, schemas.Enqueue)


@pytest.mark.parametrize("text", ["01", "+1", "1e1", "1.0", " 1", "1_0", "9" * 5000, "true", ""])
def test_a_query_has_numbers_as_json_writes_them(text):
    assert read_query({"limit": "10"}, schemas.TasksQuery).limit == 10
    with pytest.raises(lodeq.UsageError, match="limit: expected"):
        read_query({"limit": text}, schemas.TasksQuery)


def test_a_key_is_given_once():
    coded = {"payload": 1, "dedup_key_base64": "YQ=="}
    assert key_of(read(JSON, coded, schemas.Enqueue), "dedup_key") == b"a"
    assert key_of(read(JSON, coded | {"dedup_key": None}, schemas.Enqueue), "dedup_key") == b"a"
    with pytest.raises(lodeq.UsageError, match="give dedup_key or dedup_key_base64, not both"):
        key_of(read(JSON, coded | {"dedup_key": "a"}, schemas.Enqueue), "dedup_key")


def test_a_value_that_is_null_is_one():
    assert stored_of(JSON, read(JSON, {}, schemas.Enqueue), "payload") is None
    assert (
        stored_of(JSON, read(JSON, {"payload": None}, schemas.Enqueue), "payload").data == b"\xc0"
    )


def test_a_task_has_the_options_of_the_model():
    """Whoever adds an option to ``NewTask`` adds it to the wire."""
    values = {"payload", "headers"}
    beside = {f"{one}{end}" for one in values for end in ("_base64", "_kind")}
    beside |= {"dedup_key_base64", "shard_key_base64"}
    assert set(schemas.NewTask.__struct_fields__) - beside == set(NewTask._fields)
    backoff = set(lodeq.Backoff.__dataclass_fields__)
    assert set(schemas.Backoff.__struct_fields__) == backoff


def test_every_post_states_its_media_type():
    posts = [one for one in OPERATIONS if one.method == "POST" and one.takes is None]
    assert [one.name for one in posts if not one.streams] == []


def test_a_client_needs_no_msgspec():
    code = "import sys, lodeq, lodeq.client.engine, lodeq.sync; sys.exit('msgspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
