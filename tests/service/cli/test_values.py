"""Values that JSON lacks: every face shows them, in strict JSON, and says what they are."""

import json
import math
from datetime import UTC, datetime

import msgpack
import pytest
from support_cli import first, objects, run

import lodeq
from lodeq.client.documents.wire import JSON, Stored
from lodeq.repository.model.codec import MSGPACK
from lodeq.repository.tasks.lease import Lease

pytestmark = pytest.mark.slow

VALUES = {
    "infinite": [math.inf, -math.inf],
    "none": {"v": math.nan},
    "bytes-key": {b"k": 1},
    "tuple-key": {(1, 2): 3},
    "twins": {1: 2, "1": 3},
    "float-key": {math.inf: 1},
    "ext": msgpack.ExtType(5, b"hi"),
    "time": datetime(2026, 1, 1, tzinfo=UTC),
    "bytes-inside": {"x": b"\xff\x00"},
}
PLAIN = {"base64": "eA=="}  # looks like a mark, and is a value


def strict(text):
    def once(pairs):
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, object_pairs_hook=once, parse_constant=refuse)


def lines(*args):
    return [strict(line) for line in run(*args, "--json").stdout.splitlines()]


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "s"
    with lodeq.sync.open(path) as engine:
        for name, value in {**VALUES, "plain": PLAIN}.items():
            engine.queue("mail").enqueue(value, headers={"h": value}, labels={"n": name})
            engine.queue("dead").enqueue(value)
            engine.queue("done").enqueue(b"x")
            engine.queue("dead").claim_one().bury("why")
            engine.queue("done").claim_one().complete(value)
    return path


def test_lists_show_them_all_and_say_which_are_themselves(store):
    for args in (("ls", store, "mail"), ("peek", store, "mail"), ("dead", store, "dead")):
        shown = lines(*args)
        assert len(shown) == len(VALUES) + 1
        assert [one.get("payload_kind") for one in shown] == ["rendered"] * len(VALUES) + [None]
        assert shown[-1]["payload"] == PLAIN
        table = run(*args).stdout
        assert "~" in table
    for one in lines("peek", store, "mail")[:-1]:
        assert one["headers_kind"] == "rendered"


def test_show_prints_payload_headers_and_result(store):
    with lodeq.sync.open(store) as engine:
        done = [task.id for task in engine.queue("done").list("completed")]
        ready = [task.id for task in engine.queue("mail").list("ready")]
    for task_id in done + ready:
        (shown,) = lines("show", store, task_id)
        assert run("show", store, task_id).stdout
        value = shown["result"]["value"] if shown["result"] else shown["payload"]
        kind = shown["result"] or shown
        is_plain = value == PLAIN
        assert (kind.get("value_kind") or kind.get("payload_kind")) == (
            None if is_plain else "rendered"
        )


def test_exports_are_strict(store, tmp_path):
    run("export", store, "--queue", "mail", "--to", tmp_path / "out", "--format", "jsonl")
    found = [strict(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert len(found) == len(VALUES) + 1
    assert [one["headers"] for one in found] == [None] * len(VALUES) + [{"h": PLAIN}]


def test_a_claim_prints_every_lease(store):
    shown = lines("claim", store, "mail", "--limit", 99)
    assert len(shown) == len(VALUES) + 1
    for one in shown:
        run("release", store, one["lease"])
    assert len(run("claim", store, "mail", "--limit", 99).stdout.splitlines()) == len(VALUES) + 1


def test_a_claim_that_cannot_be_printed_gives_its_leases_back(store, monkeypatch):
    def broken(self):
        raise lodeq.RecordCorruptError("as if it were damaged")

    with monkeypatch.context() as patch:
        patch.setattr(Lease, "payload", property(broken))
        done = run("claim", store, "mail", "--limit", 3, code=2)
        assert "3 of 3 leases could not be printed and are released" in done.stderr
    assert [one["leased"] for one in objects("ls", store) if one["queue"] == "mail"] == [0]


@pytest.mark.parametrize("text", ["1e400", "[NaN]", '{"v": -Infinity}'])
def test_what_is_no_json_goes_in_nowhere(store, text):
    run("enqueue", store, "other", text, "--parse", code=2)
    run("enqueue", store, "other", "--lines", "--parse", stdin=text + "\n", code=2)
    with pytest.raises(lodeq.UsageError):
        JSON.loads(text.encode())
    assert first("enqueue", store, "other", "1e300", "--parse")["id"]


def test_the_wire_carries_what_json_lacks_unchanged():
    for value in VALUES.values():
        stored = Stored(MSGPACK, msgpack.packb(value, datetime=True))
        document = {}
        JSON.put(document, "payload", stored)
        again = strict(JSON.dumps(document))
        assert again["payload_kind"] == "msgpack"
        assert JSON.take(again, "payload") == stored
