"""A queue that is not there, or not for this tenant: never silence."""

import pytest
from support_cli import first, make, run

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    store = make(tmp_path / "s")
    first("enqueue", store, "mail", "x")
    return store


@pytest.mark.parametrize("command", ["ls", "peek", "dead", "redrive", "purge"])
def test_a_misspelt_queue_is_refused_with_the_right_name(store, command):
    options = ("--yes",) if command == "purge" else ()
    out = run(command, store, "mial", *options, code=2)
    assert "no queue 'mial'" in out.stderr
    assert "did you mean 'mail'?" in out.stderr
    assert out.stdout == ""


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_misspelt_queue_is_neither_paused_nor_resumed(store, command):
    out = run(command, store, "mial", code=2)
    assert "did you mean 'mail'?" in out.stderr
    assert "mial" not in run("ls", store).stdout


def test_a_queue_that_looks_misspelt_is_paused_with_yes(store):
    """It may be paused before its first task."""
    out = run("pause", store, "mial", "--yes")
    assert "did you mean 'mail'?" in out.stderr
    assert "mial" in run("ls", store).stdout
    assert "nothing in queue 'reports'" in run("pause", store, "reports").stderr


@pytest.mark.parametrize("command", ["ls", "peek", "dead", "redrive"])
def test_an_empty_queue_is_noted(store, command):
    out = run(command, store, "reports")
    assert "there is nothing in queue 'reports'" in out.stderr
    assert "mail" in out.stderr


def test_a_queue_of_other_tenants_is_noted(store):
    first("enqueue", store, "images", "x", "--tenant", "acme")
    out = run("ls", store, "images")
    assert "queue 'images' has tasks of other tenants: give --tenant or --all-tenants" in out.stderr
    assert run("ls", store, "images", "--all-tenants").stderr == ""


@pytest.mark.parametrize("command", [("find",), ("act", "cancel"), ("history",)], ids=" ".join)
def test_a_command_for_all_tenants_says_to_leave_the_option_out(store, command):
    name, *act = command
    queue = ("mail",) if name == "history" else ("--queue", "mail")
    out = run(name, store, *act, *queue, "--tenant", "acme")
    assert "queue 'mail' has tasks of other tenants: leave --tenant out" in out.stderr


@pytest.mark.parametrize("yes", [(), ("--yes",)], ids=["counted", "done"])
def test_an_act_on_a_misspelt_queue_or_function_is_noted(store, yes):
    out = run("act", store, "cancel", "--queue", "mial", *yes, code=2 if yes else 0)
    assert "no queue 'mial': did you mean 'mail'?" in out.stderr
    assert ("0 tasks" in out.stdout) is not bool(yes)
    assert "--yes" not in out.stdout
    assert run("act", store, "delete", "--queue", "mail", *yes).stderr == ""


@pytest.mark.parametrize(
    ("name", "argument", "rest"),
    [
        ("ls", "mail", ()),
        ("purge", "mail", ("--yes",)),
        ("enqueue", "mail", ("hello",)),
        ("retry", "01a00000-0000-7000-9000-000000000000", ()),
    ],
)
def test_swapped_arguments_are_told(store, name, argument, rest):
    error = run(name, argument, store, *rest, code=2).stderr
    assert error == (
        f"error: {argument!r} holds no store, but '{store}' does: STORE comes first "
        f"(lodeq {name} --help)\n"
    )
    assert "STORE comes first" not in run(name, argument, "here", *rest, code=2).stderr


def test_a_known_queue_without_such_tasks_is_no_mistake(store):
    out = run("dead", store, "mail")
    assert (out.stdout, out.stderr) == ("", "no tasks\n")


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["table", "json"])
def test_an_empty_list_says_so_on_stderr(tmp_path, json):
    empty = make(tmp_path / "empty")
    out = run("ls", empty, *json)
    assert (out.stdout, out.stderr) == ("", "no tasks\n")
    for name in ("ls", "dead", "peek"):
        out = run(name, empty, "mail", *json)
        assert out.stdout == ""
        assert out.stderr == "note: there is nothing in queue 'mail', nor in any other\n"


@pytest.mark.parametrize("name", ["ls", "dead", "peek"])
def test_a_list_with_tasks_says_nothing(store, name):
    has_tasks = name != "dead"
    assert run(name, store, "mail").stderr == ("" if has_tasks else "no tasks\n")
