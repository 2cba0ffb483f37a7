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

import lodeq
from lodeq.service.cli import lodeq as command_line

ROOT = Path(__file__).resolve().parent.parent
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


def examples_in(text: str) -> Iterator[tuple[int, str]]:
    """First line and code of each example on a page."""
    for block in BLOCK.finditer(text):
        if block["mark"] or block["code"].startswith("# runs"):
            yield text.count("\n", 0, block.start("code")) + 1, block["code"]


def examples() -> Iterator[object]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for line, code in examples_in(page.read_text("utf-8")):
            yield pytest.param(code, id=f"{page.relative_to(ROOT).as_posix()}:{line}")


def modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(lodeq.__path__, "lodeq.")]
    return ["lodeq", *(name for name in found if name != "lodeq.setup")]  # the build's own


@pytest.mark.parametrize("code", list(examples()))
def test_example(code: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(code, "utf-8")
    run = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", modules())
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    # Only where there is a prompt: doctest probes every global, and a stand-in may refuse that.
    if ">>> " in inspect.getsource(module):
        assert doctest.testmod(module).failed == 0


def test_marked_blocks_are_found() -> None:
    fence = "```"
    page = (
        f"{fence}python\n# runs\na = 1\n{fence}\n"
        f"\n{fence}python\nnot_run()\n{fence}\n"
        f"\n<!-- runs -->\n{fence}python\nb = 2\n{fence}\n"
        f"\n{fence}sh\n# runs\n{fence}\n"
    )
    assert list(examples_in(page)) == [(2, "# runs\na = 1\n"), (12, "b = 2\n")]


def python_blocks() -> Iterator[object]:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text("utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start("code")) + 1
            yield pytest.param(block["code"], id=f"{page.relative_to(ROOT).as_posix()}:{line}")


@pytest.mark.parametrize("code", list(python_blocks()))
def test_what_does_not_run_compiles(code: str) -> None:
    compile(code, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


def shown_commands() -> Iterator[object]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text("utf-8")
        for block in SHELL.finditer(text):
            for command in LODEQ.findall(block["code"]):
                yield pytest.param(command, id=f"{page.name}: {command}")


@pytest.mark.parametrize("command", list(shown_commands()))
def test_commands_take_what_is_shown(command: str) -> None:
    group: click.Command = command_line
    args = shlex.split(command.partition(" > ")[0].removesuffix("&"), comments=True)[1:]
    context = click.Context(group)
    while isinstance(group, click.Group):
        name = args.pop(0)
        found = group.get_command(context, name)
        assert found is not None, name
        group = found
        if not isinstance(group, click.Group):
            _, left, _ = group.make_parser(click.Context(group)).parse_args(args)
            assert left == []
