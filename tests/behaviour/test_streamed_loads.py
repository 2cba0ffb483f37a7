"""Loads with payloads above 3 MiB: each is a body file before the load comes in, and after it."""

import os
from pathlib import Path
from typing import Any

import pytest
from support_ingest import create, inbox_of, manifest_of, publish, refusal, rewrite, staged, whole
from support_loop import on_loop

import lodeq
from lodeq import Limits, NewTask
from lodeq.engine.bulk.manifest import BODIES
from lodeq.engine.records.keyspace import BODY_FILES
from lodeq.engine.records.rows import decode_files
from lodeq.repository.api.in_place_reshard import reshard
from lodeq.repository.bulk import load
from lodeq.repository.bulk.staged_bodies import LoadedBodies
from lodeq.segments.bodies import files as body_files

MIB = 1 << 20
LIMITS = Limits(payload_bytes_max=64 * MIB)
LARGE = os.urandom(4 * MIB)


class StopError(Exception):
    """The process ends here."""


def opened(path: Path, **how: Any) -> Any:
    return lodeq.open(path, inbox=False, limits=LIMITS, **how)


def body_names(path: Path, shard: int = 0) -> list[str]:
    folder = path / f"bodies{shard}"
    return sorted(os.listdir(folder)) if folder.is_dir() else []


async def collected(engine: lodeq.Engine) -> None:
    """Everything that is garbage has gone."""
    await engine._runtime.body_gc.do_all()


async def payloads(engine: lodeq.Engine) -> dict[Any, bytes]:
    """Claim, read and complete all that is ready."""
    out = {}
    while leases := await engine.queue("mail").claim(limit=100):
        for lease in leases:
            out[lease.task_id] = await lease.read_payload()
            await lease.complete()
    return out


@pytest.mark.parametrize("durability", ["nosync", "fsync"])
@on_loop
async def test_it_comes_in_with_its_payload(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "s"
    await create(path, shards=2)
    values = [LARGE[:size] for size in (100_000, 3 * MIB, 3 * MIB + 1, 4 * MIB)]
    ids = publish(path, [NewTask(value, priority=n) for n, value in enumerate(values)])
    later = publish(
        path,
        [NewTask(LARGE[::-1], delay=0.001, headers={"a": 1}, dedup_key="k", ttl=900)],
        job="later",
    )
    async with opened(path, durability=durability) as engine:
        assert (await engine.ingest()).tasks == 5
        assert [await engine.read_payload(one) for one in ids] == values
        assert (await engine.verify()).ok
    async with opened(path) as engine:  # what is on disk says the same
        assert (await engine.queue("mail").enqueue(b"", dedup_key="k")).id == later[0]
        found: dict[Any, bytes] = {}
        while len(found) < 5:
            (lease,) = await engine.queue("mail").claim(wait=20)
            found[lease.task_id] = await lease.read_payload()
            await lease.complete()
        assert found == dict(zip([*ids, *later], [*values, LARGE[::-1]], strict=True))
        await collected(engine)
        assert body_names(path) == body_names(path, 1) == []
    assert inbox_of(path)["staged"] == []


@on_loop
async def test_rocksdb_sees_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await create(path, shards=1)
    publish(path, [NewTask(LARGE)])
    rows = [mark for mark in manifest_of(path).files if mark.family != BODIES]
    assert sum(mark.size_bytes for mark in rows) < 10_000
    (body,) = (mark for mark in manifest_of(path).files if mark.family == BODIES)
    inode = (staged(path) / body.name).stat().st_ino
    async with opened(path) as engine:
        await engine.ingest()
        (name,) = body_names(path)
        assert (path / "bodies0" / name).stat().st_ino == inode  # not copied


@pytest.mark.parametrize("policy", ["skip", "replace"])
@on_loop
async def test_the_file_of_a_task_that_stays_out_goes(tmp_path: Path, policy: Any) -> None:
    path = tmp_path / "s"
    async with opened(path) as engine:
        holder = await engine.queue("mail").enqueue(b"held", dedup_key="k")
        (lease,) = await engine.queue("mail").claim()  # not even ``replace`` ends it
        publish(path, [NewTask(LARGE, dedup_key="k"), NewTask(LARGE)], on_conflict=policy)
        assert (await engine.ingest()).jobs[0].skipped == 1
        await collected(engine)
        assert len(body_names(path)) == 1
        assert (await engine.verify()).ok
        assert lease.task_id == holder.id
        await lease.complete()
        assert list((await payloads(engine)).values()) == [LARGE]


@on_loop
async def test_where_there_are_no_links_it_is_copied(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "s"
    await create(path, shards=1)
    publish(path, [NewTask(LARGE)])

    def no_links(*_: object, **__: object) -> None:
        raise OSError(next(iter(body_files.NO_LINKS)), "no links here")

    async with opened(path) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(body_files.os, "link", no_links)
            await engine.ingest()
        assert list((await payloads(engine)).values()) == [LARGE]


def _nothing(*_: object) -> None:
    raise StopError


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (LoadedBodies, "link"),
        (LoadedBodies, "take_in"),
        (load.Load, "patcher"),
        (load.Load, "update_state"),
    ],
    ids=["link", "take_in", "patcher", "update_state"],
)
@on_loop
async def test_a_load_that_was_cut_off_comes_in_whole(
    tmp_path: Path, monkeypatch: Any, owner: Any, step: str
) -> None:
    path = tmp_path / "s"
    await create(path, shards=1)
    ids = publish(path, [NewTask(LARGE), NewTask(b"small")])
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, _nothing)
        async with opened(path) as engine:
            with pytest.raises(StopError):
                await engine.ingest()
    async with opened(path) as engine:
        assert (await engine.ingest()).ok
        await whole(engine, 2)
        await collected(engine)
        assert len(body_names(path)) == 1
        number = int(body_names(path)[0].partition(".")[0])
        assert decode_files(engine._state.shards[0].store.get(BODY_FILES)) == number + 1
        assert await payloads(engine) == dict(zip(ids, [LARGE, b"small"], strict=True))


@on_loop
async def test_the_file_of_a_load_is_kept_while_it_comes_in(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "s"
    await create(path, shards=1)
    publish(path, [NewTask(LARGE)])
    async with opened(path) as engine:
        inner = lodeq.repository.bulk.ingest.Ingester._take_rows

        async def between(self: Any, *args: Any) -> None:
            await collected(engine)
            await inner(self, *args)

        monkeypatch.setattr(lodeq.repository.bulk.ingest.Ingester, "_take_rows", between)
        await engine.ingest()
        assert list((await payloads(engine)).values()) == [LARGE]


@on_loop
async def test_a_damaged_payload_refuses_the_load(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await create(path, shards=1)
    publish(path, [NewTask(LARGE), NewTask(LARGE[::-1])])
    one, other = (mark for mark in manifest_of(path).files if mark.family == BODIES)
    raw = (staged(path) / one.name).read_bytes()
    (staged(path) / one.name).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    async with opened(path) as engine:
        assert not (await engine.ingest()).ok
        assert "is damaged" in refusal(path)["reason"]
        (staged(path) / one.name).write_bytes(raw)
        # Each sound by itself, and the other's.
        files = [mark for mark in manifest_of_refused(path) if mark.family != BODIES]
        swapped = [
            one._replace(first=other.first, last=other.last),
            other._replace(first=one.first, last=one.last),
        ]
        (path / "inbox" / "refused" / "j.json.manifest").rename(path / "inbox" / "j.json")
        rewrite(path, files=(*files, *swapped))
        assert not (await engine.ingest()).ok
        assert "is not the payload of task" in refusal(path)["reason"]
        await whole(engine, 0)
        assert body_names(path) == []


def manifest_of_refused(path: Path) -> Any:
    raw = (path / "inbox" / "refused" / "j.json.manifest").read_bytes()
    return lodeq.engine.bulk.manifest.decode_manifest(raw, "j").files


@on_loop
async def test_limits_are_those_of_the_stage(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await create(path)
    with lodeq.Stage(path, "j") as stage:
        with pytest.raises(lodeq.PayloadTooLargeError, match="the limit is 16777216"):
            stage.add([NewTask(bytes(16 * MIB + 1))], queue="mail")
        with pytest.raises(lodeq.PayloadTooLargeError, match="only bytes are taken"):
            stage.add([NewTask("x" * (4 * MIB))], queue="mail")
        assert not list(staged(path).iterdir())
    with lodeq.Stage(path, "k", limits=LIMITS) as stage:
        stage.add([NewTask(bytes(17 * MIB))], queue="mail")
        stage.discard()
    assert inbox_of(path)["staged"] == []


@on_loop
async def test_another_number_of_shards_has_it_too(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await create(path, shards=2)
    ids = publish(path, [NewTask(LARGE[n:]) for n in range(3)])
    async with opened(path) as engine:
        await engine.ingest()
    reshard(path, 3)
    async with opened(path) as engine:
        assert (await engine.verify()).ok
        assert await payloads(engine) == {one: LARGE[n:] for n, one in enumerate(ids)}
