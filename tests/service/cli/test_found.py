"""``find`` and ``act``: tasks by a filter, as an operator types it."""

import base64
import csv
import io
import json

import pytest
from support_cli import first, objects, run

import lodeq.sync
from lodeq import BusyError, CommitUnknownError, FunctionParameter, PublishedFunction
from lodeq.repository.api.engine import Engine
from lodeq.repository.api.queue import Queue
from lodeq.service.cli.commands import found


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "jobs"
    with lodeq.sync.open(path) as engine:
        mail = engine.queue("mail", max_attempts=1)
        for n in range(6):
            face = {"function": "send", "preview": f"n={n}", "labels": {"customer": f"c{n % 2}"}}
            mail.enqueue(b"%d" % n, **face)
        for lease in mail.claim(limit=3):
            lease.bury("timeout after 5 s")
    return str(path)


def test_a_failing_job_is_found_by_its_argument_and_sent_back_with_those_like_it(store):
    (found,) = objects("find", store, "--state", "dead", "--label", "customer=c1")
    assert (found["function"], found["preview"], found["labels"]) == (
        "send",
        "n=1",
        {"customer": "c1"},
    )
    shown = run("find", store, "--reason", "TIMEOUT").stdout
    assert "send(n=1)" in shown
    assert "customer=c1" in shown
    assert run("find", store, "--reason", "timeout", "--count").stdout == "3\n"
    assert run("find", store, "--finished-newer-than", "1h", "--count").stdout == "3\n"
    assert run("find", store, "--finished-older-than", "1h", "--count").stdout == "0\n"
    told = run("act", store, "redrive", "--reason", "timeout").stdout
    assert told == "redrive would mean 3 tasks: add --yes to do it\n"
    assert run("find", store, "--state", "dead", "--count").stdout == "3\n"
    done = run("act", store, "redrive", "--reason", "timeout", "--yes").stdout
    assert done == "redrive: 3 tasks; 0 had changed meanwhile\n"
    assert first("find", store, "--state", "ready", "--count", "--json") == {
        "count": 6,
        "is_exact": True,
    }


def test_ended_tasks_are_read_on_from_an_id(store):
    with lodeq.sync.open(store) as engine:
        for lease in engine.queue("mail").claim(limit=3):
            lease.complete()
    rising = ["find", store, "--queue", "mail", "--oldest-first"]
    first, second, third = [one["id"] for one in objects(*rising)]
    assert first < second < third
    assert [one["id"] for one in objects(*rising, "--after", first)] == [second, third]
    assert objects(*rising, "--after", third) == []
    page = run(*rising, "--limit", "1", "--json")
    assert json.loads(page.stdout)["id"] == first
    cursor = page.stderr.split("--cursor ")[1].strip()
    assert [one["id"] for one in objects(*rising, "--cursor", cursor)] == [second, third]
    history = ["history", store, "mail", "--state", "completed", "--oldest-first"]
    assert [one["id"] for one in objects(*history)] == [first, second, third]
    assert [one["id"] for one in objects(*history, "--after", second)] == [third]
    assert len(objects("history", store, "mail", "--oldest-first")) == 6  # and the dead
    out = f"{store}.jsonl"
    assert "2 tasks" in run(*rising, "--after", first, "--export", out).stdout
    with open(out, encoding="utf-8") as file:
        assert [json.loads(line)["id"] for line in file] == [second, third]
    for wrong, text in [
        (["find", store, "--after", first], "--after goes with --oldest-first"),
        ([*rising, "--count"], "leave --oldest-first out"),
        ([*rising, "--after", "first"], "is not a UUID"),
        ([*rising, "--state", "dead"], "list these by themselves"),
        (["find", store, "--cursor", cursor], "with oldest_first="),
        (["history", store, "--after", first], "--after goes with --oldest-first"),
    ]:
        assert text in run(*wrong, code=2).stderr


def test_an_argument_is_a_pattern_and_only_there(store):
    assert run("find", store, "--arg", "n=1", "--count").stdout == "1\n"
    assert run("find", store, "--arg", "N=*", "--count").stdout == "0\n"
    assert run("act", store, "redrive", "--arg", "n=*").stdout == (
        "redrive would mean 3 tasks: add --yes to do it\n"
    )
    for command in (["find"], ["act", "redrive"], ["act", "redrive", "--yes"]):
        said = run(*command[:1], store, *command[1:], "--text", "n=*").stderr
        assert "it stands for any in --arg" in said
    assert "expected --arg NAME=PATTERN" in run("find", store, "--arg", "n", code=2).stderr
    assert "cannot be both" in run("find", store, "--arg", "n=1", "--arg", "n=2", code=2).stderr
    assert "cannot be the name" in run("find", store, "--arg", "n-1=2", code=2).stderr


def test_a_reason_may_have_stars(store):
    assert run("find", store, "--reason", "Timeout * s", "--count").stdout == "3\n"
    assert run("find", store, "--reason", "s * timeout", "--count").stdout == "0\n"


def test_a_search_for_text_says_that_previews_were_cut(store):
    with lodeq.sync.open(store) as engine:
        mail = engine.queue("mail")
        mail.enqueue(b"x", function="send", preview=f"body='{'x' * 300}', to='ann'")
        (lease,) = mail.claim(limit=4)[3:]
        lease.complete()
    note = (
        "note: long arguments are cut in previews, so a search for them may miss some: labels are"
    )
    for command, *more in (["find"], ["find", "--count"], ["act", "delete"], ["history"]):
        line = [command, store, *more, "--text"]
        assert note in run(*line, "bob").stderr
        assert run(*line, "to='ann'").stderr == ""


def test_another_priority_and_a_cancel(store):
    run("act", store, "reprioritise", "--label", "customer=c0", "--priority", "9", "--yes")
    assert [one["priority"] for one in objects("find", store, "--state", "ready")] == [9, 5, 5]
    assert first("act", store, "cancel", "--queue", "mail", "--yes", "--json") == {
        "done": 3,
        "skipped": 0,
        "refused": {},
    }
    assert first("act", store, "delete", "--state", "cancelled", "--yes", "--json")["done"] == 3


def test_pages_go_on_at_the_cursor(store):
    page = run("find", store, "--limit", "4", "--json")
    cursor = page.stderr.split("--cursor ")[1].strip()
    rest = objects("find", store, "--limit", "4", "--cursor", cursor)
    assert len(page.stdout.splitlines()) + len(rest) == 6


def exported(store, tmp_path, name, *args):
    """The rows of a file that ``lodeq find --export`` has written."""
    path = tmp_path / name
    told = run("find", store, *args, "--export", str(path)).stdout
    assert told.endswith(f"exported to {path}\n")
    assert path.stat().st_mode & 0o777 == 0o600
    if name.endswith("jsonl"):
        rows = [json.loads(line) for line in path.read_text("ascii").splitlines()]
    elif name.endswith("csv"):
        rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8"), newline="")))
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    assert told.startswith(f"{len(rows):,} tasks")
    return rows


def test_a_page_that_has_all_names_no_other(store):
    assert run("find", store, "--limit", 6).stderr == ""
    assert "--cursor" in run("find", store, "--limit", 5).stderr


def test_an_act_is_counted_beside_the_process_that_has_the_store(store):
    args = ("act", store, "redrive", "--reason", "timeout")
    with lodeq.sync.open(store):
        assert "redrive would mean 3 tasks" in run(*args).stdout
        assert "is open already" in run(*args, "--yes", code=2).stderr


@pytest.fixture
def breaks_off(monkeypatch):
    """Every act is one of slices of two; the second slice finds the store too busy."""
    act = Engine.act

    async def two(self, *args, cursor=None, **options):
        if cursor is not None:
            raise BusyError("too much at once", retry_after_ms=5)
        return await act(self, *args, limit=2, cursor=cursor, **options)

    monkeypatch.setattr(Engine, "act", two)


def test_an_act_that_breaks_off_says_what_is_done(store, breaks_off):
    done = run("act", store, "redrive", "--yes", code=2)
    assert done.stdout == "redrive: 2 tasks; 0 had changed meanwhile\n"
    assert "too much at once" in done.stderr


def test_an_act_that_breaks_off_says_what_is_done_as_json(store, breaks_off):
    assert first("act", store, "redrive", "--yes", code=2) == {
        "done": 2,
        "skipped": 0,
        "refused": {},
    }


def test_an_act_that_breaks_off_within_a_slice_counts_that_too(store, monkeypatch):
    async def half(self, *args, **options):
        error = BusyError("too much at once", retry_after_ms=5)
        error.done = 2
        raise error

    monkeypatch.setattr(Engine, "act", half)
    done = run("act", store, "redrive", "--yes", code=2)
    assert done.stdout == "redrive: 2 tasks; 0 had changed meanwhile\n"
    assert "2 tasks were changed before that: do the same again for the rest" in done.stderr


def test_a_purge_that_breaks_off_says_what_is_done(store, monkeypatch):
    async def half(self, state=None):
        error = CommitUnknownError("the disk is gone")
        error.done = 1
        raise error

    monkeypatch.setattr(Queue, "purge", half)
    done = run("purge", store, "mail", "--yes", "--json", code=2)
    assert json.loads(done.stdout)["purged"] == 1
    assert "1 task was changed before that, and perhaps more" in done.stderr


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_what_was_found_is_exported(store, tmp_path, format):
    rows = exported(store, tmp_path, f"dead.{format}", "--state", "dead")
    rows.sort(key=lambda row: row["preview"])  # those that died in one millisecond have no order
    assert [row["preview"] for row in rows] == ["n=0", "n=1", "n=2"]
    assert {row["reason"] for row in rows} == {"timeout after 5 s"}
    assert [int(row["attempts"]) for row in rows] == [1, 1, 1]
    assert not {"payload", "payload_base64"} & set(rows[0])
    labels = [
        dict(json.loads(one) if isinstance(one := row["labels"], str) else one) for row in rows
    ]
    assert labels == [{"customer": "c0"}, {"customer": "c1"}, {"customer": "c0"}]
    assert exported(store, tmp_path, f"none.{format}", "--reason", "nothing") == []


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_payloads_are_exported_where_they_are_asked_for(tmp_path, format):
    path = str(tmp_path / "jobs")
    values = [b"\x00raw", {"to": "änn", "n": [1, None]}, "text", 7, None]
    with lodeq.sync.open(path) as engine:
        mail = engine.queue("mail")
        for value in values:
            mail.enqueue(value, function="=HYPERLINK(1)")
        mail.enqueue({b"bytes": 1})
        mail.enqueue(b"gone")
        engine.act("cancel", lodeq.TaskFilter(), limit=1)
    rows = exported(path, tmp_path, f"all.{format}", "--payload")
    ready = [row for row in rows if row["state"] == "ready"]
    assert len(rows) == 7

    def value(row):
        text = row.get("payload")
        if row.get("payload_base64"):
            assert row["payload_kind"] == "bytes"
            return base64.b64decode(row["payload_base64"])
        return text if format == "jsonl" else json.loads(text) if text else None

    found = [value(row) for row in ready]
    assert found[: len(values) - 1] == values[1:]
    (odd,) = [row for row in ready if row.get("payload_kind") == "rendered"]
    assert value(odd) == [[{"base64": "Ynl0ZXM="}, 1]]
    quoted = "'=HYPERLINK(1)" if format == "csv" else "=HYPERLINK(1)"  # no formula of a spreadsheet
    assert ready[0]["function"] == quoted


def test_a_task_that_waits_is_exported_with_its_payload(tmp_path):
    path = str(tmp_path / "jobs")
    with lodeq.sync.open(path) as engine:
        first = engine.queue("mail").enqueue("first")
        engine.queue("mail").enqueue("second", after=[first.id])
    (row,) = exported(path, tmp_path, "all.jsonl", "--state", "waiting", "--payload")
    assert row["payload"] == "second"


@pytest.mark.slow
def test_many_are_exported_in_parts(tmp_path):
    path = str(tmp_path / "jobs")
    with lodeq.sync.open(path) as engine:
        tasks = [
            lodeq.NewTask(b"%d" % n, function="send", labels={"n": str(n)}) for n in range(3000)
        ]
        engine.queue("mail").enqueue_many(tasks)
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        rows = exported(path, tmp_path, name)
        assert len({row["id"] for row in rows}) == 3000


def test_a_file_is_whole_or_not_there(store, tmp_path):
    out = tmp_path / "found.csv"
    out.write_text("mine")
    refused = run("find", store, "--export", str(out), code=2)
    assert "exists: give another --export" in refused.stderr
    assert out.read_text() == "mine"
    refused = run("find", store, "--export", str(tmp_path / "no" / "found.csv"), code=2)
    assert "there is no folder" in refused.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["found.csv", "jobs"]


def test_a_file_that_another_export_has_made_meanwhile_stays(store, tmp_path, monkeypatch):
    out = tmp_path / "found.csv"
    real = found.found_chunks

    async def chunks(*args, **options):
        async for chunk in real(*args, **options):
            yield chunk
        (tmp_path / "found.csv.unfinished").write_text("of a third one")
        out.write_text("mine")

    monkeypatch.setattr(found, "found_chunks", chunks)
    assert "exists" in run("find", store, "--export", str(out), code=2).stderr
    names = ["found.csv", "found.csv.unfinished", "jobs"]
    assert (out.read_text(), sorted(p.name for p in tmp_path.iterdir())) == ("mine", names)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("find", "--export", "found.xml"), "expected a file called .jsonl, .csv, .parquet"),
        (("find", "--export", "found.csv", "--limit", "3"), "leave --limit out"),
        (("find", "--export", "found.csv", "--count"), "leave --count out"),
        (("find", "--payload"), "--payload is for --export"),
        (("act", "cancel", "--policy", "current"), "--policy is for redrive"),
        (
            ("act", "redrive", "--state", "ready"),
            "redrive applies to tasks that are dead, not ready",
        ),
        (("act", "reprioritise"), "--priority is for reprioritise"),
        (("find", "--label", "customer"), "expected --label KEY=VALUE"),
        (("find", "--id-prefix", "xyz"), "hex digits"),
    ],
)
def test_what_is_refused(store, args, text):
    name, *rest = args
    assert text in run(name, store, *rest, code=2).stderr


def test_nothing_found_is_said_on_stderr(store):
    """Stdout stays empty, for pipes and JSON."""
    for options in ((), ("--json",)):
        out = run("find", store, "--text", "no such text", *options)
        assert (out.stdout, out.stderr) == ("", "nothing found\n")
    assert run("find", store).stderr == ""
    assert run("find", store, "--text", "no such text", "--count").stdout == "0\n"


@pytest.mark.parametrize("options", [(), ("--count",), ("--queue", "mail"), ("--function", "send")])
def test_a_misspelt_name_of_an_argument_is_noted(store, options):
    said = run("find", store, "--arg", "m=1", *options).stderr.splitlines()
    assert "note: no call" in said[-1]
    assert said[-1].endswith(" has an argument 'm': arguments here: n")


def test_a_nearly_right_name_of_an_argument_is_guessed(store):
    with lodeq.sync.open(store) as engine:
        engine.publish_functions(
            [PublishedFunction("mail", "send", parameters=(FunctionParameter("recipient"),))]
        )
    for command in (["find", store], ["act", store, "redrive"], ["act", store, "redrive", "--yes"]):
        said = run(*command, "--queue", "mail", "--arg", "recipiant=*").stderr
        assert "no call in queue 'mail' has an argument 'recipiant': did you mean 'recipient'?" in (
            said
        )
        assert "has an argument" not in run(*command, "--arg", "recipient=nobody").stderr


def test_a_rest_of_arguments_is_known_by_its_previews(store):
    with lodeq.sync.open(store) as engine:
        engine.publish_functions(
            [PublishedFunction("mail", "send", parameters=(FunctionParameter("more", "rest"),))]
        )
    assert "has an argument" not in run("find", store, "--arg", "n=7").stderr
    assert "arguments here: n" in run("find", store, "--arg", "more=7").stderr
