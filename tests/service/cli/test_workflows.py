"""``lodeq workflow``: shown, cancelled and redriven by hand."""

import pytest
from support_cli import make, objects, run

import lodeq.sync
from lodeq import NewTask

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "s", shards=2)


@pytest.fixture
def flow(store):
    with lodeq.sync.open(store) as engine:
        with engine.workflow(NewTask(b"join", "joins"), name="monthly") as flow:
            flow.add([NewTask(b"%d" % i, "parts") for i in range(3)])
        engine.queue("parts").claim()[0].bury("torn")
    return str(flow.id)


def test_show(store, flow):
    told = run("workflow", "show", store, flow).stdout
    assert f"{flow} monthly: running, on failure run" in told
    assert "1 of 3 members ended, 1 failed" in told
    assert "waiting" in told
    info, part = objects("workflow", "show", store, flow, "--failed")
    assert (info["members"], info["callback_state"]) == (3, "waiting")
    assert (part["number"], part["status"], part["error"]) == (0, "dead", "torn")
    missing = "00000000-0000-7000-8000-000000000000"
    assert "no workflow" in run("workflow", "show", store, missing, code=2).stderr


def test_ls_and_by_function(store, flow):
    with lodeq.sync.open(store) as engine:
        other = engine.workflow(name="open one")
        engine.queue("parts").enqueue(b"x", function="f")
    (first, second) = objects("workflow", "ls", store)
    assert [first["id"], second["id"]] == sorted([flow, str(other.id)], reverse=True)
    told = run("workflow", "ls", store, "--state", "running").stdout
    assert flow in told
    assert "open one" not in told
    (only,) = objects("workflow", "ls", store, "--limit", "1")
    assert only == first
    told = run("workflow", "show", store, flow).stdout
    assert "(no function) in parts: 1 dead, 2 ready" in told
    assert "is not one of" in run("workflow", "ls", store, "--state", "x", code=2).stderr


def test_a_workflow_is_shown_by_a_task_of_it(store, flow):
    (task, *_) = objects("ls", store, "parts", "--state", "ready")
    (info, *_) = objects("workflow", "show", store, task["id"])
    assert info["id"] == flow


def test_a_workflow_is_shown_by_the_task_that_opened_it(store):
    with lodeq.sync.open(store) as engine:
        queue = engine.queue("reports")
        opener, other = queue.enqueue(b"x"), queue.enqueue(b"y")
        with engine.workflow(NewTask(b"join", "joins"), key=bytes(opener.id)) as flow:
            flow.add([NewTask(b"part", "parts")])
    (info, *_) = objects("workflow", "show", store, opener.id)
    assert info["id"] == str(flow.id)
    error = run("workflow", "show", store, other.id, code=2).stderr
    assert f"{other.id} is a task, and of no workflow that is known" in error


def test_show_of_a_workflow_names_the_command_for_it(store, flow):
    assert f"lodeq workflow show {store} {flow}" in run("show", store, flow, code=2).stderr


def test_enqueue_after_and_waiting_tasks(store):
    one = run("enqueue", store, "parts", "a").stdout.strip()
    two = run("enqueue", store, "parts", "b").stdout.strip()
    after = ("--after", one, "--after", two, "--on-failure", "cancel")
    waits = run("enqueue", store, "tops", "late", *after, "--dedup-key", "k").stdout.strip()
    again = run("enqueue", store, "tops", "late", *after, "--dedup-key", "k").stdout
    assert again == f"{waits} (already there)\n"
    (task,) = objects("ls", store, "tops", "--state", "waiting")
    assert (task["id"], task["state"]) == (waits, "waiting")
    assert objects("ls", store, "tops", "--state", "delayed") == []
    (tops,) = [one for one in objects("ls", store) if one["queue"] == "tops"]
    assert (tops["delayed"], tops["waiting"]) == (0, 1)
    assert [one["id"] for one in objects("find", store, "--state", "waiting")] == [waits]
    run("cancel", store, one, "--yes")
    run("cancel", store, two, "--yes")
    assert "no task and no result" in run("enqueue", store, "tops", "x", "--after",
        "00000000-0000-7000-8000-000000000000", code=2).stderr  # fmt: skip
    assert "not a task id" in run("enqueue", store, "tops", "x", "--after", "x", code=2).stderr


def test_redrive_and_cancel(store, flow):
    assert run("workflow", "redrive", store, flow).stdout == "1 redriven\n"
    assert "--yes" in run("workflow", "cancel", store, flow, code=2).stderr
    assert run("workflow", "cancel", store, flow, "--yes").stdout == "3 cancelled\n"
    (info, *_) = objects("workflow", "show", store, flow)
    assert info["state"] == "cancelled"


def test_show_has_the_value_of_the_callback(store):
    with lodeq.sync.open(store) as engine:
        with engine.workflow(NewTask(b"join", "joins")) as flow:
            flow.add([NewTask(b"1", "parts")])
        engine.queue("parts").claim()[0].complete(1)
    shown = run("workflow", "show", store, flow.id).stdout
    assert f"callback {flow.callback}: ready\n" in shown
    (info, _) = objects("workflow", "show", store, flow.id)
    assert info["callback_result"] is None
    with lodeq.sync.open(store) as engine:
        engine.queue("joins").claim()[0].complete({"sum": 1})
    shown = run("workflow", "show", store, flow.id).stdout
    assert f'callback {flow.callback}: completed: {{"sum":1}}\n' in shown
    (info, _) = objects("workflow", "show", store, flow.id)
    assert info["callback_result"]["value"] == {"sum": 1}
