"""``docs/row-families.md`` has every family of rows and says what every part does with it."""

import re
from pathlib import Path

from lodeq.engine.records import keyspace as ks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "row-families.md"
COLUMNS = [
    "keyspace",
    "verify",
    "Spark's readers",
    "reshard",
    "checkpoint",
    "salvage",
    "audit",
    "archive",
    "loads",
    "replica",
    "lifecycle",
]


def table() -> list[list[str]]:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert rows[0] == COLUMNS
    assert set(lines[1]) == set("|-")
    return rows[2:]


def families() -> set[str]:
    """Prefixes and keys of the key space, as its constants have them; of indexes, by their kind."""
    found = {
        value.decode()
        for value in (*vars(ks).values(), *ks.FAMILY_BOUNDS)
        if isinstance(value, bytes) and re.fullmatch(rb"[a-z]/([a-z]+/?)?", value)
    }
    assert {"t/", "m/c/", "m/stamp"} <= found
    kinds = [kind.decode() for kind in (ks.READY, ks.DELAYED, ks.DEAD)]
    return (found - {"q/"}) | {f"q/` … `{kind}" for kind in kinds}


def test_every_family_has_its_line() -> None:
    named = [re.match(r"`([^ ]+(?:` … `[rdx])?)`", row[0]) for row in table()]
    assert all(named)
    prefixes = [match[1] for match in named if match]
    assert len(prefixes) == len(set(prefixes))
    assert set(prefixes) == families()


def test_no_cell_is_empty() -> None:
    empty = [
        (row[0], COLUMNS[n] if n < len(COLUMNS) else "too many cells")
        for row in table()
        for n in range(max(len(row), len(COLUMNS)))
        if n >= min(len(row), len(COLUMNS)) or not row[n].strip("-–? ")
    ]
    assert not empty
