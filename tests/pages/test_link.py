"""The bytes shown in ``docs/link.md`` are the bytes that are sent, and the server reads them."""

import json
import re
from pathlib import Path

import msgpack
import pytest

from lodeq.client.documents.problems import problem_of
from lodeq.client.transport import layout
from lodeq.client.transport.entries import receipt_in, receipts_in
from lodeq.errors import DeadlineExceededError
from lodeq.service.http.link import connection, port, requests

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "link.md").read_text("utf-8")
BLOCKS = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
BYTE = re.compile(r"(?:^|(?<=\s))[0-9a-f]{2}(?=\s|$)")


def bytes_in(block):
    """Every byte of a block; remarks stand behind two spaces and are not two digits alone."""
    found = bytearray()
    for line in block.splitlines():
        for part in re.split(r"\s{2,}", line.strip()):
            words = part.split()
            if words and all(re.fullmatch("[0-9a-f]{2}", word) for word in words):
                found += bytes.fromhex("".join(words))
    return bytes(found)


def shown(first):
    """The bytes of the frames whose block begins so."""
    (block,) = [one for one in BLOCKS if one.startswith(first)]
    return bytes_in(block)


def frames_in(data):
    reader = layout.FrameReader()
    bodies = list(reader.feed(data))
    assert reader.is_empty
    return bodies


def test_hello_and_welcome():
    hello, welcome = frames_in(shown("00 00 00 22"))
    version, read = requests.read_hello(hello)
    assert (version, read.token, read.nonce) == (1, "a-secret-token-1", bytes(range(1, 9)))
    assert connection._first_frame(1, True, list(layout.Op))[4:] == welcome


def test_the_first_exchange():
    (body,) = frames_in(shown("00 00 00 34"))
    queue, enqueue, claim = requests.read_frame(body)
    assert msgpack.unpackb(queue.document) == {"queue": "mail"}
    assert (enqueue.id, enqueue.handle, enqueue.kind, enqueue.payload) == (1, 0, 0, b"hi")
    assert (claim.limit, claim.lease, claim.wait, claim.worker) == (1, 30.0, 0.0, "w")
    assert layout.frames_of([(0, 0, queue.document), (1, 1, 0, 0, b"hi"),
                             (3, 2, 0, 1, 30.0, 0.0, "w")])[4:] == body  # fmt: skip
    (answer,) = frames_in(shown("00 00 00 16"))
    ((id, status, task_id),) = msgpack.unpackb(answer)
    assert (id, status, len(task_id)) == (1, 0, 16)
    body, done = frames_in(shown("00 00 00 3a"))
    (complete,) = requests.read_frame(body)
    assert (complete.task_id, complete.epoch) == (task_id, 4294967297)
    assert (complete.kind, msgpack.unpackb(complete.result), complete.keep) == (
        1,
        {"ok": True},
        True,
    )
    assert layout.frames_of([(3, 0, None)])[4:] == done


def test_a_call():
    (body,) = frames_in(shown("00 00 00 26"))
    (call,) = requests.read_frame(body)
    assert (call.method, call.path, call.query, call.document, call.deadline) == (
        "GET", "/queues/mail/stats", {}, None, 30.0,
    )  # fmt: skip


def test_a_deadline():
    (body,) = frames_in(shown("00 00 00 13"))
    (enqueue,) = requests.read_frame(body)
    assert (enqueue.id, enqueue.payload, enqueue.deadline) == (5, b"hi", 2.0)
    assert layout.frames_of([(1, 5, 0, 0, b"hi", 2.0)])[4:] == body
    problem = problem_of(DeadlineExceededError("late"))
    for name in ("type", "status", "retry_after_ms"):
        assert json.dumps({name: problem[name]})[1:-1] in PAGE


def test_a_task_with_options():
    body, new, duplicate = frames_in(shown("00 00 00 1f"))
    (enqueue,) = requests.read_frame(body)
    assert (enqueue.id, enqueue.handle, enqueue.kind, enqueue.payload) == (6, 0, 0, b"hi")
    assert requests.read_options(enqueue.options).dedup_key == "order-7"
    assert layout.frames_of([(10, 6, 0, 0, b"hi", enqueue.options)])[4:] == body
    ((_, _, answer),), ((_, _, again),) = msgpack.unpackb(new), msgpack.unpackb(duplicate)
    first, second = receipt_in(answer), receipt_in(again)
    assert (first.duplicate, second) == (False, first._replace(duplicate=True))


def test_many_tasks_with_options():
    body, done = frames_in(shown("00 00 00 29"))
    (enqueue,) = requests.read_frame(body)
    (_, keyed, options), plain = enqueue.tasks
    assert (enqueue.id, enqueue.handle, keyed, plain) == (8, 0, b"hi", (0, b"hey", None))
    assert requests.read_options(options).dedup_key == "order-7"
    assert layout.frames_of([(11, 8, 0, enqueue.tasks)])[4:] == body
    ((_, _, answer),) = msgpack.unpackb(done)
    assert [one.duplicate for one in receipts_in(answer, 2)] == [True, False]


@pytest.mark.parametrize("op", list(layout.Op), ids=str)
def test_every_operation_has_its_row(op):
    assert re.search(rf"^\| {int(op)} {op.name.lower().replace('_', ' ')} \| `\[{int(op)}, ", PAGE,
                     re.MULTILINE)  # fmt: skip


def test_limits_are_those_of_the_code():
    assert f"{layout.FRAME_BYTES_MAX:,} (8 MiB)" in PAGE
    for row in (
        "| entries of a frame | 4,096 |",
        "| handles of a connection | 1,024 |",
        "| requests of a connection that are not answered | 4,096;",
        "| calls of a connection at work | 16,",
        "| answers that a client has not read | 8 MiB,",
        "| the hello | 4 KiB, and 10 s to come |",
    ):
        assert row in PAGE
    assert (layout.ENTRIES_MAX, layout.HANDLES_MAX, layout.HELLO_BYTES_MAX) == (4096, 1024, 4096)
    assert (connection.OPEN_MAX, port.CALLS_MAX) == (4096, 16)
    assert (connection.UNREAD_BYTES, connection.HELLO_WAIT_S) == (8 << 20, 10)
