"""Stores written by earlier releases open, verify and go on: nothing in them is lost or misread.

``make.py`` has written them, once per format version, on the last commit of that version.
"""

import asyncio
import json
import tarfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import lodeq
from lodeq import TaskId
from lodeq.engine.bulk.arrow.columns import read_columns
from lodeq.engine.bulk.ranges import key_ranges
from lodeq.engine.bulk.reader import open_shard
from lodeq.testing import ManualClock

HERE = Path(__file__).resolve().parent
VERSIONS = sorted(path.name for path in HERE.glob("v*"))
STORES = ["closed-1", "closed-4", "killed-1", "killed-4"]
DAY = timedelta(days=1)

Facts = dict[str, Any]

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("version", VERSIONS)]


def unpacked(version: str, name: str, folder: Path) -> tuple[Path, ManualClock, Facts]:
    """The store, a clock that shows the time of its making, and what is in it."""
    with tarfile.open(HERE / version / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    expected = json.loads((HERE / version / "expected.json").read_text())
    clock = ManualClock(datetime.fromisoformat(expected["start"]))
    return folder / "store", clock, expected["stores"][name]


def test_there_are_golden_stores(version: str) -> None:
    assert "v1" in VERSIONS
    names = {path.name for path in (HERE / version).iterdir()}
    assert {f"{name}.tar.xz" for name in STORES} < names


async def everything_is_there(engine: lodeq.Engine, facts: Facts) -> None:
    report = await engine.verify()
    assert report.ok, report.findings
    for task_id, fact in facts["tasks"].items():
        task = await engine.get(task_id)
        assert task is not None, (task_id, fact)
        assert task.state == fact["state"], (task, fact)
        if "payload" in fact:
            expected = fact["payload"].encode().ljust(fact.get("size", 0), b".")
            assert task.payload == expected, task_id
        if "value" in fact:
            result = await engine.result(task_id)
            assert result is not None
            assert (result.status, result.value) == ("completed", fact["value"])
        if "face" in fact:
            found = {name: getattr(task, name) for name in fact["face"]}
            assert found == fact["face"], task_id
        for name in ("priority", "attempts"):
            assert getattr(task, name) == fact.get(name, getattr(task, name)), (task, fact)
    stats = await engine.stats()
    counts = dict.fromkeys(("ready", "delayed", "dead"), 0)
    for fact in facts["tasks"].values():
        if fact["state"] in counts:
            counts[fact["state"]] += 1
    counts["ready"] += 1  # the one of the paused queue
    assert {state: getattr(stats, state) for state in counts} == counts


async def keys_still_hold(engine: lodeq.Engine, facts: Facts) -> None:
    """A key that a task or a window held in the old store leads to that task."""
    held = {task_id: fact for task_id, fact in facts["tasks"].items() if "key" in fact}
    assert len(held) >= 60
    for task_id, fact in held.items():
        queue = engine.queue(fact["queue"], tenant=fact["tenant"])
        receipt = await queue.enqueue(b"again", dedup_key=fact["key"])
        assert (str(receipt.id), receipt.duplicate) == (task_id, True), fact


async def work_goes_on(engine: lodeq.Engine, clock: ManualClock, facts: Facts) -> None:
    """Every task that is ready or falls due is claimed once, and can be completed."""
    clock.advance(7200 + 3600)
    waiting = {t for t, fact in facts["tasks"].items() if fact["state"] in ("ready", "delayed")}
    done = set()
    for name in ("mail", "audit", "loaded", "late"):
        queue = engine.queue(name, tenant=lodeq.ALL_TENANTS)
        while leases := await queue.claim(limit=64):
            for lease in leases:
                assert str(lease.task_id) not in done
                done.add(str(lease.task_id))
                await lease.complete()
    assert done == waiting
    assert await engine.queue("held").claim() == []
    assert (await engine.verify()).ok


@pytest.mark.parametrize("name", STORES)
def test_a_store_opens_verifies_and_goes_on(version: str, name: str, tmp_path: Path) -> None:
    path, clock, facts = unpacked(version, name, tmp_path)

    async def main() -> None:
        for _ in range(2):  # the second open sees what the first has made of it
            async with lodeq.open(path, clock=clock, inbox=False) as engine:
                await everything_is_there(engine, facts)
                await keys_still_hold(engine, facts)
        async with lodeq.open(path, clock=clock, inbox=False) as engine:
            await work_goes_on(engine, clock, facts)

    asyncio.run(main())


def test_a_lifecycle_journal_is_read_to_its_end(version: str, tmp_path: Path) -> None:
    path, _, facts = unpacked(version, "closed-4", tmp_path)

    async def main() -> set[str]:
        reader = lodeq.lifecycle.Reader()
        seen: set[str] = set()
        tailer = lodeq.lifecycle.open_tailer(path, "tasks")
        while records := await tailer.read(100):
            for record in records:
                events = reader.read(record)
                seen.update(str(e.task_id) for e in events if isinstance(e, lodeq.lifecycle.Event))
        tailer.close()
        return seen

    loaded = {
        t for t, fact in facts["tasks"].items() if int(fact.get("payload", "0:")[:-1]) >= 1000
    }
    assert set(facts["tasks"]) - loaded <= asyncio.run(main())


def test_a_checkpoint_restores(version: str, tmp_path: Path) -> None:
    path, clock, facts = unpacked(version, "checkpoint", tmp_path)
    lodeq.restore(path, tmp_path / "restored")

    async def main() -> None:
        async with lodeq.open(tmp_path / "restored", clock=clock, inbox=False) as engine:
            await everything_is_there(engine, facts)
            await keys_still_hold(engine, facts)

    asyncio.run(main())


def test_loads_that_wait_come_in_or_are_refused_with_a_reason(version: str, tmp_path: Path) -> None:
    path, clock, _ = unpacked(version, "waiting", tmp_path)

    async def main() -> None:
        async with lodeq.open(path, clock=clock, inbox=False) as engine:
            jobs = {job.job: job for job in (await engine.ingest()).jobs}
            assert set(jobs) == {"keyed", "plain"}
            assert (jobs["plain"].state, jobs["plain"].tasks) == ("done", 30)
            keyed = jobs["keyed"]
            assert (keyed.state, keyed.tasks) == ("done", 30) or "stage" in keyed.reason
            assert (await engine.verify()).ok

    asyncio.run(main())


def test_a_journal_is_read_and_its_reader_goes_on(version: str, tmp_path: Path) -> None:
    path, _, facts = unpacked(version, "journal", tmp_path)
    wanted = [b"%06d:" % n for n in range(facts["journal"]["records"])]

    async def read_all(tailer: lodeq.journal.Tailer) -> list[bytes]:
        payloads: list[bytes] = []
        while records := await tailer.read(30):
            payloads += [record.payload for record in records]
        return payloads

    async def main() -> None:
        async with lodeq.journal.open(path) as log:
            assert not log.findings
            await log.append(b"more...", until="flushed")
            whole = await read_all(log.tailer())
            assert [payload[:7] for payload in whole] == [*wanted, b"more..."]
            # The record at which its loop was left may come again.
            rest = await read_all(log.tailer("half"))
            assert rest in (
                whole[facts["journal"]["read"] :],
                whole[facts["journal"]["read"] - 1 :],
            )

    asyncio.run(main())


def test_columns_that_came_later_are_null_where_they_are_read(version: str, tmp_path: Path) -> None:
    """As Spark reads them: rows of formats 1 and 2 have no face, and say so by null."""
    store, _, facts = unpacked(version, "closed-1", tmp_path)
    with open_shard(str(store), 0) as reader:
        for table in ("tasks", "results"):
            rows = [
                row
                for part in key_ranges(reader, table)
                for batch in read_columns(reader, part, table, bodies=lambda *_: b"")
                for row in batch.to_pylist()
            ]
            assert rows
            with_face = [row for row in rows if row["function"] is not None]
            assert bool(with_face) is (version not in ("v1", "v2"))
            if not with_face:
                assert {(row["preview"], row["labels"]) for row in rows} == {(None, None)}
            if table == "tasks":
                alive = {n for n, fact in facts["tasks"].items() if "payload" in fact}
                assert alive <= {str(TaskId(row["id"])) for row in rows}
