"""Payload files that are not there, or are other ones: their tasks wait until they are back."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support_bodies import SIZE, Opened, Rig, crash_image
from support_loop import on_loop

import lodeq


def file_of(root: Path, number: int = 1) -> Path:
    return root / "s" / "bodies0" / f"{number}.sqs"


def take_away(root: Path) -> None:
    file_of(root).rename(root / "away")


def cut(root: Path) -> None:
    raw = file_of(root).read_bytes()
    (root / "away").write_bytes(raw)
    os.truncate(file_of(root), 64)


def replace(root: Path) -> None:
    """By another of the same layout."""
    raw = file_of(root, 2).read_bytes()
    take_away(root)
    file_of(root).write_bytes(raw)


async def claimed(rig: Rig) -> list[bytes]:
    leases = await rig.queue.claim(limit=10)
    for lease in leases:
        await lease.complete(keep=False)
    return [lease.payload[:3] for lease in leases]


async def counts(rig: Rig) -> tuple[int, int, int]:
    queue = await rig.queue.stats()
    return queue.ready, queue.delayed, queue.dead


@pytest.mark.parametrize("harm", [take_away, cut, replace])
@on_loop
async def test_tasks_whose_file_is_away_step_behind_and_come_when_it_is_back(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async with Opened(tmp_path) as rig:
        ids = await rig.fill(3)
        await rig.fill(3)
        rig.bodies.files._reader.close()
        harm(tmp_path)
        assert await claimed(rig) == [b"000", b"001", b"002"]  # of the other file
        assert await claimed(rig) == []
        assert await counts(rig) == (0, 3, 0)
        waiting = await rig.queue.list("delayed")
        assert [task.id for task in waiting] == ids
        assert [task.attempts for task in waiting] == [0, 0, 0]
        assert "1.sqs" in waiting[0].reason
        (reason,) = (await rig.engine.health()).reasons
        assert "1.sqs" in reason
        assert "put it back" in reason
        (tmp_path / "away").replace(file_of(tmp_path))
        assert (await rig.engine.health()).ok
        rig.clock.advance(61)
        assert await claimed(rig) == [b"000", b"001", b"002"]
        assert list((await rig.engine.verify()).findings) == []


@pytest.mark.parametrize("harm", [take_away, cut, replace])
@on_loop
async def test_a_file_that_no_task_needs_any_more_is_not_waited_for(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(3)
        await rig.fill(3)
        rig.bodies.files._reader.close()
        harm(tmp_path)
        assert await claimed(rig) == [b"000", b"001", b"002"]  # of the other file
        assert not (await rig.engine.health()).ok
        assert await rig.queue.purge() == 3
        assert (await rig.engine.health()).ok
        assert rig.bodies.absent == {}


@on_loop
async def test_a_damaged_record_still_buries_its_task_alone(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        ids = await rig.fill(3)
        at = rig.location(ids[1])
        raw = bytearray(file_of(tmp_path).read_bytes())
        raw[at.offset + 100] ^= 255
        file_of(tmp_path).write_bytes(raw)
        assert await claimed(rig) == [b"000", b"002"]
        assert [task.id for task in await rig.queue.dead_letters()] == [ids[1]]


@on_loop
async def test_health_names_a_file_before_a_claim_meets_it(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(2)
        take_away(tmp_path)
        (reason,) = (await rig.engine.health()).reasons
        assert "1.sqs" in reason
        assert "missing" in reason


@on_loop
async def test_a_file_that_no_task_needs_is_not_missed(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(2)
        await rig.end(2)
        take_away(tmp_path)
        assert (await rig.engine.health()).ok


@on_loop
async def test_one_that_is_past_its_ttl_ends_although_its_file_is_away(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        receipt = await rig.queue.enqueue(bytes(SIZE), ttl=30)
        take_away(tmp_path)
        rig.bodies.files._reader.close()
        assert await rig.queue.claim() == []
        rig.clock.advance(62)
        assert await rig.queue.claim() == []
        result = await rig.engine.result(receipt.id)
        assert isinstance(result, lodeq.Result)
        assert result.status == "expired"


HARMS = [take_away, cut, replace]


@pytest.mark.parametrize("harm", HARMS)
@on_loop
async def test_open_refuses_files_that_are_not_those_of_the_rows(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(3)
        await rig.fill(3)
    harm(tmp_path)
    for _ in range(2):
        with pytest.raises(lodeq.RecoveryRefusedError, match=r"bodies0/1\.sqs.*put the right"):
            await Opened(tmp_path).__aenter__()
    (tmp_path / "away").replace(file_of(tmp_path))
    async with Opened(tmp_path) as rig:
        assert len(await claimed(rig)) == 6


@on_loop
async def test_a_folder_that_is_missing_or_of_another_shard_is_refused(tmp_path: Path) -> None:
    async with Opened(tmp_path, shards=2) as rig:
        payloads = [lodeq.NewTask(os.urandom(SIZE), shard_key=f"k{n}") for n in range(12)]
        await rig.queue.enqueue_many(payloads)
    one, other = tmp_path / "s" / "bodies0", tmp_path / "s" / "bodies1"
    one.rename(tmp_path / "kept")
    with pytest.raises(lodeq.RecoveryRefusedError, match="missing"):
        await Opened(tmp_path).__aenter__()
    other.rename(one)
    (tmp_path / "kept").rename(other)
    with pytest.raises(lodeq.RecoveryRefusedError, match="shard 0: 1 of its payload files"):
        await Opened(tmp_path).__aenter__()
    other.rename(tmp_path / "kept")
    one.rename(other)
    (tmp_path / "kept").rename(one)
    async with Opened(tmp_path) as rig:
        assert len(await rig.queue.claim(limit=20)) == 12


@pytest.mark.parametrize("harm", HARMS)
@on_loop
async def test_a_salvage_buries_with_the_place_and_what_comes_back_is_redriven(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async with Opened(tmp_path) as rig:
        ids = await rig.fill(3)
        await rig.fill(3)
    harm(tmp_path)
    async with Opened(tmp_path, recovery="salvage") as rig:
        assert any("0 found again, 3 not" in text for text in (await rig.engine.stats()).recoveries)
        assert await claimed(rig) == [b"000", b"001", b"002"]
        assert await claimed(rig) == []
        dead = await rig.queue.dead_letters()
        assert [task.id for task in dead] == ids
        assert "payload in bodies0/1.sqs at 64" in dead[0].reason
        assert (await rig.engine.verify()).ok
    if (tmp_path / "away").exists():
        (tmp_path / "away").replace(file_of(tmp_path))
    async with Opened(tmp_path) as rig:  # an ordinary one takes it as it is
        await rig.look()
        assert 1 in rig.files(), "rows lead to it: it is not removed"
        assert await rig.queue.redrive() == 3
        assert await claimed(rig) == [b"000", b"001", b"002"]
        assert (await rig.engine.verify()).ok


@on_loop
async def test_what_a_power_cut_took_is_given_up_and_told(tmp_path: Path) -> None:
    """In nosync mode: the rows were written back, and the youngest file was not."""
    async with Opened(tmp_path) as rig:
        await rig.fill(2)
    async with Opened(tmp_path) as rig:
        ids = await rig.fill(2)
        crash_image(tmp_path, tmp_path / "cut")
    file_of(tmp_path / "cut", 2).unlink()
    async with Opened(tmp_path / "cut") as rig:
        (told,) = (await rig.engine.stats()).recoveries
        assert "took the payloads of 2 tasks" in told
        assert await claimed(rig) == [b"000", b"001"]
        assert [task.id for task in await rig.queue.dead_letters()] == ids
    async with Opened(tmp_path / "cut") as rig:
        assert (await rig.engine.stats()).recoveries == ()


@on_loop
async def test_a_power_cut_takes_no_file_of_an_earlier_opening(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(2)
    async with Opened(tmp_path) as rig:
        await rig.fill(2)
        crash_image(tmp_path, tmp_path / "cut")
    file_of(tmp_path / "cut", 1).unlink()
    with pytest.raises(lodeq.RecoveryRefusedError, match=r"1\.sqs' is missing"):
        await Opened(tmp_path / "cut").__aenter__()


@on_loop
async def test_health_is_answered_where_nobody_can_look_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(3)
        with monkeypatch.context() as patch:

            def fails(path: str) -> list[str]:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

            patch.setattr("lodeq.segments.bodies.layout.os.listdir", fails)
            (reason,) = (await rig.engine.health()).reasons
        assert "Too many open files" in reason
        assert (await rig.engine.health()).ok
