"""Queues of other systems, as those systems leave them on disk.

The tables are those of huey 3.5, litequeue 0.9 and persist-queue 1.1, statement by statement.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import lodeq
from lodeq import Engine, Task
from lodeq.segments.formats.ledgerq.folder import write_directory as write_ledgerq
from lodeq.segments.formats.ledgerq.state import DedupState, RetryState
from lodeq.segments.item import Record
from lodeq.service.transfer.import_run import ImportReport, import_tasks
from lodeq.service.transfer.source_kinds import open_source

AT_NS = 1_700_000_000_000_000_000
FAR_NS = 4_000_000_000_000_000_000  # 2096

# What ``pickle.dumps(("a", 1), 4)`` gives; and one that would write a file, were it ever loaded.
PICKLED = bytes.fromhex("80049509000000000000008c0161944b0186942e")


def bomb(target: Path) -> bytes:
    """A pickle that makes ``target`` when it is loaded: ``GLOBAL``, arguments, ``REDUCE``."""
    name = str(target).encode()
    return b"\x80\x02cos\nmkdir\n(X" + len(name).to_bytes(4, "little") + name + b"tR."


def ledgerq(
    folder: Path,
    messages: Sequence[Record],
    *,
    read_id: int = 1,
    retries: RetryState | None = None,
    dedup: DedupState | None = None,
) -> Path:
    write_ledgerq(folder, messages, read_id=read_id, retries=retries, dedup=dedup)
    return folder


def message(n: int, payload: bytes, **told: object) -> Record:
    return Record(0, 0, payload, sequence=n, timestamp_ns=AT_NS + n, **told)  # type: ignore[arg-type]


def database(path: Path, *statements: str | tuple[str, Sequence[object]]) -> Path:
    """Closed in good order: no log is left beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path)
    for statement in statements:
        sql, values = (statement, ()) if isinstance(statement, str) else statement
        db.execute(sql, values)
    db.commit()
    db.close()
    return path


HUEY = (
    (
        "create table if not exists kv (queue text not null, key text not null, "
        "value blob not null, primary key(queue, key))"
    ),
    (
        "create table if not exists schedule (id integer not null primary key, "
        "queue text not null, data blob not null, timestamp real not null)"
    ),
    "create index if not exists schedule_queue_timestamp on schedule (queue, timestamp)",
    (
        "create table if not exists task (id integer not null primary key, queue text not null, "
        "data blob not null, priority real not null default 0.0)"
    ),
    "create index if not exists task_queue_priority_id on task (queue, priority desc, id)",
    (
        "create table if not exists counter (queue text not null, key text not null, "
        "value integer not null default 0, primary key(queue, key))"
    ),
)
LITEQUEUE = (
    """CREATE TABLE IF NOT EXISTS [Queue]
                (
                  data       TEXT NOT NULL
                  , message_id TEXT NOT NULL
                  , status     INTEGER NOT NULL
                  , in_time    INTEGER NOT NULL
                  , lock_time  INTEGER
                  , done_time  INTEGER
                )
                """,
    "CREATE INDEX IF NOT EXISTS TIdx ON [Queue](message_id)",
    "CREATE INDEX IF NOT EXISTS SIdx ON [Queue](status)",
)


def persist_table(name: str, more: str = "") -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS `{name}` (_id INTEGER PRIMARY KEY AUTOINCREMENT, "
        f"data BLOB, timestamp FLOAT{more})"
    )


def run_import(
    kind: str,
    path: Path,
    store: Path,
    *,
    queue: str | None = "mail",
    shards: int | None = None,
    source_id: str | None = None,
) -> ImportReport:
    """Import, and check that every rule of the store holds and the source is as it was."""

    async def run() -> ImportReport:
        async with lodeq.open(store, shards=shards, reaper=False) as engine:
            source = open_source(kind, path, source_id=source_id)
            report = await import_tasks(engine, source, queue=queue)
            found = await engine.verify()
            assert found.ok, found.findings
            return report

    return asyncio.run(run())


def tasks_of(store: Path, state: str = "ready", queue: str = "mail") -> list[Task]:
    async def run() -> list[Task]:
        async with lodeq.open(store, reaper=False) as engine:
            return await engine.queue(queue).list(state, limit=10_000)

    return asyncio.run(run())


def complete_all(store: Path, queue: str = "mail") -> list[object]:
    """Claim and complete whatever is ready. Returns the payloads."""

    async def run() -> list[object]:
        async with lodeq.open(store, reaper=False) as engine:
            leases = await engine.queue(queue).claim(limit=4096)
            await engine.complete_many([(lease, None) for lease in leases])
            return [lease.payload for lease in leases]

    return asyncio.run(run())


__all__ = [
    "AT_NS",
    "FAR_NS",
    "HUEY",
    "LITEQUEUE",
    "PICKLED",
    "Engine",
    "bomb",
    "complete_all",
    "database",
    "ledgerq",
    "message",
    "persist_table",
    "run_import",
    "tasks_of",
]
