"""The history of ended tasks, and the attempts that ``show`` lists."""

import re

import pytest
from support_cli import first, make, objects, run

import lodeq.sync

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "s", shards=2)


def end(store, queue, *args):
    task = first("enqueue", store, queue, "x", *args)["id"]
    run("complete", store, first("claim", store, queue, "--worker", "w1")["lease"])
    return task


def test_what_ended_is_listed_by_queue_state_and_time(store):
    done, other = end(store, "mail"), end(store, "audit")
    run("enqueue", store, "mail", "x", "--max-attempts", 1)
    run("nack", store, first("claim", store, "mail")["lease"], "--reason", "no such box")
    found = objects("history", store)
    assert {one["id"] for one in found} > {done, other}
    assert [one["id"] for one in objects("history", store, "audit")] == [other]
    (dead,) = objects("history", store, "mail", "--state", "dead")
    assert dead["error"] == "no such box"
    assert len(objects("history", store, "--since", "1h")) == 3
    assert objects("history", store, "--until", "1h") == []
    assert objects("history", store, "mail", "--since", "2020-01-01T00:00")
    table = run("history", store, "mail").stdout.splitlines()
    assert table[0].split()[:3] == ["id", "state", "queue"]
    assert "no such box" in "\n".join(table)


def test_a_page_says_where_the_next_begins(store):
    ids = {end(store, "mail") for _ in range(3)}
    some = run("history", store, "mail", "--limit", 2, "--json")
    cursor = some.stderr.split("--cursor ")[1].strip()
    rest = objects("history", store, "mail", "--cursor", cursor)
    assert len(some.stdout.splitlines()) == 2
    assert len(rest) == 1
    assert rest[0]["id"] in ids


def test_a_page_that_has_all_names_no_other(store):
    for _ in range(3):
        end(store, "mail")
    assert run("history", store, "mail", "--limit", 3).stderr == ""
    assert "--cursor" in run("history", store, "mail", "--limit", 2).stderr


def test_show_says_what_is_no_longer_stored_and_keeps_the_times(store):
    task = first("enqueue", store, "mail", "x")["id"]
    lease = first("claim", store, "mail", "--worker", "w1")["lease"]
    run("complete", store, lease)
    assert "payload        no longer stored" in run("show", store, task).stdout
    with lodeq.sync.open(store) as engine:
        queue = engine.queue("mail", retention=0)
        receipt = queue.enqueue(b"y")
        (taken,) = queue.claim(worker="w2")
        taken.complete(b"done")
    told = run("show", store, receipt.id).stdout
    assert "history (the result is no longer kept)" in told
    for name in ("waited", "ran", "took"):
        assert re.search(rf"^  {name} +[0-9.e-]+$", told, re.MULTILINE), told
    document = first("show", store, receipt.id)
    assert document["result"] is None
    assert document["history"]["took"] >= document["history"]["ran"] >= 0


def test_show_lists_the_attempts(store):
    task = first("enqueue", store, "mail", "x")["id"]
    run(
        "nack",
        store,
        first("claim", store, "mail", "--worker", "w1")["lease"],
        "--reason",
        "boom",
        "--delay",
        0,
    )
    run("complete", store, first("claim", store, "mail", "--worker", "w2")["lease"])
    shown = run("show", store, task).stdout
    assert "attempts" in shown
    assert "nacked" in shown
    assert "by w1: boom" in shown
    made = first("show", store, task)["attempts_made"]
    assert [one["outcome"] for one in made] == ["nacked", "completed"]


def test_a_redrive_stands_between_attempts_of_the_same_number(store):
    task = first("enqueue", store, "mail", "x", "--max-attempts", 1)["id"]
    for redrive in (True, False):
        lease = first("claim", store, "mail", "--worker", "w1")["lease"]
        run("nack", store, lease, "--reason", "boom", "--delay", 0)
        if redrive:
            run("redrive", store, "mail")
    lines = run("show", store, task).stdout.partition("attempts\n  ")[2].splitlines()
    assert [line.split()[0] for line in lines] == ["1", "redriven,", "1"]


def test_a_wrong_time_is_named(store):
    assert "expected a time like 12h" in run("history", store, "--since", "soon", code=2).stderr


def test_nothing_found_is_said_on_stderr(store):
    """Stdout stays empty, for pipes and JSON."""
    assert run("history", store).stderr == "nothing found\n"
    end(store, "mail")
    for options in (("--state", "dead"), ("--since", "1h", "--text", "no such text")):
        out = run("history", store, "mail", *options)
        assert (out.stdout, out.stderr) == ("", "nothing found\n")
        out = run("history", store, "mail", *options, "--json")
        assert (out.stdout, out.stderr) == ("", "nothing found\n")
    assert run("history", store, "mail").stderr == ""
    said = run("history", store, "mial").stderr.splitlines()
    assert said[0] == "nothing found"
    assert "did you mean 'mail'?" in said[1]


@pytest.mark.parametrize("text", ["08:00", "8:00", "23:59:59", "T08:00", "08:00Z"])
def test_a_time_of_day_needs_its_date(store, text):
    said = run("history", store, "--since", text, code=2).stderr
    assert f"'{text}' has no date" in said
    (example,) = re.findall(r"\d{4}-\d\d-\d\dT\d\d:\d\d", said)
    assert run("history", store, "--until", example, "--since", "2020-01-01").stdout == ""


def test_help_shows_words_for_moments(store):
    said = run("history", "--help").stdout
    assert "--since MOMENT" in said
    assert "--until MOMENT" in said
    assert "_" not in said
