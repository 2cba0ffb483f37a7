"""The best that a careful author would write by hand: a lease queue on SQLite.

WAL, a composite index on (state, priority, id), prepared statements, one connection a caller; one
statement a call, BEGIN IMMEDIATE around many. The end of a task drops its payload and keeps its
result in the row. No dedup, no reaper, no counters: less than an engine does, so it is a fair bar
and a high one.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from .base import Peer

__all__ = ["SqliteFull", "SqliteNormal"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS task (
  id INTEGER PRIMARY KEY, state INTEGER NOT NULL, priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL, lease_until REAL, payload BLOB, result BLOB, done_at REAL);
CREATE INDEX IF NOT EXISTS ready ON task (state, priority, id);
"""
PUT = "INSERT INTO task (state, priority, attempts, payload) VALUES (0, 5, 0, ?)"
TAKE = (
    "UPDATE task SET state = 1, attempts = attempts + 1, lease_until = ? WHERE id IN "
    "(SELECT id FROM task WHERE state = 0 ORDER BY priority, id LIMIT ?) RETURNING id, payload"
)
END = (
    "UPDATE task SET state = 2, payload = NULL, result = ?, done_at = ? WHERE id = ? AND state = 1"
)


class SqliteSession:
    def __init__(self, path: str, synchronous: str) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute(f"PRAGMA synchronous = {synchronous}")
        self.db.execute("PRAGMA cache_size = -65536")

    def put(self, payload: bytes) -> None:
        self.db.execute(PUT, (payload,))

    def take(self) -> Any:
        row = self.db.execute(TAKE, (time.time() + 30, 1)).fetchall()
        return row[0][0] if row else None

    def done(self, token: Any, result: bytes) -> None:
        self.db.execute(END, (result, time.time(), token))

    def put_many(self, payloads: Sequence[bytes]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(PUT, [(payload,) for payload in payloads])
        self.db.execute("COMMIT")

    def take_many(self, n: int) -> list[Any]:
        return [row[0] for row in self.db.execute(TAKE, (time.time() + 30, n)).fetchall()]

    def done_many(self, tokens: Sequence[Any], result: bytes) -> None:
        now = time.time()
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(END, [(result, now, token) for token in tokens])
        self.db.execute("COMMIT")

    def close(self) -> None:
        self.db.close()


class _Sqlite(Peer):
    keeps = "lease, result"
    has_batches = True
    synchronous: ClassVar[str]

    @property
    def path(self) -> str:
        return str(self.folder / "queue.db")

    def open(self) -> None:
        session = self.session()
        session.db.executescript(SCHEMA)
        session.close()

    def session(self) -> SqliteSession:
        return SqliteSession(self.path, self.synchronous)


class SqliteNormal(_Sqlite):
    name = "SQLite by hand, WAL NORMAL"
    durability = "os"
    synchronous = "NORMAL"


class SqliteFull(_Sqlite):
    name = "SQLite by hand, WAL FULL"
    durability = "fsync"
    synchronous = "FULL"
