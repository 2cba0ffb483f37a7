"""Reading a SQLite database of another queue, row by row, around damage.

Nothing is written to its folder. SQLite itself would: to read a database in WAL mode it makes a
``-shm`` file beside it, unless a flag says that nobody else has it open. So a database that was
closed in good order is opened with that flag; where a process that died left a log behind, a copy
is read; and where a process is at work (it has made the ``-shm`` file) its files are used as they
are. Schemas are not trusted: only plain tables are read, and nothing in them is run.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

from ...errors import StorageError, UsageError
from ...segments.item import Damage
from ...segments.source import FileSource
from .entries import Unreadable

__all__ = ["Database", "Row", "database_at"]

_MAGIC: Final = b"SQLite format 3\0"
_SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")
_HEADER_BYTES: Final = 100
_WAL_MODE: Final = 2
_VALUE_BYTES_MAX: Final = 64 << 20
_WAIT_S: Final = 5.0
_ROW_BYTES_MIN: Final = 5  # of a table: pointer, size, number, and at least a byte of record
_COLUMNS_MAX: Final = 256
_STEPS, _STEPS_A_ROW = 10_000, 1000  # of SQLite's machine; reading and sorting takes 100 a row
_ROW_NAMES: Final = frozenset({"rowid", "_rowid_", "oid"})
# What SQLite says of a damaged schema may be no text; and a size that it believes may be too much.
_ERRORS: Final = (sqlite3.Error, UnicodeError, MemoryError)
_SHARED: Final = "the database is damaged: pages of it are used twice"


class Row(NamedTuple):
    """A row: ``number`` is its rowid, ``values`` are bytes, int, float or None."""

    number: int
    values: tuple[Any, ...]


class Database:
    """An open database. Use it as a context manager.

    Raises:
        UsageError: the file is not a database.
        StorageError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = os.path.basename(path)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._steps = 0
        try:
            self._db = self._connect()
            self.tables = self._read_tables()
        except _ERRORS as exc:
            self.close()
            raise StorageError(f"{path!r}: {_why(exc)}; is its writer stopped?") from exc
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        with FileSource(self.path) as source:
            header = source.read(0, _HEADER_BYTES)
        if not header.startswith(_MAGIC):
            raise UsageError(f"{self.path!r} is not a SQLite database")
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
        self._file_bytes = sum(_size(path + suffix) for suffix in ("", "-wal", "-journal"))
        self._rows_max = self._file_bytes // _ROW_BYTES_MIN
        longest = min(_VALUE_BYTES_MAX, max(_HEADER_BYTES, self._file_bytes))
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
        db.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, _COLUMNS_MAX)
        # No statement takes more steps than going through a table and sorting it can take.
        self._steps_max = _STEPS + _STEPS_A_ROW * self._rows_max
        db.set_progress_handler(self._step, _STEPS)
        db.execute("PRAGMA trusted_schema=OFF")
        db.execute("PRAGMA cell_size_check=ON")
        db.execute("PRAGMA query_only=ON")
        db.execute("BEGIN")  # all reads are of one moment
        return db

    def _copied(self) -> str:
        """Copy the database with the logs of a process that died; they are replayed in the copy."""
        self._copy = tempfile.TemporaryDirectory(prefix="lodeq-import-")
        for suffix in ("", "-wal", "-journal"):
            if _is_filled(self.path + suffix):
                shutil.copyfile(self.path + suffix, os.path.join(self._copy.name, "db" + suffix))
        return os.path.join(self._copy.name, "db")

    def _step(self) -> int:
        """Called every so many steps of SQLite's machine; non-zero ends the statement."""
        self._steps += _STEPS
        return int(self._steps > self._steps_max)

    def _read_tables(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the plain tables, each with those of its columns; all of them are text."""
        self._db.text_factory = bytes  # of rows, too: whatever bytes they are, they can be read
        made = self._db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
            " ORDER BY rowid"
        ).fetchall()
        found = {}
        for (raw,) in made:
            try:
                name = raw.decode()
                columns = self._db.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
                found[name] = tuple(column[1].decode() for column in columns)
            except (UnicodeError, AttributeError):  # no name that anybody looks for
                continue
        return found

    @property
    def total_bytes(self) -> int:
        """Size of the file."""
        return os.stat(self.path).st_size

    def rows(
        self, table: str, columns: Sequence[str], order: Sequence[str]
    ) -> Iterator[Row | Unreadable]:
        """All rows that can be read, in ``order``, which may name columns and ``rowid``.

        Together they are no larger than the file: more is pages that are used twice.
        """
        if not _ROW_NAMES.isdisjoint(name.lower() for name in self.tables[table]):
            yield self._unreadable(table, 0, "a column has the name of the row's number")
            return
        wanted = ", ".join(map(_quoted, columns))
        sql = f"SELECT {wanted} FROM {_quoted(table)} WHERE rowid = ?"  # noqa: S608 - quoted
        left = self._file_bytes
        for number in self._numbers(table, order):
            if isinstance(number, Unreadable):
                yield number
                continue
            try:
                values = self._db.execute(sql, (number,)).fetchone()
            except _ERRORS as exc:
                yield self._unreadable(table, number, _why(exc))
                continue
            if values is None:  # a writer is at work, and was quicker
                continue
            left -= sum(len(value) for value in values if isinstance(value, bytes))
            if left < 0:
                yield self._unreadable(table, number, _SHARED)
                return
            yield Row(number, values)

    def _numbers(self, table: str, order: Sequence[str]) -> Iterator[int | Unreadable]:
        """The rowids in order; of a table that cannot be gone through at once, what can be had.

        It is gone through by number first, without an index: only of a table that proves to be a
        tree, with no more rows than the file has space for, can the rows be sorted.
        """
        sql = f"SELECT rowid FROM {_quoted(table)} NOT INDEXED ORDER BY "  # noqa: S608 - quoted
        problems: list[str] = []
        for _ in self._ascending(f"{sql}rowid", problems):
            pass
        if not problems:
            by = ", ".join(_ordering(one) for one in order)
            try:
                for (number,) in self._db.execute(sql + by):
                    yield number
            except _ERRORS as exc:
                yield self._unreadable(table, 0, _why(exc))
            return
        # By number, from both ends: what lies between is behind the damage.
        last: int | None = None
        for number in self._ascending(f"{sql}rowid", []):
            last = number
            yield number
        behind = array("q")
        for negated in self._ascending(f"{sql}rowid DESC", [], sign=-1):
            if last is not None and -negated <= last:
                break
            behind.append(-negated)
        yield self._unreadable(
            table,
            last if last is not None else 0,
            f"{problems[0]}: rows behind this one"
            + (f" and before row {behind[-1]}" if behind else "")
            + " cannot be reached",
        )
        yield from reversed(behind)

    def _ascending(self, sql: str, problems: list[str], sign: int = 1) -> Iterator[int]:
        """Numbers, times ``sign``, as long as they grow; what ends that too soon is a problem."""
        last: int | None = None
        count = 0
        try:
            for (number,) in self._db.execute(sql):
                if last is not None and sign * number <= last:
                    problems.append(_SHARED)
                    return
                last = sign * number
                count += 1
                if count > self._rows_max:
                    problems.append(_SHARED)
                    return
                yield last
        except _ERRORS as exc:
            problems.append(_why(exc))

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


def _why(exc: Exception) -> str:
    return str(exc)[:200].replace("\n", " ") or "it takes more memory than there is"


def _is_filled(path: str) -> bool:
    return _size(path) > 0


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _ordering(column: str) -> str:
    """``-name``: the highest first."""
    return f"{_quoted(column[1:])} DESC" if column.startswith("-") else _quoted(column)


def _quoted(name: str) -> str:
    return "rowid" if name == "rowid" else '"' + name.replace('"', '""') + '"'


def database_at(path: str) -> str | None:
    """The database at a path; in a folder, the only one."""
    if not os.path.isdir(path):
        return path if _is_database(path) else None
    found = [
        os.path.join(path, name)
        for name in sorted(os.listdir(path))
        if name.endswith(_SUFFIXES) and _is_database(os.path.join(path, name))
    ]
    if len(found) > 1:
        raise UsageError(f"{path!r} holds several databases: give one of the files")
    return found[0] if found else None


def _is_database(path: str) -> bool:
    try:
        with FileSource(path) as source:
            return source.read(0, len(_MAGIC)) == _MAGIC
    except StorageError:
        return False
