"""The SQLite queue by hand with what our options ask for: priorities, delays, TTLs, headers, keys.

As ``by_hand``, with a column each. Delayed tasks have a state and an index of their own, and
whoever takes makes due ones ready first; keys are unique by an index, for as long as their rows
stay.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from lodeq import NewTask

__all__ = ["OptionsByHand"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS task (
  id INTEGER PRIMARY KEY, state INTEGER NOT NULL, priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL, due REAL, expires REAL, key BLOB, headers TEXT,
  lease_until REAL, payload BLOB, result BLOB, done_at REAL);
CREATE INDEX IF NOT EXISTS ready ON task (state, priority, id);
CREATE INDEX IF NOT EXISTS later ON task (due) WHERE state = 3;
CREATE UNIQUE INDEX IF NOT EXISTS keyed ON task (key) WHERE key IS NOT NULL;
"""
PUT = (
    "INSERT INTO task (state, priority, attempts, due, expires, key, headers, payload) "
    "VALUES (?, ?, 0, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
PROMOTE = "UPDATE task SET state = 0 WHERE state = 3 AND due <= ?"
TAKE = (
    "UPDATE task SET state = 1, attempts = attempts + 1, lease_until = ? WHERE id IN "
    "(SELECT id FROM task WHERE state = 0 AND (expires IS NULL OR expires > ?) "
    "ORDER BY priority, id LIMIT ?) RETURNING id, payload, headers"
)
END = (
    "UPDATE task SET state = 2, payload = NULL, result = ?, done_at = ? WHERE id = ? AND state = 1"
)


class OptionsByHand:
    """One caller, WAL NORMAL, on the loop's own thread."""

    name = "SQLite by hand, WAL NORMAL"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.db = sqlite3.connect(str(folder / "queue.db"), isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = NORMAL")
        self.db.execute("PRAGMA cache_size = -65536")
        self.db.executescript(SCHEMA)

    def __enter__(self) -> OptionsByHand:
        return self

    def __exit__(self, *exc: object) -> None:
        self.db.close()

    def put_many(self, tasks: Sequence[NewTask], keys: Sequence[bytes | None]) -> int:
        """Put tasks in one transaction. Returns how many are new."""
        now = time.time()
        self.db.execute("BEGIN IMMEDIATE")
        before = self.db.total_changes
        self.db.executemany(
            PUT, [_row(now, one, key) for one, key in zip(tasks, keys, strict=True)]
        )
        found = self.db.total_changes - before
        self.db.execute("COMMIT")
        return found

    def put(self, task: NewTask, key: bytes | None) -> bool:
        """Put one task. Returns whether it is new."""
        return self.db.execute(PUT, _row(time.time(), task, key)).rowcount > 0

    def _take(self, n: int) -> list[int]:
        now = time.time()
        self.db.execute(PROMOTE, (now,))
        return [row[0] for row in self.db.execute(TAKE, (now + 30, now, n)).fetchall()]

    def _end(self, ids: Sequence[int]) -> None:
        now = time.time()
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(END, [(b"ok", now, id) for id in ids])
        self.db.execute("COMMIT")

    async def mixed(self, n: int, tasks: Sequence[NewTask]) -> float:
        """Do as ``load.mixed``: batches of these tasks, taken as they become ready. Cycles/s."""
        done, total, keys = 0, n // len(tasks) * len(tasks), [None] * len(tasks)
        began = time.perf_counter()
        for _ in range(n // len(tasks)):
            self.put_many(tasks, keys)
            found = self._take(len(tasks))
            self._end(found)
            done += len(found)
        while done < total:  # what was delayed
            found = self._take(len(tasks))
            self._end(found)
            done += len(found)
        return total / (time.perf_counter() - began)

    async def keyed(self, task: NewTask, keys: Sequence[bytes], *, again: bool) -> float:
        """Puts of one each, with a key: all new, or all duplicates. Puts a second."""
        began = time.perf_counter()
        for key in keys:
            if self.put(task, key) == again:
                raise AssertionError(f"{key!r} was to be a duplicate: {again}")
        return len(keys) / (time.perf_counter() - began)

    async def keyed_cycles(self, task: NewTask, keys: Sequence[bytes], size: int) -> float:
        """Cycles in batches, each task with a new key. Cycles a second."""
        began = time.perf_counter()
        for at in range(0, len(keys), size):
            some = keys[at : at + size]
            if self.put_many([task] * len(some), some) != len(some):
                raise AssertionError("a new key was a duplicate")
            self._end(self._take(len(some)))
        return len(keys) / (time.perf_counter() - began)


def _row(now: float, task: NewTask, key: bytes | None) -> tuple[object, ...]:
    due = None if task.delay is None else now + float(task.delay)  # type: ignore[arg-type]
    expires = None if task.ttl is None else (due or now) + float(task.ttl)  # type: ignore[arg-type]
    headers = None if task.headers is None else json.dumps(task.headers)
    state = 0 if due is None else 3
    return state, 9 - task.priority, due, expires, key, headers, task.payload
