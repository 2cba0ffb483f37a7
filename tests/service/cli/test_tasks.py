"""Tasks by hand: in, out, and what is known of them."""

import base64
import json

import pytest
from support_cli import first, make, objects, run

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "s", shards=2)


def add(store, *args):
    return first("enqueue", store, *args)["id"]


def test_a_task_from_its_enqueue_to_its_result(store):
    task_id = add(store, "mail", '{"to": 1}', "--parse", "--priority", 7, "--header", "trace=1")
    taken = first("claim", store, "mail", "--worker", "me")
    assert (taken["id"], taken["attempt"], taken["payload"]) == (task_id, 1, {"to": 1})
    assert taken["headers"] == {"trace": "1"}
    assert first("show", store, task_id)["state"] == "leased"
    run("complete", store, taken["lease"], "--result", '{"ok": true}', "--parse")
    told = first("show", store, task_id)
    assert (told["state"], told["result"]["value"]) == ("completed", {"ok": True})
    assert told["result"]["worker"] == "me"
    assert "completed" in run("show", store, task_id).stdout


def test_text_is_kept_as_bytes(store):
    for args, stdin in ((["hällo"], None), (["-"], "hällo"), ([], "hällo")):
        run("enqueue", store, "mail", *args, stdin=stdin)
    tasks = objects("peek", store, "mail")
    assert [base64.b64decode(t["payload_base64"]).decode() for t in tasks] == ["hällo"] * 3


def test_lines_of_stdin(store):
    many = "\n".join(json.dumps({"n": n}) for n in range(2500))
    told = objects("enqueue", store, "mail", "--lines", "--parse", stdin=many)
    assert len({one["id"] for one in told}) == 2500
    listed = objects("ls", store, "mail", "--limit", 2501)
    assert [task["payload"]["n"] for task in listed] == list(range(2500))


def test_a_claim_of_nothing_is_exit_code_1(store):
    assert run("claim", store, "mail", code=1).output == ""


def test_a_lease_outlives_the_command_but_not_its_end(store):
    add(store, "mail", "x")
    lease = first("claim", store, "mail")["lease"]
    run("claim", store, "mail", code=1)  # opened anew, and it is still leased
    run("nack", store, lease, "--reason", "no\x1b[2Jnet", "--delay", "0")
    for command in ("complete", "nack", "release"):
        assert "no longer valid" in run(command, store, lease, code=2).stderr
    (task,) = objects("ls", store, "mail")
    assert (task["state"], task["attempts"], task["reason"]) == ("ready", 1, "no\x1b[2Jnet")
    assert "\x1b" not in run("ls", store, "mail").stdout
    lease = first("claim", store, "mail")["lease"]
    run("release", store, lease)
    assert objects("ls", store, "mail")[0]["attempts"] == 1


def test_a_task_dies_and_is_retried(store):
    task_id = add(store, "mail", "x", "--max-attempts", "1")
    run("nack", store, first("claim", store, "mail")["lease"], "--reason", "why")
    (dead,) = objects("dead", store, "mail")
    assert (dead["id"], dead["reason"]) == (task_id, "why")
    assert "ready again" in run("retry", store, task_id).stdout
    result = run("retry", store, task_id, "0" * 32, code=1)
    assert len(result.stderr.splitlines()) == 2
    assert objects("dead", store, "mail") == []


def test_what_acts_says_so_in_json(store):
    ids = [add(store, "mail", "x", "--max-attempts", n) for n in (3, 1, 1)]
    lease = first("claim", store, "mail")["lease"]
    assert first("release", store, lease) == {"id": ids[0], "released": True}
    lease = first("claim", store, "mail")["lease"]
    assert first("nack", store, lease, "--delay", 60) == {"id": ids[0], "nacked": True}
    lease = first("claim", store, "mail")["lease"]
    assert first("complete", store, lease) == {"id": ids[1], "completed": True}
    run("nack", store, first("claim", store, "mail")["lease"])
    done, failed = objects("retry", store, ids[2], "no-id", code=1)
    assert done == {"id": ids[2], "retried": True}
    assert (failed["id"], failed["retried"]) == ("no-id", False)
    assert "no-id" in failed["error"]
    done, failed = objects("cancel", store, ids[2], ids[1], "--yes", code=1)
    assert done == {"id": ids[2], "cancelled": True}
    assert (failed["cancelled"], "it has ended" in failed["error"]) == (False, True)
    assert run("retry", store, ids[1], "--json", code=1).stderr == ""


def test_cancel_asks_first(store):
    one, two = add(store, "mail", "x"), add(store, "mail", "y")
    assert "--yes" in run("cancel", store, one, code=2).stderr
    assert run("cancel", store, one, two, "--yes").stdout.count("cancelled") == 2
    assert first("show", store, two)["state"] == "cancelled"
    assert "it has ended" in run("cancel", store, one, "--yes", code=1).stderr


def test_a_dedup_key(store):
    one = first("enqueue", store, "mail", "x", "--dedup-key", "k")
    two = first("enqueue", store, "mail", "y", "--dedup-key", "k")
    assert (two["id"], two["duplicate"]) == (one["id"], True)
    assert "already there" in run("enqueue", store, "mail", "y", "--dedup-key", "k").stdout
    run("enqueue", store, "mail", "y", "--dedup-key", "k", "--on-conflict", "raise", code=2)


@pytest.mark.parametrize(
    ("text", "wait_s"), [("90", 90), ("1.5h", 5400), ("2d", 172_800), ("5m", 300)]
)
def test_durations(store, text, wait_s):
    from datetime import datetime

    add(store, "mail", "x", "--delay", text)
    (task,) = objects("ls", store, "mail")
    due, enqueued = (datetime.fromisoformat(task[f"{name}_at"]) for name in ("due", "enqueued"))
    assert abs((due - enqueued).total_seconds() - wait_s) < 1


@pytest.mark.parametrize(
    "args",
    [
        ["enqueue", "mail", "x", "--delay", "soon"],
        ["enqueue", "mail", "x", "--header", "novalue"],
        ["enqueue", "mail", "{", "--parse"],
        ["enqueue", "mail", "x", "--lines"],
        ["enqueue", "NO", "x"],
        ["complete", "no-lease"],
        ["show", "no-id"],
        ["show", "0" * 32],
    ],
)
def test_wrong_input_is_exit_code_2(store, args):
    assert run(args[0], store, *args[1:], code=2).stderr
    assert objects("ls", store) == []


def test_no_command_but_init_makes_a_store(tmp_path):
    for args in (["ls"], ["enqueue", "mail", "x"], ["verify"], ["compact"], ["stats"]):
        result = run(args[0], tmp_path / "nothing", *args[1:], code=2)
        assert "holds no store" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_payload_above_3_mib_is_shown_as_its_size_and_claimed_whole(store):
    text = "x" * (4 << 20)
    run("enqueue", store, "mail", "-", stdin=text)
    (listed,) = objects("peek", store, "mail")
    assert listed["payload"] == f"({len(text)} bytes)"
    assert f"({len(text)} bytes)" in run("show", store, listed["id"]).stdout
    taken = first("claim", store, "mail")
    assert base64.b64decode(taken["payload_base64"]).decode() == text
