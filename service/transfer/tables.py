"""Sources that are tables of a SQLite database: huey, litequeue, persist-queue.

Schemas as huey 3.5, litequeue 0.9 and persist-queue 1.1 make them. Rows come and go, so there is no
mark to go on from: all rows are read again, and keys show which have been imported.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any, Final, NamedTuple, Self

from ...repository.model.arguments import TIME_MS_MAX
from ...segments.item import Damage
from .database import Database, Row, database_at
from .entries import (
    CONTENT_TYPE,
    Entry,
    Mark,
    SourceItem,
    Unreadable,
    compressed_headers,
    digest,
    pickle_headers,
)

__all__ = ["Huey", "LiteQueue", "PersistQueue", "TableSource"]

_SECONDS_END: Final = 1 << 63  # more is no time of anybody's
_TEXT: Final = "text/plain; charset=utf-8"


class TableSource(ABC):
    """A database whose tables are queues."""

    kind = ""
    mark: Mark | None = None

    def __init__(self, path: str) -> None:
        self.path = path
        self.source_id = ""
        self.total_bytes = os.stat(path).st_size
        self.left_out: Counter[str] = Counter()
        self._file, self._read_bytes = "", 0
        with Database(path) as database:
            self.queues = self._queues(database)

    @classmethod
    def opened(cls, path: str) -> Self | None:
        """See ``Foreign``."""
        file = database_at(path)
        if file is None:
            return None
        with Database(file) as database:
            tables = database.tables
        return cls(file) if cls.fits(tables) else None

    def holds(self, mark: Mark) -> bool:
        """See ``Foreign``: rows come and go."""
        return False

    def entries(self, after: Mark | None = None) -> Iterator[SourceItem]:
        """See ``Foreign``; ``after`` is not looked at."""
        with Database(self.path) as database:
            yield from self._all(database)

    @classmethod
    @abstractmethod
    def fits(cls, tables: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether these are its tables."""

    @abstractmethod
    def _queues(self, database: Database) -> Sequence[str]: ...

    @abstractmethod
    def _all(self, database: Database) -> Iterator[SourceItem]: ...

    def _entry(
        self, file: str, row: Row, data: object, identity: str, **fields: Any
    ) -> Entry | Unreadable:
        """The entry in a row, if its data is a blob or text."""
        if not isinstance(data, bytes):
            reason = f"its data is {type(data).__name__}, neither a blob nor text"
            return Unreadable(file, Damage(row.number, 0, reason))
        if file != self._file:
            self._file, self._read_bytes = file, 0
        self._read_bytes += len(data)
        return Entry(file, row.number, self._read_bytes, identity, data, **fields)


# --- huey -------------------------------------------------------------------------------------

_HUEY: Final = {
    "task": {"id", "queue", "data", "priority"},
    "schedule": {"id", "queue", "data", "timestamp"},
}


class Huey(TableSource):
    """Tables ``task`` and ``schedule``; ``kv`` holds results and locks, which are not tasks.

    Messages are pickles, and stay so: retries, arguments and expiry are inside.
    """

    kind = "huey"

    @classmethod
    def fits(cls, tables: Mapping[str, tuple[str, ...]]) -> bool:
        """See ``TableSource``."""
        return all(columns <= set(tables.get(name, ())) for name, columns in _HUEY.items())

    def _queues(self, database: Database) -> Sequence[str]:
        found: dict[str, None] = {}
        for table in _HUEY:
            for row in database.rows(table, ["queue"], ["rowid"]):
                if isinstance(row, Row):
                    found[_text(row.values[0])] = None
        return tuple(found)

    def _all(self, database: Database) -> Iterator[SourceItem]:
        seen: Counter[str] = Counter()  # equal messages are as many tasks
        for row in database.rows("task", ["queue", "data", "priority"], ["-priority", "rowid"]):
            yield self._message(database, "task", row, seen)
        rows = database.rows("schedule", ["queue", "data", "timestamp"], ["timestamp", "rowid"])
        for row in rows:
            yield self._message(database, "schedule", row, seen)

    def _message(
        self, database: Database, table: str, row: Row | Unreadable, seen: Counter[str]
    ) -> SourceItem:
        if isinstance(row, Unreadable):
            return row
        queue, data, number = row.values
        file = f"{database.name}:{table}"
        blob = data if isinstance(data, bytes) else b""
        who = digest(blob)
        seen[f"{queue!r}{who}"] += 1
        fields: dict[str, Any] = {"queue": _text(queue), "headers": compressed_headers(blob)}
        if table == "task":
            fields["priority"] = _from_default(number)
        else:
            fields["due_ms"] = _ms(number, 1000)
        identity = f"{_text(queue)}:{who}:{seen[f'{queue!r}{who}']}"
        return self._entry(file, row, data, identity, **fields)


def _from_default(priority: object) -> int:
    """A priority of ours: huey's default 0 becomes our default 5; higher comes first in both."""
    if not isinstance(priority, int | float) or isnan(priority):
        return 5
    return 5 + round(max(-5, min(4, priority)))


# --- litequeue --------------------------------------------------------------------------------

_LITE: Final = {"message_id", "status", "in_time", "lock_time", "done_time"}
_READY, _LOCKED, _DONE, _FAILED = range(4)


class LiteQueue(TableSource):
    """Each table with its columns is a queue. A locked message is imported as attempted once."""

    kind = "litequeue"

    @classmethod
    def fits(cls, tables: Mapping[str, tuple[str, ...]]) -> bool:
        """See ``TableSource``."""
        return any(_data_column(columns) for columns in tables.values())

    def _queues(self, database: Database) -> Sequence[str]:
        return tuple(name for name, columns in database.tables.items() if _data_column(columns))

    def _all(self, database: Database) -> Iterator[SourceItem]:
        for table in self.queues:
            data = _data_column(database.tables[table])
            columns = [data, "message_id", "status", "in_time", "lock_time", "done_time"]
            file = f"{database.name}:{table}"
            for row in database.rows(table, columns, ["message_id", "rowid"]):
                found = row if isinstance(row, Unreadable) else self._message(file, table, row)
                if found is not None:
                    yield found

    def _message(self, file: str, table: str, row: Row) -> SourceItem | None:
        data, message_id, status, in_ns, lock_ns, done_ns = row.values
        if status == _DONE:
            self.left_out["done already"] += 1
            return None
        if status not in (_READY, _LOCKED, _FAILED):
            return Unreadable(file, Damage(row.number, 0, f"status {status!r} is none"))
        return self._entry(
            file,
            row,
            data,
            f"{table}:{_text(message_id)}",
            queue=table,
            headers={CONTENT_TYPE: _TEXT},
            created_us=max(0, _whole(in_ns) // 1000),
            attempts=int(lock_ns is not None or status != _READY),
            reason="failed" if status == _FAILED else "",
            died_ms=max(0, _whole(done_ns) // 1_000_000) if status == _FAILED else None,
        )


def _data_column(columns: Sequence[str]) -> str:
    """The column of the message (before version 0.6 ``message``). Empty: the table is no queue."""
    if not set(columns) >= _LITE:
        return ""
    return next((name for name in ("data", "message") if name in columns), "")


# --- persist-queue ----------------------------------------------------------------------------


class _Table(NamedTuple):
    """The prefix of its tables, and how they are read."""

    prefix: str
    order: tuple[str, ...] = ("_id",)
    more: str = ""  # the column besides data and timestamp


_PERSIST: Final = (
    _Table("ack_filo_queue", ("-_id",), "status"),
    _Table("ack_unique_queue", more="status"),
    _Table("ack_queue", more="status"),
    _Table("filo_queue", ("-_id",)),
    _Table("unique_queue"),
    _Table("priority_queue", ("priority", "timestamp", "_id"), "priority"),
    _Table("queue"),
)
_RETURNED, _UNACKED, _ACKED, _ACK_FAILED = 1, 2, 5, 9


class PersistQueue(TableSource):
    """Its queues in SQLite, with and without acknowledgement. Items are bytes of any serializer."""

    kind = "persist-queue"

    @classmethod
    def fits(cls, tables: Mapping[str, tuple[str, ...]]) -> bool:
        """See ``TableSource``."""
        return any(_table_of(name, columns) for name, columns in tables.items())

    def _queues(self, database: Database) -> Sequence[str]:
        names = {
            _name_of(name, table): None
            for name, columns in database.tables.items()
            if (table := _table_of(name, columns)) is not None
        }
        return tuple(names)

    def _all(self, database: Database) -> Iterator[SourceItem]:
        for name, there in database.tables.items():
            table = _table_of(name, there)
            if table is None:
                continue
            columns = ["data", "timestamp", *([table.more] if table.more else [])]
            for row in database.rows(name, columns, table.order):
                found = row if isinstance(row, Unreadable) else self._item(name, table, row)
                if found is not None:
                    yield found

    def _item(self, name: str, table: _Table, row: Row) -> SourceItem | None:
        data, timestamp = row.values[:2]
        more = row.values[2] if table.more else None
        file = f"{os.path.basename(self.path)}:{name}"
        created_us = _ms(timestamp, 10**6)
        if created_us > TIME_MS_MAX * 1000:
            created_us = 0  # it is as old as the import, then
        fields: dict[str, Any] = {"queue": _name_of(name, table), "created_us": created_us}
        if table.more == "status":
            if more == _ACKED:
                self.left_out["done already"] += 1
                return None
            fields["attempts"] = int(more in (_RETURNED, _UNACKED, _ACK_FAILED))
            if more == _ACK_FAILED:
                fields["died_ms"], fields["reason"] = fields["created_us"] // 1000, "ack_failed"
        elif table.more == "priority":
            fields["priority"] = 9 - max(0, min(9, _whole(more)))
        blob = data if isinstance(data, bytes) else b""
        fields["headers"] = pickle_headers(blob)
        return self._entry(
            file, row, data, f"{name}:{row.number}:{timestamp!r}:{digest(blob)}", **fields
        )


def _table_of(name: str, columns: Sequence[str]) -> _Table | None:
    for table in _PERSIST:
        is_named = name == table.prefix or name.startswith(f"{table.prefix}_")
        if is_named and {"_id", "data", "timestamp"} <= set(columns):
            return table if not table.more or table.more in columns else None
    return None


def _name_of(name: str, table: _Table) -> str:
    """The name of a queue; asynchronous ones have none."""
    return name[len(table.prefix) + 1 :] or "default"


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _whole(value: object) -> int:
    return value if type(value) is int else 0


def _ms(seconds: object, per_second: int) -> int:
    """A time in seconds as a whole number of parts; 0 for a value that is no time.

    A time that no date can show is refused later.
    """
    is_time = isinstance(seconds, int | float) and 0 < seconds < _SECONDS_END
    return round(seconds * per_second) if is_time else 0  # type: ignore[operator]
