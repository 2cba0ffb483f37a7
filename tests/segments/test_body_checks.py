"""``verify`` reads every payload, beside an engine at work; a salvage settles what is lost."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support_bodies import SIZE, Opened
from support_loop import on_loop

import lodeq
from lodeq.engine.values import Finding
from lodeq.repository.background import body_checks


def spoil(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at : at + 4] = b"\xff\xff\xff\xff"
    file.write_bytes(raw)


def lost(found: list[Finding]) -> set[bytes | None]:
    assert {one.kind for one in found} <= {"body"}
    return {one.task_id for one in found}


@on_loop
async def test_payloads_that_are_gone_damaged_or_cut_are_told(tmp_path: Path) -> None:
    file = tmp_path / "s" / "bodies0" / "1.sqs"
    async with Opened(tmp_path) as rig:
        ids = await rig.fill(5)
        assert (await rig.engine.verify()).ok
        at = rig.location(ids[1])
        spoil(file, at.offset + at.size // 2)
        assert lost([*(await rig.engine.verify()).findings]) == {ids[1]}
        os.truncate(file, rig.location(ids[4]).offset + 10)
        assert lost([*(await rig.engine.verify()).findings]) == {ids[1], ids[4]}
        file.unlink()
        found = (await rig.engine.verify()).findings
        assert lost([*found]) == set(ids)
        assert "1.sqs' is gone" in found[0].detail


@on_loop
async def test_what_tasks_share_is_told_of_each(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        receipts = await rig.queue.enqueue_many([lodeq.NewTask(bytes(SIZE))] * 70)
        (tmp_path / "s" / "bodies0" / "1.sqs").unlink()
        found = (await rig.engine.verify()).findings
        assert lost([*found]) == {receipt.id for receipt in receipts}


@on_loop
async def test_there_is_an_end_to_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_checks, "_FINDINGS_MAX", 3)
    async with Opened(tmp_path) as rig:
        await rig.fill(5)
        (tmp_path / "s" / "bodies0" / "1.sqs").unlink()
        kinds = [one.kind for one in (await rig.engine.verify()).findings]
        assert kinds == ["body", "body", "body", "truncated"]


@on_loop
async def test_no_file_goes_while_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot still has rows of tasks that end meanwhile."""
    loop, begun, may_go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    look = body_checks._check_batch

    def held(*args: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        assert may_go.wait(10)
        return look(*args)

    monkeypatch.setattr(body_checks, "_check_batch", held)
    async with Opened(tmp_path) as rig:
        await rig.fill(3)
        check = asyncio.ensure_future(rig.engine.verify())
        await begun.wait()
        await rig.end(3)
        await rig.look()
        assert rig.files() == [1]
        may_go.set()
        assert (await check).ok
        rig.bodies.to_look.add(1)
        await rig.look()
        assert rig.files() == []


@on_loop
async def test_a_salvage_settles_a_payload_that_is_damaged_where_it_lies(tmp_path: Path) -> None:
    """From then on it is known to be lost, and no news to a verify."""
    async with Opened(tmp_path) as rig:
        ids = await rig.fill(3)
        at = rig.location(ids[0])
    spoil(tmp_path / "s" / "bodies0" / "1.sqs", at.offset + at.size // 2)
    async with Opened(tmp_path) as rig:
        assert lost([*(await rig.engine.verify()).findings]) == {ids[0]}
    async with Opened(tmp_path, recovery="salvage") as rig:
        assert (await rig.engine.verify()).ok
        leases = await rig.queue.claim(limit=3)
        assert [lease.payload[:3] for lease in leases] == [b"001", b"002"]
        assert [task.id for task in await rig.queue.list("dead")] == ids[:1]
