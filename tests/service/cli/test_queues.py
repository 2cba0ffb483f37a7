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


def test_redrive(store):
    die(store, "mail")
    assert first("redrive", store, "mail") == {"queue": "mail", "redriven": 1}
    assert run("redrive", store, "mail").stdout == "0 tasks redriven\n"


def test_purge_takes_no_for_an_answer(store, monkeypatch):
    monkeypatch.setattr(connection, "_is_asked_on_a_terminal", lambda: True)
    add(store, "mail")
    result = run("purge", store, "mail", code=2, stdin="n\n")
    assert "Delete all ready, delayed and dead tasks of mail? [y/N]" in result.stderr
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
