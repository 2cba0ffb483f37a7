"""Tutorial, how-to and explanation: every block on these pages is typed as a reader would."""

import configparser
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from support_import import HUEY, PICKLED, database, ledgerq, message, persist_table
from support_pages import Session, blocks, commands, installed_in_vain
from support_sources import ROOT, name_of, none_of, text_of

from lodeq.service.cli.app import lodeq as command_line

DOCS = ROOT / "docs"
PAGES = [
    DOCS / "index.md",
    DOCS / "tutorial.md",
    *sorted((DOCS / "how-to").glob("*.md")),
    *sorted((DOCS / "explanation").glob("*.md")),
]
KINDS = {"console", "dockerfile", "ini", "mermaid", "python", "yaml"}


def huey_database(folder: Path) -> None:
    database(folder / "huey.db", *HUEY, ("INSERT INTO task VALUES (1, 'app', ?, 0)", (PICKLED,)))


def persist_queue(folder: Path) -> None:
    path = database(
        folder / "old" / "data.db", persist_table("ack_queue_default", ", status INTEGER")
    )
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO ack_queue_default VALUES (1, ?, 1700000000.0, 1)", (PICKLED,))
    db.close()


def ledgerq_folder(folder: Path) -> None:
    ledgerq(folder / "old", [message(1, b"first"), message(2, b"second")])


GIVEN = {
    "a huey database": huey_database,
    "a persist-queue": persist_queue,
    "a LedgerQ folder": ledgerq_folder,
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_what_a_page_says_is_what_happens(page: Path, tmp_path: Path) -> None:
    with Session(tmp_path, GIVEN) as session:
        session.type(page.read_text("utf-8"))


def untried(page: Path) -> Iterator[str]:
    found = list(blocks(text_of(page)))
    if 2 * len(found) != sum(line.startswith("```") for line in text_of(page).splitlines()):
        yield f"{name_of(page)}: a fence begins no block that is tried"
    for block in found:
        if block.kind not in KINDS:
            yield f"{name_of(page)}:{block.line}: a block of kind {block.kind!r}"
        if block.kind == "console" and not list(commands(block.text)):
            yield f"{name_of(page)}:{block.line}: no command"


def test_every_block_is_of_a_kind_that_is_tried() -> None:
    none_of(fault for page in PAGES for fault in untried(page))


def check_command(name: str, *args: str) -> None:
    """It is one of ours, and knows these options."""
    command = command_line.get_command(click.Context(command_line), name)
    assert command is not None, name
    command.make_context(name, list(args))


def units() -> list[object]:
    return [
        pytest.param(block.text, id=block.title)
        for page in PAGES
        for block in blocks(page.read_text("utf-8"))
        if block.title.endswith(".service")
    ]


@pytest.mark.parametrize("unit", units())
def test_units_start_commands_that_there_are(unit: str) -> None:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(unit)
    program, name, *args = parsed["Service"]["ExecStart"].split()
    assert program.endswith("/bin/lodeq")
    check_command(name, *args)


def containers(kind: str) -> list[object]:
    return [
        pytest.param(block.text, id=f"{page.stem}-{block.title}")
        for page in PAGES
        for block in blocks(page.read_text("utf-8"))
        if block.kind == kind
    ]


@pytest.mark.parametrize("text", containers("dockerfile"))
def test_an_image_installs_and_starts_what_there_is(text: str) -> None:
    assert "lodeq[" in text
    assert not installed_in_vain(text)
    (start,) = re.findall(r"^CMD (.+)$", text, re.MULTILINE)
    program, *command = json.loads(start)
    assert program == "lodeq"
    check_command(*command)


@pytest.mark.parametrize("text", containers("yaml"))
def test_services_start_commands_and_mount_volumes_that_there_are(text: str) -> None:
    file = yaml.safe_load(text)
    commands = [each["command"] for each in file["services"].values() if "command" in each]
    assert commands
    for program, *command in commands:
        assert program == "lodeq"
        check_command(*command)
    for each in file["services"].values():
        assert {mount.split(":")[0] for mount in each["volumes"]} == set(file["volumes"])


def test_a_session_fails_where_the_page_is_wrong(tmp_path: Path) -> None:
    fence = "```"
    page = f"{fence}console\n$ echo one two\none …\n$ echo three\n{{}}\n{fence}\n"
    with Session(tmp_path, {}) as session:
        session.type(page.format("three"))
        with pytest.raises(AssertionError, match="three"):
            session.type(page.format("four"))
        with pytest.raises(AssertionError, match="boom"):
            session.type(f"{fence}python\nraise SystemExit('boom')\n{fence}\n")
        with pytest.raises(AssertionError, match="nowhere"):
            session.type(f'{fence}console\n$ pip install "lodeq[nowhere]"\n{fence}\n')


def test_jobs_are_numbered_as_an_interactive_shell_does(tmp_path: Path) -> None:
    """A job that has ended frees its number."""
    start = "$ sh -c 'trap \"exit 0\" TERM; echo begun; while :; do sleep 0.05; done' &\nbegun\n"
    page = f"```console\n{start}$ kill %1\n{start}$ kill %{{}}\n```\n"
    with Session(tmp_path, {}) as session:
        session.type(page.format(1))
        with pytest.raises(AssertionError, match="no such job"):
            session.type(page.format(2))


def test_options_of_this_suite_are_not_those_of_a_page(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--durations=10")
    with Session(tmp_path, {}) as session:
        session.type('```console\n$ echo "[$PYTEST_ADDOPTS]"\n[]\n```\n')
