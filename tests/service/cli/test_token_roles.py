"""Commands with a token that may do a part: docs/cli.md says which role each needs."""

import re
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from support_cli import run
from support_roles import entry, token_of, write_tokens

import lodeq
import lodeq.sync
from lodeq.service.cli.app import lodeq as command

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
ROLES = ("producer", "worker", "reader", "admin")
# One call of each command; URL, ID and LEASE stand for what the test has. Not called:
# a page, a plan of Spark, a function that a worker has published.
CALLS = {
    "enqueue": "URL mail x",
    "claim": "URL mail",
    "complete": "URL LEASE",
    "nack": "URL LEASE",
    "release": "URL LEASE",
    "show": "URL ID",
    "find": "URL",
    "history": "URL",
    "act": "URL cancel --queue mail --yes",
    "cancel": "URL ID --yes",
    "retry": "URL ID",
    "workflow ls": "URL",
    "workflow show": "URL ID",
    "workflow cancel": "URL ID --yes",
    "workflow redrive": "URL ID",
    "functions": "URL",
    "functions --forget": "URL mail --forget f",
    "workers": "URL",
    "cron": "URL",
    "ls": "URL",
    "stats": "URL",
    "top": "URL --count 1",
    "peek": "URL mail",
    "dead": "URL mail",
    "redrive": "URL mail",
    "cancel-all": "URL mail --yes",
    "purge": "URL mail --yes",
    "pause": "URL other --yes",
    "resume": "URL other",
    "queue show": "URL mail",
    "queue set": "URL mail history=1d",
    "verify": "URL",
    "backup": "URL copy",
    "snapshot": "URL",
    "snapshots": "URL",
    "release-snapshot": "URL 20260101T000000000Z --yes",
    "ingest": "URL",
    "forget-loads": "URL --older-than 30d --yes",
}
NOT_CALLED = {"dashboard", "forget", "cron run"}


def roles_by_command():
    """The table of the page."""
    section = PAGE.read_text().partition('<a id="roles"></a>')[2].partition("\n\n**")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 2 and cells[0].startswith("`"):
            roles = set(re.findall("`([a-z]+)`", cells[0]))
            for name in re.findall("`([a-z -]+)`", cells[1]):
                assert name not in found, name
                found[name] = roles
    return found


@pytest.fixture(scope="module")
def served():
    with tempfile.TemporaryDirectory(prefix="lodeq") as folder:
        root = Path(folder)
        limited = entry("limited", "admin", queues=["mail"])
        file = write_tokens(root / "t", *(entry(role, role) for role in ROLES), limited)
        serve = lodeq.Serve(address=str(root / "k"), tokens=file)
        with lodeq.sync.open(root / "s", serve=serve, block_cache_bytes=8 << 20) as engine:
            yield engine, f"unix://{root}/k"


def called(served, name, role, monkeypatch):
    engine, url = served
    mail = engine.queue("mail")
    mail.resume()
    mail.enqueue(b"x")
    (lease,) = mail.claim(exported=True)
    monkeypatch.setenv("LODEQ_TOKEN", token_of(role))
    given = {
        "URL": url,
        "ID": str(lease.task_id),
        "LEASE": f"{lease.task_id}:{lease.epoch}:{lease.token.hex()}",
    }
    words = [*name.removesuffix(" --forget").split(), *CALLS[name].split()]
    return CliRunner().invoke(command, [given.get(word, word) for word in words])


def test_the_page_names_every_command():
    assert roles_by_command().keys() == CALLS.keys() | NOT_CALLED


@pytest.mark.parametrize("name", CALLS)
def test_a_command_says_which_role_it_needs(served, name, monkeypatch):
    needed = roles_by_command()[name]
    for role in ROLES:
        result = called(served, name, role, monkeypatch)
        refused = re.search("may not do this: it needs the scope ([a-z or]+)", result.output)
        if role == "admin" or role in needed:
            assert refused is None, (role, result.output)
        else:
            assert result.exit_code != 0, role
            assert refused is not None, (role, result.output)
            assert role not in refused[1].split(), (role, result.output)


def test_a_refusal_names_token_scope_and_cure(served, monkeypatch):
    result = called(served, "claim", "reader", monkeypatch)
    said = "token 'reader' may not do this: it needs the scope worker; give a token that has it in"
    assert said in result.stderr
    assert (result.exit_code, "Traceback" in result.output) == (2, False)


def test_a_token_for_one_queue_works_on_that_queue(served, monkeypatch):
    for name in (
        "enqueue",
        "claim",
        "peek",
        "redrive",
        "purge",
        "queue show",
        "queue set",
        "ls",
        "show",
    ):
        assert called(served, name, "limited", monkeypatch).exit_code in (0, 1), name
    for name in ("snapshot", "verify", "workers"):
        result = called(served, name, "limited", monkeypatch)
        assert result.exit_code == 2
        assert "for all queues and tenants" in result.stderr


@pytest.mark.parametrize("more", [("--processes", 2), ("--replicate", "etcd://127.0.0.1:1/x")])
def test_several_processes_need_a_token_among_themselves(tmp_path, more):
    file = write_tokens(tmp_path / "t", entry("web", "producer"))
    result = run("serve", tmp_path / "s", "--tokens", file, *more, code=2)
    assert "give --token-file beside --tokens" in result.stderr
    assert not (tmp_path / "s").exists()


def test_serve_refuses_a_wrong_file_before_it_opens_anything(tmp_path):
    file = write_tokens(tmp_path / "t", entry("web", "boss"))
    result = run("serve", tmp_path / "s", "--tokens", file, code=2)
    assert "role 'boss' is not one of producer, worker, reader, admin" in result.stderr
    assert not (tmp_path / "s").exists()
