"""A command without ``--tenant`` means the default tenant, and says whom it leaves out."""

import pytest
from support_cli import first, make, objects, run

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    """A queue of two tenants: the default one, and acme."""
    store = make(tmp_path / "s")
    for tenant in ("", "acme"):
        run("enqueue", store, "mail", "x", "--tenant", tenant)
    return store


@pytest.fixture
def dead_store(store):
    """As ``store``, with a dead letter of each."""
    for tenant in ("", "acme"):
        whose = ("--tenant", tenant)
        run("enqueue", store, "mail", "x", *whose, "--max-attempts", 1, "--priority", 9)
        run("nack", store, first("claim", store, "mail", *whose)["lease"])
    return store


def test_a_pause_says_whom_it_leaves_running(store):
    out = run("pause", store, "mail")
    assert out.stdout == "mail paused; 1 other tenant goes on (--all-tenants pauses it)\n"
    assert out.stderr == ""
    run("claim", store, "mail", "--tenant", "acme")


def test_a_pause_counts_several_tenants(store):
    run("enqueue", store, "mail", "x", "--tenant", "zoo")
    out = run("pause", store, "mail").stdout
    assert out == "mail paused; 2 other tenants go on (--all-tenants pauses them)\n"


def test_a_pause_in_json_counts_them(store):
    found = first("pause", store, "mail")
    assert found == {"queue": "mail", "paused": True, "other_tenants": 1}


def test_a_pause_of_all_leaves_nobody_out(store):
    assert run("pause", store, "mail", "--all-tenants").stdout == "mail paused for all tenants\n"
    found = first("pause", store, "mail", "--all-tenants")
    assert found == {"queue": "mail", "paused": True}
    assert run("pause", store, "mail").stdout == "mail paused\n"  # nobody goes on


def test_a_pause_names_the_tenant_that_was_named(store):
    assert run("pause", store, "mail", "--tenant", "acme").stdout == (
        "mail paused for tenant 'acme'\n"
    )
    assert run("pause", store, "mail").stdout == "mail paused\n"  # acme is paused already


def test_a_pause_of_a_queue_that_only_others_have_says_so_once(tmp_path):
    store = make(tmp_path / "s")
    run("enqueue", store, "mail", "x", "--tenant", "acme")
    out = run("pause", store, "mail")
    assert out.stdout == "mail paused; 1 other tenant goes on (--all-tenants pauses it)\n"
    assert out.stderr == ""


def test_a_resume_counts_those_that_stay_paused(store):
    run("pause", store, "mail", "--tenant", "acme")
    assert first("resume", store, "mail") == {"queue": "mail", "resumed": True, "other_tenants": 1}
    assert "other_tenants" not in first("resume", store, "mail", "--all-tenants")
    out = run("resume", store, "mail", "--tenant", "acme")
    assert out.stdout == "mail resumed for tenant 'acme'\n"


def test_a_redrive_says_whose_dead_letters_stay(dead_store):
    out = run("redrive", dead_store, "mail")
    assert out.stdout == (
        "1 tasks redriven; 1 of 1 other tenant stays dead (--all-tenants redrives it)\n"
    )
    again = first("redrive", dead_store, "mail")
    assert again == {"queue": "mail", "redriven": 0, "other_tenants": 1}
    assert run("redrive", dead_store, "mail", "--all-tenants").stdout == "1 tasks redriven\n"
    assert run("redrive", dead_store, "mail").stdout == "0 tasks redriven\n"


def test_a_purge_says_whose_tasks_stay(dead_store):
    out = run("purge", dead_store, "mail", "--state", "dead", "--yes").stdout
    assert out == "1 tasks purged; 1 of 1 other tenant stays (--all-tenants purges it)\n"
    out = run("purge", dead_store, "mail", "--yes").stdout
    assert out == "1 tasks purged; 2 of 1 other tenant stay (--all-tenants purges them)\n"
    assert run("purge", dead_store, "mail", "--tenant", "acme", "--yes").stdout == (
        "2 tasks purged\n"
    )


def test_a_cancellation_of_all_says_whose_tasks_stay(store):
    run("claim", store, "mail", "--tenant", "acme")
    out = run("cancel-all", store, "mail", "--keep-leased", "--yes").stdout
    assert out == "1 tasks cancelled\n"  # the other one is leased
    out = run("cancel-all", store, "mail", "--yes").stdout
    assert out == "0 tasks cancelled; 1 of 1 other tenant stays (--all-tenants cancels it)\n"


@pytest.mark.parametrize(
    ("command", "what"), [("dead", "dead letters"), ("peek", "ready tasks"), ("ls", "tasks")]
)
def test_a_list_notes_whose_tasks_it_leaves_out(dead_store, command, what):
    out = run(command, dead_store, "mail")
    note = f"note: 1 other tenant of this queue has {what}, too: --all-tenants lists it\n"
    assert out.stderr == note
    assert run(command, dead_store, "mail", "--all-tenants").stderr == ""
    assert run(command, dead_store, "mail", "--tenant", "acme").stderr == ""
    assert len(objects(command, dead_store, "mail")) < len(
        objects(command, dead_store, "mail", "--all-tenants")
    )
    run("purge", dead_store, "mail", "--all-tenants", "--yes")
    assert run(command, dead_store, "mail").stderr != note
