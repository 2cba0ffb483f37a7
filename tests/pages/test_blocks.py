"""Examples in the documentation run.

A Python block is an example when its first line is ``# runs``, or when ``<!-- runs -->`` stands
before it. It is a whole script: it runs in a process of its own, in an empty folder.
"""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support_sources import ROOT, name_of, none_of, text_of

import lodeq
from lodeq.service.cli.app import lodeq as command_line

BLOCK = re.compile(
    r"^(?P<mark><!--\s*runs\s*-->\n\s*)?^```python[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SHELL = re.compile(
    r"^```(?:sh|console)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LODEQ = re.compile(r"^(?:\$ )?(lodeq .*)$", re.MULTILINE)
TIMEOUT_S = 60
# Runs scripts, a folder a line, each in a child of its own: what all import is imported once.
RUNNER = """
import asyncio, os, runpy, sys
import lodeq, lodeq.journal, lodeq.sync, lodeq.testing, lodeq.worker
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.chdir(line.rstrip())
        told = os.open("told", os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(told, 1), os.dup2(told, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.path[0] = os.getcwd()
        runpy.run_path("example.py", run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
AWAITING = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples_in(text: str) -> Iterator[tuple[int, str]]:
    """First line and code of each example on a page."""
    for block in BLOCK.finditer(text):
        if block["mark"] or block["code"].startswith("# runs"):
            yield text.count("\n", 0, block.start("code")) + 1, block["code"]


def examples() -> Iterator[object]:
    for page in PAGES:
        for line, code in examples_in(text_of(page)):
            yield pytest.param(code, id=f"{name_of(page)}:{line}")


def modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(lodeq.__path__, "lodeq.")]
    return ["lodeq", *(name for name in found if name != "lodeq.setup")]  # the build's own


@pytest.fixture(scope="module")
def runner() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", RUNNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("code", list(examples()))
def test_example(code: str, tmp_path: Path, runner: subprocess.Popen[str]) -> None:
    (tmp_path / "example.py").write_text(code, "utf-8")
    assert runner.stdin
    assert runner.stdout
    print(tmp_path, file=runner.stdin, flush=True)
    assert runner.stdout.readline() == "0\n", (tmp_path / "told").read_text("utf-8")


def test_every_module_imports_and_the_examples_in_its_docstrings_run() -> None:
    """Doctest itself tells which line is wrong."""
    found = [importlib.import_module(name) for name in modules()]
    assert len(found) > 300
    # Only where there is a prompt: doctest probes every global, and a stand-in may refuse that.
    shown = [module for module in found if ">>> " in inspect.getsource(module)]
    none_of(module.__name__ for module in shown if doctest.testmod(module).failed)


def test_marked_blocks_are_found() -> None:
    fence = "```"
    page = (
        f"{fence}python\n# runs\na = 1\n{fence}\n"
        f"\n{fence}python\nnot_run()\n{fence}\n"
        f"\n<!-- runs -->\n{fence}python\nb = 2\n{fence}\n"
        f"\n{fence}sh\n# runs\n{fence}\n"
    )
    assert list(examples_in(page)) == [(2, "# runs\na = 1\n"), (12, "b = 2\n")]


def test_what_does_not_run_compiles() -> None:
    found = []
    for page in PAGES:
        text = text_of(page)
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start("code")) + 1
            try:
                compile(block["code"], name_of(page), "exec", AWAITING)
            except SyntaxError as error:
                found.append(f"{name_of(page)}:{line + (error.lineno or 1) - 1}: {error.msg}")
    none_of(found)


def refused(command: str) -> str | None:
    """Why the command line does not take this, if it does not."""
    group: click.Command = command_line
    args = shlex.split(command.partition(" > ")[0].removesuffix("&"), comments=True)[1:]
    context = click.Context(group)
    while isinstance(group, click.Group):
        name = args.pop(0)
        found = group.get_command(context, name)
        if found is None:
            return f"there is no {name}"
        group = found
    try:
        _, left, _ = group.make_parser(click.Context(group)).parse_args(args)
    except click.UsageError as error:
        return error.message
    return f"{left} are too many" if left else None


def test_commands_take_what_is_shown() -> None:
    shown = [
        (page, command)
        for page in PAGES
        for block in SHELL.finditer(text_of(page))
        for command in LODEQ.findall(block["code"])
    ]
    assert len(shown) > 50
    none_of(
        f"{name_of(page)}: {command}: {why}"
        for page, command in shown
        if (why := refused(command)) is not None
    )


def test_a_command_that_there_is_not_is_refused() -> None:
    assert refused("lodeq verify var/jobs") is None
    assert refused("lodeq nothing") == "there is no nothing"
    assert "--nothing" in str(refused("lodeq verify var/jobs --nothing"))
