"""Files are left often enough for a retention to mean what it says."""

from pathlib import Path
from typing import Any

import pytest
from support_loop import on_loop, settle

import lodeq
from lodeq.errors import StorageError, UsageError
from lodeq.segments.journal import retention
from lodeq.segments.journal.layout import list_files
from lodeq.segments.journal.open import open_journal
from lodeq.segments.journal.retention import Retention, roll_for
from lodeq.segments.journal.roll import Roll
from lodeq.testing import ManualClock

DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("retention", "roll"),
    [
        (None, Roll()),
        (Retention(), Roll()),
        (Retention(seconds=7 * DAY_S), Roll(seconds=7 * DAY_S / 8)),
        (Retention(seconds=0), Roll(seconds=1.0)),
        (Retention(bytes=80 << 20), Roll(bytes=10 << 20)),
        (Retention(bytes=1 << 40), Roll()),
        (Retention(bytes=0, records=0), Roll(bytes=64 << 10, records=256)),
        (Retention(records=8_000), Roll(records=1_000)),
    ],
)
def test_files_are_an_eighth_of_what_is_kept(retention: Retention | None, roll: Roll) -> None:
    assert roll_for(retention) == roll


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (Retention, {"seconds": float("inf")}, "seconds is a finite number"),
        (Retention, {"seconds": "7"}, "seconds is a finite number"),
        (Retention, {"bytes": 1e9}, "bytes is an integer"),
        (Retention, {"records": True}, "records is an integer"),
        (Retention, {"files": 2.5}, "files is an integer"),
        (Retention, {"files_min": 1.5}, "files_min is an integer"),
        (Roll, {"seconds": float("nan")}, "seconds is a finite number"),
        (Roll, {"bytes": 8192.0}, "bytes is an integer"),
        (Roll, {"records": 1.5}, "records is an integer"),
    ],
)
def test_bounds_are_numbers(kind: Any, given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kind(**given)


@on_loop
async def test_only_files_about_to_go_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens on the loop, with however many files there are."""
    clock = ManualClock()
    async with open_journal(tmp_path / "j", roll=Roll(records=1), clock=clock) as journal:
        for day in range(20):
            await journal.append(b"%d" % day, until="flushed")
            clock.advance(DAY_S)
        opened: list[str] = []
        real = retention._created_us

        def created_us(path: str) -> int | None:
            opened.append(path)
            return real(path)

        monkeypatch.setattr(retention, "_created_us", created_us)
        due = journal.trim(Retention(seconds=16.5 * DAY_S), dry_run=True)
        assert [file.first for file in due] == [1, 2, 3]
        assert len(opened) == 4


@pytest.mark.parametrize("is_reopened", [False, True])
@on_loop
async def test_a_journal_keeps_seven_days_at_any_rate(tmp_path: Path, is_reopened: bool) -> None:
    clock = ManualClock()
    path, kept = tmp_path / "j", Retention(seconds=7 * DAY_S)
    journal = await open_journal(path, clock=clock, retention=kept)
    for day in range(30):
        await journal.append(b"%d" % day, until="fsynced")
        clock.advance(DAY_S)
        if is_reopened:  # a file's age goes on
            await journal.close()
            journal = await open_journal(path, clock=clock, retention=kept)
    await journal.append(b"30", until="fsynced")
    days = [int(record.payload) for record in await journal.tailer().read()]
    assert days[-8:] == list(range(23, 31))
    assert len(days) <= 10
    await journal.close()
    assert len(list_files(str(path))) > 3


@on_loop
async def test_a_batch_is_never_split(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "j", roll=Roll(records=10), clock=ManualClock()) as journal:
        for count in (3, 100, 3):
            await journal.append_many([b"x"] * count, until="flushed")
        assert [file.first for file in journal._writer.files] == [1, 4, 104]


@on_loop
async def test_a_lifecycle_journal_is_left_as_its_retention_needs(tmp_path: Path) -> None:
    clock = ManualClock()
    for i, (how, is_left) in enumerate(
        (
            ({"journal_retention": Retention(seconds=8 * DAY_S)}, True),
            ({"journal_roll": Roll(records=1)}, True),
            ({}, False),
        )
    ):
        root = tmp_path / str(i)
        for _ in range(3):
            async with lodeq.open(root, journal="tasks", clock=clock, **how) as engine:
                await engine.queue("q").enqueue(b"")
            clock.advance(DAY_S)
        assert (len(list_files(str(root / "journals" / "tasks"))) >= 3) == is_left


@on_loop
async def test_a_lifecycle_journal_ages_while_nothing_happens(tmp_path: Path) -> None:
    clock = ManualClock()
    kept = Retention(seconds=7 * DAY_S)
    folder = tmp_path / "s" / "journals" / "tasks"
    async with lodeq.open(
        tmp_path / "s", journal="tasks", journal_retention=kept, clock=clock
    ) as engine:
        await engine.queue("q").enqueue(b"", delay=100 * DAY_S)
        while not any(file.stat().st_size > 100 for file in folder.rglob("*.log")):
            await settle()
            clock.advance(0.1)
        (first,) = list_files(str(folder))
        for day in range(9):
            clock.advance(DAY_S)
            await settle()
            assert (first in list_files(str(folder))) == (day < 7)
        assert len(list_files(str(folder))) == 1
        await engine.queue("q").enqueue(b"")


def damage_head(path: str) -> None:
    Path(path).write_bytes(bytes(8) + Path(path).read_bytes()[8:])


@on_loop
async def test_a_file_whose_head_is_damaged_does_not_age_the_one_before_it(tmp_path: Path) -> None:
    kept, clock = Retention(seconds=DAY_S), ManualClock()
    async with open_journal(tmp_path / "j", roll=Roll(records=1), clock=clock) as journal:
        for n in range(4):
            await journal.append(b"%d" % n, until="flushed")
        damage_head(journal._writer.files[1].path)
        assert journal.trim(retention=kept) == []
        clock.advance(DAY_S)
        assert len(journal.trim(retention=kept)) == 3


@on_loop
async def test_files_that_cannot_be_opened_now_are_not_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise StorageError(f"{path}: Too many open files")

    async with open_journal(tmp_path / "j", roll=Roll(records=1), clock=ManualClock()) as journal:
        for n in range(4):
            await journal.append(b"%d" % n, until="flushed")
        monkeypatch.setattr(retention, "FileSource", refuse)
        assert journal.trim(retention=Retention(seconds=DAY_S)) == []
