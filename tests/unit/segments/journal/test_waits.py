"""A full disk under those who wait: everybody is told, and what is kept is written once it fits."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_loop import on_loop, settle

import lodeq
from lodeq.segments.journal.journal import Journal
from lodeq.segments.journal.open import open_journal
from lodeq.segments.journal.waits import Ack
from lodeq.testing import ManualClock


class Disk:
    def __init__(self) -> None:
        self.is_full = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    the_disk = Disk()

    def bounded(call: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
        def write(fd: int, data: Any) -> int:
            if the_disk.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(fd, data)

        return write

    for name in ("write", "writev"):
        monkeypatch.setattr(os, name, bounded(getattr(os, name)))
    return the_disk


async def until(holds: Any) -> None:
    """Turn by turn: a sync runs in a thread."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def payloads(journal: Journal) -> list[bytes]:
    return [record.payload for record in await journal.tailer().read()]


@on_loop
async def test_who_waits_for_a_sync_is_told_of_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock()
    async with open_journal(tmp_path / "j", flush="sync", clock=clock) as journal:
        await journal.append(b"a")
        disk.is_full = True
        both = await asyncio.gather(
            journal.append(b"b"), journal.append(b"c", until="flushed"), return_exceptions=True
        )
        assert [type(error) for error in both] == [lodeq.StorageFullError] * 2
        assert [error.receipts for error in both] == [
            (Ack(2, 2, "buffered"),),
            (Ack(3, 3, "buffered"),),
        ]
        for _ in range(3):
            clock.advance(1.0)
            await settle()
            assert journal._writer.flushed == 1
        disk.is_full = False
        clock.advance(1.0)  # nobody calls, and it is written
        await until(lambda: journal._writer.durable == 3)
        assert await payloads(journal) == [b"a", b"b", b"c"]
        assert await journal.append(b"d") == Ack(4, 4, "fsynced")


@on_loop
async def test_what_was_flushed_before_is_synced_all_the_same(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock()
    async with open_journal(tmp_path / "j", clock=clock) as journal:
        await journal.append(b"a", until="flushed")
        disk.is_full = True
        await journal.append(b"b")
        synced = asyncio.create_task(journal._reach("fsynced", Ack(1, 1, "flushed")))
        with pytest.raises(lodeq.StorageFullError):
            await journal.append(b"c", until="fsynced")
        assert await synced == Ack(1, 1, "fsynced")
        disk.is_full = False


@on_loop
async def test_a_close_that_finds_no_space_says_so(tmp_path: Path, disk: Disk) -> None:
    clock = ManualClock()
    journal = await open_journal(tmp_path / "j", clock=clock)
    await journal.append(b"a", until="flushed")
    disk.is_full = True
    with pytest.raises(lodeq.StorageFullError):
        await journal.append(b"b", until="flushed")
    late = asyncio.create_task(journal.append(b"c", until="flushed"))
    await asyncio.sleep(0)  # it waits for the end of this turn, and is overtaken
    with pytest.raises(lodeq.StorageFullError):
        await journal.close()
    with pytest.raises(lodeq.LodeqError):
        await late
    disk.is_full = False
    clock.advance(5.0)
    async with open_journal(tmp_path / "j", clock=clock) as again:
        assert await payloads(again) == [b"a"]


@on_loop
async def test_a_batch_whose_time_comes_during_a_sync_has_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with open_journal(tmp_path / "j", flush="batch", clock=clock) as journal:
        run, held = journal._thread.run, []
        monkeypatch.setattr(journal._thread, "run", lambda *job: held.append(job))
        first = asyncio.create_task(journal.append(b"a", until="fsynced"))
        await settle()
        await journal.append(b"b")
        clock.advance(1.0)
        await settle()
        assert len(held) == 1
        monkeypatch.setattr(journal._thread, "run", run)
        run(*held[0])
        await first
        await until(lambda: journal._writer.durable == 2)
