"""From huey, litequeue and persist-queue in SQLite: states, order, priority, bytes as they are."""

from pathlib import Path

import pytest
from support_import import (
    AT_NS,
    HUEY,
    LITEQUEUE,
    PICKLED,
    bomb,
    complete_all,
    database,
    persist_table,
    run_import,
    tasks_of,
)
from support_service import state_of

from lodeq.service.transfer.entries import CONTENT_ENCODING, CONTENT_TYPE, PICKLE

pytestmark = pytest.mark.slow

AT = AT_NS / 1e9
TASK = "insert into task (queue, data, priority) values (?, ?, ?)"
SCHEDULE = "insert into schedule (queue, data, timestamp) values (?, ?, ?)"
LITE = "INSERT INTO [Queue] VALUES (?, ?, ?, ?, ?, ?)"


# --- huey -------------------------------------------------------------------------------------


def test_huey_tasks_and_schedule(tmp_path: Path) -> None:
    zipped = bytes.fromhex("1f8b0800") + b"..."
    source = database(
        tmp_path / "source" / "huey.db",
        *HUEY,
        (TASK, ("huey", PICKLED, 0)),
        (TASK, ("huey", b"\x78\x9c..", 3)),
        (TASK, ("huey", zipped, -100)),
        (TASK, ("huey", b"signed:abc", None or 0)),
        (SCHEDULE, ("huey", PICKLED + b"x", 4e9)),
        ("insert into kv values (?, ?, ?)", ("huey", "result", b"r")),
    )
    before = state_of(source.parent)
    report = run_import("huey", source.parent, tmp_path / "store")
    assert (report.imported, report.unreadables) == (5, 0)
    found = tasks_of(tmp_path / "store")
    assert [task.payload for task in found] == [b"\x78\x9c..", PICKLED, b"signed:abc", zipped]
    assert [task.priority for task in found] == [8, 5, 5, 0]
    assert [task.headers for task in found] == [
        {CONTENT_TYPE: PICKLE, CONTENT_ENCODING: "deflate"},
        {CONTENT_TYPE: PICKLE},
        {},
        {CONTENT_TYPE: PICKLE, CONTENT_ENCODING: "gzip"},
    ]
    (later,) = tasks_of(tmp_path / "store", "delayed")
    assert later.due_at is not None
    assert later.due_at.timestamp() == 4e9
    assert state_of(source.parent) == before


def test_hueys_queues_keep_their_names(tmp_path: Path) -> None:
    source = database(
        tmp_path / "huey.db",
        *HUEY,
        (TASK, ("Mail", b"m", 0)),
        (TASK, ("audit", b"a", 0)),
        (TASK, ("audit", b"a", 0)),
    )
    assert run_import("huey", source, tmp_path / "store", queue=None).imported == 3
    assert [task.payload for task in tasks_of(tmp_path / "store", queue="mail")] == [b"m"]
    assert [task.payload for task in tasks_of(tmp_path / "store", queue="audit")] == [b"a", b"a"]
    assert run_import("huey", source, tmp_path / "store", queue=None).already == 3


# --- litequeue --------------------------------------------------------------------------------


def test_litequeue_by_status(tmp_path: Path) -> None:
    source = database(
        tmp_path / "lite.sqlite3",
        *LITEQUEUE,
        (LITE, ("ready", "02", 0, AT_NS, None, None)),
        (LITE, ("first", "01", 0, AT_NS, None, None)),
        (LITE, ("locked", "03", 1, AT_NS, AT_NS, None)),
        (LITE, ("done", "04", 2, AT_NS, AT_NS, AT_NS)),
        (LITE, ("failed", "05", 3, AT_NS, AT_NS, AT_NS + 10**9)),
        (LITE, ("tried again", "06", 0, AT_NS, AT_NS, None)),
        (LITE, ("odd", "07", 9, AT_NS, None, None)),
        (LITE, (7, "08", 0, AT_NS, None, None)),
    )
    report = run_import("litequeue", source, tmp_path / "store", queue=None)
    assert (report.imported, report.dead, report.left_out) == (6, 1, {"done already": 1})
    assert [(one.file, one.damage.offset) for one in report.unreadable] == [
        ("lite.sqlite3:Queue", 7)
    ]
    found = tasks_of(tmp_path / "store", queue="queue")
    assert [(t.payload, t.attempts) for t in found] == [
        (b"first", 0),
        (b"ready", 0),
        (b"locked", 1),
        (b"tried again", 1),
        (b"7", 0),
    ]
    assert found[0].headers == {CONTENT_TYPE: "text/plain; charset=utf-8"}
    assert found[0].enqueued_at.timestamp() == AT
    (dead,) = tasks_of(tmp_path / "store", "dead", "queue")
    assert (dead.payload, dead.attempts, dead.reason) == (b"failed", 1, "failed")


def test_litequeue_as_it_was(tmp_path: Path) -> None:
    """Before 0.6 the column was called ``message``."""
    table = LITEQUEUE[0].replace("data    ", "message ")
    source = database(tmp_path / "lite.db", table, (LITE, ("old", "01", 0, AT_NS, None, None)))
    assert run_import("litequeue", source, tmp_path / "store").imported == 1


# --- persist-queue ----------------------------------------------------------------------------


def put(table: str, *values: object) -> tuple[str, tuple[object, ...]]:
    marks = ", ".join("?" * (len(values)))
    return f"INSERT INTO `{table}` VALUES (NULL, {marks})", values  # noqa: S608 - ours


def test_persist_queue_by_kind_of_queue(tmp_path: Path) -> None:
    source = database(
        tmp_path / "source" / "data.db",
        persist_table("queue_default"),
        put("queue_default", b"1", AT),
        put("queue_default", b"2", AT),
        persist_table("filo_queue_last"),
        put("filo_queue_last", b"1", AT),
        put("filo_queue_last", b"2", AT),
        persist_table("unique_queue_once", ", UNIQUE (data)"),
        put("unique_queue_once", b"1", AT),
        persist_table("priority_queue_urgent", ", priority INTEGER"),
        put("priority_queue_urgent", b"3", AT, 30),
        put("priority_queue_urgent", b"2", AT, 2),
        put("priority_queue_urgent", b"4", AT, 40),
        put("priority_queue_urgent", b"1", AT, -1),
        persist_table("queue"),  # the asynchronous one, without a name
        put("queue", b"async", AT),
        "CREATE TABLE dict_default (key TEXT PRIMARY KEY, data BLOB)",
    )
    before = state_of(source.parent)
    report = run_import("persist-queue", source.parent, tmp_path / "store", queue=None)
    assert (report.imported, report.unreadables) == (10, 0)

    def payloads(queue: str) -> list[object]:
        return [task.payload for task in tasks_of(tmp_path / "store", queue=queue)]

    assert payloads("default") == [b"1", b"2", b"async"]
    assert payloads("last") == [b"2", b"1"]
    assert payloads("once") == [b"1"]
    assert payloads("urgent") == [b"1", b"2", b"3", b"4"]
    urgent = tasks_of(tmp_path / "store", queue="urgent")
    assert [task.priority for task in urgent] == [9, 7, 0, 0]
    assert state_of(source.parent) == before


@pytest.mark.parametrize("name", ["ack_queue_q", "ack_filo_queue_q", "ack_unique_queue_q"])
def test_persist_queue_with_acknowledgement(tmp_path: Path, name: str) -> None:
    source = database(
        tmp_path / "data.db",
        persist_table(name, ", status INTEGER"),
        *(put(name, b"%d" % status, AT, status) for status in (0, 1, 2, 5, 9)),
    )
    report = run_import("persist-queue", source, tmp_path / "store", queue=None)
    assert (report.imported, report.dead, report.left_out) == (4, 1, {"done already": 1})
    found = {task.payload: task.attempts for task in tasks_of(tmp_path / "store", queue="q")}
    assert found == {b"0": 0, b"1": 1, b"2": 1}
    (dead,) = tasks_of(tmp_path / "store", "dead", "q")
    assert (dead.payload, dead.reason) == (b"9", "ack_failed")


def test_what_is_pickled_is_never_loaded(tmp_path: Path) -> None:
    target = tmp_path / "made by a pickle"
    source = database(
        tmp_path / "data.db", persist_table("queue_default"), put("queue_default", bomb(target), AT)
    )
    run_import("persist-queue", source, tmp_path / "store")
    (task,) = tasks_of(tmp_path / "store")
    assert (task.payload, task.headers) == (bomb(target), {CONTENT_TYPE: PICKLE})
    complete_all(tmp_path / "store")
    assert not target.exists()


def test_what_is_done_here_is_not_taken_again(tmp_path: Path) -> None:
    source = database(
        tmp_path / "data.db",
        persist_table("queue_default"),
        put("queue_default", b"1", AT),
        put("queue_default", b"1", AT),
    )
    run_import("persist-queue", source, tmp_path / "store")
    assert complete_all(tmp_path / "store") == [b"1", b"1"]
    database(source, put("queue_default", b"new", AT))
    report = run_import("persist-queue", source, tmp_path / "store")
    assert (report.imported, report.already) == (1, 2)
    assert complete_all(tmp_path / "store") == [b"new"]
