"""Databases of others: read as they are, around what is damaged, with nothing made beside them."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from support_import import database
from support_service import state_of

from lodeq import StorageError, UsageError
from lodeq.service.transfer.database import Database, Row
from lodeq.service.transfer.entries import Unreadable

TABLE = "CREATE TABLE t (a TEXT, b BLOB, n INTEGER)"


def rows(path: Path, *order: str) -> list[Row | Unreadable]:
    with Database(str(path)) as opened:
        return list(opened.rows("t", ["a", "b", "n"], order or ["rowid"]))


def test_plain_tables_and_their_rows(tmp_path: Path) -> None:
    path = database(
        tmp_path / "a.db",
        TABLE,
        "CREATE VIEW v AS SELECT load_extension('x')",
        ("INSERT INTO t VALUES (?, ?, ?)", ("x", b"1", 2)),
        "INSERT INTO t VALUES (CAST(x'ff' AS TEXT), NULL, 1)",
        'CREATE TABLE "odd ""name" (c)',
    )
    before = state_of(tmp_path)
    with Database(str(path)) as opened:
        assert dict(opened.tables) == {"t": ("a", "b", "n"), 'odd "name': ("c",)}
    assert rows(path) == [Row(1, (b"x", b"1", 2)), Row(2, (b"\xff", None, 1))]
    assert [row.number for row in rows(path, "n") if isinstance(row, Row)] == [2, 1]
    assert [row.number for row in rows(path, "-n") if isinstance(row, Row)] == [1, 2]
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_closed_in_either_mode_nothing_is_made_beside_it(tmp_path: Path, mode: str) -> None:
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute(f"PRAGMA journal_mode={mode}")
    db.execute(TABLE)
    db.execute("INSERT INTO t VALUES ('x', NULL, 1)")
    db.commit()
    db.close()
    before = state_of(tmp_path)
    assert len(rows(tmp_path / "a.db")) == 1
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_what_a_dead_process_left_behind_is_played_back_elsewhere(
    tmp_path: Path, mode: str
) -> None:
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute(f"PRAGMA journal_mode={mode}")
    db.execute("PRAGMA cache_size=1")  # so that pages reach the file before the commit
    db.execute(TABLE)
    db.executemany("INSERT INTO t VALUES ('x', ?, ?)", [(bytes(4000), n) for n in range(9)])
    db.commit()
    db.executemany("INSERT INTO t VALUES ('not committed', ?, ?)", [(bytes(4000), 9)] * 9)
    left = tmp_path / "left"
    left.mkdir()
    for name in os.listdir(tmp_path):
        if name.startswith("a.db") and not name.endswith("-shm"):
            shutil.copy(tmp_path / name, left / name)
    db.rollback()
    db.close()
    assert len(os.listdir(left)) == 2
    before = state_of(left)
    found = rows(left / "a.db")
    assert [row.values[0] for row in found if isinstance(row, Row)] == [b"x"] * 9
    assert state_of(left) == before


def test_beside_a_process_at_work_what_is_committed_is_seen(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute("PRAGMA journal_mode=wal")
    db.execute(TABLE)
    db.execute("INSERT INTO t VALUES ('x', NULL, 1)")
    db.commit()
    db.execute("INSERT INTO t VALUES ('not yet', NULL, 2)")
    names = sorted(os.listdir(tmp_path))
    assert len(rows(tmp_path / "a.db")) == 1
    assert sorted(os.listdir(tmp_path)) == names
    db.rollback()
    db.close()


def test_rows_around_a_damaged_page_are_read_from_both_ends(tmp_path: Path) -> None:
    path = database(
        tmp_path / "a.db",
        TABLE,
        *(("INSERT INTO t VALUES (?, ?, ?)", (f"row {n}", bytes(1000), n)) for n in range(1, 201)),
    )
    data = bytearray(path.read_bytes())
    page = data.find(b"row 100") // 4096 * 4096
    data[page : page + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    for order in (["rowid"], ["-n"]):
        found = rows(path, *order)
        numbers = sorted(row.number for row in found if isinstance(row, Row))
        assert numbers[0] == 1
        assert numbers[-1] == 200
        assert 180 < len(numbers) < 200
        assert any(isinstance(row, Unreadable) and row.file == "a.db:t" for row in found)


def test_what_is_no_database_or_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no")
    with pytest.raises(UsageError, match="not a SQLite database"):
        Database(str(tmp_path / "a.db"))
    (tmp_path / "b.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    with pytest.raises(StorageError):
        Database(str(tmp_path / "b.db"))
