"""Queues: listed, paused, purged, redriven; with tenants."""

import pytest
from support_cli import first, make, objects, picture, run

from lodeq.service.cli import connection

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "s", shards=2)


def add(store, queue, *args, tenant=""):
    return first("enqueue", store, queue, "x", "--tenant", tenant, *args)["id"]


def die(store, queue):
    run("enqueue", store, queue, "x", "--max-attempts", 1, "--priority", 9)
    run("nack", store, first("claim", store, queue)["lease"])


def test_queues_are_listed_with_their_counts(store):
    add(store, "mail")
    add(store, "mail", "--delay", "1h")
    add(store, "audit", tenant="acme")
    queues = objects("ls", store)
    assert [(q["queue"], q["tenant"]) for q in queues] == [("audit", "acme"), ("mail", "")]
    assert (queues[1]["ready"], queues[1]["delayed"], queues[1]["leased"]) == (1, 1, 0)
    assert 0 <= queues[1]["oldest_ready_age"] < 60
    table = run("ls", store).stdout.splitlines()
    assert len(table) == 3
    assert table[0].split()[:3] == ["queue", "tenant", "ready"]


def test_tasks_by_state_and_tenant(store):
    ids = [add(store, "mail", tenant=tenant) for tenant in ("", "acme")]
    late = add(store, "mail", "--delay", "1h")
    assert [t["id"] for t in objects("ls", store, "mail")] == [ids[0], late]
    assert [t["id"] for t in objects("ls", store, "mail", "--state", "delayed")] == [late]
    assert len(objects("ls", store, "mail", "--all-tenants")) == 3
    assert len(objects("ls", store, "mail", "--all-tenants", "--limit", 2)) == 2
    assert [t["id"] for t in objects("peek", store, "mail", "--tenant", "acme")] == [ids[1]]


def test_pause_outlives_the_command(store):
    add(store, "mail")
    run("pause", store, "mail")
    assert first("ls", store)["is_paused"]
    assert "paused" in run("ls", store).stdout
    run("claim", store, "mail", code=1)
    run("resume", store, "mail")
    assert not first("ls", store)["is_paused"]
    run("claim", store, "mail")


def test_a_queue_that_is_paused_and_empty_is_listed(store):
    run("pause", store, "mail", "--all-tenants")
    assert first("ls", store)["is_paused"]
    run("resume", store, "mail", "--all-tenants")
    assert objects("ls", store) == []


def test_a_resume_undoes_the_pause_of_all_tenants_too(store):
    add(store, "mail")
    run("pause", store, "mail", "--all-tenants")
    assert "paused (all tenants)" in run("ls", store).stdout
    assert run("resume", store, "mail").stdout == "mail resumed\n"
    assert "paused" not in run("ls", store).stdout
    run("claim", store, "mail")


def test_a_resume_that_leaves_a_queue_paused_says_what_to_type(store):
    add(store, "mail", tenant="acme")
    run("pause", store, "mail", "--all-tenants")
    out = run("resume", store, "mail", "--tenant", "acme", code=1)
    assert out.stdout == ""
    assert f"lodeq resume {store} mail --all-tenants" in out.stderr
    run("resume", store, "mail", "--all-tenants")
    run("claim", store, "mail", "--tenant", "acme")


def test_a_resume_names_the_tenants_that_stay_paused(store):
    add(store, "mail")
    add(store, "mail", tenant="acme")
    run("pause", store, "mail", "--tenant", "acme")
    assert "stay paused: 'acme'" in run("resume", store, "mail").stderr
    assert run("resume", store, "mail", "--all-tenants").stderr == ""
    assert "paused" not in run("ls", store).stdout


def test_redrive(store):
    die(store, "mail")
    assert first("redrive", store, "mail") == {"queue": "mail", "redriven": 1}
    assert run("redrive", store, "mail").stdout == "0 tasks redriven\n"


def test_purge_takes_no_for_an_answer(store, monkeypatch):
    monkeypatch.setattr(connection, "_is_asked_on_a_terminal", lambda: True)
    add(store, "mail")
    result = run("purge", store, "mail", code=2, stdin="n\n")
    assert "Delete all ready, delayed, waiting and dead tasks of mail? [y/N]" in result.stderr
    assert "nothing was done" in result.stderr
    assert run("purge", store, "mail", stdin="y\n").stdout.endswith("1 tasks purged\n")


def test_purge_asks_first(store):
    for _ in range(3):
        add(store, "mail")
    die(store, "mail")
    before = picture(store)
    assert "--yes" in run("purge", store, "mail", code=2).stderr
    assert picture(store) == before
    assert first("purge", store, "mail", "--state", "dead", "--yes")["purged"] == 1
    assert run("purge", store, "mail", "--yes").stdout == "3 tasks purged\n"


def test_settings_of_a_queue_are_set_shown_and_taken_back(store):
    set_ = run(
        "queue", "set", store, "mail", "rate=10/s", "concurrency=8", "history=7d", "faces=off"
    )
    assert "10/s" in set_.stdout
    (found,) = objects("queue", "show", store, "mail")
    assert (found["rate"], found["concurrency"], found["history"]) == ("10/s", 8, 604_800.0)
    assert found["faces"] is False
    assert set(found["by"].values()) == {"operator"}
    lines = run("queue", "show", store, "mail").stdout.splitlines()
    assert lines[0].split() == ["setting", "value", "set", "by"]
    assert ["faces", "off", "operator"] in [line.split() for line in lines]
    run("queue", "set", store, "mail", "rate=none", "concurrency=none", "history=none")
    run("queue", "set", store, "mail", "faces=default", "--by", "ann")
    assert "nothing is set" in run("queue", "show", store, "mail").stdout


@pytest.mark.parametrize(
    "wrong", ["speed=3", "rate", "rate=fast", "concurrency=many", "faces=perhaps", "concurrency=0"]
)
def test_a_wrong_setting_says_what_to_write(store, wrong):
    done = run("queue", "set", store, "mail", wrong, code=2)
    assert done.stderr.startswith("error: ") or "expected" in done.stderr
    run("queue", "set", store, "mail", "rate=1/s", "rate=2/s", code=2)
    assert "nothing is set" in run("queue", "show", store, "mail").stdout


def test_cancel_all_asks_first_and_leaves_dead_letters(store):
    die(store, "mail")
    for _ in range(4):
        add(store, "mail")
    add(store, "mail", "--delay", "1h")
    run("claim", store, "mail")
    before = picture(store)
    assert "--yes" in run("cancel-all", store, "mail", code=2).stderr
    assert picture(store) == before
    assert first("cancel-all", store, "mail", "--keep-leased", "--yes")["cancelled"] == 4
    assert run("cancel-all", store, "mail", "--yes").stdout == "1 tasks cancelled\n"
    assert first("ls", store)["dead"] == 1


@pytest.mark.parametrize("command", ["ls", "dead"])
def test_a_list_that_is_cut_says_so(store, command):
    for _ in range(3):
        die(store, "mail")
    out = run(command, store, "mail", "--limit", 2)
    assert out.stderr == "there are more than 2: give --limit\n"
    assert run(command, store, "mail", "--limit", 3).stderr == ""
    assert len(objects(command, store, "mail", "--limit", 2)) == 2


def test_a_task_is_one_line_where_stdout_is_no_terminal(store):
    add(store, "a-queue-with-a-name-of-more-than-forty-characters", tenant="t" * 60)
    add(store, "mail")
    out = run("ls", store).stdout.splitlines()
    assert len(out) == 3
    assert ("t" * 60) in out[1]


def test_dead_letters_are_claimed_and_ended_one_by_one(store):
    for reason in ("one", "two", "three"):
        run("enqueue", store, "mail", reason, "--max-attempts", 1)
        run("nack", store, first("claim", store, "mail")["lease"], "--reason", reason)
    taken = [first("claim", store, "mail", "--dead") for _ in range(3)]
    run("claim", store, "mail", "--dead", code=1)
    assert [one["reason"] for one in taken] == ["one", "two", "three"]
    assert all(one["attempt"] == 1 and one["dead_at"] for one in taken)
    run("complete", store, taken[0]["lease"], "--result", "seen")
    told = run("release", store, taken[1]["lease"], "--redrive", "--delay", "1s", code=2)
    assert "takes no --delay" in told.stderr
    assert first("release", store, taken[1]["lease"], "--redrive")["redriven"]
    run("nack", store, taken[2]["lease"])
    (queue,) = objects("ls", store)
    assert (queue["ready"], queue["leased"], queue["dead"]) == (1, 0, 1)
    again = first("claim", store, "mail")
    assert again["id"] == taken[1]["id"]
    assert "no dead letter" in run("release", store, again["lease"], "--redrive", code=2).stderr
    assert run("claim", store, "mail", "--dead").stdout.split()[3:5] == ['"three"', "three"]
    told = run("claim", store, "mail", "--dead", "--all-tenants", code=2)
    assert "one tenant" in told.stderr
