"""What a store remembers of loads, until it is told to forget."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from support_ingest import inbox_of, manifest_of, publish, rewrite, staged, whole
from support_loop import on_loop

import lodeq
from lodeq import ForgottenLoads, NewTask
from lodeq.engine.records.keyspace import INGESTED, prefix_end
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.bulk import forget
from lodeq.testing import ManualClock

DAY = timedelta(days=1)


def remembered(engine: lodeq.Engine) -> set[bytes]:
    """The jobs of which any shard has a row."""
    return {
        key.removeprefix(INGESTED)
        for shard in engine._state.shards
        for key, _ in shard.store.scan(INGESTED, prefix_end(INGESTED), 1000)
    }


def backdate(path: Path, clock: ManualClock) -> None:
    """Files are of the machine's time; here they were written now, by the clock of the test."""
    for entry in [path, *path.iterdir()]:
        os.utime(entry, (clock.wall_us() / 1e6,) * 2)


@on_loop
async def test_what_ended_long_ago_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock()
    async with lodeq.open(path, shards=3, inbox=False, clock=clock) as engine:
        publish(path, [NewTask(n) for n in range(50)], "old")
        publish(path, [NewTask(n) for n in range(50)], "unfit")
        rewrite(path, "unfit", shards=5)
        await engine.ingest()
        clock.advance(2 * DAY.total_seconds())
        publish(path, [NewTask(n) for n in range(50)], "new")
        await engine.ingest()
        publish(path, [NewTask(n) for n in range(50)], "waits")
        assert remembered(engine) == {b"old", b"new"}
        report = await engine.forget_loads(DAY)
        assert (report.done, report.refused, report.abandoned) == (1, 1, 0)
        assert report.freed_bytes > 0
        assert remembered(engine) == {b"new"}
        assert inbox_of(path) == {
            "": ["waits.json"],
            "staged": ["waits"],
            "done": ["new.json"],
            "refused": [],
        }
        assert await engine.forget_loads(DAY) == ForgottenLoads()
        await whole(engine, 100)
        assert publish(path, [NewTask(1)], "old")
        assert [one.state for one in (await engine.ingest()).jobs] == ["done", "done"]
        await whole(engine, 151)
        assert publish_again(path, "new") is False


def publish_again(path: Path, job: str) -> bool:
    with lodeq.Stage(path, job) as stage:
        stage.add([NewTask(1)], queue="mail")
        return stage.publish()


@on_loop
async def test_a_forgotten_load_is_forgotten_by_the_next_process(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock()
    async with lodeq.open(path, inbox=False, clock=clock) as engine:
        publish(path, [NewTask(1)])
        await engine.ingest()
        clock.advance(2 * DAY.total_seconds())
        assert (await engine.forget_loads(DAY)).done == 1
    async with lodeq.open(path, inbox=False, clock=clock) as engine:
        assert remembered(engine) == set()
        await whole(engine, 1)


@on_loop
async def test_staging_that_nobody_finished_goes_once_it_is_old(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock()
    async with lodeq.open(path, inbox=False, clock=clock) as engine:
        folder = staged(path, "died")
        folder.mkdir(parents=True)
        (folder / "0-t-1.sst").write_bytes(bytes(1000))
        (folder / "0-t-2.sst").write_bytes(bytes(500))
        publish(path, [NewTask(1)], "waits")
        backdate(folder, clock)
        clock.advance(DAY.total_seconds() - 1)
        assert await engine.forget_loads(DAY) == ForgottenLoads()
        os.utime(folder / "0-t-2.sst", (clock.wall_us() / 1e6,) * 2)  # somebody is at work
        clock.advance(2)
        assert await engine.forget_loads(DAY) == ForgottenLoads()
        clock.advance(DAY.total_seconds())
        assert await engine.forget_loads(DAY) == ForgottenLoads(abandoned=1, freed_bytes=1500)
        assert inbox_of(path)["staged"] == ["waits"]
        assert manifest_of(path, "waits")
        assert (await engine.ingest()).tasks == 1


@on_loop
async def test_a_refused_load_that_is_staged_again_keeps_its_files(tmp_path: Path) -> None:
    """Its name is free after a refusal, so whoever runs it again is at work in the same folder."""
    path, clock = tmp_path / "s", ManualClock()
    async with lodeq.open(path, inbox=False, clock=clock) as engine:
        publish(path, [NewTask(1)])
        rewrite(path, "j", shards=5)
        assert [one.state for one in (await engine.ingest()).jobs] == ["refused"]
        clock.advance(2 * DAY.total_seconds())
        with lodeq.Stage(path, "j", run_bytes=1) as again:
            again.add([NewTask(2)], queue="mail")
            backdate(staged(path, "j"), clock)  # written now, by the clock of the test
            assert await engine.forget_loads(DAY) == ForgottenLoads()
            assert again.publish()
        assert (await engine.ingest()).tasks == 1
        clock.advance(2 * DAY.total_seconds())
        assert (await engine.forget_loads(DAY)).done == 1


@on_loop
async def test_what_is_no_note_of_ours_is_left_alone(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", ManualClock()
    async with lodeq.open(path, inbox=False, clock=clock) as engine:
        publish(path, [NewTask(1)])
        await engine.ingest()
        done = path / "inbox" / "done"
        strange = {"x.json": "no json", "y.json": "[]", "z.json": '{"done_us": "1"}', "README": ""}
        for name, text in strange.items():
            (done / name).write_text(text)
        clock.advance(2 * DAY.total_seconds())
        assert (await engine.forget_loads(DAY)).done == 1
        assert inbox_of(path)["done"] == sorted(strange)


@on_loop
async def test_cut_off_in_between_it_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "s", ManualClock()

    def fail(root: str, jobs: list[str]) -> None:
        raise lodeq.StorageError("the disk")

    async with lodeq.open(path, inbox=False, clock=clock) as engine:
        publish(path, [NewTask(1)])
        await engine.ingest()
        clock.advance(2 * DAY.total_seconds())
        with monkeypatch.context() as patch:
            patch.setattr(forget, "drop_done", fail)
            with pytest.raises(lodeq.StorageError):
                await engine.forget_loads(DAY)
        assert publish_again(path, "j") is False  # half forgotten is not forgotten
        assert (await engine.forget_loads(DAY)).done == 1
        assert publish_again(path, "j")


@on_loop
async def test_an_engine_in_memory_has_nothing_to_forget() -> None:
    async with lodeq.testing.open() as engine:
        with pytest.raises(lodeq.UsageError, match="no inbox"):
            await engine.forget_loads(DAY)


@on_loop
async def test_a_row_that_cannot_be_read_is_forgotten_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock, get = tmp_path / "s", ManualClock(), RocksStore.get

    def damaged(self: RocksStore, key: bytes) -> bytes | None:
        if key.startswith(INGESTED):
            raise lodeq.CorruptionError("block checksum mismatch")
        return get(self, key)

    async with lodeq.open(path, inbox=False, clock=clock) as engine:
        publish(path, [NewTask(n) for n in range(5)], "old")
        await engine.ingest()
        clock.advance(2 * DAY.total_seconds())
        with monkeypatch.context() as patched:
            patched.setattr(RocksStore, "get", damaged)
            assert (await engine.forget_loads(DAY)).done == 1
        assert remembered(engine) == set()
