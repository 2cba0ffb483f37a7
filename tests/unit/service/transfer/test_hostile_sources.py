"""Sources made to hurt: each is read, or refused in one line, within bounds; the store is sound."""

import json
import struct
import time
from pathlib import Path

import pytest
from support_hostile import bounded, folders, one_child, shared_lists
from support_import import (
    AT_NS,
    HUEY,
    PICKLED,
    database,
    ledgerq,
    message,
    run_import,
    tasks_of,
)

from lodeq import LodeqError
from lodeq.engine.runtime.clock import SystemClock
from lodeq.segments.formats.ledgerq.state import STATE_BYTES_MAX, decode_dedup, decode_retry
from lodeq.service.transfer.import_run import ImportReport, survey
from lodeq.service.transfer.source_kinds import KINDS, open_source

pytestmark = pytest.mark.slow
HERE_S = 10.0  # of CPU, traced, on a slow machine; each took minutes, or memory without end


def read(kind: str, path: Path) -> ImportReport:
    return survey(open_source(kind, path), SystemClock())


def read_or_refuse(kind: str, path: Path) -> None:
    said = ""
    try:
        read(kind, path)
    except LodeqError as exc:
        said = str(exc)
    assert "\n" not in said


def chunks(folder: Path, info: bytes) -> Path:
    folder.mkdir()
    (folder / "q00000").write_bytes(PICKLED)
    (folder / "info").write_bytes(info)
    return folder


@pytest.mark.parametrize(
    ("info", "imported"),
    [  # a position in JSON says that the items are lines, and here they are not
        (b'{"tail": [0, 0, 0], "head": [10000000000, 0, 0]}', 0),
        (b'{"tail": [10000000000, 0, 0], "head": [0, 0, 0]}', 0),
        (b'{"tail": [0, 10000000000, 10000000000], "head": [0, 0, 10000000000]}', 0),
        (shared_lists(200), 1),
        (bytes(4), 1),
        (bytes(4000), 1),
        (b'{"tail":' + b"[" * 4000, 1),
        (b'{"tail": 1e999, "head": []}', 0),
        (b'{"tail": [' + b"9" * 4000 + b',0,0], "head": [0,0,0]}', 0),
        (struct.pack("<I", 5) + b"\xdf\xff\xff\xff\xff", 1),
        (b"\x80\x04" + b"]" * 2000 + b".", 1),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_position_that_lies(tmp_path: Path, info: bytes, imported: int) -> None:
    source = chunks(tmp_path / "q", info)
    with bounded(cpu_s=HERE_S, mib=16):
        report = read("persist-queue", source)
    assert report.unreadables
    assert report.imported == imported
    assert all(len(one.damage.reason) < 400 for one in report.unreadable)
    assert run_import("persist-queue", source, tmp_path / "store").imported == imported


def test_items_of_a_chunk_are_read_block_by_block(tmp_path: Path) -> None:
    folder = tmp_path / "q"
    folder.mkdir()
    item = b"\x80\x04B" + struct.pack("<I", 100_000) + bytes(100_000) + b"."
    with (folder / "q00000").open("wb") as file:
        for _ in range(400):
            file.write(item)
    with bounded(cpu_s=HERE_S, mib=16):
        report = read("persist-queue", folder)
    assert (report.imported, report.unreadables) == (400, 0)
    with (folder / "q00000").open("r+b") as file:
        file.seek(4_000_000)
        file.write(b"\xff" * 200_000)  # no opcode: where the next one begins cannot be told
    with bounded(cpu_s=HERE_S, mib=16):
        report = read("persist-queue", folder)
    assert (report.imported, report.unreadables) == (39, 1)


@pytest.mark.parametrize("table", ["task", "schedule"])
def test_a_table_whose_pages_are_one_and_the_same(tmp_path: Path, table: str) -> None:
    more = "priority" if table == "task" else "timestamp"
    sql = f"insert into {table} (queue, data, {more}) values (?, ?, 1)"  # noqa: S608 - ours
    made = (sql, ("mail", PICKLED))
    source = one_child(database(tmp_path / "huey.db", *HUEY, made), table)
    assert source.stat().st_size < 100_000
    with bounded(cpu_s=HERE_S, mib=16):
        report = read("huey", source)
    assert report.unreadables
    assert report.imported <= 2
    run_import("huey", source, tmp_path / "store")


def test_rows_that_are_larger_than_the_file(tmp_path: Path) -> None:
    """Every row's overflow pages are those of the first one."""
    rows = [
        ("insert into task (queue, data) values (?, ?)", ("m", b"x" * 30_000)) for _ in range(9)
    ]
    source = database(tmp_path / "huey.db", *HUEY, *rows)
    data = bytearray(source.read_bytes())
    page = 4096
    for at in range(0, len(data), page):  # overflow pages all follow the same one
        if data[at + 4 : at + page] == b"x" * (page - 4):
            data[at : at + 4] = (at // page + 1).to_bytes(4, "big")
    source.write_bytes(data)
    with bounded(cpu_s=HERE_S, mib=32):
        report = read("huey", source)
    assert report.imported <= len(data) // 30_000 + 1


def test_a_column_that_is_called_like_the_number_of_a_row(tmp_path: Path) -> None:
    made = "create table queue (_id integer primary key, data blob, timestamp float, rowid text)"
    source = database(
        tmp_path / "q.db", made, ("insert into queue values (1, ?, 1.0, 'x')", (PICKLED,))
    )
    with bounded(cpu_s=HERE_S, mib=16):
        report = read("persist-queue", source)
    assert (report.imported, report.unreadables) == (0, 1)


@pytest.mark.parametrize("timestamp", [1e12, 1e300, 9e18, float("inf")])
def test_a_time_that_is_no_date(tmp_path: Path, timestamp: float) -> None:
    rows = [
        ("insert into schedule (queue, data, timestamp) values (?, ?, ?)", ("m", PICKLED, when))
        for when in (timestamp, 4e9)
    ]
    source = database(tmp_path / "huey.db", *HUEY, *rows)
    store = tmp_path / "store"
    report = run_import("huey", source, store)
    ready, delayed = tasks_of(store), tasks_of(store, "delayed")
    assert len(ready) + len(delayed) == report.imported
    assert all(task.due_at is not None and task.due_at.year < 2200 for task in delayed)
    if timestamp < 1 << 63:
        assert report.unreadables == 1
        assert "time" in report.unreadable[0].damage.reason


@pytest.mark.parametrize("count", ["-5", str(1 << 40), "9" * 4000, "0x5", " 7"])
def test_a_dead_letter_with_a_count_that_is_none(tmp_path: Path, count: str) -> None:
    headers = {"dlq.original_msg_id": "7", "dlq.retry_count": count}
    messages = [
        message(1, b"before"),
        message(2, b"dead", headers=headers),
        message(3, b"behind"),
    ]
    source, store = ledgerq(tmp_path / "source", messages), tmp_path / "store"
    report = run_import("ledgerq", source, store)
    left = len(tasks_of(store)) + len(tasks_of(store, "dead"))
    assert left == report.imported == 3 - report.unreadables
    again = run_import("ledgerq", source, store)
    assert (again.imported, again.already) == (0, report.imported)
    if count == "-5":
        assert "-5" in report.unreadable[0].damage.reason


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_dead_letter_that_died_at_the_ends_of_time(tmp_path: Path, when: str) -> None:
    headers = {"dlq.original_msg_id": "7", "dlq.retry_count": "1", "dlq.last_failure": when}
    source = ledgerq(tmp_path / "source", [message(1, b"dead", headers=headers)])
    report = run_import("ledgerq", source, tmp_path / "store")
    assert report.imported + report.unreadables == 1
    assert len(tasks_of(tmp_path / "store", "dead")) == report.imported


@pytest.mark.parametrize("entry", [b"{}", b"[]", b"0", b'""', b"[[[[]]]]"])
@pytest.mark.parametrize("decode", [decode_retry, decode_dedup])
def test_a_state_of_nothing_costs_no_more_than_its_bytes(entry: bytes, decode: object) -> None:
    body = b",".join([entry] * (400_000 // (len(entry) + 1)))
    raw = b'{"version":1,"max_retries":1,"entries":[' + body + b"]}"
    with bounded(cpu_s=HERE_S, mib=2), pytest.raises(LodeqError):
        decode(raw)  # type: ignore[operator]
    for inner in (b'{"a":[' + body + b"]}", b'[{"a":[' + body + b"]}]"):
        raw = b'{"version":1,"max_retries":1,"entries":' + inner + b"}"
        with bounded(cpu_s=HERE_S, mib=16), pytest.raises(LodeqError):
            decode(raw)  # type: ignore[operator]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{}",
        b'{"version":1',
        b'{"version":1,}',
        b'{"version":1} x',
        b"[1]",
        b'{"version":1,"version":1,"entries":null}',
        b'{"version":1,"entries":[{},]}',
        b'{"version":1,"entries":[{"a":"\xff"}]}',
        b'{"a":' + b"[" * 100_000,
        b'{"version":1,"entries":' + b'[{"a":' * 100_000,
        b"\xff" * 9000,
        b'{"version":1,"max_retries":' + b"9" * 5000 + b"}",
        bytes(STATE_BYTES_MAX + 1),
    ],
    ids=lambda raw: ascii(raw[:30]),
)
@pytest.mark.parametrize("decode", [decode_retry, decode_dedup])
def test_a_state_that_is_none_is_refused(raw: bytes, decode: object) -> None:
    with bounded(cpu_s=HERE_S, mib=48), pytest.raises(LodeqError):
        decode(raw)  # type: ignore[operator]


def test_entries_of_any_length_are_read_wherever_blocks_end() -> None:
    def entry(n: int) -> dict[str, object]:
        reason = "é\U0001f600" * n
        return {
            "msg_id": n + 1,
            "retry_count": 1,
            "last_failure": "2026-01-02T03:04:05Z",
            "failure_reason": reason,
        }

    for indent in (None, 2):
        state = {"version": 1, "max_retries": 3, "entries": [entry(n) for n in range(0, 2500, 7)]}
        raw = json.dumps(state, indent=indent, ensure_ascii=False).encode()
        found = decode_retry(raw).entries
        assert [len(one.failure_reason) for one in found] == [2 * n for n in range(0, 2500, 7)]


def test_folders_many_deep(tmp_path: Path) -> None:
    source = tmp_path / "queue"
    with folders(source, 1500):
        (source / "manifest.1").write_bytes(b"")
        for kind in KINDS:
            with bounded(cpu_s=HERE_S, mib=16):
                read_or_refuse(kind, source)
    assert [path.name for path in source.iterdir()] == ["manifest.1"]


@pytest.mark.parametrize(
    "name", ["00000000000000000001.log", "0.rdq", "0.sqs", "20260101-0001.data", "q00000", "a.db"]
)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(4),
        bytes(100),
        b"[" * 5000,
        b"\xff" * 100,
        b"QQDL" + bytes(60),
        b"SQLite format 3\0",
        b"SQLite format 3\0" + bytes(84),
        b"SQLite format 3\0" + b"\xff" * 5000,
    ],
    ids=lambda raw: ascii(raw[:12]) + str(len(raw)),
)
def test_small_files_under_every_name(tmp_path: Path, name: str, data: bytes) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / name).write_bytes(data)
    for path in (source, source / name):
        for kind in KINDS:
            with bounded(cpu_s=HERE_S, mib=16):
                read_or_refuse(kind, path)


@pytest.mark.parametrize("length", [60, 32_768, 1 << 18])
@pytest.mark.parametrize("kind", ["rust-queue", "ledgerq", "rdq"])
def test_a_log_of_lengths_alone(tmp_path: Path, kind: str, length: int) -> None:
    """Half a second; 2 MiB took a minute."""
    head, unit = {
        "rust-queue": (b"", struct.pack("<I", length)),
        "ledgerq": (
            b"QQDL\1\0" + bytes(58),
            struct.pack("<IBB", length, 1, 0) + struct.pack("<QQ", 7, AT_NS),
        ),
        "rdq": (b"", struct.pack(">Q", length) + b"0123456789abcdef\xff"),
    }[kind]
    suffix = {"rust-queue": ".data", "ledgerq": ".log", "rdq": ".rdq"}[kind]
    path = tmp_path / f"source{suffix}"
    path.write_bytes(head + (unit * (400_000 // len(unit))))
    before = time.thread_time()
    assert read(kind, path).unreadables
    assert time.thread_time() - before < 4
