"""Every test that ``docs/guarantees.md`` names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
NAMED = re.compile(r"tests/[\w/]+\.py(?:::\w+)*")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def named() -> list[str]:
    return NAMED.findall(PAGE.read_text("utf-8"))


def find(body: list[ast.stmt], name: str) -> ast.stmt | None:
    """A test function or class of this name."""
    return next(
        (n for n in body if isinstance(n, Function | ast.ClassDef) and n.name == name), None
    )


def find_test(name: str) -> None:
    """Fail unless there is such a file, and in it such a test."""
    path, *parts = name.split("::")
    assert (ROOT / path).is_file()
    body = ast.parse((ROOT / path).read_text("utf-8")).body
    for part in parts:
        node = find(body, part)
        assert node is not None, part
        body = node.body if isinstance(node, ast.ClassDef) else []
    if parts:
        assert parts[-1].startswith("test_")


@pytest.mark.parametrize("name", named())
def test_it_exists(name: str) -> None:
    find_test(name)


def test_every_promise_has_one() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    start = rows.index("| promise | test |")
    promises = [row for row in rows[start:] if row != "| promise | test |"]
    assert promises
    assert [row for row in promises if len(NAMED.findall(row)) != 1] == []


def test_no_promise_is_made_twice() -> None:
    assert len(named()) == len(set(named()))
