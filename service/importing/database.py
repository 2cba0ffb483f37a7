"""A SQLite database of others: read, row by row, around what is damaged.

Nothing is written to its folder. SQLite itself would: to read a database in WAL mode it makes a
``-shm`` file beside it, unless it is told that nobody else is there. So of a database that was
closed in good order it is told that; where a log was left behind by a process that died, a copy
is read; and where a process is at work (it has made the ``-shm`` file) its files are used as they
are. Schemas are not trusted: only plain tables are looked at, and nothing in them is run.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

from ...errors import StorageError, UsageError
from ...segments.formats.item import Damage
from ...segments.source import FileSource
from .entries import Unreadable

__all__ = ["MAGIC", "Database", "Row"]

MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_WAL_MODE: Final = 2
_VALUE_BYTES_MAX: Final = 64 << 20
_WAIT_S: Final = 5.0


class Row(NamedTuple):
    """``number`` is its rowid, the rest what was asked for: bytes, int, float or None."""

    number: int
    values: tuple[Any, ...]


class Database:
    """An open one. Use it as a context manager.

    Raises:
        UsageError: it is no database. StorageError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = os.path.basename(path)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._db = self._connect()
            self.tables = self._read_tables()
        except sqlite3.Error as exc:
            self.close()
            raise StorageError(f"{path!r}: {exc}; is its writer stopped?") from exc
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        with FileSource(self.path) as source:
            header = source.read(0, _HEADER_BYTES)
        if not header.startswith(MAGIC):
            raise UsageError(f"{self.path!r} is no SQLite database")
        path, query = self.path, "mode=ro"
        is_wal = _WAL_MODE in header[18:20]
        if _is_filled(f"{path}-journal") or (
            is_wal and _is_filled(f"{path}-wal") and not os.path.exists(f"{path}-shm")
        ):
            path, query = self._copied(), "mode=rw"
        elif is_wal and not os.path.exists(f"{path}-shm"):
            query = "mode=ro&immutable=1"
        db = sqlite3.connect(
            f"file:{quote(path)}?{query}", uri=True, timeout=_WAIT_S, isolation_level=None
        )
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES_MAX)
        db.execute("PRAGMA trusted_schema=OFF")
        db.execute("PRAGMA cell_size_check=ON")
        db.execute("PRAGMA query_only=ON")
        db.execute("BEGIN")  # all reads are of one moment
        return db

    def _copied(self) -> str:
        """With what a process that died has left behind. Played back there, not here."""
        self._copy = tempfile.TemporaryDirectory(prefix="lodeq-import-")
        for suffix in ("", "-wal", "-journal"):
            if _is_filled(self.path + suffix):
                shutil.copyfile(self.path + suffix, os.path.join(self._copy.name, "db" + suffix))
        return os.path.join(self._copy.name, "db")

    def _read_tables(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the plain tables, each with those of its columns."""
        made = self._db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
            " ORDER BY rowid"
        ).fetchall()
        found = {}
        for (name,) in made:
            columns = self._db.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
            found[name] = tuple(column[1] for column in columns)
        self._db.text_factory = bytes  # of rows: whatever bytes they are, they can be read
        return found

    @property
    def total_bytes(self) -> int:
        """Of the file."""
        return os.stat(self.path).st_size

    def rows(
        self, table: str, columns: Sequence[str], order: Sequence[str]
    ) -> Iterator[Row | Unreadable]:
        """All rows that can be read, in ``order``, which may name columns and ``rowid``."""
        wanted = ", ".join(map(_quoted, columns))
        sql = f"SELECT {wanted} FROM {_quoted(table)} WHERE rowid = ?"  # noqa: S608 - quoted
        for number in self._numbers(table, order):
            if isinstance(number, Unreadable):
                yield number
                continue
            try:
                values = self._db.execute(sql, (number,)).fetchone()
            except sqlite3.Error as exc:
                yield self._unreadable(table, number, str(exc))
                continue
            if values is not None:  # else a writer is at work, and was quicker
                yield Row(number, values)

    def _numbers(self, table: str, order: Sequence[str]) -> Iterator[int | Unreadable]:
        """The rowids in order; of a table that cannot be gone through at once, what can be had."""
        by = ", ".join(_ordering(one) for one in order)
        sql = f"SELECT rowid FROM {_quoted(table)}"  # noqa: S608 - quoted
        try:
            yield from [number for (number,) in self._db.execute(f"{sql} ORDER BY {by}")]
            return
        except sqlite3.Error as exc:
            reason = str(exc)
        # By number, from both ends: what lies between is behind the damage.
        before = list(self._until_error(f"{sql} NOT INDEXED ORDER BY rowid"))
        behind = list(self._until_error(f"{sql} NOT INDEXED ORDER BY rowid DESC"))
        last = before[-1] if before else None
        behind = [number for number in behind if last is None or number > last]
        yield from before
        yield self._unreadable(
            table, last if last is not None else 0,
            f"{reason}: rows behind this one"
            + (f" and before row {behind[-1]}" if behind else "") + " cannot be reached",
        )  # fmt: skip
        yield from reversed(behind)

    def _until_error(self, sql: str) -> Iterator[int]:
        try:
            for (number,) in self._db.execute(sql):
                yield number
        except sqlite3.Error:
            return

    def _unreadable(self, table: str, number: int, reason: str) -> Unreadable:
        return Unreadable(f"{self.name}:{table}", Damage(number, 0, reason))

    def close(self) -> None:
        """Idempotent."""
        db: sqlite3.Connection | None = getattr(self, "_db", None)
        if db is not None:
            db.close()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _is_filled(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False


def _ordering(column: str) -> str:
    """``-name``: the highest first."""
    return f"{_quoted(column[1:])} DESC" if column.startswith("-") else _quoted(column)


def _quoted(name: str) -> str:
    return "rowid" if name == "rowid" else '"' + name.replace('"', '""') + '"'
