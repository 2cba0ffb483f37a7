"""The list of commands: it says what they say of themselves, and a command loads only its own."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support_cli import make

from lodeq.service.cli.app import lodeq
from lodeq.service.cli.catalogue import SECTIONS

LISTED = {name: told for section in SECTIONS.values() for name, (_, told) in section.items()}

HTTP = (
    "httptools",
    "httpx",
    "uvicorn",
    "starlette",
    "grpc",
    "lodeq.service.http",
    "lodeq.service.cluster",
)
OTHERS = ("lodeq.replication", "lodeq.service.worker", "lodeq.service.processes", *HTTP)
ENGINE = ("rocksdict", "asyncio", "lodeq.repository.api", "lodeq.engine", "lodeq.segments")
COMMANDS = ("lodeq.service.cli.commands", "lodeq.service.cli.maintenance")


@pytest.mark.slow  # of all the modules it imports
def test_the_list_says_what_the_commands_say() -> None:
    for name, told in LISTED.items():
        own, listed = lodeq.commands[name], click.Command(name, help=told)
        for width in (20, 40, 60, 80, 200):
            assert listed.get_short_help_str(width) == own.get_short_help_str(width), name


def test_each_is_listed_once() -> None:
    assert sorted(lodeq.commands) == sorted(name for one in SECTIONS.values() for name in one)


def loaded(*args: object) -> set[str]:
    """The modules that a command has loaded by its end, in a process of its own."""
    code = (
        "import json, sys\n"
        "from lodeq.service.cli.entry import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(json.dumps(list(sys.modules)), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code, *map(str, args)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(run.stderr.splitlines()[-1]))  # what the command says comes before


def of(packages: tuple[str, ...], modules: set[str]) -> list[str]:
    """Those that are one of the packages, or inside one."""
    inside = tuple(f"{one}." for one in packages)
    return sorted(one for one in modules if one in packages or one.startswith(inside))


@pytest.mark.parametrize("args", [["--help"], ["--version"]], ids=" ".join)
def test_help_loads_no_command(args: list[str]) -> None:
    modules = loaded(*args)
    assert "lodeq.service.cli.app" in modules
    assert of((*COMMANDS, *ENGINE, *OTHERS, "rich.console"), modules) == []


def test_a_command_loads_only_its_own_modules(tmp_path: Path) -> None:
    modules = loaded("ls", make(tmp_path / "store"))
    assert of(OTHERS, modules) == []
    assert of(COMMANDS, modules) == [
        "lodeq.service.cli.commands",
        "lodeq.service.cli.commands.queues",
    ]
    assert "rocksdict" in modules
