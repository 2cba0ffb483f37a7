"""``lodeq ingest``: what it prints, and how it ends."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support_ingest import create, publish, rewrite
from support_loop import on_loop

from lodeq import NewTask
from lodeq.service.cli.app import lodeq

pytestmark = pytest.mark.slow


def run(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(lodeq, list(map(str, args)))
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_loads_come_in_and_are_told(tmp_path: Path) -> None:
    path = tmp_path / "s"
    on_loop(create)(path)
    assert run("ingest", path).stdout == "no loads are waiting\n"
    publish(path, [NewTask(n) for n in range(1200)])
    assert run("ingest", path).stdout == "j: 1,200 tasks; 0 skipped, 0 replaced\n"
    told = run("ingest", path, "--job", "j").stdout
    assert told == "j: 1,200 tasks, taken in before; 0 skipped, 0 replaced\n"
    publish(path, [NewTask(1)], "k")
    rewrite(path, "k", shards=5)
    told = run("ingest", path, "--json", code=1).stdout
    (job,) = json.loads(told)["jobs"]
    assert (job["job"], job["state"]) == ("k", "refused")
    assert "k: refused: " in run("ingest", path, "--job", "k", code=1).stdout


def test_a_path_that_is_none_makes_no_store(tmp_path: Path) -> None:
    result = run("ingest", tmp_path / "none", code=2)
    assert "does not exist" in result.stderr
    assert not (tmp_path / "none").exists()
    on_loop(create)(tmp_path / "s")
    assert "publish it first" in run("ingest", tmp_path / "s", "--job", "j", code=2).stderr


def test_loads_are_forgotten_when_told_so(tmp_path: Path) -> None:
    path = tmp_path / "s"
    on_loop(create)(path)
    publish(path, [NewTask(n) for n in range(20)])
    run("ingest", path)
    assert "Give --yes" in run("forget-loads", path, "--older-than", "90d", code=2).stderr
    assert "3600" in run("forget-loads", path, "--older-than", "59m", "--yes", code=2).stderr
    told = run("forget-loads", path, "--older-than", "90d", "--yes").stdout
    assert told == "forgotten: 0 taken in, 0 refused, 0 never published; 0 B freed\n"
    note = path / "inbox" / "done" / "j.json"
    note.write_text(note.read_text().replace('"done_us": ', '"done_us": 1, "was_us": '))
    told = run("forget-loads", path, "--older-than", "90d", "--yes", "--json").stdout
    assert json.loads(told) == {"done": 1, "refused": 0, "abandoned": 0, "freed_bytes": 0}
    publish(path, [NewTask(1)])
    assert run("ingest", path).stdout == "j: 1 tasks; 0 skipped, 0 replaced\n"
