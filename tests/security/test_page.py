"""Every test that ``SECURITY.md`` names exists, and its table names each once."""

import ast
import re
from pathlib import Path

import pytest
from test_guarantees import NAMED, find

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and " | tests/" in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[-1].strip(" |"))
def test_it_exists(row):
    (name,) = NAMED.findall(row)
    path, *parts = name.split("::")
    body = ast.parse((ROOT / path).read_text("utf-8")).body
    for part in parts:
        node = find(body, part)
        assert node is not None, part
        body = node.body if isinstance(node, ast.ClassDef) else []
    assert parts[-1].startswith("test_")


def test_every_row_names_another():
    names = NAMED.findall(PAGE)
    assert len(names) == len(set(names)) == len(ROWS) > 20


def test_every_file_of_security_tests_is_on_the_page():
    files = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {"test_page.py"}
    assert files == {
        re.split(r"/|::", name)[2] for name in NAMED.findall(PAGE) if "/security/" in name
    }


def test_the_version_is_the_one_of_the_package():
    import lodeq

    assert f"| {'.'.join(lodeq.__version__.split('.')[:2])} | yes |" in PAGE
