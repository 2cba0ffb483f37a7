"""Beside a running service: what looks works, what writes says who is in the way."""

import json
import os
import signal
import subprocess
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from support_cli import RUN, first, make, objects, picture, run
from support_ingest import publish
from support_purge import make_plan

import lodeq
from lodeq.engine.files.lockfile import boot_id
from lodeq.engine.files.served_note import forget_note, leave_note, note_path, read_note

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "s", shards=2)


def test_everything_that_looks(store):
    with lodeq.sync.open(store) as engine:
        queue = engine.queue("mail")
        receipt = queue.enqueue({"n": 1})
        queue.enqueue("late", delay=60)
        (lease,) = queue.claim()
        before = picture(store)
        assert first("ls", store)["leased"] == 1
        assert {task["state"] for task in objects("ls", store, "mail")} == {"leased", "delayed"}
        assert first("show", store, receipt.id)["state"] == "leased"
        assert objects("peek", store, "mail") == objects("dead", store, "mail") == []
        told = first("stats", store)
        assert not told["served"]
        assert "engine" not in told  # zeros that nobody has counted would look like facts
        assert [queue["leased"] for queue in told["queues"]] == [1]
        assert told["oldest_lease_age"] >= 0
        assert run("top", store, "--count", 2, "--interval", "50ms").stdout.count("1 leased") == 2
        assert "is open already" in run("repair", store, code=2).stderr
        assert objects("repair", store, "--dry-run") == []
        assert run("verify", store).stdout == "nothing is wrong\n"
        assert run("snapshots", store).stdout == ""
        assert "is open already" not in run("doctor", store).output
        assert picture(store) == before
        lease.complete()
        assert first("show", store, receipt.id)["state"] == "completed"
        taken = engine.snapshot()
        assert first("snapshots", store)["id"] == taken.id


@pytest.mark.parametrize(
    "args",
    [
        ["enqueue", "mail", "x"],
        ["claim", "mail"],
        ["pause", "mail"],
        ["purge", "mail", "--yes"],
        ["redrive", "mail"],
        ["compact"],
        ["snapshot"],
        ["release-snapshot", "x", "--yes"],
        ["ingest"],
        ["forget", ".", "--yes"],
    ],
    ids=lambda args: args[0],
)
def test_what_writes_names_the_holder(store, args):
    with lodeq.sync.open(store) as engine:
        engine.queue("mail").enqueue(b"x")
        before = picture(store)
        error = run(args[0], store, *args[1:], code=2).stderr
        assert "is open already" in error
        assert "close it" not in error  # one cure: that of the command
        assert "compacts by itself" in error if args == ["compact"] else "lodeq serve" in error
        assert picture(store) == before


@pytest.mark.parametrize("serve", [None, True], ids=["held", "served"])
def test_a_worker_or_server_of_a_held_store_is_told_what_to_do(store, serve, tmp_path):
    (tmp_path / "held_jobs.py").write_text(
        "from lodeq.worker import App\n"
        f"app = App({str(store)!r})\n"
        '@app.task("mail")\n'
        "async def send(): ...\n"
    )
    with lodeq.sync.open(store, serve=serve):
        for command, cure in (
            (["worker", "held_jobs:app"], "work for it there: --store unix://"),
            (["serve", store], "it can be reached already: unix://"),
        ):
            told = subprocess.run(
                [*RUN, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60
            )
            assert told.returncode == 2
            last = told.stderr.splitlines()[-1]
            assert "is open already" in last
            assert (cure if serve else "let it serve the store") in last
            assert "lodeq.connect" not in last


class TestNote:
    def test_it_is_found_until_it_is_forgotten(self, store):
        assert read_note(store) is None
        leave_note(store, "unix:///run/x.sock")
        assert read_note(store) == ("unix:///run/x.sock", os.getpid(), boot_id())
        assert json.loads(Path(note_path(store)).read_text()).keys() == {
            "address",
            "pid",
            "boot_id",
        }
        assert os.stat(note_path(store)).st_mode & 0o777 == 0o600
        forget_note(store)
        assert read_note(store) is None
        forget_note(store)

    def test_that_of_another_server_stays(self, store, monkeypatch):
        leave_note(store, "unix:///run/x.sock")
        monkeypatch.setattr("os.getpid", lambda: 1)
        forget_note(store)
        assert read_note(store) is not None

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            '{"address": "file:///etc", "pid": 1, "boot_id": "x"}',
            '{"address": 1, "pid": 1, "boot_id": "x"}',
            '{"address": "http://x", "pid": true, "boot_id": "x"}',
            '{"address": "http://x", "pid": 1}',
            '{"address"',
            "é",
            "[" * 4000,
        ],
    )
    def test_one_that_is_none_is_passed_over(self, store, text):
        with open(note_path(store), "w", encoding="utf-8") as file:
            file.write(text)
        assert read_note(store) is None

    def test_a_store_with_one_opens(self, store):
        leave_note(store, "unix:///run/x.sock")
        run("enqueue", store, "mail", "x")

    def test_a_link_is_not_followed(self, store, tmp_path):
        (tmp_path / "elsewhere").write_text('{"address": "http://x", "pid": 1, "boot_id": "x"}')
        os.symlink(tmp_path / "elsewhere", note_path(store))
        assert read_note(store) is None


@pytest.fixture
def service(store):
    """``lodeq serve`` in a process of its own, once it listens."""
    pytest.importorskip("starlette")
    child = subprocess.Popen(
        [*RUN, "serve", str(store), "--checkpoints", str(store.parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    line = child.stdout.readline()
    assert line.startswith("serving unix://"), line + child.communicate(timeout=30)[0]
    yield child
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=30)
    assert (child.returncode, output) == (0, "")
    assert read_note(store) is None


class TestServed:
    def test_what_writes_goes_through_the_service_and_says_so(self, store, service):
        asked = f"the store is held by process {service.pid}: asking unix://{store}.sock\n"
        result = run("enqueue", store, "mail", '{"n": 1}', "--parse")
        assert result.stderr == asked
        task_id = result.stdout.strip()
        taken = first("claim", store, "mail")
        assert (taken["id"], taken["payload"]) == (task_id, {"n": 1})
        run("complete", store, taken["lease"], "--result", "done")
        run("complete", store, taken["lease"], "--result", "done")  # the very lease that ended it
        assert first("show", store, task_id)["state"] == "completed"
        for command in ("nack", "release"):
            assert "no longer valid" in run(command, store, taken["lease"], code=2).stderr

    def test_operating(self, store, service):
        ids = run("enqueue", store, "mail", "--lines", stdin="a\nb\nc\n").stdout.split()
        run("pause", store, "mail")
        run("claim", store, "mail", code=1)
        run("resume", store, "mail")
        lease = first("claim", store, "mail")["lease"]
        run("nack", store, lease, "--reason", "why")
        run("cancel", store, ids[1], "--yes")
        assert first("purge", store, "mail", "--yes")["purged"] == 2
        run("backup", store, store.parent / "copy")
        assert run("verify", store.parent / "copy").stdout == "nothing is wrong\n"

    def test_the_data_at_large(self, store, service, tmp_path):
        asked = f"the store is held by process {service.pid}: asking unix://{store}.sock\n"
        result = run("snapshot", store)
        assert result.stderr == asked
        (told,) = objects("snapshots", store)
        assert (told,) == tuple(objects("snapshots", f"unix://{store}.sock"))
        assert result.stdout.strip() == told["id"]
        assert run("release-snapshot", store, told["id"], "--yes").stderr == asked
        assert objects("snapshots", store) == []

        publish(store, [lodeq.NewTask(n) for n in range(7)])
        result = run("ingest", store, "--job", "j")  # unless the service was quicker
        assert (result.stdout.startswith("j: 7 tasks"), result.stderr) == (True, asked)

        lease = first("claim", store, "mail")
        run("complete", store, lease["lease"])
        ended = datetime.fromisoformat(first("show", store, lease["id"])["result"]["finished_at"])
        end = (bytes(lodeq.TaskId(lease["id"])), round(ended.timestamp() * 1_000_000) // 1000)
        plan = make_plan(store, tmp_path / "plan", [end], [])
        result = run("forget", store, plan, "--yes")
        assert (result.stdout[:9], result.stderr) == ("1 results", asked)
        assert first("forget", store, plan, "--yes") == {"results": 0, "dead": 0, "absent": 1}

    def test_only_the_service_knows_totals_and_latencies(self, store, service):
        run("enqueue", store, "mail", "x")
        told = first("stats", store)
        assert (told["served"], told["engine"]["enqueued_total"]) == (True, 1)
        assert "since open: 1 enqueued" in run("stats", store).stdout
        assert "per second:" in run("top", store, "--count", 2, "--interval", "50ms").stdout
        run("verify", store)

    def test_its_metrics(self, store, service):
        run("enqueue", store, "mail", "x")
        with httpx.Client(transport=httpx.HTTPTransport(uds=f"{store}.sock")) as client:
            answer = client.get("http://localhost/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert 'lodeq_tasks{queue="mail",state="ready"} 1.0' in answer.text

    def test_by_its_address(self, store, service):
        url = f"unix://{store}.sock"
        run("enqueue", url, "mail", "x")
        assert first("ls", url)["ready"] == 1
        assert first("stats", url)["served"]
        assert len(objects("ls", url, "mail")) == 1
        assert run("verify", url).stdout == "nothing is wrong\n"


def test_a_note_of_a_server_that_died(store):
    leave_note(store, f"unix://{store}.sock")
    run("enqueue", store, "mail", "x")  # nobody holds it
    assert not first("stats", store)["served"]
    with lodeq.sync.open(store):
        assert "unix://" in run("enqueue", store, "mail", "x", code=2).stderr
