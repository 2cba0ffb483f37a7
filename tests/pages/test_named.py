"""Promises of pages are held by tests that exist: the guarantees, security, the comparison."""

import ast
import re
from collections.abc import Iterator

from support_sources import ROOT, none_of, parse, text_of

NAMED = re.compile(r"tests/[\w/]+\.py(?:::\w+)*")
GUARANTEES = text_of(ROOT / "docs" / "guarantees.md")
SECURITY = text_of(ROOT / "SECURITY.md")
COMPARISON = text_of(ROOT / "docs" / "comparison.md")
_PAGE, ORIGINALS = COMPARISON.split("## The four it came from")
FEATURES, HELD = _PAGE.split("## What holds our column")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


CLAIMED = [row[0] for row in rows(FEATURES) if row[1] != "–"]
PROOFS = rows(HELD)


def find(body: list[ast.stmt], name: str) -> ast.stmt | None:
    """A test function or class of this name."""
    return next(
        (n for n in body if isinstance(n, Function | ast.ClassDef) and n.name == name), None
    )


def missing(name: str) -> str | None:
    """The part of ``tests/file.py::Class::test`` that is not there."""
    path, *parts = name.split("::")
    if not (ROOT / path).is_file():
        return path
    body = parse(ROOT / path).body
    for part in parts:
        node = find(body, part)
        if node is None:
            return part
        body = node.body if isinstance(node, ast.ClassDef) else []
    return None if not parts or parts[-1].startswith("test_") else parts[-1]


def faults(page: str, names: list[str]) -> Iterator[str]:
    return (f"{page}: {name}: no {gone}" for name in names if (gone := missing(name)))


def test_every_named_test_exists() -> None:
    none_of(
        [
            *faults("docs/guarantees.md", NAMED.findall(GUARANTEES)),
            *faults("SECURITY.md", NAMED.findall(SECURITY)),
            *faults("docs/comparison.md", NAMED.findall(COMPARISON)),
        ]
    )


def test_the_search_finds_what_is_gone() -> None:
    here = "tests/pages/test_named.py"
    assert missing(here) is None
    assert missing(f"{here}::test_the_search_finds_what_is_gone") is None
    assert missing("tests/pages/test_none.py") == "tests/pages/test_none.py"
    assert missing(f"{here}::test_none") == "test_none"
    assert missing(f"{here}::missing") == "missing"
    assert missing(f"{here}::find::test_none") == "test_none"


def test_every_guarantee_names_one_test_and_none_is_named_twice() -> None:
    lines = [line for line in GUARANTEES.splitlines() if line.startswith("| ")]
    start = lines.index("| promise | test |")
    promises = [line for line in lines[start:] if line != "| promise | test |"]
    assert len(promises) > 100
    none_of(line for line in promises if len(NAMED.findall(line)) != 1)
    names = NAMED.findall(GUARANTEES)
    none_of(sorted({name for name in names if names.count(name) > 1}))


def test_every_row_of_the_security_page_names_one_test_of_its_own() -> None:
    held = [line for line in SECURITY.splitlines() if line.startswith("| ") and " | tests/" in line]
    assert len(held) > 20
    for line in held:
        (name,) = NAMED.findall(line)
        assert "::" in name, line
    names = NAMED.findall(SECURITY)
    assert len(names) == len(set(names)) == len(held)


def test_every_file_of_security_tests_is_on_the_security_page() -> None:
    files = {path.name for path in (ROOT / "tests" / "security").glob("test_*.py")}
    assert files == {
        re.split(r"/|::", name)[2] for name in NAMED.findall(SECURITY) if "/security/" in name
    }


def test_the_security_page_is_of_this_version() -> None:
    import lodeq

    assert f"| {'.'.join(lodeq.__version__.split('.')[:2])} | yes |" in SECURITY


def test_every_cell_of_the_comparison_has_its_proof_and_no_other() -> None:
    assert [name for name, _ in PROOFS] == CLAIMED
    assert len(CLAIMED) > 30
    for name, proof in PROOFS:
        if link := re.fullmatch(r"\[[^\]]+\]\(([^)]+)\)", proof):
            assert (ROOT / "docs" / link[1]).is_file(), name
        else:
            assert NAMED.fullmatch(proof), name  # that it exists: above


def test_every_row_of_the_comparison_has_a_cell_for_each() -> None:
    (head,) = (line for line in FEATURES.splitlines() if line.startswith("| | lodeq"))
    assert {len(row) for row in rows(FEATURES)} == {head.count("|") - 1}
    marks = re.compile(r"Y|p|–|\$|\?|db|srv|n/a|[SAT](?:[ ,][SAT])*")
    for _, *cells in rows(FEATURES):
        assert all(marks.fullmatch(cell.rstrip("¹²³⁴⁵⁶⁷⁸⁹°")) for cell in cells), cells


def test_every_row_of_the_originals_has_a_cell_for_each_and_its_proof() -> None:
    found = rows(ORIGINALS)
    assert len(found) > 20
    for name, *cells, proof in found:
        assert len(cells) == 5, name
        assert cells[0] == "Y", name
        assert all(re.fullmatch(r"(Y|p|–|\?|n/a)[¹²³⁴⁵⁶⁷⁸⁹°]?", cell) for cell in cells), cells
        assert NAMED.fullmatch(proof), name  # that it exists: above
