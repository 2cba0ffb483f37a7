"""``lodeq import`` and ``lodeq export``: what they print, how they end, what they leave alone."""

import asyncio
import datetime
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support_import import AT_NS, database, ledgerq, message, persist_table, tasks_of
from support_service import spoil, state_of

import lodeq as package
from lodeq.segments.formats.rust_queue.writer import write_directory
from lodeq.service.cli.app import lodeq
from lodeq.service.transfer.export import EXPORT_FORMATS
from lodeq.service.transfer.source_kinds import KINDS

pytestmark = pytest.mark.slow


def run(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(lodeq, list(map(str, args)))
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def source(tmp_path: Path) -> Path:
    messages = [message(1, b"first", headers={"k": "v"}), message(2, b"second", priority=2)]
    return ledgerq(tmp_path / "mail", messages)


def test_import_twice(tmp_path: Path, source: Path) -> None:
    args = ("import", "ledgerq", source, "--to", tmp_path / "store", "--shards", 3)
    assert run(*args).stdout == "2 tasks imported, 0 of them dead letters\n"
    assert run(*args).stdout == (
        "0 tasks imported, 0 of them dead letters\n2 skipped: already imported\n"
    )
    told = json.loads(run(*args, "--json").stdout)
    assert told == {
        "imported": 0,
        "dead": 0,
        "keys": 0,
        "already": 2,
        "left_out": {},
        "unreadables": 0,
        "unreadable": [],
    }
    assert [task.payload for task in tasks_of(tmp_path / "store")] == [b"second", b"first"]


def test_damage_is_exit_code_1(tmp_path: Path, source: Path) -> None:
    spoil(source / f"{1:020}.log")
    result = run("import", "ledgerq", source, "--to", tmp_path / "store", "--json", code=1)
    (told,) = json.loads(result.stdout)["unreadable"]
    assert (told["file"], told["offset"]) == (f"{1:020}.log", 64 + 43)
    assert f"{1:020}.log at 107: " in result.stderr


def test_a_dry_run_writes_nothing(tmp_path: Path, source: Path) -> None:
    before = state_of(tmp_path)
    result = run("import", "ledgerq", source, "--to", tmp_path / "store", "--dry-run")
    assert result.stdout == "2 tasks would be imported, 0 of them dead letters\n"
    assert state_of(tmp_path) == before


def test_what_is_wrong_is_told_before_anything_is_made(tmp_path: Path, source: Path) -> None:
    before = state_of(tmp_path)
    to = ("--to", tmp_path / "store")
    for args, text in (
        (("huey", source, *to), "looks like ledgerq: lodeq import ledgerq"),
        (("ledgerq", source, *to, "--queue", "No Name"), "No Name"),
        (("ledgerq", source, "--to", source / "store"), "lies within"),
        (("ledgerq", tmp_path / "none", *to), "does not exist"),
    ):
        result = run("import", *args, code=2)
        assert text in result.stderr
        assert result.stderr.startswith("error: ")
    assert state_of(tmp_path) == before


def test_names_of_queues_are_those_of_the_source(tmp_path: Path) -> None:
    path = database(
        tmp_path / "data.db",
        persist_table("queue_audit"),
        ("INSERT INTO queue_audit VALUES (NULL, ?, ?)", (b"x", AT_NS / 1e9)),
    )
    run("import", "persist-queue", path, "--to", tmp_path / "store", "--tenant", "acme")
    with package.sync.open(tmp_path / "store") as engine:
        assert engine.queue("audit", tenant="acme").stats().ready == 1


def test_export_from_a_store_and_from_a_checkpoint(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    run("import", "ledgerq", source, "--to", store)
    result = run("export", store, "--queue", "mail", "--to", tmp_path / "out")
    assert "2 tasks exported to" in result.stdout
    result = run("export", store, "--queue", "mail", "--to", tmp_path / "out", code=2)
    assert "exists: give another --to" in result.stderr

    async def checkpoint() -> Result:
        async with package.open(store) as engine:
            await engine.checkpoint(tmp_path / "copy")
            return await asyncio.to_thread(
                run, "export", store, "--queue", "mail", "--to", tmp_path / "no", code=2
            )

    assert "checkpoint" in asyncio.run(checkpoint()).stderr
    before = state_of(tmp_path / "copy")
    told = json.loads(
        run(
            "export",
            tmp_path / "copy",
            "--queue",
            "mail",
            "--to",
            tmp_path / "out.jsonl",
            "--format",
            "jsonl",
            "--json",
        ).stdout
    )
    assert (told["exported"], told["losses"]) == (2, 0)
    assert state_of(tmp_path / "copy") == before
    assert not list(tmp_path.glob("lodeq-export-*"))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["priority"] for line in lines] == [9, 5]


def test_the_page_has_every_kind_and_format() -> None:
    page = (Path(__file__).parents[4] / "docs" / "import.md").read_text("utf-8")
    assert [name for name in (*KINDS, *EXPORT_FORMATS) if f"`{name}`" not in page] == []


def test_export_makes_no_store(tmp_path: Path) -> None:
    result = run("export", tmp_path / "typo", "--queue", "q", "--to", tmp_path / "out", code=2)
    assert "holds no store" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_source_made_anew_at_a_path_is_never_skipped_without_a_word(tmp_path: Path) -> None:
    source = tmp_path / "outbox"
    write_directory(source, [b"tick"], day=datetime.date(2023, 11, 14))
    args = ("import", "rust-queue", source, "--to", tmp_path / "store")
    assert "--source-id" not in run(*args).stderr
    result = run(*args)
    assert "1 skipped: already imported" in result.stdout
    assert "repeat the import with a new --source-id" in result.stderr
    result = run(*args, "--source-id", "second")
    assert (result.stdout[:1], result.stderr) == ("1", "")
    assert run(*args, "--source-id", "second").stderr == ""
    assert "must not be empty" in run(*args, "--source-id", "", code=2).stderr


@pytest.mark.parametrize("name", EXPORT_FORMATS)
def test_export_writes_nothing_into_what_it_exports(
    tmp_path: Path, source: Path, name: str
) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    run("import", "ledgerq", source, "--to", store)
    with package.sync.open(store) as engine:
        engine.checkpoint(copy)
    (tmp_path / "link").symlink_to(store)
    before = state_of(tmp_path)
    for path, out in (
        (store, store / "in"),
        (copy, copy / "in"),
        (store, tmp_path / "link" / "in"),
        (tmp_path / "link", store / "shard0" / "in"),
        (store, store),
    ):
        args = ("export", path, "--queue", "mail", "--to", out, "--format", name)
        assert "lies within the store" in run(*args, code=2).stderr
    assert state_of(tmp_path) == before
    run("export", store, "--queue", "mail", "--to", tmp_path / "store-out", "--format", name)
