"""A load of which only a part is in is finished, or told of; and nothing else is in its way."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support_behaviour import settle, until
from support_ingest import inbox_of, publish, rewrite, staged, whole
from support_loop import on_loop

import lodeq
from lodeq import NewTask
from lodeq.coalescer.write_pause import writes_paused
from lodeq.engine.bulk import inbox
from lodeq.engine.bulk.reader import open_shard
from lodeq.engine.records.keyspace import INGESTED, prefix_end
from lodeq.engine.records.rows import FORMAT_VERSION
from lodeq.repository.bulk import conflicts, ingest, load, manifest_check
from lodeq.repository.bulk.stage import SIDE_BY_SIDE


class StopError(Exception):
    """The process ends here."""


def opened(path: Path, **how: Any) -> Any:
    return lodeq.open(path, inbox=False, **how)


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def cut_manifest(path: Path) -> None:
    os.truncate(path / "inbox" / "j.json", 99)


def newer_manifest(path: Path) -> None:
    rewrite(path, store_format=FORMAT_VERSION + 1)


def other_shards(path: Path) -> None:
    rewrite(path, shards=3)


async def half_in(engine: lodeq.Engine, monkeypatch: Any) -> None:
    """One shard has the load, the other has not."""
    inner = load.Load.update_state

    def came_in(self: Any, shard: Any) -> None:
        inner(self, shard)
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(load.Load, "update_state", came_in)
        with pytest.raises(StopError):
            await engine.ingest()


@pytest.mark.parametrize("spoil", [cut_manifest, newer_manifest, other_shards])
@on_loop
async def test_a_half_is_never_called_refused(tmp_path: Path, monkeypatch: Any, spoil: Any) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        publish(path, [NewTask(n) for n in range(2 * SIDE_BY_SIDE)])
        await half_in(engine, monkeypatch)
        sound = (path / "inbox" / "j.json").read_bytes()
        spoil(path)
        with pytest.raises(lodeq.CorruptionError, match="a part of load 'j' is in already"):
            await engine.ingest()
        assert inbox_of(path)["refused"] == []
        (path / "inbox" / "j.json").write_bytes(sound)
        assert (await engine.ingest()).tasks == 2 * SIDE_BY_SIDE
        await whole(engine, 2 * SIDE_BY_SIDE)


@on_loop
async def test_a_half_is_finished_whatever_the_clock_says(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        publish(path, [NewTask(n) for n in range(2 * SIDE_BY_SIDE)])
        await half_in(engine, monkeypatch)
        monkeypatch.setattr(manifest_check, "SEQ_AHEAD_US_MAX", -(10**15))  # set back by years
        assert (await engine.ingest()).tasks == 2 * SIDE_BY_SIDE
        await whole(engine, 2 * SIDE_BY_SIDE)


@on_loop
async def test_others_need_not_wait_for_a_load_that_nobody_can_take(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        publish(path, [NewTask(n) for n in range(2 * SIDE_BY_SIDE)], "stuck")
        await half_in(engine, monkeypatch)
        for file in staged(path, "stuck").glob("*.sst"):
            flip(file)
        publish(path, [NewTask("other")], "other")
        with pytest.raises(lodeq.CorruptionError):
            await engine.ingest()
        assert inbox_of(path)[""] == ["stuck.json"]
        await whole(engine, SIDE_BY_SIDE + 1)


@on_loop
async def test_once_nothing_waits_nothing_is_wrong(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "s"
    async with opened(path) as engine:
        publish(path, [NewTask(1)])
        with monkeypatch.context() as patch:
            patch.setattr(ingest, "verify_files", fails)
            await engine._runtime.ingester.run()  # in the background nobody hears of it
        assert "waits in the inbox" in (await engine.health()).reasons[0]
        assert (await engine.ingest()).tasks == 1
        assert (await engine.health()).ok


def fails(*args: Any, **how: Any) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("copy", ["snapshot", "checkpoint"])
@on_loop
async def test_a_copy_has_all_of_a_load_or_nothing(
    tmp_path: Path, monkeypatch: Any, copy: str
) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        publish(path, [NewTask(n) for n in range(2 * SIDE_BY_SIDE)])
        ingester, inner = engine._runtime.ingester, ingest.Ingester._take_shard
        copies: list[asyncio.Future[Any]] = []

        def is_waiting() -> bool:
            locks = (ingester._lock, ingester._taking)
            return copies[0].done() or any(one.statistics().tasks_waiting for one in locks)

        async def take_shard(self: Any, load: Any, shard: Any) -> None:
            await inner(self, load, shard)
            if not copies:  # one shard has it
                made = (
                    engine.snapshot() if copy == "snapshot" else engine.checkpoint(tmp_path / "c")
                )
                copies.append(asyncio.ensure_future(made))
                await until(is_waiting, 10**6)

        monkeypatch.setattr(ingest.Ingester, "_take_shard", take_shard)
        assert (await engine.ingest()).tasks == 2 * SIDE_BY_SIDE
        made = await copies[0]
        assert loads_in(str(tmp_path / "c") if made is None else made.path) == [1, 1]


@on_loop
async def test_a_copy_has_no_half_of_an_earlier_process(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        publish(path, [NewTask(n) for n in range(2 * SIDE_BY_SIDE)])
        await half_in(engine, monkeypatch)
    async with opened(path) as engine:
        assert loads_in((await engine.snapshot()).path) == [1, 1]
        await whole(engine, 2 * SIDE_BY_SIDE)


def loads_in(root: str) -> list[int]:
    """How many loads each shard of a copy has."""
    found = []
    for index in range(2):
        with open_shard(root, index) as shard:
            found.append(len(shard.scan(INGESTED, prefix_end(INGESTED), 9)))
    return found


@pytest.mark.parametrize("state", ["done", "refused"])
@on_loop
async def test_cancelled_in_the_last_step_it_is_seen_through(
    tmp_path: Path, monkeypatch: Any, state: str
) -> None:
    path = tmp_path / "s"
    reached, go_on, inner = threading.Event(), threading.Event(), inbox.conclude

    def conclude(*args: Any) -> None:
        reached.set()
        assert go_on.wait(10)
        inner(*args)

    monkeypatch.setattr(ingest, "conclude", conclude)
    async with opened(path, shards=2) as engine:
        publish(path, [NewTask(1)])
        if state == "refused":
            cut_manifest(path)
        task = asyncio.ensure_future(engine.ingest())
        await until(reached.is_set, 10**6)
        task.cancel()
        await settle(5)
        assert not task.done()  # or the thread were left alone
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert inbox_of(path)[""] == []
        assert "j.json" in inbox_of(path)[state]


@on_loop
async def test_those_who_give_way_wait_their_turn(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "s"
    monkeypatch.setattr(conflicts, "SLICE", 2)
    tasks = [NewTask(n, dedup_key=f"k{n}") for n in range(40)]
    async with opened(path, shards=1, submit_queue_max=6) as engine:
        await engine.queue("mail").enqueue_many(tasks)
        publish(path, tasks, on_conflict="replace")
        (shard,) = engine._state.shards
        with writes_paused(shard.coalescer):  # as where the store is stalled
            loading = asyncio.ensure_future(engine.ingest())
            await until(lambda: shard.coalescer.waiting >= 6, 10**6)
            await settle(50)
            assert shard.coalescer.waiting <= 7
        assert (await loading).jobs[0].replaced == 40
        await whole(engine, 40)
