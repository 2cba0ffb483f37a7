"""What docs/comparison.md claims of lodeq is held by a test or a page that there is."""

import re
from pathlib import Path

import pytest
from test_guarantees import find_test

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "comparison.md").read_text("utf-8")
FEATURES, HELD = PAGE.split("## What holds our column")


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


CLAIMED = [row[0] for row in rows(FEATURES) if row[1] != "–"]
PROOFS = rows(HELD)


def test_every_cell_has_its_row_and_no_other() -> None:
    assert [name for name, _ in PROOFS] == CLAIMED
    assert len(CLAIMED) > 30


def test_every_row_has_a_cell_for_each() -> None:
    (head,) = (line for line in FEATURES.splitlines() if line.startswith("| | lodeq"))
    assert {len(row) for row in rows(FEATURES)} == {head.count("|") - 1}
    marks = re.compile(r"Y|p|–|\$|\?|db|srv|n/a|[SAT](?:[ ,][SAT])*")
    for _, *cells in rows(FEATURES):
        assert all(marks.fullmatch(cell.rstrip("¹²³⁴⁵⁶⁷")) for cell in cells), cells


@pytest.mark.parametrize(("name", "proof"), PROOFS, ids=[name for name, _ in PROOFS])
def test_the_proof_exists(name: str, proof: str) -> None:
    if link := re.fullmatch(r"\[[^\]]+\]\(([^)]+)\)", proof):
        assert (ROOT / "docs" / link[1]).is_file(), name
    else:
        find_test(proof)
