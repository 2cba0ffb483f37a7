"""What is exported to LedgerQ comes back as it was; other formats have what they can."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support_import import run_import, tasks_of

import lodeq
from lodeq import Engine, Limits, StorageError, Task, UsageError
from lodeq.engine.records.keyspace import TASK
from lodeq.segments.formats.ledgerq.folder import read_directory
from lodeq.segments.formats.rust_queue.folder import QueueDirectory
from lodeq.segments.item import Record
from lodeq.service.transfer import export as exporting
from lodeq.service.transfer.export import ExportReport, export_queue

pytestmark = pytest.mark.slow


def in_store(path: Path, do: Callable[[Engine], Awaitable[object]]) -> None:
    async def run() -> None:
        async with lodeq.open(path, shards=2, limits=Limits(headers_bytes_max=200_000)) as engine:
            await do(engine)

    asyncio.run(run())


def export(store: Path, to: Path, **told: object) -> ExportReport:
    async def run() -> ExportReport:
        async with lodeq.open(store, reaper=False) as engine:
            return export_queue(engine, "mail", to, **told)  # type: ignore[arg-type]

    return asyncio.run(run())


async def fill(engine: Engine) -> None:
    mail = engine.queue("mail")
    for n in range(20):
        await mail.enqueue(b"%d" % n, priority=n % 10, headers={"n": str(n)} if n % 2 else None)
    await mail.enqueue({"packed": [1, None]}, ttl=1e8)
    await mail.enqueue(b"", headers={"odd": b"\xff", "n": 7, "dlq.retry_count": "x", "s": "text"})
    await mail.enqueue(b"later", delay=1e7, priority=3)
    await mail.enqueue(bytes(100_000), dedup_key="k")
    for lease in await mail.claim(limit=3):  # the first three
        await lease.nack(delay=0, reason="no route")
    (lease,) = await mail.claim()
    await lease.bury("broken")


def facts(tasks: list[Task]) -> list[tuple[object, ...]]:
    return [
        (
            task.payload,
            task.priority,
            task.headers,
            task.attempts,
            task.reason,
            task.due_at,
            task.expires_at if task.state != "dead" else task.finished_at,
            task.enqueued_at,
        )
        for task in tasks
    ]


def test_ledgerq_there_and_back(tmp_path: Path) -> None:
    store, to, again = tmp_path / "store", tmp_path / "out", tmp_path / "again"
    in_store(store, fill)
    report = export(store, to, dead=True)
    assert (report.exported, report.dead, report.losses) == (24, 1, 0)
    assert len(report.loosened) == 2
    assert read_directory(to).verify() == []
    assert read_directory(tmp_path / "out.dead").verify() == []
    for source in (to, tmp_path / "out.dead"):
        assert run_import("ledgerq", source, again, shards=2).unreadables == 0
    for state in ("ready", "delayed", "dead"):
        assert facts(tasks_of(again, state)) == facts(tasks_of(store, state)), state


def test_what_ledgerq_itself_reads(tmp_path: Path) -> None:
    async def some(engine: Engine) -> None:
        mail = engine.queue("mail")
        await mail.enqueue(b"low", headers={"k": "v"})
        await mail.enqueue(b"high", priority=9, ttl=1000)
        (lease,) = await mail.claim()
        await lease.nack(delay=0, reason="busy")

    in_store(tmp_path / "store", some)
    export(tmp_path / "store", tmp_path / "out")
    directory = read_directory(tmp_path / "out")
    records = [item for _, item in directory.items() if isinstance(item, Record)]
    assert [(r.payload, r.priority, dict(r.headers), r.sequence) for r in records] == [
        (b"high", 2, {}, 1),
        (b"low", 0, {"k": "v"}, 2),
    ]
    assert records[0].expires_ns - records[0].timestamp_ns == pytest.approx(1000e9, rel=0.01)
    assert directory.failures[1].retry_count == 1
    assert directory.failures[1].failure_reason == "busy"
    assert directory.metadata is not None
    assert directory.metadata == (3, 1)


def test_lines_of_json(tmp_path: Path) -> None:
    in_store(tmp_path / "store", fill)
    report = export(tmp_path / "store", tmp_path / "out.jsonl", format="jsonl", dead=True)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(lines) == report.exported == 24
    found = tasks_of(tmp_path / "store")
    assert [line["id"] for line in lines[: len(found)]] == [str(task.id) for task in found]
    assert base64.b64decode(lines[0]["payload"]) == found[0].payload
    packed = next(line for line in lines if line["payload_kind"] == "msgpack")
    assert packed["expires_at"] is not None
    odd = next(line for line in lines if line["headers"] is None)
    assert base64.b64decode(odd["headers_msgpack"])
    assert (lines[-1]["state"], lines[-1]["reason"]) == ("dead", "broken")


@pytest.mark.parametrize("dead", [False, True])
def test_a_dead_letter_that_is_leased_is_none_that_waits(tmp_path: Path, dead: bool) -> None:
    async def claimed(engine: Engine) -> None:
        mail = engine.queue("mail")
        await mail.enqueue(b"x")
        await (await mail.claim_one()).bury("broken")
        await mail.claim(dead=True, lease=3600, exported=True)

    in_store(tmp_path / "store", claimed)
    report = export(tmp_path / "store", tmp_path / "out.jsonl", format="jsonl", dead=dead)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["state"], line["reason"]) for line in lines] == [("dead", "broken")] * dead
    assert report.dead == dead


def test_what_waits_for_others_is_said_to_wait(tmp_path: Path) -> None:
    async def waiting(engine: Engine) -> None:
        first = await engine.queue("other").enqueue(b"first")
        await engine.queue("mail").enqueue(b"second", after=[first.id])

    in_store(tmp_path / "store", waiting)
    export(tmp_path / "store", tmp_path / "out.jsonl", format="jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text())["state"] == "waiting"
    report = export(tmp_path / "store", tmp_path / "out")
    assert [what.partition(",")[0] for what in report.loosened] == ["waiting for other tasks"]


def test_a_rust_queue(tmp_path: Path) -> None:
    in_store(tmp_path / "store", fill)
    report = export(tmp_path / "store", tmp_path / "out", format="rust-queue")
    assert (report.exported, report.losses) == (22, 1)
    directory = QueueDirectory(tmp_path / "out")
    assert directory.verify() == []
    assert len([item for _, item in directory.scan() if isinstance(item, Record)]) == 22
    assert run_import("rust-queue", tmp_path / "out", tmp_path / "again").imported == 22


def test_what_cannot_be_read_or_held_is_told(tmp_path: Path) -> None:
    async def some(engine: Engine) -> None:
        mail = engine.queue("mail")
        await mail.enqueue(b"large", headers={"k": "x" * 70_000})
        damaged = await mail.enqueue(b"damaged")
        await mail.enqueue(b"good")
        shard = engine._state.shard_of(damaged.id)
        group = shard.coalescer.begin()
        group.ops.append((TASK + damaged.id, b"?"))
        await shard.coalescer.wait(group)

    in_store(tmp_path / "store", some)
    told: list[str] = []
    report = export(tmp_path / "store", tmp_path / "out", on_lost=lambda _, why: told.append(why))
    assert (report.exported, report.losses) == (1, 2)
    assert [why for _, why in report.lost] == told
    assert run_import("ledgerq", tmp_path / "out", tmp_path / "again").imported == 1


def test_wrong_calls_write_nothing(tmp_path: Path) -> None:
    in_store(tmp_path / "store", fill)
    before = sorted(path.name for path in tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    for told, text in (
        ({"to": tmp_path / "there"}, "exists"),
        ({"format": "csv"}, r"expected a format among .*, got 'csv'"),
        ({"format": "rust-queue", "dead": True}, "no dead letters"),
        ({"tenant": "acme"}, r"queue 'mail' .* is empty"),
    ):
        with pytest.raises(UsageError, match=text):
            export(tmp_path / "store", **{"to": tmp_path / "out", **told})  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "there"])


def test_an_error_on_the_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_store(tmp_path / "store", fill)
    before = sorted(path.name for path in tmp_path.iterdir())

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(exporting, "fsync_dir", fail)
    with pytest.raises(StorageError):
        export(tmp_path / "store", tmp_path / "out")
    monkeypatch.setattr(exporting, "_record", fail)
    with pytest.raises(StorageError):
        export(tmp_path / "store", tmp_path / "out", dead=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
