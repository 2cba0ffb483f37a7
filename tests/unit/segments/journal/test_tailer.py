"""Where a tailer is after its loop was left, and what reading back tells."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support_loop import on_loop, settle

import lodeq
from lodeq.errors import UsageError
from lodeq.segments.journal.journal import Journal
from lodeq.segments.journal.layout import list_files
from lodeq.segments.journal.open import open_journal, open_tailer
from lodeq.segments.journal.retention import remove_file
from lodeq.segments.journal.tailer import Tailer
from lodeq.testing import ManualClock


@asynccontextmanager
async def ten(path: Path) -> AsyncIterator[Journal]:
    async with open_journal(path, clock=ManualClock()) as journal:
        await journal.append_many([b"%d" % i for i in range(1, 11)], until="flushed")
        yield journal


async def told(tailer: Tailer, most: int) -> list[int]:
    """By another loop, which is left at the record behind them."""
    found: list[int] = []
    async for record in tailer:
        if len(found) == most:
            break
        found.append(record.sequence)
    return found


@on_loop
async def test_a_loop_that_was_left_by_an_error_loses_nothing(tmp_path: Path) -> None:
    async with ten(tmp_path / "j") as journal:
        tailer = journal.tailer("mailer")
        seen: list[int] = []

        async def failing() -> None:
            async for record in tailer:
                seen.append(record.sequence)
                if record.sequence == 3:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert tailer.following == 3
        await journal.append_many([b"11", b"12"], until="flushed")
        assert seen + await told(tailer, 9) == [1, 2, 3, *range(3, 12)]
        tailer.store()
        assert journal.tailer("mailer").following == 12


@on_loop
async def test_whatever_follows_a_break_begins_with_the_record_of_that_turn(tmp_path: Path) -> None:
    async with ten(tmp_path / "j") as journal:
        for again in (1, 2, 3):
            tailer = journal.tailer("mailer", start=4)
            assert await told(tailer, 3) == [4, 5, 6]
            if again == 1:
                assert [r.sequence for r in await tailer.read(2)] == [7, 8]
                assert tailer.following == 9
            elif again == 2:
                assert [r.sequence for r in tailer.read_back(2)] == [6, 5]
            else:
                tailer.seek(2)
                tailer.store()
                assert [r.sequence for r in await tailer.read(1)] == [2]
                assert journal.tailer("mailer").following == 2


@on_loop
async def test_what_a_loop_reads_and_seeks_moves_the_loop(tmp_path: Path) -> None:
    async with ten(tmp_path / "j") as journal:
        tailer, found = journal.tailer(), []
        async for record in tailer:
            found.append(record.sequence)
            if found == [1]:
                tailer.seek(6)
            elif len(found) == 2:
                assert [r.sequence for r in await tailer.read(3)] == [6, 7, 8]
            elif record.sequence == 10:
                break
        assert found == [1, 6, 9, 10]


@on_loop
async def test_a_loop_that_was_cancelled_goes_on(tmp_path: Path) -> None:
    async with ten(tmp_path / "j") as journal:
        tailer = journal.tailer("mailer")
        found: list[int] = []

        async def follow() -> None:
            async for record in tailer:
                found.append(record.sequence)  # noqa: PERF401 - in turns

        task = asyncio.create_task(follow())
        await settle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert journal.tailer("mailer").following == 11  # it had asked for the next one
        task = asyncio.create_task(follow())
        await journal.append(b"11", until="flushed")
        await settle()
    await task  # the journal's end is its end
    assert found == list(range(1, 12))


@on_loop
async def test_a_gap_is_told_once_also_if_a_loop_is_left_before_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_journal(
        tmp_path / "j", clock=clock, roll=lodeq.journal.Roll(records=1)
    ) as journal:
        for i in range(3):
            await journal.append(b"%d" % i, until="flushed")
        remove_file(journal._writer.files.pop(1))
        tailer = journal.tailer()
        async for record in tailer:
            if record.sequence == 1:
                break
        assert [r.sequence for r in await tailer.read()] == [1, 3]
        assert [(gap.first, gap.last) for gap in tailer.gaps] == [(2, 2)]


@on_loop
async def test_reading_back_has_the_rules_of_reading(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_journal(tmp_path / "j", clock=clock) as journal:
        await journal.append_many([b"a", b"b"])
        await journal.append_many([b"c", b"d"], ttls=[1.0, None])
        await journal.append_many([b"e", b"f"], ttls=[1.0, 1.0], until="flushed")
        clock.advance(2.0)
        tailer = journal.tailer(start="end")
        assert [r.payload for r in tailer.read_back(2)] == [b"d"]  # behind what has expired
        assert [r.payload for r in tailer.read_back()] == [b"b", b"a"]
        assert tailer.read_back() == []
        tailer.close()
        with pytest.raises(lodeq.ClosedError):
            tailer.read_back()
        with pytest.raises(lodeq.ClosedError):
            await anext(aiter(tailer))


@on_loop
async def test_reads_that_end_without_a_record_leave_nothing_behind(tmp_path: Path) -> None:
    async with ten(tmp_path / "j") as journal:
        tailer, clock = journal.tailer(start="end"), journal._clock
        assert isinstance(clock, ManualClock)
        for _ in range(3):
            reading = asyncio.ensure_future(tailer.read(wait=5.0))
            await settle()
            clock.advance(5.0)
            assert await reading == []
        assert not journal._wakes._waiting


@on_loop
async def test_a_cancelled_read_leaves_nothing_behind(tmp_path: Path) -> None:
    async with ten(tmp_path / "j") as journal:
        reading = asyncio.ensure_future(journal.tailer(start="end").read(wait=None))
        await settle()
        reading.cancel()
        await settle()
        assert not journal._wakes._waiting


@on_loop
async def test_a_read_that_finds_records_leaves_nothing_behind(tmp_path: Path) -> None:
    async with ten(tmp_path / "j") as journal:
        assert len(await journal.tailer().read(wait=None)) == 10
        assert not journal._wakes._waiting


@pytest.mark.parametrize("most", [0, -1, 1.5, None, True, "5"])
@on_loop
async def test_no_number_of_records_is_refused(tmp_path: Path, most: Any) -> None:
    async with ten(tmp_path / "j") as journal:
        tailer = journal.tailer()
        with pytest.raises(UsageError, match="at least 1"):
            await tailer.read(most)
        with pytest.raises(UsageError, match="at least 1"):
            tailer.read_back(most)


@pytest.mark.parametrize("wait", [float("nan"), "5", True, 10**400], ids=repr)
@on_loop
async def test_no_time_to_wait_is_refused(tmp_path: Path, wait: Any) -> None:
    async with ten(tmp_path / "j") as journal:
        with pytest.raises(UsageError, match="wait is seconds"):
            await journal.tailer(start="end").read(wait=wait)


@pytest.mark.parametrize("number", [1 << 63, 10**5000], ids=["wide", "huge"])
@on_loop
async def test_a_number_that_no_record_has_is_refused(tmp_path: Path, number: int) -> None:
    async with ten(tmp_path / "j") as journal:
        tailer = journal.tailer("mailer")
        with pytest.raises(UsageError, match="above any"):
            tailer.seek(number)
        with pytest.raises(UsageError, match="above any"):
            journal.tailer(start=number)
        assert tailer.following == 1


def size_of(path: str) -> int:
    return os.stat(path).st_size


async def cut_behind_a_tailer(path: Path) -> None:
    """A power cut that kept the place of a tailer, and took four records that it had finished."""
    async with open_journal(path, clock=ManualClock(), flush="sync") as journal:
        await journal.append(b"1")
    log = list_files(str(path))[0].path
    durable = size_of(log)
    async with open_journal(path, clock=ManualClock(), flush="sync") as journal:
        await journal.append_many([b"2", b"3", b"4", b"5"])
        for name in ("mailer", "slow"):
            tailer = journal.tailer(name)
            await tailer.read(5 if name == "mailer" else 1)
            tailer.store()
    (path / "position").unlink()
    os.truncate(log, durable)


@on_loop
async def test_a_tailer_whose_records_a_power_cut_took_gets_those_that_come_instead(
    tmp_path: Path,
) -> None:
    await cut_behind_a_tailer(tmp_path / "j")
    async with open_journal(tmp_path / "j", clock=ManualClock()) as journal:
        (finding,) = journal.findings
        assert finding.path.endswith("mailer")
        assert "up to record 5" in finding.reason
        await journal.append_many([b"%d" % i for i in range(7)], until="flushed")
        for name in ("mailer", "slow"):
            tailer = journal.tailer(name)
            assert [record.payload for record in await tailer.read()] == [
                b"%d" % i for i in range(7)
            ]
            assert not tailer.gaps
    async with open_journal(tmp_path / "j", clock=ManualClock()) as journal:
        assert journal.findings == ()


@on_loop
async def test_a_tailer_that_comes_before_the_writer_is_not_behind_the_end(tmp_path: Path) -> None:
    await cut_behind_a_tailer(tmp_path / "j")
    early = open_tailer(tmp_path / "j", "mailer", clock=ManualClock())
    assert early.following == 2
    async with open_journal(tmp_path / "j", clock=ManualClock()) as journal:
        await journal.append(b"new", until="flushed")
        assert [record.payload for record in await early.read()] == [b"new"]
    early.close()


@on_loop
async def test_a_damaged_place_of_a_tailer_does_not_hold_up_the_journal(tmp_path: Path) -> None:
    await cut_behind_a_tailer(tmp_path / "j")
    (tmp_path / "j" / "tailers" / "aaa").write_bytes(b"no place")
    async with open_journal(tmp_path / "j", clock=ManualClock()) as journal:
        assert journal.tailer("mailer").following == 2
        with pytest.raises(lodeq.CorruptionError):
            journal.tailer("aaa")
